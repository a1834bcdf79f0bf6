#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "serving/read_epochs.h"
#include "serving/versioned_table.h"

namespace cairn::serving {

/// What predicts with the dense variables of one version. What it can do is its maker's affair.
class Dense {
 public:
  virtual ~Dense() = default;
};

/// Which checkpoint a version is.
struct VersionFacts {
  std::string id;
  std::int64_t step = 0;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::int64_t committed = 0;  // when, in nanoseconds since 1970, as the writer's clock had it
  std::uint64_t rows = 0;      // of all tables; Prepare counts them
};

/// The versions of a model: tables and dense part together. Readers take a Snapshot of the visible
/// one, which stays whole for them whatever happens; an update is made aside and becomes visible in
/// one store of a pointer. Versions before the newest stay to go back to.
///
/// Acquire and everything through a Snapshot: any thread, without waiting. AcquireStep, Rollback,
/// Pin, Resume, kept: any thread. Begin … Collect: one updater at a time.
class Versions {
 public:
  struct Options {
    std::size_t keep = 2;  // versions that stay beside the newest
  };
  Versions(std::vector<ServedTable> tables, Options options);
  /// No snapshot may be left.
  ~Versions();
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;

 private:
  struct Node {
    Version number = 0;
    VersionFacts facts;
    std::shared_ptr<const Dense> dense;  // shared: versions whose variables are equal have one
    std::atomic<std::uint64_t> snapshots{0};
    ReadEpochs::Tag retired = 0;
  };

 public:
  /// One version, for as long as the snapshot lives. Empty before anything was visible.
  class Snapshot {
   public:
    Snapshot() = default;
    Snapshot(Snapshot&& other) noexcept
        : versions_(other.versions_), node_(std::exchange(other.node_, nullptr)) {}
    Snapshot& operator=(Snapshot&& other) noexcept {
      std::swap(versions_, other.versions_);
      std::swap(node_, other.node_);
      return *this;
    }
    ~Snapshot() {
      if (node_ != nullptr) node_->snapshots.fetch_sub(1, std::memory_order_release);
    }

    explicit operator bool() const { return node_ != nullptr; }
    const VersionFacts& facts() const { return node_->facts; }
    Version number() const { return node_->number; }
    std::uint64_t rows() const { return node_->facts.rows; }  // of all tables
    const Dense* dense() const { return node_->dense.get(); }
    /// As VersionedTable::Lookup. `table`: see Versions::Find.
    std::size_t Lookup(std::size_t table, std::span<const std::int64_t> ids, float* out) const {
      return versions_->tables_[table]->Lookup(node_->number, ids, out);
    }

   private:
    friend class Versions;
    Snapshot(const Versions* versions, Node* node) : versions_(versions), node_(node) {}
    const Versions* versions_ = nullptr;
    Node* node_ = nullptr;
  };

  const std::vector<std::unique_ptr<VersionedTable>>& tables() const { return tables_; }
  /// Index of the table, or -1.
  std::ptrdiff_t Find(std::string_view name) const;

  Snapshot Acquire() const;
  /// Of a version that is kept, whichever is visible; of several of that step the newest. NotFound,
  /// naming those that are.
  Result<Snapshot> AcquireStep(std::int64_t step) const EXCLUDES(mu_);

  // The updater ----------

  /// Begins an update of all tables; see VersionedTable. Not while one is under way.
  Status Begin(bool replace);
  /// The tables are as they should be: a snapshot of them for the guards, while nobody else sees
  /// them. ResourceExhausted: abort. The snapshot must be gone before Commit or Abort.
  Result<Snapshot> Prepare(VersionFacts facts, std::shared_ptr<const Dense> dense);
  /// Makes the prepared version the newest, and visible unless another one is held. Strong: when it
  /// throws (std::bad_alloc), nobody has seen the version, and the update can be aborted.
  void Commit() EXCLUDES(mu_);
  /// Everything is as before Begin. Asks for no memory: it may be why.
  void Abort();
  /// Frees what no version needs. To be called now and then, also without updates: snapshots that
  /// ended meanwhile held memory.
  void Collect() EXCLUDES(mu_);
  /// Leaves nothing to go back to that has one of these ids; the visible and the newest version
  /// stay.
  void Forget(const std::vector<std::string>& ids) EXCLUDES(mu_);

  // Which version is visible ----------

  /// Shows the n-th version before the visible one, and holds it. FailedPrecondition
  /// when so many are not kept.
  Status Rollback(std::size_t n) EXCLUDES(mu_);
  /// Holds a version that is kept. NotFound, naming those that are.
  Status Pin(std::string_view id) EXCLUDES(mu_);
  Status PinStep(std::int64_t step) EXCLUDES(mu_);
  /// Shows the newest version, and those to come.
  void Resume() EXCLUDES(mu_);
  bool held() const EXCLUDES(mu_);
  /// Oldest first; the last is the newest.
  std::vector<VersionFacts> kept() const EXCLUDES(mu_);

  std::uint64_t bytes_in_use() const;
  std::uint64_t bytes_reserved() const;

 private:
  void Show(Node* node) REQUIRES(mu_);
  void Trim() REQUIRES(mu_);
  template <typename Wanted>
  Status PinWhere(const std::string& name, Wanted wanted) EXCLUDES(mu_);
  /// The newest that is kept and wanted. NotFound, naming those that are kept.
  template <typename Wanted>
  Result<Node*> FindKept(const std::string& name, Wanted wanted) const REQUIRES(mu_);

  const Options options_;
  mutable ReadEpochs epochs_;
  std::vector<std::unique_ptr<VersionedTable>> tables_;
  std::atomic<Node*> visible_{nullptr};

  // The updater's.
  Version last_ = 0;
  std::unique_ptr<Node> prepared_;

  mutable Mutex mu_;
  bool held_ GUARDED_BY(mu_) = false;
  std::deque<std::unique_ptr<Node>> kept_ GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Node>> retired_ GUARDED_BY(mu_);  // until no snapshot is left
};

}  // namespace cairn::serving
