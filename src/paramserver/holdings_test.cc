#include "paramserver/holdings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "format/json.h"
#include "paramserver/declaration.h"
#include "storage/forwarding_store.h"
#include "storage/open_store.h"

// What is under way in a server when it leaves its generation. Whole jobs are in job_test.cc and
// recovery_test.cc.

namespace cairn::ps {
namespace {

/// Where whoever passes can be held.
class Turnstile {
 public:
  void Pass() {
    MutexLock lock(&mu_);
    waiting_ = held_;
    changed_.NotifyAll();
    while (held_) changed_.Wait(&mu_);
    waiting_ = false;
  }
  void Hold() {
    MutexLock lock(&mu_);
    held_ = true;
  }
  /// Until somebody waits.
  void Await() {
    MutexLock lock(&mu_);
    while (!waiting_) changed_.Wait(&mu_);
  }
  void Release() {
    MutexLock lock(&mu_);
    held_ = false;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool held_ GUARDED_BY(mu_) = false;
  bool waiting_ GUARDED_BY(mu_) = false;
};

/// A store in which the writing of the log passes the turnstile.
class HeldStore final : public ForwardingStore {
 public:
  HeldStore(std::unique_ptr<Store> inner, Turnstile* turnstile)
      : ForwardingStore(inner.get()), inner_(std::move(inner)), turnstile_(turnstile) {}

  Status Create(const std::string& name, std::string_view bytes) override {
    if (name.ends_with(".journal")) turnstile_->Pass();
    return ForwardingStore::Create(name, bytes);
  }

 private:
  const std::unique_ptr<Store> inner_;
  Turnstile* const turnstile_;
};

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class HoldingsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ =
        testing::TempDir() + "cairn_holdings_" + info->name() + "_" + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override {
    holdings_ = nullptr;
    std::filesystem::remove_all(directory_);
  }

  ServerOptions Options(int index) const {
    ServerOptions options;
    options.directory = directory_;
    options.index = index;
    options.servers = servers_;
    options.mode = mode_;
    options.recovery = recovery_;
    options.full_secs.reset();
    return options;
  }
  std::unique_ptr<Holdings> OpenServer(int index, std::unique_ptr<Holdings::Kept> kept) {
    Holdings::Seams seams;
    seams.open_log_store = [this](const std::string& where) -> Result<std::shared_ptr<Store>> {
      auto store = OpenStore(where);
      if (!store.ok()) return store.status();
      return std::shared_ptr<Store>(std::make_shared<HeldStore>(*std::move(store), &turnstile_));
    };
    // Without a log it is held where it would go into one.
    if (recovery_ == Recovery::kPartial) seams.taken = [this] { turnstile_.Pass(); };
    auto opened = Holdings::Open(
        Options(index), std::make_shared<LeavingClock>(Clock::System()), &kept, [] {},
        std::move(seams));
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  /// The next generation of the one server, and trainer 0 greets it.
  void Open(std::unique_ptr<Holdings::Kept> kept) {
    holdings_ = OpenServer(0, std::move(kept));
    ASSERT_NE(holdings_, nullptr);
    Greet(holdings_.get());
  }
  void Greet(Holdings* holdings) {
    HelloRequest hello{.trainer = 0, .trainers = 1, .incarnation = "trainer"};
    hello.servers = static_cast<std::uint32_t>(servers_);
    bool lost = false;
    const auto greeted = holdings->Hello(hello, &lost);
    ASSERT_TRUE(greeted.ok()) << greeted.status().ToString();
  }
  /// As a server that another one tells to leave: what it has goes into the next generation.
  void Leave() {
    holdings_->Leave();
    auto kept = holdings_->Keep();
    holdings_ = nullptr;
    Open(std::move(kept));
  }
  /// As after a kill: what is stored is all there is.
  void Lose() {
    holdings_->Leave();
    holdings_ = nullptr;
    Open(nullptr);
  }
  /// Asks for it; when it was taken, and while its record is on its way into the log, where there
  /// is one, the server is told to leave. What is not answered with OK is asked for again, as a
  /// client does.
  template <typename Ask>
  void AskWhileLeaving(const Ask& ask) {
    turnstile_.Hold();
    auto answer = std::async(std::launch::async, ask);
    turnstile_.Await();
    holdings_->Leave();
    turnstile_.Release();
    const Status status = answer.get();
    Leave();
    if (status.ok()) return;
    EXPECT_EQ(status.code(), Code::kAborted) << status.ToString();
    const Status again = ask();
    EXPECT_TRUE(again.ok()) << again.ToString();
  }

  /// For each kind of job in which nobody goes back, with a server of its own.
  void ForEachJob(const std::function<void()>& test) {
    for (const Recovery recovery : {Recovery::kLog, Recovery::kPartial}) {
      for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
        SCOPED_TRACE(testing::Message() << "recovery " << static_cast<int>(recovery) << ", mode "
                                        << static_cast<int>(mode));
        recovery_ = recovery;
        mode_ = mode;
        Open(nullptr);
        test();
        holdings_ = nullptr;
        std::filesystem::remove_all(directory_);
      }
    }
  }

