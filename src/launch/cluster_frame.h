#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/thread_annotations.h"
#include "launch/call_budget.h"
#include "launch/launch_frame.h"

namespace cairn {

/// What the launchers of clusters do alike: launches are handed to somebody else's queue as jobs,
/// are told things and seen through their directories, which the nodes share with this machine, and
/// those that must not outlive their owner are shown that it lives. A site says how jobs are
/// submitted, asked for and stopped.
///
/// Everything of the site is called on one thread, except what says REQUIRES(mu_), and Adopt and
/// AfterAdopting before that thread runs.
class ClusterFrame : public LaunchFrame {
 protected:
  struct ClusterOptions {
    std::string name;       // "Slurm"
    std::string directory;  // these as in LaunchFrame::Options
    int slots = 1;
    LaunchListener listener;
    Clock* clock = Clock::System();
    double calls_per_second = 2;
    std::chrono::nanoseconds look = std::chrono::milliseconds(100);
  };

  struct ClusterLaunch : Launch {
    using Launch::Launch;

    /// Its directory is there: a job may know of it.
    bool handed() const { return !job.empty() && !ended(); }

    std::string job;        // its name; "" until its directory is made
    bool accepted = false;  // by the cluster, or seen there
    std::string waits_for;
    int silent = 0;  // times that the cluster did not know its job, or said that it ended
    bool stop_asked = false;
    bool take_back = false;          // out of the cluster's queue, if it has not begun
    std::optional<Nanos> cancel_at;  // the cluster's own stop, in any case
  };

  /// Of a stop: beyond the grace, what the shim did not do by then, the cluster does.
  static constexpr Nanos kCancelSlack = std::chrono::seconds(10);
  /// A cluster that did not answer is asked again.
  static constexpr Nanos kRetry = std::chrono::seconds(2);
  /// A job that ended, or is gone, without exit.json: seen so often before it is believed, because
  /// what another machine wrote may come late.
  static constexpr int kLooksBeforeLost = 2;

  ClusterFrame(ClusterOptions options, OwnedFd lock);

  // What a site says.

  /// Hands over what is in the queue, and calls the cluster, as the budget allows.
  virtual void CallCluster() EXCLUDES(mu_) = 0;
  /// Something is still to be handed over.
  virtual bool HasUnsubmitted() const = 0;
  virtual void AskForJobs() EXCLUDES(mu_) = 0;
  /// What launch.json says of a launch that is taken up.
  virtual void OnAdopt(ClusterLaunch* launch, const LaunchRecord& record) REQUIRES(mu_);
  /// Puts more into a new directory than every launch has, before a job may come.
  virtual Status Furnish(const LaunchDirectory& directory);
  /// There is reason to ask whether the shim of a living launch lives; then it is listened to.
  virtual bool IsDoubtful(ClusterLaunch* launch) REQUIRES(mu_);
  virtual void Listen(const std::string& id) EXCLUDES(mu_);

  // What a site uses.

  static ClusterLaunch* Of(const std::unique_ptr<Launch>& launch) {
    return static_cast<ClusterLaunch*>(launch.get());
  }
  /// One that a job knows or may know; nullptr.
  ClusterLaunch* FindHanded(const std::string& id) REQUIRES(mu_);
  bool AnyHanded() const REQUIRES(mu_);
  /// Makes the directory of a launch, whose record names its job: from now on a job that comes
  /// finds what to start. The launch has ended when that fails.
  bool MakeDirectory(const LaunchSpec& spec, const LaunchRecord& record) EXCLUDES(mu_);
  /// What the launch's record says before a job is known; nullopt: it is gone.
  std::optional<LaunchRecord> NewRecord(const LaunchSpec& spec) EXCLUDES(mu_);

  // Of the site's thread alone (and of AfterAdopting, before it).
  CallBudget budget_;
  Nanos asked_ = std::chrono::hours(-1);  // when the cluster was last asked for jobs

  std::string trouble_ GUARDED_BY(mu_);  // why its last answer was none

 private:
  void Wake() final REQUIRES(mu_);
  Status Send(Launch* launch) final REQUIRES(mu_);
  void OnStop(Launch* launch, Nanos grace) final REQUIRES(mu_);
  void OnLeave(Launch* launch, Nanos grace) final REQUIRES(mu_);
  Status Adopt(const std::string& id) final;
  Status AfterAdopting() final;
  void Work() final EXCLUDES(mu_);

  void LookAtDirectories() EXCLUDES(mu_);
  /// A thread of its own: the cluster may take long to answer the other one.
  void BeatWhileOpen() EXCLUDES(mu_);

  const ClusterOptions cluster_;
  const std::string beat_path_;
  CondVar work_;
  CondVar beat_;
  bool woken_ GUARDED_BY(mu_) = false;
};

}  // namespace cairn
