#include "paramserver/update_log.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"

// What the two levels of the log promise, on a disk that forgets: at every moment the process is
// killed, or the power fails in every way the disk knows and the machine is started anew.

namespace cairn::ps {
namespace {

constexpr char kFirstBoot[] = "boot-1";
constexpr char kSecondBoot[] = "boot-2";

struct Moment {
  std::string next;
  std::shared_ptr<const SimImage> image;
  std::uint64_t acknowledged = 0;  // changes, of all lives
  std::uint64_t trimmed = 0;       // records that a checkpoint has
  std::uint64_t covered = 0;       // changes that it has
};

struct Disk {
  explicit Disk(SimFs* fs, std::uint64_t seed) : ids(seed) {
    store = LocalStore::Open({.root = "/a/store", .fs = fs, .ids = &ids}).value();
  }
  std::unique_ptr<UpdateLog> Open(LogLevel level, const std::string& boot) {
    return UpdateLog::Open(store, "log/ps_0/start", level, boot).value();
  }
  SeededIds ids;
  std::shared_ptr<Store> store;  // shared: as logs take it
};

std::string BodyOf(std::uint64_t sequence) {
  return std::to_string(sequence) + ":" + std::string(sequence * 37 % 300, 'x');
}

/// Number `from` and behind: the changes that a replay shows. An error: the log is refused.
Result<std::vector<std::uint64_t>> Replayed(UpdateLog* log, std::uint64_t from) {
  std::vector<std::uint64_t> sequences;
  std::string wrong;
  RETURN_IF_ERROR(log->Replay(from, [&](const LogRecord& record) {
    if (record.kind == Kind::kStatus) return Status::Ok();
    if (AsText(record.body) != BodyOf(record.sequence)) wrong = "another body";
    sequences.push_back(record.sequence);
    return Status::Ok();
  }));
  if (!wrong.empty()) return InternalError(wrong);
  return sequences;
}

/// Four lives of a log under one boot: the process is killed three times. The third life trims.
std::vector<Moment> Record(LogLevel level) {
  std::vector<Moment> moments;
  SimFs fs;
  Disk disk(&fs, 1);
  Mutex mu;
  Moment now;
  fs.SetHook([&](const SimOp& op) {
    MutexLock lock(&mu);
    now.next = DescribeSimOp(op);
    now.image = fs.Snapshot();
    moments.push_back(now);
  });
  for (int life = 0; life < 4; ++life) {
    std::uint64_t acknowledged = now.acknowledged;
    auto log = disk.Open(level, kFirstBoot);
    EXPECT_TRUE(Replayed(log.get(), now.trimmed + 1).ok());
    for (int i = 0; i < 6; ++i) {
      const std::string body = BodyOf(++acknowledged);
      EXPECT_TRUE(log->Append({.kind = Kind::kPush,
                               .trainer = 0,
                               .sequence = acknowledged,
                               .body = std::as_bytes(std::span(body.data(), body.size()))})
                      .ok());
      MutexLock lock(&mu);
      now.acknowledged = acknowledged;
    }
    if (life < 2) continue;
    {
      MutexLock lock(&mu);  // a checkpoint has all of it
      now.trimmed = log->next() - 1;
      now.covered = acknowledged;
    }
    EXPECT_TRUE(log->Trim(log->next()).ok());
  }
  fs.SetHook(nullptr);
  now.next = "the end";
  now.image = fs.Snapshot();
  moments.push_back(now);
  return moments;
}

/// What is wrong, or nothing. `*refused`: it said that its end may be missing.
std::string Check(SimFs* fs, LogLevel level, const std::string& boot, const Moment& moment,
                  bool* refused) {
  Disk disk(fs, 2);
  auto log = disk.Open(level, boot);
  const auto shown = Replayed(log.get(), moment.trimmed + 1);
  *refused = shown.status().Is(Code::kFailedPrecondition);
  if (*refused) {
    const bool remedy = shown.status().message().find("--recovery exact") != std::string::npos;
    return remedy ? "" : "no remedy: " + shown.status().ToString();
  }
  if (!shown.ok()) return shown.status().ToString();
  std::uint64_t expected = moment.covered;
  for (const std::uint64_t sequence : *shown) {
    if (sequence != ++expected) return "change " + std::to_string(sequence) + " is out of order";
  }
  if (expected < moment.acknowledged) {
    return "change " + std::to_string(expected + 1) + " was acknowledged and is not there";
  }
  return "";
}

std::vector<std::unique_ptr<SimFs>> PowerLosses(const SimImage& image) {
  std::vector<std::unique_ptr<SimFs>> after;
  after.push_back(SimFs::FromCrash(image, CrashMode::kForget, 0));
  after.push_back(SimFs::FromCrash(image, CrashMode::kKeep, 0));
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    after.push_back(SimFs::FromCrash(image, CrashMode::kSubset, seed));
    after.push_back(SimFs::FromCrash(image, CrashMode::kTorn, seed));
  }
  return after;
}

TEST(UpdateLog, BothLevelsSurviveTheEndOfTheProcess) {
  for (const LogLevel level : {LogLevel::kWritten, LogLevel::kSynced}) {
    SCOPED_TRACE(level == LogLevel::kSynced ? "synced" : "written");
    const std::vector<Moment> moments = Record(level);
    ASSERT_GT(moments.size(), 30u);
    for (const Moment& moment : moments) {
      auto fs = SimFs::FromKill(*moment.image);
      bool refused = false;
      ASSERT_EQ(Check(fs.get(), level, kFirstBoot, moment, &refused), "") << moment.next;
      ASSERT_FALSE(refused) << moment.next;
    }
  }
}

TEST(UpdateLog, SyncedSurvivesTheEndOfTheMachine) {
  int worlds = 0;
  for (const Moment& moment : Record(LogLevel::kSynced)) {
    for (const auto& fs : PowerLosses(*moment.image)) {
      ++worlds;
      bool refused = false;
      ASSERT_EQ(Check(fs.get(), LogLevel::kSynced, kSecondBoot, moment, &refused), "")
          << moment.next;
      ASSERT_FALSE(refused) << moment.next;
    }
  }
  std::cout << worlds << " machines\n";
}

TEST(UpdateLog, WrittenIsNeverSilentAboutTheEndOfTheMachine) {
  int refusals = 0;
  int worlds = 0;
  for (const Moment& moment : Record(LogLevel::kWritten)) {
    for (const auto& fs : PowerLosses(*moment.image)) {
      ++worlds;
      bool refused = false;
      ASSERT_EQ(Check(fs.get(), LogLevel::kWritten, kSecondBoot, moment, &refused), "")
          << moment.next;
      refusals += refused ? 1 : 0;
    }
  }
  std::cout << worlds << " machines, " << refusals << " logs refused\n";
  EXPECT_GT(refusals, worlds / 2);
}

TEST(UpdateLog, ALogOfAnotherStartOfTheMachineCountsWhereItWasSynced) {
  SimFs fs;
  Disk disk(&fs, 1);
  const auto append = [](UpdateLog* log, std::uint64_t sequence) {
    const std::string body = BodyOf(sequence);
    return log->Append({.kind = Kind::kPush,
                        .trainer = 0,
                        .sequence = sequence,
                        .body = std::as_bytes(std::span(body.data(), body.size()))});
  };
  {
    auto log = disk.Open(LogLevel::kSynced, kFirstBoot);
    ASSERT_TRUE(Replayed(log.get(), 1).ok());
    ASSERT_TRUE(append(log.get(), 1).ok());
  }
  {
    // Another boot, and from now on only written.
    auto log = disk.Open(LogLevel::kWritten, kSecondBoot);
    EXPECT_EQ(Replayed(log.get(), 1).value(), std::vector<std::uint64_t>{1});
    ASSERT_TRUE(append(log.get(), 2).ok());
  }
  {
    auto log = disk.Open(LogLevel::kWritten, kSecondBoot);
    EXPECT_EQ(Replayed(log.get(), 1).value(), (std::vector<std::uint64_t>{1, 2})) << "the same";
  }
  {
    auto log = disk.Open(LogLevel::kSynced, "boot-3");
    const Status refused = Replayed(log.get(), 1).status();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_NE(refused.message().find("--log-level synced"), refused.message().npos)
        << refused.ToString();
  }
}

}  // namespace
}  // namespace cairn::ps
