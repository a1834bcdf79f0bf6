// Putting a chain together: compact, export and merge of increments, diff, verify and copy of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/transfer.h>

#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore_point.h"
#include "checkpoint/stored_tables.h"
#include "checkpoint/table_merge.h"
#include "checkpoint/test_table.h"
#include "checkpoint/transfer.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

/// Rows come, change, go and come back; keys are pending, admitted, and pending again.
TestTable TableAt(std::int64_t step) {
  TestTable table;
  const auto s = static_cast<std::uint64_t>(step / 10);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::int64_t key = (i % 3 == 0 ? -1 : 1) * static_cast<std::int64_t>(i) * 7'919;
    const std::uint64_t phase = TestTable::Mix(i) + s;
    if (i % 4 == 0 && phase % 4 == 0) continue;
    if (i % 4 == 0 && phase % 4 == 1) {
      table.pending[key] = s + i;
      continue;
    }
    table.rows[key] = 1 + (i % 5 == 0 ? s : i % 11 == 0 ? s / 2 : 0);
  }
  return table;
}

class CompactTest : public testing::TestWithParam<bool> {
 protected:
  CompactTest() : store_(MemoryStore::Open({.object_store = GetParam()}).value()) {
    env_.store = store_;
    env_.host = "here";
    env_.pid = 1;
  }
  std::unique_ptr<CheckpointManager> Open(const Environment& env) {
    ManagerOptions options;
    options.retention.keep_last.reset();
    return OpenManager(options, env).value();
  }
  std::unique_ptr<CheckpointManager> Open() { return Open(env_); }

  static CheckpointInfo Save(CheckpointManager* manager, std::int64_t step,
                             SaveKind kind = SaveKind::kFull, std::int64_t since = 0) {
    SaveRequest request;
    request.step = step;
    request.kind = kind;
    request.blocking = true;
    request.metrics = Value::Object{{"loss", 1.0 / static_cast<double>(step)}};
    std::deque<std::string> memory;
    for (const std::string name : {"users", "items/clicked"}) {
      AddTestTable(
          name, kind == SaveKind::kFull ? TableAt(step).All() : TableAt(step).Since(TableAt(since)),
          &request, &memory);
    }
    std::vector<float> dense(100, static_cast<float>(step));
    request.tensors.push_back({.name = "dense", .shape = {100}, .data = dense.data()});
    request.state_files = {{"state.json", "{\"step\":" + std::to_string(step) + "}"}};
    auto handle = manager->Save(std::move(request));
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    auto info = handle->Wait();
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return *info;
  }
  static void ExpectState(CheckpointManager* manager, const std::string& id, std::int64_t step) {
    TestTableSink sink;
    auto restored = manager->Restore({.allocate = true, .id = id, .tables = &sink});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    ASSERT_TRUE(restored->has_value());
    EXPECT_EQ((*restored)->step, step);
    EXPECT_EQ(sink.broken, "");
    EXPECT_EQ(sink.tables["users"], TableAt(step)) << "step " << step;
    EXPECT_EQ(sink.tables["items/clicked"], TableAt(step)) << "step " << step;
    ASSERT_THAT((*restored)->tensors, SizeIs(1));
    EXPECT_EQ(reinterpret_cast<const float*>((*restored)->tensors[0].data.get())[42],
              static_cast<float>(step));
    EXPECT_EQ((*restored)->state_files.at("state.json"), "{\"step\":" + std::to_string(step) + "}");
  }
  static std::vector<std::int64_t> Steps(CheckpointManager* manager) {
    std::vector<std::int64_t> steps;
    for (const CheckpointInfo& info : manager->List().value()) steps.push_back(info.step);
    return steps;
  }

  std::shared_ptr<MemoryStore> store_;
  Environment env_;
};

