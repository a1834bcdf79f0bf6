#include "src/waiting.h"

#include <nanobind/nanobind.h>

#include <thread>

#include "base/thread_annotations.h"
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

void WaitInterruptibly(const std::function<bool(std::chrono::nanoseconds)>& done) {
  for (;;) {
    bool is_done = false;
    {
      const WithoutGil released;
      is_done = done(kBetweenLooks);
    }
    if (is_done) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void WaitUntilDone(const SaveHandle& handle) {
  WaitInterruptibly([&](std::chrono::nanoseconds patience) { return handle.WaitFor(patience); });
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

struct Aside::State {
  Mutex mu;
  CondVar changed;
  bool over GUARDED_BY(mu) = false;
};

std::shared_ptr<Aside> Aside::Begin(std::function<void()> call) {
  auto state = std::make_shared<State>();  // shared with the thread
  std::thread([state, call = std::move(call)]() mutable {
    call();
    call = nullptr;  // what it holds may be the last of it, and is gone when the call is over
    MutexLock lock(&state->mu);
    state->over = true;
    state->changed.NotifyAll();
  }).detach();
  return std::shared_ptr<Aside>(new Aside(std::move(state)));
}

bool Aside::EndsWithin(std::chrono::nanoseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  MutexLock lock(&state_->mu);
  while (!state_->over) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    state_->changed.WaitFor(&state_->mu, left);
  }
  return true;
}

}  // namespace cairn::python
