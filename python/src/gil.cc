#include "src/gil.h"

#include <unistd.h>

namespace cairn::python {
namespace {

/// Takes the lock, or never returns.
template <typename Fn>
void Take(Fn take) noexcept {
  try {
    take();
  } catch (...) {
    // The thread is being ended. Whoever left this block alive would abort.
    for (;;) pause();
  }
}

}  // namespace

WithoutGil::~WithoutGil() {
  Take([this] { PyEval_RestoreThread(thread_); });
}

WithGil::WithGil() {
  Take([this] { state_ = PyGILState_Ensure(); });
}

}  // namespace cairn::python
