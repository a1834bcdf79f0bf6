// A worker in C++: what python/cairn/tune/_worker_session.py and worker.py are for Python. The
// order is the same: a checkpoint is committed, then reported with its result; a result whose
// report got lost with the tuner is made up for from the manifest.
#include "tune/run_worker.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <tuple>
#include <utility>

#include <cairn/checkpoint_manager.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "storage/open_store.h"
#include "trial/client_run.h"
#include "trial/core_files.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;
using core::kStaging;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Where a trial's output goes that is kept in its directory.
constexpr char kStdoutName[] = "stdout";
constexpr char kStderrName[] = "stderr";
/// The tuner is asked no more often whether the trial is to end.
constexpr auto kAskAgain = std::chrono::milliseconds(500);
/// By the tuner, whatever a report has under these names.
constexpr std::array<const char*, 4> kFilledLater = {"trial_id", "config", "date",
                                                     "experiment_tag"};

/// The address of this machine that others would see; loopback's without a network.
std::string OwnAddress() {
  std::string text = "127.0.0.1";
  const int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return text;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, nobody's; nothing is sent
  socklen_t size = sizeof address;
  if (connect(probe, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    char buffer[INET_ADDRSTRLEN];
    if (inet_ntop(AF_INET, &address.sin_addr, buffer, sizeof buffer) != nullptr) text = buffer;
  }
  close(probe);
  return text;
}

/// The keys of a result that tell which process made it.
Value::Object MadeHere() {
  char name[256] = {};
  const bool named = gethostname(name, sizeof name - 1) == 0;
  return {{"pid", std::int64_t{getpid()}},
          {"hostname", std::string(named ? name : "localhost")},
          {"node_ip", OwnAddress()}};
}

class Worker final : public Trial {
 public:
  Status Begin() {
    const std::string run = Env("CAIRN_RUN_ID");
    std::from_chars(run.data(), run.data() + run.size(), run_);
    const std::string url = Env("CAIRN_TRIAL_URL");
    // A tuner whose workers outlive it is started again: they wait for it.
    const int attempts = url.starts_with("unix:") ? 5 : RunClientOptions{}.attempts;
    ASSIGN_OR_RETURN(client_, RunClient::Open({.url = url,
                                               .ca = Env("CAIRN_MASTER_CA"),
                                               .token = Env("CAIRN_RUN_TOKEN"),
                                               .trial = Env("CAIRN_TRIAL_ID"),
                                               .run = run_,
                                               .attempts = attempts,
                                               .describe = false}));
    if (const std::string text = Env(kSettingsVariable); !text.empty()) {
      ASSIGN_OR_RETURN(settings_, DecodeJson(text));
    }
    ASSIGN_OR_RETURN(const Value begun,
                     client_->Call("/tune/begin", Value::Object{{"pid", std::int64_t{getpid()}}}));
    id_ = TextOf(begun, "trial_id");
    if (const Value* config = begun.Find("config")) config_ = *config;
    stop_ = BoolOf(begun, "stop");
    pause_ = BoolOf(begun, "pause");
    directory_ = Env(kWorkerVariable) + "/" + id_;
    ASSIGN_OR_RETURN(staging_, StagingOf(directory_, id_));
    std::error_code error;
    fs::remove_all(staging_, error);  // of runs that were killed
    RETURN_IF_ERROR(Settle());
    if (const Value* wanted = begun.Find("checkpoint"); wanted != nullptr && wanted->is_object()) {
      RETURN_IF_ERROR(Restore(*wanted, IntOf(begun, "reported")));
    }
    return Status::Ok();
  }

  const std::string& id() const override { return id_; }
  const Value& config() const override { return config_; }
  const std::string& directory() const override { return directory_; }
  const std::optional<std::string>& checkpoint() const override { return checkpoint_; }
  std::int64_t iteration() const override { return iteration_; }
  bool ended() const { return stop_ || pause_; }
  const Value& settings() const { return settings_; }

  Status Report(Value metrics, const Save& save) override {
    return Report(std::move(metrics), save, nullptr);
  }
  /// `on_demand` saves where the answer asks for a checkpoint and none was made with the report.
  Status Report(Value metrics, const Save& save, const Save& on_demand) {
    if (!metrics.is_object()) return InvalidArgumentError("metrics must be an object");
    if (ended()) return CancelledError("the trial is to end");
    RETURN_IF_ERROR(ValidateJsonValue(metrics, kMaxJsonDepth / 2));
    RETURN_IF_ERROR(CheckScore(metrics));
    const auto before = std::tuple(iteration_, total_, last_, saved_at_);
    Value::Object result = NextResult(*metrics.if_object());
    const bool done = result.at("done") == Value(true);
    Result<Value> kept = Value();
    if (save) kept = Keep(save, result);
    if (!kept.ok()) {
      std::tie(iteration_, total_, last_, saved_at_) = before;
      return kept.status();
    }
    const std::string id = TextOf(*kept, "id");
    const Status told = Send(result, *std::move(kept));
    if (told.Is(Code::kInvalidArgument)) {
      // Refused: it was never made, and the next one has its numbers.
      std::tie(iteration_, total_, last_, saved_at_) = before;
      --sequence_;
      if (!id.empty()) manager_->Delete(id).IgnoreError("the engine finds it after the run");
      return told;
    }
    if (!told.ok() && !told.Is(Code::kCancelled)) return told;
    if (done && !pause_) stop_ = true;
    const bool at_end = stop_ && BoolOf(settings_, "checkpoint_at_end");
    if (on_demand && saved_at_ != iteration_ && (pause_ || at_end || wanted_)) {
      RETURN_IF_ERROR(KeepAfterwards(on_demand, result));
    }
    if (saved_at_ == iteration_) wanted_ = false;
    return ended() ? CancelledError("the tuner ends the trial here") : Status::Ok();
  }

  bool ShouldCheckpoint(std::int64_t every) const override {
    return wanted_ || (every > 0 && (iteration_ + 1) % every == 0);
  }

  bool ShouldEnd() override {
    const Clock::Duration now = clock_->Now();
    if (ended() || (asked_ && now - *asked_ < kAskAgain)) return ended();
    asked_ = now;
    const auto answer = client_->Call("/tune/asked", Value::Object{});
    if (!answer.ok()) return false;  // the next report fails, and says why
    stop_ = BoolOf(*answer, "stop");
    pause_ = !stop_ && BoolOf(*answer, "pause");
    return ended();
  }

  /// When the function returned.
  Status End(const Status& trained) {
    std::error_code error;
    Status closed;
    if (manager_ != nullptr) closed = manager_->Close();
    fs::remove_all(staging_, error);
    const Status& failed =
        !trained.ok() && !(trained.Is(Code::kCancelled) && ended()) ? trained : closed;
    if (!failed.ok()) return Fail(failed);
    return pause_ ? client_->AcknowledgePreemption() : Status::Ok();
  }

  /// Tells the tuner why this process is about to exit with 1; gives that back.
  Status Fail(const Status& why) {
    if (client_ == nullptr) return why;
    client_->Call("/tune/failed", Value::Object{{"error", why.ToString()}})
        .status()
        .IgnoreError("the exit tells that it failed");
    return why;
  }

 private:
  /// Where the process works, and where its output goes.
  Status Settle() {
    const bool keeps = BoolOf(settings_, "log_to_file");
    const bool moves = BoolOf(settings_, "chdir_to_trial_dir");
    if (!keeps && !moves) return Status::Ok();
    ASSIGN_OR_RETURN(const std::string path, LocalPath(directory_));
    std::error_code error;
    fs::create_directories(path, error);
    for (const auto& [descriptor, name] :
         {std::pair(STDOUT_FILENO, kStdoutName), std::pair(STDERR_FILENO, kStderrName)}) {
      if (!keeps) break;
      const std::string file = fmt::format("{}/{}", path, name);
      const int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      if (opened < 0) return UnavailableError(file + ": cannot be written");
      dup2(opened, descriptor);
      close(opened);
    }
    if (moves && chdir(path.c_str()) != 0) return UnavailableError(path + ": no such directory");
    return Status::Ok();
  }

  /// A report with the keys that a worker fills in; counts it.
  Value::Object NextResult(Value::Object result) {
    result.erase("should_checkpoint");
    for (const char* key : kFilledLater) result.erase(key);
    // Always: trials may be stopped by it.
    const auto done = result.find("done");
    result["done"] = done != result.end() && done->second == Value(true);
    const double now = std::chrono::duration<double>(clock_->Now()).count();
    ++iteration_;
    total_ += now - last_;
    result["training_iteration"] = iteration_;
    result["time_this_iter_s"] = now - last_;
    result["time_total_s"] = total_;
    result["timestamp"] = clock_->WallNanos() / 1'000'000'000;
    result["iterations_since_restore"] = iteration_ - restored_iteration_;
    result["time_since_restore"] = total_ - restored_total_;
    for (const auto& [key, value] : here_) result[key] = value;
    last_ = now;
    return result;
  }

  /// A checkpoint that the answer to its report asked for.
  Status KeepAfterwards(const Save& save, const Value::Object& result) {
    ASSIGN_OR_RETURN(Value kept, Keep(save, result));
    Value::Object body{{"checkpoint", std::move(kept)}};
    if (!removed_.empty()) body["removed"] = std::exchange(removed_, {});
    ASSIGN_OR_RETURN(const Value answer, client_->Call("/tune/saved", std::move(body)));
    RemoveAsTold(answer);
    return Status::Ok();
  }

  /// By which checkpoints are kept: it is compared.
  Status CheckScore(const Value& metrics) const {
    const std::string name = TextOf(settings_, "score");
    const Value* score = name.empty() ? nullptr : metrics.Find(name);
    if (score == nullptr || score->is_number() || score->is_bool()) return Status::Ok();
    return InvalidArgumentError(fmt::format("score {} is {}: a score must be a number",
                                            QuoteForMessage(name),
                                            QuoteForMessage(EncodeJson(*score))));
  }

  Status Restore(const Value& wanted, std::int64_t reported) {
    const std::string from = Env(kWorkerVariable) + "/" + TextOf(wanted, "trial");
    std::vector<CheckpointInfo> infos;
    {
      ASSIGN_OR_RETURN(const auto reader,
                       CheckpointManager::Open({.directory = from, .read_only = true}));
      ASSIGN_OR_RETURN(infos, reader->List());
    }
    std::erase_if(infos, [](const CheckpointInfo& info) { return info.foreign; });
    // Where the wanted one was deleted, the newest that is there.
    const auto found = std::ranges::find(infos, TextOf(wanted, "id"), &CheckpointInfo::id);
    if (found != infos.end()) infos.erase(found + 1, infos.end());
    // The newest that can be read whole.
    for (; !infos.empty(); infos.pop_back()) {
      const CheckpointInfo& info = infos.back();
      ASSIGN_OR_RETURN(const std::string at, NewStaging());
      // A clone of another trial writes nothing; one's own state may be changed in place.
      const bool own = TextOf(wanted, "trial") == id_;
      const Status fetched =
          core::FetchFiles(info, at, {}, own ? FetchHow::kCopy : FetchHow::kLink);
      if (!fetched.ok()) {
        LogWarning(fmt::format("{}: passed over: {}", info.path, fetched.ToString()));
        continue;
      }
      checkpoint_ = at;
      iteration_ = info.step;
      const Value* about = info.metadata.Find("tune");
      restored_iteration_ = iteration_;
      if (about == nullptr) return Status::Ok();
      if (const Value* total = about->Find("time_total_s")) total_ = total->AsDouble();
      restored_total_ = total_;
      if (!own) return Status::Ok();
      saved_at_ = iteration_;
      const Value* result = about->Find("result");
      if (iteration_ > reported && result != nullptr && result->is_object()) {
        const Status told = Send(*result->if_object(), Describe(info));
        if (!told.ok() && !told.Is(Code::kCancelled)) return told;
        if (BoolOf(*result, "done") && !pause_) stop_ = true;
      }
      return Status::Ok();
    }
    return CorruptionError(from + ": no checkpoint can be read");
  }

  /// Where files are gathered before they are a checkpoint's: beside it, or, of one on a bucket, in
  /// a directory of this machine and of this run.
  static Result<fs::path> StagingOf(const std::string& directory, const std::string& id) {
    if (IsRemote(directory)) {
      std::error_code error;
      const fs::path temporary = fs::temp_directory_path(error);
      return (error ? fs::path("/tmp") : temporary) / kStaging /
             fmt::format("{}-{}", id, IdSource::System()->NewUuid());
    }
    ASSIGN_OR_RETURN(const std::string path, LocalPath(directory));
    return fs::path(path) / kStaging;
  }

  Result<std::string> NewStaging() {
    const fs::path path = staging_ / IdSource::System()->NewUuid();
    std::error_code error;
    fs::create_directories(path, error);
    if (error) return UnavailableError(fmt::format("{}: {}", path.string(), error.message()));
    return path.string();
  }

  Result<Value> Keep(const Save& save, const Value::Object& result) {
    if (manager_ == nullptr) {
      ASSIGN_OR_RETURN(manager_, CheckpointManager::Open({.directory = directory_,
                                                          .run = run_,
                                                          .retention = {.keep_last = std::nullopt},
                                                          .takeover = true}));
    }
    ASSIGN_OR_RETURN(const std::string staging, NewStaging());
    RETURN_IF_ERROR(save(staging));
    SaveRequest request{.step = iteration_, .metrics = Value(result), .blocking = true};
    request.metadata = Value::Object{{"steps_completed", iteration_},
                                     {"tune", Value::Object{{"kind", "directory"},
                                                            {"config", config_},
                                                            {"result", Value(result)},
                                                            {"time_total_s", total_}}}};
    ASSIGN_OR_RETURN(request.files, core::FilesIn(staging, {}));
    ASSIGN_OR_RETURN(const SaveHandle handle, manager_->Save(std::move(request)));
    ASSIGN_OR_RETURN(const CheckpointInfo info, handle.Wait());
    std::error_code error;
    fs::remove_all(staging, error);
    saved_at_ = iteration_;
    return Describe(info);
  }

  static Value Describe(const CheckpointInfo& info) {
    return Value::Object{{"id", info.id},
                         {"steps_completed", info.step},
                         {"metrics", info.metrics},
                         {"bytes", info.bytes},
                         {"generation", info.generation},
                         {"sequence", info.sequence},
                         {"path", fs::path(info.path).filename().string()}};
  }

  Status Send(Value::Object result, Value checkpoint) {
    Value::Object body{{"sequence", ++sequence_}, {"result", std::move(result)}};
    if (!checkpoint.is_null()) body["checkpoint"] = std::move(checkpoint);
    if (!removed_.empty()) body["removed"] = std::exchange(removed_, {});
    ASSIGN_OR_RETURN(const Value answer, client_->Call("/tune/result", std::move(body)));
    RemoveAsTold(answer);
    const std::string decision = TextOf(answer, "decision");
    stop_ = decision == "stop";
    pause_ = decision == "pause";
    wanted_ = BoolOf(answer, "checkpoint");
    return ended() ? CancelledError("the tuner ends the trial here") : Status::Ok();
  }

  void RemoveAsTold(const Value& answer) {
    const Value* remove = answer.Find("remove");
    if (remove == nullptr || !remove->is_list()) return;
    for (const Value& id : *remove->if_list()) {
      if (manager_ == nullptr || !id.is_string()) continue;
      // One that is not gone is removed by the engine after the run.
      const Status gone = manager_->Delete(*id.if_string());
      if (gone.ok() || gone.Is(Code::kNotFound)) removed_.push_back(id);
    }
  }

  Clock* const clock_ = Clock::System();
  std::unique_ptr<RunClient> client_;
  std::unique_ptr<CheckpointManager> manager_;
  std::uint64_t run_ = 0;
  std::string id_;
  std::string directory_;
  fs::path staging_;
  Value config_ = Value::Object{};
  std::optional<std::string> checkpoint_;
  Value settings_ = Value::Object{};
  std::int64_t iteration_ = 0;
  std::int64_t saved_at_ = 0;  // the iteration of the newest checkpoint of its own
  std::int64_t restored_iteration_ = 0;
  std::uint64_t sequence_ = 0;
  const Value::Object here_ = MadeHere();
  double total_ = 0;
  double restored_total_ = 0;
  double last_ = std::chrono::duration<double>(clock_->Now()).count();
  std::optional<Clock::Duration> asked_;  // whether it is to end
  bool stop_ = false;
  bool pause_ = false;
  bool wanted_ = false;  // the scheduler asks for a checkpoint
  Value::List removed_;
};

/// The steps of one object, until the trial ends or one of them fails.
Status TakeSteps(Trainable* trainable, Worker* worker) {
  const std::int64_t every = IntOf(worker->settings(), "checkpoint_frequency");
  const Trial::Save save = [&](const std::string& at) { return trainable->Save(at); };
  while (!worker->ended()) {
    ASSIGN_OR_RETURN(Value result, trainable->Step());
    const bool periodic = every > 0 && (worker->iteration() + 1) % every == 0;
    const bool now = periodic || BoolOf(result, "should_checkpoint");
    RETURN_IF_ERROR(worker->Report(std::move(result), now ? save : Trial::Save(), save));
  }
  return Status::Ok();
}

Status TrainObject(const MakeTrainable& make, Worker* worker) {
  const std::unique_ptr<Trainable> trainable = make();
  if (trainable == nullptr) return InvalidArgumentError("no trainable was made");
  RETURN_IF_ERROR(trainable->Setup(*worker));
  Status status;
  if (worker->checkpoint()) status = trainable->Load(*worker->checkpoint());
  if (status.ok()) status = TakeSteps(trainable.get(), worker);
  trainable->Cleanup();
  return status;
}

/// What the user's code throws is a failure as any other.
Status Guarded(const std::function<Status(Worker* worker)>& train, Worker* worker) {
  try {
    return train(worker);
  } catch (const std::exception& error) {
    return InternalError(error.what());
  }
}

int RunTrial(const std::function<Status(Worker* worker)>& train) {
  Worker worker;
  Status status = worker.Begin();
  if (!status.ok()) {
    status = worker.Fail(status);
  } else {
    status = worker.End(worker.ended() ? Status::Ok() : Guarded(train, &worker));
  }
  if (!status.ok()) LogError("trial " + worker.id() + ": " + status.ToString());
  // What was printed and is still in buffers: this process ends without destroying them.
  std::cout.flush();
  std::fflush(nullptr);
  return status.ok() ? 0 : 1;
}

}  // namespace

std::map<std::string, std::string> WorkerEnvironment(const Options& options,
                                                     const std::string& directory) {
  const Value settings = Value::Object{{"score", options.score},
                                       {"checkpoint_frequency", options.checkpoint_frequency},
                                       {"checkpoint_at_end", options.checkpoint_at_end},
                                       {"log_to_file", options.log_to_file},
                                       {"chdir_to_trial_dir", options.chdir_to_trial_dir}};
  return {{kWorkerVariable, directory}, {kSettingsVariable, EncodeJson(settings)}};
}

bool IsWorker() { return !Env(kWorkerVariable).empty() && !Env("CAIRN_RUN_TOKEN").empty(); }

int RunWorker(const TrainFunction& train) {
  return RunTrial([&](Worker* worker) { return train(*worker); });
}

int RunWorker(const MakeTrainable& make) {
  return RunTrial([&](Worker* worker) { return TrainObject(make, worker); });
}

}  // namespace cairn::tune
