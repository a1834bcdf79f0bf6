#include "src/plain_value.h"

#include <nanobind/stl/string_view.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "format/json.h"
#include "src/errors.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr long long kSafeInteger = 1LL << 53;

void AppendInteger(PyObject* value, std::string* json) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow == 0 && -kSafeInteger <= number && number <= kSafeInteger) {
    *json += std::to_string(number);
    return;
  }
  const nb::object hex = nb::steal(PyNumber_ToBase(value, 16));
  if (!hex.is_valid()) throw nb::python_error();
  *json += R"({"int":")";
  *json += nb::cast<std::string_view>(hex);
  *json += "\"}";
}

void AppendFloat(double value, std::string* json) {
  if (std::isfinite(value)) {  // the fewest digits that read back to the same bits
    const std::unique_ptr<char, void (*)(void*)> text(
        PyOS_double_to_string(value, 'r', 0, Py_DTSF_ADD_DOT_0, nullptr), PyMem_Free);
    if (text == nullptr) throw nb::python_error();
    *json += text.get();
    return;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(value)));
  *json += R"({"float":")";
  *json += digits;
  *json += "\"}";
}

}  // namespace

std::string PlaceName(std::string_view path) {
  return path.empty() ? "the state" : std::string(path);
}

std::string_view Utf8(nb::handle text, std::string_view path) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    Raise(InvalidArgumentError(PlaceName(path) +
                               ": the text has lone surrogates and is no valid unicode"));
  }
  return {bytes, static_cast<std::size_t>(size)};
}

bool AppendPlainValue(PyObject* value, std::string_view path, std::string* json) {
  if (value == Py_None) {
    *json += "null";
  } else if (value == Py_True) {
    *json += "true";
  } else if (value == Py_False) {
    *json += "false";
  } else if (PyUnicode_CheckExact(value)) {
    AppendJsonString(Utf8(value, path), json);
  } else if (PyLong_CheckExact(value)) {
    AppendInteger(value, json);
  } else if (PyFloat_CheckExact(value)) {
    AppendFloat(PyFloat_AS_DOUBLE(value), json);
  } else {
    return false;
  }
  return true;
}

}  // namespace cairn::python
