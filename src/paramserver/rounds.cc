#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "paramserver/declaration.h"
#include "paramserver/holdings.h"

// Who is there, and how steps end. Sync mode keeps the gradients of a step until all trainers ended
// it, then applies them in the trainers' order: which process was faster leaves no trace.

namespace cairn::ps {
namespace {

constexpr std::size_t kMaxReplaced = 64;  // one that is older than this was gone long ago

}  // namespace

Status Holdings::CheckLiving() const {
  RETURN_IF_ERROR(broken_);
  if (leaving_) {
    return AbortedError("generation " + std::to_string(manager_->generation()) + " was left");
  }
  return Status::Ok();
}

void Holdings::Break(Status why) {
  broken_ = std::move(why);
  is_broken_ = true;
  changed_.NotifyAll();
}

void Holdings::Leave() {
  clock_->Leave();  // who holds the lock may wait for a save that waits for a server that is dead
  MutexLock lock(&mu_);
  leaving_ = true;
  changed_.NotifyAll();
}

Status Holdings::CheckTrainer(const Peer& peer) const {
  RETURN_IF_ERROR(CheckLiving());
  if (peer.trainer >= trainers_.size()) {
    return FailedPreconditionError("this connection is no trainer's: it may only look");
  }
  if (trainers_[peer.trainer].incarnation != peer.incarnation) {
    return FailedPreconditionError(
        fmt::format("another process has taken the place of trainer {}", peer.trainer));
  }
  return Status::Ok();
}

// ---------------------------------------------------------------- who is there

Status Holdings::Introduce(const HelloRequest& hello, Trainer* trainer, bool* lost) {
  std::vector<std::string>& replaced = trainer->replaced;
  if (std::find(replaced.begin(), replaced.end(), hello.incarnation) != replaced.end()) {
    return FailedPreconditionError(
        fmt::format("another process has taken the place of trainer {}", hello.trainer));
  }
  const std::string before = trainer->incarnation.empty() ? trainer->former : trainer->incarnation;
  if (before.empty() || before == hello.incarnation) return Status::Ok();
  if (std::find(replaced.begin(), replaced.end(), before) == replaced.end()) {
    replaced.push_back(before);
    if (replaced.size() > kMaxReplaced) replaced.erase(replaced.begin());
  }
  if (trainer->incarnation.empty()) return Status::Ok();
  if (exact_ && sync_ && !trainer->left) {
    *lost = true;
    return UnavailableError(fmt::format(
        "trainer {} was started again: all go back to the last checkpoint", hello.trainer));
  }
  // It joins again, at the end of the last step that it ended. What it pushed since has a sequence
  // above that of the step, and is not taken again.
  trainer->carried = {};
  trainer->barrier = std::min(trainer->barrier, barriers_);
  trainer->at_barrier = false;
  return Status::Ok();
}

Status Holdings::Reconcile(const HelloRequest& hello, Trainer* trainer) {
  if (exact_ || !hello.known) return Status::Ok();
  if (hello.acknowledged > trainer->sequence) {
    const std::uint64_t missing = hello.acknowledged - trainer->sequence;
    if (options_.recovery == Recovery::kLog) {
      return FailedPreconditionError(fmt::format(
          "the update log of ps_{} lacks {} changes of trainer {} that were acknowledged; start "
          "once with --recovery exact: all go back to the last checkpoint",
          options_.index, missing, hello.trainer));
    }
    lost_ += missing;
    LogWarning(fmt::format("ps_{}: {} acknowledged changes of trainer {} are lost", options_.index,
                           missing, hello.trainer));
    trainer->sequence = hello.acknowledged;
    trainer->step_sequence = hello.acknowledged;
  }
  if (options_.recovery == Recovery::kPartial && hello.step > trainer->step) {
    if (sync_ && hello.step > step_) JumpTo(hello.step);
    if (!sync_) trainer->step = hello.step;
  }
  trainer->barrier = std::max(trainer->barrier, hello.barrier);
  ReleaseBarriers();
  return Status::Ok();
}

void Holdings::JumpTo(std::int64_t step) {
  LogWarning(fmt::format("ps_{}: goes on with step {} instead of {}", options_.index, step, step_));
  step_ = step;
  for (Trainer& trainer : trainers_) {
    lost_ += trainer.rows.size() + trainer.dense.size() + trainer.evictions.size() +
             trainer.rates.size();
    ForgetPending(&trainer);
    trainer.arrived = false;
    if (!trainer.left) trainer.step = step;
  }
  for (const TableEntry& entry : tables_) entry.table->set_step(step_);
  changed_.NotifyAll();
}

void Holdings::ComeBack(std::uint32_t trainer) {
  const auto left = [](const Trainer& each) { return each.left; };
  if (!sync_ || !std::all_of(trainers_.begin(), trainers_.end(), left)) {
    trainers_[trainer].left = false;
    // The steps since it left were ended without it.
    if (sync_) trainers_[trainer].step = step_;
    return;
  }
  // The job was over, and goes on: the next step wants all of them, not only who comes first.
  for (Trainer& each : trainers_) {
    each.left = false;
    each.step = step_;
    // Perhaps it could not tell all servers that it leaves, and comes back to do it.
    if (!each.incarnation.empty()) each.former = std::exchange(each.incarnation, "");
    each.carried = {};
    each.barrier = std::min(each.barrier, barriers_);
    each.at_barrier = false;
  }
}

Result<HelloReply> Holdings::Hello(const HelloRequest& hello, bool* lost) {
  HelloReply reply;
  reply.sync = sync_;
  reply.recovery = options_.recovery;
  reply.max_message_bytes = options_.max_message_bytes;
  if (options_.recovery == Recovery::kLog) {
    reply.max_message_bytes = std::min<std::uint64_t>(
        reply.max_message_bytes, kMaxFramePayload - kLogHeadBytes + kHeadBytes);
  }
  if (hello.server != static_cast<std::uint32_t>(options_.index) ||
      hello.servers != static_cast<std::uint32_t>(options_.servers)) {
    const bool all = hello.servers == static_cast<std::uint32_t>(options_.servers);
    return FailedPreconditionError(fmt::format(
        "this is server {} of {}, not {} of {}: {}", options_.index, options_.servers, hello.server,
        hello.servers,
        all ? "are the addresses in the servers' order?" : "give the addresses of all servers"));
  }
  Mutex* changing = nullptr;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckLiving());
    if (hello.trainer == kObserver) {
      reply.step = step_;
      return reply;
    }
    if (hello.trainer >= trainers_.size() || hello.trainers != trainers_.size()) {
      return FailedPreconditionError(
          fmt::format("this job has {} trainers: trainer {} of {} is none", trainers_.size(),
                      hello.trainer, hello.trainers));
    }
    if (hello.incarnation.empty()) return InvalidArgumentError("a trainer without an incarnation");
    changing = trainers_[hello.trainer].changing.get();
  }
  // What an earlier process of this trainer is still changing ends first.
  MutexLock one(changing);
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  Trainer& trainer = trainers_[hello.trainer];
  RETURN_IF_ERROR(Introduce(hello, &trainer, lost));
  RETURN_IF_ERROR(Reconcile(hello, &trainer));
  if (trainer.left) {
    // A step whose end stands before this in the log ends without it, now as in a replay.
    while (ends_under_way_ > 0) ends_taken_.Wait(&mu_);
    RETURN_IF_ERROR(CheckLiving());
    RETURN_IF_ERROR(LogHeld({.kind = Kind::kHello, .trainer = hello.trainer}));
    ComeBack(hello.trainer);
  }
  trainer.incarnation = hello.incarnation;
  trainer.former.clear();
  reply.step = sync_ && trainer.arrived ? step_ + 1 : trainer.step;
  reply.sequence = trainer.sequence;
  reply.step_sequence = trainer.step_sequence;
  reply.barrier = barriers_;
  reply.state = trainer.state;
  // Also one that this server has cut already: a trainer that was lost in the middle of carrying it
  // has to carry it to the others.
  if (lead_) reply.next = next_;
  changed_.NotifyAll();
  return reply;
}

