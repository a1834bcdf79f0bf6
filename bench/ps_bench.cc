// What bench/ps.py measures of parameter servers; figures as JSON on standard output.
//
//   ps_bench pull ROWS ROUNDS            p50 of a pull, of one over gRPC, and of a raw TCP echo of
//                                        the same bytes (with the same congestion control, and with
//                                        the machine's default), by round
//   ps_bench pulls ROWS CALLS            pulls alone, for a profiler; their p50 in microseconds
//   ps_bench rows ROUNDS                 rows per second, servers and in-process, by round
//   ps_bench increment ROUNDS            batch times before and while an increment is written
//   ps_bench log ROUNDS                  rows per second without, with written and synced logs
//   ps_bench recovery ROWS DIRECTORY     start to first pull; reading the bytes and plain inserts
//   ps_bench repeated RECOVERY ROUNDS    steps done again after a server was killed, by round
//
// The servers are processes: CAIRN_PROGRAM is the program `cairn`.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <cairn/ps.h>
#include <cairn/table.h>

#include "format/json.h"

namespace {

using namespace cairn;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kDim = 16;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

[[noreturn]] void Fail(const Status& status) {
  std::fprintf(stderr, "ps_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}
void Check(const Status& status) {
  if (!status.ok()) Fail(status);
}
template <typename T>
T Get(Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return std::move(result).value();
}

/// A server process, killed with this object.
class ServerProcess {
 public:
  ServerProcess(const std::string& directory, int index, int servers, int trainers,
                const std::vector<std::string>& more) {
    const char* program = std::getenv("CAIRN_PROGRAM");
    std::vector<std::string> words = {program == nullptr ? "cairn" : program,
                                      "pserver",
                                      "--dir",
                                      directory,
                                      "--index",
                                      std::to_string(index),
                                      "--servers",
                                      std::to_string(servers),
                                      "--trainers",
                                      std::to_string(trainers),
                                      "--mode",
                                      "async"};
    words.insert(words.end(), more.begin(), more.end());
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::freopen("/dev/null", "w", stderr);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  ~ServerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

 private:
  pid_t pid_ = -1;
};

class TempDirectory {
 public:
  TempDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-ps-bench-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<ps::Client> Connect(const std::string& directory, int servers, int trainer,
                                    int trainers,
                                    ps::Transport transport = ps::Transport::kSocket) {
  ps::ClientOptions options;
  options.transport = transport;
  options.directory = directory;
  options.num_servers = servers;
  options.trainer = trainer;
  options.trainers = trainers;
  options.reconnect_timeout = std::chrono::seconds(120);
  return Get(ps::Client::Connect(options));
}

ps::TableSpec Spec() {
  ps::TableSpec spec{.name = "rows", .dim = kDim};
  spec.optimizer = {"adagrad", {{"learning_rate", 0.01}}};
  return spec;
}

void ReadAll(int fd, char* into, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = read(fd, into, bytes);
    if (n <= 0) _exit(0);
    into += n;
    bytes -= static_cast<std::size_t>(n);
  }
}
void WriteAll(int fd, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(fd, from, bytes);
    if (n <= 0) _exit(0);
    from += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

/// A process that answers requests of a size with answers of a size. With the congestion control
/// that plain connections have within a machine, or (`paced`) with the machine's default, which may
/// space packets out in time.
class Echo {
 public:
  Echo(std::size_t request, std::size_t answer, bool paced) : request_(request), answer_(answer) {
    const auto unpace = [paced](int fd) {
      if (!paced) setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    };
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    unpace(listener);  // and so all that it accepts
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(listener, reinterpret_cast<sockaddr*>(&address), size);
    listen(listener, 1);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    pid_ = fork();
    const int one = 1;
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int fd = accept(listener, nullptr, nullptr);
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      std::vector<char> in(request), out(answer);
      for (;;) {
        ReadAll(fd, in.data(), in.size());
        WriteAll(fd, out.data(), out.size());
      }
    }
    close(listener);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    unpace(fd_);
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::exit(1);
  }
  ~Echo() {
    close(fd_);
    waitpid(pid_, nullptr, 0);
  }
  void Call() {
    static thread_local std::vector<char> buffer;
    buffer.resize(std::max(request_, answer_));
    WriteAll(fd_, buffer.data(), request_);
    ReadAll(fd_, buffer.data(), answer_);
  }

 private:
  const std::size_t request_;
  const std::size_t answer_;
  pid_t pid_ = -1;
  int fd_ = -1;
};

std::vector<std::int64_t> RandomIds(std::size_t count, std::uint64_t range, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % range);
  return ids;
}

int Pull(std::size_t rows, int rounds) {
  TempDirectory directory;
  Echo echo(24 + 8 * rows, 24 + 4 * kDim * rows, /*paced=*/false);
  Echo paced(24 + 8 * rows, 24 + 4 * kDim * rows, /*paced=*/true);
  ServerProcess server(directory.path(), 0, 1, 1, {"--full-secs", "0"});
  auto client = Connect(directory.path(), 1, 0, 1);
  ps::RemoteTable* table = Get(client->Table(Spec()));
  auto looker = Connect(directory.path(), 1, -1, 1, ps::Transport::kGrpc);
  ps::RemoteTable* over_grpc = Get(looker->Table(Spec()));
  const auto ids = RandomIds(rows, 100'000, 1);
  std::vector<float> out(rows * kDim);
  const int calls = static_cast<int>(std::clamp<std::size_t>(4'000'000 / (rows + 2000), 50, 2000));
  Value::List list;
  for (int round = -1; round < rounds; ++round) {
    const auto median_of = [calls](const auto& call) {
      std::vector<double> times;
      for (int i = 0; i < calls; ++i) {
        const auto begun = Clock::now();
        call();
        times.push_back(Seconds(Clock::now() - begun));
      }
      return Median(std::move(times));
    };
    const double pull = median_of([&] { Check(table->Lookup(ids, out)); });
    const double echoed = median_of([&] { echo.Call(); });
    const double paced_echo = median_of([&] { paced.Call(); });
    const double grpc = median_of([&] { Check(over_grpc->Lookup(ids, out)); });
    if (round < 0) continue;  // warm
    list.push_back(Value::Object{
        {"pull", pull}, {"grpc", grpc}, {"echo", echoed}, {"paced_echo", paced_echo}});
  }
  std::puts(EncodeJson(Value::Object{{"rounds", std::move(list)}}).c_str());
  return 0;
}

int Pulls(std::size_t rows, int calls) {
  TempDirectory directory;
  ServerProcess server(directory.path(), 0, 1, 1, {"--full-secs", "0"});
  auto client = Connect(directory.path(), 1, 0, 1);
  ps::RemoteTable* table = Get(client->Table(Spec()));
  const auto ids = RandomIds(rows, 100'000, 1);
  std::vector<float> out(rows * kDim);
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto begun = Clock::now();
    Check(table->Lookup(ids, out));
    times.push_back(Seconds(Clock::now() - begun));
  }
  std::printf("%.1f\n", Median(std::move(times)) * 1e6);
  return 0;
}

constexpr std::size_t kBatch = 4096;
constexpr std::uint64_t kRange = 1'000'000;

/// Pull and push of batches on two threads for about a second; rows per second.
template <typename Work>
double RowsPerSecond(const Work& work) {
  std::atomic<std::uint64_t> rows{0};
  const auto begun = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        for (std::uint64_t batch = 0; Seconds(Clock::now() - begun) < 1.0; ++batch) {
          const auto ids = RandomIds(kBatch, kRange, batch * 2 + static_cast<std::uint64_t>(t));
          std::vector<float> values(kBatch * kDim);
          work(t, ids, &values);
          rows += kBatch;
        }
      });
    }
  }
  return static_cast<double>(rows.load()) / Seconds(Clock::now() - begun);
}