TEST_P(CompactTest, GivesTheSameStateAsTheChain) {
  for (const SaveKind kind : {SaveKind::kConsecutive, SaveKind::kCumulative}) {
    store_ = MemoryStore::Open({.object_store = GetParam()}).value();
    env_.store = store_;
    CheckpointInfo tip;
    {
      auto manager = Open();
      Save(manager.get(), 10);
      for (std::int64_t step = 20; step <= 60; step += 10) {
        tip = Save(manager.get(), step, kind, kind == SaveKind::kConsecutive ? step - 10 : 10);
      }
    }
    const auto compacted = CompactIn(env_, {}, {});
    ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
    EXPECT_FALSE(compacted->already_full);
    EXPECT_TRUE(compacted->replaced_removed);
    EXPECT_THAT(compacted->chain, SizeIs(kind == SaveKind::kConsecutive ? 6 : 2));
    EXPECT_EQ(compacted->info.kind, "full");
    EXPECT_EQ(compacted->info.generation, tip.generation);
    EXPECT_EQ(compacted->info.sequence, tip.sequence);
    EXPECT_EQ(compacted->info.tables[0].rows, TableAt(60).rows.size());
    EXPECT_EQ(compacted->info.tables[0].deleted, 0u);
    auto manager = Open();
    EXPECT_EQ(manager->Latest().value()->id, compacted->info.id);
    ExpectState(manager.get(), "", 60);
    EXPECT_THAT(Steps(manager.get()), ElementsAre(10, 20, 30, 40, 50, 60));
    // It is a base like any other, also without the chain that it came from.
    ExpectState(manager.get(), compacted->info.id, 60);
    const CheckpointInfo next = Save(manager.get(), 70, SaveKind::kCumulative, 60);
    EXPECT_EQ(next.base, compacted->info.id);
    ExpectState(manager.get(), next.id, 70);
  }
}

TEST_P(CompactTest, IncrementsOnTopStandOnTheNewFullOne) {
  std::vector<CheckpointInfo> infos;
  {
    auto manager = Open();
    infos.push_back(Save(manager.get(), 10));
    for (std::int64_t step = 20; step <= 50; step += 10) {
      infos.push_back(Save(manager.get(), step, SaveKind::kConsecutive, step - 10));
    }
  }
  const auto compacted = CompactIn(env_, {.step = 30, .id = ""}, {});
  ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
  auto manager = Open();
  EXPECT_EQ(manager->Latest().value()->id, infos.back().id) << "an older one is not the latest";
  for (const CheckpointInfo& info : manager->List().value()) {
    ExpectState(manager.get(), info.id, info.step);
  }
  // What the chain was before can go now.
  EXPECT_TRUE(manager->Delete(infos[1].id).ok());
  EXPECT_TRUE(manager->Delete(infos[0].id).ok());
  EXPECT_TRUE(manager->Delete(compacted->info.id).Is(Code::kFailedPrecondition));
  for (const CheckpointInfo& info : manager->List().value()) {
    ExpectState(manager.get(), info.id, info.step);
  }
  ExpectState(manager.get(), "", 50);
  const CheckpointInfo next = Save(manager.get(), 60, SaveKind::kConsecutive, 50);
  ExpectState(manager.get(), next.id, 60);
}

