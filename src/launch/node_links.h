#pragma once

#include <poll.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "launch/launch_directory.h"
#include "launch/launch_records.h"
#include "launch/rank_process.h"

namespace cairn {

/// What the shim of another node says through its output, a line each. Lines of a log begin with a
/// digit, these with kNodeMessage; docs/format/launches.md. A record's `starter` says the same for
/// all nodes together, `@lost RANK WHY` of one that is gone, and `@vanished` when the machine is.
inline constexpr char kNodeMessage = '@';
inline constexpr char kNodeRunning[] = "@running";  // its ranks were started
inline constexpr char kNodeDone[] = "@done";        // nothing of them is left
std::string NodeRankEnded(int rank, int status);    // `status` as waitpid gives it
std::string NodeFailed(std::string_view why);       // they could not be started

/// The other nodes of a launch, as the shim that keeps it sees them: on each a shim that Slurm's
/// srun started, which is told things through its input and says through its output what its ranks
/// say and how they end. Or all of them behind one process, the record's `starter`. The records are
/// the keeping shim's alone. When it dies, their inputs end, and they kill their ranks.
///
/// For the one thread of the shim.
class NodeLinks {
 public:
  /// What happens on other nodes.
  struct Events {
    std::function<void(std::string_view line)> log;  // a whole line of a log
    std::function<void(int rank, int status)> rank_ended;
    std::function<void(std::string why)> failed;          // a node could not start its ranks
    std::function<void(int rank, std::string why)> lost;  // a node is gone; `rank` is its first
    std::function<void()> vanished;                       // it was taken away: nobody's failure
  };

  /// Starts the shims of the nodes 1 … nodes - 1, or, by the record's `starter`, of all.
  Status Start(const std::string& srun, const std::string& shim, const LaunchDirectory& directory,
               const LaunchRecord& launch);
  void AddTo(std::vector<pollfd>* waits) const;
  /// Reads what is there. True when anything was.
  bool Read(const Events& events);
  /// True: the child that was reaped is one of the sruns.
  bool Reaped(pid_t pid, int status, const Events& events);
  void Tell(std::string_view command);
  /// Kills the sruns, when their shims do not end.
  void Kill() const;

  bool any() const { return !nodes_.empty(); }
  bool all_run() const;
  bool any_lives() const;

 private:
  struct Node {
    int first_rank = 0;
    std::string name;  // of the program, in messages
    RankProcess srun;
    OwnedFd input;
    std::string unsent;
    std::string line;   // what came of it so far
    std::string words;  // the last that srun itself said
    bool running = false;
    bool done = false;
    bool failed = false;
  };

  Status StartOne(int first_rank, std::string name, std::vector<std::string> argv);
  bool ReadNode(Node* node, const Events& events);
  static void Obey(Node* node, std::string_view line, const Events& events);
  static void Send(Node* node);

  std::vector<Node> nodes_;
};

}  // namespace cairn
