#include "cli/doctor_job.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <system_error>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status_macros.h"
#include "cli/output.h"

namespace cairn::cli {
namespace {

constexpr auto kPatience = std::chrono::minutes(2);

/// A directory below the one that is tried; gone afterwards.
class Scratch {
 public:
  explicit Scratch(const std::string& parent)
      : path_(parent + "/.cairn-doctor-" + IdSource::System()->NewUuid().substr(0, 8)) {}
  ~Scratch() {
    std::error_code left_behind;
    std::filesystem::remove_all(path_, left_behind);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

/// Until it has ended, the patience is over, or somebody has pressed Ctrl-C.
Result<LaunchInfo> WaitForEnd(Launcher* launcher, const std::string& id, Clock::Duration begin,
                              Console* console) {
  Result<LaunchInfo> info = launcher->Get(id);
  while (info.ok() && info->state != LaunchState::kEnded) {
    if (Console::interrupted()) break;
    if (console->clock()->Now() > begin + kPatience) break;
    info = launcher->Wait(id, std::chrono::milliseconds(100));
    if (info.status().Is(Code::kDeadlineExceeded)) info = launcher->Get(id);
  }
  return info;
}

}  // namespace

Status TryDoctorJob(const DoctorJob& job, Console* console, std::string* text,
                    Value::Object* found) {
  const Scratch scratch(job.directory);
  ASSIGN_OR_RETURN(const auto launcher, job.open(scratch.path()));
  const auto begin = console->clock()->Now();
  RETURN_IF_ERROR(launcher->Submit(job.spec));
  ASSIGN_OR_RETURN(const LaunchInfo info, WaitForEnd(launcher.get(), job.spec.id, begin, console));
  if (info.state != LaunchState::kEnded) {
    launcher->Close(Launcher::CloseMode::kStopAll, std::chrono::seconds(0))
        .IgnoreError("it is told below");
    return DeadlineExceededError(job.late + " did not run within two minutes: " +
                                 Printable(info.reason) + "; " + job.advice);
  }
  if (!info.exit->succeeded()) {
    return FailedPreconditionError(
        "a job did not run as it should: " + Printable(info.exit->message) + "; do the nodes see " +
        Printable(job.directory) + " and this program under the same paths?");
  }
  const double seconds = std::chrono::duration<double>(console->clock()->Now() - begin).count();
  ASSIGN_OR_RETURN(const LaunchLogPage page, launcher->ReadLog(job.spec.id, 0));
  std::string node;
  for (const LaunchLogLine& line : page.lines) {
    if (line.rank == 0) node = line.text;
  }
  *text += fmt::format(
      "a job          {:.1f} s      from its submission to its end, on {}\n"
      "directory      shared     its output was seen here\n",
      seconds, Printable(node));
  (*found)["job"] =
      Value::Object{{job.node_as, node}, {"seconds", seconds}, {"sees_directory", true}};
  return Status::Ok();
}

}  // namespace cairn::cli
