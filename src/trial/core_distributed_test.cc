// Several ranks of one trial. Each is a thread here; python/tests/test_core_examples.py has them as
// processes, in C++ and in Python.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <cairn/core.h>

#include "base/status_macros.h"
#include "trial/test_core.h"

namespace cairn::core {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class RanksTest : public CoreFixture {
 protected:
  DistributedOptions Place(int rank, int size) {
    DistributedOptions options;
    options.rank = rank;
    options.size = size;
    options.chief = "file:" + (directory_ / "chief").string();
    options.timeout = std::chrono::seconds(60);
    return options;
  }

  /// Runs it once for each rank, all at the same time.
  void Run(int size, const std::function<void(DistributedContext&)>& body) {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        auto met = DistributedContext::Open(Place(rank, size));
        ASSERT_TRUE(met.ok()) << met.status().ToString();
        body(**met);
      });
    }
  }

  void RunContexts(int size, const std::function<void(Context&)>& body,
                   const InitOptions& wanted = {}) {
    Run(size, [&](DistributedContext& ranks) {
      InitOptions options = wanted;
      options.storage = storage();
      options.distributed = &ranks;
      auto context = Init(options);
      ASSERT_TRUE(context.ok()) << context.status().ToString();
      body(**context);
      (*context)->Close().IgnoreError("a test that wants to know closes it");
    });
  }

  static PathBody Writes(const std::string& name, const std::string& text) {
    return [=](const std::string& path) {
      fs::create_directories(fs::path(path + "/" + name).parent_path());
      std::ofstream(path + "/" + name) << text;
      return Status::Ok();
    };
  }
};

TEST_F(RanksTest, GathersAndBroadcasts) {
  Run(3, [](DistributedContext& ranks) {
    const Value mine = Value::Object{{"rank", ranks.rank()}, {"text", std::string("\xFF", 1)}};
    const auto everyone = ranks.AllGather(mine).value();
    ASSERT_EQ(everyone.size(), 3u);
    EXPECT_EQ(everyone[2].Find("rank")->AsInt(), 2);
    EXPECT_EQ(everyone[static_cast<std::size_t>(ranks.rank())], mine);
    EXPECT_EQ(ranks.Broadcast(ranks.rank()).value(), Value(0));
    const auto gathered = ranks.Gather(10 * ranks.rank()).value();
    if (ranks.is_chief()) {
      EXPECT_THAT(gathered, ElementsAre(Value(0), Value(10), Value(20)));
    } else {
      EXPECT_THAT(gathered, IsEmpty());
    }
    EXPECT_EQ(ranks.AllGatherLocal(ranks.rank()).value().size(), 3u);
    EXPECT_EQ(ranks.BroadcastLocal(ranks.rank() + 5).value(), Value(5));
    EXPECT_EQ(ranks.GatherLocal(1).value().size(), ranks.is_chief() ? 3u : 0u);
    EXPECT_TRUE(ranks.Barrier().ok());
    EXPECT_EQ(ranks.cross_rank(), 0);
    EXPECT_EQ(ranks.cross_size(), 1);
  });
  EXPECT_FALSE(fs::exists(directory_ / "chief"));
}

TEST_F(RanksTest, RanksOfSeveralMachinesHaveNeighbours) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([this, rank] {
      DistributedOptions options = Place(rank, 4);
      options.chief += "-far";
      options.local_rank = rank % 2;
      options.local_size = 2;
      options.token = "a secret";
      const auto ranks = DistributedContext::Open(options).value();
      EXPECT_EQ(ranks->cross_rank(), rank / 2);
      EXPECT_EQ(ranks->cross_size(), 2);
      const int first = rank / 2 * 2;
      EXPECT_THAT(ranks->AllGatherLocal(rank).value(), ElementsAre(Value(first), Value(first + 1)));
      EXPECT_EQ(ranks->BroadcastLocal(rank).value(), Value(first));
    });
  }
}

