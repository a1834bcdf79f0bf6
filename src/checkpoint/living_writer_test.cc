// Tools beside a writer, on stores without locks: they refuse unless it is known to have ended.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/transfer.h"
#include "storage/forwarding_store.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The pid of a process that has ended.
std::int64_t DeadPid() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

class LivingWriter : public testing::Test {
 protected:
  LivingWriter() {
    SetLogSink([this](LogLevel level, std::string_view message) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  ~LivingWriter() override { SetLogSink(nullptr); }

  Environment Env(const std::string& host, std::int64_t pid) const {
    Environment env;
    env.store = store_;
    env.host = host;
    env.pid = pid;
    return env;
  }
  static std::unique_ptr<CheckpointManager> Open(const Environment& env,
                                                 ManagerOptions options = {}) {
    auto manager = OpenManager(std::move(options), env);
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return manager.ok() ? *std::move(manager) : nullptr;
  }
  static Status Save(CheckpointManager* manager, std::int64_t step) {
    const std::vector<float> values(10, 1);
    return manager
        ->Save(
            {.step = step,
             .tensors = {{.name = "w", .dtype = DType::kF32, .shape = {10}, .data = values.data()}},
             .blocking = true})
        .status();
  }
  /// As a tool on this machine does.
  Status Gc(bool takeover = false) const {
    return CollectGarbageIn(Env("here", getpid()), takeover).status();
  }
  bool HasEnd(std::uint64_t generation) const { return store_->Stat(names::End(generation)).ok(); }

  std::shared_ptr<Store> store_ = MemoryStore::Open({}).value();  // shared with environments
  std::vector<std::string> warnings_;
};

TEST_F(LivingWriter, ElsewhereIsLeftAlone) {
  auto writer = Open(Env("node-a", 4711));
  ASSERT_TRUE(Save(writer.get(), 1).ok());
  const Status refused = Gc();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr("4711"), HasSubstr("node-a"), HasSubstr("--takeover")));
  EXPECT_TRUE(Save(writer.get(), 2).ok()) << "the tool took nothing from it";
  ASSERT_TRUE(writer->Close().ok());
  EXPECT_TRUE(Gc().ok());
  EXPECT_TRUE(Gc().ok()) << "the tool has ended too";
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(LivingWriter, EveryToolAsks) {
  auto writer = Open(Env("node-a", 4711));
  ASSERT_TRUE(Save(writer.get(), 1).ok());
  Environment source = Env("node-a", 4711);
  source.store = MemoryStore::Open({}).value();
  {
    ManagerOptions rank;
    rank.job = writer->job();
    rank.world_size = 1;
    rank.private_parts = true;
    auto other = Open(source, rank);
    ASSERT_TRUE(Save(other.get(), 1).ok());
    ASSERT_TRUE(other->Close().ok());
  }
  const RepositoryView view = RepositoryReader(source.store.get()).Read().value();
  const Environment here = Env("here", getpid());
  const auto all = [&](bool takeover) {
    const auto chosen = ChooseForCopy(view, "source", {.all = true}).value();
    const MergeRequest merge{.parts = {}, .target = "", .step = {}, .takeover = takeover};
    auto parts = ChooseForMerge({source}, merge).value();
    Environment tool = here;
    tool.tool = true;
    return std::vector<Status>{
        CopyInto(source, view, chosen, here, {.adopt = true, .takeover = takeover}, {}).status(),
        MergeInto(std::move(parts), here, merge, {}).status(),
        CollectGarbageIn(here, takeover).status(),
        OpenManager({.takeover = takeover}, tool).status()};  // as rm and import do
  };
  for (const Status& refused : all(false)) {
    EXPECT_EQ(refused.code(), Code::kUnavailable) << refused.ToString();
    EXPECT_THAT(refused.ToString(), HasSubstr("node-a"));
  }
  EXPECT_TRUE(Save(writer.get(), 2).ok());
  for (const Status& done : all(true)) EXPECT_TRUE(done.ok()) << done.ToString();
  EXPECT_EQ(Save(writer.get(), 3).code(), Code::kAborted);
}

TEST_F(LivingWriter, HereIsKnownToHaveEnded) {
  auto writer = Open(Env("here", DeadPid()));
  ASSERT_TRUE(Save(writer.get(), 1).ok());
  EXPECT_TRUE(Gc().ok()) << "killed: it said nothing";
  auto other = Open(Env("there", DeadPid()));
  EXPECT_EQ(Gc().code(), Code::kUnavailable) << "a pid of another machine says nothing";
}

TEST_F(LivingWriter, HereIsKnownToLive) {
  auto writer = Open(Env("here", getpid()));
  const Status refused = Gc();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.ToString(), HasSubstr(std::to_string(getpid()) + " on here"));
  // Another process has the pid by now.
  FenceRecord fence = Decode<FenceRecord>(store_->Get(names::Fence(1), 1 << 20).value()).value();
  ASSERT_NE(fence.process, "");
  fence.process = fence.process.substr(0, fence.process.rfind(' ') + 1) + "1";
  ASSERT_TRUE(store_->Put(names::Fence(1), Encode(fence)).ok());
  EXPECT_TRUE(Gc().ok());
}

