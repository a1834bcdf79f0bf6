#include "launch/node_links.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr char kEnded[] = "@ended ";
constexpr char kFailed[] = "@failed ";
constexpr char kLost[] = "@lost ";
constexpr char kVanished[] = "@vanished";
constexpr std::size_t kReadBytes = 64u << 10;

}  // namespace

std::string NodeRankEnded(int rank, int status) {
  return fmt::format("{}{} {}", kEnded, rank, status);
}

std::string NodeFailed(std::string_view why) {
  std::string line = kFailed + std::string(why);
  std::ranges::replace(line, '\n', ' ');
  return line;
}

Status NodeLinks::Start(const std::string& srun, const std::string& shim,
                        const LaunchDirectory& directory, const LaunchRecord& launch) {
  const auto nodes = static_cast<int>(launch.nodes);
  const auto each = static_cast<int>(launch.processes / launch.nodes);
  if (!launch.starter.empty()) {
    std::vector<std::string> argv = launch.starter;
    for (std::string word :
         {shim, directory.path(), launch.key, std::to_string(nodes), std::to_string(each)}) {
      argv.push_back(std::move(word));
    }
    return StartOne(0, "the program that starts its nodes", std::move(argv));
  }
  for (int i = 1; i < nodes; ++i) {
    // One task that may use the whole node. What the job's own variables say about tasks is not
    // meant for it.
    RETURN_IF_ERROR(StartOne(
        i * each, "srun",
        {srun, "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", fmt::format("--relative={}", i),
         "--overlap", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--export=ALL", shim,
         directory.path(), fmt::format("node:{}:{}", launch.key, i)}));
  }
  return Status::Ok();
}

Status NodeLinks::StartOne(int first_rank, std::string name, std::vector<std::string> argv) {
  LaunchRecord step;
  step.argv = std::move(argv);
  Node node;
  node.first_rank = first_rank;
  node.name = std::move(name);
  ASSIGN_OR_RETURN(node.srun, StartRankWithInput(step, first_rank, {}, &node.input));
  nodes_.push_back(std::move(node));
  return Status::Ok();
}

void NodeLinks::AddTo(std::vector<pollfd>* waits) const {
  for (const Node& node : nodes_) {
    for (const RankStream* stream : {&node.srun.out, &node.srun.err}) {
      if (!stream->fd.valid()) continue;
      waits->push_back({.fd = stream->fd.get(), .events = POLLIN, .revents = 0});
    }
    if (node.input.valid() && !node.unsent.empty()) {
      waits->push_back({.fd = node.input.get(), .events = POLLOUT, .revents = 0});
    }
  }
}

bool NodeLinks::Read(const Events& events) {
  bool any = false;
  for (Node& node : nodes_) {
    Send(&node);
    any = ReadNode(&node, events) || any;
  }
  return any;
}

bool NodeLinks::ReadNode(Node* node, const Events& events) {
  bool any = false;
  for (RankStream* stream : {&node->srun.out, &node->srun.err}) {
    if (!stream->fd.valid()) continue;
    const auto sink = [&](std::string_view text, bool unfinished) {
      if (stream->is_stderr) {
        node->words = text;  // of interest when something goes wrong
        return;
      }
      node->line += text;
      if (unfinished) return;  // a line of a log may be longer than what is cut off at once
      Obey(node, node->line, events);
      node->line.clear();
    };
    char block[kReadBytes];
    const ssize_t got = read(stream->fd.get(), block, sizeof(block));
    if (got > 0) {
      stream->cutter.Feed(std::string_view(block, static_cast<std::size_t>(got)), sink);
      any = true;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      stream->cutter.Finish(sink);
      stream->fd.Reset();
    }
  }
  return any;
}

void NodeLinks::Obey(Node* node, std::string_view line, const Events& events) {
  if (line.empty()) return;
  if (line.front() != kNodeMessage) return events.log(line);
  if (line == kNodeRunning) {
    node->running = true;
  } else if (line == kNodeDone) {
    node->done = true;
  } else if (line.starts_with(kFailed)) {
    node->failed = true;
    events.failed(std::string(line.substr(sizeof(kFailed) - 1)));
  } else if (line == kVanished) {
    events.vanished();
  } else if (line.starts_with(kLost)) {
    node->failed = true;
    int rank = 0;
    int words = 0;
    if (std::sscanf(std::string(line).c_str(), "@lost %d %n", &rank, &words) == 1) {
      events.lost(rank, std::string(line.substr(static_cast<std::size_t>(words))));
    }
  } else if (line.starts_with(kEnded)) {
    int rank = 0;
    int status = 0;
    if (std::sscanf(std::string(line).c_str(), "@ended %d %d", &rank, &status) == 2) {
      events.rank_ended(rank, status);
    }
  }
}

bool NodeLinks::Reaped(pid_t pid, int status, const Events& events) {
  for (Node& node : nodes_) {
    if (node.srun.pid != pid || node.srun.ended) continue;
    node.srun.ended = true;
    node.srun.status = status;
    while (ReadNode(&node, events)) {  // its last words
    }
    node.srun.out.fd.Reset();
    node.srun.err.fd.Reset();
    node.input.Reset();
    if (!node.done && !node.failed) {
      events.lost(
          node.first_rank,
          fmt::format("the node of rank {} is lost: {} {}{}{}", node.first_rank, node.name,
                      WIFSIGNALED(status) ? fmt::format("died of signal {}", WTERMSIG(status))
                                          : fmt::format("ended with code {}", WEXITSTATUS(status)),
                      node.words.empty() ? "" : ": ", node.words));
    }
    return true;
  }
  return false;
}

void NodeLinks::Tell(std::string_view command) {
  for (Node& node : nodes_) {
    if (node.srun.ended) continue;
    node.unsent += command;
    Send(&node);
  }
}

void NodeLinks::Send(Node* node) {
  while (node->input.valid() && !node->unsent.empty()) {
    const ssize_t wrote = write(node->input.get(), node->unsent.data(), node->unsent.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno == EAGAIN) return;  // when it can be written
    if (wrote < 0) {
      node->unsent.clear();  // nobody is there; its end is seen otherwise
      return;
    }
    node->unsent.erase(0, static_cast<std::size_t>(wrote));
  }
}

void NodeLinks::Kill() const {
  for (const Node& node : nodes_) {
    if (!node.srun.ended) kill(node.srun.pid, SIGKILL);
  }
}

bool NodeLinks::all_run() const {
  return std::ranges::all_of(nodes_, [](const Node& node) { return node.running; });
}

bool NodeLinks::any_lives() const {
  return std::ranges::any_of(nodes_, [](const Node& node) { return !node.srun.ended; });
}

}  // namespace cairn
