#include "src/waiting.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

}  // namespace

void Interrupts::Poll() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < kBetweenLooks || interrupted()) return;
  last_ = now;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) interrupted_ = true;  // the error stays set until Rethrow
}

void Interrupts::Rethrow() {
  if (interrupted()) throw nb::python_error();
}

void WaitUntilDone(const SaveHandle& handle) {
  for (;;) {
    bool done = false;
    {
      const nb::gil_scoped_release released;
      done = handle.WaitFor(kBetweenLooks);
    }
    if (done) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void WaitUntilCopied(const SaveHandle& handle) {
  bool interrupted = false;
  for (;;) {
    bool copied = false;
    {
      const nb::gil_scoped_release released;
      copied = handle.GuardFor(kBetweenLooks);
    }
    if (copied) break;
    // An error indicator that is set must not meet the interpreter before it is thrown.
    if (!interrupted) interrupted = PyErr_CheckSignals() != 0;
  }
  if (interrupted) throw nb::python_error();
}

}  // namespace cairn::python
