#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <cairn/serving.h>
#include <cairn/session.h>
#include <cairn/status.h>

/// A model function that is given batch after batch, in a session that saves and goes on by itself:
///
///   cairn::Estimator<Clicks, Labels> estimator(
///       [&](const Clicks& clicks, const Labels& labels, cairn::EstimatorMode, const cairn::Value&)
///       {
///         return cairn::EstimatorSpec{.train_op = [&](std::int64_t step) { return Train(clicks);
///         }};
///       },
///       "runs/a", {}, {.save_incremental_checkpoint_secs = 10, .tables = {users.get()}});
///   estimator.Train(ReadDays, {.steps = 1000});
///   estimator.ExportSavedModel("export", Receiver, /*save_incr_model=*/true).value();
///
/// Who exports links cairn::predict.
namespace cairn {

enum class EstimatorMode : std::uint8_t { kTrain };

/// What a model function gives for a batch.
struct EstimatorSpec {
  std::function<Status(std::int64_t global_step)> train_op;  // does the step
  std::function<double()> loss;                              // asked after it; may be empty
};

struct EstimatorSteps {
  std::optional<std::int64_t> steps;      // that this call does …
  std::optional<std::int64_t> max_steps;  // … or that all calls together do; neither: all data
};

/// One call of Train: from where to where, and whether it is done. Its checkpoints say where a call
/// began that is not: whoever makes the same call again, in another process, goes on with the batch
/// after the last that counts.
class TrainCall {
 public:
  static constexpr char kFile[] = "train_began";  // of the trainer's state files

  explicit TrainCall(const EstimatorSteps& wanted) : wanted_(wanted), end_(wanted.max_steps) {
    if (wanted.steps) end_ = wanted.steps;
  }
  /// A session begins at `step`; `stored`: where the call that its checkpoint is of began.
  void Begin(std::optional<std::int64_t> stored, std::int64_t step) {
    stored_ = stored;
    // It has nothing to do: a call before the one that is not done.
    idle_ = wanted_.max_steps && step >= *wanted_.max_steps;
    began_ = stored.value_or(step);
    if (!wanted_.steps) return;
    if (step - began_ >= *wanted_.steps) began_ = step;  // another call than the stored one
    end_ = began_ + *wanted_.steps;
  }
  void Finish() { done_ = true; }  // no more data, or somebody asked to stop
  std::int64_t began() const { return began_; }
  bool IsOver(std::int64_t step) const { return end_ && step >= *end_; }
  /// What a checkpoint of `step` says; nothing: no call is under way.
  std::optional<std::int64_t> Unfinished(std::int64_t step) const {
    if (idle_) return stored_;
    return done_ || IsOver(step) ? std::nullopt : std::optional(began_);
  }

 private:
  EstimatorSteps wanted_;
  std::optional<std::int64_t> end_;
  std::optional<std::int64_t> stored_;
  std::int64_t began_ = 0;
  bool idle_ = false;
  bool done_ = false;
};

/// For one thread at a time. What the functions refer to must outlive it.
template <typename Features, typename Labels = std::monostate, typename Params = Value>
class Estimator {
 public:
  using Batch = std::pair<Features, Labels>;
  using ModelFn = std::function<EstimatorSpec(const Features& features, const Labels& labels,
                                              EstimatorMode mode, const Params& params)>;
  /// Begins the data: a function that gives a batch each time, and nothing at the end.
  using InputFn = std::function<std::function<std::optional<Batch>()>()>;
  /// Says what is exported: graph, feeds, targets, and which feeds are rows of tables. Directory,
  /// increments and session are the estimator's.
  using ServingInputReceiverFn = std::function<Result<serving::ExportRequest>()>;

  /// `session`: when to save, tables, variables; its checkpoint_dir is `model_dir`.
  Estimator(ModelFn model_fn, std::string model_dir, Params params = {},
            SessionOptions session = {})
      : model_fn_(std::move(model_fn)), params_(std::move(params)), session_(std::move(session)) {
    session_.checkpoint_dir = std::move(model_dir);
  }

