#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "paramserver/holdings.h"
#include "paramserver/job_file.h"

// When a server's holdings are saved, what a checkpoint says about the job, and what is told about
// both.

namespace cairn::ps {

std::string Holdings::EncodeJob(const SessionSchedule::Age& since_full) const {
  JobFile job{.mode = options_.mode, .servers = options_.servers, .step = step_};
  job.full_age_steps = static_cast<std::uint64_t>(std::max<std::int64_t>(since_full.steps, 0));
  job.full_age_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(since_full.time).count());
  for (const Trainer& trainer : trainers_) {
    job.trainer_steps.push_back(trainer.step);
    job.sequences.push_back(trainer.sequence);
    job.step_sequences.push_back(trainer.step_sequence);
    job.left.push_back(trainer.left);
  }
  for (const TableEntry& entry : tables_) job.tables.push_back(entry.spec);
  for (const DenseEntry& entry : dense_) job.dense.push_back(entry.variable->spec());
  if (log_ != nullptr) {
    job.log_name = log_name_;
    job.log_next = log_at_cut_;
  }
  return Encode(job);
}

void Holdings::Settle() {
  const bool over = in_flight_ && in_flight_->Done();
  checkpoints_->Settle();
  if (!over) return;
  const auto outcome = in_flight_->Wait();
  in_flight_.reset();
  if (outcome.ok()) {
    ++saves_;
    if (outcome->kind != "full") {
      ++saved_increments_;
      quantization_error_ = checkpoints_->quantization_error();
    }
    saved_step_ = outcome->step;
    changes_saved_ = changes_at_cut_;
    if (log_ == nullptr) return;
    // One checkpoint behind: should this one turn out to be damaged, the one before it and the log
    // still give everything.
    const Status trimmed = log_->Trim(std::exchange(log_at_saved_, log_at_cut_));
    if (!trimmed.ok()) LogWarning(fmt::format("ps_{}: {}", options_.index, trimmed.ToString()));
    // Likewise: by now neither the newest checkpoint nor the one before it needs another log.
    if (saves_ >= 2) RemoveOldLogs();
    return;
  }
  ++failed_saves_;
  LogWarning(fmt::format("ps_{}: {}", options_.index, outcome.status().ToString()));
}

void Holdings::Decide() {
  Settle();
  if (!lead_ || next_.number > last_cut_ || in_flight_) return;
  const std::int64_t label = GlobalStep() + 1;  // what it will be when the next step ends
  const auto due = schedule_->Check(clock_->Now(), label);
  if (due == SessionSchedule::Due::kNothing && !save_asked_) return;
  const bool full = due == SessionSchedule::Due::kFull || full_asked_ || tables_.empty() ||
                    !checkpoints_->CanIncrement() || WantsNewBase();
  save_asked_ = false;
  full_asked_ = false;
  next_ = {last_cut_ + 1, label, full};
}

bool Holdings::WantsNewBase() const {
  std::uint64_t rows = 0;
  std::uint64_t changed = 0;
  for (const TableEntry& entry : tables_) {
    rows += entry.table->size();
    changed += entry.table->ChangedRows(CutKind::kCumulative);
  }
  return OutgrewBase(rows, changed);
}

std::int64_t Holdings::GlobalStep() const {
  if (sync_) return step_;
  std::int64_t steps = 0;
  for (const Trainer& trainer : trainers_) steps += trainer.step;
  return steps;
}

