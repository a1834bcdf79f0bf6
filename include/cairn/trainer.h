#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <locale>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/reader.h>
#include <cairn/status.h>
#include <cairn/value.h>

/// A training loop that survives kill -9: started again, the same program goes on with the next
/// step and ends with the weights that an undisturbed run would have given.
///
///   auto trainer = cairn::Trainer::Open({.model = variables,
///                                        .checkpoint_config = {{.checkpoint_dir = "runs/a"}}})
///                      .value();
///   trainer->AddRandomEngine("dropout", &engine).IgnoreError("a new name");
///   auto result = trainer->Train(/*num_epochs=*/10, reader, [&](const Batch& batch) {
///     return cairn::Value::Object{{"loss", Step(batch)}};
///   });
///
/// docs/guides/trainer_cpp.md has the whole story.
namespace cairn {

class RowTracked;
class Scope;
class Table;

/// When to save, where to, and what to keep.
struct CheckpointConfig {
  std::string checkpoint_dir;                           // a path or URL, as ManagerOptions has it
  std::optional<std::int64_t> max_num_checkpoints = 3;  // the newest stay; nullopt: all
  /// A save follows step s of epoch e when both divide: e % epoch_interval == 0 and
  /// s % step_interval == 0. Whatever they are, the end of the training, Stop and SIGTERM save too.
  std::int64_t epoch_interval = 1;
  std::int64_t step_interval = 10;
  /// Also whenever so much time has passed since the last save. For a single trainer only: clocks
  /// of several would not agree on the step.
  std::optional<double> save_seconds;
  /// While Train runs, SIGTERM ends it after the step under way, saved. False: signals are left
  /// alone.
  bool handle_sigterm = true;
  std::chrono::nanoseconds deadline = std::chrono::seconds(600);      // of a save of all trainers
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(30);  // for all to start
};

struct TrainerOptions {
  /// The variables: parameters, optimizer slots, learning rate, counters. Filled by Open when there
  /// is something to resume, read by saves; the memory stays the caller's and must outlive the
  /// trainer. Trainer 0 saves them; pieces of distributed arrays (`shard`) and variables of the
  /// group kState are saved by each trainer.
  std::vector<MutableTensor> model;
  /// Variables by role (scope.h), besides `model`: its persistables are saved and filled likewise,
  /// and count as loaded after a resume; its temporaries are destroyed after each step and its
  /// events. Declare all before Open; borrowed.
  Scope* scope = nullptr;
  /// Sparse tables (table.h) and dense arrays that are tracked by row (row_tracked.h): their rows
  /// belong to each checkpoint and are filled by Open; borrowed. Each trainer saves those that it
  /// has: of several trainers each has its own shards of a table, its own piece of an array. The
  /// trainer stamps changes with the global step.
  std::vector<Table*> tables;
  std::vector<RowTracked*> arrays;
  std::optional<CheckpointConfig> checkpoint_config;  // nullopt: no checkpoints
  int trainer_id = 0;
  int num_trainers = 1;
  std::string job;        // "" adopts the directory's
  std::uint64_t run = 0;  // as in ManagerOptions
  /// The trainers' directories are not shared: each commits its part alone, for
  /// `cairn checkpoint merge`.
  bool private_parts = false;
  bool takeover = false;  // as in ManagerOptions
  /// False: resume with what matches (other variables, other registered state, another number of
  /// trainers) and warn about the rest. The resumed run is then not the same as an undisturbed one.
  bool strict = true;
};

/// `step` is the first one to come: above 0 when training goes on inside the epoch. The event comes
/// then too, so that a handler can make again what it keeps in memory for an epoch. What it changes
/// in the state is put back: the checkpoint was saved changed.
struct BeginEpochEvent {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
};
struct EndEpochEvent {
  std::int64_t epoch = 0;
};
struct BeginStepEvent {
  std::int64_t epoch = 0;
  std::int64_t step = 0;  // within the epoch, from 0
};
struct EndStepEvent {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  Value metrics;  // what the step function returned
};
using TrainerEvent = std::variant<BeginEpochEvent, EndEpochEvent, BeginStepEvent, EndStepEvent>;
using EventHandler = std::function<void(const TrainerEvent&)>;

enum class TrainOutcome : std::uint8_t {
  kCompleted,        // all epochs are done
  kAlreadyComplete,  // they were before: no step was run
  kStopped,          // by Stop
  kTerminated,       // by SIGTERM
};
std::string_view TrainOutcomeName(TrainOutcome outcome);

struct TrainResult {
  TrainOutcome outcome = TrainOutcome::kCompleted;
  std::int64_t epoch = -1;       // the last completed step …
  std::int64_t step = -1;        // … within its epoch
  std::int64_t global_step = 0;  // completed steps, over all runs
  std::int64_t steps_run = 0;    // by this call
  double train_seconds = 0;      // of this call
  double stall_seconds = 0;      // of these, held up by saving
  double replay_seconds = 0;     // of these, reading again what came before (no seekable reader)
  std::optional<CheckpointInfo> checkpoint;  // the newest, durable
};

namespace internal {

/// A reader and a step function with the batch's type hidden. The batch lives inside.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual Status Begin(std::int64_t epoch) = 0;
  virtual Result<bool> Advance() = 0;  // false: the epoch is over
  virtual Result<Value> Step() = 0;    // on the batch that Advance fetched
  virtual bool seekable() const = 0;
  virtual Result<Value> SaveState() = 0;
  virtual Status LoadState(const Value& state) = 0;
};

template <typename Batch, typename StepFunction>
class TypedSource final : public BatchSource {
 public:
  TypedSource(Reader<Batch>* reader, StepFunction* step) : reader_(reader), step_(step) {}

