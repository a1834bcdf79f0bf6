#include "tests/crash/scenarios.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "tests/crash/recovery.h"

namespace cairn::crash {
namespace {

/// Two files of their own (one that changes and one that does not), small packed ones, own state.
std::vector<Variable> SmallModel() {
  using Kind = Variable::Kind;
  return {
      {.name = "weights", .kind = Kind::kReplicated, .rows = 45, .columns = 70},
      {.name = "bias", .kind = Kind::kReplicated, .rows = 1, .columns = 70},
      {.name = "frozen", .kind = Kind::kReplicated, .rows = 33, .columns = 70, .period = 0},
      {.name = "rng", .kind = Kind::kOwn, .rows = 1, .columns = 16},
  };
}

std::vector<Variable> DistributedModel() {
  using Kind = Variable::Kind;
  return {
      {.name = "embedding", .kind = Kind::kSharded, .rows = 90, .columns = 70},
      {.name = "head", .kind = Kind::kReplicated, .rows = 3, .columns = 70},
      {.name = "frozen", .kind = Kind::kSharded, .rows = 99, .columns = 70, .period = 0},
      {.name = "rng", .kind = Kind::kOwn, .rows = 1, .columns = 16},
  };
}

/// Few files, for scenarios of many saves.
std::vector<Variable> MostlyFrozenModel() {
  using Kind = Variable::Kind;
  return {
      {.name = "frozen", .kind = Kind::kReplicated, .rows = 33, .columns = 70, .period = 0},
      {.name = "bias", .kind = Kind::kReplicated, .rows = 1, .columns = 70},
  };
}

Status SaveTimes(World* world, CheckpointManager* manager, int times) {
  for (int i = 0; i < times; ++i) {
    const int serial = world->oracle().Begin(10 * (i + 1));
    RETURN_IF_ERROR(world->Save(manager, serial).status());
    RETURN_IF_ERROR(manager->WaitAll());
  }
  return Status::Ok();
}

Status OpenAndSave(World* world, int times) {
  ASSIGN_OR_RETURN(auto manager, world->Open());
  RETURN_IF_ERROR(SaveTimes(world, manager.get(), times));
  return manager->Close();
}

Status SaveOnAllRanks(World* world, int times) {
  std::vector<int> serials;
  for (int i = 0; i < times; ++i) serials.push_back(world->oracle().Begin(10 * (i + 1)));
  const auto size = static_cast<std::size_t>(world->options().world_size);
  std::vector<Status> statuses(size);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t i = 0; i < size; ++i) {
      ranks.emplace_back([&, i] {
        const int rank = static_cast<int>(i);
        statuses[i] = [&]() -> Status {
          ASSIGN_OR_RETURN(auto manager, world->Open(rank));
          for (const int serial : serials) {
            RETURN_IF_ERROR(world->Save(manager.get(), serial, rank).status());
          }
          return manager->Close();
        }();
      });
    }
  }
  for (const Status& status : statuses) RETURN_IF_ERROR(status);
  return Status::Ok();
}

/// Pins, scores and deletes between saves, with keep_last = 2.
Status TakeNotes(World* world) {
  ASSIGN_OR_RETURN(auto manager, world->Open());
  Oracle& oracle = world->oracle();
  std::map<int, std::string> ids;
  auto save = [&]() -> Result<int> {
    const int serial = oracle.Begin(10 * static_cast<std::int64_t>(ids.size() + 1));
    ASSIGN_OR_RETURN(const CheckpointInfo info, world->Save(manager.get(), serial));
    RETURN_IF_ERROR(manager->WaitAll());
    ids[serial] = info.id;
    return serial;
  };
  auto pin = [&](int serial, bool pinned) -> Status {
    oracle.Pinning(serial);
    RETURN_IF_ERROR(pinned ? manager->Pin(ids[serial]) : manager->Unpin(ids[serial]));
    oracle.Pinned(serial, pinned);
    return Status::Ok();
  };
  ASSIGN_OR_RETURN(const int first, save());
  RETURN_IF_ERROR(pin(first, true));
  ASSIGN_OR_RETURN(const int second, save());
  RETURN_IF_ERROR(save().status());
  RETURN_IF_ERROR(save().status());  // the second goes, the first stays
  (void)second;
  oracle.Scoring();
  RETURN_IF_ERROR(manager->AddMetrics(ids[first], Value::Object{{"score", 0.5}}));
  oracle.Scored(first, 0.5);
  RETURN_IF_ERROR(pin(first, false));
  oracle.Deleting(first);
  RETURN_IF_ERROR(manager->Delete(ids[first]));
  oracle.Deleted(first);
  const int last = ids.rbegin()->first;  // also the latest may be deleted
  oracle.Deleting(last);
  RETURN_IF_ERROR(manager->Delete(ids[last]));
  oracle.Deleted(last);
  RETURN_IF_ERROR(save().status());
  return manager->Close();
}

Scenario Make(std::string name, Machine::Kind kind, std::vector<Variable> model,
              std::optional<std::uint64_t> keep_last, std::function<Status(World*)> run,
              std::vector<std::string> must_do = {}) {
  Scenario scenario;
  scenario.name = std::move(name);
  scenario.world.kind = kind;
  scenario.world.job = Job(1, std::move(model), /*user_files=*/false);
  scenario.world.manager.retention.keep_last = keep_last;
  scenario.run = std::move(run);
  scenario.must_do = std::move(must_do);
  return scenario;
}

}  // namespace

