#pragma once

#include <string_view>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"
#include "model/foreign/pickle.h"

namespace cairn {

/// Whether a pickle may name it: what NumPy writes arrays and numbers with.
bool IsNumpyConstructor(std::string_view global);

/// Fills the tensor from a pickled array or number of NumPy's; false for any other value.
Result<bool> ReadNumpyArray(const PickleValue& value, ForeignTensor* tensor);

}  // namespace cairn
