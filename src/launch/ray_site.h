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
#include "launch/cluster_frame.h"
#include "launch/ray_client.h"
#include "launch/ray_launcher.h"

namespace cairn {

/// The site of ray_launcher.h. Launches are handed over in ray_site.cc and followed in
/// ray_follow.cc.
class RayLauncher final : public ClusterFrame {
 public:
  RayLauncher(RayLauncherOptions options, std::string shim, std::unique_ptr<RayClient> client,
              OwnedFd lock);
  ~RayLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

 private:
  struct RayLaunch final : ClusterLaunch {
    using ClusterLaunch::ClusterLaunch;

    int attempt = 1;  // how often it was handed over: the ids of its jobs are made of it
    std::int64_t nodes = 1;

    // In doubt: Ray says, or cannot say, that nothing is left of one that has begun.
    std::optional<LaunchExit> doubt;  // what is to be recorded if nothing is heard of it
    std::string pulse;                // the last that was heard of its shim
    std::optional<Nanos> heard;       // when
  };
  static RayLaunch* Of(const std::unique_ptr<Launch>& launch) {
    return static_cast<RayLaunch*>(launch.get());
  }

  /// A job that Ray does not have yet, or may not have.
  struct Submission {
    std::string launch;  // its id
    RayJobRequest request;
  };

  RayLaunch* FindHanded(const std::string& id) REQUIRES(mu_) {
    return static_cast<RayLaunch*>(ClusterFrame::FindHanded(id));
  }

  Status CheckSite(const LaunchSpec& spec) const override;
  std::unique_ptr<Launch> NewLaunch(std::string path) override;
  void OnAdopt(ClusterLaunch* launch, const LaunchRecord& record) override REQUIRES(mu_) {
    static_cast<RayLaunch*>(launch)->nodes = record.nodes;
  }
  std::string ReasonOf(const Launch& launch) const override REQUIRES(mu_);
  void OnEnd(Launch* /*launch*/) override REQUIRES(mu_) {}
  Status Furnish(const LaunchDirectory& directory) override;
  void CallCluster() override EXCLUDES(mu_);
  bool HasUnsubmitted() const override { return !submissions_.empty(); }
  void AskForJobs() override EXCLUDES(mu_);
  bool IsDoubtful(ClusterLaunch* launch) override REQUIRES(mu_);
  void Listen(const std::string& id) override EXCLUDES(mu_);

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
  void NoteOldJobs(const std::vector<RayJob>& jobs) REQUIRES(mu_);
  /// Of one whose job has ended, or is not known to Ray (nullptr).
  void Judge(const std::string& id, const RayJob* job) EXCLUDES(mu_);
  /// Of one that has not begun.
  void JudgeWaiting(RayLaunch* launch, const RayJob* job) REQUIRES(mu_);
  LaunchExit LostIn(const RayLaunch& launch, const RayJob* job, bool begun) const REQUIRES(mu_);
  bool HeadIsSilent() const;
  /// Records how a launch ended of which nothing is left, unless its shim did.
  void Settle(const std::string& id) EXCLUDES(mu_);
  const RayLauncherOptions options_;
  const std::string shim_;
  const std::unique_ptr<RayClient> client_;

  // Of the worker alone (and of AfterAdopting, before it).
  std::vector<Submission> submissions_;
  std::optional<Nanos> silent_since_;  // it has not told them since
  bool followed_ = false;              // there was something to ask for
  Nanos quiet_until_{0};               // it did not answer: no call before
  std::vector<std::string> old_jobs_;  // whose records are to be removed

  std::string refusal_ GUARDED_BY(mu_);  // why the last one was not handed over, and is again
};

}  // namespace cairn
