#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include <cairn/checkpoint_manager.h>

namespace cairn::python {

/// Opens a manager whose protocol steps are counted, once watch_steps was called.
Result<std::unique_ptr<CheckpointManager>> OpenWatched(ManagerOptions options);

/// watch_steps(), steps_seen(), kill_at(step, count): what cairn.testing is made of.
void DefineSteps(nanobind::module_& module);

}  // namespace cairn::python
