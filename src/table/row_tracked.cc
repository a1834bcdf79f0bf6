#include "table/row_tracked.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

Status RowTrackedOptions::Validate() const {
  if (name.empty()) return InvalidArgumentError("tracked arrays need a name");
  const std::string where = "tracked arrays \"" + name + "\": ";
  constexpr std::uint64_t kMaxRows = 0xFFFFFFF0;
  if (rows > kMaxRows) {
    return InvalidArgumentError(
        fmt::format("{}{} rows; at most {} are tracked in one piece", where, rows, kMaxRows));
  }
  if (whole_rows != 0 && (first_row > whole_rows || rows > whole_rows - first_row)) {
    return InvalidArgumentError(fmt::format("{}rows [{}, {}) are outside of the whole's {}", where,
                                            first_row, first_row + rows, whole_rows));
  }
  if (whole_rows == 0 && first_row != 0) {
    return InvalidArgumentError(where + "a piece needs the number of the whole's rows");
  }
  if (arrays.empty()) return InvalidArgumentError(where + "no arrays are given");
  for (const TrackedArray& array : arrays) {
    if (array.name.empty()) return InvalidArgumentError(where + "an array has no name");
    if (array.name.ends_with("_zstd")) {
      return InvalidArgumentError(where + "array \"" + array.name +
                                  "\": names that end with _zstd are for packed columns");
    }
    if (array.width == 0 || array.width > (std::uint64_t{1} << 32) || DTypeBits(array.dtype) % 8) {
      return InvalidArgumentError(where + "array \"" + array.name +
                                  "\": rows of whole bytes and at least one element are tracked");
    }
    if (array.data == nullptr && rows > 0) {
      return InvalidArgumentError(where + "array \"" + array.name + "\" has no data");
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<RowTracked>> RowTracked::Make(RowTrackedOptions options) {
  RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<RowTracked>(std::make_unique<table::RowTrackedImpl>(std::move(options)));
}

namespace {

bool SameArrays(const RowTrackedOptions& a, const RowTrackedOptions& b) {
  return std::equal(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), b.arrays.end(),
                    [](const TrackedArray& x, const TrackedArray& y) {
                      return x.name == y.name && x.dtype == y.dtype && x.width == y.width;
                    });
}

}  // namespace

Status CheckPieces(std::span<RowTracked* const> arrays) {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i] == nullptr) return InvalidArgumentError("tracked arrays: one is null");
    const RowTrackedOptions& a = arrays[i]->options();
    for (std::size_t j = 0; j < i; ++j) {
      const RowTrackedOptions& b = arrays[j]->options();
      if (a.name != b.name) continue;
      const std::string where = "tracked arrays \"" + a.name + "\": ";
      if (!SameArrays(a, b)) {
        return InvalidArgumentError(where + "its pieces have different arrays");
      }
      if (a.whole() != b.whole()) {
        return InvalidArgumentError(
            fmt::format("{}its pieces are of {} and of {} rows", where, b.whole(), a.whole()));
      }
      if (a.first_row < b.first_row + b.rows && b.first_row < a.first_row + a.rows) {
        return InvalidArgumentError(fmt::format("{}the pieces [{}, {}) and [{}, {}) overlap", where,
                                                b.first_row, b.first_row + b.rows, a.first_row,
                                                a.first_row + a.rows));
      }
    }
  }
  return Status::Ok();
}

