#pragma once

#include <nanobind/nanobind.h>

namespace cairn::python {

/// A member of a dict of options; the fallback where it is not there, or None. Whoever asks for
/// strings or vectors includes their nanobind/stl header.
template <typename T>
T Option(const nanobind::dict& given, const char* name, T fallback) {
  if (!given.contains(name) || given[name].is_none()) return fallback;
  return nanobind::cast<T>(given[name]);
}

}  // namespace cairn::python
