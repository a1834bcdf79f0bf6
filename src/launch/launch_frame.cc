#include "launch/launch_frame.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/ids.h"
#include "base/status_macros.h"
#include "launch/launch_spec.h"
#include "launch/longest_wait.h"

namespace cairn {

LaunchFrame::LaunchFrame(Options options, OwnedFd lock)
    : frame_(std::move(options)), lock_(std::move(lock)), queue_(frame_.slots) {}

LaunchFrame::~LaunchFrame() = default;

Status LaunchFrame::CheckSite(const LaunchSpec&) const { return Status::Ok(); }
void LaunchFrame::OnStop(Launch*, Nanos) {}
void LaunchFrame::OnLeave(Launch*, Nanos) {}
void LaunchFrame::Refresh(Launch*) {}
std::string LaunchFrame::ReasonOf(const Launch&) const { return "is being started"; }

Status LaunchFrame::Begin() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(frame_.directory, error)) {
    const std::string id = entry.path().filename().string();
    if (id.starts_with(kRemovedPrefix)) {
      std::error_code left_to_the_next_opening;
      std::filesystem::remove_all(entry.path(), left_to_the_next_opening);
      continue;
    }
    if (!entry.is_directory(error) || !IsLaunchId(id)) continue;  // not ours
    RETURN_IF_ERROR(Adopt(id).WithContext("launch " + id));
  }
  if (error) return UnavailableError("list " + frame_.directory + ": " + error.message());
  RETURN_IF_ERROR(AfterAdopting());
  worker_ = std::jthread([this] { Work(); });
  return Status::Ok();
}

Status LaunchFrame::Submit(LaunchSpec spec) {
  RETURN_IF_ERROR(ValidateSpec(spec));
  RETURN_IF_ERROR(CheckSite(spec));
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  if (closing_) return FailedPreconditionError("the launcher is being closed");
  if (launches_.contains(spec.id)) return AlreadyExistsError("launch " + spec.id + " is known");
  if (spec.slots > frame_.slots) {
    return ResourceExhaustedError("launch " + spec.id + " wants " + std::to_string(spec.slots) +
                                  " slots, and there are " + std::to_string(frame_.slots));
  }
  std::unique_ptr<Launch> launch = NewLaunch(Path(spec.id));
  launch->info.id = spec.id;
  launch->info.slots = spec.slots;
  launch->info.priority = spec.priority;
  launch->info.submitted = clock()->WallNanos();
  launch->outlive_owner = spec.outlive_owner;
  queue_.Push(spec.id, spec.slots, spec.priority);
  const std::string id = spec.id;
  launch->spec = std::move(spec);
  launches_.emplace(id, std::move(launch));
  Wake();
  return Status::Ok();
}

Result<LaunchInfo> LaunchFrame::Get(std::string_view id) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(Launch * launch, Find(id));
  return Describe(launch);
}

Result<std::vector<LaunchInfo>> LaunchFrame::List() {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  std::vector<LaunchInfo> infos;
  for (const auto& [id, launch] : launches_) infos.push_back(Describe(launch.get()));
  return infos;
}

Status LaunchFrame::Signal(std::string_view id, int signal) {
  if (signal <= 0 || signal >= NSIG) {
    return InvalidArgumentError("there is no signal " + std::to_string(signal));
  }
  if (signal == SIGKILL) return Kill(id);
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(Launch * launch, Find(id));
  // Whether it runs already is its shim's to know: what comes before that reaches nobody.
  if (!launch->lives()) return Status::Ok();
  return Tell(launch, {.kind = ControlCommand::Kind::kSignal, .signal = signal, .grace = 0});
}

Status LaunchFrame::Stop(std::string_view id, Nanos grace) {
  if (grace.count() < 0) return InvalidArgumentError("grace must not be negative");
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(Launch * launch, Find(id));
  return StopOne(launch, grace);
}

Result<LaunchInfo> LaunchFrame::Wait(std::string_view id, Nanos timeout) {
  MutexLock lock(&mu_);
  const Nanos deadline = clock()->Now() + std::min(timeout, kLongestLaunchWait);
  for (;;) {
    RETURN_IF_ERROR(CheckOpen());
    ASSIGN_OR_RETURN(Launch * launch, Find(id));
    if (launch->ended()) return Describe(launch);
    const Nanos left = deadline - clock()->Now();
    if (left.count() <= 0) {
      return DeadlineExceededError("launch " + std::string(id) + " has not ended");
    }
    changed_.WaitFor(&mu_, left);
  }
}

