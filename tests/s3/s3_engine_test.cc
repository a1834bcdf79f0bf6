// The engine on a real S3 server, when nothing goes wrong: what it keeps, shares and removes, and
// what the caller waits for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/repository.h"
#include "checkpoint/shelves.h"
#include "format/manifest.h"
#include "format/records.h"
#include "net/test_http_server.h"
#include "storage/forwarding_store.h"
#include "tests/remote/take_turns.h"
#include "tests/s3/s3_job.h"

namespace cairn::s3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Hides that the store can list everything.
class WithoutWholeListings final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  DeepListingCosts listing_costs() const override { return {.many_directories = 0}; }
};

class S3Engine : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = TestS3Server::Get();
    ASSERT_NE(server_, nullptr);
    bucket_ = server_->NewBucket();
    url_ = "s3://" + bucket_ + "/runs/a";
  }

  Result<std::unique_ptr<CheckpointManager>> Open(ManagerOptions options = {},
                                                  std::uint16_t port = 0) {
    options.directory = url_;
    return OpenManager(std::move(options), EnvironmentOn(server_->Options(url_, port)));
  }
  /// All names in the repository.
  std::set<std::string> Names(const std::string& prefix = "") {
    const auto store = server_->Open(url_);
    std::set<std::string> names;
    const auto listing = store->List(prefix);
    for (const ObjectInfo& object : listing->objects) names.insert(object.name);
    for (const std::string& below : listing->prefixes) names.merge(Names(below));
    return names;
  }

  TestS3Server* server_ = nullptr;
  std::string bucket_;
  std::string url_;
};

TEST_F(S3Engine, SavesRestoresAndKeepsTheLast) {
  ManagerOptions options;
  options.retention.keep_last = 2;
  auto manager = Open(options);
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  EXPECT_EQ(*RestoreLatest(manager->get()), -1);
  for (std::int64_t step = 1; step <= 5; ++step) {
    const auto saved = SaveStep(manager->get(), step);
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_THAT(saved->path, HasSubstr(url_ + "/checkpoint_"));
  }
  ASSERT_TRUE((*manager)->Close().ok());
  auto again = Open(options);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(*RestoreLatest(again->get()), 5);
  EXPECT_EQ((*again)->List()->size(), 2u);
  EXPECT_EQ((*again)->generation(), 2u);
}

