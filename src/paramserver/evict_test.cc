#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "paramserver/job_fixture.h"

// Rows that are evicted on servers: each eviction once, in sync mode where it makes no difference
// who asked first, and the same after any loss.

namespace cairn::ps {
namespace {

using Rows = std::map<std::int64_t, std::vector<float>>;

constexpr std::int64_t kStepsToLive = 3;

/// A table over which a window of keys moves: what is behind the window gets old.
class Window {
 public:
  Status Declare(Client* client) {
    TableSpec spec{.name = "window", .dim = 2};
    spec.optimizer = {"adagrad", {{"learning_rate", 0.1}}};
    spec.initializer = {"normal", 0, 0.1};
    spec.steps_to_live = kStepsToLive;
    client_ = client;
    ASSIGN_OR_RETURN(table_, client->Table(spec));
    return Status::Ok();
  }
  /// `evict`: also asks for an eviction at that step.
  Status Step(std::int64_t step, bool evict) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 12; ++i) ids.push_back(step * 5 + i * (client_->trainer() + 1));
    std::vector<float> rows(ids.size() * 2);
    RETURN_IF_ERROR(table_->Lookup(ids, rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = std::sin(rows[i] * 3 + static_cast<float>(i));
    }
    RETURN_IF_ERROR(table_->ApplyGradients(ids, rows));
    if (!evict) return Status::Ok();
    ASSIGN_OR_RETURN(const auto evicted, table_->Evict(step));
    if (evicted.has_value() != (client_->mode() == Mode::kAsync)) {
      return InternalError("what is known at once was not told, or what is not was");
    }
    return Status::Ok();
  }
  Result<Rows> Content() {
    ASSIGN_OR_RETURN(const TableContent content, table_->Content());
    Rows rows;
    for (std::size_t i = 0; i < content.keys.size(); ++i) {
      std::vector<float>& row = rows[content.keys[i]];
      row.push_back(static_cast<float>(content.version[i]));
      row.push_back(static_cast<float>(content.frequency[i]));
      for (std::size_t k = i * 2; k < i * 2 + 2; ++k) {
        row.push_back(content.weights[k]);
        row.push_back(content.slots[k]);
      }
    }
    return rows;
  }
  RemoteTable* table() { return table_; }

 private:
  Client* client_ = nullptr;
  RemoteTable* table_ = nullptr;
};

class EvictTest : public JobTest {
 protected:
  /// All trainers, to that many steps; the first `asking` of them evict. What is there then.
  Rows TrainEvicting(std::int64_t steps, int asking,
                     const std::function<void(std::int64_t)>& before = {}) {
    Rows rows;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < trainers_; ++i) {
        threads.emplace_back([&, i] {
          auto client = Connect(i).value();
          Window window;
          ASSERT_TRUE(window.Declare(client.get()).ok());
          while (client->step() < steps) {
            const std::int64_t step = client->step();
            if (i == 0 && before) before(step);
            Status done = window.Step(step, i < asking);
            if (done.ok()) done = client->EndStep("");
            ASSERT_TRUE(done.ok() || done.Is(Code::kAborted)) << done.ToString();
          }
          if (i == 0) rows = window.Content().value();
          ASSERT_TRUE(client->Barrier().ok());
          ASSERT_TRUE(client->Close().ok());
        });
      }
    }
    return rows;
  }
  void Clear() {
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
  static std::int64_t OldestVersion(const Rows& rows) {
    float oldest = 1e9F;
    for (const auto& [key, row] : rows) oldest = std::min(oldest, row[0]);
    return static_cast<std::int64_t>(oldest);
  }
};

TEST_F(EvictTest, WhoAsksMakesNoDifferenceInSyncMode) {
  StartServers(2);
  const Rows one = TrainEvicting(20, 1);
  Clear();
  StartServers(2);
  const Rows all = TrainEvicting(20, 2);
  EXPECT_EQ(all, one);
  EXPECT_EQ(OldestVersion(one), 19 - kStepsToLive);
  EXPECT_NE(servers_[0]->MetricsText().find("cairn_ps_evicted_rows_total"), std::string::npos);
  Clear();
  StartServers(2);
  EXPECT_EQ(OldestVersion(TrainEvicting(20, 0)), 0) << "nobody asks, nothing goes";
}

TEST_F(EvictTest, ALostServerChangesNothing) {
  StartServers(2);
  const Rows undisturbed = TrainEvicting(20, 2);
  Clear();
  for (const Recovery recovery : {Recovery::kExact, Recovery::kLog}) {
    for (const int victim : {0, 1}) {
      SCOPED_TRACE(testing::Message()
                   << "recovery " << static_cast<int>(recovery) << ", server " << victim);
      recovery_ = recovery;
      StartServers(2);
      bool lost = false;
      const Rows rows = TrainEvicting(20, 2, [&](std::int64_t step) {
        if (step != 14 || std::exchange(lost, true)) return;
        Lose(victim);
        StartServer(victim, 2);
      });
      EXPECT_EQ(rows, undisturbed);
      Clear();
    }
  }
}

