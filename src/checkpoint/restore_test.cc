#include "checkpoint/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "checkpoint/read_chunks.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/test_rectangles.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr char kFile1[] = "__model__/rank_0-00001.safetensors";
constexpr char kFile2[] = "__model__/rank_0-00002.safetensors";

std::string At(const std::string& path) { return "checkpoint_000040/" + path; }

/// Memory for one tensor, filled with '?', at a chosen distance from a page boundary.
class Target {
 public:
  Target(std::string name, DType dtype, Dims shape, std::size_t misalign = 16)
      : bytes_(TensorBytes(dtype, shape).value()),
        memory_(static_cast<char*>(std::aligned_alloc(4096, Rounded(bytes_ + misalign)))),
        data_(memory_.get() + misalign),
        tensor_{.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .data = data_} {
    std::memset(data_, '?', bytes_);
  }

  Target& Group(TensorGroup group) {
    tensor_.group = group;
    return *this;
  }
  Target& Shard(Dims global, Dims offset) {
    tensor_.shard = ShardSpec{std::move(global), std::move(offset)};
    return *this;
  }
  const MutableTensor& tensor() const { return tensor_; }
  std::string bytes() const { return {data_, bytes_}; }
  bool untouched() const { return bytes() == std::string(bytes_, '?'); }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  static std::size_t Rounded(std::size_t bytes) { return (bytes / 4096 + 1) * 4096; }

  std::size_t bytes_;
  std::unique_ptr<char, Free> memory_;
  char* data_;
  MutableTensor tensor_;
};

Result<Restored> Restore(Store* store, const TestCheckpoint& checkpoint, RestoreRequest request,
                         const std::string& participant = "rank_0") {
  auto open = checkpoint.Open(store).value();
  return RestoreCheckpoint(store, open.get(), request, participant, {});
}

TEST(Restore, ReadsTheChunkThatHoldsAHeaderOnce) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  const std::string big = RandomBytes(2 * kChunkBytes, 1);
  checkpoint.Tensor(kFile1, "big", DType::kU8, {big.size()}, big);
  checkpoint.Write(store.get());
  Target a("big", DType::kU8, {big.size()});
  std::map<std::pair<std::string, std::uint64_t>, int> reads;
  store->SetHook([&](const StoreOp& op) {
    if (op.kind == StoreOp::Kind::kRead) ++reads[{op.name, op.offset / kChunkBytes}];
  });
  const auto restored = Restore(store.get(), checkpoint, {.into = {a.tensor()}});
  store->SetHook(nullptr);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(a.bytes(), big);
  EXPECT_THAT(reads,
              UnorderedElementsAre(Pair(Pair(At(kFile1), 0), 1), Pair(Pair(At(kFile1), 1), 1),
                                   Pair(Pair(At(kFile1), 2), 1)));
}

TEST(Restore, FillsEveryTensorAndGivesBackTheRest) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  const std::string big = RandomBytes(3 * kChunkBytes + 12345, 1);
  checkpoint.Tensor(kFile1, "big", DType::kU8, {big.size()}, big)
      .Tensor(kFile1, "scalar", DType::kF32, {}, "abcd")
      .Tensor(kFile1, "empty", DType::kF32, {0, 5}, "")
      .Tensor(kFile2, "w", DType::kF32, {2, 3}, RandomBytes(24, 2))
      .Tensor("rank_0/state.safetensors", "w", DType::kU8, {3}, "rng")
      .File("rank_0/state.json", "{\"a\":1}")
      .File("rank_0/epoch_id", "7")
      .File("rank_1/epoch_id", "8")
      .File("files/mine", "mine");
  checkpoint.manifest().counters = Value::Object{{"epoch", 7}};
  checkpoint.manifest().metrics = Value::Object{{"loss", 0.5}};
  checkpoint.manifest().metadata = Value::Object{{"note", "x"}};
  checkpoint.Write(store.get());
  for (const std::size_t misalign : {0, 16, 64}) {
    Target a("big", DType::kU8, {big.size()}, misalign);
    Target b("scalar", DType::kF32, {}, misalign);
    Target c("empty", DType::kF32, {0, 5}, misalign);
    Target d("w", DType::kF32, {2, 3}, misalign);
    Target e("w", DType::kU8, {3}, misalign);
    e.Group(TensorGroup::kState);
    const auto restored =
        Restore(store.get(), checkpoint,
                {.into = {a.tensor(), b.tensor(), c.tensor(), d.tensor(), e.tensor()},
                 .atomic = misalign == 0,
                 .prepare = [](const Restored&, RestoreRequest*) { return Status::Ok(); },
                 .list_ahead = misalign == 16});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ(a.bytes(), big);
    EXPECT_EQ(b.bytes(), "abcd");
    EXPECT_EQ(d.bytes(), RandomBytes(24, 2));
    EXPECT_EQ(e.bytes(), "rng");
    EXPECT_THAT(restored->restored, ElementsAre("big", "scalar", "empty", "w", "w"));
    EXPECT_EQ(restored->bytes, big.size() + 4 + 24 + 3);
    EXPECT_THAT(restored->skipped, IsEmpty());
    EXPECT_THAT(restored->state_files,
                ElementsAre(Pair("epoch_id", "7"), Pair("state.json", "{\"a\":1}")));
    EXPECT_EQ(restored->step, 40);
    EXPECT_EQ(restored->info.step, 40);
    EXPECT_EQ(restored->info.path, store->Describe() + "/checkpoint_000040");
    EXPECT_EQ(restored->counters.Find("epoch")->AsInt(), 7);
    EXPECT_EQ(restored->metrics.Find("loss")->AsDouble(), 0.5);
    EXPECT_EQ(*restored->metadata.Find("note")->if_string(), "x");
  }
}

