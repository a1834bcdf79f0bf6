#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include <cairn/status.h>

#include "base/ids.h"
#include "base/thread_annotations.h"
#include "checkpoint/layout.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/sim_fs.h"

namespace cairn::crash {

/// A directory of the real file system, removed with the last machine or image that has it.
class RealDirectory;

using Image = std::variant<std::shared_ptr<const SimImage>, std::shared_ptr<const MemoryImage>,
                           std::shared_ptr<const RealDirectory>>;

/// How a machine ends.
enum class Ending {
  kForget,  // power loss: nothing that was not synced is left
  kKeep,    // power loss: everything is left
  kSubset,
  kTorn,
  kKill,  // only the processes end
};
std::string_view EndingName(Ending ending);

/// A machine with a disk (a local store on SimFs), a bucket (a memory store in object-store mode;
/// of kShelves one on which every manifest is worth a shelf), or a temporary directory of the
/// machine that the test runs on. Thread-safe.
class Machine {
 public:
  enum class Kind { kDisk, kBucket, kShelves, kDirectory };
  explicit Machine(Kind kind, SimFs::Options disk = {});
  /// The machine started again after its end at that instant. A bucket and a directory know one
  /// kind of end: all that was done stays.
  Machine(const Image& image, Ending ending, std::uint64_t seed);

  ~Machine();

  Kind kind() const;
  /// Where the repository is, on a disk or in a directory.
  std::string root() const;
  /// The repository's store as another process would open it.
  Result<std::shared_ptr<Store>> NewStore(IdSource* ids) EXCLUDES(mu_);
  /// Called before every operation that may change what is stored, of stores opened later too. Not
  /// in a directory.
  void SetHook(std::function<void(const std::string&)> hook) EXCLUDES(mu_);
  Image Snapshot() const;
  SimFs* fs() { return fs_.get(); }
  /// Fails operations of stores opened by NewStore. On a disk.
  FaultyFs* faults() { return faults_.get(); }

 private:
  std::unique_ptr<SimFs> fs_;                       // kDisk
  std::unique_ptr<FaultyFs> faults_;                // kDisk: over fs_
  std::unique_ptr<MemoryStore> memory_;             // kBucket, kShelves
  std::shared_ptr<const RealDirectory> directory_;  // kDirectory; shared with images of it
  Mutex mu_;
  std::function<void(const std::string&)> hook_ GUARDED_BY(mu_);
};

std::string_view KindName(Machine::Kind kind);
inline bool IsBucket(Machine::Kind kind) {
  return kind == Machine::Kind::kBucket || kind == Machine::Kind::kShelves;
}

/// The repository as a local store of `fs`, with parts and direct I/O from a few KiB up, so that
/// small files go the ways of large ones.
inline constexpr std::string_view kRepositoryRoot = "/data/run";
Result<std::unique_ptr<Store>> OpenRepository(Fs* fs, IdSource* ids,
                                              std::string_view root = kRepositoryRoot);

/// Layout limits with which a few KiB become several files that are shared and recycled.
LayoutLimits SmallLayout();

}  // namespace cairn::crash
