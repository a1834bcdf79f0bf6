#include <algorithm>

#include <cairn/initializer.h>

#include "base/status_macros.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class Constant final : public Initializer {
 public:
  explicit Constant(float value) : value_(value) {}
  void Fill(std::uint64_t /*stream*/, std::span<float> row) const override {
    std::fill(row.begin(), row.end(), value_);
  }

 private:
  const float value_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Initializer>> MakeConstant(float value) {
  RETURN_IF_ERROR(
      table::CheckSettings("constant", {{"value", value, -table::kLargest, table::kLargest}}));
  return std::shared_ptr<const Initializer>(std::make_shared<table::Constant>(value));
}

}  // namespace cairn