TEST_F(S3Engine, UnchangedFilesAreReferredToAndOutliveTheirCheckpoint) {
  ManagerOptions options;
  options.retention.keep_last = 1;
  auto manager = Open(options);
  ASSERT_TRUE(manager.ok());
  // One tensor never changes: once the engine knows, its file is an earlier one's.
  std::vector<float> still(100'000, 1.5f);
  std::vector<float> moving(1000);
  std::uint64_t shared = 0;
  for (std::int64_t step = 1; step <= 5; ++step) {
    moving[0] = static_cast<float>(step);
    SaveRequest request{.step = step};
    request.tensors = {{.name = "still", .shape = {still.size()}, .data = still.data()},
                       {.name = "moving", .shape = {moving.size()}, .data = moving.data()}};
    auto handle = (*manager)->Save(std::move(request));
    ASSERT_TRUE(handle.ok());
    ASSERT_TRUE(handle->Wait().ok());
    shared += handle->BytesShared();
  }
  EXPECT_GE(shared, 2 * still.size() * sizeof(float));
  ASSERT_TRUE((*manager)->WaitAll().ok());  // also for what retention removes after the save
  EXPECT_EQ((*manager)->List()->size(), 1u);
  const auto restored = (*manager)->Restore({.allocate = true});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  for (const OwnedTensor& tensor : (*restored)->tensors) {
    const float* values = reinterpret_cast<const float*>(tensor.data.get());
    EXPECT_EQ(values[0], tensor.name == "still" ? 1.5f : 5.0f);
  }
  // What nobody refers to is gone.
  ASSERT_TRUE((*manager)->Close().ok());
  ASSERT_TRUE(Open(options).ok());
  std::set<std::string> directories;
  for (const std::string& name : Names()) {
    if (name.ends_with(".safetensors")) directories.insert(name.substr(0, name.find('/')));
  }
  EXPECT_LE(directories.size(), 2u) << "the latest, and the one whose file it refers to";
}

TEST_F(S3Engine, ManyCheckpointsAreFoundWithFewListings) {
  ManagerOptions options;
  options.retention.keep_last.reset();
  auto manager = Open(options);
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  constexpr std::int64_t kMany = 70;
  std::vector<std::string> ids;
  for (std::int64_t step = 0; step < kMany; ++step) {
    auto handle = (*manager)->Save({.step = step});
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    const auto info = handle->Wait();
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    ids.push_back(info->id);
  }
  ASSERT_TRUE((*manager)->Pin(ids[3]).ok());
  ASSERT_TRUE((*manager)->AddMetrics(ids[5], Value::Object{{"auc", 0.5}}).ok());
  ASSERT_TRUE((*manager)->Delete(ids[7]).ok());
  ASSERT_TRUE((*manager)->Close().ok());
  std::atomic<int> listings = 0;
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    if (request.target.find("list-type=2") != std::string::npos) ++listings;
    return ForwardTo(server_->port(), request);
  });
  const Environment env = EnvironmentOn(server_->Options(url_, proxy.port()));
  const auto at_once = RepositoryReader(env.store.get()).Read();
  ASSERT_TRUE(at_once.ok()) << at_once.status().ToString();
  EXPECT_LT(listings, 10);
  // The same, one directory after the other.
  WithoutWholeListings plain(env.store.get());
  const auto one_by_one = RepositoryReader(&plain).Read();
  ASSERT_TRUE(one_by_one.ok()) << one_by_one.status().ToString();
  EXPECT_GT(listings, kMany);
  ASSERT_EQ(at_once->checkpoints.size(), static_cast<std::size_t>(kMany - 1));
  ASSERT_EQ(one_by_one->checkpoints.size(), at_once->checkpoints.size());
  for (std::size_t i = 0; i < at_once->checkpoints.size(); ++i) {
    const Checkpoint& a = at_once->checkpoints[i];
    const Checkpoint& b = one_by_one->checkpoints[i];
    EXPECT_EQ(a.manifest->id, b.manifest->id);
    EXPECT_TRUE(a.counts);
    EXPECT_EQ(a.notes.size(), b.notes.size());
    EXPECT_EQ(a.pinned, a.manifest->id == ids[3]);
    EXPECT_EQ(a.Metrics().Find("auc") != nullptr, a.manifest->id == ids[5]);
  }
}

TEST_F(S3Engine, ADamagedManifestBehindAGoodCopyIsFoundByVerify) {
  const auto store = server_->Open(url_);
  RepositoryRecord record;
  record.job = "job";
  ASSERT_TRUE(store->Put(std::string(names::kRepository), Encode(record)).ok());
  ASSERT_TRUE(store->Put(names::Seal(1), Encode(SealRecord{.generation = 1, .uuid = "seal"})).ok());
  constexpr int kMany = 260;
  std::vector<Status> put(kMany);
  ForEachRequest(*store, kMany, [&](std::size_t i) {
    Manifest manifest;
    manifest.id = "id-" + std::to_string(i);
    manifest.job = "job";
    manifest.attempt = "attempt";
    manifest.generation = 1;
    manifest.sequence = i + 1;
    manifest.step = static_cast<std::int64_t>(i);
    put[i] = store->Put(
        names::Path(names::CheckpointDirectory(false, false, manifest.step, 1), names::kManifest),
        EncodeManifest(manifest));
  });
  for (const Status& status : put) ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(TidyShelves(store.get(), IdSource::System()).ok());
  ASSERT_THAT(store->List(std::string(names::kShelves))->objects, ::testing::SizeIs(1));

  // Behind the server's back: it has the ETag that it had.
  const std::string directory = names::CheckpointDirectory(false, false, 7, 1);
  std::fstream file(server_->directory() + "/" + bucket_ + "/runs/a/" + directory +
                    "/manifest.json");
  ASSERT_TRUE(file.seekp(100).put('#').flush().good());
  const auto view = RepositoryReader(store.get()).Read();
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_NE(view->Find("id-7"), nullptr) << "the copy on the shelf is good";
  for (const auto& [name, value] : server_->Variables()) setenv(name.c_str(), value.c_str(), 1);
  const auto report = Verify(url_, /*deep=*/false);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  std::vector<std::string> damaged;
  for (const VerifyProblem& problem : report->problems) {
    if (problem.checkpoint.starts_with("checkpoint_")) damaged.push_back(problem.checkpoint);
  }
  EXPECT_THAT(damaged, ElementsAre(directory));
}

