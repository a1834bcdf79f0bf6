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
#include "launch/cluster_frame.h"
#include "launch/slurm_batch.h"
#include "launch/slurm_client.h"
#include "launch/slurm_launcher.h"

namespace cairn {

/// Output of jobs, until their shim has its own; below the launcher's directory.
inline constexpr char kSlurmOutputs[] = "/.outputs";

/// The site of slurm_launcher.h. Launches are handed over in slurm_site.cc and followed in
/// slurm_follow.cc.
class SlurmLauncher final : public ClusterFrame {
 public:
  SlurmLauncher(SlurmLauncherOptions options, std::string shim, std::unique_ptr<SlurmClient> client,
                OwnedFd lock);
  ~SlurmLauncher() override {
    Close(CloseMode::kLeave, Nanos(0)).IgnoreError("nothing is waited for");
  }

 private:
  struct SlurmLaunch final : ClusterLaunch {
    using ClusterLaunch::ClusterLaunch;

    int index = -1;
    std::string job_id;               // once squeue told it
    std::chrono::seconds warning{0};  // of one whose end Slurm does not announce
    bool warned = false;
  };
  static SlurmLaunch* Of(const std::unique_ptr<Launch>& launch) {
    return static_cast<SlurmLaunch*>(launch.get());
  }

  SlurmLaunch* FindHanded(const std::string& id) REQUIRES(mu_) {
    return static_cast<SlurmLaunch*>(ClusterFrame::FindHanded(id));
  }

  Status CheckSite(const LaunchSpec& spec) const override;
  std::unique_ptr<Launch> NewLaunch(std::string path) override;
  std::string ReasonOf(const Launch& launch) const override REQUIRES(mu_);
  void OnEnd(Launch* launch) override REQUIRES(mu_);
  void OnAdopt(ClusterLaunch* launch, const LaunchRecord& record) override REQUIRES(mu_);
  void CallCluster() override EXCLUDES(mu_);
  bool HasUnsubmitted() const override { return !batches_.empty(); }
  void AskForJobs() override EXCLUDES(mu_);

  void TakeFromQueue() EXCLUDES(mu_);
  SlurmBatch Prepare(const std::vector<LaunchSpec>& specs, const std::vector<std::string>& flags)
      EXCLUDES(mu_);
  void CallSlurm() EXCLUDES(mu_);
  void SubmitBatch(SlurmBatch batch) EXCLUDES(mu_);
  bool AllStopped(const SlurmBatch& batch) EXCLUDES(mu_);
  /// Batches whose answer was lost and that Slurm has after all are left to it.
  void LookForBatches(const std::map<std::pair<std::string_view, int>, const SlurmJob*>& jobs)
      REQUIRES(mu_);
  /// Tells a launch whose node is wanted, or whose time is over soon, where Slurm does not.
  void WarnIfDue(SlurmLaunch* launch, const SlurmJob& job) REQUIRES(mu_);
  /// Jobs that somebody put back into Slurm's queue after their launch had begun: nothing will
  /// begin in them.
  void CancelRequeued(const std::vector<std::string>& jobs) EXCLUDES(mu_);
  void CancelDue(const std::vector<std::string>& ids, bool pending_only) EXCLUDES(mu_);
  void Settle(const std::string& id, const SlurmJob* job) EXCLUDES(mu_);
  /// Of a launch without exit.json whose job is in such a state.
  LaunchExit LostIn(const SlurmLaunch& launch, const SlurmJob* job, bool begun) const REQUIRES(mu_);

  const SlurmLauncherOptions options_;
  const std::string outputs_;
  const std::string shim_;
  const std::unique_ptr<SlurmClient> client_;

  // Of the worker alone (and of AfterAdopting, before it).
  std::vector<SlurmBatch> batches_;  // that Slurm does not have yet

  /// Names and places of jobs whose launches ended, and when: see CancelRequeued.
  std::map<std::pair<std::string, int>, Nanos> left_ GUARDED_BY(mu_);
};

}  // namespace cairn
