#include "table/cut_gatherer.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <new>
#include <system_error>

#include "base/status_macros.h"

namespace cairn::table {
namespace {

// Rows copied under one lock. They were fetched before it was taken: two pieces, the one that is
// copied and the one that is fetched meanwhile, stay in the first-level cache.
constexpr std::size_t kPiece = 32;
// To begin a thread costs as much as to gather some thousand rows.
constexpr std::uint64_t kRowsForTwo = 1u << 16;

/// Of those that this process may use.
bool HasSeveralCores() {
  cpu_set_t mine;
  return sched_getaffinity(0, sizeof mine, &mine) != 0 || CPU_COUNT(&mine) > 1;
}

}  // namespace

Status CutGatherer::NoMemory() const {
  return ResourceExhaustedError(
      fmt::format("table \"{}\": no memory for the rows of an increment (at most "
                  "side_buffer_bytes, {})",
                  table_->options().name, table_->options().side_buffer_bytes));
}

bool CutGatherer::HasRoom(std::uint32_t shard) const {
  return !weights_first_ || shard < read_ + kAhead;
}

std::byte* CutGatherer::WeightsOf(std::uint32_t shard) {
  if (!weights_first_) return nullptr;
  std::byte*& place = weights_[shard % kAhead];
  // Without memory: they are asked for with the rest, which says so.
  if (place == nullptr) place = stage_->Allocate(weights_bytes_);
  return place;
}

bool CutGatherer::Claim(Owner owner, std::uint32_t* shard) {
  *shard = claimed_ * kShardsPerStripe;
  if (*shard >= stage_->shards()) return false;
  owners_[claimed_++] = owner;
  return true;
}

bool CutGatherer::TakeForReader(std::uint32_t wanted, std::uint32_t* shard) {
  const std::uint32_t stripe = wanted / kShardsPerStripe;
  while (claimed_ <= stripe) Claim(Owner::kReader, &ahead_);
  *shard = wanted;
  if (owners_[stripe] == Owner::kReader) return true;
  // The helper is at it. Another stripe meanwhile, shard by shard.
  const bool begun = ahead_ > wanted && ahead_ % kShardsPerStripe != 0;
  const std::uint32_t next = begun ? ahead_ : claimed_ * kShardsPerStripe;
  if (next >= stage_->shards() || !HasRoom(next)) return false;
  if (!begun) Claim(Owner::kReader, &ahead_);
  *shard = ahead_++;
  return true;
}

bool CutGatherer::TakeForHelper(std::uint32_t* shard) {
  ++*shard;
  const bool same = *shard % kShardsPerStripe != 0 && *shard < stage_->shards();
  if (!same && !Claim(Owner::kHelper, shard)) return false;
  while (!stopped_ && failed_.ok() && !HasRoom(*shard)) changed_.Wait(&mu_);
  return !stopped_ && failed_.ok();
}

void CutGatherer::Begin(bool weights) {
  begun_ = true;
  weights_first_ = weights;
  std::uint32_t most = 0;
  for (std::uint32_t s = 0; s < stage_->shards(); ++s) most = std::max(most, stage_->Rows(s));
  weights_bytes_ = std::size_t{most} * table_->layout().columns()[0].bytes;
  StartHelper();
}

void CutGatherer::StartHelper() {
  std::uint64_t rows = 0;
  for (std::uint32_t s = 0; s < stage_->shards(); ++s) rows += stage_->Rows(s);
  if (rows < kRowsForTwo || !HasSeveralCores()) return;
  try {
    helper_ = std::jthread([this] { Help(); });
  } catch (const std::system_error&) {  // no thread to be had: one does it too
  }
}

Status CutGatherer::Await(std::uint32_t shard, bool weights) {
  while (true) {
    std::uint32_t taken = 0;
    std::byte* weights_of_taken = nullptr;
    {
      const MutexLock lock(&mu_);
      if (!begun_) Begin(weights);
      if (weights) read_ = std::max(read_, shard);
      if (!weights && !whole_[shard]) weights_first_ = false;
      while (failed_.ok() && !whole_[shard] && !TakeForReader(shard, &taken)) changed_.Wait(&mu_);
      if (!failed_.ok() || whole_[shard]) return failed_;
      weights_of_taken = WeightsOf(taken);
    }
    GatherTaken(taken, weights_of_taken);
  }
}

void CutGatherer::WeightsRead(std::uint32_t shard) {
  {
    const MutexLock lock(&mu_);
    read_ = shard + 1;
  }
  changed_.NotifyAll();
}

void CutGatherer::Stop() {
  {
    const MutexLock lock(&mu_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  if (helper_.joinable()) helper_.join();
}

void CutGatherer::Help() {
  std::uint32_t shard = kShardsPerStripe - 1;  // the end of a stripe: the next one is claimed
  while (!table_->gate()->InUse()) {
    std::byte* weights = nullptr;
    {
      const MutexLock lock(&mu_);
      if (!TakeForHelper(&shard)) return;
      weights = WeightsOf(shard);
    }
    GatherTaken(shard, weights);
  }
  // What is left of its stripe is the reader's.
  {
    const MutexLock lock(&mu_);
    owners_[shard / kShardsPerStripe] = Owner::kReader;
  }
  changed_.NotifyAll();
}

void CutGatherer::GatherTaken(std::uint32_t shard, std::byte* weights) {
  Status gathered = stage_->Rows(shard) == 0 ? Status::Ok() : Gather(shard, weights);
  {
    const MutexLock lock(&mu_);
    whole_[shard] = gathered.ok();
    if (failed_.ok()) failed_ = std::move(gathered);
  }
  changed_.NotifyAll();
}

Status CutGatherer::Gather(std::uint32_t shard, std::byte* weights) {
  if (!stage_->Open(shard, weights)) return NoMemory();
  RowStore* const store = &table_->FindShard(shard)->rows;
  try {
    store->BeginWalk();
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  const std::size_t count = stage_->Rows(shard);
  const RowStore::Wanted whole_rows{.begin = 0, .end = table_->layout().stride()};
  std::array<const RowHeader*, kPiece> rows;
  std::size_t done = 0;
  RowStore::CutCursor cursor;
  KeptRows kept;
  for (bool walked = false; !walked;) {
    store->FetchCutRows(&cursor, 2 * kPiece, whole_rows);
    const std::size_t want = std::min(kPiece, count - done);
    const StripeLock lock(table_->LockOf(shard));
    const std::size_t found = store->NextUnchangedRows(&cursor, std::span(rows).first(want));
    stage_->Put(shard, done, std::span(rows).first(found));
    done += found;
    walked = found < want || done == count;
    if (walked) kept = store->TakeKept();
  }
  store->EndWalk();
  if (done + kept.size() != count) {
    return InternalError(fmt::format("shard {} of table \"{}\" has {} rows, and {} at the cut",
                                     shard, table_->options().name, done + kept.size(), count));
  }
  for (std::size_t i = 0; i < kept.size();) {
    const std::size_t n = std::min(kPiece, kept.size() - i);
    for (std::size_t j = 0; j < n; ++j) rows[j] = kept.At(i + j);
    stage_->Put(shard, done + i, std::span(rows).first(n));
    i += n;
  }
  return Status::Ok();
}

}  // namespace cairn::table