TEST_F(RanksTest, OptionsAreChecked) {
  const auto refusal = [](const DistributedOptions& options) {
    const Status status = DistributedContext::Open(options).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({.rank = 2, .size = 2}), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(refusal({.rank = 0, .size = 2}), HasSubstr("chief"));
  EXPECT_THAT(refusal({.rank = 0, .size = 2, .local_rank = 3, .local_size = 2}),
              HasSubstr("local rank 3 of 2"));
  EXPECT_THAT(refusal({.rank = 1, .size = 2, .chief = "node0:12"}), HasSubstr("CAIRN_CHIEF_TOKEN"));
  EXPECT_THAT(refusal({.rank = 1, .size = 2, .chief = "nowhere"}), HasSubstr("host:port"));
}

TEST_F(RanksTest, ARankThatDoesNotComeIsNamed) {
  DistributedOptions chief = Place(0, 3);
  chief.timeout = std::chrono::milliseconds(200);
  const Status alone = DistributedContext::Open(chief).status();
  EXPECT_EQ(alone.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(alone.ToString(), HasSubstr("ranks [1, 2] did not come within 0.2 s"));
  DistributedOptions worker = Place(1, 3);
  worker.timeout = std::chrono::milliseconds(100);
  const Status lost = DistributedContext::Open(worker).status();
  EXPECT_EQ(lost.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(lost.ToString(), HasSubstr("rank 0 was not found"));
}

TEST_F(RanksTest, TwoLivingProcessesOfOneRankAreTold) {
  Status chief;
  {
    std::jthread first([&] { chief = DistributedContext::Open(Place(0, 3)).status(); });
    std::vector<std::jthread> twins;
    for (int i = 0; i < 2; ++i) {
      twins.emplace_back([&] {
        const auto met = DistributedContext::Open(Place(1, 3));
        if (met.ok()) (*met)->Broadcast(0).status().IgnoreError("the chief has given up");
      });
    }
  }
  EXPECT_THAT(chief.ToString(), HasSubstr("two living processes came as rank 1 of 3"));
}

TEST_F(RanksTest, ASecondRankZeroAtTheSamePortIsTold) {
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  ASSERT_EQ(bind(taken, reinterpret_cast<const sockaddr*>(&at), length), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&at), &length), 0);
  DistributedOptions second = Place(0, 2);
  second.chief = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  second.token = "secret";
  EXPECT_THAT(DistributedContext::Open(second).status().ToString(),
              HasSubstr("another living process does. Is it a second rank 0?"));
  close(taken);
}

TEST_F(RanksTest, ARankZeroWhosePlaceWasTakenIsToldAndLeavesTheOtherAlone) {
  DistributedOptions first = Place(0, 2);
  const std::string path = first.chief.substr(5);
  std::string lost;
  // Once more, with more time, when the machine was so busy that the other came too late.
  for (first.timeout = std::chrono::milliseconds(200);
       lost.find("another living process") == std::string::npos &&
       first.timeout < std::chrono::minutes(1);
       first.timeout *= 4) {
    std::atomic<bool> ended = false;
    std::jthread chief([&] {
      lost = DistributedContext::Open(first).status().ToString();
      ended = true;
    });
    while (!fs::exists(path) && !ended) std::this_thread::yield();
    // As another rank 0 does: whole, at once.
    std::ofstream(path + ".new") << "127.0.0.1:1 other";
    fs::rename(path + ".new", path);
  }
  EXPECT_THAT(lost, HasSubstr("another living process took rank 0's place"));
  EXPECT_EQ(Read(path), "127.0.0.1:1 other");
}

TEST_F(RanksTest, ARankThatIsGoneIsNamed) {
  Run(2, [](DistributedContext& ranks) {
    if (!ranks.is_chief()) return ranks.Close();
    const Status gone = ranks.Gather(1).status();
    EXPECT_EQ(gone.code(), Code::kUnavailable);
    EXPECT_THAT(gone.ToString(), HasSubstr("gather: rank 1 is gone"));
  });
}

TEST_F(RanksTest, RanksThatMakeDifferentCallsAreTold) {
  Run(2, [](DistributedContext& ranks) {
    if (!ranks.is_chief()) {
      EXPECT_TRUE(ranks.Gather(1).ok());
      EXPECT_TRUE(ranks.Gather(2).ok());
      return;
    }
    EXPECT_TRUE(ranks.Broadcast(0).ok());
    const Status told = ranks.Gather(1).status();
    EXPECT_EQ(told.code(), Code::kFailedPrecondition);
    EXPECT_THAT(told.ToString(), HasSubstr("same calls in the same order"));
  });
}

TEST_F(RanksTest, AStrangerWithoutTheTokenChangesNothing) {
  std::jthread chief([this] {
    DistributedOptions options = Place(0, 2);
    options.token = "secret";
    const auto ranks = DistributedContext::Open(options);
    ASSERT_TRUE(ranks.ok()) << ranks.status().ToString();
    EXPECT_EQ((*ranks)->AllGather("a").value()[1], Value("b"));
  });
  while (!fs::exists(directory_ / "chief")) std::this_thread::yield();
  const std::string text = Read((directory_ / "chief").string());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::size_t colon = text.find(':');
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(text.substr(colon + 1))));
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string noise = "GET / HTTP/1.1\r\n\r\n" + std::string(100, 'x');
  EXPECT_EQ(send(stranger, noise.data(), noise.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(noise.size()));
  close(stranger);
  DistributedOptions options = Place(1, 2);
  options.token = "wrong";
  options.timeout = std::chrono::milliseconds(200);
  EXPECT_EQ(DistributedContext::Open(options).status().code(), Code::kDeadlineExceeded);
  options = Place(1, 2);
  options.token = "secret";
  const auto worker = DistributedContext::Open(options).value();
  EXPECT_EQ(worker->AllGather("b").value()[0], Value("a"));
}

