#include "src/convert.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "src/errors.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr int kMaxDepth = 100;

[[noreturn]] void RaiseInvalid(const std::string& where, const std::string& what) {
  Raise(InvalidArgumentError(where + ": " + what));
}

std::string TypeName(nb::handle object) { return nb::type_name(object.type()).c_str(); }

Value ToInteger(nb::handle object, const std::string& where) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow == 0) {
    if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    return Value(static_cast<std::int64_t>(number));
  }
  const unsigned long long large = PyLong_AsUnsignedLongLong(object.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    RaiseInvalid(where, "the integer has more than 64 bits; put it into the state, or pass a str");
  }
  return Value(static_cast<std::uint64_t>(large));
}

std::string ToText(nb::handle object, const std::string& where) {
  Py_ssize_t bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &bytes);
  if (text == nullptr) {
    PyErr_Clear();
    RaiseInvalid(where, "the text has half of a surrogate pair, which cannot be stored");
  }
  return {text, static_cast<std::size_t>(bytes)};
}

Value ToValueAt(nb::handle object, const std::string& where, int depth) {
  if (depth > kMaxDepth) RaiseInvalid(where, "nested too deeply");
  PyObject* const p = object.ptr();
  if (object.is_none()) return Value();
  if (PyBool_Check(p)) return Value(p == Py_True);
  if (PyLong_Check(p)) return ToInteger(object, where);
  if (PyFloat_Check(p)) return Value(PyFloat_AS_DOUBLE(p));
  if (PyUnicode_Check(p)) return Value(ToText(object, where));
  if (PyDict_Check(p)) {
    Value::Object members;
    for (const auto& [key, item] : nb::borrow<nb::dict>(object)) {
      if (!PyUnicode_Check(key.ptr())) {
        RaiseInvalid(where, "keys must be str, not " + TypeName(key));
      }
      std::string name = ToText(key, where);
      Value member = ToValueAt(item, where + "/" + name, depth + 1);
      members.emplace(std::move(name), std::move(member));
    }
    return Value(std::move(members));
  }
  if (PyList_Check(p) || PyTuple_Check(p)) {
    Value::List list;
    for (const nb::handle item : object) {
      list.push_back(ToValueAt(item, where + "/" + std::to_string(list.size()), depth + 1));
    }
    return Value(std::move(list));
  }
  RaiseInvalid(where, "a " + TypeName(object) +
                          " cannot be stored here; numbers, str, bool, None, lists and dicts can");
}

TensorGroup ToGroup(nb::handle name) {
  const auto text = nb::cast<std::string>(name);
  if (text == "model") return TensorGroup::kModel;
  if (text == "state") return TensorGroup::kState;
  return TensorGroup::kTable;
}

std::string ToName(nb::handle name) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  return {text, static_cast<std::size_t>(size)};
}

// Fills the members that both kinds of tensors have.
template <typename AnyTensor>
AnyTensor FromTuple(nb::handle tuple) {
  if (!PyTuple_Check(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != 8) {
    Raise(InternalError("a tensor is not described by a tuple of 8"));
  }
  const auto item = [&](Py_ssize_t i) { return nb::handle(PyTuple_GET_ITEM(tuple.ptr(), i)); };
  AnyTensor tensor;
  tensor.name = ToName(item(0));
  tensor.dtype = ToDType(item(1));
  tensor.shape = ToDims(item(2));
  tensor.data = PyLong_AsVoidPtr(item(3).ptr());
  if (tensor.data == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!item(4).is_none()) tensor.shard = ShardSpec{ToDims(item(4)), ToDims(item(5))};
  tensor.group = ToGroup(item(7));
  return tensor;
}

}  // namespace

std::vector<std::uint64_t> ToDims(nb::handle tuple) {
  std::vector<std::uint64_t> dims;
  const Py_ssize_t count = PyTuple_Size(tuple.ptr());
  if (count < 0) throw nb::python_error();
  dims.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const unsigned long long dim = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
    if (dim == ~0ULL && PyErr_Occurred() != nullptr) throw nb::python_error();
    dims.push_back(dim);
  }
  return dims;
}

