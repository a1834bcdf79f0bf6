#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include <cairn/checkpoint_manager.h>

#include "src/convert.h"
#include "src/errors.h"
#include "src/manager.h"
#include "src/scope.h"
#include "src/steps.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

nb::object VerifyDirectory(const std::string& directory, bool deep) {
  std::optional<Result<VerifyReport>> result;
  {
    const nb::gil_scoped_release released;
    result.emplace(Verify(directory, deep));
  }
  const VerifyReport report = ValueOrRaise(*std::move(result));
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
  std::optional<Result<std::vector<TensorDifference>>> result;
  {
    const nb::gil_scoped_release released;
    result.emplace(Diff(a, b));
  }
  nb::list out;
  for (const TensorDifference& difference : ValueOrRaise(*std::move(result))) {
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
  DefineManager(module);
  DefineScope(module);
  DefineSteps(module);
  module.def("verify", &VerifyDirectory, nb::arg("directory"), nb::arg("deep"));
  module.def("diff", &DiffDirectories, nb::arg("a"), nb::arg("b"));
}
