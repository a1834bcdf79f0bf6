#include "table/row_tracked_cut.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/status_macros.h"

namespace cairn::table {

/// One array of a cut: rows, stripe after stripe, some under each lock.
class TrackedRowsSource final : public TensorSource {
 public:
  TrackedRowsSource(RowTrackedCut* cut, RowTrackedImpl* arrays, std::size_t array,
                    std::span<const std::vector<std::uint32_t>> rows)
      : cut_(cut), arrays_(arrays), array_(array), rows_(rows) {}

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    if (offset != next_) return InternalError("rows of an array were asked for out of order");
    next_ += into.size();
    const std::size_t width = arrays_->RowBytes(array_);
    while (!into.empty()) {
      if (carried_ < carry_.size()) {
        const std::size_t n = std::min(into.size(), carry_.size() - carried_);
        std::memcpy(into.data(), carry_.data() + carried_, n);
        carried_ += n;
        into = into.subspan(n);
      } else if (into.size() < width) {
        carry_.resize(width);
        carried_ = 0;
        RETURN_IF_ERROR(Produce(carry_).status());
      } else {
        ASSIGN_OR_RETURN(const std::size_t rows, Produce(into));
        into = into.subspan(rows * width);
      }
    }
    return Status::Ok();
  }

 private:
  Result<std::size_t> Produce(std::span<std::byte> out) {
    constexpr std::size_t kPiece = 128;
    while (stripe_ < rows_.size() && at_ == rows_[stripe_].size()) {
      ++stripe_;
      at_ = 0;
    }
    if (stripe_ == rows_.size()) return InternalError("an array has no further rows");
    const std::size_t n =
        std::min({kPiece, out.size() / arrays_->RowBytes(array_), rows_[stripe_].size() - at_});
    arrays_->ReadCut(stripe_, std::span(rows_[stripe_]).subspan(at_, n), array_, out.data());
    at_ += n;
    if (at_ == rows_[stripe_].size()) cut_->Passed(stripe_);
    return n;
  }

  RowTrackedCut* const cut_;
  RowTrackedImpl* const arrays_;
  const std::size_t array_;
  const std::span<const std::vector<std::uint32_t>> rows_;  // by stripe
  std::uint64_t next_ = 0;
  std::uint32_t stripe_ = 0;
  std::size_t at_ = 0;
  std::vector<std::byte> carry_;
  std::size_t carried_ = 0;
};

RowTrackedCut::RowTrackedCut(RowTrackedImpl* arrays, const CutRequest& request)
    : arrays_(arrays), request_(request) {}

RowTrackedCut::~RowTrackedCut() { End(false); }

void RowTrackedCut::Flip() {
  scope_ = arrays_->FlipEpoch(request_.kind, &counts_);
  open_ = true;
}

Status RowTrackedCut::Prepare() {
  const RowTrackedOptions& options = arrays_->options();
  try {
    for (std::uint32_t s = 0; s < RowTrackedImpl::kStripes; ++s) {
      rows_[s] = arrays_->CutRows(s);
      if (rows_[s].size() != counts_[s]) {
        return InternalError("tracked arrays \"" + options.name +
                             "\" have other rows than at the cut");
      }
      summary_.rows += rows_[s].size();
      if (scope_.full) continue;
      for (const std::uint32_t row : rows_[s]) {
        keys_.push_back(static_cast<std::int64_t>(options.first_row + row));
      }
    }
    for (std::size_t a = 0; a < options.arrays.size(); ++a) {
      sources_.push_back(std::make_unique<TrackedRowsSource>(this, arrays_, a, rows_));
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("tracked arrays \"" + options.name + "\": no memory for a cut");
  }
  summary_.name = options.name;
  summary_.dim = static_cast<std::uint32_t>(options.arrays[0].width);
  summary_.dtype = options.arrays[0].dtype;
  return Status::Ok();
}

std::vector<Tensor> RowTrackedCut::Tensors() {
  const RowTrackedOptions& options = arrays_->options();
  std::vector<Tensor> tensors;
  for (std::size_t a = 0; a < options.arrays.size(); ++a) {
    const TrackedArray& array = options.arrays[a];
    Tensor tensor;
    tensor.dtype = array.dtype;
    tensor.shape = {summary_.rows, array.width};
    tensor.source = sources_[a].get();
    if (scope_.full) {
      tensor.name = array.name;
      tensor.group = TensorGroup::kModel;
      if (options.whole_rows != 0) {
        tensor.shard = ShardSpec{{options.whole_rows, array.width}, {options.first_row, 0}};
      }
    } else {
      tensor.name = options.name + "/column/" + array.name;
      tensor.group = TensorGroup::kTable;
    }
    tensors.push_back(std::move(tensor));
  }
  if (scope_.full) return tensors;
  Tensor keys;
  keys.name = options.name + "/keys";
  keys.group = TensorGroup::kTable;
  keys.dtype = DType::kI64;
  keys.shape = {keys_.size()};
  keys.data = keys_.data();
  tensors.push_back(std::move(keys));
  return tensors;
}

void RowTrackedCut::Passed(std::uint32_t stripe) {
  if (++passed_[stripe] == sources_.size()) arrays_->EndCopy(stripe);
}

void RowTrackedCut::End(bool committed) {
  if (!open_) return;
  open_ = false;
  arrays_->EndCut(scope_, committed);
}

}  // namespace cairn::table