  Status Begin(std::int64_t epoch) override { return reader_->Begin(epoch); }
  Result<bool> Advance() override {
    batch_.reset();
    auto next = reader_->Next();
    if (!next.ok()) return next.status();
    batch_ = *std::move(next);
    return batch_.has_value();
  }
  Result<Value> Step() override {
    using Returned = std::invoke_result_t<StepFunction&, Batch&>;
    if constexpr (std::is_void_v<Returned>) {
      (*step_)(*batch_);
      return Value();
    } else if constexpr (std::is_same_v<Returned, Status>) {
      Status status = (*step_)(*batch_);
      if (!status.ok()) return status;
      return Value();
    } else if constexpr (std::is_same_v<Returned, Result<Value>>) {
      return (*step_)(*batch_);
    } else {
      return Value((*step_)(*batch_));
    }
  }
  bool seekable() const override { return reader_->seekable(); }
  Result<Value> SaveState() override { return reader_->SaveState(); }
  Status LoadState(const Value& state) override { return reader_->LoadState(state); }

 private:
  Reader<Batch>* reader_;
  StepFunction* step_;
  std::optional<Batch> batch_;
};

}  // namespace internal

/// Runs a training and its checkpoints. One thread trains; Stop may be called from any thread and
/// from the event handler, the others from the training thread, not while Train runs.
///
/// With several trainers each is a process of its own that makes the same steps on its own share of
/// the data (the step function exchanges gradients). They meet in the directory: all save after the
/// same steps, and each such save is one checkpoint. A trainer that is gone fails the save of the
/// others within `deadline`; the job is then started anew as a whole.
///
/// A failed background save is reported by the step that follows it: Train returns the error. After
/// any error the checkpoints are whole, and the trainer refuses to go on: the variables may be
/// half-way through a step. Open another one, which resumes.
class Trainer {
 public:
  /// Opens the directory and restores the variables from its newest checkpoint. All that is wrong
  /// with the options, the directory or the checkpoint (another job's, another model's) is said
  /// here, before the first step.
  static Result<std::unique_ptr<Trainer>> Open(TrainerOptions options);
  virtual ~Trainer() = default;

