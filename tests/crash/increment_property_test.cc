// Random histories of full checkpoints, increments, failures, crashes, deletions, restores of older
// ones, pins and compactions, against a model that knows the state of every step.
// CAIRN_TORTURE_SECONDS makes it run that long with new seeds.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/test_table.h"
#include "checkpoint/transfer.h"
#include "storage/memory/seeded_random.h"
#include "tests/crash/machine.h"
#include "tests/crash/torture.h"

namespace cairn::crash {
namespace {

/// One history on one machine. "" or what is broken.
class History {
 public:
  History(Machine::Kind kind, std::uint64_t seed)
      : machine_(std::make_unique<Machine>(kind)), random_(seed), ids_(seed * 7 + 1) {
    if (random_.Below(2) == 0) keep_last_ = 1 + random_.Below(4);
  }

  std::string Run(int operations) {
    if (std::string wrong = Open(); !wrong.empty()) return wrong;
    for (int i = 0; i < operations; ++i) {
      const std::string what = Operate();
      if (!what.empty()) return "operation " + std::to_string(i) + " (" + last_ + "): " + what;
      if (std::string wrong = Check(); !wrong.empty()) {
        return "after operation " + std::to_string(i) + " (" + last_ + "): " + wrong;
      }
    }
    return "";
  }
  const std::map<std::string, std::uint64_t>& counts() const { return counts_; }

 private:
  struct Saved {
    std::int64_t step = 0;
    bool acknowledged = false;
    bool deleted = false;
    bool pinned = false;
    bool released = false;  // retention may have removed it, for ever
  };

  Environment NewEnvironment() {
    Environment env;
    env.store = machine_->NewStore(&ids_).value();
    env.ids = &ids_;
    env.host = "machine";
    env.pid = 1;
    return env;
  }

  std::string Open() {
    ManagerOptions options;
    options.retention.keep_last = keep_last_;
    options.run = ++run_;
    options.copy_threads = 1;
    auto opened = OpenManager(options, NewEnvironment(), SmallLayout());
    if (!opened.ok()) return "open: " + opened.status().ToString();
    manager_ = *std::move(opened);
    return RestoreOne("");
  }

  /// Restores one and goes on from its state.
  std::string RestoreOne(const std::string& id) {
    TestTableSink sink;
    auto restored = manager_->Restore({.id = id, .tables = &sink});
    if (!restored.ok()) return "restore: " + restored.status().ToString();
    base_.reset();
    parent_.reset();
    table_ = {};
    if (!restored->has_value()) {
      return Newest() == nullptr ? "" : "nothing is restored although a save was acknowledged";
    }
    if (!(*restored)->fallbacks.empty()) return (*restored)->fallbacks.front();
    table_ = sink.tables["table"];
    if (table_ != states_.at((*restored)->step)) return "restored to another state";
    parent_ = (*restored)->step;
    base_ = parent_;
    if ((*restored)->info.base.empty()) return "";
    base_.reset();
    const auto it = steps_.find((*restored)->info.base);
    if (it != steps_.end()) base_ = it->second;
    return "";
  }

  std::string Operate() {
    const std::uint64_t dice = random_.Below(100);
    if (dice < 20) return Save(SaveKind::kFull);
    if (dice < 40) return Save(SaveKind::kCumulative);
    if (dice < 62) return Save(SaveKind::kConsecutive);
    if (dice < 70) return SaveThatFails();
    if (dice < 78) return Crash();
    if (dice < 84) return Delete();
    if (dice < 90) return GoBack();
    if (dice < 94) return Pin();
    return Compact();
  }

  void Change() {
    for (int i = 0; i < 12; ++i) {
      const auto key = static_cast<std::int64_t>(random_.Below(80)) - 40;
      switch (random_.Below(4)) {
        case 0:
          table_.rows.erase(key);
          table_.pending.erase(key);
          break;
        case 1:
          if (!table_.rows.contains(key)) table_.pending[key] = random_.Next();
          break;
        default:
          table_.pending.erase(key);
          table_.rows[key] = random_.Next();
      }
    }
  }

  Result<CheckpointInfo> TrySave(SaveKind kind, std::int64_t step) {
    SaveRequest request;
    request.step = step;
    request.kind = kind;
    request.blocking = random_.Below(2) == 0;
    const std::optional<std::int64_t> since = kind == SaveKind::kCumulative ? base_ : parent_;
    std::deque<std::string> memory;
    const bool full = kind == SaveKind::kFull || !since;
    AddTestTable("table", full ? table_.All() : table_.Since(states_.at(*since)), &request,
                 &memory);
    ASSIGN_OR_RETURN(const SaveHandle handle, manager_->Save(std::move(request)));
    return handle.Wait();
  }

