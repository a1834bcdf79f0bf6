#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "launch/call_budget.h"
#include "launch/launch_frame.h"
#include "launch/ray_client.h"
#include "launch/ray_launcher.h"

namespace cairn {

/// The site of ray_launcher.h. Launches are handed over in ray_site.cc and followed in
/// ray_follow.cc.
class RayLauncher final : public LaunchFrame {
 public:
  RayLauncher(RayLauncherOptions options, std::string shim, std::unique_ptr<RayClient> client,
              OwnedFd lock);
  ~RayLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

 private:
  /// After the grace of a stop: what the shim did not do by then, Ray does.
  static constexpr Nanos kCancelSlack = std::chrono::seconds(10);

  struct RayLaunch final : Launch {
    using Launch::Launch;

    /// Its directory is there: a job may know of it.
    bool handed() const { return !job.empty() && !ended(); }

    std::string job;  // its name, of which the ids of its jobs are made; "" before its directory is
    int attempt = 1;  // how often it was handed over
    bool accepted = false;  // by Ray, or seen there
    std::string waits_for;
    int silent = 0;  // times that Ray did not know its job, or said that it ended
    bool stop_asked = false;
    bool claim = false;              // start it no more, if it has not begun
    std::optional<Nanos> cancel_at;  // Ray's own stop, in any case

    // In doubt: Ray says, or cannot say, that nothing is left of one that has begun.
    std::optional<LaunchExit> doubt;  // what is to be recorded if nothing is heard of it
    std::string pulse;                // the last that was heard of its shim
    std::optional<Nanos> heard;       // when
  };
  static RayLaunch* Of(Launch* launch) { return static_cast<RayLaunch*>(launch); }
  static RayLaunch* Of(const std::unique_ptr<Launch>& launch) { return Of(launch.get()); }

  /// A job that Ray does not have yet, or may not have.
  struct Submission {
    std::string launch;  // its id
    RayJobRequest request;
  };

  /// One that a job knows or may know; nullptr.
  RayLaunch* FindHanded(const std::string& id) REQUIRES(mu_) {
    const auto found = Find(id);
    return found.ok() && Of(*found)->handed() ? Of(*found) : nullptr;
  }

  Status CheckSite(const LaunchSpec& spec) const override;
  std::unique_ptr<Launch> NewLaunch(std::string path) override;
  std::string ReasonOf(const Launch& launch) const override REQUIRES(mu_);
  void Wake() override REQUIRES(mu_);
  Status Send(Launch* launch) override REQUIRES(mu_);
  void OnStop(Launch* launch, Nanos grace) override REQUIRES(mu_);
  void OnLeave(Launch* launch, Nanos grace) override REQUIRES(mu_);
  void OnEnd(Launch* launch) override REQUIRES(mu_);
  Status Adopt(const std::string& id) override;
  Status AfterAdopting() override;
  void Work() override EXCLUDES(mu_);

  bool AnyHanded() const REQUIRES(mu_) {
    return std::ranges::any_of(launches_,
                               [](const auto& entry) { return Of(entry.second)->handed(); });
  }

  // Handing over.
  void TakeFromQueue() EXCLUDES(mu_);
  void Prepare(const LaunchSpec& spec) EXCLUDES(mu_);
  RayJobRequest RequestFor(const RayLaunch& launch, const RayResources& resources) const
      REQUIRES(mu_);
  void CallRay() EXCLUDES(mu_);
  /// The first of the submissions; it stays there when Ray does not answer.
  void SubmitNext() EXCLUDES(mu_);
  void StopJob(const std::string& id) EXCLUDES(mu_);
  /// Ends launches that are to be stopped and have not begun.
  void ClaimStopped() EXCLUDES(mu_);
  /// Notes whether Ray has answered.
  void Note(const Status& status, std::string* trouble) REQUIRES(mu_);

  // Following.
  void AskForJobs() EXCLUDES(mu_);
  void NoteOldJobs(const std::vector<RayJob>& jobs) REQUIRES(mu_);
  /// Of one whose job has ended, or is not known to Ray (nullptr).
  void Judge(const std::string& id, const RayJob* job) EXCLUDES(mu_);
  /// Of one that has not begun.
  void JudgeWaiting(RayLaunch* launch, const RayJob* job) REQUIRES(mu_);
  LaunchExit LostIn(const RayLaunch& launch, const RayJob* job, bool begun) const REQUIRES(mu_);
  void LookAtDirectories() EXCLUDES(mu_);
  bool HeadIsSilent() const;
  /// Of one that has begun, when there is reason to ask: whether its shim lives.
  void Listen(const std::string& id) EXCLUDES(mu_);
  /// Records how a launch ended of which nothing is left, unless its shim did.
  void Settle(const std::string& id) EXCLUDES(mu_);
  /// A thread of its own, because launches that must not outlive their owner see by it that this
  /// process lives, however long Ray takes to answer the other one.
  void BeatWhileOpen() EXCLUDES(mu_);

  const RayLauncherOptions options_;
  const std::string shim_;
  const std::unique_ptr<RayClient> client_;

  // Of the worker alone (and of AfterAdopting, before it).
  CallBudget budget_;
  std::vector<Submission> submissions_;
  Nanos asked_ = std::chrono::hours(-1);  // when Ray was last asked for jobs
  std::optional<Nanos> silent_since_;     // it has not told them since
  bool followed_ = false;                 // there was something to ask for
  Nanos quiet_until_{0};                  // it did not answer: no call before
  std::vector<std::string> old_jobs_;     // whose records are to be removed

  CondVar work_;
  CondVar beat_;
  std::string trouble_ GUARDED_BY(mu_);  // why Ray's last answer about jobs was none
  std::string refusal_ GUARDED_BY(mu_);  // why the last one was not handed over, and is again
  bool woken_ GUARDED_BY(mu_) = false;
};

}  // namespace cairn
