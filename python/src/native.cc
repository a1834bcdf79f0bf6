#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include <cairn/checkpoint_manager.h>

#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/known_state.h"
#include "src/manager.h"
#include "src/row_tracked.h"
#include "src/scope.h"
#include "src/state_encoder.h"
#include "src/state_matcher.h"
#include "src/steps.h"
#include "src/store_files.h"
#include "src/table.h"
#include "src/trainer.h"
#include "src/trial.h"
#include "src/tune.h"
#include "src/tune_reports.h"
#include "src/tune_search.h"
#include "src/waiting.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

/// Runs long work without the GIL; Ctrl-C ends it.
template <typename Fn>
auto Interruptible(Fn work) {
  Interrupts interrupts;
  std::optional<decltype(work(Progress()))> result;
  {
    const WithoutGil released;
    result.emplace(work(Progress([&](std::uint64_t, std::uint64_t) {
      interrupts.Poll();
      return !interrupts.interrupted();
    })));
  }
  interrupts.Rethrow();
  return ValueOrRaise(*std::move(result));
}

nb::object VerifyDirectory(const std::string& directory, bool deep) {
  const VerifyReport report =
      Interruptible([&](const Progress& progress) { return Verify(directory, deep, progress); });
  nb::list checkpoints;
  for (const CheckpointInfo& info : report.checkpoints) checkpoints.append(FromInfo(info));
  nb::list problems;
  for (const VerifyProblem& problem : report.problems) {
    problems.append(nb::make_tuple(problem.checkpoint, problem.what));
  }
  nb::dict out;
  out["checkpoints"] = checkpoints;
  out["problems"] = problems;
  out["files"] = report.files;
  out["bytes"] = report.bytes;
  return out;
}

nb::object DiffDirectories(const std::string& a, const std::string& b) {
  const std::vector<TensorDifference> differences =
      Interruptible([&](const Progress& progress) { return Diff(a, b, progress); });
  nb::list out;
  for (const TensorDifference& difference : differences) {
    out.append(
        nb::make_tuple(difference.name, difference.what, difference.max_abs, difference.elements));
  }
  return out;
}

}  // namespace
}  // namespace cairn::python

NB_MODULE(_native, module) {
  using namespace cairn::python;  // NOLINT: the module's own names
  // What still lives when the interpreter ends belongs to the process.
  nb::set_leak_warnings(false);
  DefineKnownState(module);
  DefineStateEncoder(module);
  DefineStateMatcher(module);
  DefineManager(module);
  DefineScope(module);
  DefineSteps(module);
  DefineStoreFiles(module);
  DefineTrainer(module);
  DefineTrial(module);
  DefineTuneSearch(module);
  DefineTuneReports(module);
  DefineTune(module);
  DefineTable(module);
  DefineRowTracked(module);
  module.def("verify", &VerifyDirectory, nb::arg("directory"), nb::arg("deep"));
  module.def("diff", &DiffDirectories, nb::arg("a"), nb::arg("b"));
}
