#include "src/state_encoder.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr int kMaxDepth = 200;
constexpr long long kSafeInteger = 1LL << 53;
constexpr std::size_t kNone = ~std::size_t{0};

[[noreturn]] void Invalid(const std::string& message) { Raise(InvalidArgumentError(message)); }

std::string TypeName(nb::handle value) {
  const nb::handle type = value.type();
  const auto module = nb::cast<std::string>(type.attr("__module__"));
  const auto name = nb::cast<std::string>(type.attr("__name__"));
  return module == "builtins" ? name : module + "." + name;
}

/// The text's UTF-8; Invalid, naming the place, when it has lone surrogates.
std::string_view Utf8(nb::handle text, const std::string& place) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    Invalid(place + ": the text has lone surrogates and is no valid unicode");
  }
  return {bytes, static_cast<std::size_t>(size)};
}

bool IsBelow(std::string_view path, std::string_view top) {
  return !top.empty() && path.starts_with(top) &&
         (path.size() == top.size() || path[top.size()] == '/');
}

}  // namespace

StateEncoder::StateEncoder(StateLayout layout)
    : layout_(std::move(layout)),
      ordered_dict_(nb::module_::import_("collections").attr("OrderedDict")),
      arrays_(&NumpyArrays::OfThisProcess()) {}

std::string StateEncoder::Encode(nb::handle state, const nb::callable& other,
                                 const nb::callable& key, const TorchTensors& torch) {
  other_ = other;
  key_ = key;
  torch_ = &torch;
  json_ = R"({"cairn_state":1,"state":)";
  Node(state, 0);
  json_ += '}';
  return std::move(json_);
}

std::string StateEncoder::Place() const { return path_.empty() ? "the state" : path_; }

void StateEncoder::Node(nb::handle value, int depth) {
  PyObject* const p = value.ptr();
  if (Plain(p)) return;
  if (arrays_->IsArray(value)) {
    if (!Array(value)) Other(value, depth);
  } else if (torch_->IsTensor(value)) {
    if (!TorchTensor(value)) Other(value, depth);
  } else if (PyDict_CheckExact(p) || PyList_CheckExact(p) || PyTuple_CheckExact(p) ||
             value.type().is(ordered_dict_)) {
    Container(value, depth);
  } else {
    Other(value, depth);
  }
}

bool StateEncoder::Plain(PyObject* value) {
  if (value == Py_None) {
    json_ += "null";
  } else if (value == Py_True) {
    json_ += "true";
  } else if (value == Py_False) {
    json_ += "false";
  } else if (PyUnicode_CheckExact(value)) {
    AppendJsonString(Utf8(value, Place()), &json_);
  } else if (PyLong_CheckExact(value)) {
    Integer(value);
  } else if (PyFloat_CheckExact(value)) {
    Float(PyFloat_AS_DOUBLE(value));
  } else {
    return false;
  }
  return true;
}

void StateEncoder::Integer(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow == 0 && -kSafeInteger <= number && number <= kSafeInteger) {
    json_ += std::to_string(number);
    return;
  }
  const nb::object hex = nb::steal(PyNumber_ToBase(value, 16));
  if (!hex.is_valid()) throw nb::python_error();
  json_ += R"({"int":")";
  json_ += nb::cast<std::string_view>(hex);
  json_ += "\"}";
}

void StateEncoder::Float(double value) {
  if (std::isfinite(value)) {  // the fewest digits that read back to the same bits
    const std::unique_ptr<char, void (*)(void*)> text(
        PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr), PyMem_Free);
    if (text == nullptr) throw nb::python_error();
    json_ += text.get();
    return;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(value)));
  json_ += R"({"float":")";
  json_ += digits;
  json_ += "\"}";
}

void StateEncoder::Container(nb::handle value, int depth) {
  if (depth >= kMaxDepth) {
    Invalid(path_.substr(0, 200) + "…: nested deeper than " + std::to_string(kMaxDepth) +
            " levels");
  }
  if (std::find(open_.begin(), open_.end(), value.ptr()) != open_.end()) {
    Invalid(Place() + ": the " + TypeName(value) + " contains itself");
  }
  open_.push_back(value.ptr());
  if (PyDict_Check(value.ptr())) {
    Dict(value, depth);
  } else {
    Sequence(value, depth);
  }
  open_.pop_back();
}

void StateEncoder::Child(std::string_view key, nb::handle value, int depth) {
  const std::size_t length = path_.size();
  if (length > 0) path_ += '/';
  path_ += key;
  Node(value, depth + 1);
  path_.resize(length);
}

void StateEncoder::Expect(std::size_t count) {
  if (count < 64) return;  // grown for nothing, should they be no arrays
  names_.reserve(names_.size() + count);
  by_memory_.reserve(by_memory_.size() + count);
}

