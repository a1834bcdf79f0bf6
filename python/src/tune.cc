#include "src/tune.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "launch/ray_launcher.h"
#include "launch/slurm_launcher.h"
#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/option.h"
#include "src/tune_reports.h"
#include "tune/pool_launcher.h"
#include "tune/search_policy.h"
#include "tune/tuner.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

/// Calls without the GIL.
template <typename Fn>
auto Run(Fn fn) {
  const WithoutGil released;
  return fn();
}

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

/// A policy that is a Python object (cairn/tune/_policy.py has its methods). Called without the
/// GIL. What the object raises is kept, for whoever called the tuner.
class PyPolicy final : public tune::TunePolicy {
 public:
  explicit PyPolicy(nb::object policy) : policy_(std::move(policy)) {}

  Result<tune::Suggestion> Suggest(const std::string& trial) override {
    return Ask<tune::Suggestion>([&]() -> tune::Suggestion {
      const nb::object answer = policy_.attr("suggest")(trial);
      if (answer.is_none()) return {.kind = tune::Suggestion::Kind::kFinished};
      if (nb::isinstance<nb::str>(answer)) return {.kind = tune::Suggestion::Kind::kWait};
      return {.kind = tune::Suggestion::Kind::kConfig, .config = ToValue(answer, "config")};
    });
  }
  Status OnTrialAdd(const std::string& trial, const Value& config) override {
    return Tell([&] { policy_.attr("on_trial_add")(trial, FromValue(config)); });
  }
  Result<tune::Decision> OnResult(const std::string& trial, const Value& result) override {
    return Ask<tune::Decision>([&]() -> tune::Decision {
      const nb::object answer = policy_.attr("on_result")(trial, FromValue(result));
      if (answer.is_none()) return {};
      const nb::tuple pair = nb::cast<nb::tuple>(answer);
      const auto action = nb::cast<std::string>(pair[0]);
      return {.action = action == "stop"    ? tune::TrialAction::kStop
                        : action == "pause" ? tune::TrialAction::kPause
                                            : tune::TrialAction::kContinue,
              .checkpoint = nb::cast<bool>(pair[1])};
    });
  }
  Status OnEnd(const std::string& trial, const Value& last, bool error) override {
    return Tell([&] { policy_.attr("on_end")(trial, FromValue(last), error); });
  }
  Status OnRestart(const std::string& trial) override {
    return Tell([&] { policy_.attr("on_restart")(trial); });
  }
  Result<tune::Choice> Choose(const tune::Candidates& candidates) override {
    return Ask<tune::Choice>([&]() -> tune::Choice {
      nb::list pending;
      nb::list paused;
      for (const std::string& id : candidates.pending) pending.append(id);
      for (const std::string& id : candidates.paused) paused.append(id);
      const nb::object answer = policy_.attr("choose")(pending, paused, candidates.more_to_come);
      if (answer.is_none()) return {};
      return tune::ChoiceFromValue(ToValue(answer, "choice"));
    });
  }
  Status SetConfig(const std::string& trial, const Value& config) override {
    return Tell([&] { policy_.attr("set_config")(trial, FromValue(config)); });
  }
  std::size_t PendingAhead() override {
    const auto answer =
        Ask<std::size_t>([&] { return nb::cast<std::size_t>(policy_.attr("pending_ahead")); });
    return answer.ok() ? *answer : 0;
  }
  bool StopAll() override {
    const auto answer = Ask<bool>([&] { return nb::cast<bool>(policy_.attr("stop_all")()); });
    return answer.ok() && *answer;
  }
  Status OnElapsed(std::chrono::nanoseconds before) override {
    return Tell([&] { policy_.attr("on_elapsed")(std::chrono::duration<double>(before).count()); });
  }
  Value::List TakeLog() override {
    const auto log = Ask<Value>([&] { return ToValue(policy_.attr("take_log")(), "log"); });
    return log.ok() && log->is_list() ? *log->if_list() : Value::List();
  }

  /// With the GIL held.
  void Rethrow() {
    if (!raised_) return;
    nb::python_error raised = std::move(*raised_);
    raised_.reset();
    throw std::move(raised);
  }

