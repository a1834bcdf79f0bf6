// A trainer that does what it is told on its standard input, a line at a time, and answers each
// line with one: the other half of stopped_process_test. `--stop-at STEP` or `stop STEP` makes it
// stop itself (SIGSTOP) when the engine's next protocol step of that name begins. SIGUSR1 sets its
// clock forward by an hour.
//
//   stop STEP            → ok
//   save STEP VALUE      → saved STEP ID              (acknowledged, and retention is done)
//   restore [STEP]       → restored STEP VALUE ID | nothing
//   pin ID | delete ID   → ok
//   quit                 → ok
//
// Whatever fails is answered with "error CODE MESSAGE". The first line of all says how the opening
// went: "opened GENERATION" or an error.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>

#include "base/log.h"
#include "base/settable_clock.h"
#include "checkpoint/manager.h"

namespace {

using namespace cairn;

SettableClock the_clock;

void Answer(const std::string& line) { std::cout << line << std::endl; }
void AnswerError(const Status& status) {
  std::string message(status.message());
  for (char& c : message) c = c == '\n' ? ' ' : c;
  Answer("error " + std::string(CodeName(status.code())) + " " + message);
}

struct Settings {
  ManagerOptions options;
  std::string stop_at;
};

std::optional<Settings> Parse(int argc, char** argv) {
  Settings settings;
  ManagerOptions& options = settings.options;
  options.copy_threads = 1;
  options.retention.keep_last.reset();
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--takeover") {
      options.takeover = true;
      continue;
    }
    if (flag == "--read-only") {
      options.read_only = true;
      continue;
    }
    if (++i == argc) return std::nullopt;
    const std::string value = argv[i];
    if (flag == "--dir") {
      options.directory = value;
    } else if (flag == "--rank") {
      options.rank = std::stoi(value);
    } else if (flag == "--world-size") {
      options.world_size = std::stoi(value);
    } else if (flag == "--keep-last") {
      options.retention.keep_last = std::stoull(value);
    } else if (flag == "--deadline-ms") {
      options.deadline = std::chrono::milliseconds(std::stoi(value));
    } else if (flag == "--join-deadline-ms") {
      options.join_deadline = std::chrono::milliseconds(std::stoi(value));
    } else if (flag == "--stop-at") {
      settings.stop_at = value;
    } else {
      return std::nullopt;
    }
  }
  return settings;
}

class Trainer {
 public:
  Trainer(CheckpointManager* manager, const ManagerOptions& options)
      : manager_(manager), options_(options) {}

  void Save(std::int64_t step, std::int64_t value) {
    // One tensor that changes, in pieces when there are several ranks, and one that never does.
    const std::int64_t constant = 7;
    Tensor changing{.name = "w", .dtype = DType::kI64, .shape = {1}, .data = &value};
    Tensor frozen{.name = "frozen", .dtype = DType::kI64, .shape = {1}, .data = &constant};
    for (Tensor* tensor : {&changing, &frozen}) {
      if (options_.world_size == 1) break;
      tensor->shard = ShardSpec{{static_cast<std::uint64_t>(options_.world_size)},
                                {static_cast<std::uint64_t>(options_.rank)}};
    }
    auto handle = manager_->Save({.step = step, .tensors = {changing, frozen}, .blocking = true});
    Status status = handle.status();
    if (status.ok()) status = manager_->WaitAll();
    if (!status.ok()) return AnswerError(status);
    Answer("saved " + std::to_string(step) + " " + handle->Wait()->id);
  }

  void Restore(std::optional<std::int64_t> step) {
    RestoreRequest request;
    request.allocate = true;
    request.step = step;
    auto restored = manager_->Restore(std::move(request));
    if (!restored.ok()) return AnswerError(restored.status());
    if (!restored->has_value()) return Answer("nothing");
    std::int64_t value = 0;
    for (const OwnedTensor& tensor : (*restored)->tensors) {
      if (tensor.name == "w") std::memcpy(&value, tensor.data.get(), sizeof value);
    }
    Answer("restored " + std::to_string((*restored)->step) + " " + std::to_string(value) + " " +
           (*restored)->info.id);
  }

  void Told(const Status& status) {
    if (status.ok()) return Answer("ok");
    AnswerError(status);
  }

 private:
  CheckpointManager* const manager_;
  const ManagerOptions options_;
};

}  // namespace

int main(int argc, char** argv) {
  auto settings = Parse(argc, argv);
  if (!settings || settings->options.directory.empty()) {
    std::cerr << "usage: stepping_process --dir DIR [--rank R --world-size N] [--takeover] …\n";
    return 2;
  }
  SetLogSink([](LogLevel, std::string_view) {});
  auto env = EnvironmentAt(settings->options.directory, {.create = true});
  if (!env.ok()) {
    AnswerError(env.status());
    return 1;
  }
  env->clock = &the_clock;
  struct sigaction forward{};
  forward.sa_handler = [](int) { the_clock.Advance(std::chrono::hours(1)); };  // lock-free
  forward.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &forward, nullptr);
  // Written while nothing is in flight, so that the engine's threads see it.
  std::string stop_at = settings->stop_at;
  env->on_step = [&stop_at](std::string_view step) {
    if (stop_at.empty() || step != stop_at) return;
    stop_at.clear();
    raise(SIGSTOP);
  };
  LayoutLimits limits;
  limits.recycle_from_bytes = 1;
  limits.own_file_bytes = 1;
  auto manager = OpenManager(settings->options, *env, limits);
  if (!manager.ok()) {
    AnswerError(manager.status());
    return 1;
  }
  Answer("opened " + std::to_string((*manager)->generation()));
  Trainer trainer(manager->get(), settings->options);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "stop") {
      std::getline(words >> std::ws, stop_at);
      Answer("ok");
    } else if (what == "save") {
      std::int64_t step = 0;
      std::int64_t value = 0;
      words >> step >> value;
      trainer.Save(step, value);
    } else if (what == "restore") {
      std::int64_t step = 0;
      trainer.Restore(words >> step ? std::optional(step) : std::nullopt);
    } else if (what == "pin" || what == "delete") {
      std::string id;
      words >> id;
      trainer.Told(what == "pin" ? (*manager)->Pin(id) : (*manager)->Delete(id));
    } else if (what == "quit") {
      trainer.Told((*manager)->Close());
      return 0;
    } else {
      Answer("error InvalidArgument what is \"" + what + "\"?");
    }
  }
  return 0;
}
