#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "paramserver/declaration.h"
#include "paramserver/holdings.h"

// What trainers do to a server's holdings. Sync mode keeps the gradients of a step until all
// trainers ended it, then applies them in the trainers' order: which process was faster leaves no
// trace.

namespace cairn::ps {

Status Holdings::CheckLiving() const {
  RETURN_IF_ERROR(broken_);
  if (leaving_) {
    return AbortedError("generation " + std::to_string(manager_->generation()) + " was left");
  }
  return Status::Ok();
}

void Holdings::Leave() {
  MutexLock lock(&mu_);
  leaving_ = true;
  changed_.NotifyAll();
}

Status Holdings::CheckTrainer(std::uint32_t trainer) const {
  RETURN_IF_ERROR(CheckLiving());
  if (trainer >= trainers_.size()) {
    return FailedPreconditionError("this connection is no trainer's: it may only look");
  }
  return Status::Ok();
}

Result<HelloReply> Holdings::Hello(const HelloRequest& hello, bool* lost) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  HelloReply reply;
  reply.sync = sync_;
  if (hello.server != static_cast<std::uint32_t>(options_.index) ||
      hello.servers != static_cast<std::uint32_t>(options_.servers)) {
    return FailedPreconditionError(fmt::format(
        "this is server {} of {}, not {} of {}: are the addresses in the servers' order?",
        options_.index, options_.servers, hello.server, hello.servers));
  }
  if (hello.trainer == kObserver) {
    reply.step = step_;
    return reply;
  }
  if (hello.trainer >= trainers_.size() || hello.trainers != trainers_.size()) {
    return FailedPreconditionError(fmt::format("this job has {} trainers: trainer {} of {} is none",
                                               trainers_.size(), hello.trainer, hello.trainers));
  }
  if (hello.incarnation.empty()) return InvalidArgumentError("a trainer without an incarnation");
  Trainer& trainer = trainers_[hello.trainer];
  if (!trainer.incarnation.empty() && trainer.incarnation != hello.incarnation) {
    if (sync_ && !trainer.left) {
      *lost = true;
      return UnavailableError(fmt::format(
          "trainer {} was started again: all go back to the last checkpoint", hello.trainer));
    }
    // Async: it joins again; its pushes are counted anew.
    trainer.sequence = 0;
    trainer.carried = {};
    trainer.barrier = 0;
    trainer.at_barrier = false;
  }
  trainer.incarnation = hello.incarnation;
  trainer.left = false;
  reply.step = trainer.step;
  reply.sequence = trainer.sequence;
  if (lead_) {
    // Also one that this server has cut already: a trainer that was lost in the middle of carrying
    // it has to carry it to the others.
    reply.next = next_;
    reply.state = trainer.state;
  }
  changed_.NotifyAll();
  return reply;
}

Result<std::uint32_t> Holdings::DeclareTable(const TableSpec& spec) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].spec.name != spec.name) continue;
    if (tables_[i].spec == spec) return static_cast<std::uint32_t>(i);
    return MismatchError("table \"" + spec.name +
                         "\": the servers have it with another dim, dtype, optimizer, initializer "
                         "or rule");
  }
  ASSIGN_OR_RETURN(auto table, MakeTable(spec));
  table->set_step(step_);
  tables_.push_back({spec, std::move(table)});
  declared_since_full_ = true;
  RenewCheckpoints();  // the next checkpoint is a full one
  return static_cast<std::uint32_t>(tables_.size() - 1);
}

