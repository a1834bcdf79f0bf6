#include "model/inference/signature.h"

#include <cstdint>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::size_t kMaxDimensions = 64;

Value::List EncodeTensors(const std::vector<TensorSignature>& tensors) {
  Value::List list;
  for (const TensorSignature& tensor : tensors) {
    Value::List shape;
    for (const std::int64_t dimension : tensor.shape) shape.emplace_back(dimension);
    list.emplace_back(Value::Object{
        {"name", tensor.name}, {"dtype", DTypeName(tensor.dtype)}, {"shape", std::move(shape)}});
  }
  return list;
}

Status DecodeShape(const MemberReader& reader, std::vector<std::int64_t>* shape) {
  const Value::List* list = nullptr;
  RETURN_IF_ERROR(reader.OptionalList("shape", &list));
  if (list == nullptr || list->size() > kMaxDimensions) return CorruptionError("shape: not a list");
  for (const Value& value : *list) {
    const std::int64_t dimension = value.AsInt(-2);
    if (dimension < -1) return CorruptionError("shape: a dimension is no size");
    shape->push_back(dimension);
  }
  return Status::Ok();
}

Status DecodeTensors(const MemberReader& reader, std::string_view key,
                     std::vector<TensorSignature>* out) {
  const Value::List* list = nullptr;
  RETURN_IF_ERROR(reader.OptionalList(key, &list));
  if (list == nullptr) return CorruptionError(std::string(key) + ": not a list");
  std::set<std::string> seen;
  for (const Value& value : *list) {
    const Value::Object* members = value.if_object();
    if (members == nullptr) return CorruptionError(std::string(key) + ": not an object");
    const MemberReader tensor(*members);
    TensorSignature signature;
    std::string dtype;
    RETURN_IF_ERROR(tensor.Text("name", &signature.name));
    RETURN_IF_ERROR(tensor.Text("dtype", &dtype));
    RETURN_IF_ERROR(DecodeShape(tensor, &signature.shape));
    const auto known = DTypeFromName(dtype);
    if (!known) return CorruptionError("dtype: " + QuoteForMessage(dtype) + " is none");
    signature.dtype = *known;
    if (!seen.insert(signature.name).second) {
      return CorruptionError(std::string(key) + ": a name is there twice");
    }
    out->push_back(std::move(signature));
  }
  return Status::Ok();
}

}  // namespace

std::string EncodeSignature(const ModelSignature& signature) {
  return EncodeJson(Value::Object{{"version", kVersion},
                                  {"inputs", EncodeTensors(signature.inputs)},
                                  {"outputs", EncodeTensors(signature.outputs)}},
                    1) +
         "\n";
}

Result<ModelSignature> DecodeSignature(std::string_view bytes) {
  auto decoded = DecodeJson(bytes);
  if (!decoded.ok()) return CorruptionError(std::string(decoded.status().message()));
  const Value::Object* members = decoded->if_object();
  if (members == nullptr) return CorruptionError("the signature is no object");
  const MemberReader reader(*members);
  std::int64_t version = 0;
  RETURN_IF_ERROR(reader.Int("version", &version));
  if (version < 1) return CorruptionError("version " + std::to_string(version));
  if (version > kVersion) {
    return UnimplementedError("the signature is of version " + std::to_string(version) +
                              "; a newer Cairn reads it");
  }
  ModelSignature signature;
  RETURN_IF_ERROR(DecodeTensors(reader, "inputs", &signature.inputs));
  RETURN_IF_ERROR(DecodeTensors(reader, "outputs", &signature.outputs));
  return signature;
}

}  // namespace cairn
