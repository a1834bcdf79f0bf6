#include "paramserver/holdings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "format/json.h"
#include "format/member_reader.h"
#include "paramserver/declaration.h"

namespace cairn::ps {
namespace {

constexpr char kJobFile[] = "job.json";
// Servers wait for each other as long as it takes: a server that is missing is being restarted.
constexpr std::chrono::hours kJoinPatience{24};
// What is stored may be another checkpoint than the one that was looked at first, when that turns
// out to be damaged.
constexpr int kMaxLooks = 8;

std::string StateFile(std::size_t trainer) {
  return "/trainer_" + std::to_string(trainer) + "/state.json";
}

}  // namespace

/// What a checkpoint says about the job, in every server's job.json.
struct Holdings::Job {
  std::int64_t step = 0;
  std::vector<std::int64_t> trainer_steps;
  std::vector<TableSpec> tables;
  std::vector<DenseSpec> dense;

  static Result<Job> Decode(const std::string& text) {
    ASSIGN_OR_RETURN(const Value value, DecodeJson(text));
    if (value.if_object() == nullptr) return CorruptionError("job.json is no object");
    const MemberReader reader(*value.if_object());
    Job job;
    RETURN_IF_ERROR(reader.Int("step", &job.step));
    const auto each = [&](const char* name, const auto& add) -> Status {
      const Value::List* list = nullptr;
      RETURN_IF_ERROR(reader.OptionalList(name, &list));
      if (list == nullptr) return Status::Ok();
      for (const Value& item : *list) RETURN_IF_ERROR(add(item));
      return Status::Ok();
    };
    RETURN_IF_ERROR(each("trainer_steps", [&](const Value& item) {
      job.trainer_steps.push_back(item.AsInt());
      return Status::Ok();
    }));
    RETURN_IF_ERROR(each("tables", [&](const Value& item) -> Status {
      ASSIGN_OR_RETURN(TableSpec spec, TableSpecFrom(item));
      job.tables.push_back(std::move(spec));
      return Status::Ok();
    }));
    RETURN_IF_ERROR(each("dense", [&](const Value& item) -> Status {
      ASSIGN_OR_RETURN(DenseSpec spec, DenseSpecFrom(item));
      job.dense.push_back(std::move(spec));
      return Status::Ok();
    }));
    return job;
  }
};

std::string Holdings::EncodeJob() const {
  Value::List steps;
  for (const Trainer& trainer : trainers_) steps.emplace_back(trainer.step);
  Value::List tables;
  for (const TableEntry& entry : tables_) tables.push_back(ToValue(entry.spec));
  Value::List dense;
  for (const DenseEntry& entry : dense_) dense.push_back(ToValue(entry.variable->spec()));
  return EncodeJson(Value::Object{{"version", 1},
                                  {"mode", sync_ ? "sync" : "async"},
                                  {"servers", options_.servers},
                                  {"step", step_},
                                  {"trainer_steps", std::move(steps)},
                                  {"tables", std::move(tables)},
                                  {"dense", std::move(dense)}},
                    2) +
         "\n";
}

Holdings::Holdings(const ServerOptions& options, std::shared_ptr<LeavingClock> clock)
    : options_(options),
      clock_(std::move(clock)),
      sync_(options.mode == Mode::kSync),
      lead_(options.index == 0),
      trainers_(static_cast<std::size_t>(options.trainers)) {}

Holdings::~Holdings() {
  clock_->Leave();  // the save in flight may wait for a server that is dead
  MutexLock lock(&mu_);
  checkpoints_ = nullptr;
  if (manager_ != nullptr) manager_->Close().IgnoreError("the save in flight was given up");
}

Result<std::unique_ptr<Holdings>> Holdings::Open(const ServerOptions& options,
                                                 std::shared_ptr<LeavingClock> clock,
                                                 const std::function<void()>& opened) {
  auto holdings = std::unique_ptr<Holdings>(new Holdings(options, std::move(clock)));
  RETURN_IF_ERROR(holdings->OpenManager(opened));
  RETURN_IF_ERROR(holdings->Restore());
  return holdings;
}

Status Holdings::OpenManager(const std::function<void()>& opened) {
  ASSIGN_OR_RETURN(Environment env, EnvironmentAt(options_.directory, {.create = true}));
  env.clock = clock_.get();
  ManagerOptions manager{.directory = options_.directory};
  manager.participant = "ps";
  manager.rank = options_.index;
  manager.world_size = options_.servers;
  manager.join_deadline = kJoinPatience;
  manager.retention.keep_last =
      options_.max_to_keep ? std::optional<std::uint64_t>(1) : std::optional<std::uint64_t>();
  manager.retention.keep_fulls = options_.max_to_keep;
  ASSIGN_OR_RETURN(manager_, cairn::OpenManager(std::move(manager), std::move(env)));
  opened();
  SessionOptions schedule;
  schedule.save_checkpoint_secs = options_.full_secs;
  schedule.save_checkpoint_steps = options_.full_steps;
  schedule.save_incremental_checkpoint_secs = options_.incremental_secs;
  schedule.save_incremental_checkpoint_steps = options_.incremental_steps;
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(schedule_, SessionSchedule::Make(schedule));
  return Status::Ok();
}

Result<std::unique_ptr<Table>> Holdings::MakeTable(const TableSpec& spec) const {
  ASSIGN_OR_RETURN(TableOptions options, MakeTableOptions(spec));
  options.shards = ShardsOf(options_.index, options_.servers);
  options.gate = gate_;
  return Table::Make(std::move(options));
}

Status Holdings::MakeAll(const Job& job) {
  checkpoints_ = nullptr;
  tables_.clear();
  dense_.clear();
  for (const TableSpec& spec : job.tables) {
    ASSIGN_OR_RETURN(auto table, MakeTable(spec));
    tables_.push_back({spec, std::move(table)});
  }
  for (const DenseSpec& spec : job.dense) {
    ASSIGN_OR_RETURN(auto variable, DenseVariable::Make(spec, options_.index, options_.servers));
    dense_.push_back({std::move(variable)});
  }
  RenewCheckpoints();
  return Status::Ok();
}

std::vector<Table*> Holdings::TablePointers() const {
  std::vector<Table*> tables;
  for (const TableEntry& entry : tables_) tables.push_back(entry.table.get());
  return tables;
}

void Holdings::RenewCheckpoints() {
  checkpoints_ = nullptr;  // waits for the save in flight
  checkpoints_ = std::make_unique<TableCheckpoints>(manager_.get(), TablePointers());
}

void Holdings::Adopt(const Job& job, const Restored& restored) {
  step_ = job.step;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    Trainer& trainer = trainers_[i];
    trainer.step = sync_ ? job.step : i < job.trainer_steps.size() ? job.trainer_steps[i] : 0;
    const auto state = restored.state_files.find(StateFile(i));
    if (state != restored.state_files.end()) trainer.state = state->second;
  }
  for (const TableEntry& entry : tables_) entry.table->set_step(step_);
}