TEST(Restore, WithoutTargetsOnlyCountersAndFilesComeBack) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kU8, {1}, "w").File("rank_0/step_id", "40");
  checkpoint.Write(store.get());
  const auto restored = Restore(store.get(), checkpoint, {});
  ASSERT_TRUE(restored.ok());
  EXPECT_THAT(restored->restored, IsEmpty());
  EXPECT_THAT(restored->skipped, IsEmpty());
  EXPECT_EQ(restored->state_files.at("step_id"), "40");
}

TEST(Restore, AllocatesWhatHasNoTarget) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  const std::string big = RandomBytes(9 << 20, 3);
  checkpoint.Tensor(kFile1, "a", DType::kF32, {2}, "12345678")
      .Tensor(kFile1, "big", DType::kU8, {9 << 20}, big)
      .Tensor(kFile1, "empty", DType::kF64, {0}, "")
      .Tensor(kFile2, "x", DType::kU8, {2, 1}, "ac", ShardSpec{{2, 2}, {0, 0}})
      .Tensor(kFile2, "x", DType::kU8, {2, 1}, "bd", ShardSpec{{2, 2}, {0, 1}})
      .Tensor("rank_0/state.safetensors", "a", DType::kU8, {3}, "rng");
  checkpoint.Write(store.get());
  Target a("a", DType::kF32, {2});
  const auto restored =
      Restore(store.get(), checkpoint,
              {.into = {a.tensor()}, .allocate = true, .rename = {{"x", "new/x"}}});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(a.bytes(), "12345678");
  ASSERT_EQ(restored->tensors.size(), 4u);
  std::map<std::string, std::string> found;
  for (const OwnedTensor& tensor : restored->tensors) {
    ASSERT_NE(tensor.data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data.get()) % 64, 0u);
    found[(tensor.group == TensorGroup::kState ? "state:" : "") + tensor.name] =
        BytesOf(tensor.data.get(), tensor.bytes);
  }
  EXPECT_THAT(found, UnorderedElementsAre(Pair("big", big), Pair("empty", ""),
                                          Pair("new/x", "abcd"), Pair("state:a", "rng")));
}

TEST(Restore, MismatchesAreListedAndNothingIsTouched) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "same", DType::kU8, {2}, "ab")
      .Tensor(kFile1, "shape", DType::kF32, {2, 3}, std::string(24, 'x'))
      .Tensor(kFile1, "type", DType::kF32, {1}, "abcd")
      .Tensor(kFile1, "extra", DType::kU8, {1}, "e")
      .Tensor("rank_0/state.safetensors", "rng", DType::kU8, {3}, "rng");
  checkpoint.Write(store.get());
  Target same("same", DType::kU8, {2});
  Target shape("shape", DType::kF32, {3, 2});
  Target type("type", DType::kI32, {1});
  Target missing("missing", DType::kU8, {1});
  const std::vector<MutableTensor> into = {same.tensor(), shape.tensor(), type.tensor(),
                                           missing.tensor()};
  MismatchReport report;
  const auto refused = Restore(store.get(), checkpoint, {.into = into, .mismatch = &report});
  EXPECT_TRUE(refused.status().Is(Code::kFailedPrecondition));
  EXPECT_THAT(refused.status().ToString(), HasSubstr("checkpoint_000040"));
  EXPECT_THAT(report.missing, ElementsAre("missing"));
  EXPECT_THAT(report.unexpected, ElementsAre("extra", "rng"));
  EXPECT_THAT(report.mismatched, ElementsAre("shape: stored F32 [2,3], wanted F32 [3,2]",
                                             "type: stored F32 [1], wanted I32 [1]"));
  for (const Target* target : {&same, &shape, &type, &missing}) EXPECT_TRUE(target->untouched());

  const auto restored = Restore(store.get(), checkpoint, {.into = into, .strict = false});
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(same.bytes(), "ab");
  EXPECT_THAT(restored->restored, ElementsAre("same"));
  EXPECT_THAT(restored->skipped,
              UnorderedElementsAre(Pair("missing", "not in the checkpoint"),
                                   Pair("extra", "not asked for"), Pair("rng", "not asked for"),
                                   Pair("shape", "stored F32 [2,3], wanted F32 [3,2]"),
                                   Pair("type", "stored F32 [1], wanted I32 [1]")));
  for (const Target* target : {&shape, &type, &missing}) EXPECT_TRUE(target->untouched());
}

