#include "src/tune_search.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "src/convert.h"
#include "src/errors.h"
#include "tune/scheduler.h"
#include "tune/searcher.h"
#include "tune/space.h"
#include "tune/stopper.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

// All of these answer in microseconds from memory: they keep the GIL.

class Space {
 public:
  explicit Space(nb::handle description)
      : space_(ValueOrRaise(tune::SearchSpace::Parse(ToValue(description, "param_space")))) {}

  const tune::SearchSpace& space() const { return space_; }
  std::uint64_t grid_size() const { return space_.grid_size(); }
  nb::list Domains() const {
    nb::list out;
    for (const auto& [path, domain] : space_.domains())
      out.append(nb::make_tuple(path, FromValue(domain)));
    return out;
  }
  nb::list Grids() const {
    nb::list out;
    for (const auto& [path, values] : space_.grids())
      out.append(nb::make_tuple(path, FromValue(Value(values))));
    return out;
  }
  nb::object Draw(std::uint64_t seed, std::uint64_t sample, std::uint64_t grid) const {
    return FromValue(space_.Draw(seed, sample, grid));
  }

 private:
  tune::SearchSpace space_;
};

/// num_samples × grids, in order.
class Variants {
 public:
  Variants(const Space& space, std::int64_t num_samples, std::uint64_t seed, nb::handle points,
           bool constant) {
    tune::VariantOptions options;
    options.space = space.space();
    options.num_samples = num_samples;
    options.seed = seed;
    const Value list = ToValue(points, "points_to_evaluate");
    if (list.is_list()) options.points_to_evaluate = *list.if_list();
    options.constant_grid_search = constant;
    searcher_ = ValueOrRaise(tune::MakeVariantSearcher(std::move(options)));
  }

  /// The next config; None: there are no more.
  nb::object Suggest(const std::string& trial) {
    const tune::Suggestion suggestion = ValueOrRaise(searcher_->Suggest(trial));
    return suggestion.kind == tune::Suggestion::Kind::kConfig ? FromValue(suggestion.config)
                                                              : nb::none();
  }
  std::optional<std::uint64_t> total() const { return searcher_->total(); }
  void Extend(std::int64_t num_samples) { Check(searcher_->Extend(num_samples)); }
  nb::object Save() const { return FromValue(searcher_->Save()); }
  void Load(nb::handle state) { Check(searcher_->Load(ToValue(state, "state"))); }

 private:
  static void Check(const Status& status) {
    if (!status.ok()) Raise(status);
  }
  std::unique_ptr<tune::Searcher> searcher_;
};

/// A searcher that is a Python object (cairn/tune/search.py). What it raises is kept for the
/// caller.
class PySearcher final : public tune::Searcher {
 public:
  explicit PySearcher(nb::object searcher) : searcher_(std::move(searcher)) {}

  Result<tune::Suggestion> Suggest(const std::string& trial) override {
    tune::Suggestion suggestion{.kind = tune::Suggestion::Kind::kConfig};
    const Status status = Try([&] {
      if (replayed_.is_valid()) {
        searcher_.attr("on_trial_replayed")(trial, replayed_);
        return;
      }
      const nb::object answer = searcher_.attr("suggest")(trial);
      if (answer.is_none()) {
        suggestion.kind = tune::Suggestion::Kind::kWait;
      } else if (nb::isinstance<nb::str>(answer)) {
        suggestion.kind = tune::Suggestion::Kind::kFinished;
      } else {
        suggestion.config = ToValue(answer, "config");
      }
    });
    if (!status.ok()) return status;
    return suggestion;
  }
  Status OnResult(const std::string& trial, const Value& result) override {
    return Try([&] { searcher_.attr("on_trial_result")(trial, FromValue(result)); });
  }
  Status OnComplete(const std::string& trial, const Value& result, bool error) override {
    return Try([&] { searcher_.attr("on_trial_complete")(trial, FromValue(result), error); });
  }
  Value Save() const override { return {}; }  // by replay
  Status Load(const Value&) override { return UnimplementedError("its state comes by replay"); }

  /// What the next suggestion was in an earlier life; an invalid object: nothing.
  void SetReplayed(nb::object config) { replayed_ = std::move(config); }
  void Rethrow() {
    if (!raised_) return;
    nb::python_error raised = *std::move(raised_);
    raised_.reset();
    throw raised;
  }

 private:
  template <typename Fn>
  Status Try(Fn fn) {
    try {
      fn();
      return Status::Ok();
    } catch (nb::python_error& error) {
      raised_.emplace(std::move(error));
      return InternalError("the searcher raised an exception");
    }
  }