namespace table {

RowTrackedImpl::RowTrackedImpl(RowTrackedOptions options)
    : options_(std::move(options)),
      gate_(options_.gate != nullptr ? options_.gate : CutGate::Process()),
      rows_per_stripe_(std::max<std::uint64_t>((options_.rows + kStripes - 1) / kStripes, 1)),
      side_(options_.side_buffer_bytes),
      epochs_(options_.rows),
      stripes_(std::make_unique<Stripe[]>(kStripes)) {
  for (const TrackedArray& array : options_.arrays) {
    row_bytes_.push_back(array.width * static_cast<std::size_t>(DTypeBits(array.dtype)) / 8);
    all_bytes_ += row_bytes_.back();
  }
}

std::pair<std::uint64_t, std::uint64_t> RowTrackedImpl::RowsOf(std::uint32_t stripe) const {
  const std::uint64_t begin = std::min(options_.rows, stripe * rows_per_stripe_);
  return {begin, std::min(options_.rows, begin + rows_per_stripe_)};
}

bool RowTrackedImpl::KeepForCut(Stripe* stripe, std::uint32_t row) {
  const CutScope scope = stripe->scope;
  if (epochs_[row] > scope.epoch || (!scope.full && epochs_[row] <= scope.from)) return true;
  if (!side_.Take(all_bytes_)) return false;
  Stripe::Kept kept{epochs_[row], std::make_unique_for_overwrite<std::byte[]>(all_bytes_)};
  std::byte* to = kept.bytes.get();
  for (std::size_t a = 0; a < row_bytes_.size(); ++a) {
    std::memcpy(to, Row(a, row), row_bytes_[a]);
    to += row_bytes_[a];
  }
  stripe->kept.emplace(row, std::move(kept));
  return true;
}

bool RowTrackedImpl::TouchLocked(Stripe* stripe, std::uint32_t row) {
  if (epochs_[row] == epoch_.number) return true;
  if (stripe->cutting && !KeepForCut(stripe, row)) return false;
  if (epoch_.tracking) {
    stripe->current.push_back(row);
    if (epochs_[row] <= stripe->durable.parent) ++stripe->since_parent;
    if (epochs_[row] <= stripe->durable.base) ++stripe->since_base;
  }
  epochs_[row] = epoch_.number;
  return true;
}

Status RowTrackedImpl::Touch(std::span<const std::int64_t> rows) {
  if (!gate_->InBatch()) {
    return FailedPreconditionError("tracked arrays \"" + options_.name +
                                   "\": rows are touched and changed inside of a batch of the "
                                   "gate, so that no cut comes between");
  }
  for (const std::int64_t row : rows) {
    if (row >= 0 && static_cast<std::uint64_t>(row) < options_.rows) continue;
    return InvalidArgumentError(
        fmt::format("tracked arrays \"{}\": row {} of {}", options_.name, row, options_.rows));
  }
  for (const std::int64_t row : rows) {
    const auto number = static_cast<std::uint32_t>(row);
    Stripe* stripe = &stripes_[StripeOf(number)];
    while (true) {
      const std::uint64_t seen = side_.releases();
      {
        const MutexLock lock(&stripe->mu);
        if (TouchLocked(stripe, number)) break;
      }
      side_.Await(seen);
    }
  }
  return Status::Ok();
}

bool RowTrackedImpl::has_base() const {
  const MutexLock lock(&cut_mu_);
  return has_base_;
}

std::uint64_t RowTrackedImpl::settled_count() const {
  const MutexLock lock(&cut_mu_);
  return settled_count_;
}

std::uint64_t RowTrackedImpl::ChangedRows(CutKind kind) const {
  if (kind == CutKind::kFull) return options_.rows;
  std::uint64_t changed = 0;
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    Stripe& stripe = stripes_[s];
    const MutexLock lock(&stripe.mu);
    changed += kind == CutKind::kCumulative ? stripe.since_base : stripe.since_parent;
  }
  return changed;
}

Status RowTrackedImpl::OpenCut(CutKind kind) {
  const MutexLock lock(&cut_mu_);
  if (cut_open_) {
    return FailedPreconditionError("tracked arrays \"" + options_.name +
                                   "\" have a cut that is still being saved: wait for that save, "
                                   "then say Committed or Failed");
  }
  if (kind != CutKind::kFull && !has_base_) {
    return FailedPreconditionError("tracked arrays \"" + options_.name +
                                   "\" have no full checkpoint yet that an increment could stand "
                                   "on: save a full one first");
  }
  cut_open_ = true;
  return Status::Ok();
}