TEST_F(RanksTest, AShardedCheckpointHasTheFilesOfAllRanks) {
  std::string stored[2];
  RunContexts(2, [&](Context& context) {
    const int rank = context.distributed().rank();
    const auto body = [&](const std::string& path) {
      RETURN_IF_ERROR(Writes("of_" + std::to_string(rank), std::to_string(rank))(path));
      RETURN_IF_ERROR(Writes("sub/same", "equal everywhere")(path));
      return Status::Ok();
    };
    const auto id = context.StorePath(Steps(4), body, {.shard = true});
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    stored[rank] = *id;
    const Status read = context.RestorePath(*id, [&](const std::string& path) {
      EXPECT_EQ(Read(path + "/of_" + std::to_string(1 - rank)), std::to_string(1 - rank));
      EXPECT_EQ(Read(path + "/sub/same"), "equal everywhere");
      return Status::Ok();
    });
    EXPECT_TRUE(read.ok()) << read.ToString();
  });
  EXPECT_EQ(stored[0], stored[1]);
  EXPECT_TRUE(Verify(storage(), /*deep=*/true).value().ok());
  RunContexts(2, [&](Context& context) {  // the next start begins with it
    EXPECT_EQ(context.latest_checkpoint(), stored[0]);
    EXPECT_EQ(context.List().value().size(), 1u);
    EXPECT_FALSE(fs::exists(storage() + "/.cairn-staging"));
  });
}

TEST_F(RanksTest, CheckpointsOfTheChiefAndOfAllRanksTakeTurns) {
  RunContexts(2, [&](Context& context) {
    const int rank = context.distributed().rank();
    for (int step = 0; step < 6; ++step) {
      if (step % 2 == 0) {
        const auto body = Writes(std::to_string(rank), "x");
        const auto stored = context.StorePath(Steps(step), body, {.shard = true});
        EXPECT_TRUE(stored.ok()) << rank << " at " << step << ": " << stored.status().ToString();
      } else if (rank == 0) {
        EXPECT_TRUE(context.StorePath(Steps(step), Writes("chief", "x")).ok());
      }
    }
  });
  const auto reader = CheckpointManager::Open({.directory = storage(), .read_only = true}).value();
  std::vector<std::int64_t> steps;
  for (const CheckpointInfo& info : reader->List().value()) steps.push_back(info.step);
  EXPECT_THAT(steps, ElementsAre(3, 4, 5));
  EXPECT_TRUE(Verify(storage(), /*deep=*/true).value().ok());
}

TEST_F(RanksTest, ConflictingFilesAreRefusedWithNamesAndRanks) {
  RunContexts(2, [&](Context& context) {
    const int rank = context.distributed().rank();
    std::string where;
    const auto body = [&](const std::string& path) {
      where = path;
      RETURN_IF_ERROR(Writes("weights", "of " + std::to_string(rank))(path));
      return Writes(rank == 0 ? "dir" : "dir/x", "x")(path);
    };
    const Status refused = context.StorePath(Steps(1), body, {.shard = true}).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr("'weights' has other content on rank 0 than on rank 1"),
                      HasSubstr("'dir' is a file of rank 0 and a directory of rank 1")));
    EXPECT_FALSE(fs::exists(where));
    EXPECT_THAT(context.List().value(), IsEmpty());
    // And the ranks are still in step.
    EXPECT_TRUE(context.StorePath(Steps(2), Writes("same", "x"), {.shard = true}).ok());
  });
}

