#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "launch/call_budget.h"
#include "launch/launch_frame.h"
#include "launch/slurm_batch.h"
#include "launch/slurm_client.h"
#include "launch/slurm_launcher.h"

namespace cairn {

/// Output of jobs, until their shim has its own; below the launcher's directory.
inline constexpr char kSlurmOutputs[] = "/.outputs";

/// The site of slurm_launcher.h. Launches are handed over in slurm_site.cc and followed in
/// slurm_follow.cc.
class SlurmLauncher final : public LaunchFrame {
 public:
  SlurmLauncher(SlurmLauncherOptions options, std::string shim, std::unique_ptr<SlurmClient> client,
                OwnedFd lock);
  ~SlurmLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

 private:
  /// After the grace of a stop: what the shim did not do by then, Slurm does.
  static constexpr Nanos kCancelSlack = std::chrono::seconds(10);

  struct SlurmLaunch final : Launch {
    using Launch::Launch;

    /// Its directory is there: a job may know of it.
    bool handed() const { return !job.empty() && !ended(); }

    std::string job;  // the name; "" until its directory is made
    int index = -1;
    bool accepted = false;  // by sbatch, or seen in squeue
    std::string job_id;     // once squeue told it
    std::string waits_for;
    int silent = 0;  // times that squeue did not know it, or said that it ended
    bool stop_asked = false;
    std::chrono::seconds warning{0};  // of one whose end Slurm does not announce
    bool warned = false;
    bool cancel_pending = false;     // scancel, if it has not begun
    std::optional<Nanos> cancel_at;  // scancel, in any case
  };
  static SlurmLaunch* Of(Launch* launch) { return static_cast<SlurmLaunch*>(launch); }
  static SlurmLaunch* Of(const std::unique_ptr<Launch>& launch) { return Of(launch.get()); }

  /// One that a job knows or may know; nullptr.
  SlurmLaunch* FindHanded(const std::string& id) REQUIRES(mu_) {
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

  void TakeFromQueue() EXCLUDES(mu_);
  SlurmBatch Prepare(const std::vector<LaunchSpec>& specs, const std::vector<std::string>& flags)
      EXCLUDES(mu_);
  void CallSlurm() EXCLUDES(mu_);
  void SubmitBatch(SlurmBatch batch) EXCLUDES(mu_);
  bool AllStopped(const SlurmBatch& batch) EXCLUDES(mu_);
  void AskForJobs() EXCLUDES(mu_);
  /// Batches whose answer was lost and that Slurm has after all are left to it.
  void LookForBatches(const std::map<std::pair<std::string_view, int>, const SlurmJob*>& jobs)
      REQUIRES(mu_);
  /// Tells a launch whose node is wanted, or whose time is over soon, where Slurm does not.
  void WarnIfDue(SlurmLaunch* launch, const SlurmJob& job) REQUIRES(mu_);
  /// Jobs that somebody put back into Slurm's queue after their launch had begun: nothing will
  /// begin in them.
  void CancelRequeued(const std::vector<std::string>& jobs) EXCLUDES(mu_);
  void CancelDue(const std::vector<std::string>& ids, bool pending_only) EXCLUDES(mu_);
  void LookAtDirectories() EXCLUDES(mu_);
  void Settle(const std::string& id, const SlurmJob* job) EXCLUDES(mu_);
  /// Of a launch without exit.json whose job is in such a state.
  LaunchExit LostIn(const SlurmLaunch& launch, const SlurmJob* job, bool begun) const REQUIRES(mu_);
  void Beat() EXCLUDES(mu_);

  const SlurmLauncherOptions options_;
  const std::string outputs_;
  const std::string shim_;
  const std::unique_ptr<SlurmClient> client_;

  // Of the worker alone (and of AfterAdopting, before it).
  CallBudget budget_;
  std::vector<SlurmBatch> batches_;       // that Slurm does not have yet
  Nanos asked_ = std::chrono::hours(-1);  // when squeue was last asked
  Nanos beaten_ = std::chrono::hours(-1);
  std::uint64_t beats_ = 0;

  CondVar work_;
  std::string trouble_ GUARDED_BY(mu_);  // why Slurm's last answer was none
  /// Names and places of jobs whose launches ended, and when: see CancelRequeued.
  std::map<std::pair<std::string, int>, Nanos> left_ GUARDED_BY(mu_);
  bool woken_ GUARDED_BY(mu_) = false;
};

}  // namespace cairn