 private:
  template <typename T, typename Fn>
  Result<T> Ask(Fn fn) {
    const WithGil held;
    raised_.reset();
    try {
      return fn();
    } catch (nb::python_error& error) {
      const bool refused = error.matches(PyExc_ValueError) != 0;
      const std::string text = nb::cast<std::string>(nb::str(error.value()));
      if (refused) {
        Status status = InvalidArgumentError(text);
        raised_.emplace(std::move(error));
        return status;
      }
      raised_.emplace(std::move(error));
      return InternalError(text);
    } catch (const std::exception& error) {
      return InternalError(error.what());
    }
  }
  template <typename Fn>
  Status Tell(Fn fn) {
    return Ask<bool>([&] {
             fn();
             return true;
           })
        .status();
  }

  const nb::object policy_;
  std::optional<nb::python_error> raised_;
};

class PyTuner {
 public:
  static std::unique_ptr<PyTuner> Open(const std::string& directory, bool create) {
    auto made = std::make_unique<PyTuner>();
    made->tuner_ = ValueOrRaise(
        Run([&] { return tune::Tuner::Open({.directory = directory, .create = create}); }));
    return made;
  }
  static bool Exists(const std::string& directory) {
    return ValueOrRaise(Run([&] { return tune::Tuner::Exists(directory); }));
  }
  ~PyTuner() { Close(); }

  nb::object description() const { return FromValue(Opened()->description()); }
  nb::object Trials(bool with_results) {
    tune::Tuner* const tuner = Opened();
    const Value trials = Run([&] { return tuner->Trials(with_results); });
    return FromValue(trials);
  }

  nb::object Results(const std::string& trial) {
    tune::Tuner* const tuner = Opened();
    const Value results = Run([&] { return tuner->Results(trial); });
    return FromValue(results);
  }
  static nb::object ReadDescription(const std::string& directory) {
    return FromValue(ValueOrRaise(Run([&] { return tune::Tuner::ReadDescription(directory); })));
  }

  void Start(const nb::dict& given, nb::object policy, const nb::bytes& payload) {
    tune::TunerOptions options;
    options.policy_origin = ToValue(policy.attr("native_description")(), "policy");
    if (options.policy_origin.is_null()) {
      auto asked = std::make_unique<PyPolicy>(std::move(policy));
      python_policy_ = asked.get();
      policy_ = std::move(asked);
    } else {
      // All of its parts are of this library: no report has to pass through the interpreter.
      policy_ = ValueOrRaise(tune::MakeSearchPolicy(options.policy_origin, Clock::System()));
    }
    options.policy = policy_.get();
    options.description = ToValue(given["description"], "description");
    options.trial_prefix = nb::cast<std::string>(given["trial_prefix"]);
    options.max_concurrent = Option<std::size_t>(given, "max_concurrent", 1);
    options.max_failures = Option<std::uint64_t>(given, "max_failures", 0);
    options.fail_fast = Option<bool>(given, "fail_fast", false);
    options.resume_unfinished = Option<bool>(given, "resume_unfinished", true);
    options.resume_errored = Option<bool>(given, "resume_errored", false);
    options.restart_errored = Option<bool>(given, "restart_errored", false);
    options.extend_ended = Option<bool>(given, "extend_ended", false);
    if (given.contains("extend_except")) {
      const auto done = nb::cast<std::vector<std::string>>(given["extend_except"]);
      options.extend_except.insert(done.begin(), done.end());
    }
    options.stop_signal = Option<int>(given, "stop_signal", 0);
    options.summarize_after =
        Option<std::uint64_t>(given, "summarize_after", options.summarize_after);
    if (given.contains("retention")) {
      options.retention =
          ValueOrRaise(RetentionPolicyFromValue(ToValue(given["retention"], "retention")));
    }
    if (given.contains("cluster")) {
      UseCluster(nb::cast<nb::dict>(given["cluster"]), payload, &options);
      tune::Tuner* const tuner = Opened();
      return Finish(Run([&] { return tuner->Start(std::move(options)); }));
    }
    const auto argv = nb::cast<std::vector<std::string>>(given["zygote"]);
    std::string bytes(payload.c_str(), payload.size());
    tune::Tuner* const tuner = Opened();
    const bool soon = tuner->HasWork(options);
    options.open_launcher = [argv, soon, bytes = std::move(bytes)](LaunchListener listener) {
      return tune::OpenPoolLauncher(
          {.argv = argv, .payload = bytes, .spawn_at_once = soon, .listener = std::move(listener)});
    };
    Finish(Run([&] { return tuner->Start(std::move(options)); }));
  }

