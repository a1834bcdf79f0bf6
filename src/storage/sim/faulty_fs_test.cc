#include "storage/sim/faulty_fs.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/manual_clock.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class FaultyFsTest : public ::testing::Test {
 protected:
  std::unique_ptr<FsFile> Create(const std::string& path) {
    auto file = fs_.Open(path, {.write = true, .create = true});
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? *std::move(file) : nullptr;
  }

  SimFs sim_;
  FaultyFs fs_{&sim_};
};

TEST_F(FaultyFsTest, CountsOperationsByKind) {
  auto file = Create("/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE(file->WriteAt(1, Bytes("x")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  EXPECT_FALSE(fs_.Stat("/missing").ok());
  EXPECT_EQ(fs_.operations(), 6u);
  EXPECT_EQ(fs_.operations(FsOpKind::kWrite), 2u);
  EXPECT_EQ(fs_.operations(FsOpKind::kCreate), 1u);
  EXPECT_EQ(fs_.operations(FsOpKind::kUnlink), 0u);
  EXPECT_EQ(fs_.failures(), 0u);
}

TEST_F(FaultyFsTest, FailsTheNthOperationOnce) {
  auto file = Create("/a");
  fs_.Arm({.trigger = {.at = 1}});
  EXPECT_TRUE(file->WriteAt(0, Bytes("a")).ok());
  EXPECT_EQ(file->WriteAt(0, Bytes("b")).code(), Code::kInternal);
  EXPECT_TRUE(file->WriteAt(1, Bytes("c")).ok());
  EXPECT_EQ(fs_.failures(), 1u);
  std::string text(2, '?');
  ASSERT_TRUE(file->ReadAt(0, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "ac");
}

TEST_F(FaultyFsTest, FailsFromThenOn) {
  auto file = Create("/a");
  fs_.Arm({.failure = FsFailure::kNoSpace, .trigger = {.at = 1, .from_then_on = true}});
  EXPECT_TRUE(file->WriteAt(0, Bytes("a")).ok());
  EXPECT_EQ(file->WriteAt(0, Bytes("b")).code(), Code::kResourceExhausted);
  EXPECT_EQ(fs_.MakeDirectory("/d").code(), Code::kResourceExhausted);
  EXPECT_TRUE(fs_.Stat("/a").ok()) << "reading needs no space";
  EXPECT_TRUE(fs_.Unlink("/a").ok()) << "removing needs no space";
  EXPECT_EQ(fs_.failures(), 2u);
  fs_.Disarm();
  EXPECT_TRUE(fs_.MakeDirectory("/d").ok());
}

TEST_F(FaultyFsTest, CountsOnlyTheChosenKind) {
  fs_.Arm({.failure = FsFailure::kStatus,
           .trigger = {.at = 1, .kind = FsOpKind::kMakeDirectory},
           .status = PermissionDeniedError("no")});
  EXPECT_FALSE(fs_.Stat("/x").ok());
  EXPECT_TRUE(fs_.MakeDirectory("/a").ok());
  EXPECT_FALSE(fs_.Stat("/x").ok());
  EXPECT_EQ(fs_.MakeDirectory("/b").code(), Code::kPermissionDenied);
  EXPECT_FALSE(sim_.Stat("/b").ok());
}

TEST_F(FaultyFsTest, FailureThatCannotHappenDoesNot) {
  fs_.Arm({.failure = FsFailure::kShortWrite, .trigger = {.at = 0, .from_then_on = true}});
  auto file = Create("/a");
  EXPECT_TRUE(file->Sync("test").ok());
  fs_.Arm({.failure = FsFailure::kFailedSync, .trigger = {.at = 0, .from_then_on = true}});
  EXPECT_TRUE(file->WriteAt(0, Bytes("a")).ok());
  EXPECT_EQ(file->Sync("test").code(), Code::kInternal);
  EXPECT_EQ(fs_.SyncDirectory("/", "test").code(), Code::kInternal);
}

TEST_F(FaultyFsTest, ShortWriteWritesHalf) {
  auto file = Create("/a");
  fs_.Arm({.failure = FsFailure::kShortWrite, .trigger = {.at = 0}});
  EXPECT_EQ(file->WriteAt(0, Bytes("123456")).code(), Code::kResourceExhausted);
  EXPECT_EQ(sim_.Stat("/a")->bytes, 3u);
  fs_.Arm({.failure = FsFailure::kShortWrite, .trigger = {.at = 0}});
  EXPECT_FALSE(file->WriteAt(0, Bytes(std::string(20'000, 'x'))).ok());
  EXPECT_EQ(sim_.Stat("/a")->bytes, 8192u) << "whole blocks of a large write";
}

TEST_F(FaultyFsTest, FailedSyncForgetsTheBytesForGood) {
  fs_.OnFailedSync([this](FsFile* inner) { EXPECT_TRUE(sim_.DropUnsynced(inner).ok()); });
  auto file = Create("/a");
  ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE(fs_.SyncDirectory("/", "test").ok());
  fs_.Arm({.failure = FsFailure::kFailedSync, .trigger = {.at = 0}});
  EXPECT_FALSE(file->Sync("test").ok());
  EXPECT_TRUE(file->Sync("again").ok());
  auto after = SimFs::FromCrash(*sim_.Snapshot(), CrashMode::kKeep, 0);
  EXPECT_EQ(after->Stat("/a")->bytes, 0u);
}

TEST_F(FaultyFsTest, QueueReportsFailuresInTheCompletion) {
  auto file = Create("/a");
  auto queue = fs_.NewQueue(2);
  ASSERT_TRUE(queue.ok());
  const std::string text = "abcd";
  fs_.Arm({.failure = FsFailure::kShortWrite, .trigger = {.at = 1}});
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 0, Bytes(text), 1).ok());
  ASSERT_TRUE((*queue)->SubmitWrite(file.get(), 4, Bytes(text), 2).ok());
  EXPECT_EQ((*queue)->in_flight(), 2);
  EXPECT_EQ((*queue)->SubmitSync(file.get(), "test", 3).code(), Code::kInvalidArgument);
  int failed = 0;
  while ((*queue)->in_flight() > 0) {
    auto done = (*queue)->Wait();
    ASSERT_TRUE(done.ok());
    if (done->status.ok()) continue;
    ++failed;
    EXPECT_EQ(done->tag, 2u);
    EXPECT_EQ(done->status.code(), Code::kResourceExhausted);
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(sim_.Stat("/a")->bytes, 6u);
}

TEST_F(FaultyFsTest, DelaysThroughTheClock) {
  ManualClock clock;
  const Clock::Duration began = clock.Now();
  fs_.SetDelay(&clock, [](FsOpKind kind) {
    return kind == FsOpKind::kSync ? std::chrono::seconds(3) : Clock::Duration::zero();
  });
  auto file = Create("/a");
  ASSERT_TRUE(file->Sync("test").ok());
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_EQ(clock.Now() - began, std::chrono::seconds(6));
}

// --- the local store when the n-th operation fails ---

/// Stores what a checkpoint stores. The first error, if any.
Status Save(Store* store, std::string_view step) {
  auto session = store->NewWriteSession(WriteMode::kAuto);
  if (!session.ok()) return session.status();
  const std::string directory = "c" + std::string(step);
  const std::string data(10'000, step[0]);
  auto object = (*session)->Open(directory + "/data", {.bytes = data.size()});
  if (!object.ok()) return object.status();
  for (std::size_t at = 0; at < data.size(); at += (*session)->part_bytes()) {
    const auto part = Bytes(std::string_view(data).substr(at, (*session)->part_bytes()));
    if (Status status = (*session)->Append(*object, part, false, at); !status.ok()) return status;
  }
  if (Status status = (*session)->Close(*object); !status.ok()) return status;
  if (Status status = (*session)->Drain(); !status.ok()) return status;
  if (Status status = store->SyncNames(directory, "test"); !status.ok()) return status;
  if (Status status = store->Put("latest", step); !status.ok()) return status;
  return store->Create(directory + "/manifest", step);
}

TEST(FaultyFsSweep, NoFailureOfTheDiskIsSwallowedOrHarmsWhatWasThere) {
  const std::vector<FsFailure> failures = {FsFailure::kIoError, FsFailure::kNoSpace,
                                           FsFailure::kShortWrite, FsFailure::kFailedSync};
  int failed = 0;
  for (const bool from_then_on : {false, true}) {
    for (const FsFailure failure : failures) {
      for (std::uint64_t at = 0;; ++at) {
        SCOPED_TRACE("failure " + std::to_string(static_cast<int>(failure)) + " at " +
                     std::to_string(at));
        SimFs sim;
        FaultyFs fs(&sim);
        fs.OnFailedSync([&](FsFile* inner) { EXPECT_TRUE(sim.DropUnsynced(inner).ok()); });
        SeededIds ids(1);
        auto store = LocalStore::Open({.root = "/store",
                                       .fs = &fs,
                                       .ids = &ids,
                                       .write_mode = WriteMode::kDirect,
                                       .part_bytes = 4096,
                                       .direct_from_bytes = 4096});
        ASSERT_TRUE(store.ok());
        ASSERT_TRUE(Save(store->get(), "1").ok());
        fs.Arm({.failure = failure, .trigger = {.at = at, .from_then_on = from_then_on}});
        const Status saved = Save(store->get(), "2");
        const std::uint64_t operations = fs.operations();
        failed += saved.ok() ? 0 : 1;
        store->reset();
        auto after = SimFs::FromCrash(*sim.Snapshot(), CrashMode::kForget, at);
        auto reopened = LocalStore::Open({.root = "/store", .fs = after.get(), .ids = &ids});
        ASSERT_TRUE(reopened.ok());
        EXPECT_EQ(*(*reopened)->Get("c1/manifest", kNoLimit), "1");
        EXPECT_EQ(*(*reopened)->Get("c1/data", kNoLimit), std::string(10'000, '1'));
        const std::string latest = *(*reopened)->Get("latest", kNoLimit);
        EXPECT_TRUE(latest == "1" || latest == "2") << latest;
        const auto manifest = (*reopened)->Get("c2/manifest", kNoLimit);
        if (saved.ok()) {
          ASSERT_TRUE(manifest.ok()) << "acknowledged and lost";
        }
        if (manifest.ok()) {
          EXPECT_EQ(*manifest, "2");
          EXPECT_EQ(*(*reopened)->Get("c2/data", kNoLimit), std::string(10'000, '2'));
        }
        if (at >= operations) {
          EXPECT_TRUE(saved.ok()) << saved.ToString();
          break;
        }
      }
    }
  }
  EXPECT_GT(failed, 30);
}

}  // namespace
}  // namespace cairn