TEST(Restore, RefusalNamesTenAndCountsTheRest) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  for (int i = 10; i < 40; ++i) {
    checkpoint.Tensor(kFile1, "t" + std::to_string(i), DType::kU8, {1}, "x");
  }
  checkpoint.Write(store.get());
  Target target(std::string(10'000, 'n'), DType::kU8, {1});
  const auto refused = Restore(store.get(), checkpoint, {.into = {target.tensor()}});
  EXPECT_THAT(refused.status().ToString(), HasSubstr("t19 and 20 more"));
  EXPECT_LT(refused.status().ToString().size(), 1000u);
}

TEST(Restore, RenamedTensorsFindTheirTargets) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "old", DType::kU8, {1}, "o").Tensor(kFile1, "w", DType::kU8, {1}, "w");
  checkpoint.Write(store.get());
  Target renamed("new", DType::kU8, {1});
  Target w("w", DType::kU8, {1});
  const RestoreRequest request{.into = {renamed.tensor(), w.tensor()}, .rename = {{"old", "new"}}};
  ASSERT_TRUE(Restore(store.get(), checkpoint, request).ok());
  EXPECT_EQ(renamed.bytes(), "o");
  EXPECT_EQ(w.bytes(), "w");

  RestoreRequest clash{.into = {w.tensor()}, .rename = {{"old", "w"}}};
  EXPECT_TRUE(Restore(store.get(), checkpoint, clash).status().Is(Code::kInvalidArgument));
  // The other one left out, there is no clash any more. Swapping is none either.
  Target only("w", DType::kU8, {1});
  clash = {.into = {only.tensor()}, .rename = {{"old", "w"}, {"w", "gone"}}, .skip = {"gone"}};
  ASSERT_TRUE(Restore(store.get(), checkpoint, clash).ok());
  EXPECT_EQ(only.bytes(), "o");
  Target old_target("old", DType::kU8, {1});
  ASSERT_TRUE(
      Restore(store.get(), checkpoint,
              {.into = {w.tensor(), old_target.tensor()}, .rename = {{"old", "w"}, {"w", "old"}}})
          .ok());
  EXPECT_EQ(w.bytes(), "o");
  EXPECT_EQ(old_target.bytes(), "w");
}

TEST(Restore, SkippedNamesAreLeftAloneAndReported) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "a", DType::kU8, {1}, "a")
      .Tensor(kFile1, "b", DType::kU8, {1}, "b")
      .Tensor(kFile1, "c", DType::kU8, {1}, "c");
  checkpoint.Write(store.get());
  Target a("a", DType::kU8, {1});
  Target b("b", DType::kF32, {9});       // would not fit
  Target d("d", DType::kU8, {1});        // is not stored
  Target renamed("z", DType::kU8, {1});  // its source is skipped under the stored name
  const auto restored = Restore(store.get(), checkpoint,
                                {.into = {a.tensor(), b.tensor(), d.tensor(), renamed.tensor()},
                                 .rename = {{"c", "z"}},
                                 .skip = {"b", "c", "d"}});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(a.bytes(), "a");
  EXPECT_TRUE(b.untouched());
  EXPECT_TRUE(d.untouched());
  EXPECT_TRUE(renamed.untouched());
  std::vector<std::string> skipped;
  for (const auto& [name, reason] : restored->skipped) skipped.push_back(name);
  EXPECT_THAT(skipped, UnorderedElementsAre("b", "c", "d", "z"));

  // Another stored tensor may fill the target of one that is left alone.
  Target other("b", DType::kU8, {1});
  ASSERT_TRUE(Restore(store.get(), checkpoint,
                      {.into = {a.tensor(), other.tensor()}, .rename = {{"c", "b"}}, .skip = {"c"}})
                  .ok());
  EXPECT_EQ(other.bytes(), "b");
}

