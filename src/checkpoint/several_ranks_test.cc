#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <initializer_list>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "checkpoint/manager.h"
#include "checkpoint/test_job_store.h"
#include "storage/forwarding_store.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

/// Several ranks of one job.
class SeveralRanks : public OnBothStores {};

TEST_P(SeveralRanks, ThreeRanksCommitOneCheckpointAndAnyNumberRestoresIt) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kRows = 7;  // of each rank
  auto run = [&](int rank) {
    ManagerOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    auto manager = OpenManager(options, Env());
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    std::vector<float> piece(kRows * 5);
    for (std::size_t i = 0; i < piece.size(); ++i) {
      piece[i] = static_cast<float>(static_cast<std::size_t>(rank) * piece.size() + i);
    }
    const std::vector<int> shared(100, 42);
    for (const std::int64_t step : {1, 2}) {
      auto handle = (*manager)->Save(
          {.step = step,
           .tensors = {{.name = "embedding",
                        .dtype = DType::kF32,
                        .shape = {kRows, 5},
                        .data = piece.data(),
                        .shard = ShardSpec{{kRows * kRanks, 5},
                                           {kRows * static_cast<std::uint64_t>(rank), 0}}},
                       {.name = "shared",
                        .dtype = DType::kI32,
                        .shape = {100},
                        .data = shared.data(),
                        .replicated = true}},
           .state_files = {{"step_id", std::to_string(step) + "/" + std::to_string(rank)}}});
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      auto info = handle->Wait();
      ASSERT_TRUE(info.ok()) << info.status().ToString();
    }
  };
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run, rank);
  }
  auto opened = OpenManager({.rank = 1, .world_size = 2, .read_only = true}, Env());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const auto& reader = *opened;
  std::vector<float> top(10 * 5);
  std::vector<float> rest(11 * 5);
  std::vector<int> shared(100);
  auto restored = reader->Restore(
      {.into = {{.name = "embedding",
                 .dtype = DType::kF32,
                 .shape = {10, 5},
                 .data = top.data(),
                 .shard = ShardSpec{{kRows * kRanks, 5}, {0, 0}}},
                {.name = "shared", .dtype = DType::kI32, .shape = {100}, .data = shared.data()}}});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->step, 2);
  EXPECT_EQ(top[49], 49.0f);
  EXPECT_EQ(shared, std::vector<int>(100, 42));
  auto second = reader->Restore({.into = {{.name = "embedding",
                                           .dtype = DType::kF32,
                                           .shape = {11, 5},
                                           .data = rest.data(),
                                           .shard = ShardSpec{{kRows * kRanks, 5}, {10, 0}}}},
                                 .skip = {"shared"}});
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(rest.front(), 50.0f);
  EXPECT_EQ(rest.back(), 104.0f);
}