Result<std::uint32_t> Holdings::DeclareDense(const DenseSpec& spec, std::span<const float> values) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    if (dense_[i].variable->spec().name != spec.name) continue;
    if (dense_[i].variable->spec() == spec) return static_cast<std::uint32_t>(i);
    return MismatchError("dense variable \"" + spec.name +
                         "\": the servers have it with another shape or optimizer");
  }
  // Before anything is allocated: a shape is easily said.
  ASSIGN_OR_RETURN(const DenseShape shape, RowsOf(spec.shape));
  const std::uint64_t rows = RowsIn(BlocksOf(spec.name, shape, options_.index, options_.servers));
  if (values.size() != rows * shape.width ||
      (shape.width > 0 && values.size() / shape.width != rows)) {
    return InvalidArgumentError(fmt::format(
        "dense variable \"{}\": this server has {} rows of {} elements of it, and {} elements came",
        spec.name, rows, shape.width, values.size()));
  }
  ASSIGN_OR_RETURN(auto variable, DenseVariable::Make(spec, options_.index, options_.servers));
  RETURN_IF_ERROR(variable->Assign(values));
  dense_.push_back({std::move(variable)});
  return static_cast<std::uint32_t>(dense_.size() - 1);
}

Result<Table*> Holdings::FindTable(std::uint32_t id) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  if (id >= tables_.size()) {
    return NotFoundError("there is no table " + std::to_string(id) + ": declare it first");
  }
  return tables_[id].table.get();
}

Result<Holdings::DenseEntry*> Holdings::FindDense(std::uint32_t id) {
  RETURN_IF_ERROR(CheckLiving());
  if (id >= dense_.size()) {
    return NotFoundError("there is no dense variable " + std::to_string(id) + ": declare it first");
  }
  return &dense_[id];
}

Status Holdings::CheckKeys(const Table& table, std::span<const std::int64_t> keys) const {
  const ShardRange& owned = table.options().shards;
  for (const std::int64_t key : keys) {
    if (owned.Contains(TableShardOf(key))) continue;
    return InvalidArgumentError(
        fmt::format("table \"{}\": key {} belongs to another server", table.options().name, key));
  }
  return Status::Ok();
}

Status Holdings::Once(std::uint32_t trainer, std::uint64_t sequence,
                      const std::function<Status()>& change) {
  Mutex* changing = nullptr;
  std::string incarnation;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(trainer));
    changing = trainers_[trainer].changing.get();
  }
  MutexLock one(changing);
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckLiving());
    incarnation = trainers_[trainer].incarnation;
    if (sequence <= trainers_[trainer].sequence) {
      ++repeated_;
      return Status::Ok();
    }
    if (sequence != trainers_[trainer].sequence + 1) {
      return FailedPreconditionError(fmt::format("change {} of trainer {} follows change {}",
                                                 sequence, trainer, trainers_[trainer].sequence));
    }
  }
  // A change that is refused takes its number too: what was sent after it is still to count.
  const Status done = change();
  MutexLock lock(&mu_);
  // A process that joined meanwhile in its place counts anew: it is not to miss its first changes.
  if (trainers_[trainer].incarnation == incarnation) trainers_[trainer].sequence = sequence;
  ++pushes_;
  return done;
}

Status Holdings::Push(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t id, Rows rows) {
  ASSIGN_OR_RETURN(Table * table, FindTable(id));
  return Once(trainer, sequence, [&]() -> Status {
    if (!sync_) return table->ApplyGradients(rows.keys, rows.values);
    RETURN_IF_ERROR(CheckKeys(*table, rows.keys));
    MutexLock lock(&mu_);
    trainers_[trainer].rows.push_back({id, std::move(rows)});
    return Status::Ok();
  });
}

Status Holdings::Assign(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t id,
                        const Rows& rows) {
  ASSIGN_OR_RETURN(Table * table, FindTable(id));
  return Once(trainer, sequence, [&] { return table->Assign(rows.keys, rows.values); });
}

Result<std::uint64_t> Holdings::Erase(std::uint32_t trainer, std::uint64_t sequence,
                                      std::uint32_t id, std::span<const std::int64_t> keys) {
  ASSIGN_OR_RETURN(Table * table, FindTable(id));
  std::uint64_t erased = 0;
  RETURN_IF_ERROR(Once(trainer, sequence, [&]() -> Status {
    ASSIGN_OR_RETURN(erased, table->Erase(keys));
    return Status::Ok();
  }));
  return erased;
}

