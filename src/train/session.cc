#include <cairn/session.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/table_checkpoint.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "train/lost_tables.h"
#include "train/scope_variables.h"
#include "train/session_schedule.h"

namespace cairn {
namespace {

constexpr int kLongestChain = 100;
// How often a worker looks whether the chief has saved.
constexpr std::chrono::milliseconds kLook{200};

// In the metadata of an increment, below "session": seconds of training since its full one.
constexpr char kFullAge[] = "full_age_seconds";

/// Of a stored number, which may be anything.
std::chrono::nanoseconds Seconds(double seconds) {
  constexpr double kOldest = 1e9;  // some decades
  if (!(seconds > 0)) return std::chrono::nanoseconds(0);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, kOldest) * 1e9));
}

/// Says what a session's user can do about it; there is no rename and no skip here.
Status OtherTraining(const Status& mismatch) {
  const std::string_view what = mismatch.message();
  return MismatchError(
      fmt::format("{}. Give the tables and variables that were saved, or train in "
                  "another checkpoint_dir",
                  what.substr(0, what.find("; rename, skip or strict"))));
}

class SessionImpl final : public TrainingSession {
 public:
  /// `options.variables` has the scope's too.
  SessionImpl(SessionOptions options, ScopeVariables scope, SessionSchedule schedule)
      : options_(std::move(options)), scope_(std::move(scope)), schedule_(schedule) {
    if (!options_.now) {
      options_.now = [] { return Clock::System()->Now(); };
    }
  }

  Status Start() {
    if (!options_.checkpoint_dir.empty()) {
      RETURN_IF_ERROR(options_.is_chief ? OpenManager() : AwaitChief());
    }
    Stamp();
    schedule_.Start(options_.now(), step_,
                    SessionSchedule::Age{full_age_, restored_ ? step_ - full_step_ : 0});
    if (!Saves() || restored_) return Status::Ok();
    return Save(SaveKind::kFull).status();
  }

  Status Run(const std::function<Status(std::int64_t)>& step) override {
    if (closed_) return FailedPreconditionError("this session is closed");
    RETURN_IF_ERROR(step(step_));
    scope_.EndIteration();
    ++step_;
    Stamp();
    if (!Saves()) return Status::Ok();
    LookAtSave();
    const SessionSchedule::Due due = schedule_.Check(options_.now(), step_);
    if (due == SessionSchedule::Due::kNothing) return Status::Ok();
    return Save(due == SessionSchedule::Due::kFull ? SaveKind::kFull : Increment()).status();
  }

  Result<SaveHandle> Save(SaveKind kind) override {
    if (!Saves()) {
      return FailedPreconditionError(
          "this session saves nothing: it has no checkpoint_dir, or is not chief");
    }
    if (kind != SaveKind::kFull) {
      checkpoints_->Wait();  // the one in flight decides what can be built on
      if (!checkpoints_->CanIncrement() || WantsNewBase(kind)) kind = SaveKind::kFull;
    }
    SaveRequest request{.step = step_, .kind = kind};
    for (const SessionVariable& v : options_.variables) {
      request.tensors.push_back(
          {.name = v.name, .dtype = v.dtype, .shape = v.shape, .data = v.data});
    }
    if (options_.save_state) request.state_files = options_.save_state();
    const bool full = kind == SaveKind::kFull;
    const std::chrono::nanoseconds now = options_.now();
    if (!full) {
      const std::chrono::duration<double> age = schedule_.SinceFull(now, step_).time;
      request.metadata = Value::Object{{"session", Value::Object{{kFullAge, age.count()}}}};
    }
    ASSIGN_OR_RETURN(SaveHandle handle, checkpoints_->Save(std::move(request)));
    LookAtSave();  // the one before, which this one waited for
    before_ = {schedule_, chain_, saved_step_};
    schedule_.Saved(full ? SessionSchedule::Due::kFull : SessionSchedule::Due::kIncrement, now,
                    step_);
    chain_ = full ? 0 : chain_ + 1;
    saved_step_ = step_;
    in_flight_ = handle;
    return handle;
  }

  Status Close() override {
    if (closed_) return Status::Ok();
    closed_ = true;
    if (manager_ == nullptr) return Status::Ok();
    Status saved;
    if (Saves()) LookAtSave();
    if (Saves() && schedule_.saves() && (step_ != saved_step_ || RowsChangedSince())) {
      closed_ = false;
      saved = Save(schedule_.increments() ? Increment() : SaveKind::kFull).status();
      closed_ = true;
    }
    checkpoints_->Wait();
    const Status closed = manager_->Close();
    return saved.ok() ? closed : saved;
  }