/// While `full` the records of rank_0's part and of giving up cannot be written; the latter also
/// while it is `mute`.
class NoRoom final : public ForwardingStore {
 public:
  explicit NoRoom(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  std::atomic<bool> full{false};
  std::atomic<bool> mute{false};
  Status Create(const std::string& name, std::string_view bytes) override {
    return Fits(name) ? ForwardingStore::Create(name, bytes) : ResourceExhaustedError("full");
  }
  Status CreateVolatile(const std::string& name, std::string_view bytes,
                        AfterCrash crash) override {
    return Fits(name) ? ForwardingStore::CreateVolatile(name, bytes, crash)
                      : ResourceExhaustedError("full");
  }

 private:
  bool Fits(const std::string& name) const {
    if (name.ends_with("abandoned.json")) return !full && !mute;
    return !full || !name.ends_with("parts/rank_0.json");
  }
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

TEST_P(SeveralRanks, ACommitterThatCannotEvenSayThatItGaveUpKeepsNobodyWaiting) {
  Environment env = Env();
  const auto disk = std::make_shared<NoRoom>(env.store);
  env.store = disk;
  const std::vector<int> numbers(10, 1);
  const auto save = [&](CheckpointManager* manager, std::int64_t step) {
    return manager
        ->Save({.step = step,
                .tensors = {{.name = "w",
                             .dtype = DType::kI32,
                             .shape = {10},
                             .data = numbers.data(),
                             .replicated = true}}})
        .value()
        .Wait()
        .status();
  };
  Status first;
  Status second;
  {
    std::jthread other([&] {
      auto manager = OpenManager({.rank = 1, .world_size = 2}, Env()).value();
      first = save(manager.get(), 1);
      second = save(manager.get(), 2);
    });
    auto manager = OpenManager({.rank = 0, .world_size = 2}, env).value();
    disk->mute = true;
    disk->full = true;
    EXPECT_EQ(save(manager.get(), 1).code(), Code::kResourceExhausted);
    disk->full = false;
    const Status saved = save(manager.get(), 2);
    EXPECT_TRUE(saved.ok()) << saved.ToString();
  }
  EXPECT_EQ(first.code(), Code::kDeadlineExceeded) << first.ToString();
  EXPECT_NE(first.message().find("rank_0 went on to another save"), std::string_view::npos)
      << first.ToString();
  EXPECT_TRUE(second.ok()) << second.ToString();
}

TEST_P(SeveralRanks, WhatACommitterCouldNotSayItSaysWhenThereIsRoom) {
  Environment env = Env();
  const auto disk = std::make_shared<NoRoom>(env.store);
  env.store = disk;
  // rank_0 fails when nothing but its word is missing at the other.
  std::latch delivered(1);
  env.on_step = [&](std::string_view step) {
    if (step == "save: part") delivered.wait();
  };
  Environment others = Env();
  others.on_step = [&](std::string_view step) {
    if (step == "save: wait for the manifest") delivered.count_down();
  };
  const std::vector<int> numbers(10, 1);
  const auto begin = [&](CheckpointManager* manager) {
    return manager
        ->Save({.step = 1,
                .tensors = {{.name = "w",
                             .dtype = DType::kI32,
                             .shape = {10},
                             .data = numbers.data(),
                             .replicated = true}}})
        .value();
  };
  std::future<std::unique_ptr<CheckpointManager>> joining = std::async(std::launch::async, [&] {
    return OpenManager({.rank = 1, .world_size = 2}, others).value();
  });
  auto manager = OpenManager({.rank = 0, .world_size = 2}, env).value();
  const auto other = joining.get();
  disk->full = true;
  SaveHandle waits = begin(other.get());
  EXPECT_EQ(begin(manager.get()).Wait().status().code(), Code::kResourceExhausted);
  EXPECT_FALSE(waits.Done());
  disk->full = false;  // and no further save, by which it would say so
  ASSERT_TRUE(waits.WaitFor(std::chrono::seconds(60)));
  EXPECT_EQ(waits.Wait().status().code(), Code::kUnavailable);
  EXPECT_NE(waits.Wait().status().message().find("was given up: nothing came from rank_0"),
            std::string_view::npos)
      << waits.Wait().status().ToString();
}

/// A disk of one rank that has no room for anything, records included, while it is `full`.
class NoRoomAtAll final : public ForwardingStore {
 public:
  explicit NoRoomAtAll(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  std::atomic<bool> full{false};
  std::atomic<bool> records{false};  // the same, and a save is told so only when it writes
  Status Create(const std::string& name, std::string_view bytes) override {
    return full || records ? ResourceExhaustedError("full") : ForwardingStore::Create(name, bytes);
  }
  Status CreateVolatile(const std::string& name, std::string_view bytes,
                        AfterCrash crash) override {
    return full || records ? ResourceExhaustedError("full")
                           : ForwardingStore::CreateVolatile(name, bytes, crash);
  }
  Result<std::optional<std::uint64_t>> FreeBytes() override {
    return full ? std::optional<std::uint64_t>(0) : std::nullopt;
  }

 private:
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

// A save that is refused before it begins is declined, and the others wait for that word, too.
TEST_P(SeveralRanks, WhatARankCouldNotDeclineItDeclinesWhenThereIsRoom) {
  std::vector<int> numbers(10);  // others each time: what is stored already needs no room
  std::array<std::unique_ptr<CheckpointManager>, 2> managers;
  const auto begin = [&](int rank, std::int64_t step) {
    const std::string name = "w" + std::to_string(rank);
    return managers[static_cast<std::size_t>(rank)]->Save(
        {.step = step,
         .tensors = {{.name = name, .dtype = DType::kI32, .shape = {10}, .data = numbers.data()}}});
  };
  for (const int poor : {0, 1}) {
    for (const OnBusy on_busy : {OnBusy::kWait, OnBusy::kSkip}) {
      SCOPED_TRACE(testing::Message() << "rank " << poor << (on_busy == OnBusy::kSkip));
      std::array<std::shared_ptr<NoRoomAtAll>, 2> disks;
      {
        std::vector<std::jthread> ranks;
        for (int rank = 0; rank < 2; ++rank) {
          ranks.emplace_back([&, rank] {
            const auto at = static_cast<std::size_t>(rank);
            Environment env = Env();
            disks[at] = std::make_shared<NoRoomAtAll>(env.store);
            env.store = disks[at];
            managers[at] =
                OpenManager({.rank = rank, .world_size = 2, .on_busy = on_busy}, env).value();
          });
        }
      }
      const auto at = static_cast<std::size_t>(poor);
      ++numbers[0];
      disks[at]->full = true;
      EXPECT_EQ(begin(poor, 1).status().code(), Code::kResourceExhausted);
      SaveHandle waits = begin(1 - poor, 1).value();
      EXPECT_FALSE(waits.WaitFor(std::chrono::milliseconds(300)));
      disks[at]->full = false;  // and no further save, by which it would say so
      ASSERT_TRUE(waits.WaitFor(std::chrono::seconds(60)));
      const Status told = waits.Wait().status();
      EXPECT_EQ(told.code(), poor == 0 ? Code::kCancelled : Code::kUnavailable) << told.ToString();
      // Its thread may still be at retention, and the next save would be skipped.
      managers[1 - at]->WaitAll().IgnoreError("what it was told is known");
      SaveHandle other = begin(1, 2).value();
      const Status saved = begin(0, 2).value().Wait().status();
      EXPECT_TRUE(saved.ok()) << saved.ToString();
      EXPECT_TRUE(other.Wait().ok()) << other.Wait().status().ToString();
      for (auto& manager : managers) {
        const Status closed = manager->Close();
        EXPECT_TRUE(closed.ok()) << closed.ToString() << ": the word was said in the end";
      }
    }
  }
}

// Also while it makes the next save: the others have to be through with this one before.
TEST_P(SeveralRanks, WhatACommitterCouldNotAnnounceItSaysDuringItsNextSave) {
  Environment env = Env();
  const auto disk = std::make_shared<NoRoomAtAll>(env.store);
  env.store = disk;
  const std::vector<int> numbers(10, 1);
  const auto begin = [&](CheckpointManager* manager, std::int64_t step) {
    return manager
        ->Save({.step = step,
                .tensors = {{.name = "w",
                             .dtype = DType::kI32,
                             .shape = {10},
                             .data = numbers.data(),
                             .replicated = true}}})
        .value();
  };
  Status first;
  Status second;
  {
    std::jthread other([&] {
      const auto manager = OpenManager({.rank = 1, .world_size = 2}, Env()).value();
      first = begin(manager.get(), 1).Wait().status();
      second = begin(manager.get(), 2).Wait().status();
    });
    const auto manager = OpenManager({.rank = 0, .world_size = 2}, env).value();
    disk->records = true;  // its directory cannot be claimed
    EXPECT_EQ(begin(manager.get(), 1).Wait().status().code(), Code::kResourceExhausted);
    disk->records = false;
    const Status saved = begin(manager.get(), 2).Wait().status();
    EXPECT_TRUE(saved.ok()) << saved.ToString();
  }
  EXPECT_EQ(first.code(), Code::kCancelled) << first.ToString();
  EXPECT_TRUE(second.ok()) << second.ToString();
}

/// Where rank_1's files are deleted while it writes them: rank_0 cannot write any, gives up and
/// cleans up, and only then does rank_1 go on.
class DeletedUnderWay {
 public:
  /// The store as that rank sees it.
  std::shared_ptr<Store> SeenBy(int rank, std::shared_ptr<Store> inner) {
    return std::make_shared<View>(this, rank, std::move(inner));
  }

 private:
  class View final : public ForwardingStore {
   public:
    View(DeletedUnderWay* ground, int rank, std::shared_ptr<Store> inner)
        : ForwardingStore(inner.get()), ground_(ground), rank_(rank), inner_(std::move(inner)) {}
    Status CreateVolatile(const std::string& name, std::string_view bytes,
                          AfterCrash crash) override {
      Status created = ForwardingStore::CreateVolatile(name, bytes, crash);
      if (rank_ == 0 && name.ends_with("abandoned.json")) {
        MutexLock lock(&ground_->mu_);
        ground_->given_up_ = true;
        ground_->changed_.NotifyAll();
      }
      return created;
    }
    Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode) override {
      if (rank_ == 0) return ResourceExhaustedError("the disk is full");
      MutexLock lock(&ground_->mu_);
      while (!ground_->given_up_) ground_->changed_.Wait(&ground_->mu_);
      return NotFoundError("open rank_1-00001.safetensors: No such file or directory");
    }

   private:
    DeletedUnderWay* const ground_;
    const int rank_;
    const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
  };

  Mutex mu_;
  CondVar changed_;
  bool given_up_ GUARDED_BY(mu_) = false;
};

Status SaveOwnTensor(CheckpointManager* manager, int rank) {
  const std::vector<int> numbers(10, rank);
  return manager
      ->Save({.step = 1,
              .tensors = {{.name = "w" + std::to_string(rank),
                           .dtype = DType::kI32,
                           .shape = {10},
                           .data = numbers.data()}}})
      .value()
      .Wait()
      .status();
}

TEST_P(SeveralRanks, OneWhoseFilesWereDeletedUnderWayIsToldWhoGaveUp) {
  DeletedUnderWay ground;
  std::array<Status, 2> saved;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        Environment env = Env();
        env.store = ground.SeenBy(rank, env.store);
        auto manager = OpenManager({.rank = rank, .world_size = 2}, env).value();
        saved[static_cast<std::size_t>(rank)] = SaveOwnTensor(manager.get(), rank);
      });
    }
  }
  EXPECT_EQ(saved[0].code(), Code::kResourceExhausted) << saved[0].ToString();
  EXPECT_EQ(saved[1].code(), Code::kUnavailable) << saved[1].ToString();
  EXPECT_NE(saved[1].message().find("nothing came from rank_0"), std::string_view::npos)
      << saved[1].ToString();
}

