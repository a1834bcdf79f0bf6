#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// Ranks that one launch may have on one machine.
inline constexpr int kMaxLaunchProcesses = 4096;

/// Bounds on each process of a launch; 0: none.
struct LaunchLimits {
  std::uint64_t address_space_bytes = 0;  // of each process (RLIMIT_AS)
  std::uint64_t open_files = 0;           // of each process (RLIMIT_NOFILE)
  std::uint64_t core_bytes = 0;           // core dumps; 0 is none at all
  int nice = 0;                           // added to the launcher's own
  /// Of the whole launch, from its start: then it is stopped as by Stop(id, grace).
  std::chrono::nanoseconds wall_time{0};
  /// Log bytes that are kept; what comes after is dropped and counted in a last line.
  std::uint64_t log_bytes = std::uint64_t{4} << 30;
};

/// What to start: `processes` copies of one command, which live and die together.
struct LaunchSpec {
  /// Chosen by the caller, unique among the launches that were not forgotten, and the durable
  /// handle: write it down, then Submit. Letters, digits, '-', '_', '.'; at most 128; no leading
  /// '.'.
  std::string id;
  std::vector<std::string> argv;  // argv[0] is looked up on the PATH of the launch's environment
  std::string cwd;                // "": the launcher's; must exist
  /// Put over the launcher's own environment. Each process also gets CAIRN_LAUNCH_ID,
  /// CAIRN_LAUNCH_KEY, CAIRN_RANK, CAIRN_WORLD_SIZE, CAIRN_LOCAL_RANK, CAIRN_LOCAL_SIZE,
  /// CAIRN_SLOTS ("0,3") and CAIRN_CHIEF, by which the ranks of this launch find rank 0
  /// ("file:PATH": it writes its host:port there).
  std::map<std::string, std::string> env;
  bool inherit_env = true;  // false: `env` and what is said above is all
  int processes = 1;        // ranks
  int slots = 1;            // taken while it lives; 0: runs beside everything
  int priority = 0;         // greater ones first; among equals first come, first served
  /// Which launcher is meant, where one of several is asked; "": the first.
  std::string launcher;
  /// What a cluster is asked for besides (partition, account, time, …); what is known is the
  /// launcher's to say. On this machine: none.
  std::map<std::string, std::string> resources;
  LaunchLimits limits;
  /// Time between SIGTERM and SIGKILL when the launch ends itself: a rank failed, the wall time is
  /// over, or the owner died and `outlive_owner` is false.
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
  /// True: the launch goes on when the owner of the launcher dies, and is attached to again.
  /// False: it is stopped then, within `grace`.
  bool outlive_owner = true;
};

enum class LaunchState : std::uint8_t {
  kQueued,   // waits for slots; known to this launcher only, gone when its owner dies
  kRunning,  // started, or about to
  kEnded,    // for ever; `exit` says how
};

enum class ExitKind : std::uint8_t {
  kExited,      // every rank ended by itself; `code` is of the first that failed, or 0
  kSignaled,    // the first rank that failed died of `signal`
  kNotStarted,  // the command could not be started (`message`), or it was stopped in the queue
  kTimeLimit,   // stopped at limits.wall_time
  kLost,  // nobody knows: its keeper was killed, or the machine restarted. No process is left.
};

/// How a launch ended.
struct LaunchExit {
  ExitKind kind = ExitKind::kExited;
  int code = 0;    // of kExited
  int signal = 0;  // of kSignaled
  int rank = -1;   // whose code or signal it is; -1: of none
  /// Stop or Kill was asked for before it ended; kind, code and signal still say how it ended.
  bool stopped = false;
  std::string message;    // for people
  std::int64_t time = 0;  // nanoseconds since 1970

  bool succeeded() const { return kind == ExitKind::kExited && code == 0; }
};

struct LaunchInfo {
  std::string id;
  std::string launcher;  // where several are put together: whose it is
  LaunchState state = LaunchState::kQueued;
  int slots = 0;
  int priority = 0;
  std::string slot_ids;            // "0,3" while running
  std::int64_t submitted = 0;      // nanoseconds since 1970; 0: not known after a re-attachment
  std::int64_t started = 0;        // of the first process; 0 before
  std::vector<std::int64_t> pids;  // of the ranks, in order, once started; 0 for those not known
  std::string reason;              // of kQueued: what it waits for
  std::optional<LaunchExit> exit;  // of kEnded
};

enum class LineLevel : char { kDebug = 'D', kInfo = 'I', kWarning = 'W', kError = 'E' };