int RowRates(int rounds) {
  TempDirectory directory;
  ServerProcess first(directory.path(), 0, 2, 2, {"--full-secs", "0"});
  ServerProcess second(directory.path(), 1, 2, 2, {"--full-secs", "0"});
  std::vector<std::unique_ptr<ps::Client>> clients;
  std::vector<ps::RemoteTable*> remote;
  for (int t = 0; t < 2; ++t) {
    clients.push_back(Connect(directory.path(), 2, t, 2));
    remote.push_back(Get(clients.back()->Table(Spec())));
  }
  TableOptions options;
  options.name = "rows";
  options.dim = kDim;
  options.optimizer = Get(MakeAdagrad({.learning_rate = 0.01F}));
  options.initializer = Get(MakeUniform(-0.05F, 0.05F));
  const auto local = Get(Table::Make(options));
  Value::List list;
  for (int round = -1; round < rounds; ++round) {
    const double served = RowsPerSecond([&](int t, const auto& ids, std::vector<float>* values) {
      auto* table = remote[static_cast<std::size_t>(t)];
      Check(table->Lookup(ids, *values));
      Check(table->ApplyGradients(ids, *values));
    });
    const double in_process = RowsPerSecond([&](int, const auto& ids, std::vector<float>* values) {
      Check(local->Lookup(ids, *values));
      Check(local->ApplyGradients(ids, *values));
    });
    if (round < 0) continue;
    list.push_back(Value::Object{{"served", served}, {"in_process", in_process}});
  }
  std::puts(EncodeJson(Value::Object{{"rounds", std::move(list)}}).c_str());
  return 0;
}