  nb::object searcher_;
  nb::object replayed_;
  std::optional<nb::python_error> raised_;
};

class Limiter {
 public:
  Limiter(nb::object searcher, std::int64_t max_concurrent, bool batch) {
    auto inner = std::make_unique<PySearcher>(std::move(searcher));
    inner_ = inner.get();
    limiter_ = ValueOrRaise(tune::MakeConcurrencyLimiter(std::move(inner), max_concurrent, batch));
  }

  nb::object Suggest(const std::string& trial) {
    const Result<tune::Suggestion> suggestion = limiter_->Suggest(trial);
    inner_->Rethrow();
    const tune::Suggestion& made = suggestion.value();
    if (made.kind == tune::Suggestion::Kind::kWait) return nb::none();
    if (made.kind == tune::Suggestion::Kind::kFinished) return nb::str("FINISHED");
    return FromValue(made.config);
  }
  void OnReplayed(const std::string& trial, nb::object config) {
    inner_->SetReplayed(std::move(config));
    const Result<tune::Suggestion> suggestion = limiter_->Suggest(trial);
    inner_->SetReplayed(nb::object());
    Finish(suggestion.status());
  }
  void OnResult(const std::string& trial, nb::handle result) {
    Finish(limiter_->OnResult(trial, ToValue(result, "result")));
  }
  void OnComplete(const std::string& trial, nb::handle result, bool error) {
    Finish(limiter_->OnComplete(trial, ToValue(result, "result"), error));
  }

 private:
  void Finish(const Status& status) {
    inner_->Rethrow();
    if (!status.ok()) Raise(status);
  }

  PySearcher* inner_;  // the limiter's
  std::unique_ptr<tune::Searcher> limiter_;
};

class Scheduler {
 public:
  explicit Scheduler(nb::handle description)
      : scheduler_(ValueOrRaise(tune::MakeScheduler(ToValue(description, "scheduler")))) {}

  nb::object CompleteConfig(const std::string& trial, nb::handle config) {
    return FromValue(scheduler_->CompleteConfig(trial, ToValue(config, "config")));
  }
  void Add(const std::string& trial, nb::handle config) {
    Check(scheduler_->OnTrialAdd(trial, ToValue(config, "config")));
  }
  /// (action, checkpoint)
  nb::tuple OnResult(const std::string& trial, nb::handle result) {
    const tune::Decision decision =
        ValueOrRaise(scheduler_->OnResult(trial, ToValue(result, "result")));
    const char* action = decision.action == tune::TrialAction::kStop    ? "STOP"
                         : decision.action == tune::TrialAction::kPause ? "PAUSE"
                                                                        : "CONTINUE";
    return nb::make_tuple(action, decision.checkpoint);
  }
  void OnComplete(const std::string& trial, nb::handle result) {
    Check(scheduler_->OnComplete(trial, ToValue(result, "result")));
  }
  void OnError(const std::string& trial) { Check(scheduler_->OnError(trial)); }
  void OnRestart(const std::string& trial) { Check(scheduler_->OnRestart(trial)); }
  void CheckResult(nb::handle result) { Check(scheduler_->Check(ToValue(result, "result"))); }
  /// None, or (action, trial, donor, config)
  nb::object Choose(const std::vector<std::string>& pending, const std::vector<std::string>& paused,
                    bool more) {
    const tune::Choice choice = ValueOrRaise(scheduler_->ChooseTrialToRun({pending, paused, more}));
    if (choice.kind == tune::Choice::Kind::kNone) return nb::none();
    return nb::make_tuple(choice.kind == tune::Choice::Kind::kStop ? "STOP" : "RUN", choice.trial,
                          choice.donor, FromValue(choice.config));
  }
  void SetConfig(const std::string& trial, nb::handle config) {
    Check(scheduler_->SetConfig(trial, ToValue(config, "config")));
  }
  nb::object TakeLog() { return FromValue(Value(scheduler_->TakeLog())); }
  nb::object Save() const { return FromValue(scheduler_->Save()); }
  void Load(nb::handle state) { Check(scheduler_->Load(ToValue(state, "state"))); }

 private:
  static void Check(const Status& status) {
    if (!status.ok()) Raise(status);
  }
  std::unique_ptr<tune::Scheduler> scheduler_;
};

