#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// The tensors of a file that Paddle's save and save_combine operators wrote, one behind the other,
/// without names. A tensor is: u32 version (0); u64 count of levels of detail, each u64 bytes and
/// the offsets; u32 version (0); i32 bytes of a TensorDesc message (1: data type, 2: dimensions);
/// the elements. Corruption for damaged bytes, Unimplemented for other versions and for types that
/// have no place here.
Result<std::vector<ForeignTensor>> DecodePaddleTensors(std::span<const std::byte> bytes);

/// The same with names: as many as there are tensors, in the order of the file, none twice.
Result<std::vector<ForeignTensor>> DecodePaddleTensors(std::span<const std::byte> bytes,
                                                       const std::vector<std::string>& names);

/// True when the bytes begin as such a file does.
bool LooksLikePaddleTensor(std::span<const std::byte> bytes);

}  // namespace cairn