TEST(Restore, MisspeltNamesAreRefusedOrReported) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "a", DType::kU8, {1}, "a");
  checkpoint.Write(store.get());
  Target a("a", DType::kU8, {1});
  for (RestoreRequest request : {RestoreRequest{.into = {a.tensor()}, .skip = {"A"}},
                                 RestoreRequest{.into = {a.tensor()}, .rename = {{"A", "a"}}},
                                 RestoreRequest{.allocate = true, .skip = {"A"}}}) {
    const Status refused = Restore(store.get(), checkpoint, request).status();
    EXPECT_TRUE(refused.Is(Code::kInvalidArgument)) << refused.ToString();
    EXPECT_THAT(refused.ToString(), HasSubstr(": A: there is nothing of that name"));
    EXPECT_TRUE(a.untouched());
    request.strict = false;
    const auto lenient = Restore(store.get(), checkpoint, request);
    ASSERT_TRUE(lenient.ok()) << lenient.status().ToString();
    EXPECT_EQ(
        lenient->skipped,
        (std::vector<std::pair<std::string, std::string>>{{"A", "there is nothing of that name"}}));
    std::memset(a.tensor().data, '?', 1);
  }
}

TEST(Restore, BadTargetsAreRefusedBeforeAnythingIsRead) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kU8, {4}, "abcd").Write(store.get());
  const std::uint64_t huge = std::uint64_t{1} << 40;
  char byte = 0;
  const auto restore = [&](MutableTensor target) {
    return Restore(store.get(), checkpoint, {.into = {std::move(target)}, .strict = false})
        .status();
  };
  EXPECT_TRUE(restore({.name = "w", .dtype = DType::kU8, .shape = {4}}).Is(Code::kInvalidArgument));
  EXPECT_TRUE(restore({.name = "w", .dtype = DType::kU8, .shape = {huge, huge}, .data = &byte})
                  .Is(Code::kInvalidArgument));
  for (const ShardSpec& shard :
       {ShardSpec{{4}, {3}}, ShardSpec{{4, 1}, {0, 0}}, ShardSpec{{4}, {}},
        ShardSpec{{4}, {~std::uint64_t{0}}}, ShardSpec{{huge, huge}, {0, 0}}}) {
    EXPECT_TRUE(
        restore({.name = "w", .dtype = DType::kU8, .shape = {2}, .data = &byte, .shard = shard})
            .Is(Code::kInvalidArgument));
  }
}

TEST(Restore, AnotherNumberOfRanksUsesTheFirstOnesCountersAndSkipsStates) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.manifest().participants = {"rank_0", "rank_1"};
  checkpoint.Tensor(kFile1, "w", DType::kU8, {1}, "w")
      .Tensor("rank_0/state.safetensors", "rng", DType::kU8, {3}, "r0!")
      .Tensor("rank_1/state.safetensors", "rng", DType::kU8, {3}, "r1!")
      .File("rank_0/epoch_id", "7")
      .File("rank_1/epoch_id", "8");
  checkpoint.Write(store.get());
  Target w("w", DType::kU8, {1});
  Target rng("rng", DType::kU8, {3});
  rng.Group(TensorGroup::kState);
  const RestoreRequest request{.into = {w.tensor(), rng.tensor()}};
  auto restored = Restore(store.get(), checkpoint, request, "rank_5");
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(w.bytes(), "w");
  EXPECT_TRUE(rng.untouched());
  EXPECT_EQ(restored->state_files.at("epoch_id"), "7");
  ASSERT_EQ(restored->skipped.size(), 1u);
  EXPECT_EQ(restored->skipped[0].first, "rng");
  EXPECT_THAT(restored->skipped[0].second, HasSubstr("rank_5"));

  restored = Restore(store.get(), checkpoint, request, "rank_1");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(rng.bytes(), "r1!");
  EXPECT_EQ(restored->state_files.at("epoch_id"), "8");
}

TEST(Restore, TablesAreReadOnlyWhenAskedFor) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "w", DType::kU8, {1}, "w")
      .Tensor("__lookup_table__/rank_0.safetensors", "t/keys", DType::kI64, {1}, "12345678");
  checkpoint.Write(store.get());
  Target w("w", DType::kU8, {1});
  ASSERT_TRUE(Restore(store.get(), checkpoint, {.into = {w.tensor()}}).ok());
  Target keys("t/keys", DType::kI64, {1});
  keys.Group(TensorGroup::kTable);
  ASSERT_TRUE(Restore(store.get(), checkpoint, {.into = {w.tensor(), keys.tensor()}}).ok());
  EXPECT_EQ(keys.bytes(), "12345678");
}

