#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// The weights of an ONNX model: the initializers of its graph, by name. Reads the message's wire
/// format itself, so that no library of ONNX's is needed to load parameters. External data comes
/// from `files`. Initializers that are no numbers (strings, 4-bit types) are refused by name.
Result<std::vector<ForeignTensor>> DecodeOnnxInitializers(std::span<const std::byte> bytes,
                                                          SideFiles* files);

}  // namespace cairn