Status Holdings::Restore() {
  const Clock::Duration begun = clock_->Now();
  MutexLock lock(&mu_);
  // First the description, then what it describes. A restore that is refused by `prepare` has
  // changed nothing.
  std::string text;
  bool found = false;
  const Status looked = manager_
                            ->Restore({.prepare =
                                           [&](const Restored& head, RestoreRequest*) {
                                             const auto file = head.state_files.find(kJobFile);
                                             if (file != head.state_files.end())
                                               text = file->second;
                                             found = true;
                                             return CancelledError("looked");
                                           }})
                            .status();
  if (!found) {
    RETURN_IF_ERROR(looked);
    RETURN_IF_ERROR(MakeAll({}));
    if (!options_.load.empty()) RETURN_IF_ERROR(Load(options_.load));
    schedule_->Start(clock_->Now(), step_);
    restore_seconds_ = std::chrono::duration<double>(clock_->Now() - begun).count();
    return Status::Ok();
  }
  for (int look = 0; look < kMaxLooks; ++look) {
    if (text.empty()) {
      return FailedPreconditionError("\"" + options_.directory +
                                     "\" is not the repository of a job with parameter servers");
    }
    ASSIGN_OR_RETURN(const Job job, Job::Decode(text));
    RETURN_IF_ERROR(MakeAll(job));
    RestoreRequest request;
    request.partial = true;  // blocks that only other servers have
    for (const DenseEntry& entry : dense_) {
      for (MutableTensor& tensor : entry.variable->MutableTensors()) {
        request.into.push_back(std::move(tensor));
      }
    }
    bool other = false;
    request.prepare = [&](const Restored& head, RestoreRequest*) {
      const auto file = head.state_files.find(kJobFile);
      const std::string now = file == head.state_files.end() ? "" : file->second;
      other = now != text;
      text = now;
      return other ? CancelledError("another checkpoint") : Status::Ok();
    };
    auto restored = checkpoints_->Restore(std::move(request));
    if (other) continue;
    if (!restored.ok()) return restored.status();
    if (!*restored) return InternalError("the checkpoint that was to be restored is gone");
    Adopt(job, **restored);
    restored_step_ = (*restored)->step;
    saved_step_ = restored_step_;
    schedule_->Start(clock_->Now(), step_);
    restore_seconds_ = std::chrono::duration<double>(clock_->Now() - begun).count();
    LogInfo(fmt::format("ps_{}: restored step {} in {:.3f} s", options_.index, step_,
                        restore_seconds_));
    return Status::Ok();
  }
  return CorruptionError("\"" + options_.directory +
                         "\": one checkpoint after the other is damaged");
}

