#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include <cairn/checkpoint_manager.h>

#include "base/log.h"
#include "paramserver/dropping_proxy.h"
#include "paramserver/job_fixture.h"
#include "paramserver/observer.h"
#include "rpc/health_probe.h"

// Whole jobs in one process: servers and trainers as in real life, over real connections. What
// kill -9 does to them is in tests/cluster.

namespace cairn::ps {
namespace {

TEST_F(JobTest, IsBitReproducibleInSyncModeWhateverTheNumberOfServers) {
  StartServers(1);
  const Learned one = Train(12);
  ASSERT_GT(one.size(), 300u);
  servers_.clear();
  for (const int servers : {2, 3}) {
    std::filesystem::remove_all(directory_);
    StartServers(servers);
    EXPECT_TRUE(Train(12) == one) << servers << " servers";
    servers_.clear();
  }
}

TEST_F(JobTest, GoesOnExactlyWhereTheLastCheckpointWasWhenAServerIsLost) {
  StartServers(2);
  const Learned undisturbed = Train(20);
  servers_.clear();
  std::filesystem::remove_all(directory_);
  for (const int victim : {0, 1}) {
    StartServers(2);
    bool lost = false;
    const Learned disturbed = Train(20, [&](std::int64_t step) {
      if (step != 14 || lost) return;
      lost = true;
      Lose(victim);
      StartServer(victim, 2);
    });
    EXPECT_TRUE(disturbed == undisturbed) << "server " << victim;
    EXPECT_EQ(rollbacks_, 2u);  // both trainers
    rollbacks_ = 0;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(JobTest, ASecondProcessOfALivingServerIsRefusedAndTheJobGoesOn) {
  StartServers(2);
  bool tried = false;
  Train(20, [&](std::int64_t step) {
    if (step != 14 || tried) return;
    tried = true;
    const auto twin = Server::Start(Options(0, 2));
    ASSERT_EQ(twin.status().code(), Code::kUnavailable);
    EXPECT_NE(twin.status().message().find("lives already, at 127.0.0.1:"), std::string::npos)
        << twin.status().ToString();
  });
  EXPECT_TRUE(tried);
  EXPECT_EQ(rollbacks_, 0u);
}

TEST_F(JobTest, AServerOfAJobOfAnotherSizeWaitsAndDisturbsNobody) {
  StartServers(2);
  std::promise<std::string> warned;
  std::atomic<bool> done = false;
  std::unique_ptr<Server> third;
  Train(20, [&](std::int64_t step) {
    if (step != 14 || third != nullptr) return;
    SetLogSink([&](cairn::LogLevel level, std::string_view line) {
      if (level != cairn::LogLevel::kWarning || done.exchange(true)) return;
      warned.set_value(std::string(line));
    });
    auto started = Server::Start(Options(2, 3));
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    third = *std::move(started);
    const std::string told = warned.get_future().get();
    EXPECT_NE(told.find("is served by 2 (ps_0 at 127.0.0.1:"), told.npos) << told;
    SetLogSink(nullptr);
  });
  ASSERT_NE(third, nullptr);
  EXPECT_FALSE(third->serving());
  EXPECT_EQ(rollbacks_, 0u);
}

TEST_F(JobTest, GoesOnWithAnotherNumberOfServers) {
  StartServers(2);
  const Learned undisturbed = Train(20);
  servers_.clear();
  std::filesystem::remove_all(directory_);
  StartServers(3);
  (void)Train(15);
  AwaitSaves();  // however slow the disk is, there is something to go on with
  servers_.clear();
  StartServers(1);
  EXPECT_TRUE(Train(20) == undisturbed);
  EXPECT_GE(StatusOf(0).Find("restored_step")->AsInt(), 1);
}

TEST_F(JobTest, GoesBackWhenATrainerIsStartedAgain) {
  StartServers(2);
  const Learned undisturbed = Train(20);
  servers_.clear();
  std::filesystem::remove_all(directory_);
  StartServers(2);
  // Trainer 1 vanishes without a word at step 12 and is started again.
  Learned learned;
  {
    std::jthread other([&] {
      {
        auto client = Connect(1);
        ASSERT_TRUE(client.ok());
        TestModel model;
        ASSERT_TRUE(model.Declare(client->get()).ok());
        ASSERT_TRUE(model.TrainTo(12).ok());
        AwaitSaves();
        ASSERT_TRUE(model.Step(12).ok());
      }
      auto client = Connect(1);
      ASSERT_TRUE(client.ok()) << client.status().ToString();
      EXPECT_GT((*client)->step(), 0);
      EXPECT_LE((*client)->step(), 12);
      TestModel model;
      ASSERT_TRUE(model.Declare(client->get()).ok());
      const Status trained = model.TrainTo(20);
      ASSERT_TRUE(trained.ok()) << trained.ToString();
      ASSERT_TRUE((*client)->Barrier().ok());
    });
    auto client = Connect(0);
    ASSERT_TRUE(client.ok());
    TestModel model;
    ASSERT_TRUE(model.Declare(client->get()).ok());
    const Status trained = model.TrainTo(20);
    ASSERT_TRUE(trained.ok()) << trained.ToString();
    EXPECT_EQ((*client)->rollbacks(), 1u);
    learned = model.Learned().value();
    ASSERT_TRUE((*client)->Barrier().ok());
  }
  EXPECT_TRUE(learned == undisturbed);
}

TEST_F(JobTest, ASaveRightAfterTheLastPushHasEveryRow) {
  full_steps_.reset();
  incremental_steps_.reset();
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0);
  ASSERT_TRUE(client.ok());
  TestModel model;
  ASSERT_TRUE(model.Declare(client->get()).ok());
  ASSERT_TRUE(model.TrainTo(3).ok());
  const Learned learned = model.Learned().value();
  ASSERT_TRUE((*client)->Close().ok());
  for (const auto& server : servers_) {
    auto observer = Observer::Connect("127.0.0.1:" + std::to_string(server->port()), {},
                                      std::chrono::seconds(5));
    ASSERT_TRUE(observer.ok());
    const auto number = static_cast<std::uint64_t>(StatusOf(0).Find("cut")->AsInt()) + 1;
    const Status cut = observer->Cut(1, {.number = number, .step = 3, .full = true});
    ASSERT_TRUE(cut.ok()) << cut.ToString();
  }
  while (StatusOf(0).Find("saves")->AsInt() == 0) std::this_thread::yield();
  servers_.clear();
  StartServers(2);
  auto again = Connect(0);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->step(), 3);
  EXPECT_EQ((*again)->state(), "at 3");
  TestModel restored;
  ASSERT_TRUE(restored.Declare(again->get()).ok());
  EXPECT_TRUE(restored.Learned().value() == learned);
}

TEST_F(JobTest, TablesMayBeDeclaredAtAnyStep) {
  trainers_ = 1;
  incremental_steps_ = 2;
  StartServers(2);
  auto client = Connect(0);
  ASSERT_TRUE(client.ok());
  TestModel model;
  ASSERT_TRUE(model.Declare(client->get()).ok());
  // Also between the announcement of an increment and its cut: the table has no base then.
  const Status trained = model.TrainTo(14, [&](std::int64_t step) {
    AwaitSaves();
    auto late = (*client)->Table({.name = "late_" + std::to_string(step), .dim = 4});
    EXPECT_TRUE(late.ok()) << late.status().ToString();
  });
  ASSERT_TRUE(trained.ok()) << trained.ToString();
  EXPECT_EQ((*client)->rollbacks(), 0u);
  ASSERT_TRUE((*client)->Close().ok());
  AwaitSaves();
  EXPECT_GT(StatusOf(0).Find("saves")->AsInt(), 2);
}

// A declaration in the middle of the training may be the call that learns that the job went back.
TEST_F(JobTest, ADeclarationThatMeetsALossIsToldOfIt) {
  trainers_ = 1;
  paced_ = true;
  StartServers(2);
  auto client = Connect(0).value();
  TestModel model;
  ASSERT_TRUE(model.Declare(client.get()).ok());
  ASSERT_TRUE(model.TrainTo(8, [&](std::int64_t) { AwaitSaves(); }).ok());
  const auto lose = [&] {
    Lose(1);
    StartServer(1, 2);
  };
  lose();
  const TableSpec late{.name = "late", .dim = 2};
  EXPECT_EQ(client->Table(late).status().code(), Code::kAborted);
  const std::int64_t step = client->step();
  EXPECT_LT(step, 8);
  EXPECT_EQ(client->state(), "at " + std::to_string(step));
  // It is declared all the same.
  EXPECT_EQ(client->Table(late).value()->Size().value(), 0U);
  // Nothing was done since then: there is nothing to be told of.
  lose();
  EXPECT_TRUE(client->Table({.name = "later", .dim = 2}).ok());
  EXPECT_EQ(client->step(), step);
  // Where it goes back further.
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (!std::filesystem::exists(entry.path() / "manifest.json")) continue;
    if (entry.path().filename().string().ends_with("3")) continue;
    std::filesystem::resize_file(entry.path() / "__lookup_table__" / "ps_1.safetensors", 100);
  }
  lose();
  EXPECT_EQ(client->Table({.name = "last", .dim = 2}).status().code(), Code::kAborted);
  EXPECT_LT(client->step(), step);
  EXPECT_TRUE(model.TrainTo(8).ok());
}

TEST_F(JobTest, BeginsWithTheParametersOfAnEarlierJob) {
  trainers_ = 1;
  full_steps_ = 5;
  incremental_steps_.reset();
  StartServers(2);
  const Learned learned = Train(5);
  while (StatusOf(0).Find("saves")->AsInt() == 0) std::this_thread::yield();
  servers_.clear();
  const std::string earlier = directory_;
  load_ = earlier + "/checkpoint_000005";
  directory_ += "_next";
  std::filesystem::remove_all(directory_);
  StartServers(3);
  auto client = Connect(0);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_EQ((*client)->step(), 0);
  TestModel model;
  ASSERT_TRUE(model.Declare(client->get()).ok());
  EXPECT_TRUE(model.Learned().value() == learned);
  std::filesystem::remove_all(earlier);
}

TEST_F(JobTest, BeginsWithWhatATrainerPulledFromAnEarlierOne) {
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_.reset();
  StartServers(2);
  const std::string saved = directory_ + "_saved";
  std::filesystem::remove_all(saved);
  Learned learned;
  Learned next;
  std::string path;
  {
    auto client = Connect(0).value();
    TestModel model;
    ASSERT_TRUE(model.Declare(client.get()).ok());
    ASSERT_TRUE(model.TrainTo(6).ok());
    const std::vector<std::int64_t> keys = {-5, 7};
    const TableSpec half{.name = "half", .dim = 2, .dtype = DType::kBF16, .admission = 1};
    ASSERT_TRUE(client->Table(half).value()->Assign(keys, std::vector<float>(4, 0.5F)).ok());
    for (int again = 0; again < 2; ++again) {
      auto result = client->SavePersistables(saved);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      path = *result;
    }
    learned = model.Learned().value();
    ASSERT_TRUE(model.TrainTo(7).ok());
    next = model.Learned().value();
  }
  servers_.clear();
  EXPECT_TRUE(Verify(saved, true).value().ok());
  for (const std::string& given : {saved, path}) {
    load_ = given;
    std::filesystem::remove_all(directory_);
    StartServers(3);
    auto client = Connect(0).value();
    EXPECT_EQ(client->step(), 0);
    TestModel model;
    ASSERT_TRUE(model.Declare(client.get()).ok());
    EXPECT_TRUE(model.Learned().value() == learned);
    // The slots of dense variables too: the next step comes to the same.
    ASSERT_TRUE(model.Step(6).ok());
    ASSERT_TRUE(client->EndStep("").ok());
    EXPECT_TRUE(model.Learned().value().at("w") == next.at("w"));
    servers_.clear();
  }
  std::filesystem::remove_all(saved);
}

TEST_F(JobTest, AsyncPushesAreAppliedAtOnceAndCheckpointsAreWhole) {
  mode_ = Mode::kAsync;
  paced_ = true;
  full_steps_ = 20;
  incremental_steps_ = 12;
  StartServers(2);
  (void)Train(30);
  AwaitSaves();
  EXPECT_GT(StatusOf(0).Find("saves")->AsInt(), 0);
  EXPECT_EQ(StatusOf(0).Find("failed_saves")->AsInt(), 0);
  servers_.clear();
  const auto report = Verify(directory_, true);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->ok());
  StartServers(2);
  auto client = Connect(1);
  ASSERT_TRUE(client.ok());
  EXPECT_GT((*client)->step(), 0);
  EXPECT_EQ((*client)->state(), "at " + std::to_string((*client)->step()));
}