TEST_F(RanksTest, MetadataIsMergedAndConflictsAreRefusedBeforeAByteIsWritten) {
  RunContexts(2, [&](Context& context) {
    const int rank = context.distributed().rank();
    const Value::List nans = {std::numeric_limits<double>::quiet_NaN()};
    const Value mine = rank == 0 ? Value(Value::Object{{"steps_completed", 3}, {"loss", nans}})
                                 : Value(Value::Object{{"of_1", 1}, {"loss", nans}});
    const auto id = context.StorePath(mine, Writes("same", "x"), {.shard = true});
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    const Value merged = context.GetMetadata(*id).value();
    EXPECT_EQ(*merged.Find("steps_completed"), Value(3));
    EXPECT_EQ(*merged.Find("of_1"), Value(1));
    EXPECT_EQ(merged.Find("loss")->if_list()->size(), 1u) << "of both ranks the same";
    bool entered = false;
    const auto body = [&](const std::string&) {
      entered = true;
      return Status::Ok();
    };
    const Status other = context.StorePath(Steps(3 + rank), body, {.shard = true}).status();
    EXPECT_THAT(other.ToString(),
                HasSubstr("metadata 'steps_completed' is 3 on rank 0 and 4 on rank 1"));
    const Status none = context.StorePath(Value::Object{}, body, {.shard = true}).status();
    EXPECT_THAT(none.ToString(), HasSubstr("metadata must hold 'steps_completed'"));
    const Value bad = rank == 0 ? Steps(1) : Value(Value::Object{{"steps_completed", "ten"}});
    const Status half = context.StorePath(bad, body, {.shard = true}).status();
    EXPECT_EQ(half.code(), rank == 0 ? Code::kFailedPrecondition : Code::kInvalidArgument);
    EXPECT_FALSE(entered);
  });
}

TEST_F(RanksTest, OneRankThatFailsLeavesNothingAnywhere) {
  RunContexts(2, [&](Context& context) {
    const int rank = context.distributed().rank();
    const auto body = [&](const std::string& path) {
      RETURN_IF_ERROR(Writes("x" + std::to_string(rank), "x")(path));
      return rank == 1 ? ResourceExhaustedError("out of luck") : Status::Ok();
    };
    const Status failed = context.StorePath(Steps(1), body, {.shard = true}).status();
    EXPECT_EQ(failed.code(), rank == 0 ? Code::kFailedPrecondition : Code::kResourceExhausted);
    EXPECT_THAT(failed.ToString(), HasSubstr("out of luck"));
    if (rank == 0) {
      EXPECT_THAT(failed.ToString(), HasSubstr("rank 1 failed"));
    }
    EXPECT_TRUE(context.distributed().Barrier().ok());
    EXPECT_THAT(context.List().value(), IsEmpty());
    EXPECT_FALSE(fs::exists(storage() + "/.cairn-staging"));
    const Status read =
        context.RestorePath("none", [](const std::string&) { return Status::Ok(); });
    EXPECT_EQ(read.code(), rank == 0 ? Code::kNotFound : Code::kFailedPrecondition);
  });
}

TEST_F(RanksTest, OnlyTheChiefStoresAloneReportsAndDeletes) {
  RunContexts(2, [&](Context& context) {
    if (context.distributed().is_chief()) return;
    for (const Status& status : {context.StorePath(Steps(1), Writes("x", "x")).status(),
                                 context.ReportTrainingMetrics(1, Value::Object{{"a", 1}}),
                                 context.ReportProgress(0.5), context.Delete("x")}) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(status.ToString(), HasSubstr("only rank 0 may"));
    }
  });
}

TEST_F(RanksTest, UploadsOfSeveralRanksAreOneCheckpointAndDownloadsAreShared) {
  fs::create_directories(directory_ / "mine" / "empty");
  std::ofstream((directory_ / "mine" / "a.bin").string()) << "a";
  RunContexts(2, [&](Context& context) {
    const bool chief = context.distributed().is_chief();
    const std::string from = chief ? "" : (directory_ / "mine").string();
    const auto id = context.Upload(from, Steps(1), {}, {.shard = true});
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    const std::string out = (directory_ / "out").string();
    EXPECT_TRUE(context.Download(*id, out).ok());
    EXPECT_EQ(Read(out + "/a.bin"), "a");
    EXPECT_TRUE(fs::is_empty(out + "/empty"));
    const std::string own = (directory_ / ("own" + std::to_string(chief))).string();
    const auto picked = [](const std::string& name) { return name == "empty/"; };
    EXPECT_TRUE(context.Download(*id, own, picked, DownloadMode::kNoSharedDownload).ok());
    EXPECT_TRUE(fs::is_directory(own + "/empty"));
    EXPECT_FALSE(fs::exists(own + "/a.bin"));
  });
}

