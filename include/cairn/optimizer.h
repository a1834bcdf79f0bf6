#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

/// How a row of a table changes with a gradient.
namespace cairn {

/// How a slot is stored in increments with 8 bits a number (CutRequest::quantize).
enum class SlotRounding : std::uint8_t {
  kNearest,
  kNeverToZero,  // steps are divided by it: one by 0 would be huge, not a little wrong
  kNone,         // as it is: the weights are computed anew from it
};

/// A further array that an optimizer keeps with each row. Slots are float32 whatever the type of
/// the weights: an accumulator of 8 significant bits stops growing.
struct SlotSpec {
  std::string name;         // "accumulator": the tensor `<table>/slot/accumulator`
  std::uint32_t width = 0;  // elements in a row
  float initial = 0;        // of every element when a row is made
  SlotRounding rounding = SlotRounding::kNearest;
};

/// A rule of updates. Immutable: tables and threads share one. All that it remembers of a row
/// stands in the row's slots, so a row that was saved and restored goes on exactly.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// "adagrad", …: compared when a checkpoint is loaded.
  virtual std::string name() const = 0;
  virtual float learning_rate() const = 0;
  /// What each row carries besides its weights, in this order, back to back.
  virtual std::vector<SlotSpec> Slots(std::uint32_t dim) const = 0;
  /// Changes `dim` weights and the row's slots. Called with the row locked; must not block.
  virtual void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
                     float learning_rate) const = 0;
};

// Each refuses settings that are not finite or outside their range (InvalidArgument).

struct SgdOptions {
  float learning_rate = 0.01F;
};
Result<std::shared_ptr<const Optimizer>> MakeSgd(const SgdOptions& options);

struct MomentumOptions {
  float learning_rate = 0.01F;
  float momentum = 0.9F;
  bool nesterov = false;
};
Result<std::shared_ptr<const Optimizer>> MakeMomentum(const MomentumOptions& options);

struct AdagradOptions {
  float learning_rate = 0.01F;
  float initial_accumulator_value = 0.1F;
  float epsilon = 0;  // added to the root
};
Result<std::shared_ptr<const Optimizer>> MakeAdagrad(const AdagradOptions& options);

/// Adam's corrections count the updates of the row, not of the table: a row does not depend on when
/// others were updated, nor on a counter beside it.
struct AdamOptions {
  float learning_rate = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
};
Result<std::shared_ptr<const Optimizer>> MakeAdam(const AdamOptions& options);

struct AdamWOptions {
  float learning_rate = 0.001F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0.01F;  // applied to the weights of rows that are updated
};
Result<std::shared_ptr<const Optimizer>> MakeAdamW(const AdamWOptions& options);

/// FTRL-Proximal (McMahan et al. 2013).
struct FtrlOptions {
  float learning_rate = 0.01F;
  float learning_rate_power = -0.5F;  // at most 0
  float initial_accumulator_value = 0.1F;
  float l1 = 0;
  float l2 = 0;
  float beta = 0;
};
Result<std::shared_ptr<const Optimizer>> MakeFtrl(const FtrlOptions& options);

/// Adagrad with one accumulator a row: the mean of the squared gradient.
struct RowwiseAdagradOptions {
  float learning_rate = 0.01F;
  float initial_accumulator_value = 0.1F;
  float epsilon = 1e-8F;
};
Result<std::shared_ptr<const Optimizer>> MakeRowwiseAdagrad(const RowwiseAdagradOptions& options);

}  // namespace cairn
