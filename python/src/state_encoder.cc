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
#include "src/plain_value.h"
#include "src/tensor_leaf.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr int kMaxDepth = 200;
constexpr std::size_t kNone = ~std::size_t{0};

[[noreturn]] void Invalid(const std::string& message) { Raise(InvalidArgumentError(message)); }

std::string TypeName(nb::handle value) {
  const nb::handle type = value.type();
  const auto module = nb::cast<std::string>(type.attr("__module__"));
  const auto name = nb::cast<std::string>(type.attr("__name__"));
  return module == "builtins" ? name : module + "." + name;
}

bool IsBelow(std::string_view path, std::string_view top) {
  return !top.empty() && path.starts_with(top) &&
         (path.size() == top.size() || path[top.size()] == '/');
}

void AppendLeaf(const Tensor& tensor, const StateTrace::Step& step, std::string* json) {
  AppendTensorLeaf({.name = tensor.name,
                    .dtype = tensor.dtype,
                    .group = tensor.group,
                    .torch = step.kind == StateTrace::Kind::kTorch,
                    .requires_grad = step.requires_grad,
                    .parameter = step.parameter},
                   tensor.shape, json);
}

}  // namespace

StateEncoder::StateEncoder(StateLayout layout)
    : layout_(std::move(layout)),
      ordered_dict_(nb::module_::import_("collections").attr("OrderedDict")),
      arrays_(&NumpyArrays::OfThisProcess()) {}

void StateEncoder::Encode(nb::handle state, const nb::callable& other, const nb::callable& key,
                          const TorchTensors& torch, KnownState* known) {
  other_ = other;
  key_ = key;
  torch_ = &torch;
  if (known != nullptr && known->wants_trace()) trace_.emplace().layout = layout_;
  json_ = R"({"cairn_state":1,"state":)";
  Node(state, 0);
  json_ += '}';
  // What others write, or what was described in Python, is described anew each time.
  if (trace_ && !asked_ && of_others_.empty()) {
    trace_->json = json_;
    trace_->tensors = tensors_;
    trace_->bytes = bytes_;
    known->Learn(*std::move(trace_));
  }
}

bool StateEncoder::EncodeKnown(nb::handle state, const nb::callable& other,
                               const TorchTensors& torch, KnownState* known) {
  KnownState::Found found;
  if (!known->Describe(state, layout_, other, torch, asked_, &found)) return false;
  json_ = std::move(found.json);
  tensors_ = std::move(found.tensors);
  keep_ = std::move(found.keep);
  bytes_ = found.bytes;
  return true;
}

void StateEncoder::NoteText(std::size_t begin, StateTrace::Kind kind) {
  if (trace_) trace_->steps.push_back({.kind = kind, .first = begin, .end = json_.size()});
}

void StateEncoder::NoteContainer(StateTrace::Kind kind, std::size_t count) {
  if (trace_) trace_->steps.push_back({.kind = kind, .first = count});
}

void StateEncoder::NoteKey(nb::handle key) {
  if (trace_) trace_->keys.push_back(nb::borrow(key));
}

