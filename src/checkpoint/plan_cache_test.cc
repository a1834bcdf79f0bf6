#include "checkpoint/plan_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn {
namespace {

const std::vector<float> kData(1024, 1.0F);

SaveRequest RequestOf(int tensors) {
  SaveRequest request;
  for (int i = 0; i < tensors; ++i) {
    Tensor tensor;
    tensor.name = "t" + std::to_string(i);
    tensor.shape = {static_cast<std::uint64_t>(i + 1), 3};
    tensor.data = kData.data();
    request.tensors.push_back(std::move(tensor));
  }
  request.state_files["state.json"] = "{}";
  return request;
}

void ExpectSame(const SavePlan& a, const SavePlan& b) {
  EXPECT_EQ(a.arena_bytes, b.arena_bytes);
  EXPECT_EQ(a.total_bytes, b.total_bytes);
  ASSERT_EQ(a.files.size(), b.files.size());
  for (std::size_t i = 0; i < a.files.size(); ++i) {
    EXPECT_EQ(a.files[i].path, b.files[i].path);
    EXPECT_EQ(a.files[i].head, b.files[i].head);
    EXPECT_EQ(a.files[i].bytes, b.files[i].bytes);
    EXPECT_EQ(a.files[i].streamed, b.files[i].streamed);
    EXPECT_EQ(a.files[i].expect_unchanged, b.files[i].expect_unchanged);
    EXPECT_EQ(a.files[i].arena_offset, b.files[i].arena_offset);
    ASSERT_EQ(a.files[i].tensors.size(), b.files[i].tensors.size());
    for (std::size_t t = 0; t < a.files[i].tensors.size(); ++t) {
      EXPECT_EQ(a.files[i].tensors[t].stored_name, b.files[i].tensors[t].stored_name);
      EXPECT_EQ(a.files[i].tensors[t].file_offset, b.files[i].tensors[t].file_offset);
    }
  }
}

/// The plan of `second` after one of `first` was given back.
SavePlan PlanAfter(const SaveRequest& first, const SaveRequest& second, bool first_streamed,
                   bool streamed) {
  PlanCache cache({.participant = "rank_0"});
  SavePlan plan = cache.Plan(first, {}, 1, first_streamed).value();
  cache.Return(std::move(plan), first.tensors);
  return cache.Plan(second, {}, 1, streamed).value();
}

SavePlan PlanAnew(const SaveRequest& request, bool streamed) {
  return PlanSave(request, "rank_0", 0, 1, {}, LayoutLimits{}, true, streamed).value();
}

TEST(PlanCacheTest, TheSameTensorsWithOtherFilesGiveThePlanMadeAnew) {
  SaveRequest second = RequestOf(5);
  second.state_files["state.json"] = "{\"epoch\": 12}";
  second.state_files["epoch_id"] = "12";
  second.files.push_back({.name = "notes.txt", .bytes = "hello"});
  for (const bool streamed : {false, true}) {
    ExpectSame(PlanAfter(RequestOf(5), second, streamed, streamed), PlanAnew(second, streamed));
  }
}

TEST(PlanCacheTest, NoticesEveryDifferenceOfTheTensors) {
  const std::vector<std::function<void(SaveRequest*)>> changes = {
      [](SaveRequest* r) { r->tensors[2].name = "other"; },
      [](SaveRequest* r) { r->tensors[2].shape = {3, 3, 1}; },
      [](SaveRequest* r) { r->tensors[2].dtype = DType::kI32; },
      [](SaveRequest* r) { r->tensors[2].group = TensorGroup::kState; },
      [](SaveRequest* r) { r->tensors.pop_back(); },
      [](SaveRequest* r) { std::swap(r->tensors[0], r->tensors[1]); },
      [](SaveRequest* r) {
        r->tensors[2].shard = ShardSpec{.global_shape = {6, 3}, .offset = {3, 0}};
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    SaveRequest second = RequestOf(4);
    changes[i](&second);
    ExpectSame(PlanAfter(RequestOf(4), second, false, false), PlanAnew(second, false));
  }
  ExpectSame(PlanAfter(RequestOf(4), RequestOf(4), true, false), PlanAnew(RequestOf(4), false));
}

TEST(PlanCacheTest, TensorsWithoutDataAreRefusedAlsoTheSecondTime) {
  PlanCache cache({.participant = "rank_0"});
  SaveRequest request = RequestOf(3);
  cache.Return(cache.Plan(request, {}, 1, false).value(), request.tensors);
  request.tensors[1].data = nullptr;
  EXPECT_FALSE(cache.Plan(request, {}, 1, false).ok());
}

TEST(PlanCacheTest, AnotherHistoryIsAnotherPlan) {
  const SaveRequest request = RequestOf(3);
  PlanCache cache({.participant = "rank_0"});
  cache.Return(cache.Plan(request, {}, 1, false).value(), request.tensors);
  SaveHistory history;
  history["t1"] = {.hash = 7, .changed = false};
  const SavePlan plan = cache.Plan(request, history, 2, false).value();
  ExpectSame(plan, PlanSave(request, "rank_0", 0, 1, history, LayoutLimits{}, true, false).value());
  EXPECT_GT(plan.files.size(), PlanAnew(request, false).files.size());
}

}  // namespace
}  // namespace cairn