DType ToDType(nb::handle name) {
  const char* text = PyUnicode_AsUTF8(name.ptr());
  if (text == nullptr) throw nb::python_error();
  const auto dtype = DTypeFromName(text);
  if (!dtype) RaiseInvalid(text, "not a dtype of safetensors");
  return *dtype;
}

Value ToValue(nb::handle object, const std::string& where) { return ToValueAt(object, where, 0); }

nb::object FromValue(const Value& value) {
  if (const bool* b = value.if_bool()) return nb::bool_(*b);
  if (const std::int64_t* i = value.if_int64()) return nb::int_(*i);
  if (const std::uint64_t* u = value.if_uint64()) return nb::int_(*u);
  if (const double* d = value.if_double()) return nb::float_(*d);
  if (const std::string* s = value.if_string()) return nb::str(s->data(), s->size());
  if (const Value::List* list = value.if_list()) {
    nb::list out;
    for (const Value& item : *list) out.append(FromValue(item));
    return out;
  }
  if (const Value::Object* members = value.if_object()) {
    nb::dict out;
    for (const auto& [name, member] : *members) {
      out[nb::str(name.data(), name.size())] = FromValue(member);
    }
    return out;
  }
  return nb::none();
}

Tensor ToTensor(nb::handle tuple) {
  Tensor tensor = FromTuple<Tensor>(tuple);
  tensor.replicated = nb::handle(PyTuple_GET_ITEM(tuple.ptr(), 6)).is(Py_True);
  return tensor;
}

std::vector<MutableTensor> ToMutableTensors(nb::handle list) {
  std::vector<MutableTensor> tensors;
  tensors.reserve(nb::len(list));
  for (const nb::handle item : list) tensors.push_back(FromTuple<MutableTensor>(item));
  return tensors;
}

nb::object FromInfo(const CheckpointInfo& info) {
  nb::dict out;
  out["id"] = info.id;
  out["step"] = info.step;
  out["kind"] = info.kind;
  out["path"] = info.path;
  out["bytes"] = info.bytes;
  out["metrics"] = FromValue(info.metrics);
  out["metadata"] = FromValue(info.metadata);
  out["counters"] = FromValue(info.counters);
  out["time"] = static_cast<double>(info.time) * 1e-9;
  out["parent"] = info.parent.empty() ? nb::object(nb::none()) : nb::cast(info.parent);
  out["base"] = info.base.empty() ? nb::object(nb::none()) : nb::cast(info.base);
  out["chain"] = info.chain.empty() ? nb::object(nb::none()) : nb::cast(info.chain);
  nb::list tables;
  for (const TableFacts& table : info.tables) {
    nb::dict facts;
    facts["name"] = table.name;
    facts["dim"] = table.dim;
    facts["dtype"] = std::string(DTypeName(table.dtype));
    facts["rows"] = table.rows;
    facts["deleted"] = table.deleted;
    tables.append(facts);
  }
  out["tables"] = tables;
  out["generation"] = info.generation;
  out["sequence"] = info.sequence;
  out["pinned"] = info.pinned;
  out["foreign"] = info.foreign;
  return out;
}

nb::object FromOwned(OwnedTensor tensor) {
  auto owner = std::make_unique<std::shared_ptr<std::byte>>(std::move(tensor.data));
  void* const data = owner->get();
  const nb::capsule capsule(owner.release(), [](void* p) noexcept {
    delete static_cast<std::shared_ptr<std::byte>*>(p);
  });
  const std::size_t shape[] = {static_cast<std::size_t>(tensor.bytes)};
  const nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> bytes(data, 1, shape, capsule);
  nb::list dims;
  for (const std::uint64_t dim : tensor.shape) dims.append(dim);
  const char* group = tensor.group == TensorGroup::kModel   ? "model"
                      : tensor.group == TensorGroup::kState ? "state"
                                                            : "table";
  return nb::make_tuple(group, tensor.name, std::string(DTypeName(tensor.dtype)), nb::tuple(dims),
                        nb::cast(bytes));
}

}  // namespace cairn::python