/// Rows per second with update logs of each level against none: three jobs, measured in turn.
int LogRates(int rounds) {
  struct Job {
    const char* name;
    std::vector<std::string> flags;
    TempDirectory directory;
    std::vector<std::unique_ptr<ServerProcess>> servers;
    std::vector<std::unique_ptr<ps::Client>> clients;
    std::vector<ps::RemoteTable*> tables;
  };
  std::vector<Job> jobs(3);
  jobs[0].name = "off";
  jobs[1].name = "written";
  jobs[1].flags = {"--recovery", "log"};
  jobs[2].name = "synced";
  jobs[2].flags = {"--recovery", "log", "--log-level", "synced"};
  for (Job& job : jobs) {
    job.flags.insert(job.flags.end(), {"--full-secs", "0"});
    for (int i = 0; i < 2; ++i) {
      job.servers.push_back(
          std::make_unique<ServerProcess>(job.directory.path(), i, 2, 2, job.flags));
    }
    for (int t = 0; t < 2; ++t) {
      job.clients.push_back(Connect(job.directory.path(), 2, t, 2));
      job.tables.push_back(Get(job.clients.back()->Table(Spec())));
    }
  }
  Value::List list;
  for (int round = -1; round < rounds; ++round) {
    Value::Object measured;
    for (Job& job : jobs) {
      measured[job.name] = RowsPerSecond([&](int t, const auto& ids, std::vector<float>* values) {
        ps::RemoteTable* table = job.tables[static_cast<std::size_t>(t)];
        Check(table->Lookup(ids, *values));
        Check(table->ApplyGradients(ids, *values));
      });
    }
    if (round >= 0) list.push_back(std::move(measured));
  }
  std::puts(EncodeJson(Value::Object{{"rounds", std::move(list)}}).c_str());
  return 0;
}

bool Saving(ps::Client* client) {
  const Value status = Get(DecodeJson(Get(client->StatusOf(0))));
  return *status.Find("saving") == Value(true);
}

/// The newest committed increment of a repository.
std::string NewestIncrement(const std::string& directory) {
  std::string newest;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("increment_")) continue;
    if (std::filesystem::exists(entry.path() / "manifest.json")) newest = std::max(newest, name);
  }
  return newest;
}