/// The disk of rank_0 is full: it can neither write files nor say so, but delete. Rank_1 has made a
/// file and goes on with it only when rank_0 has cleaned up.
class DeletedWithoutAWord {
 public:
  /// The store as that rank sees it.
  std::shared_ptr<Store> SeenBy(int rank, std::shared_ptr<Store> inner) {
    return std::make_shared<View>(this, rank, std::move(inner));
  }
  enum class Stage { kBegun, kFileMade, kCleanedUp };
  void Reach(Stage stage) {
    MutexLock lock(&mu_);
    stage_ = stage;
    changed_.NotifyAll();
  }

 private:
  void Await(Stage stage) {
    MutexLock lock(&mu_);
    while (stage_ != stage) changed_.Wait(&mu_);
  }

  /// Makes a file and then opens it a second time, past the page cache.
  class Session final : public WriteSession {
   public:
    Session(DeletedWithoutAWord* ground, Store* store, std::unique_ptr<WriteSession> inner)
        : ground_(ground), store_(store), inner_(std::move(inner)) {}
    std::size_t part_bytes() const override { return inner_->part_bytes(); }
    Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override {
      ASSIGN_OR_RETURN(const std::uint32_t opened, inner_->Open(name, object));
      ground_->Reach(Stage::kFileMade);
      ground_->Await(Stage::kCleanedUp);
      RETURN_IF_ERROR(store_->Stat(name).status().WithContext("open " + name));
      return opened;
    }
    Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                  std::uint64_t tag) override {
      return inner_->Append(object, part, padded, tag);
    }
    Status Close(std::uint32_t object) override { return inner_->Close(object); }
    Result<std::uint64_t> WaitPart() override { return inner_->WaitPart(); }
    Status Drain() override { return inner_->Drain(); }