  std::string Save(SaveKind kind) {
    last_ = kind == SaveKind::kFull         ? "full"
            : kind == SaveKind::kCumulative ? "cumulative"
                                            : "consecutive";
    ++counts_[last_];
    Change();
    const std::int64_t step = ++step_;
    states_[step] = table_;
    auto info = TrySave(kind, step);
    const bool has_base =
        kind == SaveKind::kCumulative ? base_ && Has(*base_) : parent_.has_value();
    if (!info.ok() && kind != SaveKind::kFull && info.status().Is(Code::kFailedPrecondition) &&
        (!has_base || may_refuse_)) {
      ++counts_["refused"];
      return "";
    }
    if (!info.ok()) return info.status().ToString();
    if (kind != SaveKind::kFull && !has_base) return "an increment without a base was accepted";
    may_refuse_ = false;
    saved_.push_back({.step = step, .acknowledged = true});
    steps_[info->id] = step;
    ids_of_[step] = info->id;
    parent_ = step;
    if (kind == SaveKind::kFull) base_ = step;
    const Status settled = manager_->WaitAll();  // retention
    return settled.ok() ? "" : settled.ToString();
  }

  /// The disk refuses a write or a sync once; the rows of the failed save are in the next one.
  std::string SaveThatFails() {
    last_ = "failing save";
    if (machine_->kind() != Machine::Kind::kDisk) return Save(SaveKind::kFull);
    ++counts_[last_];
    Change();
    const std::int64_t step = ++step_;
    states_[step] = table_;
    machine_->faults()->Arm(
        {.failure = FsFailure::kIoError, .trigger = {.at = random_.Below(12)}, .status = Status()});
    const auto info =
        TrySave(parent_ && random_.Below(2) == 0 ? SaveKind::kConsecutive : SaveKind::kFull, step);
    manager_->WaitAll().IgnoreError("a failure of retention is said once more at the next save");
    machine_->faults()->Disarm();
    saved_.push_back({.step = step, .acknowledged = info.ok()});
    if (info.ok()) {
      steps_[info->id] = step;
      ids_of_[step] = info->id;
      parent_ = step;
      if (info->kind == "full") base_ = step;
    }
    return "";
  }

  std::string Crash() {
    const Ending endings[] = {Ending::kForget, Ending::kKeep, Ending::kSubset, Ending::kTorn,
                              Ending::kKill};
    const Ending ending = endings[random_.Below(5)];
    last_ = "crash: " + std::string(EndingName(ending));
    ++counts_["crash"];
    // In the middle of a save, or at rest.
    std::optional<Image> image;
    if (random_.Below(3) != 0) {
      const std::uint64_t at = random_.Below(40);
      std::uint64_t seen = 0;
      Mutex mu;
      machine_->SetHook([&](const std::string&) {
        const MutexLock lock(&mu);
        if (seen++ == at) image = machine_->Snapshot();
      });
      Change();
      const std::int64_t step = ++step_;
      states_[step] = table_;
      saved_.push_back({.step = step, .acknowledged = false});
      const SaveKind kind =
          parent_ && random_.Below(2) == 0 ? SaveKind::kConsecutive : SaveKind::kFull;
      TrySave(kind, step).status().IgnoreError("the machine may end before it does");
      manager_->WaitAll().IgnoreError("likewise");
      machine_->SetHook(nullptr);
    }
    if (!image) image = machine_->Snapshot();
    manager_.reset();
    machine_ = std::make_unique<Machine>(*image, ending, random_.Next());
    if (std::string wrong = Open(); !wrong.empty()) return wrong;
    return Adopt();
  }

  /// What was in flight counts or not; retention of that save may have run.
  std::string Adopt() {
    const auto infos = manager_->List();
    if (!infos.ok()) return infos.status().ToString();
    std::set<std::int64_t> listed;
    for (const CheckpointInfo& info : *infos) {
      listed.insert(info.step);
      steps_[info.id] = info.step;
      ids_of_[info.step] = info.id;
    }
    for (Saved& saved : saved_) {
      if (saved.acknowledged || !listed.contains(saved.step)) continue;
      saved.acknowledged = true;
    }
    std::erase_if(saved_, [](const Saved& saved) { return !saved.acknowledged; });
    return "";
  }

  std::string Delete() {
    last_ = "delete";
    ++counts_[last_];
    const auto infos = manager_->List().value();
    if (infos.empty()) return "";
    const CheckpointInfo& victim = infos[random_.Below(infos.size())];
    const Status deleted = manager_->Delete(victim.id);
    if (deleted.ok()) {
      for (Saved& saved : saved_) saved.deleted = saved.deleted || saved.step == victim.step;
      may_refuse_ = true;  // it may have been below the branch
      return "";
    }
    ++counts_["delete refused"];
    return deleted.Is(Code::kFailedPrecondition) ? "" : deleted.ToString();
  }

  std::string GoBack() {
    last_ = "go back";
    ++counts_[last_];
    const auto infos = manager_->List().value();
    if (infos.empty()) return "";
    may_refuse_ = false;
    return RestoreOne(infos[random_.Below(infos.size())].id);
  }

