// A worker in C++: what python/cairn/tune/_worker_session.py and worker.py are for Python. The
// order is the same: a checkpoint is committed, then reported with its result; a result whose
// report got lost with the tuner is made up for from the manifest.
#include "tune/run_worker.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
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

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;
using core::kStaging;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string TextOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : *text;
}

std::int64_t IntOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  return value == nullptr ? 0 : value->AsInt();
}

bool BoolOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const bool* truth = value == nullptr ? nullptr : value->if_bool();
  return truth != nullptr && *truth;
}

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
    if (const Value* wanted = begun.Find("checkpoint"); wanted != nullptr && wanted->is_object()) {
      RETURN_IF_ERROR(Restore(*wanted, IntOf(begun, "reported")));
    }
    return Status::Ok();
  }

  const std::string& id() const override { return id_; }
  const Value& config() const override { return config_; }
  const std::optional<std::string>& checkpoint() const override { return checkpoint_; }
  std::int64_t iteration() const override { return iteration_; }
  bool ended() const { return stop_ || pause_; }

  Status Report(Value metrics, const Save& save) override {
    if (!metrics.is_object()) return InvalidArgumentError("metrics must be an object");
    if (ended()) return CancelledError("the trial is to end");
    RETURN_IF_ERROR(CheckScore(metrics));
    const auto before = std::tuple(iteration_, total_, last_);
    ++iteration_;
    Value::Object result = *metrics.if_object();
    result["training_iteration"] = iteration_;
    const double now = std::chrono::duration<double>(clock_->Now()).count();
    result["time_this_iter_s"] = now - last_;
    total_ += now - last_;
    result["time_total_s"] = total_;
    result["timestamp"] = clock_->WallNanos() / 1'000'000'000;
    for (const auto& [key, value] : here_) result[key] = value;
    last_ = now;
    Result<Value> kept = Value();
    if (save) kept = Keep(save, result);
    if (!kept.ok()) {
      std::tie(iteration_, total_, last_) = before;
      return kept.status();
    }
    const std::string id = TextOf(*kept, "id");
    const Status told = Send(std::move(result), *std::move(kept));
    if (!told.Is(Code::kInvalidArgument)) return told;
    // Refused: it was never made, and the next one has its numbers.
    std::tie(iteration_, total_, last_) = before;
    --sequence_;
    if (!id.empty()) manager_->Delete(id).IgnoreError("the engine finds it after the run");
    return told;
  }

  /// When the function returned.
  Status End(const Status& trained) {
    std::error_code error;
    if (manager_ != nullptr) RETURN_IF_ERROR(manager_->Close());
    fs::remove_all(staging_, error);
    if (!trained.ok() && !(trained.Is(Code::kCancelled) && ended())) {
      RETURN_IF_ERROR(
          client_->Call("/tune/failed", Value::Object{{"error", trained.ToString()}}).status());
      return trained;
    }
    return pause_ ? client_->AcknowledgePreemption() : Status::Ok();
  }

 private:
  /// By which checkpoints are kept: it is compared.
  static Status CheckScore(const Value& metrics) {
    const std::string name = Env(kScoreVariable);
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
    while (!infos.empty() && infos.back().id != TextOf(wanted, "id")) infos.pop_back();
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
      if (about == nullptr || !own) return Status::Ok();
      if (const Value* total = about->Find("time_total_s")) total_ = total->AsDouble();
      const Value* result = about->Find("result");
      if (iteration_ > reported && result != nullptr && result->is_object()) {
        const Status told = Send(*result->if_object(), Describe(info));
        return told.Is(Code::kCancelled) ? Status::Ok() : told;
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
    if (const Value* remove = answer.Find("remove"); remove != nullptr && remove->is_list()) {
      for (const Value& id : *remove->if_list()) {
        if (manager_ == nullptr || !id.is_string()) continue;
        // One that is not gone is removed by the engine after the run.
        const Status gone = manager_->Delete(*id.if_string());
        if (gone.ok() || gone.Is(Code::kNotFound)) removed_.push_back(id);
      }
    }
    const std::string decision = TextOf(answer, "decision");
    stop_ = decision == "stop";
    pause_ = decision == "pause";
    return ended() ? CancelledError("the tuner ends the trial here") : Status::Ok();
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
  std::int64_t iteration_ = 0;
  std::uint64_t sequence_ = 0;
  const Value::Object here_ = MadeHere();
  double total_ = 0;
  double last_ = std::chrono::duration<double>(clock_->Now()).count();
  bool stop_ = false;
  bool pause_ = false;
  Value::List removed_;
};

}  // namespace

bool IsWorker() { return !Env(kWorkerVariable).empty() && !Env("CAIRN_RUN_TOKEN").empty(); }

int RunWorker(const TrainFunction& train) {
  Worker worker;
  Status status = worker.Begin();
  if (status.ok()) status = worker.End(worker.ended() ? Status::Ok() : train(worker));
  if (status.ok()) return 0;
  LogError("trial " + worker.id() + ": " + status.ToString());
  return 1;
}

}  // namespace cairn::tune
