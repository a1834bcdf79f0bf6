#include "src/known_state.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <utility>

#include "format/safetensors.h"
#include "src/plain_value.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

using Kind = StateTrace::Kind;
using Step = StateTrace::Step;

bool SameKey(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyUnicode_CheckExact(a)) return PyUnicode_Compare(a, b) == 0;
  return PyLong_CheckExact(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

/// Walks a state beside the trace of another one. Each function is false when they differ in more
/// than values.
class Retrace {
 public:
  Retrace(const StateTrace& trace, const nb::callable& other, const TorchTensors& torch,
          const bool& asked, KnownState::Found* out)
      : trace_(trace),
        other_(other),
        torch_(torch),
        asked_(asked),
        ordered_dict_(nb::module_::import_("collections").attr("OrderedDict")),
        arrays_(&NumpyArrays::OfThisProcess()),
        out_(out) {}

  bool Run(nb::handle state) {
    out_->json.reserve(trace_.json.size() + 1024);
    out_->tensors.reserve(trace_.tensors.size());
    if (!Node(state, 0) || next_ != trace_.steps.size() || !StayedApart()) return false;
    out_->json.append(trace_.json, taken_);
    out_->bytes = trace_.bytes;
    return true;
  }

 private:
  bool Node(nb::handle value, int depth) {
    if (next_ == trace_.steps.size()) return false;
    const Step& step = trace_.steps[next_++];
    PyObject* const p = value.ptr();
    switch (step.kind) {
      case Kind::kText:
      case Kind::kOpening:
        return Text(step, value, depth);
      case Kind::kClosing:
        return false;
      case Kind::kNumpy:
        return arrays_->IsArray(value) && Array(step, value);
      case Kind::kTorch:
        return torch_.IsTensor(value) && TorchTensor(step, value);
      case Kind::kDict:
        return PyDict_CheckExact(p) && Dict(step, value, depth);
      case Kind::kOrderedDict:
        return value.type().is(ordered_dict_) && OrderedDict(step, value, depth);
      case Kind::kList:
        return PyList_CheckExact(p) && Sequence(step, value, depth);
      case Kind::kTuple:
        return PyTuple_CheckExact(p) && Sequence(step, value, depth);
    }
    return false;
  }

  bool Text(const Step& step, nb::handle value, int depth) {
    Replace(step);
    if (AppendPlainValue(value.ptr(), path_, &out_->json)) return step.kind == Kind::kText;
    PyObject* const p = value.ptr();
    if (arrays_->IsArray(value) || torch_.IsTensor(value) || PyDict_CheckExact(p) ||
        PyList_CheckExact(p) || PyTuple_CheckExact(p) || value.type().is(ordered_dict_)) {
      return false;
    }
    return Other(step, value, depth);
  }

  /// What StateEncoder asks Python for.
  bool Other(const Step& step, nb::handle value, int depth) {
    const nb::object answer = other_(value, path_, depth);
    const bool text = PyUnicode_Check(answer.ptr());
    if (asked_ || text != (step.kind == Kind::kText)) return false;
    if (text) {
      out_->json += Utf8(answer, path_);
      return true;
    }
    out_->json += nb::cast<std::string_view>(answer[0]);
    if (!Node(answer[1], depth + 1) || next_ == trace_.steps.size()) return false;
    const Step& behind = trace_.steps[next_++];
    if (behind.kind != Kind::kClosing) return false;
    Replace(behind);
    out_->json += nb::cast<std::string_view>(answer[2]);
    return true;
  }

  /// Takes what stands in front of a text, which is written anew.
  void Replace(const Step& step) {
    out_->json.append(trace_.json, taken_, step.first - taken_);
    taken_ = step.end;
  }

  bool Child(nb::handle key, nb::handle value, int depth) {
    if (!SameKey(key.ptr(), trace_.keys[next_key_].ptr())) return false;
    ++next_key_;
    const std::size_t length = path_.size();
    if (length > 0) path_ += '/';
    if (PyUnicode_CheckExact(key.ptr())) {
      path_ += Utf8(key, path_);
    } else {
      path_ += nb::cast<std::string_view>(nb::str(key));
    }
    const bool same = Node(value, depth + 1);
    path_.resize(length);
    return same;
  }

  bool Dict(const Step& step, nb::handle value, int depth) {
    const auto count = static_cast<Py_ssize_t>(step.first);
    Py_ssize_t at = 0;
    PyObject* key = nullptr;
    PyObject* item = nullptr;
    Py_ssize_t met = 0;
    while (PyDict_Size(value.ptr()) == count && PyDict_Next(value.ptr(), &at, &key, &item) != 0) {
      // Whoever is asked for a value may change the dict.
      const nb::object keep_key = nb::borrow(key);
      const nb::object keep_item = nb::borrow(item);
      if (met++ == count || !Child(keep_key, keep_item, depth)) return false;
    }
    return met == count && PyDict_Size(value.ptr()) == count;
  }

  bool OrderedDict(const Step& step, nb::handle value, int depth) {
    const nb::object items = nb::steal(PyMapping_Items(value.ptr()));
    if (!items.is_valid()) throw nb::python_error();
    const Py_ssize_t count = PyList_GET_SIZE(items.ptr());
    if (count != static_cast<Py_ssize_t>(step.first)) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const pair = PyList_GET_ITEM(items.ptr(), i);
      if (!Child(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), depth)) return false;
    }
    return true;
  }

  bool Sequence(const Step& step, nb::handle value, int depth) {
    const auto count = static_cast<Py_ssize_t>(step.first);
    const std::size_t length = path_.size();
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (PySequence_Size(value.ptr()) != count) return false;
      const nb::object item = nb::steal(PySequence_GetItem(value.ptr(), i));
      if (!item.is_valid()) throw nb::python_error();
      if (length > 0) path_ += '/';
      path_ += std::to_string(i);
      const bool same = Node(item, depth + 1);
      path_.resize(length);
      if (!same) return false;
    }
    return PySequence_Size(value.ptr()) == count;
  }

  bool Array(const Step& step, nb::handle value) {
    PlainArray array;
    if (!arrays_->Describe(value, &array)) return false;
    return SameTensor(step, array.dtype, array.shape, array.data, value);
  }

  bool TorchTensor(const Step& step, nb::handle value) {
    PlainTensor tensor;
    if (!torch_.Describe(value, &tensor)) return false;
    return tensor.requires_grad == step.requires_grad && tensor.parameter == step.parameter &&
           SameTensor(step, tensor.dtype, tensor.shape, tensor.data, tensor.keep);
  }

  template <typename Shape>
  bool SameTensor(const Step& step, DType dtype, const Shape& shape, void* data, nb::handle keep) {
    const Tensor& known = trace_.tensors[step.first];
    if (known.dtype != dtype ||
        !std::equal(shape.begin(), shape.end(), known.shape.begin(), known.shape.end(),
                    [](auto a, auto b) { return static_cast<std::uint64_t>(a) == b; })) {
      return false;
    }
    if (step.tied) return out_->tensors[step.first].data == data;
    if (out_->tensors.size() != step.first) return false;
    moved_ = moved_ || known.data != data;
    out_->tensors.push_back(known);
    out_->tensors.back().data = data;
    out_->keep.append(keep);
    return true;
  }

  /// Arrays that were apart may be tied now, or the other way round, only when one of them moved.
  bool StayedApart() const {
    if (!moved_) return true;
    std::vector<const void*> places;
    for (const Tensor& tensor : out_->tensors) {
      const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
      if (bytes.ok() && *bytes > 0) places.push_back(tensor.data);
    }
    std::sort(places.begin(), places.end());
    return std::adjacent_find(places.begin(), places.end()) == places.end();
  }

  const StateTrace& trace_;
  const nb::callable& other_;
  const TorchTensors& torch_;
  const bool& asked_;
  const nb::object ordered_dict_;
  NumpyArrays* const arrays_;  // of the process
  KnownState::Found* const out_;
  std::size_t next_ = 0;      // step
  std::size_t next_key_ = 0;  // of the trace's
  std::size_t taken_ = 0;     // of the trace's JSON
  bool moved_ = false;
  std::string path_;
};

}  // namespace

bool KnownState::Describe(nb::handle state, const StateLayout& layout, const nb::callable& other,
                          const TorchTensors& torch, const bool& asked, Found* out) {
  if (trace_ == nullptr) return false;
  std::unique_ptr<StateTrace> trace = std::move(trace_);  // for good, should it not fit
  if (trace->layout != layout || !Retrace(*trace, other, torch, asked, out).Run(state)) {
    ++strangers_;
    return false;
  }
  strangers_ = 0;
  for (std::size_t i = 0; i < out->tensors.size(); ++i) {
    trace->tensors[i].data = out->tensors[i].data;
  }
  trace_ = std::move(trace);
  return true;
}

void DefineKnownState(nb::module_& module) {
  nb::class_<KnownState>(module, "KnownState").def(nb::init<>());
}

}  // namespace cairn::python
