#pragma once

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

namespace cairn::python {

/// Raises the Python exception that belongs to a status: the one place where statuses become
/// exceptions (the classes are in cairn/errors.py). `mismatch` goes with Reason::kMismatch.
[[noreturn]] void Raise(const Status& status, const MismatchReport& mismatch = {});

inline void RaiseIfError(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T ValueOrRaise(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

}  // namespace cairn::python
