#include "paramserver/holdings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "paramserver/declaration.h"
#include "paramserver/job_file.h"
#include "storage/open_store.h"

namespace cairn::ps {
namespace {

// Servers wait for each other as long as it takes: a server that is missing is being restarted.
constexpr std::chrono::hours kJoinPatience{24};
// What is stored may be another checkpoint than the one that was looked at first, when that turns
// out to be damaged.
constexpr int kMaxLooks = 8;

/// The thread that writes checkpoints takes what serving leaves over of the cores: a batch comes
/// past several threads, and would wait for it at each. Where nothing is left over it still gets a
/// third of a thread's share, so that checkpoints come to their end soon. A manager's threads have
/// the priority of the thread that opens it.
Status OpenGivingWay(ManagerOptions options, Environment env,
                     std::unique_ptr<CheckpointManager>* manager) {
  constexpr int kLessUrgent = 5;
  Status status;
  std::jthread opener([&] {
    (void)!nice(kLessUrgent);  // of this thread alone, and of those it starts
    auto opened = OpenManager(std::move(options), std::move(env));
    status = opened.status();
    if (opened.ok()) *manager = *std::move(opened);
  });
  opener.join();
  return status;
}

}  // namespace

Holdings::Holdings(const ServerOptions& options, std::shared_ptr<LeavingClock> clock, Seams seams)
    : options_(options),
      clock_(std::move(clock)),
      seams_(std::move(seams)),
      sync_(options.mode == Mode::kSync),
      lead_(options.index == 0),
      exact_(options.recovery == Recovery::kExact),
      trainers_(static_cast<std::size_t>(options.trainers)) {}

Holdings::~Holdings() {
  clock_->Leave();  // the save in flight may wait for a server that is dead
  MutexLock lock(&mu_);
  checkpoints_ = nullptr;
  if (manager_ != nullptr) manager_->Close().IgnoreError("the save in flight was given up");
}

Result<std::unique_ptr<Holdings>> Holdings::Open(const ServerOptions& options,
                                                 std::shared_ptr<LeavingClock> clock,
                                                 std::unique_ptr<Kept>* kept,
                                                 const std::function<void()>& opened, Seams seams) {
  auto holdings =
      std::unique_ptr<Holdings>(new Holdings(options, std::move(clock), std::move(seams)));
  RETURN_IF_ERROR(holdings->OpenManager(opened));
  // Markers of an earlier generation are below every number of this one.
  constexpr int kCutsOfAGeneration = 32;
  {
    MutexLock lock(&holdings->mu_);
    holdings->last_cut_ = holdings->generation() << kCutsOfAGeneration;
    holdings->first_cut_ = holdings->last_cut_ + 1;
  }
  if (*kept != nullptr) {
    holdings->Adopt(kept->get());
    const bool content = (*kept)->content;
    kept->reset();
    if (content) {
      if (options.recovery == Recovery::kLog) RETURN_IF_ERROR(holdings->FindOldLogs());
      return holdings;
    }
  }
  JobFile job;
  std::string checkpoint;
  RETURN_IF_ERROR(holdings->Restore(&job, &checkpoint));
  if (options.recovery == Recovery::kLog) {
    RETURN_IF_ERROR(holdings->OpenLog(job, checkpoint));
  }
  return holdings;
}

std::unique_ptr<Holdings::Kept> Holdings::Keep() {
  clock_->Leave();
  MutexLock lock(&mu_);
  checkpoints_ = nullptr;  // waits for the save in flight, which borrows the tables
  auto kept = std::make_unique<Kept>();
  kept->trainers = std::move(trainers_);
  kept->lost = lost_;
  kept->replayed = replayed_;
  kept->content = !exact_ && broken_.ok();
  if (!kept->content) return kept;
  kept->step = step_;
  kept->tables = std::move(tables_);
  kept->dense = std::move(dense_);
  kept->gate = gate_;
  kept->log = std::move(log_);
  kept->log_name = log_name_;
  kept->barriers = barriers_;
  kept->unsaved = Unsaved();
  kept->save_asked = save_asked_ || next_.number > last_cut_;  // announced, and not cut any more
  kept->full_asked = full_asked_;
  kept->schedule = schedule_;
  return kept;
}

void Holdings::Adopt(Kept* kept) {
  MutexLock lock(&mu_);
  lost_ = kept->lost;
  if (!kept->content) {
    for (std::size_t i = 0; i < trainers_.size(); ++i) {
      trainers_[i].replaced = std::move(kept->trainers[i].replaced);
    }
    return;
  }
  trainers_ = std::move(kept->trainers);
  for (Trainer& trainer : trainers_) {
    trainer.carried = {};
    trainer.at_barrier = false;  // it asks again
  }
  barriers_ = kept->barriers;
  changes_ = kept->unsaved;
  save_asked_ = kept->save_asked;
  full_asked_ = kept->full_asked;
  replayed_ = kept->replayed;
  step_ = kept->step;
  tables_ = std::move(kept->tables);
  dense_ = std::move(kept->dense);
  gate_ = std::move(kept->gate);
  log_ = std::move(kept->log);
  log_name_ = std::move(kept->log_name);
  RenewCheckpoints();
  schedule_ = kept->schedule;  // the loss of another server puts no checkpoint off
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
  manager.copy_threads = 1;  // the caller's, which the cut waits for: helpers would give way too
  RETURN_IF_ERROR(OpenGivingWay(std::move(manager), std::move(env), &manager_));
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

Status Holdings::MakeAll(const JobFile& job) {
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
  if (checkpoints_ != nullptr) {
    checkpoints_->Wait();
    Settle();  // it knows how that save went
  }
  checkpoints_ = std::make_unique<TableCheckpoints>(
      manager_.get(), TablePointers(), TableCheckpoints::Options{.quantize = options_.quantize});
}

void Holdings::Adopt(const JobFile& job, const Restored& restored) {
  step_ = job.step;
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    Trainer& trainer = trainers_[i];
    trainer.step = sync_ ? job.step : i < job.trainer_steps.size() ? job.trainer_steps[i] : 0;
    if (i < job.sequences.size() && job.sequences[i] > 0) {
      trainer.sequence = job.sequences[i];
      trainer.step_sequence = trainer.sequence;
      // What was pushed asynchronously after the last step is in the tables: whoever does that step
      // again is told that it is. Of another number of servers each had other changes.
      if (!sync_ && i < job.step_sequences.size() && job.servers == options_.servers) {
        trainer.step_sequence = std::min(job.step_sequences[i], trainer.sequence);
      }
    }
    // Another number of trainers divides the work anew: then nobody is done with it.
    trainer.left = job.left.size() == trainers_.size() && job.left[i];
    const auto state = restored.state_files.find(TrainerFile(i, "state.json"));
    if (state != restored.state_files.end()) trainer.state = state->second;
  }
  for (const TableEntry& entry : tables_) entry.table->set_step(step_);
}

Status Holdings::Restore(JobFile* job, std::string* checkpoint) {
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
    if (!options_.load.empty()) {
      const Status loaded = Load(options_.load);
      // There is no older one to go back to, as there is in a repository.
      if (loaded.Is(Code::kNotFound) || loaded.Is(Code::kCorruption)) {
        return FailedPreconditionError("the job cannot begin with \"" + options_.load +
                                       "\": " + std::string(loaded.message()));
      }
      RETURN_IF_ERROR(loaded);
    }
    schedule_->Start(clock_->Now(), GlobalStep());
    restore_seconds_ = std::chrono::duration<double>(clock_->Now() - begun).count();
    return Status::Ok();
  }
  for (int look = 0; look < kMaxLooks; ++look) {
    if (text.empty()) {
      return FailedPreconditionError("\"" + options_.directory +
                                     "\" is not the repository of a job with parameter servers");
    }
    ASSIGN_OR_RETURN(*job, DecodeJobFile(text));
    RETURN_IF_ERROR(MakeAll(*job));
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
    Adopt(*job, **restored);
    *checkpoint = (*restored)->info.id;
    restored_step_ = (*restored)->step;
    saved_step_ = restored_step_;
    schedule_->Start(clock_->Now(), GlobalStep(),
                     {std::chrono::milliseconds(job->full_age_ms),
                      static_cast<std::int64_t>(job->full_age_steps)});
    restore_seconds_ = std::chrono::duration<double>(clock_->Now() - begun).count();
    LogInfo(fmt::format("ps_{}: restored step {} in {:.3f} s", options_.index, step_,
                        restore_seconds_));
    return Status::Ok();
  }
  return CorruptionError("\"" + options_.directory +
                         "\": one checkpoint after the other is damaged");
}