void StateEncoder::Node(nb::handle value, int depth) {
  PyObject* const p = value.ptr();
  if (const std::size_t begin = json_.size(); AppendPlainValue(p, path_, &json_)) {
    NoteText(begin);
  } else if (arrays_->IsArray(value)) {
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

void StateEncoder::Container(nb::handle value, int depth) {
  if (depth >= kMaxDepth) {
    Invalid(path_.substr(0, 200) + "…: nested deeper than " + std::to_string(kMaxDepth) +
            " levels");
  }
  if (std::find(open_.begin(), open_.end(), value.ptr()) != open_.end()) {
    Invalid(PlaceName(path_) + ": the " + TypeName(value) + " contains itself");
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
  NoteContainer(ordered ? StateTrace::Kind::kOrderedDict : StateTrace::Kind::kDict,
                static_cast<std::size_t>(count));
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
    const std::string_view key = Utf8(PyTuple_GET_ITEM(pair, 0), path_);
    NoteKey(PyTuple_GET_ITEM(pair, 0));
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
    const auto name = nb::cast<std::string>(nb::str(key));
    NoteKey(key);
    if (!std::exchange(first, false)) json_ += ',';
    json_ += '[';
    json_ += nb::cast<std::string_view>(key_(key, path_));
    json_ += ',';
    Child(name, PyTuple_GET_ITEM(pair.ptr(), 1), depth);
    json_ += ']';
  }
  json_ += "]}";
}

void StateEncoder::Sequence(nb::handle value, int depth) {
  const bool tuple = PyTuple_CheckExact(value.ptr());
  json_ += tuple ? R"({"tuple":[)" : "[";
  NoteContainer(tuple ? StateTrace::Kind::kTuple : StateTrace::Kind::kList,
                static_cast<std::size_t>(PySequence_Size(value.ptr())));
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
  const std::size_t begin = json_.size();
  if (PyUnicode_Check(answer.ptr())) {
    json_ += Utf8(answer, path_);
    NoteText(begin);
    return;
  }
  json_ += nb::cast<std::string_view>(answer[0]);
  NoteText(begin, StateTrace::Kind::kOpening);
  Node(answer[1], depth + 1);
  const std::size_t behind = json_.size();
  json_ += nb::cast<std::string_view>(answer[2]);
  NoteText(behind, StateTrace::Kind::kClosing);
}

bool StateEncoder::Array(nb::handle value) {
  PlainArray array;
  if (!arrays_->Describe(value, &array)) return false;
  Tensor tensor;
  tensor.dtype = array.dtype;
  tensor.shape.assign(array.shape.begin(), array.shape.end());
  tensor.data = array.data;
  AddArray(std::move(tensor), {.kind = StateTrace::Kind::kNumpy}, array.bytes, value);
  return true;
}

bool StateEncoder::TorchTensor(nb::handle value) {
  PlainTensor plain;
  if (!torch_->Describe(value, &plain)) return false;
  Tensor tensor;
  tensor.dtype = plain.dtype;
  tensor.shape = std::move(plain.shape);
  tensor.data = plain.data;
  AddArray(std::move(tensor),
           {.kind = StateTrace::Kind::kTorch,
            .requires_grad = plain.requires_grad,
            .parameter = plain.parameter},
           plain.bytes, plain.keep);
  return true;
}

std::optional<std::size_t> StateEncoder::Tied(const Tensor& tensor, bool torch) const {
  const auto found = by_memory_.find(tensor.data);
  if (found == by_memory_.end()) return std::nullopt;
  for (std::size_t i = found->second; i != kNone; i = seen_[i].before) {
    const Tensor& other = TensorOf(seen_[i]);
    if (other.dtype == tensor.dtype && other.shape == tensor.shape && other.group == tensor.group &&
        seen_[i].torch == torch) {
      return i;
    }
  }
  return std::nullopt;
}

void StateEncoder::AddArray(Tensor tensor, StateTrace::Step step, std::uint64_t bytes,
                            nb::handle keep) {
  const bool torch = step.kind == StateTrace::Kind::kTorch;
  tensor.group = GroupOf(path_);
  if (const auto tied = bytes > 0 ? Tied(tensor, torch) : std::nullopt) {
    AppendLeaf(TensorOf(seen_[*tied]), step, &json_);
    step.first = seen_[*tied].index;
    step.tied = true;
    if (trace_) trace_->steps.push_back(step);
    return;
  }
  tensor.name = MakeUnique(TensorName(path_, tensor.group));
  AppendLeaf(tensor, step, &json_);
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
  step.first = all.size();
  if (trace_) trace_->steps.push_back(step);
  all.push_back(std::move(tensor));
}

std::string StateEncoder::UniqueName(std::string name) {
  asked_ = true;
  return MakeUnique(std::move(name));
}

std::string StateEncoder::MakeUnique(std::string name) {
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
  asked_ = true;
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
             const nb::callable& key, nb::handle tensor_type, nb::handle tensor,
             nb::handle parameter, KnownState* known) {
            self.Encode(state, other, key, TorchTensors(tensor_type, tensor, parameter), known);
          },
          nb::arg("state").none(), nb::arg("other"), nb::arg("key"), nb::arg("tensor_type").none(),
          nb::arg("tensor").none(), nb::arg("parameter").none(),
          nb::arg("known").none() = nb::none())
      .def(
          "encode_known",
          [](StateEncoder& self, nb::handle state, const nb::callable& other,
             nb::handle tensor_type, nb::handle tensor, nb::handle parameter, KnownState& known) {
            return self.EncodeKnown(state, other, TorchTensors(tensor_type, tensor, parameter),
                                    &known);
          },
          nb::arg("state").none(), nb::arg("other"), nb::arg("tensor_type").none(),
          nb::arg("tensor").none(), nb::arg("parameter").none(), nb::arg("known"))
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
      .def_prop_ro("json", &StateEncoder::json)
      .def_prop_ro("keep", &StateEncoder::keep)
      .def_prop_ro("nbytes", &StateEncoder::bytes);
}

}  // namespace cairn::python