TEST_F(S3Engine, LargeFilesGoInPartsAndLeaveNothingUnfinished) {
  auto manager = Open();
  ASSERT_TRUE(manager.ok());
  std::vector<std::uint64_t> large(3'000'000);  // 24 MB: five parts
  kill::JobState::Fill(&large, 7);
  SaveRequest request{.step = 1};
  request.tensors = {
      {.name = "large", .dtype = DType::kU64, .shape = {large.size()}, .data = large.data()}};
  auto handle = (*manager)->Save(std::move(request));
  ASSERT_TRUE(handle.ok());
  const auto saved = handle->Wait();
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  EXPECT_GE(handle->BytesWritten(), large.size() * 8);
  std::vector<std::uint64_t> back(large.size());
  ASSERT_TRUE((*manager)
                  ->Restore({.into = {{.name = "large",
                                       .dtype = DType::kU64,
                                       .shape = {back.size()},
                                       .data = back.data()}}})
                  .ok());
  EXPECT_TRUE(back == large);
  EXPECT_THAT(*server_->Open(url_)->ListUnfinished(""), IsEmpty());
}

/// Hands out numbers that nothing keeps in memory.
class Numbers final : public TensorSource {
 public:
  explicit Numbers(std::uint64_t seed) : seed_(seed) {}
  static std::uint64_t At(std::uint64_t seed, std::uint64_t i) { return (seed + i) * 0x9E3779B9u; }
  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    for (std::size_t i = 0; i < into.size(); ++i) {
      const std::uint64_t at = offset + i;
      into[i] = static_cast<std::byte>(At(seed_, at / 8) >> (at % 8 * 8));
    }
    return Status::Ok();
  }

 private:
  const std::uint64_t seed_;
};

TEST_F(S3Engine, FilesWithTooManyPartsGetLargerOnesBesideThoseThatHaveFew) {
  S3StoreOptions store = server_->Options(url_);
  store.most_parts = 14;
  auto manager = OpenManager({.directory = url_}, EnvironmentOn(store));
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  // Each a file of its own; in parts of 5, 8 and 12 MiB.
  const std::vector<std::uint64_t> sizes = {64u << 20, 100u << 20, 130u << 20};
  for (std::int64_t step = 1; step <= 2; ++step) {
    SaveRequest request{.step = step};
    std::vector<std::unique_ptr<Numbers>> sources;
    for (const std::uint64_t bytes : sizes) {
      sources.push_back(std::make_unique<Numbers>(bytes + static_cast<std::uint64_t>(step)));
      request.tensors.push_back({.name = "t" + std::to_string(bytes),
                                 .dtype = DType::kU64,
                                 .shape = {bytes / 8},
                                 .source = sources.back().get()});
    }
    auto handle = (*manager)->Save(std::move(request));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    const auto saved = handle->Wait();
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  }
  const auto restored = (*manager)->Restore({.allocate = true});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  ASSERT_EQ((*restored)->tensors.size(), sizes.size());
  for (const OwnedTensor& tensor : (*restored)->tensors) {
    const std::uint64_t bytes = std::stoull(tensor.name.substr(1));
    const auto* numbers = reinterpret_cast<const std::uint64_t*>(tensor.data.get());
    std::uint64_t different = 0;
    for (std::uint64_t i = 0; i < bytes / 8; ++i) {
      different += numbers[i] != Numbers::At(bytes + 2, i) ? 1 : 0;
    }
    EXPECT_EQ(different, 0u) << tensor.name;
  }
  EXPECT_THAT(*server_->Open(url_)->ListUnfinished(""), IsEmpty());
}

TEST_F(S3Engine, OpeningSweepsWhatAKilledWriterLeft) {
  {
    ASSERT_TRUE(Open().ok());
  }
  const auto store = server_->Open(url_);
  const auto begin = [&](const std::string& name) {
    const std::string key = store->client()->config().KeyOf(name);
    ASSERT_TRUE(
        store->client()
            ->Expect({.what = "begin", .method = "POST", .key = key, .query = {{"uploads", ""}}})
            .ok());
  };
  begin("checkpoint_000007/__model__/rank_0-00001.safetensors");
  begin("somebody/else.bin");
  ASSERT_TRUE(Open().ok());
  EXPECT_THAT(*store->ListUnfinished(""), ElementsAre("somebody/else.bin"))
      << "only what can be a checkpoint's";
}