Result<ExportedRows> Holdings::Export(std::uint32_t id, std::uint32_t shard) {
  ASSIGN_OR_RETURN(Table * table, FindTable(id));
  ExportedRows out;
  RETURN_IF_ERROR(table->ForEach([&](const RowView& row) {
    if (TableShardOf(row.key) % kExportPages != shard) return Status::Ok();
    out.keys.push_back(row.key);
    out.frequency.push_back(static_cast<std::int64_t>(row.frequency));
    out.version.push_back(row.version);
    out.weights.insert(out.weights.end(), row.weights.begin(), row.weights.end());
    out.slots.insert(out.slots.end(), row.slots.begin(), row.slots.end());
    return Status::Ok();
  }));
  return out;
}

Result<std::vector<float>> Holdings::PullDense(std::uint32_t id) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(DenseEntry * entry, FindDense(id));
  const std::span<const float> values = std::as_const(*entry->variable).values();
  return std::vector<float>(values.begin(), values.end());
}

Status Holdings::PushDense(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t id,
                           std::vector<float> gradient) {
  return Once(trainer, sequence, [&]() -> Status {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(DenseEntry * entry, FindDense(id));
    if (!sync_) return entry->variable->Apply(gradient);
    const std::size_t own = std::as_const(*entry->variable).values().size();
    if (gradient.size() != own) {
      return InvalidArgumentError(
          fmt::format("dense variable \"{}\": a gradient of {} elements for {}",
                      entry->variable->spec().name, gradient.size(), own));
    }
    trainers_[trainer].dense.push_back({id, std::move(gradient)});
    return Status::Ok();
  });
}

// ---------------------------------------------------------------- steps

Result<EndStepReply> Holdings::EndStep(std::uint32_t trainer, const EndStepRequest& request) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckTrainer(trainer));
  return sync_ ? EndSyncStep(trainer, request) : EndAsyncStep(trainer, request);
}

bool Holdings::RoundComplete() const {
  bool any = false;
  for (const Trainer& trainer : trainers_) {
    if (trainer.left) continue;
    if (!trainer.arrived) return false;
    any = true;
  }
  return any;
}

Status Holdings::ApplyRound() {
  // Tables in the order of their declaration, rows in the order of the trainers and, of one
  // trainer, of its pushes.
  for (std::uint32_t id = 0; id < tables_.size(); ++id) {
    const PendingRows* only = nullptr;
    std::size_t parts = 0;
    Rows all;
    for (const Trainer& trainer : trainers_) {
      for (const PendingRows& pending : trainer.rows) {
        if (pending.table != id) continue;
        only = &pending;
        ++parts;
      }
    }
    if (parts == 0) continue;
    if (parts > 1) {
      for (const Trainer& trainer : trainers_) {
        for (const PendingRows& pending : trainer.rows) {
          if (pending.table != id) continue;
          all.keys.insert(all.keys.end(), pending.rows.keys.begin(), pending.rows.keys.end());
          all.values.insert(all.values.end(), pending.rows.values.begin(),
                            pending.rows.values.end());
        }
      }
    }
    const Rows& rows = parts == 1 ? only->rows : all;
    RETURN_IF_ERROR(tables_[id].table->ApplyGradients(rows.keys, rows.values));
  }
  for (std::uint32_t id = 0; id < dense_.size(); ++id) {
    std::vector<float> sum;
    for (Trainer& trainer : trainers_) {
      for (PendingDense& pending : trainer.dense) {
        if (pending.id != id) continue;
        if (sum.empty()) {
          sum = std::move(pending.gradient);
        } else {
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += pending.gradient[i];
        }
      }
    }
    if (!sum.empty()) RETURN_IF_ERROR(dense_[id].variable->Apply(sum));
  }
  return Status::Ok();
}

void Holdings::FinishRound() {
  const Status applied = ApplyRound();
  if (!applied.ok()) {
    broken_ = applied.WithContext("step " + std::to_string(step_));
    changed_.NotifyAll();
    return;
  }
  ++step_;
  Marker marker;
  for (Trainer& trainer : trainers_) {
    trainer.rows.clear();
    trainer.dense.clear();
    if (trainer.left) continue;
    trainer.arrived = false;
    trainer.step = step_;
    if (trainer.carried.number > marker.number) marker = trainer.carried;
  }
  for (const TableEntry& entry : tables_) entry.table->set_step(step_);
  if (marker.number > last_cut_) Cut(marker);
  Decide();
  changed_.NotifyAll();
}

