#include "launch/several_launchers.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "format/json.h"

namespace cairn {
namespace {

class SeveralLaunchers final : public Launcher {
 public:
  explicit SeveralLaunchers(std::vector<NamedLauncher> launchers) {
    for (NamedLauncher& launcher : launchers) members_.push_back({.how = std::move(launcher)});
  }

  Status Begin() {
    MutexLock lock(&mu_);
    for (Member& member : members_) {
      if (member.how.at_once) RETURN_IF_ERROR(OpenMember(&member));
    }
    return Status::Ok();
  }

  Status Submit(LaunchSpec spec) override {
    Launcher* chosen = nullptr;
    {
      MutexLock lock(&mu_);
      if (closed_) return FailedPreconditionError("the launcher is closed");
      const auto member = std::ranges::find_if(members_, [&](const Member& candidate) {
        return spec.launcher.empty() || candidate.how.name == spec.launcher;
      });
      if (member == members_.end()) {
        std::vector<std::string_view> names;
        for (const Member& known : members_) names.push_back(known.how.name);
        return InvalidArgumentError(fmt::format("there is no launcher {}; there are: {}",
                                                QuoteForMessage(spec.launcher),
                                                fmt::join(names, ", ")));
      }
      RETURN_IF_ERROR(OpenMember(&*member));
      chosen = member->launcher.get();
    }
    for (const auto& [name, other] : Opened()) {
      if (other != chosen && other->Get(spec.id).ok()) {
        return AlreadyExistsError(fmt::format("launch {} is known to {}", spec.id, name));
      }
    }
    return chosen->Submit(std::move(spec));
  }

  Result<LaunchInfo> Get(std::string_view id) override {
    for (const auto& [name, launcher] : Opened()) {
      auto info = launcher->Get(id);
      if (info.status().Is(Code::kNotFound)) continue;
      if (info.ok()) info->launcher = name;
      return info;
    }
    return NotFoundError("no launch is called " + std::string(id));
  }

  Result<std::vector<LaunchInfo>> List() override {
    std::vector<LaunchInfo> all;
    for (const auto& [name, launcher] : Opened()) {
      ASSIGN_OR_RETURN(std::vector<LaunchInfo> some, launcher->List());
      for (LaunchInfo& info : some) {
        info.launcher = name;
        all.push_back(std::move(info));
      }
    }
    std::ranges::sort(all, {}, &LaunchInfo::id);
    return all;
  }

  Status Signal(std::string_view id, int signal) override {
    if (signal <= 0 || signal >= NSIG) {  // before it is asked whose the launch is
      return InvalidArgumentError("there is no signal " + std::to_string(signal));
    }
    return Of<Status>(id, [&](Launcher* launcher) { return launcher->Signal(id, signal); });
  }

  Status Stop(std::string_view id, std::chrono::nanoseconds grace) override {
    return Of<Status>(id, [&](Launcher* launcher) { return launcher->Stop(id, grace); });
  }

  Result<LaunchInfo> Wait(std::string_view id, std::chrono::nanoseconds timeout) override {
    return Of<Result<LaunchInfo>>(id,
                                  [&](Launcher* launcher) { return launcher->Wait(id, timeout); });
  }

  Result<LaunchLogPage> ReadLog(std::string_view id, std::uint64_t offset,
                                std::uint64_t max_bytes) override {
    return Of<Result<LaunchLogPage>>(
        id, [&](Launcher* launcher) { return launcher->ReadLog(id, offset, max_bytes); });
  }

  Status Forget(std::string_view id) override {
    for (const auto& [name, launcher] : Opened()) RETURN_IF_ERROR(launcher->Forget(id));
    return Status::Ok();
  }

  Status Close(CloseMode mode, std::chrono::nanoseconds grace) override {
    {
      MutexLock lock(&mu_);
      closed_ = true;
    }
    Status outcome;
    for (const auto& [name, launcher] : Opened()) {
      const Status closed = launcher->Close(mode, grace);
      if (outcome.ok()) outcome = closed;
    }
    return outcome;
  }

 private:
  struct Member {
    NamedLauncher how;
    std::unique_ptr<Launcher> launcher;  // once it is opened; then it stays
  };

  Status OpenMember(Member* member) REQUIRES(mu_) {
    if (member->launcher != nullptr) return Status::Ok();
    ASSIGN_OR_RETURN(member->launcher, member->how.open());
    return Status::Ok();
  }

  std::vector<std::pair<std::string, Launcher*>> Opened() const {
    MutexLock lock(&mu_);
    std::vector<std::pair<std::string, Launcher*>> opened;
    for (const Member& member : members_) {
      if (member.launcher != nullptr) opened.emplace_back(member.how.name, member.launcher.get());
    }
    return opened;
  }

  template <typename Answer, typename Ask>
  Answer Of(std::string_view id, const Ask& ask) {
    for (const auto& [name, launcher] : Opened()) {
      const auto info = launcher->Get(id);
      if (info.status().Is(Code::kNotFound)) continue;
      return info.ok() ? ask(launcher) : Answer(info.status());
    }
    return NotFoundError("no launch is called " + std::string(id));
  }

  mutable Mutex mu_;
  std::vector<Member> members_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace

Result<std::unique_ptr<Launcher>> OpenSeveralLaunchers(std::vector<NamedLauncher> launchers) {
  if (launchers.empty()) return InvalidArgumentError("there is no launcher");
  auto several = std::make_unique<SeveralLaunchers>(std::move(launchers));
  RETURN_IF_ERROR(several->Begin());
  return std::unique_ptr<Launcher>(std::move(several));
}

}  // namespace cairn