TEST_P(CompactTest, ARottenTwinOfAFileIsNotShared) {
  if (GetParam()) return;  // buckets keep checksums of their own
  std::vector<float> frozen(50'000, 1.0f);
  const auto save = [&](CheckpointManager* manager, std::int64_t step, SaveKind kind) {
    SaveRequest request;
    request.step = step;
    request.kind = kind;
    request.blocking = true;
    request.tensors = {{.name = "frozen", .shape = {frozen.size()}, .data = frozen.data()}};
    EXPECT_TRUE(manager->Save(std::move(request)).ok());
  };
  {
    auto manager = Open();
    save(manager.get(), 10, SaveKind::kFull);
    save(manager.get(), 20, SaveKind::kCumulative);
    save(manager.get(), 30, SaveKind::kCumulative);
  }
  const std::string rotten = "increment_000030/__model__/rank_0-00001.safetensors";
  std::string bytes = store_->Get(rotten, 1 << 20).value();
  bytes[9000] ^= 1;
  ASSERT_TRUE(store_->Put(rotten, bytes).ok());
  const auto compacted = CompactIn(env_, {.step = 20}, {});
  ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
  auto manager = Open();
  const auto restored = manager->Restore({.allocate = true, .step = 20});
  EXPECT_TRUE(restored.ok()) << restored.status().ToString();
}

TEST_P(CompactTest, APinMovesOver) {
  {
    auto manager = Open();
    Save(manager.get(), 10);
    ASSERT_TRUE(manager->Pin(Save(manager.get(), 20, SaveKind::kCumulative, 10).id).ok());
  }
  const auto compacted = CompactIn(env_, {}, {});
  ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
  EXPECT_TRUE(compacted->replaced_removed);
  auto manager = Open();
  EXPECT_TRUE(manager->Latest().value()->pinned);
  EXPECT_THAT(Steps(manager.get()), ElementsAre(10, 20));
}

TEST_P(CompactTest, AScoreThatComesMeanwhileMovesOver) {
  for (const std::string_view when : {"open: sweep", "save: manifest", "remove: note"}) {
    env_.store = store_ = MemoryStore::Open({.object_store = GetParam()}).value();
    std::string id;
    {
      auto manager = Open();
      Save(manager.get(), 10);
      id = Save(manager.get(), 20, SaveKind::kCumulative, 10).id;
    }
    bool scored = false;
    Environment watched = env_;
    watched.on_step = [&](std::string_view step) {
      if (scored || step != when) return;
      scored = true;
      auto judge = OpenManager({.read_only = true}, env_).value();
      ASSERT_TRUE(judge->AddMetrics(id, Value::Object{{"accuracy", 0.9}}).ok());
    };
    const auto compacted = CompactIn(watched, {}, {});
    ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
    ASSERT_TRUE(scored) << when;
    EXPECT_TRUE(compacted->replaced_removed) << when;
    auto manager = Open();
    EXPECT_THAT(Steps(manager.get()), ElementsAre(10, 20)) << when;
    const Value metrics = manager->Latest().value()->metrics;
    EXPECT_NE(metrics.Find("loss"), nullptr) << when;
    EXPECT_NE(metrics.Find("accuracy"), nullptr) << when;
  }
}

TEST_P(CompactTest, AFullOneIsLeftAsItIs) {
  Save(Open().get(), 10);
  const auto compacted = CompactIn(env_, {}, {});
  ASSERT_TRUE(compacted.ok()) << compacted.status().ToString();
  EXPECT_TRUE(compacted->already_full);
}

TEST_P(CompactTest, ABrokenChainIsToldBeforeAnythingIsDone) {
  {
    auto manager = Open();
    const CheckpointInfo full = Save(manager.get(), 10);
    Save(manager.get(), 20, SaveKind::kCumulative, 10);
    ASSERT_TRUE(store_->Delete("checkpoint_000010/manifest.json").ok());
  }
  const auto compacted = CompactIn(env_, {}, {});
  EXPECT_TRUE(compacted.status().Is(Code::kCorruption)) << compacted.status().ToString();
  EXPECT_THAT(std::string(compacted.status().message()), HasSubstr("increment_000020"));
}

/// The compactor stops before its commit; a new owner deletes the increment meanwhile.
TEST_P(CompactTest, ACompactorThatWasOvertakenBringsNothingBack) {
  {
    auto manager = Open();
    Save(manager.get(), 10);
    Save(manager.get(), 20, SaveKind::kCumulative, 10);
  }
  bool overtaken = false;
  store_->SetHook([&](const StoreOp& op) {
    if (overtaken || op.kind != StoreOp::Kind::kCreate) return;
    if (op.name != "checkpoint_000020/manifest.json") return;
    overtaken = true;
    Environment other = env_;
    other.store = store_->OpenAgain();
    ManagerOptions options;
    options.retention.keep_last.reset();
    options.takeover = true;
    auto owner = OpenManager(options, other);
    ASSERT_TRUE(owner.ok()) << owner.status().ToString();
    ASSERT_TRUE((*owner)->Delete((*owner)->Latest().value()->id).ok());
    EXPECT_TRUE((*owner)->Close().ok());
  });
  const auto compacted = CompactIn(env_, {}, {});
  store_->SetHook(nullptr);
  ASSERT_TRUE(overtaken);
  EXPECT_TRUE(compacted.status().Is(Code::kAborted)) << compacted.status().ToString();
  const auto seen_with = [&](const ProtocolRules& rules) {
    RepositoryReader reader(store_.get(), rules);
    const RepositoryView view = reader.Read().value();
    std::vector<std::int64_t> steps;
    for (const Checkpoint& checkpoint : view.checkpoints) {
      if (checkpoint.counts) steps.push_back(checkpoint.manifest->step);
    }
    return steps;
  };
  EXPECT_THAT(seen_with({}), ElementsAre(10));
  ProtocolRules without;
  without.judge_by_commit_generation = false;
  EXPECT_THAT(seen_with(without), ElementsAre(10, 20)) << "the rule is what keeps it out";
  EXPECT_THAT(Steps(Open().get()), ElementsAre(10));
}

TEST_P(CompactTest, CopyBringsTheChain) {
  {
    auto manager = Open();
    Save(manager.get(), 10);
    Save(manager.get(), 20);
    Save(manager.get(), 30, SaveKind::kConsecutive, 20);
    Save(manager.get(), 40, SaveKind::kConsecutive, 30);
  }
  Environment target = env_;
  target.store = MemoryStore::Open({.object_store = !GetParam()}).value();
  RepositoryReader reader(store_.get());
  const RepositoryView view = reader.Read().value();
  const auto chosen = ChooseForCopy(view, "source", {});
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  EXPECT_THAT(*chosen, SizeIs(3));
  const auto copied = CopyInto(env_, view, *chosen, target, {}, {});
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  auto manager = Open(target);
  EXPECT_THAT(Steps(manager.get()), ElementsAre(20, 30, 40));
  ExpectState(manager.get(), "", 40);
}

TEST_P(CompactTest, ACompactedOneMayBeCopied) {
  {
    auto manager = Open();
    Save(manager.get(), 10);
    Save(manager.get(), 20, SaveKind::kConsecutive, 10);
    Save(manager.get(), 30, SaveKind::kConsecutive, 20);
  }
  ASSERT_TRUE(CompactIn(env_, {.step = 20, .id = ""}, {}).ok());
  Environment target = env_;
  target.store = MemoryStore::Open({.object_store = GetParam()}).value();
  RepositoryReader reader(store_.get());
  const RepositoryView view = reader.Read().value();
  const auto copied =
      CopyInto(env_, view, ChooseForCopy(view, "source", {}).value(), target, {}, {});
  ASSERT_TRUE(copied.ok()) << copied.status().ToString();
  auto manager = Open(target);
  EXPECT_THAT(Steps(manager.get()), ElementsAre(20, 30));
  ExpectState(manager.get(), "", 30);
}

INSTANTIATE_TEST_SUITE_P(Stores, CompactTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "ObjectStore" : "Links"; });