TEST(Restore, FewOfVeryManyTensorsAreFoundThroughTheIndex) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  for (int i = 0; i < 20'000; ++i) {
    checkpoint.Tensor(kFile1, "layer/" + std::to_string(i) + "/weight", DType::kU8, {2},
                      std::string(2, static_cast<char>(i)));
  }
  checkpoint.Tensor(kFile2, "split", DType::kU8, {1}, "a", ShardSpec{{2}, {0}})
      .Tensor(kFile2, "split", DType::kU8, {1}, "b", ShardSpec{{2}, {1}});
  checkpoint.Write(store.get());
  Target one("layer/12345/weight", DType::kU8, {2});
  Target split("split", DType::kU8, {2});
  Target missing("none", DType::kU8, {2});
  Target wrong("layer/1/weight", DType::kI8, {2});
  const auto restored = Restore(
      store.get(), checkpoint,
      {.into = {one.tensor(), split.tensor(), missing.tensor(), wrong.tensor()}, .strict = false});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(one.bytes(), std::string(2, static_cast<char>(12345)));
  EXPECT_EQ(split.bytes(), "ab");
  EXPECT_THAT(restored->skipped,
              UnorderedElementsAre(Pair("*", "19998 more stored tensors not asked for"),
                                   Pair("none", "not in the checkpoint"),
                                   Pair("layer/1/weight", "stored U8 [2], wanted I8 [2]")));
}

TEST(Restore, ProgressReachesTheTotal) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  const std::uint64_t bytes = 3 * kChunkBytes;
  checkpoint.Tensor(kFile1, "w", DType::kU8, {bytes}, RandomBytes(bytes, 1)).Write(store.get());
  for (const bool atomic : {false, true}) {
    Target w("w", DType::kU8, {bytes});
    auto open = checkpoint.Open(store.get()).value();
    std::uint64_t last = 0;
    std::uint64_t total = 0;
    ASSERT_TRUE(RestoreCheckpoint(store.get(), open.get(), {.into = {w.tensor()}, .atomic = atomic},
                                  "rank_0",
                                  [&](std::uint64_t done, std::uint64_t all) {
                                    EXPECT_GT(done, last);
                                    last = done;
                                    total = all;
                                  })
                    .ok());
    EXPECT_EQ(last, total);
    EXPECT_GE(total, (atomic ? 2 : 1) * bytes);
  }
}

// ---- Damage ----

class DamageTest : public testing::TestWithParam<bool> {
 protected:
  DamageTest() : store_(NewTestStore(/*object_store=*/GetParam())) {
    big_ = RandomBytes(4 * kChunkBytes, 1);
    checkpoint_.Tensor(kFile1, "big", DType::kU8, {big_.size()}, big_)
        .Tensor(kFile2, "small", DType::kU8, {4}, "abcd")
        .Tensor("rank_0/state.safetensors", "rng", DType::kU8, {3}, "rng")
        .File("rank_0/state.json", "{}");
    checkpoint_.Write(store_.get());
  }

  Result<Restored> Try(bool atomic) {
    big_target_ = std::make_unique<Target>("big", DType::kU8, Dims{big_.size()}, 0);
    small_target_ = std::make_unique<Target>("small", DType::kU8, Dims{4});
    rng_target_ = std::make_unique<Target>("rng", DType::kU8, Dims{3});
    rng_target_->Group(TensorGroup::kState);
    auto open = checkpoint_.Open(store_.get());
    if (!open.ok()) return open.status();
    return RestoreCheckpoint(
        store_.get(), open->get(),
        {.into = {big_target_->tensor(), small_target_->tensor(), rng_target_->tensor()},
         .atomic = atomic},
        "rank_0", {});
  }

  bool Untouched() const {
    return big_target_->untouched() && small_target_->untouched() && rng_target_->untouched();
  }

  std::unique_ptr<MemoryStore> store_;
  TestCheckpoint checkpoint_;
  std::string big_;
  std::unique_ptr<Target> big_target_;
  std::unique_ptr<Target> small_target_;
  std::unique_ptr<Target> rng_target_;
};

