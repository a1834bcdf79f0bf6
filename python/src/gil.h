#pragma once

#include <Python.h>

namespace cairn::python {

// Python ends a thread that wants its lock after the interpreter has ended (a daemon thread in the
// middle of a call) by unwinding its stack, which C++ answers by aborting the whole process. With
// these such a thread waits for the end of the process instead.

/// Lets other Python threads run for as long as it lives.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

/// Holds Python's lock, on any thread, for as long as it lives.
class WithGil {
 public:
  WithGil();
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace cairn::python
