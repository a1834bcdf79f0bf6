#include "src/waiting.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/thread_annotations.h"
#include "src/gil.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

std::atomic<int> asides_running{0};
std::atomic<pid_t> asides_of{0};  // a fork has none of the threads

/// A call that was left may still run when the process ends. What it uses must not be destroyed
/// under it, and to wait for it is what Ctrl-C was to spare: then the process ends without its last
/// rites, as it may at any moment. Python has ended in order by then.
void EndBeforeAsides(int status, void*) {
  if (asides_running == 0 || asides_of != getpid()) return;
  std::fflush(nullptr);
  _exit(status);
}

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
  if (asides_of.exchange(getpid()) != getpid()) asides_running = 0;
  ++asides_running;
  std::thread([state, call = std::move(call)]() mutable {
    call();
    call = nullptr;  // what it holds may be the last of it, and is gone when the call is over
    {
      MutexLock lock(&state->mu);
      state->over = true;
      state->changed.NotifyAll();
    }
    --asides_running;
    // Nobody can wait for it: a call that Ctrl-C left may hang for as long as a server does. All
    // that it uses it holds itself, and EndBeforeAsides looks after the end of the process.
  }).detach();
  return std::shared_ptr<Aside>(new Aside(std::move(state)));
}

void Aside::Wait() {
  try {
    WaitInterruptibly([this](std::chrono::nanoseconds patience) { return EndsWithin(patience); });
  } catch (const nb::python_error&) {
    // Now: what the call uses was made before, and is destroyed after this was called.
    on_exit(&EndBeforeAsides, nullptr);
    throw;
  }
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