TEST_F(S3Engine, SlowServerHoldsNobodyUpBeyondTheSnapshot) {
  std::latch release(1);
  std::atomic<bool> slow = false;
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    if (slow && request.method == "PUT") release.wait();
    return ForwardTo(server_->port(), request);
  });
  ManagerOptions options;
  options.on_busy = OnBusy::kSkip;
  auto manager = Open(options, proxy.port());
  ASSERT_TRUE(manager.ok());
  kill::JobState state;
  state.Compute(kSeed, 1, 0);
  slow = true;
  auto first = (*manager)->Save({.step = 1, .tensors = state.Views(0, 1)});
  ASSERT_TRUE(first.ok()) << "returned although not a byte has arrived";
  EXPECT_FALSE(first->Done());
  auto second = (*manager)->Save({.step = 2, .tensors = state.Views(0, 1)});
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->Wait().status().Is(Code::kCancelled)) << "busy: skipped, not queued";
  slow = false;
  release.count_down();
  EXPECT_TRUE(first->Wait().ok());
  EXPECT_EQ(*RestoreLatest(manager->get()), 1);
}

TEST_F(S3Engine, NewWriterFencesTheOldOneOut) {
  auto old_writer = Open();
  ASSERT_TRUE(old_writer.ok());
  ASSERT_TRUE(SaveStep(old_writer->get(), 1).ok());
  auto new_writer = Open();
  ASSERT_TRUE(new_writer.ok()) << "a bucket has no locks";
  EXPECT_TRUE(SaveStep(old_writer->get(), 2).status().Is(Code::kAborted));
  ASSERT_TRUE(SaveStep(new_writer->get(), 3).ok());
  EXPECT_EQ(*RestoreLatest(new_writer->get()), 3);
}

TEST_F(S3Engine, NothingIsAcknowledgedUnderAPrefixThatWasDeleted) {
  auto manager = Open();
  ASSERT_TRUE(manager.ok());
  ASSERT_TRUE(SaveStep(manager->get(), 1).ok());
  const auto store = server_->Open(url_);
  for (const std::string& name : Names()) ASSERT_TRUE(store->Delete(name).ok());
  const auto saved = SaveStep(manager->get(), 2);
  EXPECT_TRUE(saved.status().Is(Code::kUnavailable)) << saved.status().ToString();
  EXPECT_THAT(saved.status().ToString(), HasSubstr("its records are gone"));
  EXPECT_THAT(Names(), IsEmpty());

  // Another run begins there, with the same number and the same names.
  auto other = Open();
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->generation(), 1u);
  ASSERT_TRUE(SaveStep(other->get(), 1).ok());
  const std::set<std::string> before = Names();
  const auto lost = SaveStep(manager->get(), 3);
  EXPECT_TRUE(lost.status().Is(Code::kAborted)) << lost.status().ToString();
  EXPECT_THAT(lost.status().ToString(), HasSubstr("was replaced"));
  (*manager)->Close().IgnoreError("it was told");
  EXPECT_EQ(Names(), before);
  EXPECT_EQ(*RestoreLatest(other->get()), 1);
}

TEST_F(S3Engine, WritersTakeTurnsWhileAReaderReads) {
  remote::TakeTurnsWhileAReaderReads(url_, 5, [&]() -> Result<std::shared_ptr<Store>> {
    return std::shared_ptr<Store>(server_->Open(url_));
  });
  EXPECT_THAT(*server_->Open(url_)->ListUnfinished(""), IsEmpty());
}