/// Over real directories, by the public functions.
class IncrementToolsTest : public CompactTest {
 protected:
  IncrementToolsTest() : directory_(temp_.path() + "/run") {
    auto manager = OpenAt(directory_);
    Save(manager.get(), 10);
    for (std::int64_t step = 20; step <= 40; step += 10) {
      infos_.push_back(Save(manager.get(), step, SaveKind::kConsecutive, step - 10));
    }
  }
  static std::unique_ptr<CheckpointManager> OpenAt(const std::string& directory) {
    ManagerOptions options;
    options.directory = directory;
    options.retention.keep_last.reset();
    return CheckpointManager::Open(options).value();
  }

  TempDirectory temp_;
  std::string directory_;
  std::vector<CheckpointInfo> infos_;
};

TEST_P(IncrementToolsTest, AnExportHasAllRows) {
  const std::string out = temp_.path() + "/out";
  const auto exported = ExportCheckpoint(infos_.back().path, out);
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  // Imported again, as one file of tensors among others.
  std::ifstream file(out + "/__lookup_table__/rank_0.safetensors", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::uint64_t length = SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size()).value();
  const auto header = DecodeSafetensorsHeader(bytes.substr(0, length), bytes.size());
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  std::map<std::string, TensorEntry> entries;
  for (const TensorEntry& entry : header->tensors) entries[entry.name] = entry;
  const TensorEntry& keys = entries.at("users/keys");
  const TensorEntry& versions = entries.at("users/version");
  std::map<std::int64_t, std::uint64_t> rows;
  for (std::uint64_t i = 0; i < keys.shape[0]; ++i) {
    std::int64_t key = 0;
    std::uint64_t version = 0;
    std::memcpy(&key, bytes.data() + header->data_offset + keys.begin + i * 8, 8);
    std::memcpy(&version, bytes.data() + header->data_offset + versions.begin + i * 8, 8);
    EXPECT_TRUE(rows.emplace(key, version).second);
  }
  EXPECT_EQ(rows, TableAt(40).rows);
  EXPECT_EQ(entries.at("users/pending_keys").shape[0], TableAt(40).pending.size());
}

