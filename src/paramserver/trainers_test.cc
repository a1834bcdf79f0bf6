#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <thread>

#include <cairn/checkpoint_manager.h>

#include "paramserver/declaration.h"
#include "paramserver/job_fixture.h"

// Trainers that are replaced, late, in the middle of something, or ask for what they may not.

namespace cairn::ps {
namespace {

class TrainersTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    full_steps_.reset();
    incremental_steps_.reset();
  }
  std::int64_t Cuts(int server) { return StatusOf(server).Find("cut")->AsInt(); }
};

TEST_F(TrainersTest, AProcessThatWasReplacedIsRefusedWhileItLives) {
  trainers_ = 1;
  for (const auto& [mode, recovery] :
       {std::pair(Mode::kAsync, Recovery::kExact), std::pair(Mode::kSync, Recovery::kExact),
        std::pair(Mode::kSync, Recovery::kLog), std::pair(Mode::kAsync, Recovery::kPartial)}) {
    mode_ = mode;
    recovery_ = recovery;
    StartServers(2);
    auto old = Connect(0).value();
    Counts stale;
    ASSERT_TRUE(stale.Declare(old.get()).ok());
    ASSERT_TRUE(stale.Push().ok());
    ASSERT_TRUE(old->EndStep("").ok());
    auto next = Connect(0).value();
    Counts counts;
    ASSERT_TRUE(counts.Declare(next.get()).ok());
    const std::int64_t first = next->step();
    for (int step = 0; step < 5; ++step) {
      // Its connections still stand, and so do new ones that it makes.
      EXPECT_EQ(stale.Push().code(), Code::kFailedPrecondition) << step;
      EXPECT_EQ(old->EndStep("").code(), Code::kFailedPrecondition);
      ASSERT_TRUE(counts.Push().ok());
      const Status ended = next->EndStep("");
      ASSERT_TRUE(ended.ok()) << ended.ToString();
    }
    EXPECT_EQ(next->step(), first + 5);
    EXPECT_EQ(counts.Count(), first + 5);
    old = nullptr;
    next = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(TrainersTest, ALatePushOfAKilledTrainerIsRefused) {
  mode_ = Mode::kAsync;
  trainers_ = 1;
  StartServers(1);
  auto first = Raw(0, 0, "first");
  ASSERT_TRUE(first.greeted().ok());
  TableSpec spec{.name = "t", .dim = 1};
  ASSERT_TRUE(first.Ask({.kind = Kind::kDeclareTable}, EncodeJson(ToValue(spec))).ok());
  auto second = Raw(0, 0, "second");
  ASSERT_TRUE(second.greeted().ok());
  std::string rows(RowsBytes(1, 1), '\0');
  rows[0] = 1;
  EXPECT_EQ(first.Ask({.kind = Kind::kPush, .sequence = 1}, rows).code(),
            Code::kFailedPrecondition);
  EXPECT_TRUE(second.Ask({.kind = Kind::kPush, .sequence = 1}, rows).ok());
  EXPECT_EQ(Raw(0, 0, "first").greeted().code(), Code::kFailedPrecondition);
}

TEST_F(TrainersTest, ABarrierThatIsOverDoesNotCountAsWaiting) {
  mode_ = Mode::kAsync;
  StartServers(1);
  auto zero = Raw(0, 0, "zero");
  auto one = Raw(1, 0, "one");
  {
    std::jthread other(
        [&] { EXPECT_TRUE(one.Ask({.kind = Kind::kBarrier}, EncodeNumber(1)).ok()); });
    ASSERT_TRUE(zero.Ask({.kind = Kind::kBarrier}, EncodeNumber(1)).ok());
  }
  ASSERT_TRUE(zero.Ask({.kind = Kind::kSave, .flags = kFullSave}, "").ok());
  const Marker marker = one.EndStep(0, {}).value();
  ASSERT_GT(marker.number, 0u);
  const std::int64_t before = Cuts(0);
  std::jthread carries([&] { EXPECT_TRUE(one.EndStep(1, marker).ok()); });
  while (StatusOf(0).Find("trainers")->if_list()->at(1).Find("step")->AsInt() < 2) {
    std::this_thread::yield();
  }
  // Its answer was lost, and it asks again; then it goes on, with changes on their way.
  ASSERT_TRUE(zero.Ask({.kind = Kind::kBarrier}, EncodeNumber(1)).ok());
  EXPECT_EQ(Cuts(0), before);
  ASSERT_TRUE(zero.EndStep(0, marker).ok());
  EXPECT_EQ(Cuts(0), before + 1);
}

TEST_F(TrainersTest, ABarrierInTheMiddleOfAnAsyncStepIsRefused) {
  mode_ = Mode::kAsync;
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0).value();
  Counts counts;
  ASSERT_TRUE(counts.Declare(client.get()).ok());
  ASSERT_TRUE(counts.Push().ok());
  EXPECT_EQ(client->Barrier().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(client->EndStep("").ok());
  EXPECT_TRUE(client->Barrier().ok());
}

TEST_F(TrainersTest, AMarkerThatWasHalfCarriedIsCarriedFirst) {
  mode_ = Mode::kAsync;
  trainers_ = 1;
  StartServers(2);
  {
    auto lead = Raw(0, 0, "lost");
    auto other = Raw(0, 1, "lost");
    ASSERT_TRUE(lead.Ask({.kind = Kind::kSave, .flags = kFullSave}, "").ok());
    const Marker marker = lead.EndStep(0, {}).value();
    ASSERT_TRUE(other.EndStep(0, {}).ok());
    ASSERT_TRUE(lead.EndStep(1, marker).ok());  // and not to the other: it is killed here
  }
  ASSERT_LT(Cuts(1), Cuts(0));
  auto client = Connect(0).value();
  EXPECT_EQ(client->step(), 2);
  EXPECT_EQ(client->state(), "state");
  EXPECT_EQ(Cuts(1), Cuts(0));
  AwaitSaves();
  EXPECT_EQ(StatusOf(0).Find("saves")->AsInt(), 1);
  EXPECT_EQ(StatusOf(0).Find("saved_step")->AsInt(), 2);
}

TEST_F(TrainersTest, AStepThatEndedAtOneServerOnlyIsEndedAtTheOthers) {
  recovery_ = Recovery::kLog;
  StartServers(2);
  auto other = Connect(1).value();
  {
    auto lead = Raw(0, 0, "lost");
    auto second = Raw(0, 1, "lost");
    // Not to the lead: that the step ended is known to the second server alone.
    std::jthread ends([&] { (void)second.EndStep(0, {}); });
    while (*StatusOf(1).Find("trainers")->if_list()->at(0).Find("arrived") == Value(false)) {
      std::this_thread::yield();
    }
    std::jthread too([&] { EXPECT_TRUE(other->EndStep("other").ok()); });
    auto client = Connect(0).value();
    EXPECT_EQ(client->step(), 1);
    EXPECT_EQ(client->state(), "state");
  }
  EXPECT_EQ(other->step(), 1);
  EXPECT_EQ(StatusOf(0).Find("step")->AsInt(), 1);
  EXPECT_EQ(StatusOf(1).Find("step")->AsInt(), 1);
}

TEST_F(TrainersTest, PullsThatCountForAdmissionCountOnce) {
  mode_ = Mode::kAsync;
  trainers_ = 1;
  StartServers(1);
  TableSpec spec{.name = "t", .dim = 1, .admission = 3};
  {
    auto raw = Raw(0, 0, "raw");
    ASSERT_TRUE(raw.Ask({.kind = Kind::kDeclareTable}, EncodeJson(ToValue(spec))).ok());
    const std::string keys(8, '\1');
    for (const std::uint64_t sequence : {1, 1, 2, 2, 1}) {
      const RequestHead pull{.kind = Kind::kPull, .flags = kCreateRows, .sequence = sequence};
      ASSERT_TRUE(raw.Ask(pull, keys).ok());
      ASSERT_EQ(raw.body().size(), 4u);
    }
    ASSERT_TRUE(raw.Ask({.kind = Kind::kTableSize}, "").ok());
    EXPECT_EQ(DecodeNumber(raw.body()).value(), 0u);
    ASSERT_TRUE(raw.EndStep(0, {}, 2).ok());
  }
  auto client = Connect(0).value();
  RemoteTable* table = client->Table(spec).value();
  std::vector<float> row(1);
  const std::int64_t key = 0x0101010101010101;
  ASSERT_TRUE(table->Lookup(std::span(&key, 1), row).ok());
  EXPECT_EQ(table->Size().value(), 1u);
}

TEST_F(TrainersTest, APushThatIsTooLargeIsRefusedWholeAndTheClientGoesOn) {
  trainers_ = 1;
  for (int i = 0; i < 2; ++i) {
    ServerOptions options = Options(i, 2);
    options.max_message_bytes = i == 0 ? 1 << 20 : 1 << 12;
    servers_.push_back(Server::Start(options).value());
  }
  auto client = Connect(0).value();
  Counts counts;
  ASSERT_TRUE(counts.Declare(client.get()).ok());
  RemoteTable* table = client->Table({.name = "large", .dim = 64}).value();
  std::vector<std::int64_t> ids(200);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  const std::vector<float> rows(ids.size() * 64, 1);
  for (std::int64_t step = 0; step < 3; ++step) {
    EXPECT_EQ(table->ApplyGradients(ids, rows).code(), Code::kResourceExhausted);
    const Status pushed = counts.Push();
    ASSERT_TRUE(pushed.ok()) << pushed.ToString();
    const Status ended = client->EndStep("");
    ASSERT_TRUE(ended.ok()) << ended.ToString();
    EXPECT_EQ(counts.Count(), step + 1);
  }
  EXPECT_EQ(table->Size().value(), 0u);
}

TEST_F(TrainersTest, ObserversFindTablesAndMakeNone) {
  trainers_ = 1;
  StartServers(1);
  auto observer = Connect(-1).value();
  const TableSpec spec{.name = "t", .dim = 2};
  EXPECT_EQ(observer->Table(spec).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(observer->Dense({.name = "d", .shape = {2}}, std::vector<float>(2)).status().code(),
            Code::kFailedPrecondition);
  auto client = Connect(0).value();
  ASSERT_TRUE(client->Table(spec).ok());
  EXPECT_TRUE(observer->Table(spec).ok());
  EXPECT_EQ(StatusOf(0).Find("tables")->if_list()->size(), 1u);
}

TEST_F(TrainersTest, AShapeWithoutItsValuesIsRefusedBeforeMemoryIsTaken) {
  trainers_ = 1;
  StartServers(1);
  auto raw = Raw(0, 0, "raw");
  const DenseSpec spec{.name = "d", .shape = {std::uint64_t{1} << 39}, .optimizer = {"sgd", {}}};
  std::span<std::byte> none;
  const rpc::Message message = NewDenseDeclaration({}, EncodeJson(ToValue(spec)), 0, &none);
  EXPECT_EQ(
      raw.Ask({.kind = Kind::kDeclareDense}, AsText(message.bytes().subspan(kHeadBytes))).code(),
      Code::kInvalidArgument);
  EXPECT_TRUE(raw.EndStep(0, {}).ok());
}

TEST_F(TrainersTest, WhoLeavesTwiceHasLeft) {
  StartServers(1);
  auto stays = Raw(0, 0, "stays");
  {
    auto leaves = Raw(1, 0, "leaves");
    ASSERT_TRUE(leaves.Ask({.kind = Kind::kLeave}, "").ok());
  }
  // The answer was lost with the connection: it comes back, and leaves again.
  auto again = Raw(1, 0, "leaves");
  ASSERT_TRUE(again.greeted().ok()) << again.greeted().ToString();
  ASSERT_TRUE(again.Ask({.kind = Kind::kLeave}, "").ok());
  EXPECT_TRUE(stays.EndStep(0, {}).ok());  // sync: waits for nobody
}

TEST_F(TrainersTest, WhoLeftOnlySomeServersComesBackToLeaveTheRest) {
  // All had left this server when another one was lost: they greet again, with what they are, and
  // nobody has taken their places.
  StartServers(1);
  for (int times = 0; times < 3; ++times) {
    for (int trainer = 0; trainer < 2; ++trainer) {
      const std::string incarnation = "process " + std::to_string(trainer);
      auto raw = Raw(trainer, 0, incarnation);
      ASSERT_TRUE(raw.greeted().ok()) << raw.greeted().ToString();
      auto again = Raw(trainer, 0, incarnation);
      ASSERT_TRUE(again.greeted().ok()) << again.greeted().ToString();
      ASSERT_TRUE(again.Ask({.kind = Kind::kLeave}, "").ok());
    }
  }
  // Whoever is replaced stays so.
  auto first = Raw(0, 0, "process 0");
  ASSERT_TRUE(first.greeted().ok()) << first.greeted().ToString();
  auto other = Raw(1, 0, "another process");
  ASSERT_TRUE(other.greeted().ok()) << other.greeted().ToString();
  EXPECT_EQ(Raw(1, 0, "process 1").greeted().code(), Code::kFailedPrecondition);
}

TEST_F(TrainersTest, AnAsyncCheckpointIsOfTheStepsOfAllTrainers) {
  mode_ = Mode::kAsync;
  paced_ = true;
  full_steps_ = 12;
  incremental_steps_ = 5;
  StartServers(2);
  (void)Train(30);
  AwaitSaves();
  EXPECT_EQ(StatusOf(0).Find("global_step")->AsInt(), 60);
  servers_.clear();
  auto manager = CheckpointManager::Open({.directory = directory_, .read_only = true}).value();
  const auto checkpoints = manager->List().value();
  ASSERT_GT(checkpoints.size(), 1u);
  for (const CheckpointInfo& info : checkpoints) {
    std::int64_t sum = 0;
    for (const int trainer : {0, 1}) {
      std::ifstream in(info.path + "/trainer_" + std::to_string(trainer) + "/step_id");
      std::int64_t steps = 0;
      in >> steps;
      sum += steps;
    }
    EXPECT_EQ(info.step, sum);
  }
}

TEST(ServerOptions, RefusesWhatCouldNotWork) {
  ServerOptions options{.directory = "x", .servers = 2};
  EXPECT_TRUE(options.Validate().ok());
  options.security = {.certificate = "c", .key = "k"};
  EXPECT_EQ(options.Validate().code(), Code::kInvalidArgument);
  options.security.ca = "ca";
  EXPECT_TRUE(options.Validate().ok());
  for (const char* listen : {"0.0.0.0:7000", "[::]:7000", ":7000"}) {
    options.listen = listen;
    options.address = "";
    EXPECT_EQ(options.Validate().code(), Code::kInvalidArgument) << listen;
    options.address = "host1:7000";
    EXPECT_TRUE(options.Validate().ok());
  }
  options.log_directory = "elsewhere";
  EXPECT_EQ(options.Validate().code(), Code::kInvalidArgument);
  options.recovery = Recovery::kLog;
  EXPECT_TRUE(options.Validate().ok());
  for (const double secs : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    options.incremental_secs = secs;
    EXPECT_EQ(options.Validate().code(), Code::kInvalidArgument) << secs;
  }
  options.incremental_secs.reset();
  options.full_steps = 0;
  EXPECT_EQ(options.Validate().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::ps