  /// Trains until the steps are done or the data ends, going on after the newest checkpoint; saves
  /// what is due, and at the end. A call that did not return, because the process was killed, is
  /// gone on with by the same call in another process: batches that count already are read and
  /// passed over, and `steps` are counted from where it began. A program with several calls gives
  /// each of them max_steps. InvalidArgument: no data, no train_op, or both kinds of steps.
  Status Train(const InputFn& input_fn, const EstimatorSteps& wanted = {}) {
    if (wanted.steps && wanted.max_steps) {
      return InvalidArgumentError("train: give steps or max_steps, not both");
    }
    if (wanted.steps.value_or(1) < 1 || wanted.max_steps.value_or(1) < 1) {
      return InvalidArgumentError("train: steps and max_steps must be positive");
    }
    const std::function<std::optional<Batch>()> next = input_fn();
    std::optional<Batch> batch = next();
    if (!batch) return InvalidArgumentError("train: input_fn gave no data");
    TrainCall call(wanted);
    Told told;
    TrainingSession* opening = nullptr;
    auto opened = TrainingSession::Open(Telling(call, &opening, &told));
    if (!opened.ok()) return opened.status();
    TrainingSession& session = **opened;
    opening = opened->get();
    call.Begin(told.began, session.global_step());
    for (std::int64_t i = call.began(); batch && i < session.global_step(); ++i) batch = next();
    const auto over = [&] { return session.ShouldStop() || call.IsOver(session.global_step()); };
    for (; batch && !over(); batch = over() ? std::nullopt : next()) {
      const EstimatorSpec spec =
          model_fn_(batch->first, batch->second, EstimatorMode::kTrain, params_);
      if (!spec.train_op) {
        return InvalidArgumentError(
            "EstimatorSpec: train_op must be a function that does the step");
      }
      if (Status done = session.Run(spec.train_op); !done.ok()) return done;
      if (spec.loss) last_loss_ = spec.loss();
    }
    call.Finish();
    global_step_ = session.global_step();
    if (told.saves && told.step == global_step_ && told.began != call.Unfinished(global_step_)) {
      // The checkpoint of the last step was made before it was known to be the last.
      if (auto saved = session.Save(LastKind()); !saved.ok()) return saved.status();
    }
    return session.Close();
  }

  /// Exports for serving::Model and `cairn serve`, into a new numbered directory below
  /// `export_dir_base`. FailedPrecondition: save_incr_model, and its session saves no increments.
  Result<serving::Exported> ExportSavedModel(const std::string& export_dir_base,
                                             const ServingInputReceiverFn& receiver,
                                             bool save_incr_model = false) const {
    auto request = receiver();
    if (!request.ok()) return request.status();
    request->directory = export_dir_base;
    request->increments = save_incr_model;
    request->session = &session_;
    return serving::Export(*request);
  }

  std::int64_t global_step() const { return global_step_; }  // after the last Train
  std::optional<double> last_loss() const { return last_loss_; }

 private:
  /// What the newest checkpoint says about the call.
  struct Told {
    std::int64_t step = -1;
    std::optional<std::int64_t> began;
    bool saves = false;
  };

  /// The session's options, with the call among the state that goes into each checkpoint.
  SessionOptions Telling(const TrainCall& call, TrainingSession** session, Told* told) const {
    SessionOptions options = session_;
    options.save_state = [&call, session, told, own = session_.save_state] {
      std::map<std::string, std::string> files;
      if (own) files = own();
      told->saves = true;
      told->step = *session == nullptr ? 0 : (*session)->global_step();  // fresh: still opening
      told->began = call.Unfinished(told->step);
      if (told->began) files[TrainCall::kFile] = std::to_string(*told->began) + "\n";
      return files;
    };
    options.restore_state =
        [told, own = session_.restore_state](const std::map<std::string, std::string>& stored) {
          std::map<std::string, std::string> files = stored;
          if (const auto began = files.find(TrainCall::kFile); began != files.end()) {
            told->began = std::strtoll(began->second.c_str(), nullptr, 10);
            files.erase(began);
          }
          return own ? own(files) : Status::Ok();
        };
    return options;
  }

  SaveKind LastKind() const {
    if (session_.save_incremental_checkpoint_secs.value_or(0) <= 0 &&
        session_.save_incremental_checkpoint_steps.value_or(0) <= 0) {
      return SaveKind::kFull;
    }
    return session_.consecutive ? SaveKind::kConsecutive : SaveKind::kCumulative;
  }

  const ModelFn model_fn_;
  const Params params_;
  SessionOptions session_;
  std::int64_t global_step_ = 0;
  std::optional<double> last_loss_;
};

}  // namespace cairn