Status Holdings::Load(const std::string& path) {
  // Of another job: it has a participant ps_0, whatever the number of its servers.
  RestoreRequest look;
  look.path = path;
  std::string text;
  look.prepare = [&](const Restored& head, RestoreRequest*) {
    const auto file = head.state_files.find(kJobFile);
    if (file != head.state_files.end()) text = file->second;
    return CancelledError("looked");
  };
  const Status looked = LoadCheckpoint(look, "ps_0").status();
  if (!looked.Is(Code::kCancelled)) return looked;
  if (text.empty()) {
    return InvalidArgumentError("\"" + path + "\" is not a checkpoint of parameter servers");
  }
  ASSIGN_OR_RETURN(const Job job, Job::Decode(text));
  RETURN_IF_ERROR(MakeAll(job));
  TableFiller filler(TablePointers());
  RestoreRequest request;
  request.path = path;
  request.partial = true;
  if (!tables_.empty()) request.tables = &filler;
  for (const DenseEntry& entry : dense_) {
    for (MutableTensor& tensor : entry.variable->MutableTensors()) {
      request.into.push_back(std::move(tensor));
    }
  }
  RETURN_IF_ERROR(LoadCheckpoint(request, "ps_0").status());
  RETURN_IF_ERROR(filler.Finish());
  return Status::Ok();  // the parameters; steps and data positions are the new job's own
}

void Holdings::Settle() {
  checkpoints_->Settle();
  if (!in_flight_ || !in_flight_->Done()) return;
  const auto outcome = in_flight_->Wait();
  in_flight_.reset();
  if (outcome.ok()) {
    ++saves_;
    saved_step_ = outcome->step;
    return;
  }
  ++failed_saves_;
  LogWarning(fmt::format("ps_{}: {}", options_.index, outcome.status().ToString()));
}

void Holdings::Decide() {
  Settle();
  if (!lead_ || next_.number > last_cut_ || in_flight_) return;
  std::int64_t label = step_;
  if (!sync_) {
    label = 0;
    for (const Trainer& trainer : trainers_) label += trainer.step;
  }
  ++label;  // what it will be when the next step ends
  const auto due = schedule_->Check(clock_->Now(), label);
  if (due == SessionSchedule::Due::kNothing && !save_asked_) return;
  const bool full = due == SessionSchedule::Due::kFull || full_asked_ || tables_.empty() ||
                    !checkpoints_->CanIncrement();
  save_asked_ = false;
  full_asked_ = false;
  next_ = {last_cut_ + 1, label, full};
}

void Holdings::Cut(const Marker& marker) {
  last_cut_ = marker.number;
  checkpoints_->Wait();
  Settle();
  // A table that came after the cut was announced has no base; every server knows it by now.
  const bool full = marker.full || declared_since_full_;
  declared_since_full_ = false;
  if (!full && !checkpoints_->CanIncrement()) {
    // The lead believes that all have the base. Whoever has not cannot count attempts with the
    // others any more.
    broken_ = FailedPreconditionError(
        fmt::format("ps_{} has nothing that the increment of step {} could build on",
                    options_.index, marker.step));
    return;
  }
  SaveRequest request;
  request.step = marker.step;
  request.kind = full ? SaveKind::kFull : SaveKind::kCumulative;
  for (const DenseEntry& entry : dense_) {
    for (Tensor& tensor : entry.variable->Tensors()) request.tensors.push_back(std::move(tensor));
  }
  request.state_files[kJobFile] = EncodeJob();
  if (lead_) {
    for (std::size_t i = 0; i < trainers_.size(); ++i) {
      const std::string folder = "/trainer_" + std::to_string(i) + "/";
      request.state_files[folder + "step_id"] = std::to_string(trainers_[i].step) + "\n";
      if (trainers_[i].state) request.state_files[StateFile(i)] = *trainers_[i].state;
    }
    schedule_->Saved(full ? SessionSchedule::Due::kFull : SessionSchedule::Due::kIncrement,
                     clock_->Now(), marker.step);
  }
  auto handle = checkpoints_->Save(std::move(request));
  if (!handle.ok()) {
    ++failed_saves_;
    LogWarning(fmt::format("ps_{}: the checkpoint of step {} failed: {}", options_.index,
                           marker.step, handle.status().ToString()));
    return;
  }
  in_flight_ = *std::move(handle);
}