void RowTrackedImpl::CancelCut() {
  const MutexLock lock(&cut_mu_);
  cut_open_ = false;
}

CutScope RowTrackedImpl::FlipEpoch(CutKind kind, std::array<std::uint64_t, kStripes>* counts) {
  CutScope scope;
  scope.epoch = epoch_.number;
  scope.full = kind == CutKind::kFull;
  scope.cumulative = kind == CutKind::kCumulative;
  {
    const MutexLock lock(&cut_mu_);
    scope.from = scope.cumulative ? durable_.base : durable_.parent;
  }
  ++epoch_.number;
  epoch_.tracking = true;
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    Stripe& stripe = stripes_[s];
    const MutexLock lock(&stripe.mu);
    stripe.closed.swap(stripe.current);
    stripe.cutting = true;
    stripe.scope = scope;
    const auto [begin, end] = RowsOf(s);
    (*counts)[s] = scope.full         ? end - begin
                   : scope.cumulative ? stripe.since_base
                                      : stripe.since_parent;
  }
  return scope;
}

std::vector<std::uint32_t> RowTrackedImpl::CutRows(std::uint32_t number) {
  constexpr std::size_t kRowsUnderLock = 4096;  // whoever changes rows waits no longer
  Stripe& stripe = stripes_[number];
  std::vector<std::uint32_t> rows;
  // Touches list rows of the next epoch elsewhere: until the cut ends, these two stay as they are.
  const auto add = [&](const std::vector<std::uint32_t> Stripe::* list) {
    for (std::size_t at = 0;;) {
      const MutexLock lock(&stripe.mu);
      const std::vector<std::uint32_t>& listed = stripe.*list;
      const std::size_t end = std::min(listed.size(), at + kRowsUnderLock);
      for (; at < end; ++at) {
        const std::uint32_t row = listed[at];
        std::uint32_t epoch = epochs_[row];
        if (epoch > stripe.scope.epoch) {
          const auto kept = stripe.kept.find(row);
          if (kept == stripe.kept.end()) continue;
          epoch = kept->second.epoch;
        }
        if (epoch > stripe.scope.from) rows.push_back(row);
      }
      if (at == listed.size()) return;
    }
  };
  add(&Stripe::earlier);
  add(&Stripe::closed);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

void RowTrackedImpl::ReadCut(std::uint32_t number, std::span<const std::uint32_t> rows,
                             std::size_t array, std::byte* out) {
  Stripe& stripe = stripes_[number];
  std::size_t offset = 0;
  for (std::size_t a = 0; a < array; ++a) offset += row_bytes_[a];
  const MutexLock lock(&stripe.mu);
  for (const std::uint32_t row : rows) {
    const std::byte* from = Row(array, row);
    if (epochs_[row] > stripe.scope.epoch) from = stripe.kept.at(row).bytes.get() + offset;
    std::memcpy(out, from, row_bytes_[array]);
    out += row_bytes_[array];
  }
}

void RowTrackedImpl::EndCopy(std::uint32_t number) {
  Stripe& stripe = stripes_[number];
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(&stripe.mu);
    stripe.cutting = false;
    bytes = stripe.kept.size() * all_bytes_;
    stripe.kept.clear();
  }
  side_.Release(bytes);
}

