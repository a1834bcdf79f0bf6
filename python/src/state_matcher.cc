#include "src/state_matcher.h"

#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <string>
#include <unordered_map>

#include "format/json.h"
#include "format/json_cursor.h"
#include "src/convert.h"
#include "src/numpy_arrays.h"
#include "src/tensor_leaf.h"
#include "src/torch_tensors.h"

namespace nb = nanobind;

namespace cairn::python {

/// Reads the stored text and walks the given state beside it. Each function is false when the two
/// are not alike (or the text is bad: whoever looks closer will say how).
class StateMatcher {
 public:
  StateMatcher(std::string_view text, const TorchTensors& torch, MatchedState* out)
      : cursor_(text),
        out_(out),
        torch_(torch),
        arrays_(&NumpyArrays::OfThisProcess()),
        ordered_dict_(nb::module_::import_("collections").attr("OrderedDict")) {
    const std::size_t arrays = text.size() / kBytesOfLeaf;
    filled_.reserve(arrays);
    out_->tensors_.reserve(arrays);
  }

  bool Run(nb::handle given) {
    std::uint64_t version = 0;
    return cursor_.Expect('{') && Key("cairn_state") && cursor_.ReadUint(&version) &&
           version == 1 && cursor_.Expect(',') && Key("state") && Node(given, {}, {}) &&
           cursor_.Expect('}') && cursor_.ExpectEnd();
  }

 private:
  static constexpr std::size_t kBytesOfLeaf = 80;  // about

  bool Key(std::string_view expected) {
    return cursor_.ReadString(&text_, &scratch_) && text_ == expected && cursor_.Expect(':');
  }

  /// `container[key]` is where `given` stands; no container: it cannot be replaced there.
  bool Node(nb::handle given, nb::handle container, nb::handle key) {
    PlainTensor memory;
    const bool array = Memory(given, &memory);
    if (array && LooksAsNow(memory, torch_.IsTensor(given))) {
      return Fill({.name = path_,
                   .dtype = memory.dtype,
                   .shape = std::move(memory.shape),
                   .data = memory.data},
                  memory.bytes);
    }
    const char next = cursor_.Peek();
    if (next == '[') return PyList_CheckExact(given.ptr()) && Sequence(given, given);
    if (next != '{') return Scalar(given, container, key);
    if (!cursor_.Expect('{') || !cursor_.ReadString(&text_, &scratch_)) return false;
    const std::string tag(text_);
    if (!cursor_.Expect(':')) return false;
    bool alike = false;
    if (tag == "tensor") {
      alike = array && Tensor(memory);
    } else if (tag == "dict" || tag == "odict") {
      alike = Dict(given);
    } else if (tag == "tuple") {
      alike = PyTuple_CheckExact(given.ptr()) && Sequence(given, {});
    }
    return alike && cursor_.Expect('}');
  }

  bool Dict(nb::handle given) {
    if (!PyDict_CheckExact(given.ptr()) && !given.type().is(ordered_dict_)) return false;
    const nb::object items = nb::steal(PyMapping_Items(given.ptr()));
    if (!items.is_valid()) throw nb::python_error();
    if (!cursor_.Expect('{')) return false;
    const Py_ssize_t count = PyList_GET_SIZE(items.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const pair = PyList_GET_ITEM(items.ptr(), i);
      PyObject* const key = PyTuple_GET_ITEM(pair, 0);
      if (i > 0 && !cursor_.Expect(',')) return false;
      if (!PyUnicode_CheckExact(key)) return false;
      Py_ssize_t size = 0;
      const char* const name = PyUnicode_AsUTF8AndSize(key, &size);
      if (name == nullptr) {
        PyErr_Clear();
        return false;
      }
      const std::string_view text(name, static_cast<std::size_t>(size));
      if (!Key(text) || !Child(text, PyTuple_GET_ITEM(pair, 1), given, key)) return false;
    }
    return cursor_.Expect('}');
  }

  bool Sequence(nb::handle given, nb::handle container) {
    if (!cursor_.Expect('[')) return false;
    const Py_ssize_t count = PySequence_Size(given.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (i > 0 && !cursor_.Expect(',')) return false;
      const nb::object item = nb::steal(PySequence_GetItem(given.ptr(), i));
      if (!item.is_valid()) throw nb::python_error();
      const nb::object key = container.is_valid() ? nb::object(nb::int_(i)) : nb::object();
      if (!Child(std::to_string(i), item, container, key)) return false;
    }
    return cursor_.Expect(']');
  }

  bool Scalar(nb::handle given, nb::handle container, nb::handle key) {
    PyObject* const p = given.ptr();
    const bool plain =
        PyUnicode_CheckExact(p) || PyLong_CheckExact(p) || PyFloat_CheckExact(p) || PyBool_Check(p);
    Value value;
    if (!plain || !container.is_valid() || !cursor_.ReadScalar(&value)) return false;
    out_->values_.push_back({nb::borrow(container), nb::borrow(key), FromValue(value)});
    return true;
  }

  bool Child(std::string_view name, nb::handle given, nb::handle container, nb::handle key) {
    const std::size_t length = path_.size();
    if (length > 0) path_ += '/';
    path_ += name;
    const bool alike = Node(given, container, key);
    path_.resize(length);
    return alike;
  }

