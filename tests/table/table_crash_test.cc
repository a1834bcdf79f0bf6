// The machine ends at every operation of saves of real tables: full checkpoints, increments of both
// kinds, retention, compaction. Whatever is listed afterwards gives the rows of its step, bit for
// bit, in any partition, and nothing acknowledged is lost. Every third operation, in `make torture`
// every one.

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manager.h"
#include "tests/crash/recovery.h"
#include "tests/crash/scenarios.h"
#include "tests/crash/world.h"
#include "tests/table/real_training.h"

namespace cairn::crash {
namespace {

constexpr std::uint64_t kSeed = 7;

/// Trains, saves after each step as `kinds` say (a letter each: full, cumulative, consecutive), and
/// goes on while it is written.
Status SaveAll(World* world, CheckpointManager* manager, const std::string& kinds,
               table::RealTraining* training, TableCheckpoints* checkpoints) {
  if (Status status = training->Step(); !status.ok()) return status;
  for (const char letter : kinds) {
    const std::int64_t step = training->steps();
    const int serial = world->oracle().Begin(step);
    PreparedSave save = world->job().Prepare(serial, step);
    save.request.blocking = save.request.lazy = false;
    save.request.kind = letter == 'F'   ? SaveKind::kFull
                        : letter == 'c' ? SaveKind::kCumulative
                                        : SaveKind::kConsecutive;
    save.request.tensors = {training->DenseView()};
    checkpoints->set_options({.quantize = false, .compress_keys = serial % 2 == 0});
    world->BeginSave(serial);
    const auto handle = checkpoints->Save(std::move(save.request));
    if (!handle.ok()) return handle.status();
    if (Status status = training->Step(); !status.ok()) return status;
    const auto saved = handle->Wait();
    if (!saved.ok()) return saved.status();
  }
  checkpoints->Wait();
  return manager->WaitAll();
}

Status TrainAndSave(World* world, const std::string& kinds) {
  table::RealTraining training(kSeed);
  {
    auto manager = world->Open();
    if (!manager.ok()) return manager.status();
    TableCheckpoints checkpoints(manager->get(), training.tables(), training.arrays(), {});
    if (Status status = SaveAll(world, manager->get(), kinds, &training, &checkpoints);
        !status.ok()) {
      return status;
    }
    if (Status status = (*manager)->Close(); !status.ok()) return status;
  }
  if (Status status = world->Compact(); !status.ok()) return status;
  // Another process goes on with the chain, in other pieces.
  auto manager = world->Open();
  if (!manager.ok()) return manager.status();
  table::RealTraining next(kSeed, 3);
  TableCheckpoints checkpoints(manager->get(), next.tables(), next.arrays(), {});
  RestoreRequest request;
  request.into = {next.DenseTarget()};
  const auto restored = checkpoints.Restore(std::move(request));
  if (!restored.ok()) return restored.status();
  if (!restored->has_value()) return NotFoundError("nothing to go on with");
  next.set_steps((*restored)->step);
  if (Status status = SaveAll(world, manager->get(), "cn", &next, &checkpoints); !status.ok()) {
    return status;
  }
  return (*manager)->Close();
}

/// "" or what is broken after the machine ended at `cut`.
std::string Check(const Cut& cut, const End& end, table::Digests* digests) {
  Machine machine(cut.image, end.ending, end.seed);
  SeededIds ids(99);
  Environment env;
  auto store = machine.NewStore(&ids);
  if (!store.ok()) return store.status().ToString();
  env.store = *store;
  env.ids = &ids;
  env.host = "machine";
  env.pid = 200;
  // For writing: the opening seals and sweeps what was cut off.
  ManagerOptions options;
  options.retention.keep_last = std::nullopt;
  options.copy_threads = 1;
  auto manager = OpenManager(options, env, SmallLayout());
  if (!manager.ok()) return "open: " + manager.status().ToString();
  const auto infos = (*manager)->List();
  if (!infos.ok()) return infos.status().ToString();
  std::set<int> listed;
  for (const CheckpointInfo& info : *infos) {
    listed.insert(Job::SerialOf(info.counters));
    const std::string wrong =
        table::CompareRestored(manager->get(), info.id, kSeed, 1 + end.seed % 4, digests);
    if (!wrong.empty()) return info.path + ": " + wrong;
  }
  for (const int serial : cut.promise.required) {
    if (!listed.contains(serial)) return "save " + std::to_string(serial) + " is lost";
  }
  if (!cut.promise.required.empty()) {
    const auto latest = (*manager)->Latest();
    if (!latest.ok() || !latest->has_value()) return "there is no latest";
    if (Job::SerialOf((*latest)->counters) < *cut.promise.required.rbegin()) {
      return "the latest is an older one";
    }
  }
  return "";
}

class TableCrashTest : public testing::TestWithParam<Machine::Kind> {};

TEST_P(TableCrashTest, NoRowIsLostOrTornWhereverTheMachineEnds) {
  World::Options options;
  options.kind = GetParam();
  options.job = Job(kSeed, {}, /*user_files=*/false);
  options.manager.retention.keep_last = 2;
  options.seed = kSeed;
  World world(options);
  world.StartRecording();
  const Status ran = TrainAndSave(&world, "FcncFnn");
  ASSERT_TRUE(ran.ok()) << ran.ToString();
  const std::vector<Cut> cuts = world.StopRecording();
  table::Digests digests(kSeed);
  std::uint64_t images = 0;
  std::map<std::string, int> steps;
  const std::size_t stride = std::getenv("CAIRN_TORTURE_SECONDS") != nullptr ? 1 : 3;
  std::size_t first = 0;  // another one for each way to end
  for (const End& end : Ends(GetParam(), /*seeds=*/1)) {
    for (std::size_t at = first++ % stride; at < cuts.size(); at += stride) {
      const std::string broken = Check(cuts[at], {end.ending, end.seed * 1'000'003 + at}, &digests);
      ASSERT_EQ(broken, "") << "ended (" << EndingName(end.ending) << ") before " << cuts[at].before
                            << " in step \"" << cuts[at].step << "\", cut " << at;
      ++images;
      ++steps[cuts[at].step];
    }
  }
  std::cout << images << " ends of the machine in " << steps.size() << " protocol steps\n";
  for (const char* step : {"save: write", "save: manifest", "remove: manifest", "remove: files"}) {
    EXPECT_GT(steps[step], 0) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, TableCrashTest,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kBucket),
                         [](const auto& info) { return std::string(KindName(info.param)); });

}  // namespace
}  // namespace cairn::crash