void Holdings::TakeLeaving(std::uint32_t trainer) {
  Trainer& self = trainers_[trainer];
  self.left = true;
  self.arrived = false;
  // It is done with whatever it changed after its last step: who comes in its place does not do
  // that again, and what that pushes is new.
  self.step_sequence = self.sequence;
  ReleaseBarriers();
  if (sync_) {
    // What it pushed after its last step is of a step that it never ended.
    ForgetPending(&self);
    if (RoundComplete()) FinishRound();
  } else if (!replaying_) {
    CutWhenAllMarked();
  }
  changed_.NotifyAll();
}

Status Holdings::TrainerEnded(std::uint32_t trainer) {
  Peer peer;
  {
    MutexLock lock(&mu_);
    if (trainer >= trainers_.size()) {
      return InvalidArgumentError(fmt::format("there is no trainer {}", trainer));
    }
    if (trainers_[trainer].left) return Status::Ok();
    peer = {trainer, trainers_[trainer].incarnation};
  }
  return TrainerLeft(peer);
}

std::vector<std::uint32_t> Holdings::UnseenTrainers() {
  std::vector<std::uint32_t> unseen;
  MutexLock lock(&mu_);
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    if (trainers_[i].left || !trainers_[i].incarnation.empty()) continue;
    unseen.push_back(static_cast<std::uint32_t>(i));
  }
  return unseen;
}