Status Holdings::Load(const std::string& given) {
  // A checkpoint, or a directory of checkpoints: the latest.
  std::string path = given;
  if (auto manager = CheckpointManager::Open({.directory = given, .read_only = true});
      manager.ok()) {
    ASSIGN_OR_RETURN(const auto latest, (*manager)->Latest());
    if (latest) path = latest->path;
  }
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
  ASSIGN_OR_RETURN(const JobFile job, DecodeJobFile(text));
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

Status Holdings::OpenLog(const JobFile& job, const std::string& checkpoint) {
  const Clock::Duration begun = clock_->Now();
  const bool apart = !options_.log_directory.empty();
  const std::string& where = apart ? options_.log_directory : options_.directory;
  std::shared_ptr<Store> store;
  if (seams_.open_log_store) {
    ASSIGN_OR_RETURN(store, seams_.open_log_store(where));
  } else {
    OpenStoreOptions open;
    open.create = true;
    ASSIGN_OR_RETURN(store, OpenStore(where, open));
  }
  // A log goes on from checkpoint to checkpoint as long as the job has the same parts. Another
  // number of servers or trainers begins a new one at the checkpoint, to which all went back.
  const std::string parts =
      fmt::format("{}x{}-{}", options_.servers, options_.trainers, sync_ ? "sync" : "async");
  std::uint64_t from = 1;
  if (job.log_name.ends_with("-" + parts)) {
    log_name_ = job.log_name;
    from = job.log_next;
  } else {
    log_name_ = (checkpoint.empty() ? "start" : checkpoint) + "-" + parts;
  }
  const std::string prefix =
      fmt::format("{}ps_{}/{}", apart ? "" : "log/", options_.index, log_name_);
  ASSIGN_OR_RETURN(auto log, UpdateLog::Open(std::move(store), prefix, options_.log_level));
  {
    MutexLock lock(&mu_);
    replaying_ = true;
    log_at_saved_ = from;
  }
  RETURN_IF_ERROR(log->Replay(from, [&](const LogRecord& record) { return Replayed(record); })
                      .WithContext(fmt::format("ps_{}: log {}", options_.index, prefix)));
  log_ = std::move(log);
  RETURN_IF_ERROR(FindOldLogs());
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(broken_);
  replaying_ = false;
  const double seconds = std::chrono::duration<double>(clock_->Now() - begun).count();
  restore_seconds_ += seconds;
  LogInfo(fmt::format("ps_{}: replayed {} records to step {} in {:.3f} s", options_.index,
                      replayed_, step_, seconds));
  return Status::Ok();
}

}  // namespace cairn::ps