TEST_P(DamageTest, FlippedBitsAreFoundInEveryKindOfChunk) {
  struct Place {
    std::string path;
    std::uint64_t at;
  };
  const std::uint64_t data = kSafetensorsAlign;
  for (const Place& place : std::vector<Place>{{kFile1, 3},                         // header length
                                               {kFile1, 100},                       // JSON
                                               {kFile1, data - 1},                  // padding
                                               {kFile1, data},                      // first data
                                               {kFile1, 2 * kChunkBytes + 17},      // middle
                                               {kFile1, data + big_.size() - 1},    // last byte
                                               {kFile2, data + 2},                  // small file
                                               {"rank_0/state.safetensors", data},  // state
                                               {"rank_0/state.json", 1}}) {
    FlipBit(store_.get(), At(place.path), place.at, 5);
    for (const bool atomic : {true, false}) {
      const auto restored = Try(atomic);
      EXPECT_TRUE(restored.status().Is(Code::kCorruption)) << place.path << " " << place.at;
      EXPECT_THAT(restored.status().ToString(), HasSubstr(place.path));
      if (atomic) {
        EXPECT_TRUE(Untouched()) << place.path << " " << place.at;
      }
    }
    FlipBit(store_.get(), At(place.path), place.at, 5);
  }
  EXPECT_TRUE(Try(false).ok());
  EXPECT_EQ(big_target_->bytes(), big_);
}

TEST_P(DamageTest, AListThatWasReadAheadMattersToWhoAsksForTensors) {
  FlipBit(store_.get(), At(kFile1), 100, 5);
  for (const bool asks : {true, false}) {
    Target big("big", DType::kU8, Dims{big_.size()});
    RestoreRequest request;
    request.list_ahead = true;
    request.prepare = [&](const Restored&, RestoreRequest* asked) {
      if (asks) asked->into = {big.tensor()};
      asked->strict = false;
      return Status::Ok();
    };
    const auto restored = Restore(store_.get(), checkpoint_, request);
    EXPECT_EQ(restored.status().Is(Code::kCorruption), asks) << restored.status().ToString();
    EXPECT_TRUE(big.untouched());
  }
}

TEST_P(DamageTest, AStateFileThatIsReadBesideTheListIsCompared) {
  RestoreRequest request;
  request.list_ahead = true;
  request.prepare = [](const Restored&, RestoreRequest*) { return Status::Ok(); };
  EXPECT_TRUE(Restore(store_.get(), checkpoint_, request).ok());
  FlipBit(store_.get(), At("rank_0/state.json"), 1, 5);
  const auto restored = Restore(store_.get(), checkpoint_, request);
  EXPECT_TRUE(restored.status().Is(Code::kCorruption)) << restored.status().ToString();
  EXPECT_THAT(restored.status().ToString(), HasSubstr("rank_0/state.json"));
}

TEST_P(DamageTest, ErrorSaysWhatWasOverwritten) {
  FlipBit(store_.get(), At("rank_0/state.safetensors"), kSafetensorsAlign + 1);
  // The header stands in the damaged chunk, so that it is found before memory is touched.
  const auto early = Try(false);
  EXPECT_TRUE(Untouched());
  EXPECT_THAT(early.status().ToString(), Not(HasSubstr("overwritten")));
  FlipBit(store_.get(), At("rank_0/state.safetensors"), kSafetensorsAlign + 1);

  FlipBit(store_.get(), At(kFile1), 3 * kChunkBytes + 1);
  const auto late = Try(false);
  EXPECT_TRUE(late.status().Is(Code::kCorruption));
  EXPECT_FALSE(Untouched());
  EXPECT_THAT(late.status().ToString(), HasSubstr("already overwritten, whole or in part: big"));
  const auto atomic = Try(true);
  EXPECT_THAT(atomic.status().ToString(), HasSubstr("nothing was overwritten"));
}

