// Durable reports through the trial protocol, and how soon a process is told to pause.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "format/json.h"
#include "storage/local/local_store.h"
#include "trial/event_log.h"
#include "trial/repository_access.h"
#include "trial/trial_engine.h"
#include "trial/trial_service.h"

namespace cairn::bench {
namespace {

constexpr int kConnections = 16;
constexpr char kJoin[] = "join";

/// A journal that writes down how many bytes each group had: what the baseline appends.
class CountingLog final : public EventLog {
 public:
  explicit CountingLog(EventLog* inner) : inner_(inner) {}
  Status Append(std::span<const Event> events) override {
    std::size_t bytes = 0;
    for (const Event& event : events) bytes += EncodeEvent(event).size() + kFrameHeaderBytes;
    groups_.push_back(bytes);
    return inner_->Append(events);
  }
  Status Replay(std::uint64_t from, const Visitor& visit) override {
    return inner_->Replay(from, visit);
  }
  std::vector<std::size_t> TakeGroups() { return std::exchange(groups_, {}); }

 private:
  EventLog* const inner_;
  std::vector<std::size_t> groups_;  // of the writer's thread, read when nothing is asked
};

/// A connection that is kept, with requests that are answered by a body of known length.
class Connection {
 public:
  Status Open(std::uint16_t port) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      return UnavailableError("connect");
    }
    return Status::Ok();
  }
  ~Connection() {
    if (fd_ >= 0) close(fd_);
  }
  Status Send(const std::string& method, const std::string& path, const std::string& token,
              const std::string& body) {
    const std::string request = fmt::format(
        "{} {} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{}",
        method, path, token, body.size(), body);
    std::string_view rest = request;
    while (!rest.empty()) {
      const ssize_t sent = send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) return UnavailableError("send");
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
    return Status::Ok();
  }
  Result<std::string> Receive() {
    std::string& in = buffer_;
    for (;;) {
      const std::size_t head = in.find("\r\n\r\n");
      if (head != std::string::npos) {
        const std::size_t at = in.find("Content-Length: ");
        if (at == std::string::npos || at > head) return InternalError("no length");
        const std::size_t bytes = std::strtoull(in.c_str() + at + 16, nullptr, 10);
        if (in.size() >= head + 4 + bytes) {
          const bool ok = in.starts_with("HTTP/1.1 2");
          std::string body = in.substr(head + 4, bytes);
          in.erase(0, head + 4 + bytes);
          if (!ok) return InternalError("refused: " + body);
          return body;
        }
      }
      char bytes[4096];
      const ssize_t got = recv(fd_, bytes, sizeof bytes, 0);
      if (got <= 0) return UnavailableError("recv");
      in.append(bytes, static_cast<std::size_t>(got));
    }
  }
  Result<std::string> Call(const std::string& method, const std::string& path,
                           const std::string& token, const std::string& body) {
    RETURN_IF_ERROR(Send(method, path, token, body));
    return Receive();
  }

 private:
  int fd_ = -1;
  std::string buffer_;
};

struct Joined {
  std::string base;
  std::string token;
};

Result<Joined> Join(Connection* connection, const std::string& name) {
  ASSIGN_OR_RETURN(const std::string text,
                   connection->Call("POST", "/trial/v1/join", kJoin,
                                    fmt::format(R"({{"external_id":"{}"}})", name)));
  ASSIGN_OR_RETURN(const Value info, DecodeJson(text));
  return Joined{
      .base = fmt::format("/trial/v1/trials/{}/runs/{}", *info.Find("trial_id")->if_string(),
                          info.Find("run_id")->AsInt()),
      .token = *info.Find("token")->if_string()};
}

/// An engine with a journal on the disk that is measured, and its socket.
struct World {
  std::unique_ptr<Store> store;
  std::unique_ptr<JournalEventLog> journal;
  std::unique_ptr<CountingLog> log;
  std::unique_ptr<RepositoryAccess> repositories;
  std::unique_ptr<TrialEngine> engine;
  std::unique_ptr<HttpServer> server;

  Status Open(const std::string& directory) {
    ASSIGN_OR_RETURN(store, OpenLocalStore(directory));
    ASSIGN_OR_RETURN(journal, JournalEventLog::Open({.store = store.get(), .prefix = "events"}));
    log = std::make_unique<CountingLog>(journal.get());
    repositories = RepositoryAccess::Real();
    ASSIGN_OR_RETURN(engine, TrialEngine::Open({.log = log.get(),
                                                .repositories = repositories.get(),
                                                .heartbeat = std::chrono::hours(1),
                                                .join_token = kJoin,
                                                .join_storage = directory + "/storage"}));
    RETURN_IF_ERROR(engine->Start());
    ASSIGN_OR_RETURN(server, HttpServer::Start({}, TrialRoutes(engine.get())));
    return Status::Ok();
  }
};