void StateEncoder::Dict(nb::handle value, int depth) {
  const bool ordered = !PyDict_CheckExact(value.ptr());
  // A copy of the pairs: what `other` calls may change the dict.
  const nb::object items = nb::steal(PyMapping_Items(value.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  const Py_ssize_t count = PyList_GET_SIZE(items.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(PyList_GET_ITEM(items.ptr(), i), 0))) {
      ItemsOfDict(items, ordered ? "odict_items" : "dict_items", depth);
      return;
    }
  }
  Expect(static_cast<std::size_t>(count));
  json_ += ordered ? R"({"odict":{)" : R"({"dict":{)";
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const pair = PyList_GET_ITEM(items.ptr(), i);
    const std::string_view key = Utf8(PyTuple_GET_ITEM(pair, 0), Place());
    if (i > 0) json_ += ',';
    AppendJsonString(key, &json_);
    json_ += ':';
    Child(key, PyTuple_GET_ITEM(pair, 1), depth);
  }
  json_ += "}}";
}

void StateEncoder::ItemsOfDict(const nb::object& items, const char* tag, int depth) {
  json_ += "{\"";
  json_ += tag;
  json_ += "\":[";
  bool first = true;
  for (const nb::handle pair : items) {
    const nb::handle key = PyTuple_GET_ITEM(pair.ptr(), 0);
    const std::string place = path_.empty() ? "" : path_;
    const auto name = nb::cast<std::string>(nb::str(key));
    if (!std::exchange(first, false)) json_ += ',';
    json_ += '[';
    json_ += nb::cast<std::string_view>(key_(key, place));
    json_ += ',';
    Child(name, PyTuple_GET_ITEM(pair.ptr(), 1), depth);
    json_ += ']';
  }
  json_ += "]}";
}

void StateEncoder::Sequence(nb::handle value, int depth) {
  const bool tuple = PyTuple_CheckExact(value.ptr());
  json_ += tuple ? R"({"tuple":[)" : "[";
  // Asked anew each time: what `other` calls may change the list.
  for (Py_ssize_t i = 0; i < PySequence_Size(value.ptr()); ++i) {
    const nb::object item = nb::steal(PySequence_GetItem(value.ptr(), i));
    if (!item.is_valid()) throw nb::python_error();
    if (i > 0) json_ += ',';
    Child(std::to_string(i), item, depth);
  }
  json_ += tuple ? "]}" : "]";
}

void StateEncoder::Other(nb::handle value, int depth) {
  if (depth > 2 * kMaxDepth) Invalid(path_.substr(0, 200) + "…: nested too deeply");
  const nb::object answer = other_(value, path_, depth);
  if (PyUnicode_Check(answer.ptr())) {
    json_ += Utf8(answer, Place());
    return;
  }
  json_ += nb::cast<std::string_view>(answer[0]);
  Node(answer[1], depth + 1);
  json_ += nb::cast<std::string_view>(answer[2]);
}

bool StateEncoder::Array(nb::handle value) {
  PlainArray array;
  if (!arrays_->Describe(value, &array)) return false;
  Tensor tensor;
  tensor.dtype = array.dtype;
  tensor.shape.assign(array.shape.begin(), array.shape.end());
  tensor.data = array.data;
  AddArray(std::move(tensor), false, array.bytes, value, {});
  return true;
}

bool StateEncoder::TorchTensor(nb::handle value) {
  PlainTensor plain;
  if (!torch_->Describe(value, &plain)) return false;
  Tensor tensor;
  tensor.dtype = plain.dtype;
  tensor.shape = std::move(plain.shape);
  tensor.data = plain.data;
  std::string note;
  if (plain.requires_grad) note += R"(,"requires_grad":true)";
  if (plain.parameter) note += R"(,"parameter":true)";
  AddArray(std::move(tensor), true, plain.bytes, plain.keep, note);
  return true;
}

const Tensor* StateEncoder::Tied(const Tensor& tensor, bool torch) const {
  const auto found = by_memory_.find(tensor.data);
  if (found == by_memory_.end()) return nullptr;
  for (std::size_t i = found->second; i != kNone; i = seen_[i].before) {
    const Seen& seen = seen_[i];
    const Tensor& other = seen.written_here ? tensors_[seen.index] : of_others_[seen.index];
    if (other.dtype == tensor.dtype && other.shape == tensor.shape && other.group == tensor.group &&
        seen.torch == torch) {
      return &other;
    }
  }
  return nullptr;
}