  nb::object Step(double timeout) {
    tune::TuneNews news;
    tune::Tuner* const tuner = Opened();
    const Result<bool> finished = Run([&] { return tuner->Step(Seconds(timeout), &news); });
    Finish(finished.status());
    nb::list told;
    for (Value& item : news) told.append(FromNews(std::move(item)));
    return nb::make_tuple(*finished, told);
  }
  void Interrupt() { Opened()->Interrupt(); }
  nb::object TakeLog() {
    tune::TunePolicy* const policy = policy_.get();
    return FromValue(Value(Run([&] { return policy->TakeLog(); })));
  }
  void Close() {
    if (tuner_ == nullptr) return;
    Run([&] {
      tuner_.reset();
      return true;
    });
  }

 private:
  /// Workers are jobs of Slurm or of Ray, which ask for the payload (a text).
  static void UseCluster(const nb::dict& cluster, const nb::bytes& payload,
                         tune::TunerOptions* options) {
    options->argv = nb::cast<std::vector<std::string>>(cluster["worker"]);
    options->payload = std::string(payload.c_str(), payload.size());
    options->host = nb::cast<std::string>(cluster["host"]);
    for (const auto& [name, value] : nb::cast<nb::dict>(cluster["resources"])) {
      options->resources[nb::cast<std::string>(name)] = nb::cast<std::string>(value);
    }
    const auto directory = nb::cast<std::string>(cluster["directory"]);
    const auto warning = std::chrono::seconds(Option<std::int64_t>(cluster, "warning", 60));
    if (nb::cast<std::string>(cluster["launcher"]) == "ray") {
      RayLauncherOptions ray = {.directory = directory, .warning = warning};
      TakeRayOptions(&options->resources, &ray);
      options->open_launcher = [ray](LaunchListener listener) {
        RayLauncherOptions with = ray;
        with.listener = std::move(listener);
        return OpenRayLauncher(std::move(with));
      };
      return;
    }
    options->open_launcher = [directory, warning](LaunchListener listener) {
      return OpenSlurmLauncher(
          {.directory = directory, .warning = warning, .listener = std::move(listener)});
    };
  }
  tune::Tuner* Opened() const {
    if (tuner_ == nullptr) Raise(FailedPreconditionError("the tuner is closed"));
    return tuner_.get();
  }
  void Finish(const Status& status) {
    if (status.ok()) return;
    if (python_policy_ != nullptr) python_policy_->Rethrow();
    Raise(status);
  }

  std::unique_ptr<tune::TunePolicy> policy_;
  PyPolicy* python_policy_ = nullptr;  // the same, when it is one of Python's
  std::unique_ptr<tune::Tuner> tuner_;
};

/// Ends this process, and all of its group when it leads one, as soon as nobody has the other end
/// of one of the pipes. It needs no GIL: whatever Python code is stuck in, it ends.
void EndWith(const std::vector<int>& fds) {
  // Not joined by anybody: it lives as long as the process.
  std::thread([fds] {
    std::vector<pollfd> polled;
    for (const int fd : fds) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    for (;;) {
      if (poll(polled.data(), polled.size(), -1) < 0) continue;
      for (const pollfd& one : polled) {
        if (one.revents == 0) continue;
        if (getpgrp() == getpid()) kill(0, SIGKILL);
        kill(getpid(), SIGKILL);
      }
    }
  }).detach();
}

}  // namespace

void DefineTune(nb::module_& module) {
  nb::class_<PyTuner>(module, "Tuner")
      .def_static("open", &PyTuner::Open, nb::arg("directory"), nb::arg("create"))
      .def_static("exists", &PyTuner::Exists)
      .def_prop_ro("description", &PyTuner::description)
      .def_static("read_description", &PyTuner::ReadDescription, nb::arg("directory"))
      .def("trials", &PyTuner::Trials, nb::arg("with_results"))
      .def("results", &PyTuner::Results, nb::arg("trial"))
      .def("start", &PyTuner::Start, nb::arg("options"), nb::arg("policy"), nb::arg("payload"))
      .def("step", &PyTuner::Step, nb::arg("timeout"))
      .def("interrupt", &PyTuner::Interrupt)
      .def("take_log", &PyTuner::TakeLog)
      .def("close", &PyTuner::Close);
  module.def("end_with", &EndWith, nb::arg("fds"));
}

}  // namespace cairn::python
