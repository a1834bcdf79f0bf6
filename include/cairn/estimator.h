#pragma once

#include <cstdint>
#include <functional>
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
  /// what is due, and at the end. InvalidArgument: no data, no train_op, or both kinds of steps.
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
    auto opened = TrainingSession::Open(session_);
    if (!opened.ok()) return opened.status();
    TrainingSession& session = **opened;
    const std::optional<std::int64_t> end =
        wanted.steps ? session.global_step() + *wanted.steps : wanted.max_steps;
    const auto over = [&] {
      return session.ShouldStop() || (end && session.global_step() >= *end);
    };
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
    global_step_ = session.global_step();
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
  const ModelFn model_fn_;
  const Params params_;
  SessionOptions session_;
  std::int64_t global_step_ = 0;
  std::optional<double> last_loss_;
};

}  // namespace cairn