TEST_F(LivingWriter, OfAVersionWithoutEndRecordsIsJudgedByItsPid) {
  for (const auto& [host, pid, ended] :
       {std::tuple("here", DeadPid(), true), std::tuple("here", std::int64_t{getpid()}, false),
        std::tuple("node-a", DeadPid(), false)}) {
    store_ = MemoryStore::Open({}).value();
    {
      auto writer = Open(Env(host, pid));
      ASSERT_TRUE(Save(writer.get(), 1).ok());
    }
    ASSERT_TRUE(store_->Delete(names::End(1)).ok());
    FenceRecord fence = Decode<FenceRecord>(store_->Get(names::Fence(1), 1 << 20).value()).value();
    fence.process.clear();
    ASSERT_TRUE(store_->Put(names::Fence(1), Encode(fence)).ok());
    EXPECT_EQ(Gc().ok(), ended) << host << " " << pid;
    EXPECT_TRUE(Gc(/*takeover=*/true).ok());
    EXPECT_TRUE(Gc().ok());
  }
}

TEST_F(LivingWriter, ThatIsDestroyedHasEnded) {
  Open(Env("node-a", 4711)).reset();
  EXPECT_TRUE(HasEnd(1));
  EXPECT_TRUE(Gc().ok());
}

TEST_F(LivingWriter, ThatWasOvertakenEndsNobodyElse) {
  auto old = Open(Env("node-a", 4711));
  auto young = Open(Env("node-b", 4712));
  EXPECT_EQ(young->generation(), 2u) << "who trains takes over, as ever";
  old->Close().IgnoreError("it has nothing to report");
  EXPECT_EQ(Gc().code(), Code::kUnavailable);
  EXPECT_TRUE(Save(young.get(), 1).ok());
}

TEST_F(LivingWriter, OfADirectoryThatWasReplacedIsNotEndedByTheFirst) {
  auto old = Open(Env("node-a", 4711));
  std::function<void(const std::string&)> remove = [&](const std::string& prefix) {
    const Listing listing = store_->List(prefix).value();
    for (const ObjectInfo& object : listing.objects) ASSERT_TRUE(store_->Delete(object.name).ok());
    for (const std::string& sub : listing.prefixes) remove(sub);
  };
  remove("");
  auto young = Open(Env("node-b", 4712));
  EXPECT_EQ(young->generation(), 1u);
  old->Close().IgnoreError("it has nothing to report");
  EXPECT_FALSE(HasEnd(1));
  // Nor by a record that it had left a moment before.
  ASSERT_TRUE(store_->Put(names::End(1), Encode(EndRecord{.generation = 1, .uuid = "x"})).ok());
  EXPECT_EQ(Gc().code(), Code::kUnavailable);
}

