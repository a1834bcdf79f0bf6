#include "src/trial.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/option.h"
#include "src/waiting.h"
#include "trial/client_run.h"
#include "trial/run_log.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

/// Of the call that this thread is in.
thread_local Interrupts* interrupts_of_call = nullptr;

/// Runs a call without the GIL; Ctrl-C ends it.
template <typename Fn>
auto Run(Fn fn) {
  Interrupts interrupts;
  interrupts_of_call = &interrupts;
  std::optional<decltype(fn())> result;
  {
    const WithoutGil released;
    result.emplace(fn());
  }
  interrupts_of_call = nullptr;
  interrupts.Rethrow();
  return ValueOrRaise(*std::move(result));
}

template <typename Fn>
void Do(Fn fn) {
  Run([&]() -> Result<bool> {
    Status status = fn();
    if (!status.ok()) return status;
    return true;
  });
}

/// A client whose calls run without the GIL and end on Ctrl-C.
class TrialClient {
 public:
  static std::unique_ptr<TrialClient> Open(const nb::dict& given) {
    auto made = std::make_unique<TrialClient>();
    RunClientOptions options = OptionsOf(given);
    made->client_ = Run([&] { return RunClient::Open(std::move(options)); });
    return made;
  }

  static std::unique_ptr<TrialClient> Join(const nb::dict& given) {
    auto made = std::make_unique<TrialClient>();
    RunClientOptions options = OptionsOf(given);
    JoinRequest join;
    join.external_id = Option<std::string>(given, "external_id", "");
    join.experiment = Option<std::string>(given, "experiment", "");
    join.world_size = Option<int>(given, "world_size", 1);
    join.storage = Option<std::string>(given, "storage", "");
    join.metric = Option<std::string>(given, "metric", "");
    join.metric_group = Option<std::string>(given, "metric_group", "validation");
    join.smaller_is_better = Option<bool>(given, "smaller_is_better", true);
    if (given.contains("hparams")) join.hparams = ToValue(given["hparams"], "hparams");
    made->client_ = Run([&] { return RunClient::Join(std::move(options), join); });
    return made;
  }

  nb::object description() const { return FromValue(client_->description()); }
  const std::string& trial() const { return client_->trial(); }
  std::uint64_t run() const { return client_->run(); }
  const std::string& token() const { return client_->token(); }
  bool preempt() const { return client_->preempt(); }
  std::string reason() const { return client_->preempt_reason(); }

  void Ready(int rank, std::int64_t pid, const std::string& host) {
    Do([&] { return client_->Ready(rank, pid, host); });
  }
  void Report(const std::string& group, std::int64_t steps, nb::handle metrics) {
    const Value values = ToValue(metrics, "metrics");
    Do([&] { return client_->Report(group, steps, values); });
  }
  void ReportProgress(double progress) {
    Do([&] { return client_->ReportProgress(progress); });
  }
  void SetStatus(const std::string& status) {
    Do([&] { return client_->SetStatus(status); });
  }
  void Register(const std::string& id, std::int64_t steps, int ranks, nb::handle metadata) {
    const Value values = ToValue(metadata, "metadata");
    Do([&] { return client_->RegisterCheckpoint(id, steps, ranks, values); });
  }
  std::vector<std::string> Complete(const std::string& id, std::int64_t steps, nb::handle metadata,
                                    nb::handle metrics, std::uint64_t bytes,
                                    std::uint64_t generation, std::uint64_t sequence,
                                    bool awaits_score) {
    CompletedCheckpoint checkpoint;
    checkpoint.id = id;
    checkpoint.steps_completed = steps;
    checkpoint.metadata = ToValue(metadata, "metadata");
    checkpoint.metrics = ToValue(metrics, "metrics");
    checkpoint.bytes = bytes;
    checkpoint.generation = generation;
    checkpoint.sequence = sequence;
    checkpoint.awaits_score = awaits_score;
    return Run([&] { return client_->CompleteCheckpoint(checkpoint); });
  }
  void Abandon(const std::string& id, const std::string& reason) {
    Do([&] { return client_->AbandonCheckpoint(id, reason); });
  }
  void Deleted(const std::string& id) {
    Do([&] { return client_->CheckpointDeleted(id); });
  }
  nb::object Checkpoints() {
    return FromValue(Run([&] { return client_->Checkpoints(); }));
  }
  void Acknowledge() {
    Do([&] { return client_->AcknowledgePreemption(); });
  }
  void Exit(int code, const std::string& message) {
    Do([&] { return client_->Exit(code, message); });
  }
  nb::object Call(const std::string& path, nb::handle body) {
    const Value values = ToValue(body, "body");
    return FromValue(Run([&] { return client_->Call(path, values); }));
  }
  /// From now on, what Log is given goes to the run's log.
  void StartLog(int rank) {
    const WithoutGil released;
    log_ = std::make_unique<RunLog>(RunLogOptions{.client = client_.get(), .rank = rank});
  }
  void Log(bool from_stderr, const std::string& text) {
    if (log_ != nullptr) log_->Write(from_stderr, text);
  }
  /// Sends what is left, for a moment.
  void EndLog() {
    auto log = std::move(log_);  // with the GIL: no other thread is in Log
    const WithoutGil released;
    log.reset();
  }
  void Close() {
    EndLog();
    const WithoutGil released;
    client_->Close();
  }