TEST_P(DamageTest, ShortAndMissingFilesAreFoundBeforeMemoryIsTouched) {
  const std::string bytes = store_->Get(At(kFile1), 1 << 30).value();
  ASSERT_TRUE(store_->Put(At(kFile1), bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_TRUE(Try(false).status().Is(Code::kCorruption));
  EXPECT_TRUE(Untouched());
  ASSERT_TRUE(store_->Delete(At(kFile1)).ok());
  EXPECT_TRUE(Try(false).status().Is(Code::kNotFound));
  EXPECT_TRUE(Untouched());
}

TEST_P(DamageTest, FileThatShrinksWhileItIsReadIsAnError) {
  auto open = checkpoint_.Open(store_.get()).value();
  const std::string bytes = store_->Get(At(kFile1), 1 << 30).value();
  ASSERT_TRUE(store_->Put(At(kFile1), bytes.substr(0, kChunkBytes + 5)).ok());
  std::vector<VerifyProblem> problems;
  const auto read = VerifyFiles(store_.get(), *open, {}, &problems);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  // A plain store's reader still has the old bytes; an object store's has lost them.
  EXPECT_EQ(problems.size(), GetParam() ? 1u : 0u);
}

TEST_P(DamageTest, VerifyNamesEachDamagedFileOnce) {
  std::vector<VerifyProblem> problems;
  {
    auto open = checkpoint_.Open(store_.get()).value();
    std::uint64_t last = 0;
    const auto bytes = VerifyFiles(
        store_.get(), *open, [&](std::uint64_t done, std::uint64_t) { last = done; }, &problems);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(*bytes, checkpoint_.manifest().Bytes());
    EXPECT_EQ(last, *bytes);
    EXPECT_THAT(problems, IsEmpty());
  }
  FlipBit(store_.get(), At(kFile1), kChunkBytes + 7);
  FlipBit(store_.get(), At(kFile1), 3 * kChunkBytes + 7);
  FlipBit(store_.get(), At("rank_0/state.json"), 0);
  auto open = checkpoint_.Open(store_.get()).value();
  ASSERT_TRUE(VerifyFiles(store_.get(), *open, {}, &problems).ok());
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems[0].checkpoint, "checkpoint_000040");
  EXPECT_THAT(problems[0].what, HasSubstr(std::string(kFile1) + ": 2 of 5 chunks differ"));
  EXPECT_THAT(problems[1].what, HasSubstr("state.json"));
}

TEST_P(DamageTest, VerifyComparesWholeSums) {
  for (ManifestFile& file : checkpoint_.manifest().files) {
    if (file.path == kFile2) file.hash.whole.high ^= 1;
  }
  auto open = checkpoint_.Open(store_.get()).value();
  std::vector<VerifyProblem> problems;
  ASSERT_TRUE(VerifyFiles(store_.get(), *open, {}, &problems).ok());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0].what, HasSubstr(kFile2));
}

INSTANTIATE_TEST_SUITE_P(Stores, DamageTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Object" : "Plain"; });

// ---- ReadRuns ----

TEST(ReadRuns, AnyRunsGiveTheFilesBytes) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 12; ++round) {
    auto store = NewTestStore(round % 2 == 0, static_cast<std::uint64_t>(round));
    TestCheckpoint checkpoint;
    std::vector<std::string> files;
    for (int i = 0; i < 3; ++i) {
      files.push_back(RandomBytes(1 + random() % (3 * kChunkBytes), random()));
      checkpoint.File("files/" + std::to_string(i), files.back());
    }
    checkpoint.Write(store.get());
    auto open = checkpoint.Open(store.get()).value();
    std::vector<ByteRun> runs;
    std::vector<std::unique_ptr<std::byte[]>> memory;
    for (int i = 0; i < 400; ++i) {
      const std::size_t file = random() % files.size();
      const std::uint64_t size = files[file].size();
      ByteRun run{.file = file};
      run.bytes = random() % (i % 20 == 0 ? size + 1 : std::min<std::uint64_t>(size + 1, 5000));
      run.file_offset = random() % (size - run.bytes + 1);
      run.to_stride = run.bytes + random() % 3;
      run.file_stride = run.bytes + random() % (i % 7 == 0 ? kChunkBytes * 2 : 100);
      if (run.file_stride > 0) {
        const std::uint64_t most = (size - run.bytes - run.file_offset) / run.file_stride;
        run.count = 1 + random() % (std::min<std::uint64_t>(most, 50) + 1);
        run.count = std::min(run.count, most + 1);
      }
      memory.push_back(std::make_unique<std::byte[]>(run.count * run.to_stride + run.bytes + 1));
      run.to = memory.back().get();
      runs.push_back(run);
    }
    ASSERT_TRUE(ReadRuns(store.get(), *open, runs, {.verify_only = true}).ok());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].bytes > 0) {
        ASSERT_EQ(runs[i].to[0], std::byte{0});
      }
    }
    ASSERT_TRUE(ReadRuns(store.get(), *open, runs, {}).ok());
    for (const ByteRun& run : runs) {
      for (std::uint64_t row = 0; row < run.count; ++row) {
        ASSERT_EQ(std::memcmp(run.to + row * run.to_stride,
                              files[run.file].data() + run.file_offset + row * run.file_stride,
                              run.bytes),
                  0)
            << "round " << round;
      }
    }
  }
}

