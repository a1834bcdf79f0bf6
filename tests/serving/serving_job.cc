// serving_job <repository> <numbers> <seed> <takeover>: saves full checkpoints and increments as
// fast as it can, for ever; now and then it goes back to an older one and begins another branch.
// Its wall clock jumps by years, both ways, and its disk may be full for a while. Ends by being
// killed, or when another writer has taken over.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/manager.h"
#include "tests/serving/numbered_job.h"

namespace cairn::serving {
namespace {

/// A machine whose time is set anew again and again.
class JumpingClock final : public Clock {
 public:
  Duration Now() override { return System()->Now(); }
  std::int64_t WallNanos() override { return System()->WallNanos() + off_; }
  void Sleep(Duration duration) override { System()->Sleep(duration); }
  void Jump(std::chrono::hours by) { off_ = std::chrono::nanoseconds(by).count(); }

 private:
  std::atomic<std::int64_t> off_{0};
};

class Job {
 public:
  Job(const std::string& directory, const std::string& numbers, std::uint64_t seed, bool takeover)
      : numbers_(numbers), random_(seed) {
    ManagerOptions options;
    options.directory = directory;
    options.takeover = takeover;
    options.retention.keep_last = 4;
    options.retention.keep_fulls = 2;
    auto env = EnvironmentAt(directory, {.create = true});
    if (!env.ok()) return;
    env->clock = &clock_;
    auto manager = OpenManager(options, *std::move(env));
    if (!manager.ok()) return;
    manager_ = *std::move(manager);
    TableCheckpoints::Options rows;
    rows.compress_keys = seed % 2 == 0;
    checkpoints_ =
        std::make_unique<TableCheckpoints>(manager_.get(), std::vector{a_.get(), b_.get()}, rows);
    chain_ = seed % 4 < 2 ? SaveKind::kCumulative : SaveKind::kConsecutive;
  }

  Status Run() {
    if (manager_ == nullptr || !numbers_.ok()) return UnavailableError("could not begin");
    if (Status restored = Restore(""); !restored.ok()) return restored;
    for (;;) {
      if (random_() % 25 == 0) {
        if (Status back = GoBack(); !back.ok()) return back;
      }
      constexpr int kTwentyYears = 20 * 365 * 24;
      clock_.Jump(
          std::chrono::hours(static_cast<int>(random_() % (2 * kTwentyYears)) - kTwentyYears));
      const bool full = !checkpoints_->CanIncrement() || random_() % 8 == 0;
      const Status saved = Save(full ? SaveKind::kFull : chain_);
      if (saved.Is(Code::kAborted)) return saved;
      // A full disk is not the end of a training: the next save may find room.
      if (!saved.ok()) clock_.Sleep(std::chrono::milliseconds(5));
    }
  }

 private:
  Status Restore(const std::string& id) {
    RestoreRequest request;
    request.id = id;
    request.into = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &weight_}};
    return checkpoints_->Restore(std::move(request)).status();
  }

  /// What it came from may be damaged or removed meanwhile: then it stays where it is.
  Status GoBack() {
    auto list = manager_->List();
    if (!list.ok() || list->empty()) return list.status();
    const CheckpointInfo& to = (*list)[random_() % list->size()];
    if (to.foreign) return Status::Ok();
    if (Restore(to.id).ok()) return Status::Ok();
    return Restore("");
  }

  Status Save(SaveKind kind) {
    const std::int64_t number = numbers_.Next();
    weight_ = static_cast<float>(number);
    for (Table* table : {a_.get(), b_.get()}) {
      if (Status set = SetAllRows(table, weight_); !set.ok()) return set;
    }
    SaveRequest request;
    request.step = number;
    request.kind = kind;
    request.tensors = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &weight_}};
    auto handle = checkpoints_->Save(std::move(request));
    if (!handle.ok()) return handle.status();
    return handle->Wait().status();
  }

  Numbers numbers_;
  std::mt19937_64 random_;
  JumpingClock clock_;
  std::unique_ptr<Table> a_ = MakeNumberedTable("a", kDimA);
  std::unique_ptr<Table> b_ = MakeNumberedTable("b", kDimB);
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<TableCheckpoints> checkpoints_;
  SaveKind chain_ = SaveKind::kCumulative;
  float weight_ = 0;
};

}  // namespace
}  // namespace cairn::serving

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  // It falls back past damaged checkpoints again and again; that is what the test is about.
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit is an error then
  cairn::SetLogSink([](cairn::LogLevel, std::string_view) {});
  cairn::serving::Job job(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10),
                          std::string(argv[4]) == "1");
  const cairn::Status ended = job.Run();
  if (ended.Is(cairn::Code::kAborted)) return 0;  // overtaken
  std::fprintf(stderr, "serving_job: %s\n", ended.ToString().c_str());
  return 1;
}