/// Each increment stands on a full of its own, and has about a seventh of the rows: a server makes
/// a full of what has grown beyond half of its base.
int Increment(int rounds) {
  constexpr std::uint64_t kRows = 4'000'000;
  TempDirectory directory;
  ServerProcess server(directory.path(), 0, 1, 1, {"--full-secs", "0"});
  auto client = Connect(directory.path(), 1, 0, 1);
  ps::RemoteTable* table = Get(client->Table(Spec()));
  std::vector<float> values(kBatch * kDim);
  for (std::uint64_t at = 0; at < kRows; at += kBatch) {
    std::vector<std::int64_t> ids(kBatch);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(at + i);
    Check(table->ApplyGradients(ids, values));
  }
  std::uint64_t seed = 0;
  const auto batch = [&] {
    const auto ids = RandomIds(kBatch, kRows, ++seed);
    const auto begun = Clock::now();
    Check(table->Lookup(ids, values));
    Check(table->ApplyGradients(ids, values));
    Check(client->EndStep(""));
    return Seconds(Clock::now() - begun);
  };
  const auto save = [&](bool full) {
    Check(client->RequestSave(full));
    batch();
    batch();
  };
  Value::List list;
  for (int round = 0; round < rounds; ++round) {
    save(true);
    while (Saving(client.get())) usleep(10'000);
    std::vector<double> before, during;
    for (int i = 0; i < 150; ++i) {
      before.push_back(batch());
      (void)Saving(client.get());  // asked as often as while it saves
    }
    const std::string increment = NewestIncrement(directory.path());
    save(false);
    while (Saving(client.get())) during.push_back(batch());
    if (NewestIncrement(directory.path()) == increment) {
      Fail(InternalError("what was written is no increment"));
    }
    if (during.size() < 5) continue;  // too short to tell
    list.push_back(Value::Object{{"before", Median(before)},
                                 {"during", Median(during)},
                                 {"batches", static_cast<std::uint64_t>(during.size())}});
  }
  std::puts(EncodeJson(Value::Object{{"rounds", std::move(list)}}).c_str());
  return 0;
}

/// Kills a server, each round at another place between two increments, and counts the steps that
/// were done again.
int Repeated(const std::string& recovery, int rounds) {
  constexpr std::int64_t kInterval = 100;  // steps between increments
  const std::vector<std::string> flags = {
      "--full-secs", "0", "--incremental-steps", std::to_string(kInterval), "--recovery", recovery};
  Value::List list;
  for (int round = 0; round < rounds; ++round) {
    TempDirectory directory;
    std::vector<std::unique_ptr<ServerProcess>> servers;
    const auto start = [&](int i) {
      return std::make_unique<ServerProcess>(directory.path(), i, 2, 1, flags);
    };
    for (int i = 0; i < 2; ++i) servers.push_back(start(i));
    auto client = Connect(directory.path(), 2, 0, 1);
    ps::RemoteTable* table = Get(client->Table(Spec()));
    const std::int64_t killed_at = 3 * kInterval + kInterval * round / rounds;
    const auto ids = RandomIds(kBatch, kRange, static_cast<std::uint64_t>(round));
    std::vector<float> values(kBatch * kDim);
    std::int64_t completed = 0;
    int kills = 0;
    while (client->step() < killed_at + 10) {
      if (client->step() == killed_at && kills++ == 0) {
        const auto victim = static_cast<std::size_t>(round % 2);
        servers[victim] = nullptr;
        servers[victim] = start(round % 2);
      }
      Status done = table->Lookup(ids, values);
      if (done.ok()) done = table->ApplyGradients(ids, values);
      if (done.ok()) done = client->EndStep("");
      if (done.Is(Code::kAborted)) continue;  // it went back
      Check(done);
      ++completed;
    }
    list.push_back(
        Value::Object{{"repeated", completed - (killed_at + 10)}, {"interval", kInterval}});
  }
  std::puts(EncodeJson(Value::Object{{"rounds", std::move(list)}}).c_str());
  return 0;
}

int Recovery(std::uint64_t rows, const std::string& directory) {
  std::filesystem::remove_all(directory);
  {
    ServerProcess server(directory, 0, 1, 1, {"--full-secs", "0"});
    auto client = Connect(directory, 1, 0, 1);
    ps::RemoteTable* table = Get(client->Table(Spec()));
    std::vector<float> values(65536 * kDim, 0.5F);
    for (std::uint64_t at = 0; at < rows; at += 65536) {
      std::vector<std::int64_t> ids(65536);
      for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(at + i);
      Check(table->ApplyGradients(ids, values));
    }
    Check(client->RequestSave(true));
    Check(client->EndStep(""));
    Check(client->EndStep(""));
    while (Saving(client.get())) usleep(10'000);
  }
  std::string file;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().filename() == "ps_0.safetensors") file = entry.path();
  }
  Value::List list;
  for (int round = 0; round < 3; ++round) {
    auto begun = Clock::now();
    ServerProcess server(directory, 0, 1, 1, {"--full-secs", "0"});
    auto client = Connect(directory, 1, 0, 1);
    ps::RemoteTable* table = Get(client->Table(Spec()));
    std::vector<float> row(kDim);
    Check(table->Lookup(std::vector<std::int64_t>{7}, row));
    const double recovered = Seconds(Clock::now() - begun);
    client = nullptr;

    begun = Clock::now();
    const std::uint64_t bytes = std::filesystem::file_size(file);
    std::vector<char> memory(bytes);
    std::ifstream(file, std::ios::binary).read(memory.data(), static_cast<std::streamsize>(bytes));
    std::unordered_map<std::int64_t, std::uint64_t> index;
    index.reserve(rows);
    for (std::uint64_t i = 0; i < rows; ++i) index.emplace(static_cast<std::int64_t>(i), i);
    const double plain = Seconds(Clock::now() - begun);
    list.push_back(Value::Object{{"recovered", recovered}, {"plain", plain}, {"bytes", bytes}});
  }
  std::puts(EncodeJson(Value::Object{{"rounds", std::move(list)}}).c_str());
  std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "pull" && argc == 4) {
    return Pull(static_cast<std::size_t>(std::atoll(argv[2])), std::atoi(argv[3]));
  }
  if (what == "pulls" && argc == 4) {
    return Pulls(static_cast<std::size_t>(std::atoll(argv[2])), std::atoi(argv[3]));
  }
  if (what == "rows" && argc == 3) return RowRates(std::atoi(argv[2]));
  if (what == "log" && argc == 3) return LogRates(std::atoi(argv[2]));
  if (what == "increment" && argc == 3) return Increment(std::atoi(argv[2]));
  if (what == "recovery" && argc == 4) {
    return Recovery(static_cast<std::uint64_t>(std::atoll(argv[2])), argv[3]);
  }
  if (what == "repeated" && argc == 4) return Repeated(argv[2], std::atoi(argv[3]));
  std::fputs(
      "ps_bench pull ROWS ROUNDS | pulls ROWS CALLS | rows ROUNDS | log ROUNDS | increment ROUNDS "
      "| recovery ROWS "
      "DIR | repeated RECOVERY ROUNDS\n",
      stderr);
  return 2;
}
