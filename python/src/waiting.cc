#include "src/waiting.h"

#include <nanobind/nanobind.h>

#include "src/gil.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

}  // namespace

void Interrupts::Poll() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < kBetweenLooks || interrupted()) return;
  last_ = now;
  const WithGil gil;
  if (PyErr_CheckSignals() == 0) return;
  raised_.emplace();  // takes the error away: Python code may still run before Rethrow
  interrupted_ = true;
}

void Interrupts::Rethrow() {
  if (raised_) throw nb::python_error(*raised_);
}

void WaitUntilDone(const SaveHandle& handle) {
  for (;;) {
    bool done = false;
    {
      const WithoutGil released;
      done = handle.WaitFor(kBetweenLooks);
    }
    if (done) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void WaitUntilCopied(const SaveHandle& handle) {
  std::optional<nb::python_error> raised;
  for (;;) {
    bool copied = false;
    {
      const WithoutGil released;
      copied = handle.GuardFor(kBetweenLooks);
    }
    if (copied) break;
    if (PyErr_CheckSignals() != 0) raised.emplace();
  }
  if (raised) throw nb::python_error(*raised);
}

}  // namespace cairn::python
