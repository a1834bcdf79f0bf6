#include "tests/crash/sync_point.h"

namespace cairn::crash {
namespace {

thread_local std::string current_step;

}  // namespace

void SetCurrentStep(std::string_view step) { current_step = step; }

std::string_view CurrentStep() { return current_step; }

SyncPoint PointOf(const SimSync& sync) {
  SyncPoint point{.sync = sync, .step = ""};
  std::string& path = point.sync.path;
  path = NormalizeSimPath(sync.path);
  // An increment's directory is like a full one's: the same steps of the engine write it.
  constexpr std::string_view kIncrement = "/increment_#";
  if (const auto at = path.find(kIncrement); at != std::string::npos) {
    path.replace(at, kIncrement.size(), "/checkpoint_#");
  }
  // checkpoint_000010-2 is like checkpoint_000010.
  constexpr std::string_view kCopy = "checkpoint_#-#";
  if (const auto at = path.find(kCopy); at != std::string::npos) {
    path.erase(at + kCopy.size() - 2, 2);
  }
  // Records are told apart by the step: all of them pass through a temporary name.
  if (sync.why.starts_with("record")) point.step = current_step;
  return point;
}

std::string DescribeSync(const SyncPoint& point) {
  constexpr std::string_view kRoot = "/data/run";
  std::string path = point.sync.path;
  if (path.starts_with(kRoot)) path = "." + path.substr(kRoot.size());
  return "no " + std::string(point.sync.kind == SimSync::Kind::kFile ? "fdatasync" : "fsync") +
         " of " + path + " (" + point.sync.why +
         (point.step.empty() ? "" : ", step \"" + point.step + "\"") + ")";
}

}  // namespace cairn::crash