TEST_F(EvictTest, AnotherNumberOfServersGoesOnWithTheSameRows) {
  StartServers(2);
  const Rows undisturbed = TrainEvicting(20, 1);
  Clear();
  paced_ = true;
  StartServers(2);
  (void)TrainEvicting(13, 1, [&](std::int64_t) { AwaitSaves(); });
  AwaitSaves();
  servers_.clear();
  StartServers(3);
  EXPECT_GT(Connect(-1).value()->step(), 0);
  EXPECT_EQ(TrainEvicting(20, 1), undisturbed);
}

TEST_F(EvictTest, AsyncEvictionsAreToldAndReplayed) {
  mode_ = Mode::kAsync;
  recovery_ = Recovery::kLog;
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_.reset();
  StartServers(2);
  auto client = Connect(0).value();
  Window window;
  ASSERT_TRUE(window.Declare(client.get()).ok());
  for (std::int64_t step = 0; step < 8; ++step) {
    ASSERT_TRUE(window.Step(step, false).ok());
    ASSERT_TRUE(client->EndStep("").ok());
  }
  const std::uint64_t before = window.table()->Size().value();
  const auto evicted = window.table()->Evict(8).value();
  ASSERT_TRUE(evicted.has_value());
  EXPECT_GT(evicted->rows, 0u);
  EXPECT_EQ(window.table()->Size().value(), before - evicted->rows);
  const Rows rows = window.Content().value();
  for (const int victim : {0, 1}) Lose(victim);
  for (const int victim : {0, 1}) StartServer(victim, 2);
  EXPECT_EQ(window.Content().value(), rows);
  EXPECT_EQ(window.table()->Evict(8).value()->rows, 0u);
}

TEST_F(EvictTest, AnEvictionThatComesAgainIsNotMadeAgain) {
  mode_ = Mode::kAsync;
  trainers_ = 1;
  StartServers(1);
  auto trainer = Raw(0, 0, "me");
  ASSERT_TRUE(trainer.greeted().ok()) << trainer.greeted().ToString();
  const std::string declaration =
      R"({"name":"t","dim":1,"dtype":"F32","seed":0,"steps_to_live":0,)"
      R"("optimizer":{"kind":"sgd","settings":{}},"initializer":{"kind":"constant","a":1,"b":0}})";
  const Status declared = trainer.Ask({.kind = Kind::kDeclareTable}, declaration);
  ASSERT_TRUE(declared.ok()) << declared.ToString();
  const auto assign = [&](std::uint64_t sequence) {
    rpc::Message rows = NewRequest({.kind = Kind::kAssign}, RowsBytes(1, 1));
    std::span<std::byte> keys;
    std::span<std::byte> values;
    BeginRows(Body(&rows), 1, 1, &keys, &values);
    std::fill(keys.begin(), keys.end(), std::byte{0});
    std::fill(values.begin(), values.end(), std::byte{0});
    return trainer.Ask({.kind = Kind::kAssign, .sequence = sequence}, AsText(Body(&rows)));
  };
  const auto evict = [&](std::uint64_t sequence) {
    const Status asked = trainer.Ask({.kind = Kind::kEvict, .sequence = sequence}, EncodeNumber(9));
    EXPECT_TRUE(asked.ok()) << asked.ToString();
    return DecodeEvicted(trainer.body()).value()->rows;
  };
  ASSERT_TRUE(assign(1).ok());
  EXPECT_EQ(evict(2), 1u);
  ASSERT_TRUE(assign(3).ok());
  EXPECT_EQ(evict(2), 0u);
  ASSERT_TRUE(trainer.Ask({.kind = Kind::kTableSize}, "").ok());
  EXPECT_EQ(DecodeNumber(trainer.body()).value(), 1u);
}

TEST_F(EvictTest, WithoutARuleItIsRefusedAndTheServersLive) {
  trainers_ = 1;
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    SCOPED_TRACE(static_cast<int>(mode));
    mode_ = mode;
    StartServers(2);
    {
      auto client = Connect(0).value();
      RemoteTable* const table = client->Table({.name = "t", .dim = 2}).value();
      const Status refused = table->Evict(3).status();
      EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << refused.ToString();
      Window window;
      ASSERT_TRUE(window.Declare(client.get()).ok());
      EXPECT_EQ(window.table()->Evict(-1).status().code(), Code::kInvalidArgument);
      EXPECT_TRUE(table->ApplyGradients(std::vector<std::int64_t>{1}, std::vector<float>(2)).ok());
      const Status ended = client->EndStep("");
      EXPECT_TRUE(ended.ok()) << ended.ToString();
      auto looks = Connect(-1).value();
      Window seen;
      ASSERT_TRUE(seen.Declare(looks.get()).ok());
      EXPECT_EQ(seen.table()->Evict(1).status().code(), Code::kFailedPrecondition);
    }
    Clear();
  }
}

}  // namespace
}  // namespace cairn::ps
