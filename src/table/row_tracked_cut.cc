#include "table/row_tracked_cut.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "base/status_macros.h"

namespace cairn::table {
namespace {

constexpr std::size_t kPiece = 128;  // rows under one lock

}  // namespace

/// One array of a cut: rows, stripe after stripe, some under each lock.
class TrackedRowsSource final : public TensorSource {
 public:
  TrackedRowsSource(RowTrackedCut* cut, RowTrackedImpl* arrays, std::size_t array)
      : cut_(cut), arrays_(arrays), array_(array) {}

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
  void Abandoned() override {
    for (std::uint32_t stripe = 0; stripe < RowTrackedImpl::kStripes; ++stripe) {
      arrays_->EndCopy(stripe);
    }
  }

 private:
  Result<std::size_t> Produce(std::span<std::byte> out) {
    while (stripe_ < RowTrackedImpl::kStripes && at_ == cut_->RowsIn(stripe_)) {
      ++stripe_;
      at_ = 0;
    }
    if (stripe_ == RowTrackedImpl::kStripes) return InternalError("an array has no further rows");
    std::array<std::uint32_t, kPiece> scratch;
    const std::size_t n =
        std::min({kPiece, out.size() / arrays_->RowBytes(array_), cut_->RowsIn(stripe_) - at_});
    ASSIGN_OR_RETURN(const auto rows, cut_->Numbers(stripe_, at_, std::span(scratch).first(n)));
    arrays_->ReadCut(stripe_, rows, array_, out.data());
    at_ += n;
    if (at_ == cut_->RowsIn(stripe_)) cut_->Passed(stripe_);
    return n;
  }

  RowTrackedCut* const cut_;
  RowTrackedImpl* const arrays_;
  const std::size_t array_;
  std::uint64_t next_ = 0;
  std::uint32_t stripe_ = 0;
  std::size_t at_ = 0;
  std::vector<std::byte> carry_;
  std::size_t carried_ = 0;
};

/// The numbers of the rows in the whole array, made when they are asked for.
class RowNumbersSource final : public TensorSource {
 public:
  RowNumbersSource(RowTrackedCut* cut, std::uint64_t first_row)
      : cut_(cut), first_row_(first_row) {}

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    if (offset != next_) return InternalError("numbers of rows were asked for out of order");
    next_ += into.size();
    while (!into.empty()) {
      if (given_ == size_) RETURN_IF_ERROR(Next());
      // A request may end within a number.
      const auto bytes = std::as_bytes(std::span(numbers_).first(size_)).subspan(given_bytes_);
      const std::size_t n = std::min(into.size(), bytes.size());
      std::memcpy(into.data(), bytes.data(), n);
      given_bytes_ += n;
      given_ = given_bytes_ / sizeof numbers_[0];
      into = into.subspan(n);
    }
    return Status::Ok();
  }

 private:
  Status Next() {
    while (stripe_ < RowTrackedImpl::kStripes && at_ == cut_->RowsIn(stripe_)) {
      ++stripe_;
      at_ = 0;
    }
    if (stripe_ == RowTrackedImpl::kStripes) return InternalError("there are no further rows");
    std::array<std::uint32_t, kPiece> scratch;
    const std::size_t n = std::min(kPiece, cut_->RowsIn(stripe_) - at_);
    ASSIGN_OR_RETURN(const auto rows, cut_->Numbers(stripe_, at_, std::span(scratch).first(n)));
    for (std::size_t i = 0; i < n; ++i) {
      numbers_[i] = static_cast<std::int64_t>(first_row_ + rows[i]);
    }
    at_ += n;
    size_ = n;
    given_ = given_bytes_ = 0;
    return Status::Ok();
  }

  RowTrackedCut* const cut_;
  const std::uint64_t first_row_;
  std::uint64_t next_ = 0;
  std::uint32_t stripe_ = 0;
  std::size_t at_ = 0;
  std::array<std::int64_t, kPiece> numbers_;
  std::size_t size_ = 0;         // of them
  std::size_t given_ = 0;        // of these, out whole …
  std::size_t given_bytes_ = 0;  // … and in bytes
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
    for (const std::uint64_t rows : counts_) summary_.rows += rows;
    keys_ = std::make_unique<RowNumbersSource>(this, options.first_row);
    for (std::size_t a = 0; a < options.arrays.size(); ++a) {
      sources_.push_back(std::make_unique<TrackedRowsSource>(this, arrays_, a));
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

Status RowTrackedCut::List(std::uint32_t stripe) {
  const std::string& name = arrays_->options().name;
  try {
    rows_[stripe] = arrays_->CutRows(stripe);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("tracked arrays \"" + name + "\": no memory for a cut");
  }
  if (rows_[stripe].size() == counts_[stripe]) return Status::Ok();
  return InternalError("tracked arrays \"" + name + "\" have other rows than at the cut");
}

Result<std::span<const std::uint32_t>> RowTrackedCut::Numbers(std::uint32_t stripe, std::size_t at,
                                                              std::span<std::uint32_t> scratch) {
  if (scope_.full) {
    const std::uint64_t first = arrays_->RowsOf(stripe).first + at;
    std::iota(scratch.begin(), scratch.end(), static_cast<std::uint32_t>(first));
    return std::span<const std::uint32_t>(scratch);
  }
  if (rows_[stripe].empty()) RETURN_IF_ERROR(List(stripe));
  return std::span<const std::uint32_t>(rows_[stripe]).subspan(at, scratch.size());
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