  std::int64_t global_step() const override { return step_; }
  const std::optional<Restored>& restored() const override { return restored_; }
  TableCut::Error quantization_error() const override {
    return checkpoints_ == nullptr ? TableCut::Error{} : checkpoints_->quantization_error();
  }
  void RequestStop() override { stop_ = true; }
  bool ShouldStop() const override { return stop_; }

 private:
  bool Saves() const { return manager_ != nullptr && options_.is_chief; }
  SaveKind Increment() const {
    return options_.consecutive ? SaveKind::kConsecutive : SaveKind::kCumulative;
  }

  /// Rows that changed after the step that was saved last. Those that the save in flight has count
  /// until it is over.
  bool RowsChangedSince() {
    checkpoints_->Wait();
    LookAtSave();
    if (options_.tables.empty() && options_.arrays.empty()) return false;
    // One that was cleared knows no more what changed.
    if (!checkpoints_->CanIncrement()) return true;
    const auto changed = [](const auto* one) {
      return one->ChangedRows(CutKind::kConsecutive) > 0;
    };
    return std::any_of(options_.tables.begin(), options_.tables.end(), changed) ||
           std::any_of(options_.arrays.begin(), options_.arrays.end(), changed);
  }

  /// Releases the rows of a save that is over. One that failed has saved nothing: what was due is
  /// due again, and not when the next interval is over.
  void LookAtSave() {
    checkpoints_->Settle();
    if (!in_flight_) return;
    const auto outcome = in_flight_->Outcome();
    if (!outcome) return;
    in_flight_.reset();
    if (outcome->ok()) return;
    schedule_ = before_->schedule;
    chain_ = before_->chain;
    saved_step_ = before_->saved_step;
  }

  /// A worker's: opens what the chief has saved.
  Status AwaitChief() {
    Clock* const clock = Clock::System();
    const auto deadline = clock->Now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                             std::chrono::duration<double>(options_.max_wait_secs));
    for (bool told = false;; told = true) {
      const Status opened = OpenManager();
      if (opened.ok() ? restored_.has_value() : !opened.Is(Code::kNotFound)) return opened;
      checkpoints_.reset();
      manager_.reset();
      if (clock->Now() >= deadline) {
        return DeadlineExceededError(fmt::format(
            "the chief has saved nothing in \"{}\" within {:g} s (max_wait_secs). Is it "
            "running, with is_chief, and is the directory shared by all workers?",
            options_.checkpoint_dir, options_.max_wait_secs));
      }
      if (!told) {
        LogWarning(fmt::format("waiting for the chief's first checkpoint in \"{}\", at most {:g} s",
                               options_.checkpoint_dir, options_.max_wait_secs));
      }
      clock->Sleep(kLook);  // nothing tells when the chief has saved
    }
  }

  Result<std::unique_ptr<CheckpointManager>> OpenWithCallback(ManagerOptions options) {
    if (!options_.on_saved || options.read_only) return CheckpointManager::Open(std::move(options));
    ASSIGN_OR_RETURN(Environment env, EnvironmentAt(options.directory, {.create = true}));
    env.on_step = [tell = options_.on_saved](std::string_view step) {
      if (step == "acknowledge") tell();
    };
    return cairn::OpenManager(std::move(options), std::move(env));
  }

  Status OpenManager() {
    ManagerOptions options{.directory = options_.checkpoint_dir};
    options.read_only = !options_.is_chief;
    options.takeover = options_.takeover && options_.is_chief;
    options.retention.keep_last =
        options_.max_to_keep ? std::optional<std::uint64_t>(1) : std::optional<std::uint64_t>();
    options.retention.keep_fulls = options_.max_to_keep;
    ASSIGN_OR_RETURN(manager_, OpenWithCallback(std::move(options)));
    checkpoints_ = std::make_unique<TableCheckpoints>(
        manager_.get(), options_.tables, options_.arrays,
        TableCheckpoints::Options{.quantize = options_.quantize,
                                  .compress_keys = options_.compress_keys});
    RestoreRequest request;
    for (const SessionVariable& v : options_.variables) {
      request.into.push_back({.name = v.name, .dtype = v.dtype, .shape = v.shape, .data = v.data});
    }
    Status lost;
    if (options_.is_chief && options_.tables.empty() && options_.arrays.empty()) {
      request.prepare = [&](const Restored& head, RestoreRequest*) {
        return lost = RefuseLostTables(head);
      };
    }
    auto restored = checkpoints_->Restore(std::move(request));
    RETURN_IF_ERROR(lost);
    if (restored.status().reason() == Reason::kMismatch) return OtherTraining(restored.status());
    ASSIGN_OR_RETURN(restored_, std::move(restored));
    if (!restored_) return Status::Ok();
    scope_.MarkLoaded(restored_->skipped);
    step_ = saved_step_ = restored_->step;
    RETURN_IF_ERROR(StandOn(restored_->info));
    if (options_.restore_state) RETURN_IF_ERROR(options_.restore_state(restored_->state_files));
    return Status::Ok();
  }

  /// The chain goes on: it is as long, and its full checkpoint as old, as before.
  Status StandOn(const CheckpointInfo& info) {
    full_step_ = info.step;
    full_age_ = {};
    chain_ = 0;
    if (info.kind == "full") return Status::Ok();
    if (const Value* session = info.metadata.Find("session")) {
      if (const Value* age = session->Find(kFullAge)) full_age_ = Seconds(age->AsDouble());
    }
    ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> there, manager_->List());
    for (const CheckpointInfo& other : there) {
      if (other.id == info.base) full_step_ = other.step;
      if (other.kind != "full" && other.base == info.base) ++chain_;
    }
    return Status::Ok();
  }

  bool WantsNewBase(SaveKind kind) const {
    if (kind == SaveKind::kConsecutive && chain_ >= kLongestChain) return true;
    const CutKind cut =
        kind == SaveKind::kConsecutive ? CutKind::kConsecutive : CutKind::kCumulative;
    std::uint64_t rows = 0;
    std::uint64_t changed = 0;
    for (const Table* table : options_.tables) {
      rows += table->size();
      changed += table->ChangedRows(cut);
    }
    for (const RowTracked* array : options_.arrays) {
      rows += array->options().rows;
      changed += array->ChangedRows(cut);
    }
    return OutgrewBase(rows, changed);
  }

  void Stamp() {
    for (Table* table : options_.tables) table->set_step(step_);
  }

  SessionOptions options_;
  ScopeVariables scope_;
  SessionSchedule schedule_;
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<TableCheckpoints> checkpoints_;  // after the manager, which it uses to its end
  std::optional<Restored> restored_;
  std::int64_t step_ = 0;
  std::int64_t saved_step_ = -1;
  int chain_ = 0;                         // increments since the last full one
  std::int64_t full_step_ = 0;            // of the full one that was restored, or that it builds on
  std::chrono::nanoseconds full_age_{0};  // of that, in time of training
  /// What the save in flight changed, should it fail.
  struct Before {
    SessionSchedule schedule;
    int chain = 0;
    std::int64_t saved_step = -1;
  };
  std::optional<SaveHandle> in_flight_;
  std::optional<Before> before_;
  bool stop_ = false;
  bool closed_ = false;
};