Status AppendGroups(const std::string& path, const std::vector<std::size_t>& groups) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return InternalError("open " + path);
  std::string bytes;
  Status status;
  for (const std::size_t group : groups) {
    bytes.resize(std::max(bytes.size(), group), 'x');
    if (write(fd, bytes.data(), group) != static_cast<ssize_t>(group) || fdatasync(fd) != 0) {
      status = InternalError("write " + path);
      break;
    }
  }
  close(fd);
  return status;
}

}  // namespace

Status RunReports(const Options& options) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "reports"));
  World world;
  RETURN_IF_ERROR(world.Open(directory));
  const int each = options.variant == "quick" ? 50 : 400;
  std::vector<Connection> connections(kConnections);
  std::vector<Joined> joined;
  for (int i = 0; i < kConnections; ++i) {
    RETURN_IF_ERROR(connections[static_cast<std::size_t>(i)].Open(world.server->port()));
    ASSIGN_OR_RETURN(Joined one,
                     Join(&connections[static_cast<std::size_t>(i)], fmt::format("t{}", i)));
    joined.push_back(std::move(one));
  }
  std::vector<std::size_t> groups;
  std::int64_t first = 1;
  const auto bytes = static_cast<std::uint64_t>(kConnections) * static_cast<std::uint64_t>(each);
  const std::vector<Contender> contenders = {
      {"cairn", bytes,
       [&](Stopwatch* watch) -> Status {
         world.log->TakeGroups();
         std::atomic<int> failed{0};
         watch->Start();
         {
           std::vector<std::jthread> threads;
           for (std::size_t i = 0; i < kConnections; ++i) {
             threads.emplace_back([&, i] {
               for (std::int64_t n = first; n < first + each; ++n) {
                 const std::string body = fmt::format(
                     R"({{"sequence":{},"group":"training","steps_completed":{},"metrics":{{"loss":0.125,"accuracy":0.5}}}})",
                     n, n);
                 if (!connections[i]
                          .Call("POST", joined[i].base + "/reports", joined[i].token, body)
                          .ok()) {
                   ++failed;
                   return;
                 }
               }
             });
           }
         }
         watch->Stop();
         first += each;
         if (failed > 0) return InternalError("a report was not answered");
         groups = world.log->TakeGroups();
         watch->Note("syncs", static_cast<double>(groups.size()));
         return Status::Ok();
       }},
      {"append", bytes,
       [&](Stopwatch* watch) {
         watch->Start();
         const Status appended = AppendGroups(directory + "/plain", groups);
         watch->Stop();
         return appended;
       }},
  };
  // A first round gives the baseline its groups whoever comes first.
  Stopwatch ignored;
  RETURN_IF_ERROR(contenders[0].run(&ignored));
  RETURN_IF_ERROR(RunRounds(options, "reports", [] { return Status::Ok(); }, contenders));
  world.server->Stop();
  RemoveDirectory(directory);
  return Status::Ok();
}

Status RunPauseTold(const Options& options) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "pause"));
  World world;
  RETURN_IF_ERROR(world.Open(directory));
  Connection poll;
  Connection other;
  RETURN_IF_ERROR(poll.Open(world.server->port()));
  RETURN_IF_ERROR(other.Open(world.server->port()));
  std::vector<double> told;
  for (int i = 0; i < 300; ++i) {
    ASSIGN_OR_RETURN(const Joined run, Join(&other, "t"));
    RETURN_IF_ERROR(other.Call("POST", run.base + "/ready", run.token, R"({"rank":0})").status());
    RETURN_IF_ERROR(poll.Send("GET", run.base + "/preemption?timeout=60", run.token, ""));
    // The poll is there when the engine has answered something that was sent after it.
    RETURN_IF_ERROR(other.Call("POST", run.base + "/heartbeat", run.token, "{}").status());
    const double began = Now();
    std::future<Status> paused =
        std::async(std::launch::async, [&] { return world.engine->Pause("1"); });
    RETURN_IF_ERROR(poll.Receive().status());
    told.push_back(Now() - began);
    RETURN_IF_ERROR(paused.get());
    RETURN_IF_ERROR(other.Call("POST", run.base + "/preemption/ack", run.token, "{}").status());
    RETURN_IF_ERROR(other.Call("POST", run.base + "/exit", run.token, R"({"code":0})").status());
  }
  std::ranges::sort(told);
  PrintFact("pause_told", "p50", told[told.size() / 2]);
  PrintFact("pause_told", "p99", told[told.size() * 99 / 100]);
  world.server->Stop();
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
