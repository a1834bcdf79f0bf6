// Saves full checkpoints and increments without pause until it is killed. Arguments: see
// doomed_writer.h. Exit codes: 0 never, 3 an error.

#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/manager.h"
#include "tests/kill/doomed_writer.h"
#include "tests/kill/job_state.h"
#include "tests/kill/table_state.h"

namespace {

using cairn::kill::JobState;
using cairn::kill::KindAt;
using cairn::kill::TableAt;

int Fail(const cairn::Status& status) {
  std::fprintf(stderr, "increment_writer: %s\n", status.ToString().c_str());
  return 3;
}

/// The step whose state the next increments are counted from.
struct Branch {
  std::int64_t base = -1;
  std::int64_t parent = -1;
};

cairn::Result<Branch> Resume(cairn::CheckpointManager* manager, std::uint64_t seed) {
  Branch branch;
  cairn::TestTableSink sink;
  std::vector<std::uint64_t> hot(100);
  cairn::RestoreRequest request;
  request.into = {{.name = "hot", .dtype = cairn::DType::kU64, .shape = {100}, .data = hot.data()}};
  request.tables = &sink;
  auto restored = manager->Restore(std::move(request));
  if (!restored.ok()) return restored.status();
  if (!restored->has_value()) return branch;
  const cairn::Restored& state = **restored;
  if (!state.fallbacks.empty()) return cairn::CorruptionError(state.fallbacks.front());
  if (!sink.broken.empty()) return cairn::CorruptionError(sink.broken);
  if (sink.tables["table"] != TableAt(seed, state.step)) {
    return cairn::CorruptionError("the restored rows are wrong");
  }
  branch.parent = branch.base = state.step;
  if (state.info.base.empty()) return branch;
  auto infos = manager->List();
  if (!infos.ok()) return infos.status();
  branch.base = -1;
  for (const cairn::CheckpointInfo& info : *infos) {
    if (info.id == state.info.base) branch.base = info.step;
  }
  return branch;
}

cairn::Status SaveStep(cairn::CheckpointManager* manager, std::uint64_t seed, std::int64_t step,
                       Branch* branch) {
  cairn::SaveRequest request;
  request.step = step;
  request.kind = branch->parent < 0 ? cairn::SaveKind::kFull : KindAt(step);
  // After a compaction the base that was named may be gone, which is no failure.
  if (request.kind == cairn::SaveKind::kCumulative && branch->base < 0) {
    request.kind = cairn::SaveKind::kFull;
  }
  const std::int64_t since =
      request.kind == cairn::SaveKind::kCumulative ? branch->base : branch->parent;
  std::vector<std::uint64_t> hot(100);
  JobState::Fill(&hot, seed ^ static_cast<std::uint64_t>(step));
  request.tensors = {
      {.name = "hot", .dtype = cairn::DType::kU64, .shape = {100}, .data = hot.data()}};
  std::deque<std::string> memory;
  const cairn::TestTable now = TableAt(seed, step);
  cairn::AddTestTable(
      "table", request.kind == cairn::SaveKind::kFull ? now.All() : now.Since(TableAt(seed, since)),
      &request, &memory);
  auto saved = manager->Save(std::move(request));
  if (!saved.ok()) return saved.status();
  auto info = saved->Wait();
  if (!info.ok()) return info.status();
  branch->parent = step;
  if (info->kind == "full") branch->base = step;
  return cairn::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  auto writer = cairn::kill::DoomedWriter::Open(argc, argv);
  if (!writer.ok()) return Fail(writer.status());
  cairn::CheckpointManager* manager = writer->manager.get();
  auto branch = Resume(manager, writer->seed);
  if (!branch.ok()) return Fail(branch.status());
  writer->board->resumed = branch->parent;
  for (std::int64_t step = branch->parent + 1;; ++step) {
    const cairn::Status saved = SaveStep(manager, writer->seed, step, &*branch);
    if (!saved.ok()) return Fail(saved);
    writer->board->acknowledged = step;
  }
}
