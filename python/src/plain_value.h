#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace cairn::python {

/// Appends the node (docs/format/state.md) of None, a bool, a str, an int or a float; false: the
/// value is none of these, and nothing was appended. `path`: where it stands in the state. Raises
/// cairn.Invalid, naming the place, for text that is no valid unicode.
bool AppendPlainValue(PyObject* value, std::string_view path, std::string* json);

/// The text's UTF-8, which lives as long as the text; cairn.Invalid when it has lone surrogates.
std::string_view Utf8(nanobind::handle text, std::string_view path);

/// A place in a state, for a message.
std::string PlaceName(std::string_view path);

}  // namespace cairn::python
