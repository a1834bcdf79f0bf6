// What an opening, or a removal, leaves of what is over: nothing of the engine's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/test_job_store.h"
#include "checkpoint/unfinished.h"
#include "format/records.h"
#include "storage/forwarding_store.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_store.h"

namespace cairn {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SweepTest : public OnBothStores {
 protected:
  static Status Save(CheckpointManager* manager, std::int64_t step) {
    const std::vector<float> values(10, static_cast<float>(step));
    const auto handle =
        manager->Save({.step = step,
                       .tensors = {{.name = "w",
                                    .dtype = DType::kF32,
                                    .shape = {10},
                                    .data = values.data(),
                                    .group = TensorGroup::kState}},
                       .state_files = {{"state.json", "{\"step\": " + std::to_string(step) + "}"}},
                       .blocking = true});
    manager->WaitAll().IgnoreError("the test says what is to be left");
    return handle.status();
  }
  std::vector<std::string> NamesBelow(const std::string& prefix) const {
    std::vector<std::string> names;
    const Listing listing = store_->List(prefix).value();
    for (const ObjectInfo& object : listing.objects) names.push_back(object.name);
    for (const std::string& sub : listing.prefixes) {
      for (std::string& name : NamesBelow(sub)) names.push_back(std::move(name));
    }
    return names;
  }
  void Plant(const std::string& name, const std::string& bytes = "bytes") const {
    ASSERT_TRUE(store_->Put(name, bytes).ok());
  }
};

TEST_P(SweepTest, WhatParticipantsOfAnyNameWroteGoesWithTheCheckpoint) {
  ManagerOptions options;
  options.participant = "worker";
  options.retention.keep_last = 1;
  auto manager = Open(options);
  for (std::int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(Save(manager.get(), step).ok());
  // On an object store a later one may refer to what has not changed since.
  for (int step = 1; step <= 4; ++step) {
    EXPECT_THAT(NamesBelow("checkpoint_00000" + std::to_string(step)),
                Not(Contains(HasSubstr("worker_0"))));
  }
  EXPECT_THAT(NamesBelow("checkpoint_000005"), Contains("checkpoint_000005/worker_0/state.json"));
}

TEST_P(SweepTest, WhatLaterOnesReferToIsNotUnfinished) {
  ManagerOptions options;
  options.retention.keep_last = 1;
  auto manager = Open(options);
  const std::vector<float> frozen(1000, 1.0f);
  for (std::int64_t step = 1; step <= 3; ++step) {
    auto handle = manager->Save(
        {.step = step,
         .tensors =
             {{.name = "frozen", .dtype = DType::kF32, .shape = {1000}, .data = frozen.data()}},
         .blocking = true});
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  }
  ASSERT_TRUE(manager->Close().ok());
  const auto unfinished = [&] {
    return UnfinishedDirectories(RepositoryReader(store_.get()).Read().value());
  };
  EXPECT_THAT(unfinished(), IsEmpty());
  Plant("checkpoint_000009/.cairn-attempt", Encode(MarkerRecord{.generation = 1, .attempt = "a"}));
  EXPECT_THAT(unfinished(), testing::ElementsAre("checkpoint_000009"));
  // The sweep goes by the same difference.
  Open()->Close().IgnoreError("it has swept");
  EXPECT_THAT(NamesBelow("checkpoint_000009"), IsEmpty());
  EXPECT_TRUE(Open()->Restore({.allocate = true}).ok());
}

TEST_P(SweepTest, WhatAKilledParticipantOfAnyNameLeftGoesAtTheNextOpening) {
  // Of one that said who it is, of one whose marker a crash has torn, and of several.
  Plant("checkpoint_000001/.cairn-attempt",
        Encode(MarkerRecord{.generation = 1, .attempt = "a", .participants = {"worker_0"}}));
  Plant("checkpoint_000001/worker_0/state.json");
  Plant("checkpoint_000002/.cairn-attempt", "");
  Plant("checkpoint_000002/helper_0/state.json");
  Plant("checkpoint_000003/.cairn-attempt", Encode(MarkerRecord{.generation = 1, .attempt = "b"}));
  Plant("checkpoint_000003/parts/chief_0.json");
  Plant("checkpoint_000003/chief_0/state.json");
  Plant("checkpoint_000003/mine/state.json");
  Open()->Close().IgnoreError("generation 1");
  ManagerOptions options;
  options.participant = "helper";
  Open(options)->Close().IgnoreError("it has swept");
  EXPECT_THAT(NamesBelow("checkpoint_000001"), IsEmpty());
  EXPECT_THAT(NamesBelow("checkpoint_000002"), IsEmpty());
  EXPECT_THAT(NamesBelow("checkpoint_000003"),
              testing::ElementsAre("checkpoint_000003/mine/state.json"));
}

TEST_P(SweepTest, ARemovalThatWasCutShortGoesOnWithTheSameNames) {
  ManagerOptions options;
  options.participant = "worker";
  {
    auto manager = Open(options);
    ASSERT_TRUE(Save(manager.get(), 1).ok());
    ASSERT_TRUE(Save(manager.get(), 2).ok());
  }
  // The manifest went, then the machine.
  ASSERT_TRUE(store_->Delete("checkpoint_000001/manifest.json").ok());
  Open()->Close().IgnoreError("it has swept");
  EXPECT_THAT(NamesBelow("checkpoint_000001"), Not(Contains(HasSubstr("worker_0"))));
}

TEST_P(SweepTest, WhatAnOvertakenWriterAddsAfterItsMarkWasSweptGoesNextTime) {
  Open()->Close().IgnoreError("generation 1");
  Plant("checkpoint_000007/.cairn-attempt", Encode(MarkerRecord{.generation = 1, .attempt = "a"}));
  Plant("checkpoint_000007/__model__/rank_0-00001.safetensors");
  Plant("checkpoint_000008/__model__/mine.safetensors");  // without a mark it is somebody else's
  const auto open = [&] { Open()->Close().IgnoreError("it has swept"); };
  open();
  EXPECT_THAT(NamesBelow("checkpoint_000007"), IsEmpty());
  for (int opening = 0; opening < 2; ++opening) {
    Plant("checkpoint_000007/__model__/rank_0-00002.safetensors");
    open();
    EXPECT_THAT(NamesBelow("checkpoint_000007"), IsEmpty());
    open();
  }
  EXPECT_THAT(NamesBelow("checkpoint_000008"), Not(IsEmpty()));
}

/// Whatever the store says of names that are gone, and whenever: who was overtaken hears that he
/// was fenced. (Of what he had committed, fences are all that he still asks for, and they are not
/// swept.)
TEST_P(SweepTest, WhoIsOvertakenAtAnyOperationOfASaveIsFenced) {
  const auto save = [](CheckpointManager* manager, std::int64_t step, float value) {
    const std::vector<float> values(3000, value);
    const std::vector<float> frozen(3000, 7);  // to be linked or referred to
    const auto handle = manager->Save(
        {.step = step,
         .tensors = {{.name = "w", .dtype = DType::kF32, .shape = {3000}, .data = values.data()},
                     {.name = "f", .dtype = DType::kF32, .shape = {3000}, .data = frozen.data()}},
         .state_files = {{"state.json", "{}"}},
         .blocking = true});
    manager->WaitAll().IgnoreError("the save says what is judged");
    return handle.status();
  };
  std::uint64_t at = 0;
  int failed = 0;
  for (;; ++at) {
    Environment env;
    env.store = MemoryStore::Open({.object_store = GetParam()}).value();
    env.host = "here";
    env.pid = 1;
    const auto old_store = std::make_shared<FaultyStore>(env.store.get());
    Environment watched = env;
    watched.store = old_store;
    auto old = OpenManager({}, watched).value();
    for (const std::int64_t step : {1, 2}) {
      ASSERT_TRUE(save(old.get(), step, static_cast<float>(step)).ok());
    }
    std::unique_ptr<CheckpointManager> young;
    std::atomic<std::uint64_t> asked = 0;
    old_store->SetDelay(Clock::System(), [&](StoreOp::Kind) {
      if (asked++ == at) young = OpenManager({.takeover = true}, env).value();
      return Clock::Duration::zero();
    });
    old_store->Arm({.status = NotFoundError("it was swept"), .trigger = {.at = at}});
    const Status third = save(old.get(), 3, 3);
    old_store->SetDelay(nullptr, nullptr);
    old_store->Disarm();
    if (young == nullptr) break;  // a save has no more operations than that
    const bool committed = young->Latest().value()->step == 3;  // before it was overtaken
    if (!committed) {
      EXPECT_EQ(third.code(), Code::kAborted) << at << ": " << third.ToString();
      EXPECT_THAT(third.ToString(), HasSubstr("overtaken by generation 2")) << at;
      if (third.ToString().find("it was swept") != std::string::npos) ++failed;
    }
    EXPECT_EQ(save(old.get(), 4, 4).code(), Code::kAborted) << at;
    EXPECT_TRUE(save(young.get(), 3, 5).ok()) << at;
  }
  EXPECT_GE(at, 4u);
  EXPECT_GE(failed, 1) << "no save failed of what was gone: nothing is shown";
}

/// Two ranks that save together.
class MeetingTest : public SweepTest {
 protected:
  using Ranks = std::vector<std::unique_ptr<CheckpointManager>>;
  Ranks OpenRanks(const Environment& env) const {
    Ranks ranks(2);
    {
      std::vector<std::jthread> openers;
      for (int rank = 0; rank < 2; ++rank) {
        openers.emplace_back([&, rank] {
          auto manager = OpenManager({.rank = rank, .world_size = 2, .takeover = true}, env);
          ASSERT_TRUE(manager.ok()) << manager.status().ToString();
          ranks[static_cast<std::size_t>(rank)] = *std::move(manager);
        });
      }
    }
    return ranks;
  }
  static std::vector<Status> SaveAll(const Ranks& ranks, std::int64_t step) {
    std::vector<Status> statuses(ranks.size());
    std::vector<std::jthread> savers;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      savers.emplace_back([&, rank] { statuses[rank] = Save(ranks[rank].get(), step); });
    }
    savers.clear();
    return statuses;
  }
  void SaveSteps(std::initializer_list<std::int64_t> steps) const {
    const Ranks ranks = OpenRanks(Env());
    for (const std::int64_t step : steps) {
      for (const Status& saved : SaveAll(ranks, step)) {
        ASSERT_TRUE(saved.ok()) << saved.ToString();
      }
    }
  }
};

/// Counts what is asked for.
class CountingStore final : public ForwardingStore {
 public:
  explicit CountingStore(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  std::atomic<int> attempts_read{0};
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    if (name.find("/attempts/") != name.npos) ++attempts_read;
    return ForwardingStore::Get(name, limit);
  }