   private:
    DeletedWithoutAWord* const ground_;
    Store* const store_;
    const std::unique_ptr<WriteSession> inner_;
  };

  class View final : public ForwardingStore {
   public:
    View(DeletedWithoutAWord* ground, int rank, std::shared_ptr<Store> inner)
        : ForwardingStore(inner.get()), ground_(ground), rank_(rank), inner_(std::move(inner)) {}
    Status CreateVolatile(const std::string& name, std::string_view bytes,
                          AfterCrash crash) override {
      if (rank_ == 0 && name.ends_with("abandoned.json")) return ResourceExhaustedError("full");
      return ForwardingStore::CreateVolatile(name, bytes, crash);
    }
    Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override {
      if (rank_ == 0) {
        ground_->Await(Stage::kFileMade);
        return ResourceExhaustedError("full");
      }
      ASSIGN_OR_RETURN(std::unique_ptr<WriteSession> session,
                       ForwardingStore::NewWriteSession(mode));
      if (rank_ == 1) {
        session = std::make_unique<Session>(ground_, inner(), std::move(session));
      }
      return session;
    }

   private:
    DeletedWithoutAWord* const ground_;
    const int rank_;
    const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
  };

  Mutex mu_;
  CondVar changed_;
  Stage stage_ GUARDED_BY(mu_) = Stage::kBegun;
};

/// Only a file system has a file's name before all of its bytes are there.
class SeveralRanksOnDisk : public testing::Test, protected TestJobStore {
 protected:
  SeveralRanksOnDisk() : TestJobStore(/*object_store=*/false) {}
};