TEST(ReadRuns, RunsOutsideOfAFileAreRefused) {
  auto store = NewTestStore();
  TestCheckpoint checkpoint;
  checkpoint.File("files/a", std::string(100, 'a')).Write(store.get());
  auto open = checkpoint.Open(store.get()).value();
  std::byte memory[200];
  const std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
  for (const ByteRun& run : std::vector<ByteRun>{
           {.file = 1, .file_offset = 0, .bytes = 1, .to = memory},
           {.file = 0, .file_offset = 100, .bytes = 1, .to = memory},
           {.file = 0, .file_offset = max, .bytes = 2, .to = memory},
           {.file = 0, .file_offset = 1, .bytes = max, .to = memory},
           {.file = 0, .bytes = 1, .to = memory, .count = 0},
           {.file = 0, .bytes = 10, .to = memory, .count = 11, .file_stride = 10, .to_stride = 10},
           {.file = 0, .bytes = 10, .to = memory, .count = max, .file_stride = max, .to_stride = 1},
           {.file = 0, .bytes = 10, .to = memory, .count = 2, .file_stride = 9, .to_stride = 10}}) {
    EXPECT_FALSE(ReadRuns(store.get(), *open, std::span(&run, 1), {}).ok());
  }
}

// ---- N writers to M readers ----

TEST(Reshard, AnyNumberOfWritersToAnyNumberOfReaders) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 25; ++round) {
    auto store = NewTestStore(round % 2 == 0, static_cast<std::uint64_t>(round));
    TestCheckpoint checkpoint;
    struct Array {
      std::string name;
      DType dtype;
      std::size_t width;
      Dims shape;
      std::string bytes;
    };
    std::vector<Array> arrays;
    for (int i = 0; i < 4; ++i) {
      Array array{.name = "a" + std::to_string(i)};
      array.dtype = i % 2 == 0 ? DType::kF32 : DType::kBF16;
      array.width = i % 2 == 0 ? 4 : 2;
      array.shape = Dims(1 + random() % 3);
      for (std::uint64_t& extent : array.shape) extent = 1 + random() % 60;
      if (i == 0 && round % 5 == 0) array.shape = {700, 1900};  // more than a chunk
      array.bytes = RandomBytes(Volume(array.shape) * array.width, random());
      for (const Rectangle& part : RandomPartition(array.shape, 1 + random() % 9, &random)) {
        const std::string file =
            "__model__/rank_" + std::to_string(random() % 4) + "-00001.safetensors";
        checkpoint.Tensor(file, array.name, array.dtype, part.shape,
                          CutOut(array.bytes, array.shape, part, array.width),
                          ShardSpec{array.shape, part.offset});
      }
      arrays.push_back(std::move(array));
    }
    checkpoint.Write(store.get());
    std::vector<std::unique_ptr<Target>> targets;
    std::vector<std::string> expected;
    std::vector<MutableTensor> into;
    for (const Array& array : arrays) {
      for (const Rectangle& part : RandomPartition(array.shape, 1 + random() % 9, &random)) {
        targets.push_back(
            std::make_unique<Target>(array.name, array.dtype, part.shape, 8 * (random() % 9)));
        targets.back()->Shard(array.shape, part.offset);
        expected.push_back(CutOut(array.bytes, array.shape, part, array.width));
        into.push_back(targets.back()->tensor());
      }
      // And whole.
      targets.push_back(std::make_unique<Target>(array.name, array.dtype, array.shape));
      expected.push_back(array.bytes);
      into.push_back(targets.back()->tensor());
    }
    const auto restored =
        Restore(store.get(), checkpoint, {.into = into, .atomic = round % 3 == 0});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      ASSERT_EQ(targets[i]->bytes(), expected[i]) << "round " << round << " target " << i;
    }
  }
}

TEST(Restore, ComplexTargetsAreFilledFromPairsOfFloats) {
  auto store = NewTestStore();
  const std::string bytes = RandomBytes(32, 9);
  TestCheckpoint checkpoint;
  checkpoint.Tensor(kFile1, "pairs", DType::kF32, {4, 2}, bytes)
      .Tensor(kFile2, "complex", DType::kC64, {4}, bytes);
  checkpoint.Write(store.get());
  Target pairs("pairs", DType::kC64, {4});
  Target complex("complex", DType::kC64, {4});
  const auto restored =
      Restore(store.get(), checkpoint, {.into = {pairs.tensor(), complex.tensor()}});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(pairs.bytes(), bytes);
  EXPECT_EQ(complex.bytes(), bytes);
  Target piece("pairs", DType::kC64, {2});
  MutableTensor part = piece.tensor();
  part.shard = ShardSpec{.global_shape = {4}, .offset = {1}};
  ASSERT_TRUE(Restore(store.get(), checkpoint, {.into = {part}, .strict = false}).ok());
  EXPECT_EQ(piece.bytes(), bytes.substr(8, 16));
  Target floats("complex", DType::kF32, {4, 2});
  const auto refused =
      Restore(store.get(), checkpoint, {.into = {floats.tensor()}, .skip = {"pairs"}});
  EXPECT_THAT(refused.status().ToString(), HasSubstr("stored C64 [4], wanted F32 [4,2]"));
}

}  // namespace
}  // namespace cairn