Status Holdings::CutNow(const Marker& marker) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  if (marker.number <= last_cut_) return Status::Ok();  // asked again
  for (const Trainer& trainer : trainers_) {
    if (trainer.incarnation.empty() || trainer.left) continue;
    return FailedPreconditionError("trainers are still at work: ask for a save instead");
  }
  Cut(marker);
  return broken_;
}

Status Holdings::Broken() {
  MutexLock lock(&mu_);
  return broken_;
}

Value Holdings::Describe() {
  MutexLock lock(&mu_);
  Settle();
  Value::List tables;
  for (const TableEntry& entry : tables_) {
    tables.push_back(Value::Object{{"name", entry.spec.name},
                                   {"dim", static_cast<std::uint64_t>(entry.spec.dim)},
                                   {"rows", entry.table->size()},
                                   {"bytes", entry.table->memory().total()}});
  }
  Value::List dense;
  for (const DenseEntry& entry : dense_) {
    dense.push_back(
        Value::Object{{"name", entry.variable->spec().name},
                      {"elements", static_cast<std::uint64_t>(entry.variable->values().size())}});
  }
  Value::List trainers;
  for (const Trainer& trainer : trainers_) {
    trainers.push_back(Value::Object{{"present", !trainer.incarnation.empty()},
                                     {"left", trainer.left},
                                     {"step", trainer.step},
                                     {"sequence", trainer.sequence}});
  }
  Value::Object value{{"step", step_},
                      {"mode", sync_ ? "sync" : "async"},
                      {"tables", std::move(tables)},
                      {"dense", std::move(dense)},
                      {"trainers", std::move(trainers)},
                      {"saves", saves_},
                      {"failed_saves", failed_saves_},
                      {"saving", in_flight_.has_value()},
                      {"save_announced", next_.number > last_cut_},
                      {"cut", last_cut_},
                      {"restore_seconds", restore_seconds_}};
  if (saved_step_) value["saved_step"] = *saved_step_;
  if (restored_step_) value["restored_step"] = *restored_step_;
  return value;
}

std::string Holdings::Metrics() {
  MutexLock lock(&mu_);
  Settle();
  std::string text;
  const auto add = [&](std::string_view name, std::string_view kind, std::string_view help,
                       double value) {
    text += fmt::format("# HELP cairn_ps_{0} {1}\n# TYPE cairn_ps_{0} {2}\ncairn_ps_{0} {3}\n",
                        name, help, kind, value);
  };
  add("step", "gauge", "Steps completed by all trainers (sync).", static_cast<double>(step_));
  add("pushes_total", "counter", "Changes applied.", static_cast<double>(pushes_));
  add("repeated_pushes_total", "counter", "Changes that came again and were not applied.",
      static_cast<double>(repeated_));
  add("saves_total", "counter", "Checkpoints committed.", static_cast<double>(saves_));
  add("failed_saves_total", "counter", "Checkpoints given up.", static_cast<double>(failed_saves_));
  add("saved_step", "gauge", "Step of the newest checkpoint.",
      static_cast<double>(saved_step_.value_or(-1)));
  add("restore_seconds", "gauge", "Time that the last restore took.", restore_seconds_);
  text +=
      "# HELP cairn_ps_table_rows Rows of a table on this server.\n"
      "# TYPE cairn_ps_table_rows gauge\n";
  for (const TableEntry& entry : tables_) {
    text += fmt::format("cairn_ps_table_rows{{table={}}} {}\n", QuoteForMessage(entry.spec.name),
                        entry.table->size());
  }
  return text;
}

}  // namespace cairn::ps
