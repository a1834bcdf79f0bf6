#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"
#include "model/foreign/pickle.h"

namespace cairn {

/// Collects the tensors of a pickled tree of dicts and lists. Names are keys joined with '/'. What
/// `leaf` understands becomes a tensor; integers and floats become tensors of one number (learning
/// rates, step counters); other leaves (texts, None) are left out. Corruption when a name is there
/// twice, or when the tree is deeper or larger than any model is: also when what is copied out of
/// the file (tensors that do not stand there in row-major order, names) is many times as large as
/// the file's `file_bytes`.
///
/// `leaf`: fills the tensor and gives true for a value that is one; false for anything else.
using PickledLeaf = std::function<Result<bool>(const PickleValue& value, ForeignTensor* tensor)>;
Result<std::vector<ForeignTensor>> CollectPickled(const PickleValue& root, const PickledLeaf& leaf,
                                                  std::uint64_t file_bytes);

/// The integers of a tuple or list, none negative: shapes and strides.
Result<std::vector<std::uint64_t>> PickledDims(const PickleValue& value);

/// Row-major bytes of an array whose element (i, j, …) stands at sum(i × stride) of `data`; strides
/// in elements. Corruption when an element stands outside. Borrows where nothing has to be moved.
Status GatherStrided(std::span<const std::byte> data, std::uint64_t offset,
                     const std::vector<std::uint64_t>& strides, ForeignTensor* tensor);

}  // namespace cairn
