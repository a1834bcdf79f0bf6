#pragma once

#include <string>
#include <string_view>

#include <cairn/inference.h>
#include <cairn/status.h>

namespace cairn {

/// Files of an inference model inside of its checkpoint (docs/format/inference.md).
inline constexpr std::string_view kInferenceModel = "__model__/model.onnx";
inline constexpr std::string_view kInferenceParams = "__model__/params.safetensors";
inline constexpr std::string_view kInferenceParamsName = "params.safetensors";
inline constexpr std::string_view kInferenceSignature = "__model__/signature.json";

std::string EncodeSignature(const ModelSignature& signature);
/// Corruption for damaged bytes, Unimplemented for a newer version.
Result<ModelSignature> DecodeSignature(std::string_view bytes);

}  // namespace cairn