void StateEncoder::AddArray(Tensor tensor, bool torch, std::uint64_t bytes, nb::handle keep,
                            std::string_view note) {
  tensor.group = GroupOf(path_);
  if (const Tensor* tied = bytes > 0 ? Tied(tensor, torch) : nullptr) {
    ArrayLeaf(*tied, torch, note);
    return;
  }
  tensor.name = UniqueName(TensorName(path_, tensor.group));
  ArrayLeaf(tensor, torch, note);
  const bool here = !layout_.common || layout_.rank == 0 || tensor.group == TensorGroup::kState;
  std::vector<Tensor>& all = here ? tensors_ : of_others_;
  if (here) bytes_ += bytes;
  // Also when others write it: memory that was given back would be the next array's, and tie the
  // two.
  keep_.append(keep);
  if (bytes > 0) {
    const auto [it, fresh] = by_memory_.try_emplace(tensor.data, seen_.size());
    seen_.push_back({all.size(), here, torch, fresh ? kNone : it->second});
    it->second = seen_.size() - 1;
  }
  all.push_back(std::move(tensor));
}

void StateEncoder::ArrayLeaf(const Tensor& tensor, bool torch, std::string_view note) {
  json_ += R"({"tensor":{"name":)";
  AppendJsonString(tensor.name, &json_);
  json_ += R"(,"dtype":")";
  json_ += DTypeName(tensor.dtype);
  json_ += R"(","shape":[)";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i > 0) json_ += ',';
    json_ += std::to_string(tensor.shape[i]);
  }
  json_ += torch ? R"(],"kind":"torch")" : R"(],"kind":"numpy")";
  if (tensor.group == TensorGroup::kState) json_ += R"(,"group":"state")";
  json_ += note;
  json_ += "}}";
}

std::string StateEncoder::UniqueName(std::string name) {
  const std::string base = name;
  if (name.empty()) name = "value";
  for (int number = 2; !names_.insert(name).second; ++number) {
    name = base + "~" + std::to_string(number);
  }
  return name;
}

TensorGroup StateEncoder::GroupOf(std::string_view path) const {
  if (IsBelow(path, layout_.own)) return TensorGroup::kState;
  return layout_.rank > 0 && !layout_.common ? TensorGroup::kState : TensorGroup::kModel;
}

std::string StateEncoder::TensorName(std::string_view path, TensorGroup group) const {
  if (group == TensorGroup::kState && !IsBelow(path, layout_.own)) {
    return layout_.participant + "/" + std::string(path);  // rank 0 has one of this name
  }
  const std::string& plain = layout_.plain;
  if (IsBelow(path, plain) && path.size() > plain.size()) path.remove_prefix(plain.size() + 1);
  return std::string(path);
}

void StateEncoder::Add(nb::handle described, nb::handle keep, std::uint64_t bytes) {
  tensors_.push_back(ToTensor(described));
  keep_.append(keep);
  bytes_ += bytes;
}

std::string StateEncoder::Digest() const {
  std::string sums;
  Status status = Status::Ok();
  {
    const WithoutGil released;
    for (const Tensor& tensor : tensors_) {
      const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
      if (!bytes.ok()) {
        status = bytes.status();
        break;
      }
      sums += ToHex(Xxh3Wide({static_cast<const std::byte*>(tensor.data), *bytes}));
    }
  }
  RaiseIfError(status);
  return ToHex(Xxh3Wide(std::as_bytes(std::span(sums))));
}

void DefineStateEncoder(nb::module_& module) {
  nb::class_<StateEncoder>(module, "StateEncoder")
      .def(
          "__init__",
          [](StateEncoder* self, int rank, std::string participant, std::string own, bool common,
             std::string plain) {
            new (self) StateEncoder(
                {rank, std::move(participant), std::move(own), common, std::move(plain)});
          },
          nb::kw_only(), nb::arg("rank"), nb::arg("participant"), nb::arg("own"), nb::arg("common"),
          nb::arg("plain"))
      .def(
          "encode",
          [](StateEncoder& self, nb::handle state, const nb::callable& other,
             const nb::callable& key, nb::handle tensor_type, nb::handle tensor) {
            return self.Encode(state, other, key, TorchTensors(tensor_type, tensor));
          },
          nb::arg("state").none(), nb::arg("other"), nb::arg("key"), nb::arg("tensor_type").none(),
          nb::arg("tensor").none())
      .def("unique_name", &StateEncoder::UniqueName)
      .def("group_of",
           [](const StateEncoder& self, std::string_view path) {
             return self.GroupOf(path) == TensorGroup::kState ? "state" : "model";
           })
      .def("tensor_name",
           [](const StateEncoder& self, std::string_view path, std::string_view group) {
             return self.TensorName(path,
                                    group == "state" ? TensorGroup::kState : TensorGroup::kModel);
           })
      .def("add", &StateEncoder::Add)
      .def("digest", &StateEncoder::Digest)
      .def_prop_ro("keep", &StateEncoder::keep)
      .def_prop_ro("nbytes", &StateEncoder::bytes);
}

}  // namespace cairn::python