/// With those of the scope.
std::vector<SessionVariable> AllVariables(std::vector<SessionVariable> variables,
                                          const ScopeVariables& scope) {
  for (const MutableTensor& tensor : scope.tensors()) {
    variables.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data});
  }
  return variables;
}

}  // namespace

Status SessionOptions::Validate() const {
  RETURN_IF_ERROR(SessionSchedule::Make(*this).status());
  if (!(max_wait_secs >= 0 && max_wait_secs <= 1e9)) {
    return InvalidArgumentError("max_wait_secs must be a number of seconds, not negative");
  }
  if (max_to_keep && *max_to_keep == 0) {
    return InvalidArgumentError("max_to_keep is 0; at least one checkpoint must stay");
  }
  RETURN_IF_ERROR(CheckTables(tables, arrays));
  ASSIGN_OR_RETURN(const ScopeVariables held, ScopeVariables::Of(scope));
  const std::vector<SessionVariable> all = AllVariables(variables, held);
  std::vector<std::string_view> dense;
  std::set<std::string_view> names;
  for (const SessionVariable& variable : all) {
    dense.push_back(variable.name);
    if (names.insert(variable.name).second) continue;
    return InvalidArgumentError("two variables are called \"" + variable.name + "\"");
  }
  return CheckDenseNames(dense, tables, arrays);
}

Result<std::unique_ptr<TrainingSession>> TrainingSession::Open(SessionOptions options) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(const SessionSchedule schedule, SessionSchedule::Make(options));
  ASSIGN_OR_RETURN(ScopeVariables scope, ScopeVariables::Of(options.scope));
  options.variables = AllVariables(std::move(options.variables), scope);
  auto session = std::make_unique<SessionImpl>(std::move(options), std::move(scope), schedule);
  RETURN_IF_ERROR(session->Start());
  return std::unique_ptr<TrainingSession>(std::move(session));
}

}  // namespace cairn
