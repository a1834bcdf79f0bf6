#pragma once

#include <functional>
#include <memory>
#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

#include "cli/console.h"
#include "launch/launcher.h"

namespace cairn::cli {

/// One job like a trial's, to see whether a cluster would run trials.
struct DoctorJob {
  std::string directory;  // that nodes should share with this machine
  /// A launcher that keeps its launches in `scratch`, below that directory.
  std::function<Result<std::unique_ptr<Launcher>>(const std::string& scratch)> open;
  LaunchSpec spec;      // says on which node it is
  std::string late;     // what it is called when it does not run
  std::string advice;   // what to do about that
  std::string node_as;  // what the node is called in JSON
};

/// Runs it, waits for its end, and adds to the text and, under "job", to `found` where it ran and
/// how long that took. Leaves nothing in the directory.
Status TryDoctorJob(const DoctorJob& job, Console* console, std::string* text,
                    Value::Object* found);

}  // namespace cairn::cli