TEST_F(RanksTest, TensorsOfSeveralRanksAreOneCheckpoint) {
  RunContexts(2, [&](Context& context) {
    const auto rank = static_cast<std::uint64_t>(context.distributed().rank());
    std::vector<float> piece(2, static_cast<float>(rank));
    SaveRequest request;
    request.metadata = Steps(9);
    request.tensors = {{.name = "w",
                        .dtype = DType::kF32,
                        .shape = {2},
                        .data = piece.data(),
                        .shard = ShardSpec{.global_shape = {4}, .offset = {2 * rank}}}};
    const auto id = context.Save(std::move(request));
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    ASSERT_TRUE(context.WaitSaved().ok());
    std::vector<float> whole(4);
    RestoreRequest wanted;
    wanted.into = {{.name = "w", .dtype = DType::kF32, .shape = {4}, .data = whole.data()}};
    const auto restored = context.Restore(std::move(wanted));
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ((*restored)->info.id, *id);
    EXPECT_THAT(whole, ElementsAre(0, 0, 1, 1));
  });
}

TEST_F(RanksTest, OnlyTheChiefAsksInChiefOnly) {
  RunContexts(2,
              [](Context& context) {
                const bool chief = context.distributed().is_chief();
                EXPECT_EQ(context.ShouldPreempt(), !chief);
                const Status closed = context.Close();
                EXPECT_EQ(closed.code(), chief ? Code::kOk : Code::kInvalidArgument);
                if (!chief) {
                  EXPECT_THAT(closed.ToString(), HasSubstr("kChiefOnly only rank 0"));
                }
              },
              {.preempt_mode = PreemptMode::kChiefOnly});
}

TEST_F(RanksTest, WorkersThatAskAChiefThatIsGoneAreToldToStop) {
  RunContexts(2, [](Context& context) {
    EXPECT_FALSE(context.ShouldPreempt());
    if (context.distributed().is_chief()) return context.distributed().Close();
    EXPECT_TRUE(context.ShouldPreempt());
    EXPECT_EQ(context.Close().code(), Code::kUnavailable);
  });
}

/// Started by hand beside a real engine.
class JoiningRanksTest : public RanksTest {
 protected:
  EngineToJoin engine_{storage()};
};

TEST_F(JoiningRanksTest, AllRanksAreOneRunThatCanBePaused) {
  for (const PreemptMode mode : {PreemptMode::kWorkersAskChief, PreemptMode::kWorkersAskMaster}) {
    const std::string name = std::to_string(static_cast<int>(mode));
    std::string trial[2];
    RunContexts(
        2,
        [&](Context& context) {
          const int rank = context.distributed().rank();
          ASSERT_TRUE(context.info().has_value());
          trial[rank] = context.info()->trial.trial_id;
          EXPECT_EQ(context.info()->trial.run_id, 1u);
          const auto body = Writes("of_" + std::to_string(rank), "x");
          const auto id = context.StorePath(Steps(5), body, {.shard = true});
          ASSERT_TRUE(id.ok()) << id.status().ToString();
          if (rank == 0) {
            EXPECT_TRUE(context.ReportTrainingMetrics(5, Value::Object{{"loss", 0.5}}).ok());
            const TrialView view = engine_->Get(trial[0]).value();
            EXPECT_EQ(view.record.Find(*id)->ranks, 2u);
            EXPECT_TRUE(engine_->Pause(trial[0]).ok());
          }
          while (!context.ShouldPreempt()) std::this_thread::yield();
          const Status closed = context.Close();
          EXPECT_TRUE(closed.ok()) << closed.ToString();
        },
        {.external_id = name, .preempt_mode = mode});
    EXPECT_EQ(trial[0], trial[1]);
    EXPECT_EQ(engine_->Get(trial[0]).value().state, TrialState::kPaused);
  }
}

TEST_F(JoiningRanksTest, AllRanksAreToldWhyRank0CouldNotJoin) {
  setenv("CAIRN_JOIN_TOKEN", "wrong", 1);
  Run(2, [&](DistributedContext& ranks) {
    const Status refused = Init({.storage = storage(), .distributed = &ranks}).status();
    EXPECT_EQ(refused.code(), ranks.is_chief() ? Code::kPermissionDenied : Code::kUnavailable);
    if (!ranks.is_chief()) {
      EXPECT_THAT(refused.ToString(), HasSubstr("rank 0 could not join"));
    }
  });
}

}  // namespace
}  // namespace cairn::core