std::vector<Scenario> Scenarios(Machine::Kind kind) {
  const bool disk = kind == Machine::Kind::kDisk;
  std::vector<Scenario> all;
  all.push_back(Make("three saves", kind, SmallModel(), 3,
                     [](World* world) { return OpenAndSave(world, 3); }));
  all.push_back(Make(
      "retention and recycling", kind, SmallModel(), 1,
      [](World* world) { return OpenAndSave(world, 5); },
      disk ? std::vector<std::string>{"remove: pool", "save: recycle", "save: link"}
           : std::vector<std::string>{"remove: files"}));
  all.back().foreign = true;
  all.push_back(Make(
      "sharing over eight links", kind, MostlyFrozenModel(), std::nullopt,
      [](World* world) { return OpenAndSave(world, 11); },
      disk ? std::vector<std::string>{"save: link"} : std::vector<std::string>{}));
  all.push_back(Make("sharing and retention", kind, MostlyFrozenModel(), 2,
                     [](World* world) { return OpenAndSave(world, 5); }, {"remove: manifest"}));
  all.push_back(Make("three ranks", kind, DistributedModel(), 1,
                     [](World* world) { return SaveOnAllRanks(world, 3); },
                     {"save: part", "remove: manifest"}));
  all.back().world.world_size = 3;
  all.push_back(Make("two generations", kind, SmallModel(), 2, [](World* world) -> Status {
    RETURN_IF_ERROR(OpenAndSave(world, 2));
    return OpenAndSave(world, 2);
  }));
  all.back().foreign = true;
  all.push_back(Make("notes", kind, MostlyFrozenModel(), 2, TakeNotes, {"remove: note"}));
  all.push_back(Make("user files", kind, MostlyFrozenModel(), 2,
                     [](World* world) { return OpenAndSave(world, 3); }));
  all.back().world.job = Job(1, MostlyFrozenModel(), /*user_files=*/true);
  return all;
}

Recording Record(const Scenario& scenario, const std::function<bool(const SyncPoint&)>& ignore) {
  World world(scenario.world);
  if (scenario.foreign) world.PlantForeign();
  if (scenario.world.kind == Machine::Kind::kDisk) world.WatchSyncs(ignore);
  world.StartRecording();
  Recording recording;
  recording.status = scenario.run(&world);
  recording.cuts = world.StopRecording();
  recording.syncs = world.syncs();
  const auto steps = world.steps();
  for (const std::string& step : scenario.must_do) {
    if (!steps.contains(step)) recording.not_done.push_back(step);
  }
  return recording;
}

Recording RecordAfter(const Scenario& scenario, const Cut& cut, const End& end) {
  World::Options options = scenario.world;
  options.world_size = 1;
  options.seed = 77;
  options.manager.retention.keep_last = 2;
  World world(options, cut.image, end.ending, end.seed, cut.promise);
  world.StartRecording();
  Recording recording;
  recording.status = [&]() -> Status {
    ASSIGN_OR_RETURN(auto manager, world.Open());
    ASSIGN_OR_RETURN(const std::set<int> sealed, ListSerials(manager.get()));
    world.oracle().Adopt(sealed);
    RETURN_IF_ERROR(SaveTimes(&world, manager.get(), 1));
    return manager->Close();
  }();
  recording.cuts = world.StopRecording();
  return recording;
}

std::vector<End> Ends(Machine::Kind kind, int seeds, std::uint64_t first_seed) {
  if (kind == Machine::Kind::kBucket) return {{Ending::kKill, 0}};
  std::vector<End> ends = {{Ending::kForget, 0}, {Ending::kKeep, 0}, {Ending::kKill, 0}};
  for (int i = 0; i < seeds; ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    ends.push_back({Ending::kSubset, seed});
    ends.push_back({Ending::kTorn, seed});
  }
  return ends;
}

Tally Enumerate(const Scenario& scenario, const std::vector<Cut>& cuts,
                const std::vector<End>& ends, std::size_t max_violations) {
  Tally tally;
  tally.cuts = cuts.size();
  const std::size_t total = cuts.size() * ends.size();
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint64_t> images{0};
  Mutex mu;
  auto work = [&] {
    for (;;) {
      const std::size_t i = next++;
      if (i >= total) return;
      // One way of ending after the other, over all cuts: the common ones find most.
      const End& end = ends[i / cuts.size()];
      const std::size_t at = i % cuts.size();
      const Cut& cut = cuts[at];
      const std::uint64_t seed = end.seed * 1'000'003 + at;
      Machine machine(cut.image, end.ending, seed);
      RecoveryOptions options;
      options.foreign = scenario.foreign;
      options.world_size = scenario.world.world_size;
      options.no_garbage = end.ending == Ending::kKeep || end.ending == Ending::kKill;
      const std::string broken = CheckRecovery(&machine, scenario.world.job, cut.promise, options);
      ++images;
      if (broken.empty()) continue;
      MutexLock lock(&mu);
      tally.violations.push_back({at, scenario.name + ", cut " + std::to_string(at) + " before \"" +
                                          cut.before + "\" (" + cut.step + "), " +
                                          std::string(EndingName(end.ending)) + " with seed " +
                                          std::to_string(seed) + ": " + broken});
      if (tally.violations.size() >= max_violations) next = total;
    }
  };
  {
    std::vector<std::jthread> threads;
    const unsigned count = std::max(1u, std::thread::hardware_concurrency());
    for (unsigned i = 0; i < count; ++i) threads.emplace_back(work);
  }
  tally.images = images;
  return tally;
}

}  // namespace cairn::crash