class Stopper {
 public:
  explicit Stopper(nb::handle description)
      : stopper_(ValueOrRaise(tune::MakeStopper(ToValue(description, "stop"), Clock::System()))) {}

  bool ShouldStop(const std::string& trial, nb::handle result) {
    return ValueOrRaise(stopper_->ShouldStop(trial, ToValue(result, "result")));
  }
  void CheckResult(nb::handle result) {
    const Status status = stopper_->Check(ToValue(result, "result"));
    if (!status.ok()) Raise(status);
  }
  void OnRestart(const std::string& trial) { stopper_->OnRestart(trial); }
  bool StopAll() { return stopper_->StopAll(); }
  void OnElapsed(double seconds) {
    stopper_->OnElapsed(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
  }
  nb::object Save() const { return FromValue(stopper_->Save()); }
  void Load(nb::handle state) {
    const Status status = stopper_->Load(ToValue(state, "state"));
    if (!status.ok()) Raise(status);
  }

 private:
  std::unique_ptr<tune::Stopper> stopper_;
};

}  // namespace

void DefineTuneSearch(nb::module_& module) {
  nb::class_<Space>(module, "TuneSpace")
      .def(nb::init<nb::handle>(), nb::arg("description"))
      .def_prop_ro("grid_size", &Space::grid_size)
      .def("domains", &Space::Domains)
      .def("grids", &Space::Grids)
      .def("draw", &Space::Draw, nb::arg("seed"), nb::arg("sample"), nb::arg("grid") = 0);
  nb::class_<Variants>(module, "TuneVariants")
      .def(nb::init<const Space&, std::int64_t, std::uint64_t, nb::handle, bool>(),
           nb::arg("space"), nb::arg("num_samples"), nb::arg("seed"), nb::arg("points"),
           nb::arg("constant_grid_search"))
      .def("suggest", &Variants::Suggest, nb::arg("trial"))
      .def_prop_ro("total", &Variants::total)
      .def("extend", &Variants::Extend, nb::arg("num_samples"))
      .def("save", &Variants::Save)
      .def("load", &Variants::Load, nb::arg("state"));
  nb::class_<Limiter>(module, "TuneLimiter")
      .def(nb::init<nb::object, std::int64_t, bool>(), nb::arg("searcher"),
           nb::arg("max_concurrent"), nb::arg("batch"))
      .def("suggest", &Limiter::Suggest, nb::arg("trial"))
      .def("on_replayed", &Limiter::OnReplayed, nb::arg("trial"), nb::arg("config"))
      .def("on_result", &Limiter::OnResult, nb::arg("trial"), nb::arg("result"))
      .def("on_complete", &Limiter::OnComplete, nb::arg("trial"), nb::arg("result").none(),
           nb::arg("error"));
  nb::class_<Scheduler>(module, "TuneScheduler")
      .def(nb::init<nb::handle>(), nb::arg("description"))
      .def("complete_config", &Scheduler::CompleteConfig, nb::arg("trial"), nb::arg("config"))
      .def("add", &Scheduler::Add, nb::arg("trial"), nb::arg("config"))
      .def("result", &Scheduler::OnResult, nb::arg("trial"), nb::arg("result"))
      .def("complete", &Scheduler::OnComplete, nb::arg("trial"), nb::arg("result").none())
      .def("error", &Scheduler::OnError, nb::arg("trial"))
      .def("restart", &Scheduler::OnRestart, nb::arg("trial"))
      .def("check", &Scheduler::CheckResult, nb::arg("result"))
      .def("choose", &Scheduler::Choose, nb::arg("pending"), nb::arg("paused"),
           nb::arg("more_to_come"))
      .def("set_config", &Scheduler::SetConfig, nb::arg("trial"), nb::arg("config"))
      .def("take_log", &Scheduler::TakeLog)
      .def("save", &Scheduler::Save)
      .def("load", &Scheduler::Load, nb::arg("state"));
  nb::class_<Stopper>(module, "TuneStopper")
      .def(nb::init<nb::handle>(), nb::arg("description"))
      .def("should_stop", &Stopper::ShouldStop, nb::arg("trial"), nb::arg("result"))
      .def("check", &Stopper::CheckResult, nb::arg("result"))
      .def("on_restart", &Stopper::OnRestart, nb::arg("trial"))
      .def("stop_all", &Stopper::StopAll)
      .def("on_elapsed", &Stopper::OnElapsed, nb::arg("seconds"))
      .def("save", &Stopper::Save)
      .def("load", &Stopper::Load, nb::arg("state"));
}

}  // namespace cairn::python