 private:
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

TEST_P(MeetingTest, TheRecordsOfOlderOnesGoUnread) {
  SaveSteps({1, 2, 3});
  ASSERT_THAT(NamesBelow("generations"), Contains("generations/000001/attempts/3.json"));
  Plant(names::LastStep(1));
  Environment env = Env();
  const auto counting = std::make_shared<CountingStore>(env.store);
  env.store = counting;
  const Ranks ranks = OpenRanks(env);
  EXPECT_EQ(counting->attempts_read, 0);
  const std::vector<std::string> left = NamesBelow("generations");
  EXPECT_THAT(left, Not(Contains(HasSubstr("000001/"))));
  EXPECT_THAT(left, Not(Contains(HasSubstr("000001.start"))));
  EXPECT_THAT(left, Contains("generations/000001.json"));
  EXPECT_THAT(left, Contains("generations/000001.seal.json"));
  EXPECT_THAT(left, Contains("generations/000002.start.json"));
  for (const Status& saved : SaveAll(ranks, 4)) EXPECT_TRUE(saved.ok()) << saved.ToString();
  EXPECT_EQ(Steps(ranks[0].get()), (std::vector<std::int64_t>{2, 3, 4}));
}

TEST_P(MeetingTest, ThoseWhoseRecordsAreGoneWereOvertaken) {
  const Ranks old = OpenRanks(Env());
  for (const Status& saved : SaveAll(old, 1)) ASSERT_TRUE(saved.ok()) << saved.ToString();
  const auto young = Open({.takeover = true});
  ASSERT_THAT(NamesBelow("generations"), Not(Contains(HasSubstr("attempts"))));
  for (const Status& lost : SaveAll(old, 2)) {
    EXPECT_EQ(lost.code(), Code::kAborted) << lost.ToString();
    EXPECT_THAT(lost.ToString(), HasSubstr("overtaken by generation 2"));
  }
  EXPECT_TRUE(Save(young.get(), 2).ok());
}

TEST_P(MeetingTest, AnAttemptWhoseDirectoryIsLeftStaysWithIt) {
  SaveSteps({1});
  // The old committer, overtaken by then, claims a directory and announces it after the new seal,
  // and a crash takes its marker.
  const std::string attempt = names::Attempt(1, 9);
  Environment env = Env();
  bool claimed = false;
  env.on_step = [&](std::string_view step) {
    if (step != "open: sweep" || std::exchange(claimed, true)) return;
    Plant("checkpoint_000077/__model__/rank_0-00001.safetensors");
    Plant(attempt, Encode(AttemptRecord{.number = 9,
                                        .directory = "checkpoint_000077",
                                        .attempt = "a",
                                        .step = 77,
                                        .participants = {"rank_0", "rank_1"}}));
  };
  OpenManager({}, env).value()->Close().IgnoreError("it has swept");
  EXPECT_TRUE(claimed);
  EXPECT_THAT(NamesBelow("checkpoint_000077"), Not(IsEmpty())) << "its owner may be at work there";
  EXPECT_THAT(NamesBelow("generations"), Contains(attempt));
  EXPECT_THAT(NamesBelow("generations"), Not(Contains(names::Attempt(1, 1))));
  Open()->Close().IgnoreError("it has swept");
  EXPECT_THAT(NamesBelow("checkpoint_000077"), IsEmpty());
  EXPECT_THAT(NamesBelow("generations"), Not(Contains(attempt)));
}

std::string NameOfStore(const testing::TestParamInfo<bool>& which) {
  return which.param ? "Objects" : "Links";
}
INSTANTIATE_TEST_SUITE_P(Stores, SweepTest, testing::Values(false, true), NameOfStore);
INSTANTIATE_TEST_SUITE_P(Stores, MeetingTest, testing::Values(false, true), NameOfStore);

}  // namespace
}  // namespace cairn