void RowTrackedImpl::EndCut(const CutScope& scope, bool committed) {
  const MutexLock open(&cut_mu_);
  if (committed) {
    durable_.parent = scope.epoch;
    ++settled_count_;
  }
  if (committed && scope.full) {
    durable_.base = scope.epoch;
    has_base_ = true;
  }
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    EndCopy(s);
    Stripe& stripe = stripes_[s];
    const MutexLock lock(&stripe.mu);
    stripe.durable = durable_;
    const std::uint32_t base = durable_.base;
    const auto is_done = [&](std::uint32_t row) REQUIRES(stripe.mu) {
      return epochs_[row] <= base || epochs_[row] > scope.epoch;
    };
    // A row of both lists is told by its epoch, as in RowStore.
    std::erase_if(stripe.earlier, [&](std::uint32_t row) REQUIRES(stripe.mu) {
      return is_done(row) || epochs_[row] == scope.epoch;
    });
    for (const std::uint32_t row : stripe.closed) {
      if (!is_done(row)) stripe.earlier.push_back(row);
    }
    stripe.closed.clear();
    if (committed) stripe.since_parent = stripe.current.size();
    if (committed && scope.full) stripe.since_base = stripe.current.size();
  }
  cut_open_ = false;
}

Status RowTrackedImpl::Restored() {
  return gate_->Exclusive([&]() -> Status {
    const MutexLock open(&cut_mu_);
    if (cut_open_) {
      return FailedPreconditionError("tracked arrays \"" + options_.name +
                                     "\" cannot be restored while a cut of them is being saved");
    }
    // Everything is of the base; increments will be of the epoch after it, and the current one
    // comes after both.
    durable_ = {epoch_.number, epoch_.number + 1};
    epoch_ = {epoch_.number + 2, true};
    has_base_ = true;
    ++settled_count_;
    std::fill(epochs_.begin(), epochs_.end(), durable_.base);
    for (std::uint32_t s = 0; s < kStripes; ++s) {
      Stripe& stripe = stripes_[s];
      const MutexLock lock(&stripe.mu);
      stripe.current.clear();
      stripe.earlier.clear();
      stripe.since_base = 0;
      stripe.since_parent = 0;
      stripe.durable = durable_;
    }
    return Status::Ok();
  });
}

Status RowTrackedImpl::ApplyIncrement(std::span<const std::int64_t> keys,
                                      const std::vector<std::span<const std::byte>>& columns) {
  const std::string where = "tracked arrays \"" + options_.name + "\": ";
  if (columns.size() != row_bytes_.size()) {
    return InvalidArgumentError(
        fmt::format("{}{} columns, not {}", where, columns.size(), row_bytes_.size()));
  }
  for (std::size_t a = 0; a < columns.size(); ++a) {
    if (columns[a].size() == keys.size() * row_bytes_[a]) continue;
    return CorruptionError(fmt::format("{}{} rows of array \"{}\" have {} bytes, not {}", where,
                                       keys.size(), options_.arrays[a].name, columns[a].size(),
                                       keys.size() * row_bytes_[a]));
  }
  const std::uint64_t whole = options_.whole();
  for (const std::int64_t key : keys) {
    if (key >= 0 && static_cast<std::uint64_t>(key) < whole) continue;
    return CorruptionError(fmt::format("{}row {} of {}", where, key, whole));
  }
  return gate_->Exclusive([&]() -> Status {
    const MutexLock open(&cut_mu_);
    if (cut_open_ || !has_base_) {
      return FailedPreconditionError(where +
                                     "an increment is applied after Restored, before any cut");
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto global = static_cast<std::uint64_t>(keys[i]);
      if (global < options_.first_row || global - options_.first_row >= options_.rows) continue;
      const auto row = static_cast<std::uint32_t>(global - options_.first_row);
      for (std::size_t a = 0; a < columns.size(); ++a) {
        std::memcpy(Row(a, row), columns[a].data() + i * row_bytes_[a], row_bytes_[a]);
      }
      Stripe& stripe = stripes_[StripeOf(row)];
      const MutexLock lock(&stripe.mu);
      if (epochs_[row] != durable_.base) continue;  // listed already
      epochs_[row] = durable_.parent;
      stripe.earlier.push_back(row);
      ++stripe.since_base;
    }
    return Status::Ok();
  });
}

}  // namespace table
}  // namespace cairn