TEST_P(IncrementToolsTest, ADiffComparesRowsAndNotFiles) {
  ASSERT_TRUE(CompactCheckpoint(directory_, {.step = 40, .id = ""}).ok());
  const auto none = Diff(directory_ + "/checkpoint_000040", directory_ + "/checkpoint_000040");
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_THAT(*none, SizeIs(0));
  const auto differences = Diff(infos_[0].path, directory_ + "/checkpoint_000040");
  ASSERT_TRUE(differences.ok()) << differences.status().ToString();
  std::uint64_t added = 0;
  std::uint64_t removed = 0;
  std::uint64_t changed = 0;
  const TestTable before = TableAt(20);
  const TestTable after = TableAt(40);
  for (const auto& [key, content] : after.rows) {
    const auto it = before.rows.find(key);
    if (it == before.rows.end()) ++added;
    if (it != before.rows.end() && it->second != content) ++changed;
  }
  for (const auto& [key, content] : before.rows) removed += after.rows.contains(key) ? 0 : 1;
  int tables = 0;
  for (const TensorDifference& difference : *differences) {
    if (difference.what != "rows") continue;
    ++tables;
    EXPECT_EQ(difference.rows_added, added) << difference.name;
    EXPECT_EQ(difference.rows_removed, removed) << difference.name;
    EXPECT_EQ(difference.rows_changed, changed) << difference.name;
  }
  EXPECT_EQ(tables, 2);
}

TEST_P(IncrementToolsTest, VerifyFindsAMissingBaseAndABrokenParent) {
  const auto whole = Verify(directory_, /*deep=*/true);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_TRUE(whole->ok()) << whole->problems.front().what;
  std::filesystem::remove_all(infos_[1].path);  // step 30
  const auto broken = Verify(directory_, /*deep=*/false);
  ASSERT_TRUE(broken.ok()) << broken.status().ToString();
  ASSERT_THAT(broken->problems, SizeIs(1));
  EXPECT_EQ(broken->problems[0].checkpoint, "increment_000040");
  EXPECT_THAT(broken->problems[0].what, HasSubstr(infos_[1].id));
  std::filesystem::remove_all(directory_ + "/checkpoint_000010");
  EXPECT_THAT(Verify(directory_, false)->problems, SizeIs(2));
  const auto alone = Verify(infos_[0].path, true);
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_THAT(alone->problems, SizeIs(1));
}

TEST_P(IncrementToolsTest, VerifyNamesIncrementsThatStandOnADamagedOne) {
  const std::filesystem::path file =
      std::filesystem::path(infos_[1].path) / "__lookup_table__" / "rank_0.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const auto broken = Verify(directory_, /*deep=*/false);
  ASSERT_TRUE(broken.ok()) << broken.status().ToString();
  ASSERT_THAT(broken->problems, SizeIs(2));
  EXPECT_EQ(broken->problems[0].checkpoint, "increment_000030");
  EXPECT_EQ(broken->problems[1].checkpoint, "increment_000040");
  EXPECT_THAT(broken->problems[1].what, HasSubstr("increment_000030"));
}

