#include "src/trainer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "checkpoint/manager.h"
#include "src/errors.h"
#include "src/gil.h"
#include "train/stop_agreement.h"
#include "train/train_checkpoints.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

Environment EnvironmentOf(const std::string& directory) {
  return ValueOrRaise([&] {
    const WithoutGil released;
    return EnvironmentAt(directory, {});
  }());
}

bool LastStep(StopAgreement& agreement, std::int64_t global_step, double seconds_per_step) {
  return ValueOrRaise([&] {
    const WithoutGil released;
    return agreement.LastStep(global_step, seconds_per_step);
  }());
}

}  // namespace

void DefineTrainer(nb::module_& module) {
  nb::class_<StopAgreement>(module, "StopAgreement")
      .def(
          "__init__",
          [](StopAgreement* self, const std::string& directory, std::uint64_t generation,
             bool chooses, double patience) {
            new (self) StopAgreement(
                EnvironmentOf(directory), generation, chooses,
                std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(patience, 3e9) * 1e9)));
          },
          nb::kw_only(), nb::arg("directory"), nb::arg("generation"), nb::arg("chooses"),
          nb::arg("patience"))
      .def("last_step", &LastStep, nb::arg("global_step"), nb::arg("seconds_per_step"));
  module.def(
      "refuse_unmerged_parts",
      [](const std::string& directory) {
        const Environment env = EnvironmentOf(directory);
        RaiseIfError([&] {
          const WithoutGil released;
          return RefuseUnmergedParts(env);
        }());
      },
      nb::arg("directory"));
}

}  // namespace cairn::python