TEST_F(LivingWriter, ThatCouldNotOpenHasEnded) {
  ManagerOptions alone;
  alone.world_size = 2;
  alone.join_deadline = std::chrono::milliseconds(1);
  EXPECT_EQ(OpenManager(alone, Env("node-a", 4711)).status().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(HasEnd(1));
  EXPECT_TRUE(Gc().ok());
}

TEST_F(LivingWriter, OfSeveralRanksEndsWithTheCommitter) {
  std::vector<std::unique_ptr<CheckpointManager>> ranks(2);
  {
    std::vector<std::jthread> openers;
    for (int rank = 0; rank < 2; ++rank) {
      openers.emplace_back([&, rank] {
        ranks[static_cast<std::size_t>(rank)] =
            Open(Env("node-a", 4711 + rank), {.rank = rank, .world_size = 2});
      });
    }
  }
  ASSERT_TRUE(ranks[1]->Close().ok());
  EXPECT_EQ(Gc().code(), Code::kUnavailable);
  ASSERT_TRUE(ranks[0]->Close().ok());
  EXPECT_TRUE(Gc().ok());
}

TEST_F(LivingWriter, ThatOpensMeanwhileIsNotFencedOut) {
  Open(Env("node-a", 4711)).reset();
  std::unique_ptr<CheckpointManager> writer;
  Environment tool = Env("here", getpid());
  tool.on_step = [&](std::string_view step) {
    // The tool has found that nobody lives, and is about to take the repository.
    if (step == "open: fence" && writer == nullptr) writer = Open(Env("node-a", 4712));
  };
  EXPECT_EQ(CollectGarbageIn(tool).status().code(), Code::kUnavailable);
  ASSERT_NE(writer, nullptr);
  EXPECT_TRUE(Save(writer.get(), 1).ok());
}

/// While `down` nothing can be created; with `gone` nothing can be read either.
class FailingStore final : public ForwardingStore {
 public:
  explicit FailingStore(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  std::atomic<bool> down{false};
  std::atomic<bool> gone{false};
  Status Create(const std::string& name, std::string_view bytes) override {
    return down || gone ? Down() : ForwardingStore::Create(name, bytes);
  }
  Status CreateVolatile(const std::string& name, std::string_view bytes,
                        AfterCrash crash) override {
    return down || gone ? Down() : ForwardingStore::CreateVolatile(name, bytes, crash);
  }
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    if (gone) return Down();
    return ForwardingStore::Get(name, limit);
  }

 private:
  static Status Down() { return UnavailableError("the network is down"); }
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

TEST_F(LivingWriter, ThatCannotSayThatItEndedHasClosedAllTheSame) {
  for (const bool gone : {false, true}) {
    warnings_.clear();
    store_ = MemoryStore::Open({}).value();
    Environment env = Env("node-a", 4711);
    const auto failing = std::make_shared<FailingStore>(store_);
    env.store = failing;
    auto writer = Open(env);
    ASSERT_TRUE(Save(writer.get(), 1).ok());
    (gone ? failing->gone : failing->down) = true;
    EXPECT_TRUE(writer->Close().ok());
    ASSERT_EQ(warnings_.size(), 1u);
    EXPECT_THAT(warnings_[0], AllOf(HasSubstr("was closed"), HasSubstr("the network is down")));
    EXPECT_EQ(Gc().code(), Code::kUnavailable);
    EXPECT_TRUE(Gc(/*takeover=*/true).ok());
  }
}

/// A directory on a mount that has no locks.
class WithoutLocks final : public ForwardingStore {
 public:
  explicit WithoutLocks(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string&) override {
    return UnimplementedError("no locks");
  }

 private:
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

TEST_F(LivingWriter, LivesOnWhenAForkedChildEnds) {
  TempDirectory directory;
  const auto disk = [&] {
    return std::make_shared<WithoutLocks>(OpenStore(directory / "run", {.create = true}).value());
  };
  store_ = disk();
  auto writer = Open(Env("here", getpid()));
  const pid_t child = fork();
  if (child == 0) {
    writer.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(HasEnd(1));
  EXPECT_EQ(Gc().code(), Code::kUnavailable);
  EXPECT_TRUE(Save(writer.get(), 1).ok());
  ASSERT_TRUE(writer->Close().ok());
  EXPECT_TRUE(Gc().ok());
}

TEST_F(LivingWriter, WithALockLeavesNoRecordOfItsEnd) {
  store_ = MemoryStore::Open({.object_store = false}).value();
  auto writer = Open(Env("node-a", 4711));
  const Status refused = Gc();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("4711 on node-a"), HasSubstr("--takeover")));
  ASSERT_TRUE(writer->Close().ok());
  EXPECT_FALSE(HasEnd(1)) << "the lock has told";
  EXPECT_TRUE(Gc().ok());
}

TEST_F(LivingWriter, WithALockIsFencedOutByATakeover) {
  store_ = MemoryStore::Open({.object_store = false}).value();
  auto writer = Open(Env("node-a", 4711));
  ASSERT_TRUE(Save(writer.get(), 1).ok());
  EXPECT_TRUE(Gc(/*takeover=*/true).ok());
  EXPECT_EQ(Save(writer.get(), 2).code(), Code::kAborted);
}

}  // namespace
}  // namespace cairn