Result<LaunchLogPage> LaunchFrame::ReadLog(std::string_view id, std::uint64_t offset,
                                           std::uint64_t max_bytes) {
  bool ended = false;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckOpen());
    ASSIGN_OR_RETURN(Launch * launch, Find(id));
    ended = launch->ended();
  }
  return LaunchDirectory(Path(id)).ReadLog(offset, max_bytes, ended);
}

Status LaunchFrame::Forget(std::string_view id) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckOpen());
  const auto found = launches_.find(id);
  if (found == launches_.end()) return Status::Ok();
  if (!found->second->ended()) {
    return FailedPreconditionError("launch " + std::string(id) + " lives: stop it first");
  }
  RETURN_IF_ERROR(found->second->directory.Remove());
  launches_.erase(found);
  return Status::Ok();
}

Status LaunchFrame::Close(CloseMode mode, Nanos grace) {
  Status outcome;
  {
    MutexLock lock(&mu_);
    if (closed_) return Status::Ok();
    closing_ = true;
    if (mode == CloseMode::kStopAll) {
      outcome = StopAll(grace);
    } else {
      for (const auto& [id, launch] : launches_) {
        if (launch->lives()) OnLeave(launch.get(), grace);
      }
    }
    closed_ = true;
    changed_.NotifyAll();
    Wake();
  }
  if (worker_.joinable()) worker_.join();
  MutexLock lock(&mu_);
  launches_.clear();  // with their descriptors: shims see that the owner is gone
  lock_.Reset();
  return outcome;
}

std::string LaunchFrame::Path(std::string_view id) const {
  return frame_.directory + "/" + std::string(id);
}

Status LaunchFrame::CheckOpen() const {
  return closed_ ? FailedPreconditionError("the launcher is closed") : Status::Ok();
}

Result<LaunchFrame::Launch*> LaunchFrame::Find(std::string_view id) {
  const auto found = launches_.find(id);
  if (found == launches_.end()) return NotFoundError("no launch is called " + std::string(id));
  return found->second.get();
}

LaunchInfo LaunchFrame::Describe(Launch* launch) {
  Refresh(launch);
  LaunchInfo info = launch->info;
  if (info.state == LaunchState::kQueued) {
    info.reason = launch->taken ? ReasonOf(*launch) : queue_.Reason(info.id);
  }
  return info;
}

LaunchFrame::Launch* LaunchFrame::TakeNext() {
  while (!closed_) {
    const auto next = queue_.Pop();
    if (!next.has_value()) break;
    const auto found = launches_.find(next->id);
    if (found == launches_.end()) continue;
    Launch* launch = found->second.get();
    launch->taken = true;
    launch->slots = next->slots;
    launch->info.slot_ids = JoinSlots(next->slots);
    launch->key = IdSource::System()->NewUuid();
    return launch;
  }
  return nullptr;
}

LaunchRecord LaunchFrame::RecordOf(const LaunchSpec& spec, const Launch& launch) {
  LaunchRecord record;
  record.id = spec.id;
  record.key = launch.key;
  record.argv = spec.argv;
  record.cwd = spec.cwd;
  record.processes = spec.processes;
  record.slots = JoinSlots(launch.slots);
  record.priority = spec.priority;
  record.limits = spec.limits;
  record.grace = spec.grace.count();
  record.outlive_owner = spec.outlive_owner;
  record.submitted = launch.info.submitted;
  return record;
}

void LaunchFrame::Fill(Launch* launch, const LaunchRecord& record) {
  launch->key = record.key;
  launch->outlive_owner = record.outlive_owner;
  launch->info.submitted = record.submitted;
  launch->info.priority = static_cast<int>(record.priority);
  launch->slots = ParseSlots(record.slots);
  launch->info.slots = static_cast<int>(launch->slots.size());
}

bool LaunchFrame::NoteRunning(Launch* launch) {
  const auto running = launch->directory.ReadRunning();
  if (!running.ok()) return false;
  launch->info.pids = running->pids;
  launch->info.started = running->time;
  return true;
}

