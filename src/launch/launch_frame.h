#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "launch/launch_directory.h"
#include "launch/launch_queue.h"
#include "launch/launch_records.h"
#include "launch/launcher.h"

namespace cairn {

/// What launchers do alike: the table of launches, the queue and its slots, waiting, stopping,
/// logs, forgetting, telling the listener, taking up what earlier launchers left, closing. A site
/// (this machine, a cluster) derives from it, says how launches are started, told things and
/// followed, and does that on one thread, in Work.
///
/// A launch goes through: in the queue (not `taken`) → taken by the site, which starts it
/// → running → ended. What it is told between being taken and being reachable is kept in `unsent`.
///
/// The launcher's functions may be called from any thread; of the site's, those that say
/// REQUIRES(mu_) are called with the lock held and must not wait, and Adopt before the thread runs.
/// A derived class calls Close(kLeave) in its destructor: the thread uses it.
class LaunchFrame : public Launcher {
 public:
  struct Options {
    std::string directory;  // absolute; exists
    int slots = 1;
    /// Beyond the grace, for SIGKILL to work and records to be written.
    std::chrono::nanoseconds stop_slack = std::chrono::seconds(30);
    LaunchListener listener;
    Clock* clock = Clock::System();  // borrowed
  };

  Status Submit(LaunchSpec spec) final;
  Result<LaunchInfo> Get(std::string_view id) final;
  Result<std::vector<LaunchInfo>> List() final;
  Status Signal(std::string_view id, int signal) final;
  Status Stop(std::string_view id, std::chrono::nanoseconds grace) final;
  Result<LaunchInfo> Wait(std::string_view id, std::chrono::nanoseconds timeout) final;
  Result<LaunchLogPage> ReadLog(std::string_view id, std::uint64_t offset,
                                std::uint64_t max_bytes) final;
  Status Forget(std::string_view id) final;
  Status Close(CloseMode mode, std::chrono::nanoseconds grace) final;

  /// Takes up what earlier launchers left, then starts to work. Once, before anything else.
  Status Begin();

 protected:
  using Nanos = std::chrono::nanoseconds;

  /// A launch as every launcher sees it; a site's own has more.
  struct Launch {
    explicit Launch(std::string path) : directory(std::move(path)) {}
    virtual ~Launch() = default;
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;

    bool ended() const { return info.state == LaunchState::kEnded; }
    /// The site's business: it is started, or about to be.
    bool lives() const { return taken && !ended(); }

    LaunchDirectory directory;
    LaunchSpec spec;  // until it is taken
    LaunchInfo info;
    std::string key;
    std::vector<int> slots;
    bool taken = false;
    bool outlive_owner = true;
    std::string unsent;  // commands that it could not be told yet
  };

  /// `lock` is that of the directory (LockLaunches).
  LaunchFrame(Options options, OwnedFd lock);
  ~LaunchFrame() override;

  // What a site says.

  /// Whether it can start such a launch at all. InvalidArgument.
  virtual Status CheckSite(const LaunchSpec& spec) const;
  virtual std::unique_ptr<Launch> NewLaunch(std::string path) = 0;
  /// Takes up the launch in a directory that an earlier launcher left (Put), or removes that.
  virtual Status Adopt(const std::string& id) = 0;
  /// After all were adopted.
  virtual Status AfterAdopting() { return Status::Ok(); }
  /// Hands `unsent` over, and takes away what was; OK without doing so when it is not reachable
  /// yet.
  virtual Status Send(Launch* launch) REQUIRES(mu_) = 0;
  /// It was told to stop.
  virtual void OnStop(Launch* launch, Nanos grace) REQUIRES(mu_);
  /// The launcher closes and leaves it.
  virtual void OnLeave(Launch* launch, Nanos grace) REQUIRES(mu_);
  /// It has ended: lets go of what the site had for it.
  virtual void OnEnd(Launch* launch) REQUIRES(mu_) = 0;
  /// Somebody asks how it does: the site may look.
  virtual void Refresh(Launch* launch) REQUIRES(mu_);
  /// What a launch that was taken and does not run waits for.
  virtual std::string ReasonOf(const Launch& launch) const REQUIRES(mu_);
  /// Makes Work look for something to do: a launch in the queue, `closed_`.
  virtual void Wake() REQUIRES(mu_) = 0;
  /// The site's thread; returns when closed_.
  virtual void Work() EXCLUDES(mu_) = 0;

  // What a site uses.

  std::string Path(std::string_view id) const;
  Result<Launch*> Find(std::string_view id) REQUIRES(mu_);
  /// The next launch of the queue with its slots, now taken; nullptr: none can be started now.
  Launch* TakeNext() REQUIRES(mu_);
  /// Its launch.json.
  LaunchRecord RecordOf(const LaunchSpec& spec, const Launch& launch) REQUIRES(mu_);
  /// Of one that is taken up: what launch.json says.
  static void Fill(Launch* launch, const LaunchRecord& record);
  /// Whether running.json is there; then pids and time are known.
  static bool NoteRunning(Launch* launch);
  /// Puts a launch that was taken up into the table; a living one has its slots.
  Launch* Put(std::unique_ptr<Launch> launch) REQUIRES(mu_);
  /// It runs: waiters and the listener are told.
  void Running(Launch* launch) REQUIRES(mu_);
  void End(Launch* launch, LaunchExit exit) REQUIRES(mu_);
  /// Ends one that nothing was started for, and writes that down where it has a directory.
  void EndUnstarted(Launch* launch, bool stopped, std::string message) REQUIRES(mu_);
  /// Removes one from the table: it was never there.
  void Drop(const std::string& id) REQUIRES(mu_);
  Status Tell(Launch* launch, const ControlCommand& command) REQUIRES(mu_);
  Status StopOne(Launch* launch, Nanos grace) REQUIRES(mu_);
  void TellListener() EXCLUDES(mu_);
  Clock* clock() const { return frame_.clock; }

  mutable Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::unique_ptr<Launch>, std::less<>> launches_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;

 private:
  Status CheckOpen() const REQUIRES(mu_);
  LaunchInfo Describe(Launch* launch) REQUIRES(mu_);
  Status StopAll(Nanos grace) REQUIRES(mu_);

  const Options frame_;
  OwnedFd lock_;
  LaunchQueue queue_ GUARDED_BY(mu_);
  std::vector<LaunchInfo> told_ GUARDED_BY(mu_);  // that the listener is still to be told
  bool closing_ GUARDED_BY(mu_) = false;          // nothing new is taken
  std::jthread worker_;
};

/// Makes the directory of a launcher where it is missing, for this user alone, because environments
/// and logs are nobody else's business, and locks it. `*directory` becomes absolute. Unavailable:
/// another launcher has it.
Result<OwnedFd> LockLaunches(std::string* directory, Clock* clock);

}  // namespace cairn