TEST_F(SeveralRanksOnDisk, OneWhoseFilesWereDeletedWithoutAWordSaysWhoGaveUp) {
  DeletedWithoutAWord ground;
  std::array<Status, 3> saved;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        Environment env = Env();
        env.store = ground.SeenBy(rank, env.store);
        auto manager = OpenManager({.rank = rank, .world_size = 3}, env).value();
        saved[static_cast<std::size_t>(rank)] = SaveOwnTensor(manager.get(), rank);
        if (rank == 0) ground.Reach(DeletedWithoutAWord::Stage::kCleanedUp);
      });
    }
  }
  EXPECT_EQ(saved[0].code(), Code::kResourceExhausted) << saved[0].ToString();
  for (const Status& status : {saved[1], saved[2]}) {
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find("nothing came from rank_0"), std::string_view::npos)
        << status.ToString();
  }
}

/// A door that whoever reaches a certain step of the protocol waits at.
class Door {
 public:
  explicit Door(std::string step) : step_(std::move(step)) {}
  std::function<void(std::string_view)> OnStep() {
    return [this](std::string_view step) {
      if (step != step_) return;
      MutexLock lock(&mu_);
      waiting_ = true;
      changed_.NotifyAll();
      while (!open_) changed_.Wait(&mu_);
    };
  }
  void AwaitSomebody() {
    MutexLock lock(&mu_);
    while (!waiting_) changed_.Wait(&mu_);
  }
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  const std::string step_;
  Mutex mu_;
  CondVar changed_;
  bool waiting_ GUARDED_BY(mu_) = false;
  bool open_ GUARDED_BY(mu_) = false;
};

/// Two ranks that skip saves while one is in flight, held up at doors of their own.
class SkippingRanks : public SeveralRanks {
 protected:
  /// `store`: what rank 0 (1) sees instead of the common one; null: that.
  void Open(std::string_view door_0, std::string_view door_1,
            std::array<std::shared_ptr<Store>, 2> stores = {}) {
    std::vector<std::jthread> opening;
    const std::array<std::string_view, 2> steps = {door_0, door_1};
    for (std::size_t rank = 0; rank < 2; ++rank) {
      doors_[rank] = std::make_unique<Door>(std::string(steps[rank]));
      opening.emplace_back([this, rank, store = stores[rank]] {
        Environment env = Env();
        if (store != nullptr) env.store = store;
        env.on_step = doors_[rank]->OnStep();
        ranks_[rank] =
            OpenManager({.rank = static_cast<int>(rank), .world_size = 2, .on_busy = OnBusy::kSkip},
                        env)
                .value();
      });
    }
  }
  ~SkippingRanks() override {
    for (const auto& door : doors_) {
      if (door != nullptr) door->Open();
    }
  }
  SaveHandle Save(std::size_t rank, std::int64_t step) {
    auto handle = ranks_[rank]->Save({.step = step,
                                      .tensors = {{.name = "own",
                                                   .dtype = DType::kF32,
                                                   .shape = {1},
                                                   .data = &value_,
                                                   .group = TensorGroup::kState}}});
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    return handle.ok() ? *handle : SaveHandle();
  }
  std::future<SaveHandle> SaveAside(std::size_t rank, std::int64_t step) {
    return std::async(std::launch::async, [this, rank, step] { return Save(rank, step); });
  }
  /// That it returned although the save before it is held up. One that hangs fails, and is let go.
  void ExpectSkipped(std::future<SaveHandle> save) {
    if (save.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      ADD_FAILURE() << "it waits for the save in flight";
      for (const auto& door : doors_) door->Open();
    }
    const Status skipped = save.get().Wait().status();
    EXPECT_TRUE(skipped.Is(Code::kCancelled)) << skipped.ToString();
  }
  static void ExpectSaved(const SaveHandle& handle) {
    const auto info = handle.Wait();
    EXPECT_TRUE(info.ok()) << info.status().ToString();
  }

  const float value_ = 1;
  std::array<std::unique_ptr<Door>, 2> doors_;
  std::array<std::unique_ptr<CheckpointManager>, 2> ranks_;
};

TEST_P(SkippingRanks, NobodyWaitsForASaveThatIsHeldUp) {
  Open("save: manifest", "");
  const std::array<SaveHandle, 2> first = {Save(0, 1), Save(1, 1)};
  doors_[0]->AwaitSomebody();
  ExpectSkipped(SaveAside(0, 2));
  ExpectSkipped(SaveAside(1, 2));
  // Who comes first waits for the word of rank 0, not for the save.
  std::future<SaveHandle> early = SaveAside(1, 3);
  ExpectSkipped(SaveAside(0, 3));
  ExpectSkipped(std::move(early));
  EXPECT_FALSE(first[0].Done());
  EXPECT_FALSE(first[1].Done());
  doors_[0]->Open();
  for (const SaveHandle& handle : first) ExpectSaved(handle);
  for (const auto& rank : ranks_) EXPECT_TRUE(rank->WaitAll().ok());
  const std::array<SaveHandle, 2> last = {Save(0, 4), Save(1, 4)};
  for (const SaveHandle& handle : last) ExpectSaved(handle);
  for (const auto& rank : ranks_) {
    EXPECT_EQ(Steps(rank.get()), (std::vector<std::int64_t>{1, 4}));
    EXPECT_TRUE(rank->Close().ok());
  }
}

