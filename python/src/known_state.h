#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "src/numpy_arrays.h"
#include "src/torch_tensors.h"

namespace cairn::python {

/// Which participant writes which arrays of a state, and under which names: cairn._tree.Layout.
struct StateLayout {
  int rank = 0;
  std::string participant;
  std::string own;      // a subtree that is each participant's own, also rank 0's
  bool common = false;  // the rest is alike everywhere: rank 0 writes it, others refer to it
  std::string plain;    // a subtree whose tensors are named without its own name

  bool operator==(const StateLayout&) const = default;
};

/// What StateEncoder met on its walk over a state, in order, and what it made of it.
struct StateTrace {
  enum class Kind : std::uint8_t {
    kText,     // a value
    kOpening,  // text before a value that is walked instead of another one
    kClosing,  // text behind it
    kDict,
    kOrderedDict,
    kList,
    kTuple,
    kNumpy,
    kTorch,
  };
  struct Step {
    Kind kind;
    // Of a text: where it stands in the JSON. Of a container: how many are in it. Of an array:
    // which of the tensors it is.
    std::size_t first = 0;
    std::size_t end = 0;
    bool tied = false;  // an array whose tensor an earlier step brought
    bool requires_grad = false;
    bool parameter = false;
  };

  StateLayout layout;
  std::vector<Step> steps;
  std::vector<nanobind::object> keys;  // of dicts, in the order of the steps
  std::string json;
  std::vector<Tensor> tensors;
  std::uint64_t bytes = 0;
};

/// The state that was saved last. A training saves the same arrays over and over: then names, ties
/// and state.json are as before, and only values are written anew. Owns keys, no arrays: their
/// addresses are compared, and what has moved is known by its place. Needs the GIL.
class KnownState {
 public:
  /// Whether it is worth noting the next state: one whose shape is another one each time is not.
  bool wants_trace() const { return strangers_ < kMostStrangers; }
  /// Larger states are not kept: what is known of them would take half a kilobyte for each step.
  void Learn(StateTrace trace) {
    if (trace.steps.size() > kMostSteps) return;
    trace_ = std::make_unique<StateTrace>(std::move(trace));
  }

  struct Found {
    std::string json;
    std::vector<Tensor> tensors;
    nanobind::list keep;
    std::uint64_t bytes = 0;
  };
  /// Describes a state that differs from the one before in values alone, exactly as StateEncoder
  /// would; false: it differs in more, and is described anew. `other` is StateEncoder's; `asked`
  /// tells whether it has described something itself since, which nothing is known of.
  bool Describe(nanobind::handle state, const StateLayout& layout, const nanobind::callable& other,
                const TorchTensors& torch, const bool& asked, Found* out);

 private:
  static constexpr int kMostStrangers = 3;
  static constexpr std::size_t kMostSteps = 200'000;

  std::unique_ptr<StateTrace> trace_;
  int strangers_ = 0;  // states in a row that differed in more than values
};

void DefineKnownState(nanobind::module_& module);

}  // namespace cairn::python