  /// Registers state that is no variable: counters of one's own. `save` gives the value at a save;
  /// `load` gets it back inside the first Train when that resumes, and in a later one that goes on
  /// inside an epoch. Each trainer saves its own. Before Train.
  virtual Status AddState(std::string name, std::function<Value()> save,
                          std::function<Status(const Value&)> load) = 0;
  /// A generator of <random>, or any type that streams in and out as text. Where training goes on
  /// inside an epoch, the reader and the handler of BeginEpoch find it as the epoch found it, the
  /// next step as the last one left it.
  template <typename Engine>
  Status AddRandomEngine(std::string name, Engine* engine);
  /// A number that the program counts in.
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  Status AddNumber(std::string name, Number* number);

  /// Trains until `num_epochs` epochs are done in all, counting those of earlier runs. `step` takes
  /// a Batch& and returns metrics: a Value, something that becomes one (a number, an object), a
  /// Result<Value>, a Status, or nothing. When Train returns, the last save is durable.
  /// A checkpoint holds the state after the events of its step. At the end of the training the last
  /// step is not saved a second time unless there is an event handler: EndEpoch may have changed
  /// the state.
  template <typename Batch, typename StepFunction>
  Result<TrainResult> Train(std::int64_t num_epochs, Reader<Batch>& reader, StepFunction step,
                            EventHandler event_handler = {}) {
    internal::TypedSource<Batch, StepFunction> source(&reader, &step);
    return TrainOn(num_epochs, &source, std::move(event_handler));
  }

  /// Ends Train after the step under way, saved. With several trainers all must stop after the same
  /// step. A Stop before Train counts for the next one.
  virtual void Stop() = 0;

  /// Completed steps, those of earlier runs too: 0 on a fresh start. Also from the event handler.
  virtual std::int64_t global_step() const = 0;
  /// What Open resumed from; nullopt on a fresh start.
  virtual const std::optional<CheckpointInfo>& resumed() const = 0;

  /// Gives the directory up. Further calls of Train fail.
  virtual Status Close() = 0;

 protected:
  /// AddState, for what the beginning of an epoch may draw from.
  virtual Status AddGenerator(std::string name, std::function<Value()> save,
                              std::function<Status(const Value&)> load) = 0;
  virtual Result<TrainResult> TrainOn(std::int64_t num_epochs, internal::BatchSource* source,
                                      EventHandler event_handler) = 0;
};

template <typename Engine>
Status Trainer::AddRandomEngine(std::string name, Engine* engine) {
  return AddGenerator(
      std::move(name),
      [engine] {
        std::ostringstream text;
        text.imbue(std::locale::classic());  // no grouping of digits, whatever the program set
        text << *engine;
        return Value(text.str());
      },
      [engine](const Value& value) {
        const std::string* text = value.if_string();
        if (text == nullptr) return FailedPreconditionError("not the state of a generator");
        std::istringstream in(*text);
        in.imbue(std::locale::classic());
        Engine read = *engine;
        in >> read;
        if (in.fail()) return FailedPreconditionError("not the state of such a generator");
        *engine = read;
        return Status::Ok();
      });
}

template <typename Number>
  requires std::is_arithmetic_v<Number>
Status Trainer::AddNumber(std::string name, Number* number) {
  using Stored =
      std::conditional_t<std::is_same_v<Number, bool>, bool,
                         std::conditional_t<std::is_floating_point_v<Number>, double,
                                            std::conditional_t<std::is_signed_v<Number>,
                                                               std::int64_t, std::uint64_t>>>;
  static_assert(sizeof(Number) <= sizeof(Stored));
  return AddState(
      std::move(name), [number] { return Value(static_cast<Stored>(*number)); },
      [number](const Value& value) {
        if (const bool* b = value.if_bool()) {
          *number = static_cast<Number>(*b);
        } else if (const std::int64_t* i = value.if_int64()) {
          *number = static_cast<Number>(*i);
        } else if (const std::uint64_t* u = value.if_uint64()) {
          *number = static_cast<Number>(*u);
        } else if (const double* d = value.if_double()) {
          *number = static_cast<Number>(*d);
        } else {
          return FailedPreconditionError("not a number");
        }
        return Status::Ok();
      });
}

}  // namespace cairn