  /// Takes what a save of this array, at this place, would write: then nothing need be parsed. A
  /// stored name may differ from the place, and notes from those of the array now.
  bool LooksAsNow(const PlainTensor& memory, bool torch) {
    leaf_.clear();
    AppendTensorLeaf({.name = path_,
                      .dtype = memory.dtype,
                      .torch = torch,
                      .requires_grad = memory.requires_grad,
                      .parameter = memory.parameter},
                     memory.shape, &leaf_);
    return cursor_.ConsumeText(leaf_);
  }

  bool Tensor(const PlainTensor& memory) {
    MutableTensor tensor;
    if (!StoredTensor(&tensor)) return false;
    if (memory.dtype != tensor.dtype || memory.shape != tensor.shape) return false;
    tensor.data = memory.data;
    return Fill(std::move(tensor), memory.bytes);
  }

  bool Fill(MutableTensor tensor, std::uint64_t bytes) {
    if (bytes > 0) {  // tied arrays are filled once, and only by what was tied when stored
      const auto [first, is_new] = filled_.emplace(tensor.data, out_->tensors_.size());
      if (!is_new) {
        const MutableTensor& other = out_->tensors_[first->second];
        return other.name == tensor.name && other.group == tensor.group &&
               other.shape == tensor.shape && other.dtype == tensor.dtype;
      }
    }
    out_->tensors_.push_back(std::move(tensor));
    return true;
  }

  /// The memory of an array that may be filled as it is.
  bool Memory(nb::handle given, PlainTensor* out) {
    if (torch_.IsTensor(given)) return torch_.Describe(given, out);
    PlainArray array;
    if (!arrays_->IsArray(given) || !arrays_->Describe(given, &array)) return false;
    out->dtype = array.dtype;
    out->shape.assign(array.shape.begin(), array.shape.end());
    out->data = array.data;
    out->bytes = array.bytes;
    return array.writeable;
  }

  /// What the text says of a tensor.
  bool StoredTensor(MutableTensor* tensor) {
    bool name = false;
    bool dtype = false;
    bool shape = false;
    bool kind = false;
    if (!cursor_.Expect('{')) return false;
    do {
      if (!cursor_.ReadString(&text_, &scratch_)) return false;
      const std::string member(text_);
      if (!cursor_.Expect(':')) return false;
      if (member == "shape") {
        shape = Shape(&tensor->shape);
        if (!shape) return false;
      } else if (member == "requires_grad" || member == "parameter") {
        if (!cursor_.SkipScalar()) return false;
      } else {
        if (!cursor_.ReadString(&text_, &scratch_)) return false;
        if (member == "name") {
          tensor->name = text_;
          name = true;
        } else if (member == "dtype") {
          const auto known = DTypeFromName(text_);
          if (!known) return false;
          tensor->dtype = *known;
          dtype = true;
        } else if (member == "kind") {
          kind = true;
        } else if (member == "group" && text_ == "state") {
          tensor->group = TensorGroup::kState;
        } else {
          return false;  // a note: the bytes alone do not say what the array holds
        }
      }
    } while (cursor_.Consume(','));
    return cursor_.Expect('}') && name && dtype && shape && kind;
  }

  bool Shape(std::vector<std::uint64_t>* dims) {
    if (!cursor_.Expect('[')) return false;
    if (cursor_.Consume(']')) return true;
    do {
      if (!cursor_.ReadUint(&dims->emplace_back())) return false;
    } while (cursor_.Consume(','));
    return cursor_.Expect(']');
  }

  JsonCursor cursor_;
  MatchedState* const out_;
  const TorchTensors torch_;
  NumpyArrays* const arrays_;
  const nb::object ordered_dict_;
  std::string_view text_;  // the string read last
  std::string scratch_;
  std::string path_;  // of the node: keys from the root
  std::string leaf_;
  std::unordered_map<const void*, std::size_t> filled_;  // memory → index of what fills it
};

std::unique_ptr<MatchedState> MatchedState::Match(std::string_view text, nb::handle given,
                                                  const TorchTensors& torch) {
  auto matched = std::make_unique<MatchedState>();
  if (!IsValidUtf8(text) || !StateMatcher(text, torch, matched.get()).Run(given)) return nullptr;
  matched->count_ = matched->tensors_.size();
  return matched;
}

void MatchedState::PutValues() {
  for (const StoredValue& stored : values_) {
    if (PyObject_SetItem(stored.container.ptr(), stored.key.ptr(), stored.value.ptr()) != 0) {
      throw nb::python_error();
    }
  }
}

void DefineStateMatcher(nb::module_& module) {
  nb::class_<MatchedState>(module, "MatchedState")
      .def_prop_ro("count", &MatchedState::count)
      .def("put_values", &MatchedState::PutValues);
  module.def(
      "match_state",
      [](const nb::bytes& text, nb::handle given, nb::handle tensor_type, nb::handle tensor,
         nb::handle parameter) {
        return MatchedState::Match({text.c_str(), text.size()}, given,
                                   TorchTensors(tensor_type, tensor, parameter));
      },
      nb::arg("text"), nb::arg("given"), nb::arg("tensor_type") = nb::none(),
      nb::arg("tensor") = nb::none(), nb::arg("parameter") = nb::none());
}

}  // namespace cairn::python