TEST_P(IncrementToolsTest, AnIncrementIsLoadedByItsPathWithWhatLiesBesideIt) {
  TestTableSink sink;
  RestoreRequest request;
  request.path = infos_.back().path;
  request.tables = &sink;
  const auto restored = LoadCheckpoint(request);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(sink.tables["users"], TableAt(40));
  std::filesystem::remove_all(directory_ + "/checkpoint_000010");
  EXPECT_TRUE(LoadCheckpoint(request).status().Is(Code::kCorruption));
}

TEST_P(IncrementToolsTest, RowsThatAreStoredInAnotherWayAreNotPutTogether) {
  auto manager = OpenAt(directory_);
  TestTableSink sink;
  ASSERT_TRUE(manager->Restore({.tables = &sink}).ok());
  SaveRequest request;
  request.step = 50;
  request.kind = SaveKind::kConsecutive;
  request.blocking = true;
  const std::vector<std::int64_t> keys = {1};
  const std::vector<std::int8_t> values = {1, 2, 3};
  request.tensors = {{.name = "users/keys",
                      .dtype = DType::kI64,
                      .shape = {1},
                      .data = keys.data(),
                      .group = TensorGroup::kTable},
                     {.name = "users/values",
                      .dtype = DType::kI8,
                      .shape = {1, 3},
                      .data = values.data(),
                      .group = TensorGroup::kTable}};
  request.tables = {{.name = "users", .dim = 3, .dtype = DType::kF32, .rows = 1}};
  ASSERT_TRUE(manager->Save(std::move(request)).ok());
  manager.reset();
  const auto refused = CompactCheckpoint(directory_);
  EXPECT_TRUE(refused.status().Is(Code::kFailedPrecondition)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("save in full"));
}

TEST_P(IncrementToolsTest, IncrementsOfPrivatePartsAreMergedWithWhatTheyBuildOn) {
  MergeRequest request;
  request.target = temp_.path() + "/all";
  for (int rank = 0; rank < 2; ++rank) {
    ManagerOptions options;
    options.directory = temp_.path() + "/rank_" + std::to_string(rank);
    options.rank = rank;
    options.world_size = 2;
    options.private_parts = true;
    auto manager = CheckpointManager::Open(options).value();
    for (const std::int64_t step : {10, 20, 30}) {
      SaveRequest save;
      save.step = step;
      save.kind = step == 10 ? SaveKind::kFull : SaveKind::kConsecutive;
      save.blocking = true;
      std::deque<std::string> memory;
      const auto half = [&](std::int64_t at) {
        TestTable table = TableAt(at);
        std::erase_if(table.rows, [&](const auto& row) { return row.first % 2 != rank; });
        std::erase_if(table.pending, [&](const auto& row) { return row.first % 2 != rank; });
        return table;
      };
      AddTestTable("users", step == 10 ? half(step).All() : half(step).Since(half(step - 10)),
                   &save, &memory);
      ASSERT_TRUE(manager->Save(std::move(save)).ok());
    }
    request.parts.push_back(options.directory);
  }
  const auto merged = MergeCheckpoints(request);
  ASSERT_TRUE(merged.ok()) << merged.status().ToString();
  EXPECT_EQ(merged->info.kind, "full");
  EXPECT_EQ(merged->info.step, 30);
  TestTable expected = TableAt(30);
  std::erase_if(expected.rows, [](const auto& row) { return row.first % 2 < 0; });
  std::erase_if(expected.pending, [](const auto& row) { return row.first % 2 < 0; });
  EXPECT_EQ(merged->info.tables[0].rows, expected.rows.size());
  TestTableSink sink;
  RestoreRequest restore;
  restore.path = merged->info.path;
  restore.tables = &sink;
  ASSERT_TRUE(LoadCheckpoint(restore).ok());
  EXPECT_EQ(sink.broken, "");
  EXPECT_EQ(sink.tables["users"], expected);
}

INSTANTIATE_TEST_SUITE_P(Disk, IncrementToolsTest, testing::Values(false),
                         [](const auto&) { return "Local"; });

}  // namespace
}  // namespace cairn