Status Holdings::TrainerLeft(const Peer& peer) {
  Mutex* changing = nullptr;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(peer));
    changing = trainers_[peer.trainer].changing.get();
  }
  MutexLock one(changing);
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckTrainer(peer));
  RETURN_IF_ERROR(LogHeld({.kind = Kind::kLeave, .trainer = peer.trainer}));
  TakeLeaving(peer.trainer);
  return Status::Ok();
}

// ---------------------------------------------------------------- steps

bool Holdings::RoundComplete() const {
  bool any = false;
  for (const Trainer& trainer : trainers_) {
    if (trainer.left) continue;
    if (!trainer.arrived) return false;
    any = true;
  }
  return any;
}

void Holdings::SetRatesOfRound() {
  for (const Trainer& trainer : trainers_) {
    for (const PendingRate& pending : trainer.rates) {
      tables_[pending.table].table->set_learning_rate(pending.rate);
    }
  }
}

Status Holdings::ApplyRound() {
  SetRatesOfRound();
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
  return EvictAfterRound();
}

Status Holdings::EvictAfterRound() {
  for (std::uint32_t id = 0; id < tables_.size(); ++id) {
    std::optional<std::int64_t> step;
    for (const Trainer& trainer : trainers_) {
      for (const PendingEviction& pending : trainer.evictions) {
        if (pending.table == id) step = std::max(step.value_or(pending.step), pending.step);
      }
    }
    if (!step) continue;
    ASSIGN_OR_RETURN(const EvictReport evicted, tables_[id].table->Evict(*step));
    evicted_ += evicted.rows;
  }
  return Status::Ok();
}

void Holdings::ForgetPending(Trainer* trainer) {
  trainer->rows.clear();
  trainer->dense.clear();
  trainer->evictions.clear();
  trainer->rates.clear();
}

void Holdings::FinishRound() {
  const Status applied = ApplyRound();
  if (!applied.ok()) {
    Break(applied.WithContext("step " + std::to_string(step_)));
    return;
  }
  ++step_;
  Marker marker;
  for (Trainer& trainer : trainers_) {
    ForgetPending(&trainer);
    if (trainer.left) continue;
    trainer.arrived = false;
    trainer.step = step_;
    if (trainer.carried.number > marker.number) marker = trainer.carried;
  }
  for (const TableEntry& entry : tables_) entry.table->set_step(step_);
  if (!replaying_ && !leaving_) {  // what was announced is asked for again after this generation
    // A process that ends a step in place of one that was lost, or comes back, carries what the
    // lead announced when that step had ended there: it is for the next one.
    if (marker.number > last_cut_ && marker.step <= step_) Cut(marker);
    Decide();
  }
  changed_.NotifyAll();
}

Result<bool> Holdings::EndsNewStep(std::uint32_t trainer, const EndStepRequest& request) {
  const bool partial = options_.recovery == Recovery::kPartial;
  const Trainer& self = trainers_[trainer];
  if (!sync_) {
    if (lead_ && request.step > self.step && !partial) {
      return FailedPreconditionError(
          fmt::format("trainer {} ends step {} after step {}", trainer, request.step, self.step));
    }
    // The lead counts. A trainer that was lost between the lead and another server, and joined
    // again, goes on with the lead's number.
    return request.step >= self.step;
  }
  if (request.step > step_) {
    if (!partial) {
      return FailedPreconditionError(fmt::format(
          "trainer {} ends step {} while the job is at step {}", trainer, request.step, step_));
    }
    JumpTo(request.step);
  }
  return request.step == step_ && !self.arrived;
}

bool Holdings::Restates(const Trainer& trainer, const EndStepRequest& request) const {
  return request.has_state && !trainer.arrived && request.step + 1 == trainer.step &&
         trainer.state.value_or("") != request.state;
}

void Holdings::TakeState(std::uint32_t trainer, const EndStepRequest& request) {
  ++changes_;
  trainers_[trainer].state = request.state;
}