/// One line that a rank wrote.
struct LaunchLogLine {
  std::int64_t time = 0;  // when it was read, nanoseconds since 1970
  int rank = 0;           // -1: said by the launcher itself
  bool from_stderr = false;
  LineLevel level = LineLevel::kInfo;
  bool unfinished = false;  // no newline followed: the text goes on in the rank's next line of this
                            // stream, or the rank ended
  std::string text;         // without newline; any bytes
};

struct LaunchLogPage {
  std::vector<LaunchLogLine> lines;
  std::uint64_t next = 0;  // offset of the line after these
  bool end = false;        // nothing will follow: the launch ended and all is read
};

/// Starts processes and answers for them: the seam between what decides about runs (trials, tuner,
/// parameter-server jobs) and what runs them (this machine; Slurm; Ray). Implementations pass one
/// conformance suite (launch/conformance.h).
///
/// What holds for every implementation:
///  1. An id is started at most once, whatever dies when. A caller that does not know whether its
///     Submit got through (it was killed) opens the launcher again and asks Get: NotFound means
///     that nothing of it runs or will.
///  2. Launches with outlive_owner survive the owner's death by kill -9: their output and their end
///     are recorded without it. A launcher that is opened on the same place knows all launches that
///     were started and not forgotten, living or ended. Queued ones are forgotten with the owner.
///  3. kEnded means that no process of the launch is left, and that all of its output is in the
///  log.
///     No process that belongs to something else is ever signalled, however ids are reused.
///  4. Signals go to the ranks' own processes, not to what these started; SIGKILL goes to all.
///
/// May be called from any thread. No call waits for a process, except Wait and Close.
class Launcher {
 public:
  virtual ~Launcher() = default;

  /// Accepts a launch: it is queued, or running when slots are free. Errors: AlreadyExists (the id
  /// is known and not forgotten), InvalidArgument (names the field), ResourceExhausted (more slots
  /// than there are), Unavailable. A command that cannot be started is no error here: it ends with
  /// kNotStarted.
  virtual Status Submit(LaunchSpec spec) = 0;

  /// NotFound: not known.
  virtual Result<LaunchInfo> Get(std::string_view id) = 0;
  /// All that are known, in the order of their ids.
  virtual Result<std::vector<LaunchInfo>> List() = 0;

  /// Sends a signal to the ranks that live. OK when it has ended already or waits in the queue:
  /// nobody is there to be told.
  virtual Status Signal(std::string_view id, int signal) = 0;
  /// SIGTERM to the ranks; whatever is left after `grace` is killed. Leaves the queue at once.
  /// Returns when that is under way. A later call with a shorter grace counts. OK when it has ended
  /// already. A caller that dies in here asks again after opening.
  virtual Status Stop(std::string_view id, std::chrono::nanoseconds grace) = 0;
  /// Stop without grace.
  Status Kill(std::string_view id) { return Stop(id, std::chrono::nanoseconds(0)); }

  /// Waits until it has ended. DeadlineExceeded after `timeout`; NotFound.
  virtual Result<LaunchInfo> Wait(std::string_view id, std::chrono::nanoseconds timeout) = 0;

  /// Lines from `offset` (0, or a page's `next`) on, about `max_bytes` of them, in the order in
  /// which they were read; none when none are there yet.
  virtual Result<LaunchLogPage> ReadLog(std::string_view id, std::uint64_t offset,
                                        std::uint64_t max_bytes = 1u << 20) = 0;

  /// Removes the records and the log of a launch that ended. FailedPrecondition while it lives;
  /// NotFound is OK.
  virtual Status Forget(std::string_view id) = 0;

  /// Ends the launcher. Nothing new is taken from the start of the call, and afterwards every call
  /// fails. Queued launches are dropped.
  ///   kStopAll: stops every launch and waits until nothing of any is left.
  ///   kLeave:   launches go on (those with outlive_owner); another launcher takes them up.
  /// The destructor does kLeave.
  enum class CloseMode : std::uint8_t { kStopAll, kLeave };
  virtual Status Close(CloseMode mode,
                       std::chrono::nanoseconds grace = std::chrono::seconds(5)) = 0;
};

/// Called on a thread of the launcher, one call at a time, whenever a launch started or ended,
/// after that can be seen by Get. It may call the launcher, but not Wait or Close. What had ended
/// before the launcher was opened is not told: ask List after opening.
using LaunchListener = std::function<void(const LaunchInfo&)>;

}  // namespace cairn
