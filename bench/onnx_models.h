#pragma once

#include <cstddef>
#include <string>

namespace cairn::bench {

/// Serialized ONNX models, written field by field: no library of ONNX's is needed to make them.

/// A chain of `nodes` additions from "x" to "y", with a branch of a third of them that no output
/// needs. A weight for each tenth of them.
std::string ChainModel(std::size_t nodes);

/// Layers of `width` × `width` with ReLUs, from "x" [?, width] to "y".
std::string LayersModel(std::size_t layers, std::size_t width);

}  // namespace cairn::bench