  static TableSpec CountsSpec(const std::string& name) {
    return {.name = name,
            .dim = 2,
            .optimizer = {"sgd", {{"learning_rate", 1}}},
            .initializer = {"constant", 0, 0}};
  }
  Status DeclareTable(const std::string& name) {
    const std::string body = EncodeJson(ToValue(CountsSpec(name)));
    return holdings_->DeclareTable(trainer_, {{.kind = Kind::kDeclareTable}, BytesOf(body)})
        .status();
  }
  Status DeclareDense(const std::string& name) {
    const DenseSpec spec{.name = name, .shape = {3}, .optimizer = {"sgd", {{"learning_rate", 1}}}};
    const std::string description = EncodeJson(ToValue(spec));
    std::span<std::byte> values;
    rpc::Message message =
        NewDenseDeclaration({.kind = Kind::kDeclareDense}, description, 3, &values);
    std::fill(values.begin(), values.end(), std::byte{0});
    return holdings_->DeclareDense(trainer_, DecodeRequest(message.bytes()).value()).status();
  }
  Status Push(std::uint32_t table, std::uint64_t sequence) {
    const std::vector<std::int64_t> keys{1, 2, 3};
    const std::vector<float> rows(keys.size() * 2, 1);
    rpc::Message message =
        NewRequest({.kind = Kind::kPush, .id = table, .sequence = sequence}, RowsBytes(3, 2));
    std::span<std::byte> key_bytes;
    std::span<std::byte> row_bytes;
    BeginRows(Body(&message), 3, 2, &key_bytes, &row_bytes);
    std::memcpy(key_bytes.data(), keys.data(), key_bytes.size());
    std::memcpy(row_bytes.data(), rows.data(), row_bytes.size());
    return holdings_->Change(trainer_, DecodeRequest(message.bytes()).value()).status();
  }
  Status PushDense(std::uint32_t id, std::uint64_t sequence) {
    const std::vector<float> ones(3, 1);
    const std::string body(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float));
    return holdings_
        ->Change(trainer_,
                 {{.kind = Kind::kDensePush, .id = id, .sequence = sequence}, BytesOf(body)})
        .status();
  }
  Status EndStep(std::int64_t step, std::uint64_t sequence) {
    const std::string body =
        Encode(EndStepRequest{.step = step, .has_state = true, .state = "state"});
    return holdings_
        ->EndStep(trainer_, {{.kind = Kind::kEndStep, .sequence = sequence}, BytesOf(body)})
        .status();
  }
  /// How often that table was pushed to; −1: not every key as often.
  int Pushes(std::uint32_t id) {
    Table* const table = holdings_->FindTable(id).value();
    const std::vector<std::int64_t> keys{1, 2, 3};
    std::vector<float> rows(keys.size() * 2);
    EXPECT_TRUE(table->Lookup(keys, rows, Missing::kInitial).ok());
    for (const float weight : rows) {
      if (weight != rows[0]) return -1;
    }
    return static_cast<int>(-rows[0]);
  }
  int DensePushes(std::uint32_t id) {
    int pushes = 0;
    EXPECT_TRUE(
        holdings_
            ->PullDense(
                id, [&](std::span<const float> values) { pushes = static_cast<int>(-values[0]); })
            .ok());
    return pushes;
  }
  std::vector<std::string> Names(const char* what) {
    std::vector<std::string> names;
    const Value described = holdings_->Describe();
    for (const Value& each : *described.Find(what)->if_list()) {
      names.push_back(*each.Find("name")->if_string());
    }
    return names;
  }