TEST_P(SkippingRanks, TheSlowerOneTakesPartInWhatRankZeroBegins) {
  Open("", "save: fence");  // it has seen the manifest
  const std::array<SaveHandle, 2> first = {Save(0, 1), Save(1, 1)};
  doors_[1]->AwaitSomebody();
  ExpectSaved(first[0]);
  EXPECT_TRUE(ranks_[0]->WaitAll().ok());
  const SaveHandle second = Save(0, 2);
  std::future<SaveHandle> slow = SaveAside(1, 2);
  EXPECT_FALSE(first[1].Done());
  doors_[1]->Open();
  ExpectSaved(first[1]);
  ExpectSaved(slow.get());
  ExpectSaved(second);
  for (const auto& rank : ranks_) EXPECT_TRUE(rank->Close().ok());
}

/// Rank 0's announcements cannot be read, for a while.
class Unheard final : public ForwardingStore {
 public:
  explicit Unheard(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  std::atomic<bool> broken{false};
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    if (broken && name.find("/attempts/") != name.npos) {
      broken = false;
      return UnavailableError("the server does not answer");
    }
    return ForwardingStore::Get(name, limit);
  }

 private:
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

TEST_P(SkippingRanks, OneThatCouldNotReadTheWordOfRankZeroIsToldLater) {
  const auto unheard = std::make_shared<Unheard>(Env().store);
  Open("save: manifest", "save: wait for the manifest", {nullptr, unheard});
  const std::array<SaveHandle, 2> first = {Save(0, 1), Save(1, 1)};
  doors_[0]->AwaitSomebody();
  doors_[1]->AwaitSomebody();
  unheard->broken = true;
  std::future<SaveHandle> second = SaveAside(1, 2);
  while (unheard->broken) std::this_thread::yield();
  ExpectSkipped(SaveAside(0, 2));
  for (const auto& door : doors_) door->Open();
  ExpectSkipped(std::move(second));
  for (const SaveHandle& handle : first) ExpectSaved(handle);
  for (const auto& rank : ranks_) EXPECT_TRUE(rank->WaitAll().ok());
  const std::array<SaveHandle, 2> third = {Save(0, 3), Save(1, 3)};
  for (const SaveHandle& handle : third) ExpectSaved(handle);
  for (const auto& rank : ranks_) EXPECT_TRUE(rank->Close().ok());
}

TEST_P(SkippingRanks, OneThatWaitsForASaveThatWasGivenUpWithoutAWordLooksPastSkippedOnes) {
  const auto disk = std::make_shared<NoRoom>(Env().store);
  Open("save: part", "", {disk, nullptr});
  const std::array<SaveHandle, 2> first = {Save(0, 1), Save(1, 1)};
  doors_[0]->AwaitSomebody();
  ExpectSkipped(SaveAside(0, 2));
  ExpectSkipped(SaveAside(1, 2));
  disk->mute = true;
  disk->full = true;
  doors_[0]->Open();
  EXPECT_EQ(first[0].Wait().status().code(), Code::kResourceExhausted);
  disk->full = false;
  EXPECT_TRUE(ranks_[0]->WaitAll().ok());
  const SaveHandle third = Save(0, 3);
  const Status lost = first[1].Wait().status();
  EXPECT_NE(lost.message().find("rank_0 went on to another save"), std::string_view::npos)
      << lost.ToString();
  EXPECT_TRUE(ranks_[1]->WaitAll().ok());
  ExpectSaved(Save(1, 3));
  ExpectSaved(third);
  for (const auto& rank : ranks_) EXPECT_TRUE(rank->Close().ok());
}

TEST_P(SeveralRanks, AMissingRankIsNamed) {
  ManagerOptions options;
  options.world_size = 2;
  options.join_deadline = std::chrono::milliseconds(50);
  auto manager = OpenManager(options, Env());
  EXPECT_EQ(manager.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(manager.status().message().find("rank_1"), std::string_view::npos);
  EXPECT_NE(manager.status().message().find("merge"), std::string_view::npos);
}

TEST_P(SeveralRanks, ARankThatCountsAnotherNumberIsRefused) {
  Status refused;
  {
    std::jthread other(
        [&] { refused = OpenManager({.rank = 1, .world_size = 3}, Env()).status(); });
    EXPECT_TRUE(OpenManager({.rank = 0, .world_size = 2}, Env()).ok());
  }
  EXPECT_TRUE(refused.Is(Code::kInvalidArgument)) << refused.ToString();
  EXPECT_NE(refused.ToString().find("rank_1 was opened as one of 3, rank_0 as one of 2"),
            std::string::npos)
      << refused.ToString();
}

TEST_P(SeveralRanks, AJoinThatADeadRankLeftBehindIsNotTakenForALivingOne) {
  ManagerOptions options;
  options.world_size = 2;
  options.rank = 1;
  options.join_deadline = std::chrono::milliseconds(20);
  EXPECT_EQ(OpenManager(options, Env()).status().code(), Code::kDeadlineExceeded);
  options.rank = 0;
  const auto manager = OpenManager(options, Env());
  EXPECT_EQ(manager.status().code(), Code::kDeadlineExceeded) << manager.status().ToString();
  EXPECT_NE(manager.status().message().find("rank_1"), std::string_view::npos);
}

TEST_P(SeveralRanks, ASecondProcessOfARankIsToldOfTheFirst) {
  std::unique_ptr<CheckpointManager> first;
  std::unique_ptr<CheckpointManager> committer;
  {
    std::jthread rank_1([&] { first = OpenManager({.rank = 1, .world_size = 2}, Env()).value(); });
    committer = OpenManager({.rank = 0, .world_size = 2}, Env()).value();
  }
  ManagerOptions options{.rank = 1, .world_size = 2};
  options.join_deadline = std::chrono::milliseconds(20);
  const Status refused = OpenManager(options, Env()).status();
  EXPECT_TRUE(refused.Is(Code::kDeadlineExceeded)) << refused.ToString();
  EXPECT_NE(refused.ToString().find("took part as rank_1: if it is still running, two living "),
            std::string::npos)
      << refused.ToString();
}

// Start records are written for the living: a machine that went down may have left names without
// bytes. Whichever rank comes first.
TEST_P(SeveralRanks, AStartRecordThatTheMachineTookWithItIsNone) {
  const auto open_both = [&](std::chrono::milliseconds later) {
    std::jthread rank_1([&] {
      const auto opened = OpenManager({.rank = 1, .world_size = 2}, Env());
      EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    });
    std::this_thread::sleep_for(later);
    const auto opened = OpenManager({.rank = 0, .world_size = 2}, Env());
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  };
  open_both({});
  for (const std::string& left : {std::string(), std::string("{"), std::string(4, '\0')}) {
    const auto names = Env().store->List("generations").value().objects;
    for (const ObjectInfo& object : names) {
      if (!object.name.ends_with(".start.json")) continue;
      ASSERT_TRUE(Env().store->Put(object.name, left).ok());
    }
    open_both(std::chrono::milliseconds(100));
  }
}

/// Two ranks, each with a tensor of its own, that do something together.
class TwoRanks : public SeveralRanks {
 protected:
  using Rank = std::function<void(CheckpointManager*, float*)>;

  void Run(const Rank& body) {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        ManagerOptions options;
        options.rank = rank;
        options.world_size = 2;
        auto manager = OpenManager(options, Env());
        ASSERT_TRUE(manager.ok()) << manager.status().ToString();
        float value = -1;
        body(manager->get(), &value);
      });
    }
  }
  void Save(std::initializer_list<int> steps) {
    Run([steps](CheckpointManager* manager, float* value) {
      for (const int step : steps) {
        *value = static_cast<float>(step);
        SaveStep(manager, step, value);
      }
    });
  }
  static void SaveStep(CheckpointManager* manager, int step, const float* value) {
    auto handle = manager->Save({.step = step,
                                 .tensors = {{.name = "own",
                                              .dtype = DType::kF32,
                                              .shape = {1},
                                              .data = value,
                                              .group = TensorGroup::kState}},
                                 .blocking = true});
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  }
  static Result<std::optional<Restored>> Restore(CheckpointManager* manager, float* value) {
    return manager->Restore({.into = {{.name = "own",
                                       .dtype = DType::kF32,
                                       .shape = {1},
                                       .data = value,
                                       .group = TensorGroup::kState}}});
  }
  /// Flips a bit in rank 1's tensor: rank 0 reads nothing of it.
  void DamageRankOne(const std::string& directory) {
    const std::string name = directory + "/rank_1/state.safetensors";
    auto bytes = Env().store->Get(name, 1 << 20);
    ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
    bytes->back() = static_cast<char>(bytes->back() ^ 1);
    ASSERT_TRUE(Env().store->Put(name, *bytes).ok());
  }
};

