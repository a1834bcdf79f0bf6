#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "src/torch_tensors.h"

namespace cairn::python {

/// A stored state (state.json) and the state that it is to fill, which are alike: dicts, lists and
/// tuples with the same keys in the same order, plain arrays of NumPy and tensors of torch of the
/// stored dtypes and shapes, plain values. That is what a program finds that starts again, and for
/// many small arrays it is much faster than cairn/_plan.py, which knows all the other cases. Needs
/// the GIL.
class MatchedState {
 public:
  /// Null when they are not alike, whatever the reason. Changes nothing.
  static std::unique_ptr<MatchedState> Match(std::string_view text, nanobind::handle given,
                                             const TorchTensors& torch);

  /// The arrays, to be filled; `given` owns them.
  std::vector<MutableTensor> TakeTensors() { return std::move(tensors_); }
  std::size_t count() const { return count_; }
  /// Puts the stored values into their places, once the arrays are filled.
  void PutValues();

 private:
  friend class StateMatcher;
  struct StoredValue {
    nanobind::object container;  // a dict or a list
    nanobind::object key;
    nanobind::object value;
  };

  std::vector<MutableTensor> tensors_;
  std::size_t count_ = 0;
  std::vector<StoredValue> values_;
};

void DefineStateMatcher(nanobind::module_& module);

}  // namespace cairn::python