LaunchFrame::Launch* LaunchFrame::Put(std::unique_ptr<Launch> launch) {
  launch->taken = true;
  if (launch->ended()) {
    launch->slots.clear();
  } else {
    launch->info.slot_ids = JoinSlots(launch->slots);
    queue_.Take(launch->slots);
  }
  const std::string id = launch->info.id;
  return launches_.emplace(id, std::move(launch)).first->second.get();
}

void LaunchFrame::Running(Launch* launch) {
  launch->info.state = LaunchState::kRunning;
  told_.push_back(launch->info);
  changed_.NotifyAll();
}

void LaunchFrame::End(Launch* launch, LaunchExit exit) {
  if (exit.time == 0) exit.time = clock()->WallNanos();
  queue_.Release(launch->slots);
  launch->slots.clear();
  launch->info.state = LaunchState::kEnded;
  launch->info.slot_ids.clear();
  launch->info.exit = std::move(exit);
  launch->unsent.clear();
  OnEnd(launch);
  told_.push_back(launch->info);
  changed_.NotifyAll();
  Wake();  // its slots are free
}

void LaunchFrame::EndUnstarted(Launch* launch, bool stopped, std::string message) {
  LaunchExit exit{.kind = ExitKind::kNotStarted,
                  .stopped = stopped,
                  .message = std::move(message),
                  .time = clock()->WallNanos()};
  if (launch->taken) {
    launch->directory.Publish(exit).IgnoreError("the directory may be what could not be made");
  }
  End(launch, std::move(exit));
}

void LaunchFrame::Drop(const std::string& id) {
  const auto found = launches_.find(id);
  if (found == launches_.end()) return;
  queue_.Release(found->second->slots);
  launches_.erase(found);
}

Status LaunchFrame::Tell(Launch* launch, const ControlCommand& command) {
  const std::string line = EncodeCommand(command);
  launch->unsent += line;
  const Status sent = Send(launch);
  // Whoever is told that it failed says it again: not twice.
  if (!sent.ok() && launch->unsent.ends_with(line)) {
    launch->unsent.resize(launch->unsent.size() - line.size());
  }
  return sent;
}

Status LaunchFrame::StopOne(Launch* launch, Nanos grace) {
  if (launch->ended()) return Status::Ok();
  if (!launch->taken) {
    queue_.Remove(launch->info.id);
    EndUnstarted(launch, /*stopped=*/true, "stopped before it was started");
    return Status::Ok();
  }
  RETURN_IF_ERROR(
      Tell(launch, {.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = grace.count()}));
  OnStop(launch, grace);
  return Status::Ok();
}

Status LaunchFrame::StopAll(Nanos grace) {
  Status outcome;  // one that cannot be told keeps no other from being told
  for (const auto& [id, launch] : launches_) {
    const Status told = StopOne(launch.get(), grace);
    if (outcome.ok()) outcome = told.WithContext("launch " + id);
  }
  const Nanos deadline = clock()->Now() + std::min(grace, kLongestLaunchWait) + frame_.stop_slack;
  for (;;) {
    std::string names;
    for (const auto& [id, launch] : launches_) {
      if (!launch->ended()) names += " " + id;
    }
    if (names.empty()) return outcome;
    const Nanos left = deadline - clock()->Now();
    if (left.count() <= 0) {
      return outcome.ok() ? DeadlineExceededError("launches that do not end:" + names) : outcome;
    }
    changed_.WaitFor(&mu_, left);
  }
}

void LaunchFrame::TellListener() {
  std::vector<LaunchInfo> infos;
  {
    MutexLock lock(&mu_);
    infos.swap(told_);
  }
  if (!frame_.listener) return;
  for (const LaunchInfo& info : infos) frame_.listener(info);
}

Result<OwnedFd> LockLaunches(std::string* directory, Clock* clock) {
  std::error_code error;
  *directory = std::filesystem::absolute(*directory, error).string();
  std::filesystem::create_directories(*directory, error);
  if (error) return UnavailableError("make " + *directory + ": " + error.message());
  if (chmod(directory->c_str(), 0700) != 0) return ErrnoStatus("chmod " + *directory, errno);
  auto lock = LockFile(*directory + "/.lock", clock, kLockPatience);
  if (!lock.ok()) {
    return lock.status().WithContext("launches in " + *directory + " belong to another launcher");
  }
  return lock;
}

}  // namespace cairn