TEST_P(TwoRanks, GoBackTogetherAfterOneOfThemFoundDamage) {
  Save({10, 20});
  DamageRankOne("checkpoint_000020");
  Run([](CheckpointManager* manager, float* value) {
    auto restored = Restore(manager, value);
    if (restored.ok()) {
      EXPECT_EQ((*restored)->step, 20);  // rank 0 has nothing of what is damaged
      return;
    }
    EXPECT_EQ(restored.status().code(), Code::kCorruption);
    EXPECT_NE(restored.status().message().find("start all participants again"),
              std::string_view::npos);
  });
  Run([](CheckpointManager* manager, float* value) {
    auto restored = Restore(manager, value);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ((*restored)->step, 10);
    EXPECT_EQ(*value, 10);
    *value = 15;
    SaveStep(manager, 15, value);
  });
  Run([](CheckpointManager* manager, float* value) {
    auto restored = Restore(manager, value);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ((*restored)->step, 15) << "the new branch wins";
  });
}

TEST_P(TwoRanks, DamageThatWasMendedIsForgotten) {
  Save({10, 20});
  const std::string name = "checkpoint_000020/rank_1/state.safetensors";
  const auto good = Env().store->Get(name, 1 << 20);
  ASSERT_TRUE(good.ok());
  DamageRankOne("checkpoint_000020");
  Run([](CheckpointManager* manager, float* value) { (void)Restore(manager, value); });
  ASSERT_TRUE(Env().store->Put(name, *good).ok());
  Run([](CheckpointManager* manager, float* value) {
    auto restored = Restore(manager, value);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ((*restored)->step, 20);
  });
}