Result<EndStepReply> Holdings::EndSyncStep(std::uint32_t trainer, const EndStepRequest& request) {
  Trainer& self = trainers_[trainer];
  if (request.step > step_) {
    return FailedPreconditionError(fmt::format(
        "trainer {} ends step {} while the job is at step {}", trainer, request.step, step_));
  }
  if (request.step == step_ && !self.arrived) {
    self.arrived = true;
    self.carried = request.cut;
    if (request.has_state) self.state = request.state;
    if (RoundComplete()) FinishRound();
  }
  while (request.step == step_ && broken_.ok() && !leaving_) changed_.Wait(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  return EndStepReply{step_, lead_ && next_.number > last_cut_ ? next_ : Marker()};
}

void Holdings::CutWhenAllMarked() {
  Marker marker;
  bool any = false;
  for (const Trainer& trainer : trainers_) {
    if (trainer.left) continue;
    if (trainer.carried.number > last_cut_) {
      marker = trainer.carried;
      any = true;
    } else if (!trainer.at_barrier) {
      return;
    }  // Who waits at a barrier, at all servers, has nothing on its way.
  }
  if (!any) return;
  Cut(marker);
  changed_.NotifyAll();
}

Result<EndStepReply> Holdings::EndAsyncStep(std::uint32_t trainer, const EndStepRequest& request) {
  Trainer& self = trainers_[trainer];
  if (lead_ && request.step > self.step) {
    return FailedPreconditionError(
        fmt::format("trainer {} ends step {} after step {}", trainer, request.step, self.step));
  }
  // The lead counts. A trainer that was lost between the lead and another server, and joined again,
  // goes on with the lead's number.
  if (request.step >= self.step) {
    self.step = request.step + 1;
    if (request.has_state) self.state = request.state;
    // As in sync mode: all that have ended step n are n steps along.
    step_ = std::max(step_, self.step);
    for (const TableEntry& entry : tables_) entry.table->set_step(step_);
  }
  if (request.cut.number > last_cut_) {
    self.carried = request.cut;
    CutWhenAllMarked();
    while (last_cut_ < request.cut.number && broken_.ok() && !leaving_) changed_.Wait(&mu_);
  }
  RETURN_IF_ERROR(CheckLiving());
  Decide();
  return EndStepReply{self.step, lead_ && next_.number > last_cut_ ? next_ : Marker()};
}

Status Holdings::Barrier(std::uint32_t trainer, std::uint64_t number) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckTrainer(trainer));
  trainers_[trainer].barrier = std::max(trainers_[trainer].barrier, number);
  trainers_[trainer].at_barrier = true;
  if (!sync_) CutWhenAllMarked();
  changed_.NotifyAll();
  const auto all = [&]() REQUIRES(mu_) {
    return std::all_of(trainers_.begin(), trainers_.end(),
                       [&](const Trainer& each) { return each.left || each.barrier >= number; });
  };
  while (!all() && broken_.ok() && !leaving_) changed_.Wait(&mu_);
  trainers_[trainer].at_barrier = false;
  return CheckLiving();
}

Status Holdings::RequestSave(bool full) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  if (!lead_) return FailedPreconditionError("only the first server decides about checkpoints");
  save_asked_ = true;
  full_asked_ = full_asked_ || full;
  return Status::Ok();
}

void Holdings::TrainerLeft(std::uint32_t trainer) {
  MutexLock lock(&mu_);
  if (trainer >= trainers_.size() || leaving_) return;
  Trainer& self = trainers_[trainer];
  self.left = true;
  self.arrived = false;
  if (sync_) {
    // What it pushed after its last step is of a step that it never ended.
    self.rows.clear();
    self.dense.clear();
    if (RoundComplete()) FinishRound();
  } else {
    CutWhenAllMarked();
  }
  changed_.NotifyAll();
}

}  // namespace cairn::ps
