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

/// The numbers of the rows in the whole array, made when they are asked for.
class RowNumbersSource final : public TensorSource {
 public:
  RowNumbersSource(std::uint64_t first_row, std::span<const std::vector<std::uint32_t>> rows)
      : first_row_(first_row), rows_(rows) {}

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    if (offset != next_) return InternalError("numbers of rows were asked for out of order");
    next_ += into.size();
    while (!into.empty()) {
      if (within_ == 0) {
        while (stripe_ < rows_.size() && at_ == rows_[stripe_].size()) {
          ++stripe_;
          at_ = 0;
        }
        if (stripe_ == rows_.size()) return InternalError("there are no further rows");
        number_ = static_cast<std::int64_t>(first_row_ + rows_[stripe_][at_++]);
      }
      // A request may end within a number.
      const std::size_t n = std::min(into.size(), sizeof number_ - within_);
      std::memcpy(into.data(), reinterpret_cast<const std::byte*>(&number_) + within_, n);
      within_ = (within_ + n) % sizeof number_;
      into = into.subspan(n);
    }
    return Status::Ok();
  }

 private:
  const std::uint64_t first_row_;
  const std::span<const std::vector<std::uint32_t>> rows_;  // by stripe
  std::uint64_t next_ = 0;
  std::size_t stripe_ = 0;
  std::size_t at_ = 0;
  std::int64_t number_ = 0;
  std::size_t within_ = 0;  // bytes of number_ that were given out
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
    }
    keys_ = std::make_unique<RowNumbersSource>(options.first_row, rows_);
    for (std::size_t a = 0; a < options.arrays.size(); ++a) {
      sources_.push_back(std::make_unique<TrackedRowsSource>(this, arrays_, a, rows_));
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("tracked arrays \"" + options.name + "\": no memory for a cut");
  }
  summary_.name = options.name;
  summary_.dim = static_cast<std::uint32_t>(options.arrays[0].width);
  summary_.dtype = options.arrays[0].dtype;
  summary_.held = {options.first_row, options.first_row + options.rows};
  return Status::Ok();
}

std::vector<Tensor> RowTrackedCut::Tensors() {
  const RowTrackedOptions& options = arrays_->options();
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& column, DType dtype, std::vector<std::uint64_t> shape,
                       TensorSource* source) {
    Tensor tensor;
    tensor.name = options.name + "/" + column;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.source = source;
    tensor.group = TensorGroup::kTable;
    tensors.push_back(std::move(tensor));
  };
  add("keys", DType::kI64, {summary_.rows}, keys_.get());
  for (std::size_t a = 0; a < options.arrays.size(); ++a) {
    const TrackedArray& array = options.arrays[a];
    add(std::string(kArrayColumnPrefix) + array.name, array.dtype, {summary_.rows, array.width},
        sources_[a].get());
  }
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