TEST_P(TwoRanks, AreNotStartedAfreshWhenNoCheckpointIsWhole) {
  Save({10});
  ASSERT_TRUE(Env().store->Delete("checkpoint_000010/rank_1/state.safetensors").ok());
  Run([](CheckpointManager* manager, float* value) {
    const auto restored = Restore(manager, value);
    EXPECT_EQ(restored.status().code(), Code::kCorruption);
    EXPECT_NE(restored.status().message().find("checkpoint_000010"), std::string_view::npos);
  });
}

TEST_P(TwoRanks, OneThatIsReplacedWhileItLivesIsToldOfTheOther) {
  std::unique_ptr<CheckpointManager> first;
  std::unique_ptr<CheckpointManager> committer;
  {
    std::jthread rank_1([&] { first = OpenManager({.rank = 1, .world_size = 2}, Env()).value(); });
    committer = OpenManager({.rank = 0, .world_size = 2}, Env()).value();
  }
  const auto joins = [&] {
    std::set<std::string> names;
    for (const ObjectInfo& object : Env().store->List("generations/joins").value().objects) {
      names.insert(object.name);
    }
    return names;
  };
  const auto save = [](CheckpointManager* manager) {
    const float value = 1;
    const auto handle = manager->Save({.step = 1,
                                       .tensors = {{.name = "own",
                                                    .dtype = DType::kF32,
                                                    .shape = {1},
                                                    .data = &value,
                                                    .group = TensorGroup::kState}},
                                       .blocking = true});
    return handle.status();
  };
  const std::set<std::string> before = joins();
  // Another process of rank 1 comes; the committer admits it with the next save.
  std::jthread second([&] {
    const auto manager = OpenManager({.rank = 1, .world_size = 2}, Env());
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    save(manager->get()).IgnoreError("whose part came first is not said");
  });
  while (joins() == before || joins().empty()) std::this_thread::yield();
  Status lost;
  std::jthread displaced([&] { lost = save(first.get()); });
  save(committer.get()).IgnoreError("whose part came first is not said");
  displaced.join();
  EXPECT_TRUE(lost.Is(Code::kAborted)) << lost.ToString();
  EXPECT_NE(lost.ToString().find("as rank_1: two living processes have this rank"),
            std::string::npos)
      << lost.ToString();
}

TEST_P(TwoRanks, RestoreTheLatestOfTheirOwnSaves) {
  Save({10});
  Run([](CheckpointManager* manager, float* value) {
    *value = 20;
    SaveStep(manager, 20, value);
    auto restored = Restore(manager, value);
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ((*restored)->step, 20);
  });
}

INSTANTIATE_TEST_SUITE_P(Stores, TwoRanks, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& which) {
                           return which.param ? "Objects" : "Links";
                         });

INSTANTIATE_TEST_SUITE_P(Stores, SkippingRanks, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& which) {
                           return which.param ? "Objects" : "Links";
                         });

INSTANTIATE_TEST_SUITE_P(Stores, SeveralRanks, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& which) {
                           return which.param ? "Objects" : "Links";
                         });

}  // namespace
}  // namespace cairn