  const Peer trainer_{0, "trainer"};
  std::string directory_;
  int servers_ = 1;
  Mode mode_ = Mode::kAsync;
  Recovery recovery_ = Recovery::kLog;
  Turnstile turnstile_;
  std::unique_ptr<Holdings> holdings_;
};

TEST_F(HoldingsTest, APushThatIsUnderWayWhenAGenerationIsLeftCountsOnce) {
  ForEachJob([&] {
    ASSERT_TRUE(DeclareTable("counts").ok());
    ASSERT_TRUE(DeclareDense("bias").ok());
    ASSERT_TRUE(Push(0, 1).ok());
    AskWhileLeaving([&] { return Push(0, 2); });
    AskWhileLeaving([&] { return PushDense(0, 3); });
    ASSERT_TRUE(PushDense(0, 4).ok());
    ASSERT_TRUE(EndStep(0, 4).ok());
    EXPECT_EQ(Pushes(0), 2);
    EXPECT_EQ(DensePushes(0), 2);
    if (recovery_ == Recovery::kPartial) return;  // nothing brings it back after a kill
    Lose();
    EXPECT_EQ(Pushes(0), 2) << "in a replay too";
    EXPECT_EQ(DensePushes(0), 2) << "in a replay too";
  });
}

TEST_F(HoldingsTest, AnEndOfAStepThatIsUnderWayWhenAGenerationIsLeftCountsOnce) {
  ForEachJob([&] {
    ASSERT_TRUE(DeclareTable("counts").ok());
    ASSERT_TRUE(Push(0, 1).ok());
    AskWhileLeaving([&] { return EndStep(0, 1); });
    ASSERT_TRUE(Push(0, 2).ok());
    ASSERT_TRUE(EndStep(1, 2).ok());
    for (const bool lost : {false, true}) {
      SCOPED_TRACE(lost);
      if (lost && recovery_ == Recovery::kPartial) return;
      if (lost) Lose();
      EXPECT_EQ(Pushes(0), 2);
      EXPECT_EQ(holdings_->Describe().Find("global_step")->AsInt(), 2);
    }
  });
}

TEST_F(HoldingsTest, WhatIsDeclaredWhileAGenerationIsLeftIsThereOnce) {
  ForEachJob([&] {
    AskWhileLeaving([&] { return DeclareTable("first"); });
    AskWhileLeaving([&] { return DeclareDense("bias"); });
    ASSERT_TRUE(DeclareTable("second").ok());
    ASSERT_TRUE(DeclareDense("scale").ok());
    ASSERT_TRUE(Push(1, 1).ok());
    ASSERT_TRUE(PushDense(1, 2).ok());
    ASSERT_TRUE(EndStep(0, 2).ok());
    for (const bool lost : {false, true}) {
      SCOPED_TRACE(lost);
      if (lost && recovery_ == Recovery::kPartial) return;
      if (lost) Lose();
      EXPECT_EQ(Names("tables"), (std::vector<std::string>{"first", "second"}));
      EXPECT_EQ(Names("dense"), (std::vector<std::string>{"bias", "scale"}));
      EXPECT_EQ(Pushes(0), 0);
      EXPECT_EQ(Pushes(1), 1);
      EXPECT_EQ(DensePushes(0), 0);
      EXPECT_EQ(DensePushes(1), 1);
    }
  });
}

TEST_F(HoldingsTest, ALogThatDeclaresOneThingTwiceIsReplayedOnceAndNeverAnotherInItsPlace) {
  Open(nullptr);
  ASSERT_TRUE(DeclareTable("counts").ok());
  ASSERT_TRUE(Push(0, 1).ok());
  ASSERT_TRUE(EndStep(0, 1).ok());
  holdings_->Leave();
  holdings_ = nullptr;
  // As servers wrote it that refused after they had logged.
  const auto append = [&](const TableSpec& spec) {
    auto log = UpdateLog::Open(OpenStore(directory_).value(), "log/ps_0/start-1x1-async",
                               LogLevel::kWritten)
                   .value();
    ASSERT_TRUE(log->Replay(1, [](const LogRecord&) { return Status::Ok(); }).ok());
    const std::string body = EncodeJson(ToValue(spec));
    ASSERT_TRUE(
        log->Append({.kind = Kind::kDeclareTable, .trainer = 0, .body = BytesOf(body)}).ok());
  };
  append(CountsSpec("counts"));
  Open(nullptr);
  EXPECT_EQ(Names("tables"), std::vector<std::string>{"counts"});
  EXPECT_EQ(Pushes(0), 1);
  holdings_->Leave();
  holdings_ = nullptr;
  TableSpec other = CountsSpec("counts");
  other.dim = 3;
  append(other);
  std::unique_ptr<Holdings::Kept> kept;
  const Status opened =
      Holdings::Open(Options(0), std::make_shared<LeavingClock>(Clock::System()), &kept, [] {
      }).status();
  EXPECT_EQ(opened.code(), Code::kFailedPrecondition) << opened.ToString();
  EXPECT_NE(opened.message().find("counts"), opened.message().npos) << opened.ToString();
}

TEST(LeavingClock, WaitsEndThatBeginAfterItWasLeft) {
  LeavingClock clock(Clock::System());
  clock.Leave();
  for (const Clock::Duration patience : {std::chrono::hours(0), std::chrono::hours(24)}) {
    const Clock::Duration deadline = clock.Now() + patience;
    while (clock.Now() < deadline) clock.Sleep(std::chrono::hours(1));
  }
}

TEST_F(HoldingsTest, LeavingDoesNotWaitForASaveThatWaitsForALostServer) {
  servers_ = 2;
  recovery_ = Recovery::kPartial;
  std::unique_ptr<Holdings> lead;
  std::unique_ptr<Holdings> other;
  {
    std::jthread opening([&] { other = OpenServer(1, nullptr); });
    lead = OpenServer(0, nullptr);
  }
  ASSERT_NE(lead, nullptr);
  ASSERT_NE(other, nullptr);
  // The other server takes no part: as one that was killed.
  const std::uint64_t number = (lead->generation() << 32) + 1;
  ASSERT_TRUE(lead->CutNow({.number = number, .step = 1, .full = true}).ok());
  Greet(lead.get());
  const std::string body = EncodeJson(ToValue(CountsSpec("counts")));
  // It waits for the save, with the lock in its hand, unless Leave is faster.
  auto declared = std::async(std::launch::async, [&] {
    return lead->DeclareTable(trainer_, {{.kind = Kind::kDeclareTable}, BytesOf(body)}).status();
  });
  lead->Leave();
  const Status status = declared.get();
  EXPECT_TRUE(status.ok() || status.Is(Code::kAborted)) << status.ToString();
}

}  // namespace
}  // namespace cairn::ps
