// serving_job <repository> <numbers> <seed> <takeover>: saves full checkpoints and increments as
// fast as it can, for ever; now and then it goes back to an older one and begins another branch.
// Ends by being killed, or when another writer has taken over.

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "base/log.h"
#include "tests/serving/numbered_job.h"

namespace cairn::serving {
namespace {

class Job {
 public:
  Job(const std::string& directory, const std::string& numbers, std::uint64_t seed, bool takeover)
      : numbers_(numbers), random_(seed) {
    ManagerOptions options;
    options.directory = directory;
    options.takeover = takeover;
    options.retention.keep_last = 4;
    options.retention.keep_fulls = 2;
    auto manager = CheckpointManager::Open(options);
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
      const bool full = !checkpoints_->CanIncrement() || random_() % 8 == 0;
      if (Status saved = Save(full ? SaveKind::kFull : chain_); !saved.ok()) return saved;
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
  cairn::SetLogSink([](cairn::LogLevel, std::string_view) {});
  cairn::serving::Job job(argv[1], argv[2], std::strtoull(argv[3], nullptr, 10),
                          std::string(argv[4]) == "1");
  const cairn::Status ended = job.Run();
  if (ended.Is(cairn::Code::kAborted)) return 0;  // overtaken
  std::fprintf(stderr, "serving_job: %s\n", ended.ToString().c_str());
  return 1;
}
