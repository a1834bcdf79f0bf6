#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// The tensors of a file that torch.save wrote (the zip format of torch 1.6 and later). Names are
/// the keys of the saved dict, nested ones joined with '/'. Views become row-major arrays of their
/// own.
Result<std::vector<ForeignTensor>> DecodeTorchZip(std::span<const std::byte> bytes);

}  // namespace cairn
