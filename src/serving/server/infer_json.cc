#include "serving/server/infer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace cairn::serving {
namespace {

struct TypeName {
  DType dtype;
  std::string_view name;
};
constexpr TypeName kTypes[] = {
    {DType::kBool, "BOOL"},  {DType::kU8, "UINT8"},   {DType::kU16, "UINT16"},
    {DType::kU32, "UINT32"}, {DType::kU64, "UINT64"}, {DType::kI8, "INT8"},
    {DType::kI16, "INT16"},  {DType::kI32, "INT32"},  {DType::kI64, "INT64"},
    {DType::kF16, "FP16"},   {DType::kBF16, "BF16"},  {DType::kF32, "FP32"},
    {DType::kF64, "FP64"},
};

Status Wrong(const std::string& where, const std::string& what) {
  return InvalidArgumentError(where + ": " + what);
}

template <typename T>
Status AppendInteger(const Value& value, const std::string& where, std::string* out) {
  T number{};
  if (const std::int64_t* small = value.if_int64()) {
    if (!std::in_range<T>(*small)) return Wrong(where, "a number that its datatype does not hold");
    number = static_cast<T>(*small);
  } else if (const std::uint64_t* large = value.if_uint64()) {
    if (!std::in_range<T>(*large)) return Wrong(where, "a number that its datatype does not hold");
    number = static_cast<T>(*large);
  } else {
    return Wrong(where, "an element is no integer");
  }
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
  return Status::Ok();
}

template <typename T>
Status AppendFloat(const Value& value, const std::string& where, std::string* out) {
  const Value number = NumberFrom(value);  // "NaN" and "Infinity" too
  if (!number.is_number()) return Wrong(where, "an element is no number");
  const T converted = static_cast<T>(number.AsDouble());
  // What was written as a finite number does not become an infinity on the way.
  if (std::isinf(converted) && std::isfinite(number.AsDouble())) {
    return Wrong(where, "a number that its datatype does not hold");
  }
  out->append(reinterpret_cast<const char*>(&converted), sizeof(converted));
  return Status::Ok();
}

Status AppendElement(DType dtype, const Value& value, const std::string& where, std::string* out) {
  switch (dtype) {
    case DType::kBool: {
      const bool* yes = value.if_bool();
      if (yes == nullptr) return Wrong(where, "an element is neither true nor false");
      out->push_back(*yes ? '\1' : '\0');
      return Status::Ok();
    }
    case DType::kU8:
      return AppendInteger<std::uint8_t>(value, where, out);
    case DType::kU16:
      return AppendInteger<std::uint16_t>(value, where, out);
    case DType::kU32:
      return AppendInteger<std::uint32_t>(value, where, out);
    case DType::kU64:
      return AppendInteger<std::uint64_t>(value, where, out);
    case DType::kI8:
      return AppendInteger<std::int8_t>(value, where, out);
    case DType::kI16:
      return AppendInteger<std::int16_t>(value, where, out);
    case DType::kI32:
      return AppendInteger<std::int32_t>(value, where, out);
    case DType::kI64:
      return AppendInteger<std::int64_t>(value, where, out);
    case DType::kF32:
      return AppendFloat<float>(value, where, out);
    case DType::kF64:
      return AppendFloat<double>(value, where, out);
    default:
      return Wrong(where, "numbers of this datatype cannot be given in JSON");
  }
}

/// `sizes`: of the list and of what is nested in it.
Status AppendNested(DType dtype, const Value::List& data, std::span<const std::uint64_t> sizes,
                    const std::string& where, std::string* out) {
  const auto otherwise = [&] { return Wrong(where, "is nested otherwise than the shape says"); };
  if (sizes.empty() || data.size() != sizes.front()) return otherwise();
  for (const Value& value : data) {
    const Value::List* nested = value.if_list();
    if ((nested != nullptr) != (sizes.size() > 1)) return otherwise();
    RETURN_IF_ERROR(nested != nullptr ? AppendNested(dtype, *nested, sizes.subspan(1), where, out)
                                      : AppendElement(dtype, value, where, out));
  }
  return Status::Ok();
}

/// Flat, or nested as the shape is.
Status AppendData(DType dtype, const Value::List& data, std::span<const std::uint64_t> shape,
                  const std::string& where, std::string* out) {
  const bool flat = std::ranges::none_of(data, [](const Value& value) { return value.is_list(); });
  if (!flat) return AppendNested(dtype, data, shape, where, out);
  for (const Value& value : data) RETURN_IF_ERROR(AppendElement(dtype, value, where, out));
  return Status::Ok();
}

const Value* Member(const Value::Object& object, std::string_view key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &it->second;
}

Result<std::string> TextMember(const Value::Object& object, std::string_view key,
                               const std::string& where) {
  const Value* value = Member(object, key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  if (text == nullptr || text->empty()) {
    return Wrong(where + std::string(key), value == nullptr ? "is missing" : "is no text");
  }
  return *text;
}

Result<InferRequest::Input> DecodeInput(const Value::Object& object, const std::string& where) {
  InferRequest::Input input;
  ASSIGN_OR_RETURN(const std::string type, TextMember(object, "datatype", where));
  const auto dtype = FromProtocolType(type);
  if (!dtype) return Wrong(where + "datatype", QuoteForMessage(type) + " is not supported");
  input.dtype = *dtype;
  const Value* shape = Member(object, "shape");
  if (shape == nullptr || !shape->is_list()) {
    return Wrong(where + "shape", shape == nullptr ? "is missing" : "is no list");
  }
  for (const Value& size : *shape->if_list()) {
    if (size.AsInt(-1) < 0) return Wrong(where + "shape", "holds something that is no size");
    input.shape.push_back(static_cast<std::uint64_t>(size.AsInt()));
  }
  const Value* data = Member(object, "data");
  if (data == nullptr || !data->is_list()) {
    return Wrong(where + "data", data == nullptr ? "is missing" : "is no list");
  }
  RETURN_IF_ERROR(
      AppendData(input.dtype, *data->if_list(), input.shape, where + "data", &input.bytes));
  const auto bytes = TensorBytes(input.dtype, input.shape);
  if (!bytes.ok()) return Wrong(where + "shape", std::string(bytes.status().message()));
  if (*bytes != input.bytes.size()) {
    const std::uint64_t each = static_cast<std::uint64_t>(DTypeBits(input.dtype)) / 8;
    return Wrong(where + "data", fmt::format("{} elements, and the shape has {}",
                                             input.bytes.size() / each, *bytes / each));
  }
  return input;
}

template <typename T>
void AppendNumbers(const OwnedTensor& tensor, std::string* out) {
  const std::uint64_t count = tensor.bytes / sizeof(T);
  for (std::uint64_t i = 0; i < count; ++i) {
    T number;
    std::memcpy(&number, tensor.data.get() + i * sizeof(T), sizeof(T));
    if (i > 0) out->push_back(',');
    if constexpr (std::is_floating_point_v<T>) {
      // JSON has no other numbers; the three strings are what Cairn uses everywhere.
      if (!std::isfinite(number)) {
        AppendJson(Value(static_cast<double>(number)), out);
        continue;
      }
    }
    fmt::format_to(std::back_inserter(*out), "{}", number);
  }
}

Status AppendTensor(const OwnedTensor& tensor, std::string* out) {
  switch (tensor.dtype) {
    case DType::kBool:
      for (std::uint64_t i = 0; i < tensor.bytes; ++i) {
        if (i > 0) out->push_back(',');
        out->append(tensor.data.get()[i] != std::byte{0} ? "true" : "false");
      }
      return Status::Ok();
    case DType::kU8:
      AppendNumbers<std::uint8_t>(tensor, out);
      return Status::Ok();
    case DType::kU16:
      AppendNumbers<std::uint16_t>(tensor, out);
      return Status::Ok();
    case DType::kU32:
      AppendNumbers<std::uint32_t>(tensor, out);
      return Status::Ok();
    case DType::kU64:
      AppendNumbers<std::uint64_t>(tensor, out);
      return Status::Ok();
    case DType::kI8:
      AppendNumbers<std::int8_t>(tensor, out);
      return Status::Ok();
    case DType::kI16:
      AppendNumbers<std::int16_t>(tensor, out);
      return Status::Ok();
    case DType::kI32:
      AppendNumbers<std::int32_t>(tensor, out);
      return Status::Ok();
    case DType::kI64:
      AppendNumbers<std::int64_t>(tensor, out);
      return Status::Ok();
    case DType::kF32:
      AppendNumbers<float>(tensor, out);
      return Status::Ok();
    case DType::kF64:
      AppendNumbers<double>(tensor, out);
      return Status::Ok();
    default:
      return UnimplementedError("the output " + QuoteForMessage(tensor.name) + " is " +
                                std::string(DTypeName(tensor.dtype)) +
                                ", which cannot be given in JSON");
  }
}

}  // namespace

std::string_view ProtocolType(DType dtype) {
  for (const TypeName& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

std::optional<DType> FromProtocolType(std::string_view name) {
  for (const TypeName& type : kTypes) {
    if (type.name == name) return type.dtype;
  }
  return std::nullopt;
}

std::map<std::string, FeedTensor> InferRequest::Feeds() const {
  std::map<std::string, FeedTensor> feeds;
  for (const auto& [name, input] : inputs) {
    feeds[name] = {input.dtype, input.shape, input.bytes.data()};
  }
  return feeds;
}

Result<InferRequest> DecodeInferRequest(std::string_view body) {
  auto decoded = DecodeJson(body);
  if (!decoded.ok()) {
    return InvalidArgumentError("the body is no JSON: " + std::string(decoded.status().message()));
  }
  return InferRequestFrom(*decoded);
}

Result<InferRequest> InferRequestFrom(const Value& body) {
  const Value::Object* root = body.if_object();
  if (root == nullptr) return InvalidArgumentError("the body is no JSON object");
  InferRequest request;
  if (const Value* id = Member(*root, "id")) {
    if (!id->is_string()) return Wrong("id", "is no text");
    request.id = *id->if_string();
  }
  const Value* inputs = Member(*root, "inputs");
  if (inputs == nullptr || !inputs->is_list()) {
    return Wrong("inputs", inputs == nullptr ? "is missing" : "is no list");
  }
  for (std::size_t i = 0; i < inputs->if_list()->size(); ++i) {
    const std::string where = fmt::format("inputs[{}]", i);
    const Value::Object* object = (*inputs->if_list())[i].if_object();
    if (object == nullptr) return Wrong(where, "is no object");
    ASSIGN_OR_RETURN(const std::string name, TextMember(*object, "name", where + "."));
    ASSIGN_OR_RETURN(InferRequest::Input input, DecodeInput(*object, where + "."));
    input.place = i;
    if (!request.inputs.emplace(name, std::move(input)).second) {
      return Wrong(where + ".name", QuoteForMessage(name) + " is there twice");
    }
  }
  if (const Value* outputs = Member(*root, "outputs")) {
    if (!outputs->is_list()) return Wrong("outputs", "is no list");
    for (std::size_t i = 0; i < outputs->if_list()->size(); ++i) {
      const std::string where = fmt::format("outputs[{}]", i);
      const Value::Object* object = (*outputs->if_list())[i].if_object();
      if (object == nullptr) return Wrong(where, "is no object");
      ASSIGN_OR_RETURN(request.outputs.emplace_back(), TextMember(*object, "name", where + "."));
    }
  }
  return request;
}

Status CheckInputs(const InferRequest& request, const std::vector<TensorSignature>& wanted) {
  std::map<std::string_view, const TensorSignature*> known;
  for (const TensorSignature& tensor : wanted) known[tensor.name] = &tensor;
  for (const auto& [name, input] : request.inputs) {
    const std::string where = fmt::format("inputs[{}].", input.place);
    const auto found = known.find(name);
    if (found == known.end()) {
      std::vector<std::string_view> names;
      for (const auto& [each, tensor] : known) names.push_back(each);
      return Wrong(where + "name", fmt::format("the model has no input {}; it has {}",
                                               QuoteForMessage(name), fmt::join(names, ", ")));
    }
    const TensorSignature& tensor = *found->second;
    if (input.dtype != tensor.dtype) {
      return Wrong(where + "datatype",
                   fmt::format("{}, and the model wants {}", ProtocolType(input.dtype),
                               ProtocolType(tensor.dtype)));
    }
    bool fits = input.shape.size() == tensor.shape.size();
    for (std::size_t d = 0; fits && d < tensor.shape.size(); ++d) {
      fits = tensor.shape[d] < 0 || input.shape[d] == static_cast<std::uint64_t>(tensor.shape[d]);
    }
    if (!fits) {
      return Wrong(where + "shape",
                   fmt::format("[{}], and the model wants [{}] (-1: any size)",
                               fmt::join(input.shape, ","), fmt::join(tensor.shape, ",")));
    }
  }
  for (const TensorSignature& tensor : wanted) {
    if (!request.inputs.contains(tensor.name)) {
      return Wrong("inputs", QuoteForMessage(tensor.name) + " is missing");
    }
  }
  return Status::Ok();
}

Result<std::string> EncodeInferResponse(const std::string& model, const std::string& version,
                                        const InferRequest& request,
                                        const std::vector<OwnedTensor>& outputs) {
  std::string out = "{\"model_name\":";
  AppendJsonString(model, &out);
  out += ",\"model_version\":";
  AppendJsonString(version, &out);
  if (!request.id.empty()) {
    out += ",\"id\":";
    AppendJsonString(request.id, &out);
  }
  out += ",\"outputs\":[";
  bool first = true;
  const auto append = [&](const OwnedTensor& tensor) -> Status {
    out += first ? "{\"name\":" : ",{\"name\":";
    first = false;
    AppendJsonString(tensor.name, &out);
    out += fmt::format(",\"datatype\":\"{}\",\"shape\":[{}],\"data\":[", ProtocolType(tensor.dtype),
                       fmt::join(tensor.shape, ","));
    RETURN_IF_ERROR(AppendTensor(tensor, &out));
    out += "]}";
    return Status::Ok();
  };
  if (request.outputs.empty()) {
    for (const OwnedTensor& tensor : outputs) RETURN_IF_ERROR(append(tensor));
  }
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const OwnedTensor& tensor) {
      return tensor.name == request.outputs[i];
    });
    if (found == outputs.end()) {
      return Wrong(fmt::format("outputs[{}].name", i),
                   "the model has no output " + QuoteForMessage(request.outputs[i]));
    }
    RETURN_IF_ERROR(append(*found));
  }
  out += "]}";
  return out;
}

Value::List DescribeTensors(const std::vector<TensorSignature>& tensors) {
  Value::List list;
  for (const TensorSignature& tensor : tensors) {
    Value::List shape;
    for (const std::int64_t size : tensor.shape) shape.emplace_back(size);
    list.emplace_back(Value::Object{{"name", tensor.name},
                                    {"datatype", ProtocolType(tensor.dtype)},
                                    {"shape", std::move(shape)}});
  }
  return list;
}

}  // namespace cairn::serving