TEST_F(S3Engine, ProgressIsSeenAndNoMoreThanEightPartsAreInFlight) {
  constexpr int kInFlight = 8;
  constexpr std::uint64_t kPart = 5u << 20;
  std::latch under_way(kInFlight);
  std::latch release(1);
  constexpr int kHalf = 10;
  std::latch half(kHalf);
  std::latch rest(1);
  std::atomic<int> answered = 0;
  std::atomic<int> parts = 0;
  std::atomic<int> most = 0;
  TestHttpServer proxy([&](const TestHttpRequest& request) {
    if (request.target.find("partNumber=") == std::string::npos) {
      return ForwardTo(server_->port(), request);
    }
    most = std::max(most.load(), ++parts);
    if (!release.try_wait()) under_way.count_down();
    release.wait();
    const TestHttpReply reply = ForwardTo(server_->port(), request);
    const int number = ++answered;
    if (number <= kHalf) half.count_down();
    if (number > kHalf) rest.wait();
    --parts;
    return reply;
  });
  auto manager = Open({}, proxy.port());
  ASSERT_TRUE(manager.ok());
  std::vector<std::uint64_t> large(20 * kPart / 8);
  kill::JobState::Fill(&large, 7);
  SaveRequest request{.step = 1};
  request.tensors = {
      {.name = "large", .dtype = DType::kU64, .shape = {large.size()}, .data = large.data()}};
  auto handle = (*manager)->Save(std::move(request));
  ASSERT_TRUE(handle.ok()) << "returned although no part has arrived";
  under_way.wait();
  EXPECT_LT(handle->BytesWritten(), kPart) << "under way, and none has arrived";
  EXPECT_FALSE(handle->Done());
  release.count_down();
  half.wait();
  // What was answered is counted soon; the next ones are held back.
  while (handle->BytesWritten() < kHalf * kPart) std::this_thread::yield();
  EXPECT_LT(handle->BytesWritten(), (kHalf + 1) * kPart);
  rest.count_down();
  ASSERT_TRUE(handle->Wait().ok());
  EXPECT_GE(handle->BytesWritten(), large.size() * 8);
  EXPECT_EQ(most, kInFlight) << "in parallel, and bounded";
}

/// A machine whose clock is wrong by so many days.
class WrongClock final : public Clock {
 public:
  explicit WrongClock(std::int64_t days) : nanos_(days * 86'400 * 1'000'000'000) {}
  Duration Now() override { return Clock::System()->Now(); }
  std::int64_t WallNanos() override { return Clock::System()->WallNanos() + nanos_; }
  void Sleep(Duration duration) override { Clock::System()->Sleep(duration); }

 private:
  const std::int64_t nanos_;
};

TEST_F(S3Engine, NothingIsChosenSweptOrRemovedByAClock) {
  ManagerOptions options;
  options.directory = url_;
  options.retention.keep_last = 2;
  std::int64_t step = 0;
  // Each machine's clock is years away from that of the one before, and from the server's.
  for (const std::int64_t days : {3000, -3000, 40, -1, 0}) {
    WrongClock clock(days);
    S3StoreOptions s3 = server_->Options(url_);
    s3.environment.clock = &clock;
    Environment env = EnvironmentOn(std::move(s3));
    env.clock = &clock;
    auto manager = OpenManager(options, std::move(env));
    ASSERT_TRUE(manager.ok()) << days << ": " << manager.status().ToString();
    const std::int64_t latest = *RestoreLatest(manager->get());
    EXPECT_EQ(latest, step == 0 ? -1 : step) << "the latest, by no date";
    EXPECT_THAT(*server_->Open(url_)->ListUnfinished(""), IsEmpty()) << "swept, of any age";
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(SaveStep(manager->get(), ++step).ok());
    ASSERT_TRUE((*manager)->WaitAll().ok());  // removals come after a save is acknowledged
    std::vector<std::int64_t> kept;
    for (const CheckpointInfo& info : *(*manager)->List()) kept.push_back(info.step);
    EXPECT_THAT(kept, ElementsAre(step - 1, step));
    // What a save that is cut off now would leave.
    const auto store = server_->Open(url_);
    const std::string key = store->client()->config().KeyOf("checkpoint_000999/__model__/x");
    ASSERT_TRUE(
        store->client()
            ->Expect({.what = "begin", .method = "POST", .key = key, .query = {{"uploads", ""}}})
            .ok());
  }
}

TEST_F(S3Engine, BucketThatGoesAwayIsAClearError) {
  auto manager = Open();
  ASSERT_TRUE(manager.ok());
  ASSERT_TRUE(SaveStep(manager->get(), 1).ok());
  server_->DeleteBucket(bucket_);
  const auto saved = SaveStep(manager->get(), 2);
  EXPECT_TRUE(saved.status().Is(Code::kFailedPrecondition)) << saved.status().ToString();
  EXPECT_THAT(saved.status().ToString(), HasSubstr("there is no bucket"));
}

}  // namespace
}  // namespace cairn::s3
