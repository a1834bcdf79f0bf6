#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// The arrays of a file that paddle.save wrote of a state dict (.pdparams, .pdopt): a pickled dict
/// of NumPy arrays, and of numbers for schedulers. Names are the dict's keys. Paddle stores
/// bfloat16 as uint16 without saying so; it comes out as U16.
Result<std::vector<ForeignTensor>> DecodePaddlePickle(std::span<const std::byte> bytes);

}  // namespace cairn