void Holdings::Cut(const Marker& marker) {
  const bool first = marker.number == first_cut_;
  last_cut_ = marker.number;
  // Async: how many steps the others make until all have the marker is not known when it is
  // announced. All servers have seen the same ones end.
  const bool recount = !sync_ && options_.recovery != Recovery::kPartial;
  const std::int64_t step = recount ? GlobalStep() : marker.step;
  checkpoints_->Wait();
  Settle();
  // A table that came after the cut was announced has no base; every server knows it by now.
  // Servers that went on without restoring have no base in this generation.
  const bool full = marker.full || declared_since_full_ || (first && !exact_);
  declared_since_full_ = false;
  if (!full && !checkpoints_->CanIncrement()) {
    // The lead believes that all have the base. Whoever has not cannot count attempts with the
    // others any more.
    Break(UnavailableError(fmt::format(
        "ps_{} has nothing that the increment of step {} could build on", options_.index, step)));
    return;
  }
  SaveRequest request;
  request.step = step;
  request.kind = full ? SaveKind::kFull : SaveKind::kCumulative;
  for (const DenseEntry& entry : dense_) {
    for (Tensor& tensor : entry.variable->Tensors()) request.tensors.push_back(std::move(tensor));
  }
  if (log_ != nullptr) log_at_cut_ = log_->next();
  changes_at_cut_ = changes_;
  const Clock::Duration now = clock_->Now();
  schedule_->Saved(full ? SessionSchedule::Due::kFull : SessionSchedule::Due::kIncrement, now,
                   step);
  request.state_files[kJobFile] = EncodeJob(schedule_->SinceFull(now, step));
  if (lead_) {
    for (std::size_t i = 0; i < trainers_.size(); ++i) {
      request.state_files[TrainerFile(i, "step_id")] = std::to_string(trainers_[i].step) + "\n";
      if (trainers_[i].state) {
        request.state_files[TrainerFile(i, "state.json")] = *trainers_[i].state;
      }
    }
  }
  auto handle = checkpoints_->Save(std::move(request));
  if (!handle.ok()) {
    ++failed_saves_;
    LogWarning(fmt::format("ps_{}: the checkpoint of step {} failed: {}", options_.index, step,
                           handle.status().ToString()));
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
    trainers.push_back(Value::Object{{"present", trainer.left || !trainer.incarnation.empty()},
                                     {"left", trainer.left},
                                     {"arrived", trainer.arrived},
                                     {"step", trainer.step},
                                     {"sequence", trainer.sequence}});
  }
  Value::Object value{{"step", step_},
                      {"global_step", GlobalStep()},
                      {"mode", sync_ ? "sync" : "async"},
                      {"tables", std::move(tables)},
                      {"dense", std::move(dense)},
                      {"trainers", std::move(trainers)},
                      {"saves", saves_},
                      {"saved_increments", saved_increments_},
                      {"failed_saves", failed_saves_},
                      {"saving", in_flight_.has_value()},
                      {"save_announced", next_.number > last_cut_},
                      {"cut", last_cut_},
                      {"cuts", last_cut_ + 1 - first_cut_},
                      {"increments", options_.incremental_secs.has_value() ||
                                         options_.incremental_steps.has_value()},
                      {"restore_seconds", restore_seconds_},
                      {"replayed_records", replayed_},
                      {"lost_changes", lost_},
                      {"unsaved_changes", Unsaved()}};
  if (options_.quantize) {
    value["quantization_error"] = Value::Object{{"max_abs", quantization_error_.max_abs},
                                                {"max_relative", quantization_error_.max_relative}};
  }
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
  add("evicted_rows_total", "counter", "Rows that evictions removed.",
      static_cast<double>(evicted_));
  add("lost_changes_total", "counter",
      "Acknowledged changes that went with a lost server (recovery partial).",
      static_cast<double>(lost_));
  add("replayed_records", "gauge", "Records of the update log that the last restore replayed.",
      static_cast<double>(replayed_));
  add("saves_total", "counter", "Checkpoints committed.", static_cast<double>(saves_));
  add("failed_saves_total", "counter", "Checkpoints given up.", static_cast<double>(failed_saves_));
  add("saved_step", "gauge", "Step of the newest checkpoint.",
      static_cast<double>(saved_step_.value_or(-1)));
  add("unsaved_changes", "gauge", "Changes that no checkpoint has yet.",
      static_cast<double>(Unsaved()));
  add("restore_seconds", "gauge", "Time that the last restore took.", restore_seconds_);
  if (options_.quantize) {
    add("quantization_error", "gauge", "Greatest error of a number in the last increment.",
        quantization_error_.max_abs);
    add("quantization_error_ratio", "gauge",
        "Greatest error in the last increment, in parts of the row's largest number.",
        quantization_error_.max_relative);
  }
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
