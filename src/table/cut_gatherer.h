#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "table/cut_stage.h"
#include "table/table_impl.h"

namespace cairn::table {

/// Gathers the rows of an increment, shard by shard and in order, for the thread that reads its
/// columns. While nobody changes tables a second thread gathers too: a save is then held up by the
/// memory, not by the disk, and a core is idle. It leaves for good as soon as it meets a batch
/// inside of the gate: what is left of the cores belongs to training.
///
/// Await, Read and Stop belong to the thread that reads. After a failure every Await returns it.
class CutGatherer {
 public:
  /// Both are borrowed.
  CutGatherer(TableImpl* table, CutStage* stage)
      : table_(table), stage_(stage), whole_(stage->shards()) {}
  ~CutGatherer() { Stop(); }
  CutGatherer(const CutGatherer&) = delete;
  CutGatherer& operator=(const CutGatherer&) = delete;

  const CutStage& stage() const { return *stage_; }
  /// Returns when the shard's rows are in the stage, and gathers it or others meanwhile. `weights`:
  /// they are what will be read of it, once. As long as they are read before other columns they
  /// take no memory but that of a few shards.
  Status Await(std::uint32_t shard, bool weights) EXCLUDES(mu_);
  /// The weights were read to the end of the shard.
  void WeightsRead(std::uint32_t shard) EXCLUDES(mu_);
  /// Nothing is gathered any more, nor will be.
  void Stop() EXCLUDES(mu_);

 private:
  /// Shards gathered before the reader has come to them: the rest of its stripe, one of the
  /// helper's, and one that the reader begins when it has to wait.
  static constexpr std::uint32_t kAhead = 3 * kShardsPerStripe;
  /// Who gathers the shards of a stripe: they share a lock.
  enum class Owner : std::uint8_t { kNobody, kReader, kHelper };

  void Begin(bool weights) REQUIRES(mu_);
  void StartHelper() REQUIRES(mu_);
  void Help() EXCLUDES(mu_);
  /// The shard that the reader, who wants this one, shall gather; false: it has to wait.
  bool TakeForReader(std::uint32_t wanted, std::uint32_t* shard) REQUIRES(mu_);
  /// The shard after this one that the helper shall gather; false: it is done.
  bool TakeForHelper(std::uint32_t* shard) REQUIRES(mu_);
  /// The next stripe that nobody has, if there is one.
  bool Claim(Owner owner, std::uint32_t* shard) REQUIRES(mu_);
  bool HasRoom(std::uint32_t shard) const REQUIRES(mu_);
  /// Where the weights of a shard go, nullptr: where they stay.
  std::byte* WeightsOf(std::uint32_t shard) REQUIRES(mu_);
  void GatherTaken(std::uint32_t shard, std::byte* weights) EXCLUDES(mu_);
  Status Gather(std::uint32_t shard, std::byte* weights) EXCLUDES(mu_);
  Status NoMemory() const;

  TableImpl* const table_;
  CutStage* const stage_;

  Mutex mu_;
  CondVar changed_;
  bool begun_ GUARDED_BY(mu_) = false;
  bool weights_first_ GUARDED_BY(mu_) = false;  // nothing was read before them so far
  // Of the next few shards. Made one by one: of what the stage kept from last time, a large one
  // would leave most unused.
  std::array<std::byte*, kAhead> weights_ GUARDED_BY(mu_) = {};
  std::size_t weights_bytes_ GUARDED_BY(mu_) = 0;  // of the largest shard
  bool stopped_ GUARDED_BY(mu_) = false;
  std::uint32_t claimed_ GUARDED_BY(mu_) = 0;  // so many of the first stripes
  std::array<Owner, kStripes> owners_ GUARDED_BY(mu_) = {};
  std::uint32_t read_ GUARDED_BY(mu_) = 0;   // the first shard whose weights were not read
  std::uint32_t ahead_ GUARDED_BY(mu_) = 0;  // what the reader gathers while it waits
  std::vector<bool> whole_ GUARDED_BY(mu_);
  Status failed_ GUARDED_BY(mu_);
  std::jthread helper_;
};

}  // namespace cairn::table