TEST_F(JobTest, RefusesWhatDoesNotFitAndLives) {
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0);
  ASSERT_TRUE(client.ok());
  TestModel model;
  ASSERT_TRUE(model.Declare(client->get()).ok());
  TableSpec other = model.users()->spec();
  other.dim = 9;
  EXPECT_EQ((*client)->Table(other).status().reason(), Reason::kMismatch);
  EXPECT_NE((*client)->Table(other).status().message().find(
                fmt::format("another one: dim {} there, 9 here", model.users()->spec().dim)),
            std::string_view::npos)
      << (*client)->Table(other).status().ToString();
  other = model.users()->spec();
  other.optimizer.settings["learning_rate"] = 0.2;
  EXPECT_EQ((*client)->Table(other).status().reason(), Reason::kMismatch);
  EXPECT_EQ((*client)->Table({.name = "x", .dim = 0}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ((*client)->Table({.name = "x", .dim = 4, .optimizer = {"lamb", {}}}).status().code(),
            Code::kInvalidArgument);
  // One name, two things.
  TableSpec called_as_dense = model.users()->spec();
  called_as_dense.name = model.dense()->spec().name;
  const Status taken = (*client)->Table(called_as_dense).status();
  EXPECT_EQ(taken.code(), Code::kInvalidArgument) << taken.ToString();
  EXPECT_NE(taken.message().find("the servers have a dense variable of this name"),
            std::string_view::npos)
      << taken.ToString();
  DenseSpec called_as_table = model.dense()->spec();
  called_as_table.name = model.users()->spec().name;
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : called_as_table.shape) elements *= dim;
  const std::vector<float> initial(elements);
  const Status table_there = (*client)->Dense(called_as_table, initial).status();
  EXPECT_EQ(table_there.code(), Code::kInvalidArgument) << table_there.ToString();
  EXPECT_NE(table_there.message().find("the servers have a table of this name"),
            std::string_view::npos)
      << table_there.ToString();
  std::vector<float> rows(3);
  EXPECT_EQ(model.users()->Lookup(std::vector<std::int64_t>{1}, rows).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(model.dense()->Push(rows).code(), Code::kInvalidArgument);
  // Another number of trainers; another server under that number.
  ClientOptions wrong;
  wrong.directory = directory_;
  wrong.num_servers = 2;
  wrong.trainers = 3;
  wrong.reconnect_timeout = std::chrono::seconds(30);
  EXPECT_EQ(Client::Connect(wrong).status().code(), Code::kFailedPrecondition);
  wrong.trainers = 1;
  wrong.num_servers = 1;
  EXPECT_EQ(Client::Connect(wrong).status().code(), Code::kFailedPrecondition);
  const Status trained = model.TrainTo(2);
  EXPECT_TRUE(trained.ok()) << trained.ToString();
}

TEST_F(JobTest, MalformedFramesAreRefusedAndTheServerLives) {
  trainers_ = 1;
  StartServers(1);
  auto client = Connect(0);
  ASSERT_TRUE(client.ok());
  TestModel model;
  ASSERT_TRUE(model.Declare(client->get()).ok());
  rpc::ConnectOptions to;
  to.address = "127.0.0.1:" + std::to_string(servers_[0]->port());
  std::uint64_t random = 1;
  for (int i = 0; i < 300; ++i) {
    to.transport = i % 3 == 0 ? rpc::Transport::kGrpc : rpc::Transport::kSocket;
    auto stream = rpc::ClientStream::Open(to);
    ASSERT_TRUE(stream.ok());
    // Every kind, with the right generation, and bytes that mean nothing.
    random = Mix(random);
    rpc::Message message = NewRequest({.kind = static_cast<Kind>(1 + i % kLastKind),
                                       .flags = static_cast<std::uint16_t>(random),
                                       .id = static_cast<std::uint32_t>(i % 3),
                                       .generation = i % 2 == 0 ? 1U : random,
                                       .sequence = i % 5 == 0 ? 1 : random},
                                      random % 97);
    for (std::byte& byte : Body(&message)) byte = static_cast<std::byte>(random = Mix(random));
    if (message.bytes()[1] == static_cast<std::byte>(Kind::kRollBack)) continue;
    if (i % 7 == 0) message.bytes()[0] = static_cast<std::byte>(random);
    ASSERT_TRUE((*stream)->Send(std::move(message)).ok());
    (void)(*stream)->Receive();
  }
  const Status trained = model.TrainTo(2);
  EXPECT_TRUE(trained.ok()) << trained.ToString();
}

/// Weights that count the pushes of each key: one more or one less shows.
void ExpectEveryPushOnce(Client* client, const std::function<void()>& calm) {
  RemoteTable* table = client
                           ->Table({.name = "counts",
                                    .dim = 2,
                                    .optimizer = {"sgd", {{"learning_rate", 1}}},
                                    .initializer = {"constant", 0, 0}})
                           .value();
  std::vector<std::int64_t> ids(200);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  const std::vector<float> ones(ids.size() * 2, 1);
  constexpr int kSteps = 60;
  for (int step = 0; step < kSteps; ++step) {
    const Status pushed = table->ApplyGradients(ids, ones);
    ASSERT_TRUE(pushed.ok()) << pushed.ToString();
    const Status ended = client->EndStep(std::to_string(step));
    ASSERT_TRUE(ended.ok()) << ended.ToString();
  }
  calm();
  std::vector<float> rows(ids.size() * 2);
  ASSERT_TRUE(table->Lookup(ids, rows).ok());
  for (const float weight : rows) ASSERT_EQ(weight, -kSteps);
  EXPECT_EQ(client->rollbacks(), 0u);
}

TEST_F(JobTest, PushesAreAppliedOnceOverConnectionsThatBreak) {
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_.reset();
  const std::pair<Mode, Transport> jobs[] = {{Mode::kAsync, Transport::kSocket},
                                             {Mode::kSync, Transport::kSocket},
                                             {Mode::kSync, Transport::kGrpc}};
  for (const auto& [mode, transport] : jobs) {
    mode_ = mode;
    StartServers(2);
    DroppingProxy first(servers_[0]->port(), 20'000, 1);
    DroppingProxy second(servers_[1]->port(), 15'000, 2);
    ClientOptions options;
    options.servers = {"127.0.0.1:" + std::to_string(first.port()),
                       "127.0.0.1:" + std::to_string(second.port())};
    options.transport = transport;
    options.reconnect_timeout = std::chrono::seconds(20);
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    ExpectEveryPushOnce(client->get(), [&] {
      first.Calm();
      second.Calm();
    });
    EXPECT_GT(first.drops() + second.drops(), 5);
    client->reset();
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
}

TEST_F(JobTest, ALargePullComesInPartsAlsoOverConnectionsThatBreak) {
  trainers_ = 1;
  mode_ = Mode::kAsync;
  StartServers(2);
  DroppingProxy first(servers_[0]->port(), 900'000, 1);
  DroppingProxy second(servers_[1]->port(), 700'000, 2);
  std::vector<std::int64_t> ids(30'000);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(Mix(i % 25'000));  // some of them twice
  }
  const TableSpec spec{.name = "large", .dim = 16};
  std::vector<float> expected(ids.size() * 16);
  {
    auto client = Connect(0).value();
    RemoteTable* table = client->Table(spec).value();
    for (std::size_t at = 0; at < ids.size(); at += 100) {  // in one part each
      ASSERT_TRUE(
          table->Lookup(std::span(ids).subspan(at, 100), std::span(expected).subspan(at * 16, 1600))
              .ok());
    }
    EXPECT_EQ(table->Size().value(), 25'000u);
  }
  for (const Transport transport : {Transport::kSocket, Transport::kGrpc}) {
    ClientOptions options;
    options.servers = {"127.0.0.1:" + std::to_string(first.port()),
                       "127.0.0.1:" + std::to_string(second.port())};
    options.transport = transport;
    options.reconnect_timeout = std::chrono::seconds(20);
    auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    RemoteTable* table = (*client)->Table(spec).value();
    for (int i = 0; i < 10; ++i) {
      std::vector<float> rows(ids.size() * 16);
      const Status pulled = table->Lookup(ids, rows);
      ASSERT_TRUE(pulled.ok()) << pulled.ToString();
      ASSERT_TRUE(rows == expected);
    }
    EXPECT_EQ(table->Size().value(), 25'000u);
  }
  EXPECT_GT(first.drops() + second.drops(), 5);
}

TEST_F(JobTest, AClientThatWasClosedSaysSo) {
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0).value();
  RemoteTable* table = client->Table({.name = "t", .dim = 2}).value();
  const std::vector<float> two(2, 1);
  RemoteDense* dense = client->Dense({.name = "d", .shape = {2}}, two).value();
  ASSERT_TRUE(client->EndStep("").ok());
  ASSERT_TRUE(client->Close().ok());
  const std::vector<std::int64_t> id{1};
  std::vector<float> row(2);
  const Status refusals[] = {table->Lookup(id, row),
                             table->ApplyGradients(id, two),
                             table->Assign(id, two),
                             table->Erase(id).status(),
                             table->Size().status(),
                             table->Content().status(),
                             dense->Pull(row),
                             dense->Push(two),
                             client->EndStep(""),
                             client->Barrier(),
                             client->RequestSave(true),
                             client->SavePersistables(directory_ + "_pulled").status(),
                             client->StatusOf(0).status(),
                             client->MetricsOf(0).status(),
                             client->Table({.name = "u", .dim = 2}).status(),
                             client->Dense({.name = "e", .shape = {2}}, two).status()};
  for (const Status& refusal : refusals) {
    EXPECT_EQ(refusal.code(), Code::kFailedPrecondition) << refusal.ToString();
    EXPECT_NE(refusal.message().find("closed"), std::string_view::npos) << refusal.ToString();
  }
  EXPECT_TRUE(client->Close().ok());
  EXPECT_EQ(client->step(), 1);
}

TEST_F(JobTest, AShardFileThatIsMissingCutDamagedOrAnothersIsNeverSilence) {
  trainers_ = 1;
  full_steps_ = 4;
  incremental_steps_.reset();
  StartServers(2);
  for (const int steps : {5, 12}) {
    (void)Train(steps);
    AwaitSaves();
  }
  servers_.clear();
  const auto list = [&] {
    auto manager = CheckpointManager::Open({.directory = directory_, .read_only = true}).value();
    return manager->List().value();
  };
  const std::vector<CheckpointInfo> before = list();
  ASSERT_GE(before.size(), 2u);
  const std::string victim = before.back().path + "/__lookup_table__/ps_1.safetensors";
  // A bit of a row: the newest checkpoint is passed over by all, not only by who found it.
  {
    std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-5, std::ios::end);
    const char byte = static_cast<char>(file.peek() ^ 1);
    file.seekp(-5, std::ios::end);
    file.put(byte);
  }
  StartServers(2);
  {
    auto client = Connect(0);
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    EXPECT_EQ((*client)->step(), before[before.size() - 2].step);
  }
  servers_.clear();
  // Of another server: whole, and rows of the same tables, but not these.
  std::filesystem::copy_file(before.back().path + "/__lookup_table__/ps_0.safetensors", victim,
                             std::filesystem::copy_options::overwrite_existing);
  StartServers(2);
  EXPECT_EQ(Connect(0).value()->step(), before[before.size() - 2].step);
  servers_.clear();
  // Of another table: the same rows under another name.
  {
    std::filesystem::copy_file(
        before[before.size() - 2].path + "/__lookup_table__/ps_1.safetensors", victim,
        std::filesystem::copy_options::overwrite_existing);
    std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
    std::string head(4096, ' ');
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    const std::size_t name = head.find("\"users/keys\"");
    ASSERT_NE(name, head.npos);
    file.seekp(static_cast<std::streamoff>(name) + 1);
    file.write("other", 5);
  }
  StartServers(2);
  EXPECT_EQ(Connect(0).value()->step(), before[before.size() - 2].step);
  servers_.clear();
  std::filesystem::resize_file(victim, std::filesystem::file_size(victim) / 2);
  StartServers(2);
  EXPECT_EQ(Connect(0).value()->step(), before[before.size() - 2].step);
  servers_.clear();
  // No whole one is left: an error, not a fresh start.
  for (const CheckpointInfo& info : before) {
    std::filesystem::remove(info.path + "/__lookup_table__/ps_1.safetensors");
  }
  StartServers(2);
  Status ended = servers_[0]->Wait();
  if (ended.ok()) ended = servers_[1]->Wait();
  EXPECT_EQ(ended.code(), Code::kCorruption) << ended.ToString();
}

TEST_F(JobTest, TellsItsStateAndMetrics) {
  trainers_ = 1;
  StartServers(2);
  auto client = Connect(0);
  ASSERT_TRUE(client.ok());
  TestModel model;
  ASSERT_TRUE(model.Declare(client->get()).ok());
  ASSERT_TRUE(model.TrainTo(2).ok());
  const auto text = (*client)->StatusOf(1);
  ASSERT_TRUE(text.ok());
  const Value status = DecodeJson(*text).value();
  EXPECT_EQ(*status.Find("state"), Value("serving"));
  EXPECT_EQ(status.Find("step")->AsInt(), 2);
  EXPECT_EQ(status.Find("tables")->if_list()->size(), 3u);
  const auto metrics = (*client)->MetricsOf(0);
  ASSERT_TRUE(metrics.ok());
  EXPECT_NE(metrics->find("cairn_ps_step 2\n"), metrics->npos) << *metrics;
  EXPECT_NE(metrics->find("cairn_ps_table_rows{table=\"users\"}"), metrics->npos) << *metrics;
}

TEST_F(JobTest, TheHealthServiceTellsWhoServes) {
  trainers_ = 1;
  StartServer(0, 2);  // alone: it waits for the other one
  EXPECT_EQ(rpc::HealthAt(servers_[0]->port()), rpc::Health::kNotServing);
  StartServer(1, 2);
  ASSERT_TRUE(Connect(0).ok());
  for (const auto& server : servers_) {
    while (rpc::HealthAt(server->port()) != rpc::Health::kServing) std::this_thread::yield();
  }
  Lose(1);
  StartServer(1, 2);
  while (StatusOf(0).Find("generations")->AsInt() < 2) std::this_thread::yield();
  while (rpc::HealthAt(servers_[0]->port()) != rpc::Health::kServing) std::this_thread::yield();
}

/// Of all threads of this process.
std::vector<int> Nices() {
  std::vector<int> nices;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "stat");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    std::istringstream words(text.substr(std::min(text.size(), text.rfind(')') + 1)));
    std::string word;
    for (int i = 0; i < 16; ++i) words >> word;  // it is the 19th of all
    int nice = 0;
    if (words >> nice) nices.push_back(nice);
  }
  return nices;
}

TEST_F(JobTest, TheWriterOfCheckpointsGivesWay) {
  const int own = getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(std::ranges::count(Nices(), own + 5), 0);
  trainers_ = 1;
  StartServers(1);
  ASSERT_TRUE(Connect(0).ok());
  while (std::ranges::count(Nices(), own + 5) == 0) std::this_thread::yield();
  EXPECT_EQ(std::ranges::count(Nices(), own + 5), 1) << "nobody else";
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST_F(JobTest, AWrongTokenIsRefused) {
  trainers_ = 1;
  ServerOptions options = Options(0, 1);
  options.security.token = "secret";
  auto server = Server::Start(options);
  ASSERT_TRUE(server.ok());
  ClientOptions client;
  client.servers = {"127.0.0.1:" + std::to_string((*server)->port())};
  client.reconnect_timeout = std::chrono::seconds(20);
  for (const Transport transport : {Transport::kSocket, Transport::kGrpc}) {
    client.transport = transport;
    client.security.token = "Secret";
    EXPECT_EQ(Client::Connect(client).status().code(), Code::kPermissionDenied);
    client.security.token = "secret";
    const auto connected = Client::Connect(client);
    EXPECT_TRUE(connected.ok()) << connected.status().ToString();
  }
}

TEST_F(JobTest, QuantizedIncrementsComeBackCloseEnoughAndTheirErrorIsTold) {
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_ = 1;
  const auto latest = [&] {
    auto manager = CheckpointManager::Open({.directory = directory_, .read_only = true}).value();
    return manager->Latest().value();
  };
  std::map<bool, std::uint64_t> bytes;  // of the increment, quantized or not
  for (const bool quantize : {false, true}) {
    SCOPED_TRACE(quantize);
    quantize_ = quantize;
    StartServers(2);
    auto client = Connect(0).value();
    TestModel model;
    ASSERT_TRUE(model.Declare(client.get()).ok());
    EXPECT_EQ(client->QuantizationError().value().max_abs, 0) << "no increment yet";
    // Until an increment has all that there is.
    const auto increment = [&] {
      const auto info = latest();
      return info && info->kind == "increment" && info->step == client->step();
    };
    while (client->step() < 4 || (!increment() && client->step() < 20)) {
      ASSERT_TRUE(model.TrainTo(client->step() + 1).ok());
      AwaitSaves();
    }
    ASSERT_TRUE(increment());
    const std::int64_t step = client->step();
    const Learned learned = model.Learned().value();
    const TableCut::Error error = client->QuantizationError().value();
    const std::string metrics = client->MetricsOf(1).value();
    EXPECT_EQ(metrics.find("\ncairn_ps_quantization_error ") != metrics.npos, quantize) << metrics;
    EXPECT_EQ(error.max_abs > 0, quantize);
    EXPECT_LT(error.max_relative, 0.01);
    for (const char* server : {"ps_0", "ps_1"}) {
      bytes[quantize] += std::filesystem::file_size(latest()->path + "/__lookup_table__/" + server +
                                                    ".safetensors");
    }
    client = nullptr;
    servers_.clear();
    StartServers(2);
    client = Connect(0).value();
    EXPECT_EQ(client->step(), step);
    TestModel restored;
    ASSERT_TRUE(restored.Declare(client.get()).ok());
    const Learned back = restored.Learned().value();
    ASSERT_EQ(back.size(), learned.size());
    for (const auto& [name, row] : learned) {
      const auto found = back.find(name);
      ASSERT_NE(found, back.end()) << name;
      ASSERT_EQ(found->second.size(), row.size()) << name;
      const bool table = name.find('/') != name.npos;  // the others are dense variables
      for (std::size_t i = 0; i < row.size(); ++i) {
        // Frequency and version are the last two.
        const double off = table && i + 2 < row.size() ? error.max_abs : 0;
        EXPECT_LE(std::abs(static_cast<double>(found->second[i]) - static_cast<double>(row[i])),
                  off * 1.0001)
            << name << " " << i;
      }
    }
    EXPECT_EQ(back == learned, !quantize);
    // And it goes on.
    const Status trained = restored.TrainTo(step + 3);
    EXPECT_TRUE(trained.ok()) << trained.ToString();
    client = nullptr;
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }
  EXPECT_LT(bytes[true], bytes[false]);
}

TEST_F(JobTest, IncrementsThatOutgrowTheirBaseMakeANewOne) {
  trainers_ = 1;
  full_steps_.reset();
  incremental_steps_ = 1;
  StartServers(1);
  auto client = Connect(0).value();
  RemoteTable* const table = client->Table({.name = "t", .dim = 1}).value();
  constexpr std::int64_t kRows = 120'000;
  std::map<std::string, std::string> kinds;  // by id
  const auto change = [&](std::int64_t from, std::int64_t to) {
    std::vector<std::int64_t> ids;
    for (std::int64_t id = from; id < to; ++id) ids.push_back(id);
    ASSERT_TRUE(table->Assign(ids, std::vector<float>(ids.size(), 1)).ok());
    ASSERT_TRUE(client->EndStep("").ok());
    AwaitSaves();
    auto manager = CheckpointManager::Open({.directory = directory_, .read_only = true}).value();
    if (const auto latest = manager->Latest().value()) kinds[latest->id] = latest->kind;
  };
  change(0, kRows);
  for (int sixth = 0; sixth < 12; ++sixth) {
    change(sixth % 6 * kRows / 6, (sixth % 6 + 1) * kRows / 6);
  }
  const auto fulls =
      std::ranges::count_if(kinds, [](const auto& each) { return each.second == "full"; });
  EXPECT_GE(fulls, 2) << testing::PrintToString(kinds);
  EXPECT_LT(fulls, static_cast<std::ptrdiff_t>(kinds.size())) << testing::PrintToString(kinds);
}

}  // namespace
}  // namespace cairn::ps