void Holdings::TakeEnd(std::uint32_t trainer, const EndStepRequest& request,
                       std::uint64_t sequence) {
  Trainer& self = trainers_[trainer];
  ++changes_;
  self.sequence = sequence;
  self.step_sequence = sequence;
  if (request.has_state) self.state = request.state;
  if (!sync_) {
    self.step = request.step + 1;
    // As in sync mode: all that have ended step n are n steps along.
    step_ = std::max(step_, self.step);
    for (const TableEntry& entry : tables_) entry.table->set_step(step_);
    return;
  }
  // A process that was lost may have pushed more in this step than the one in its place.
  std::erase_if(self.rows, [&](const PendingRows& each) { return each.sequence > sequence; });
  std::erase_if(self.dense, [&](const PendingDense& each) { return each.sequence > sequence; });
  std::erase_if(self.evictions,
                [&](const PendingEviction& each) { return each.sequence > sequence; });
  std::erase_if(self.rates, [&](const PendingRate& each) { return each.sequence > sequence; });
  self.arrived = true;
  self.carried = request.cut;
  if (RoundComplete()) FinishRound();
}

Result<EndStepReply> Holdings::EndStep(const Peer& peer, const Request& request) {
  ASSIGN_OR_RETURN(const EndStepRequest end, DecodeEndStepRequest(request.body));
  Mutex* changing = nullptr;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(peer));
    changing = trainers_[peer.trainer].changing.get();
  }
  const std::uint64_t sequence = request.head.sequence;
  {
    MutexLock one(changing);
    bool fresh = false;
    bool restates = false;
    {
      MutexLock lock(&mu_);
      RETURN_IF_ERROR(CheckTrainer(peer));
      ASSIGN_OR_RETURN(fresh, EndsNewStep(peer.trainer, end));
      restates = !fresh && Restates(trainers_[peer.trainer], end);
      if (fresh && sequence > trainers_[peer.trainer].sequence) {
        return FailedPreconditionError(
            fmt::format("step {} of trainer {} has {} changes that never came", end.step,
                        peer.trainer, sequence - trainers_[peer.trainer].sequence));
      }
      if (fresh || restates) ++ends_under_way_;
    }
    if (fresh || restates) {
      const Status logged = Log({.kind = Kind::kEndStep,
                                 .trainer = peer.trainer,
                                 .sequence = sequence,
                                 .body = request.body});
      MutexLock lock(&mu_);
      if (--ends_under_way_ == 0) ends_taken_.NotifyAll();
      RETURN_IF_ERROR(logged);
      // What is in the log is taken, also when the generation is being left by now.
      RETURN_IF_ERROR(broken_);
      fresh ? TakeEnd(peer.trainer, end, sequence) : TakeState(peer.trainer, end);
    }
  }
  MutexLock lock(&mu_);
  if (sync_) {
    while (end.step >= step_ && broken_.ok() && !leaving_) changed_.Wait(&mu_);
    RETURN_IF_ERROR(CheckLiving());
    return EndStepReply{step_, lead_ && next_.number > last_cut_ ? next_ : Marker()};
  }
  RETURN_IF_ERROR(CheckTrainer(peer));
  Trainer& self = trainers_[peer.trainer];
  if (end.cut.number > last_cut_) {
    self.carried = end.cut;
    CutWhenAllMarked();
    while (last_cut_ < end.cut.number && broken_.ok() && !leaving_) changed_.Wait(&mu_);
  }
  RETURN_IF_ERROR(CheckLiving());
  Decide();
  return EndStepReply{self.step, lead_ && next_.number > last_cut_ ? next_ : Marker()};
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

// ---------------------------------------------------------------- barriers

bool Holdings::BarrierComplete(std::uint64_t number) const {
  return std::all_of(trainers_.begin(), trainers_.end(),
                     [&](const Trainer& each) { return each.left || each.barrier >= number; });
}

void Holdings::ReleaseBarriers() {
  // At once, and not when those who wait wake up: from here on they may have changes on their way.
  for (Trainer& trainer : trainers_) {
    if (!trainer.at_barrier || !BarrierComplete(trainer.barrier)) continue;
    barriers_ = std::max(barriers_, trainer.barrier);
    changed_.NotifyAll();
  }
  for (Trainer& trainer : trainers_) {
    if (trainer.barrier <= barriers_) trainer.at_barrier = false;
  }
}

Status Holdings::Barrier(const Peer& peer, std::uint64_t number) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckTrainer(peer));
  Trainer& self = trainers_[peer.trainer];
  if (number <= barriers_) return Status::Ok();  // the answer was lost; at the others it is gone
  self.barrier = std::max(self.barrier, number);
  self.at_barrier = true;
  ReleaseBarriers();
  if (!sync_) CutWhenAllMarked();
  while (barriers_ < number && broken_.ok() && !leaving_) changed_.Wait(&mu_);
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

}  // namespace cairn::ps
