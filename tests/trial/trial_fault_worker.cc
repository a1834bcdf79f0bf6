// A training process that speaks the trial protocol by hand: counts x from 0 to STEPS, reports
// every step, saves every fifth, pauses when told. What was acknowledged to it goes into a ledger
// that outlives everybody.
//   trial_fault_worker LEDGER_DIR STEPS
// STEPS 0: slowly and without end, until LEDGER_DIR/steps says how many it is to be.
//
// A file LEDGER_DIR/<trial>.kill with a letter in it: the process kills itself in that phase, once.
// While LEDGER_DIR/deaf is there it does not hear that it is to stop.
//
// Ledger lines: "pid N", "report RUN SEQUENCE STEPS", "checkpoint ID STEPS", "double RUN" when
// another process of the same trial lives.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <thread>

#include <cairn/checkpoint_manager.h>

#include "format/json.h"
#include "net/http_client.h"
#include "net/url.h"

namespace cairn {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Where the engine is, for a client of HTTP: it is told to trials as unix:/path.
std::string EngineUrl() {
  const std::string path = Env("CAIRN_TRIAL_URL").substr(std::string_view("unix:").size());
  return "http+unix://" + PercentEncode(path);
}

constexpr int kStale = 7;

class Worker {
 public:
  explicit Worker(const std::string& ledger_directory)
      : directory_(ledger_directory), trial_(Env("CAIRN_TRIAL_ID")), run_(Env("CAIRN_RUN_ID")) {
    const std::string base = ledger_directory + "/" + trial_;
    ledger_ = open((base + ".ledger").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    phase_ = open((base + ".phase").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const int live = open((base + ".live").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (flock(live, LOCK_EX | LOCK_NB) != 0) Write(fmt::format("double {}", run_));
    Write(fmt::format("pid {}", getpid()));
    client_ = HttpClient::Open({}).value();
  }

  void Phase(char phase) const {
    if (pwrite(phase_, &phase, 1, 0) != 1) std::abort();
    const std::string order = directory_ + "/" + trial_ + ".kill";
    char aimed = 0;
    std::ifstream(order).get(aimed);
    if (aimed != phase) return;
    unlink(order.c_str());
    kill(getpid(), SIGKILL);
  }
  void Write(const std::string& line) const {
    const std::string text = line + "\n";
    if (write(ledger_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }

  /// Sends until it is answered: the engine may be dead for a while.
  Value Send(const std::string& method, const std::string& path, const std::string& body = "") {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      const auto answer = client_->Fetch(HttpCall{
          .prepare = [&](int) -> Result<HttpRequest> {
            return HttpRequest{.method = method,
                               .url = fmt::format("{}/trial/v1/trials/{}/runs/{}{}", EngineUrl(),
                                                  trial_, run_, path),
                               .headers = {{"Authorization", "Bearer " + Env("CAIRN_RUN_TOKEN")}},
                               .body = std::as_bytes(std::span(body.data(), body.size()))};
          },
          .max_attempts = 1});
      if (answer.ok() && answer->Succeeded()) return DecodeJson(answer->body).value();
      if (answer.ok() && answer->status == 409) _exit(kStale);
      if (answer.ok() && answer->status != 503) {
        fmt::print(stderr, "{} {}: {} {}\n", method, path, answer->status, answer->body);
        _exit(8);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    _exit(9);
  }

  int Run(std::int64_t steps) {
    const auto goal = [&] {
      if (steps != 0) return steps;
      std::int64_t named = 0;
      std::ifstream(directory_ + "/steps") >> named;
      return named != 0 ? named : std::numeric_limits<std::int64_t>::max();
    };
    Phase('s');
    const Value info = Send("GET", "");
    auto manager = CheckpointManager::Open({.directory = *info.Find("repository")->if_string(),
                                            .run = std::stoull(run_),
                                            .retention = {.keep_last = std::nullopt}});
    if (!manager.ok()) {
      fmt::print(stderr, "{}\n", manager.status().ToString());
      return 10;
    }
    std::int64_t x = 0;
    if (const Value* latest = info.Find("latest_checkpoint");
        latest != nullptr && latest->is_object()) {
      auto restored = (*manager)->Restore({.id = *latest->Find("id")->if_string()});
      if (!restored.ok() || !*restored) return 11;
      x = (*restored)->counters.Find("x")->AsInt(-1);
      if (x != latest->Find("steps_completed")->AsInt(-2)) return 12;
    }
    Send("POST", "/ready", R"({"rank":0})");
    for (std::int64_t sequence = 1; x < goal(); ++sequence) {
      ++x;
      if (goal() == std::numeric_limits<std::int64_t>::max()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      Phase('r');
      Send("POST", "/reports",
           EncodeJson(Value::Object{{"sequence", sequence},
                                    {"group", "training"},
                                    {"steps_completed", x},
                                    {"metrics", Value::Object{{"x", x}}}}));
      Write(fmt::format("report {} {} {}", run_, sequence, x));
      Phase('p');
      const Value told = Send("GET", "/preemption?timeout=0");
      const bool preempt =
          *told.Find("preempt")->if_bool() && access((directory_ + "/deaf").c_str(), F_OK) != 0;
      if (x % 5 == 0 || preempt || x >= goal()) Save(manager->get(), x);
      if (preempt) {
        Phase('a');
        Send("POST", "/preemption/ack");
        Phase('e');
        return 0;
      }
    }
    Phase('e');
    return 0;
  }

 private:
  void Save(CheckpointManager* manager, std::int64_t x) {
    Phase('b');
    const std::string registration = fmt::format("{}-{}-{}", trial_, run_, x);
    Send("POST", "/checkpoints",
         EncodeJson(Value::Object{{"registration", registration}, {"steps_completed", x}}));
    Phase('w');
    const auto handle = manager->Save({.step = x,
                                       .counters = Value::Object{{"x", x}},
                                       .metadata = Value::Object{{"steps_completed", x}},
                                       .blocking = true});
    if (!handle.ok()) _exit(13);
    const auto saved = handle->Wait();
    if (!saved.ok()) _exit(13);
    Phase('c');
    Send("POST", "/checkpoints/" + registration + "/complete",
         EncodeJson(Value::Object{{"id", saved->id},
                                  {"steps_completed", x},
                                  {"metadata", saved->metadata},
                                  {"generation", saved->generation},
                                  {"sequence", saved->sequence}}));
    Write(fmt::format("checkpoint {} {}", saved->id, x));
  }

  const std::string directory_;
  const std::string trial_;
  const std::string run_;
  int ledger_ = -1;
  int phase_ = -1;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace
}  // namespace cairn

int main(int, char** argv) { return cairn::Worker(argv[1]).Run(std::atoll(argv[2])); }