 private:
  static RunClientOptions OptionsOf(const nb::dict& given) {
    RunClientOptions options;
    options.url = nb::cast<std::string>(given["url"]);
    options.ca = Option<std::string>(given, "ca", "");
    options.token = Option<std::string>(given, "token", "");
    options.trial = Option<std::string>(given, "trial", "");
    options.run = Option<std::uint64_t>(given, "run", 0);
    options.rank = Option<int>(given, "rank", 0);
    options.attempts = Option<int>(given, "attempts", options.attempts);
    options.describe = Option<bool>(given, "describe", options.describe);
    // Called by whoever waits for an answer: the thread of the Python call.
    options.cancelled = [] {
      if (interrupts_of_call == nullptr) return false;
      interrupts_of_call->Poll();
      return interrupts_of_call->interrupted();
    };
    return options;
  }

  std::unique_ptr<RunClient> client_;
  std::unique_ptr<RunLog> log_;
};

}  // namespace

void DefineTrial(nb::module_& module) {
  nb::class_<TrialClient>(module, "TrialClient")
      .def_static("open", &TrialClient::Open)
      .def_static("join", &TrialClient::Join)
      .def_prop_ro("description", &TrialClient::description)
      .def_prop_ro("trial", &TrialClient::trial)
      .def_prop_ro("run", &TrialClient::run)
      .def_prop_ro("token", &TrialClient::token)
      .def_prop_ro("preempt", &TrialClient::preempt)
      .def_prop_ro("preempt_reason", &TrialClient::reason)
      .def("ready", &TrialClient::Ready)
      .def("report", &TrialClient::Report, nb::arg("group"), nb::arg("steps_completed"),
           nb::arg("metrics"))
      .def("report_progress", &TrialClient::ReportProgress)
      .def("set_status", &TrialClient::SetStatus)
      .def("register_checkpoint", &TrialClient::Register)
      .def("complete_checkpoint", &TrialClient::Complete)
      .def("abandon_checkpoint", &TrialClient::Abandon)
      .def("checkpoint_deleted", &TrialClient::Deleted)
      .def("checkpoints", &TrialClient::Checkpoints)
      .def("acknowledge_preemption", &TrialClient::Acknowledge)
      .def("exit", &TrialClient::Exit)
      .def("call", &TrialClient::Call, nb::arg("path"), nb::arg("body"))
      .def("start_log", &TrialClient::StartLog)
      .def("log", &TrialClient::Log)
      .def("end_log", &TrialClient::EndLog)
      .def("close", &TrialClient::Close);
}

}  // namespace cairn::python