  std::string Pin() {
    last_ = "pin";
    ++counts_[last_];
    const auto infos = manager_->List().value();
    if (infos.empty()) return "";
    const CheckpointInfo& info = infos[random_.Below(infos.size())];
    const Status status = info.pinned ? manager_->Unpin(info.id) : manager_->Pin(info.id);
    if (!status.ok()) return status.ToString();
    for (Saved& saved : saved_) {
      if (saved.step == info.step) saved.pinned = !info.pinned;
    }
    return "";
  }

  std::string Compact() {
    last_ = "compact";
    ++counts_[last_];
    const Status closed = manager_->Close();
    if (!closed.ok()) return closed.ToString();
    manager_.reset();
    if (Newest() != nullptr) {
      const auto compacted = CompactIn(NewEnvironment(), {}, {});
      if (!compacted.ok()) return compacted.status().ToString();
      steps_[compacted->info.id] = compacted->info.step;
      ids_of_[compacted->info.step] = compacted->info.id;
    }
    return Open();
  }

  /// The newest that has to be there.
  const Saved* Newest() const {
    const Saved* newest = nullptr;
    for (const Saved& saved : saved_) {
      if (saved.acknowledged && !saved.deleted && !saved.released) newest = &saved;
    }
    return newest;
  }
  bool Has(std::int64_t step) const {
    const auto infos = manager_->List().value();
    return std::any_of(infos.begin(), infos.end(),
                       [&](const CheckpointInfo& info) { return info.step == step; });
  }

  std::string Check() {
    ManagerOptions options;
    options.read_only = true;
    auto reader = OpenManager(options, NewEnvironment());
    if (!reader.ok()) return "a reader: " + reader.status().ToString();
    const auto infos = (*reader)->List();
    if (!infos.ok()) return infos.status().ToString();
    std::set<std::int64_t> listed;
    for (const CheckpointInfo& info : *infos) {
      if (!listed.insert(info.step).second) return "step " + std::to_string(info.step) + " twice";
      TestTableSink sink;
      const auto restored = (*reader)->Restore({.id = info.id, .tables = &sink});
      if (!restored.ok()) return info.path + ": " + restored.status().ToString();
      if (!sink.broken.empty()) return info.path + ": " + sink.broken;
      if (sink.tables["table"] != states_.at(info.step)) return info.path + ": another state";
    }
    std::uint64_t recent = 0;
    for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved) {
      // A failed save may count all the same, and then does like any other.
      saved->acknowledged = saved->acknowledged || listed.contains(saved->step);
      if (!saved->acknowledged) continue;
      const std::string name = "step " + std::to_string(saved->step);
      if (saved->deleted) {
        if (listed.contains(saved->step)) return name + " was deleted and is back";
        continue;
      }
      const bool kept = !keep_last_ || recent < *keep_last_ || saved->pinned;
      saved->released = saved->released || !kept;
      if (!saved->released && !listed.contains(saved->step)) return name + " is lost";
      ++recent;
    }
    return "";
  }

  std::unique_ptr<Machine> machine_;
  SeededRandom random_;
  SeededIds ids_;
  std::optional<std::uint64_t> keep_last_;
  std::uint64_t run_ = 0;
  std::unique_ptr<CheckpointManager> manager_;
  TestTable table_;
  std::int64_t step_ = 0;
  std::map<std::int64_t, TestTable> states_;    // of every step that was begun
  std::map<std::string, std::int64_t> steps_;   // by id
  std::map<std::int64_t, std::string> ids_of_;  // by step
  std::vector<Saved> saved_;                    // in the order of their commits
  std::optional<std::int64_t> base_;            // that the branch stands on, and goes on from
  std::optional<std::int64_t> parent_;
  bool may_refuse_ = false;  // something below the branch may have been deleted
  std::string last_;
  std::map<std::string, std::uint64_t> counts_;
};

class IncrementProperty : public testing::TestWithParam<Machine::Kind> {
 protected:
  IncrementProperty() {
    SetLogSink([](LogLevel, std::string_view) {});
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  }
  ~IncrementProperty() override { SetLogSink(nullptr); }
};

TEST_P(IncrementProperty, EveryHistoryKeepsEveryRestorePointWhole) {
  Torture torture(std::string(KindName(GetParam())), 40);
  torture.Run([&](std::uint64_t seed) {
    History history(GetParam(), seed);
    const std::string broken = history.Run(40);
    EXPECT_EQ(broken, "") << "seed " << seed;
    torture.Count("histories", 1);
    for (const auto& [what, count] : history.counts()) torture.Count(what, count);
    return broken.empty();
  });
}

INSTANTIATE_TEST_SUITE_P(Machines, IncrementProperty,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kBucket,
                                         Machine::Kind::kShelves),
                         [](const auto& param) { return std::string(KindName(param.param)); });

}  // namespace
}  // namespace cairn::crash
