#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
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
  /// Trainer 1, which had left, back in the middle of the end of a step: the other trainer ends it
  /// at server 0 only when trainer 1 is there again.
  std::unique_ptr<Client> BackBeforeTheEndOf(std::int64_t step, RawTrainer* lead) {
    std::jthread end([this, step, lead] {
      while (*StatusOf(0).Find("trainers")->if_list()->at(1).Find("left") == Value(true)) {
        std::this_thread::yield();
      }
      EXPECT_TRUE(lead->EndStep(step, {}).ok());
    });
    return Connect(1).value();
  }
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

TEST_F(TrainersTest, AMarkerThatCameWithTheEndOfAStepIsNotOfThatStep) {
  recovery_ = Recovery::kLog;
  full_steps_ = 2;
  StartServers(2);
  auto lead = Raw(0, 0, "zero");
  auto second = Raw(0, 1, "zero");
  {
    auto lost = Raw(1, 0, "lost");
    auto also = Raw(1, 1, "lost");
    // The lead sees step 0 end, and announces a checkpoint of step 2; the other server does not:
    // that trainer is killed here.
    std::jthread ends([&] { EXPECT_GT(lead.EndStep(0, {}).value().number, 0u); });
    EXPECT_EQ(lost.EndStep(0, {}).value().step, 2);
  }
  std::jthread ends([&] { EXPECT_TRUE(second.EndStep(0, {}).ok()); });
  auto client = Connect(1).value();
  ends.join();
  EXPECT_EQ(client->step(), 1);
  EXPECT_EQ(Cuts(1), Cuts(0)) << "each server cuts when step 1 has ended";
  const std::int64_t before = Cuts(1);
  const Marker marker{static_cast<std::uint64_t>(before) + 1, 2, true};
  {
    std::jthread first([&] { EXPECT_TRUE(lead.EndStep(1, marker).ok()); });
    std::jthread other([&] { EXPECT_TRUE(second.EndStep(1, marker).ok()); });
    EXPECT_TRUE(client->EndStep("").ok());
  }
  EXPECT_EQ(Cuts(0), before + 1);
  EXPECT_EQ(Cuts(1), before + 1);
  AwaitSaves();
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

TEST_F(TrainersTest, WhoComesBackJoinsTheStepThatTheJobIsAt) {
  for (const Recovery recovery : {Recovery::kExact, Recovery::kPartial, Recovery::kLog}) {
    SCOPED_TRACE(static_cast<int>(recovery));
    recovery_ = recovery;
    StartServers(2);
    auto lead = Raw(0, 0, "stays");
    auto second = Raw(0, 1, "stays");
    for (const int server : {0, 1}) {
      auto raw = Raw(1, server, "leaves");
      ASSERT_TRUE(raw.Ask({.kind = Kind::kLeave}, "").ok());
    }
    for (std::int64_t step = 0; step < 4; ++step) {
      ASSERT_TRUE(lead.EndStep(step, {}).ok());
      ASSERT_TRUE(second.EndStep(step, {}).ok());
    }
    // In the middle of the end of a step: it has ended at one server and not at the other.
    ASSERT_TRUE(second.EndStep(4, {}).ok());
    auto back = BackBeforeTheEndOf(4, &lead);
    EXPECT_EQ(back->step(), 5);
    Counts counts;
    ASSERT_TRUE(counts.Declare(back.get()).ok());
    ASSERT_TRUE(counts.Push().ok());
    std::jthread too([&] {
      EXPECT_TRUE(lead.EndStep(5, {}).ok());
      EXPECT_TRUE(second.EndStep(5, {}).ok());
    });
    const Status ended = back->EndStep("");
    EXPECT_TRUE(ended.ok()) << ended.ToString();
    too.join();
    EXPECT_EQ(counts.Count(), 1);
    back = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(TrainersTest, WhoComesBackAfterARestoreHasItsState) {
  full_steps_ = 2;
  for (const Recovery recovery : {Recovery::kExact, Recovery::kPartial, Recovery::kLog}) {
    SCOPED_TRACE(static_cast<int>(recovery));
    recovery_ = recovery;
    StartServers(2);
    {
      auto lead = Raw(0, 0, "stays");
      auto second = Raw(0, 1, "stays");
      auto leaves = Connect(1).value();
      Marker marker;
      {
        std::jthread first([&] { marker = lead.EndStep(0, {}).value(); });
        std::jthread other([&] { EXPECT_TRUE(second.EndStep(0, {}).ok()); });
        ASSERT_TRUE(leaves->EndStep("position").ok());
      }
      ASSERT_TRUE(leaves->Close().ok());
      ASSERT_EQ(marker.step, 2);
      ASSERT_TRUE(lead.EndStep(1, marker).ok());
      ASSERT_TRUE(second.EndStep(1, marker).ok());
      AwaitSaves();
    }
    servers_.clear();
    StartServers(2);
    auto lead = Raw(0, 0, "again");
    auto second = Raw(0, 1, "again");
    // In the middle of the end of a step, which the other server has seen and the lead has not.
    ASSERT_TRUE(second.EndStep(2, {}).ok());
    auto back = BackBeforeTheEndOf(2, &lead);
    EXPECT_EQ(back->step(), 3);
    EXPECT_EQ(back->state(), "position");
    ASSERT_TRUE(back->Close().ok());
    auto once_more = Connect(1).value();
    EXPECT_EQ(once_more->state(), "position") << "nobody replaced it";
    once_more = nullptr;
    back = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(TrainersTest, WhatIsPushedAfterComingBackIsNewAlsoWhenMoreWasPushedBefore) {
  trainers_ = 1;
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    SCOPED_TRACE(static_cast<int>(mode));
    mode_ = mode;
    StartServers(2);
    const auto push = [&](bool after_the_step) {
      auto client = Connect(0).value();
      Counts counts;
      ASSERT_TRUE(counts.Declare(client.get()).ok());
      ASSERT_TRUE(counts.Push().ok());
      ASSERT_TRUE(client->EndStep("").ok());
      if (after_the_step) {
        ASSERT_TRUE(counts.Push().ok());
      }
      ASSERT_TRUE(client->Close().ok());
    };
    push(true);
    push(false);
    auto look = Connect(0).value();
    Counts counts;
    ASSERT_TRUE(counts.Declare(look.get()).ok());
    EXPECT_EQ(counts.Count(), mode == Mode::kSync ? 2 : 3)
        << "sync: what is of no step was never applied";
    look = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(TrainersTest, AProcessThatEndedHasLeftServersThatNeverSawItToo) {
  // A server that was lost does not know who was there before; who knows tells it.
  StartServers(1);
  auto stays = Raw(0, 0, "stays");
  ASSERT_TRUE(stays.Ask({.kind = Kind::kLeave, .flags = kLeaveFor, .id = 1}, "").ok());
  EXPECT_EQ(*StatusOf(0).Find("trainers")->if_list()->at(1).Find("left"), Value(true));
  EXPECT_TRUE(stays.EndStep(0, {}).ok());
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

TEST_F(TrainersTest, TheStateOfTheLastStepMayBeReplaced) {
  trainers_ = 1;
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    for (const Recovery recovery : {Recovery::kExact, Recovery::kLog}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(mode) << static_cast<int>(recovery));
      mode_ = mode;
      recovery_ = recovery;
      StartServers(2);
      auto client = Connect(0).value();
      EXPECT_EQ(client->SetState("none yet").code(), Code::kFailedPrecondition);
      ASSERT_TRUE(client->EndStep("at 1").ok());
      ASSERT_TRUE(client->SetState("done").ok());
      EXPECT_EQ(client->step(), 1);
      EXPECT_EQ(client->state(), "done");
      ASSERT_TRUE(client->Close().ok());
      if (recovery == Recovery::kLog) {
        servers_.clear();
        StartServers(2);
      }
      client = Connect(0).value();
      EXPECT_EQ(client->step(), 1);
      EXPECT_EQ(client->state(), "done");
      ASSERT_TRUE(client->EndStep("at 2").ok());
      client = nullptr;
      servers_.clear();
      std::filesystem::remove_all(directory_);
    }
  }
}

TEST_F(TrainersTest, TellsHowManyChangesNoCheckpointHas) {
  trainers_ = 1;
  const auto unsaved = [this] { return StatusOf(0).Find("unsaved_changes")->AsInt(); };
  for (const Mode mode : {Mode::kSync, Mode::kAsync}) {
    SCOPED_TRACE(static_cast<int>(mode));
    mode_ = mode;
    recovery_ = Recovery::kLog;
    StartServers(1);
    auto client = Connect(0).value();
    EXPECT_EQ(unsaved(), 0);
    RemoteTable* table = client->Table({.name = "t", .dim = 1}).value();
    EXPECT_EQ(unsaved(), 1);
    const std::vector<std::int64_t> ids{1, 2};
    const std::vector<float> rows(2, 1);
    std::vector<float> out(2);
    ASSERT_TRUE(client->RequestSave(true).ok());
    ASSERT_TRUE(client->EndStep("").ok());  // learns that there will be one
    ASSERT_TRUE(client->EndStep("").ok());
    AwaitSaves();
    EXPECT_EQ(unsaved(), 0);
    ASSERT_TRUE(table->ApplyGradients(ids, rows).ok());
    const std::int64_t pushed = mode == Mode::kSync ? 0 : 1;  // sync: of no step yet
    EXPECT_EQ(unsaved(), pushed);
    ASSERT_TRUE(table->Assign(ids, rows).ok());
    ASSERT_TRUE(table->Erase(ids).ok());
    ASSERT_TRUE(table->Lookup(ids, out).ok());  // made again whenever somebody asks
    EXPECT_EQ(unsaved(), pushed + 2);
    ASSERT_TRUE(client->EndStep("").ok());
    EXPECT_EQ(unsaved(), pushed + 3);
    // The log has them, and no checkpoint.
    servers_.clear();
    StartServers(1);
    client = Connect(0).value();
    EXPECT_EQ(unsaved(), pushed + 3);
    client = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST(ClientOptions, AVariableThatIsNoNumberIsNamed) {
  setenv("CAIRN_PS_SERVERS", "host:1,host:2", 1);
  setenv("CAIRN_TRAINER_ID", "1", 1);
  setenv("CAIRN_NUM_TRAINERS", "2", 1);
  EXPECT_EQ(ClientOptions::FromEnvironment().value().trainer, 1);
  for (const char* wrong : {"one", "1k", "1.5"}) {
    setenv("CAIRN_NUM_TRAINERS", wrong, 1);
    const Status refused = ClientOptions::FromEnvironment().status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << wrong;
    EXPECT_NE(refused.message().find("CAIRN_NUM_TRAINERS"), std::string::npos);
  }
  for (const char* name : {"CAIRN_PS_SERVERS", "CAIRN_TRAINER_ID", "CAIRN_NUM_TRAINERS"}) {
    unsetenv(name);
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
