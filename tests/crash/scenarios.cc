#include "tests/crash/scenarios.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/memory/seeded_random.h"
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
    SetCurrentStep("pin");
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
  SetCurrentStep("score");
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

/// A writer is overtaken by a new run and saves once more: it learns that it is fenced, and what it
/// has committed does not count.
Status Overtake(World* world) {
  Oracle& oracle = world->oracle();
  ASSIGN_OR_RETURN(auto old, world->Open(0, [](ManagerOptions* options) { options->run = 1; }));
  oracle.Opened(1);
  RETURN_IF_ERROR(SaveTimes(world, old.get(), 1));
  ASSIGN_OR_RETURN(auto owner, world->Open(0, [](ManagerOptions* options) {
    options->run = 2;
    options->takeover = true;
  }));
  oracle.Opened(2);
  const int late = oracle.Begin(20);
  const auto saved = world->Save(old.get(), late);
  if (!saved.status().Is(Code::kAborted)) {
    return InternalError("an overtaken writer saved: " + saved.status().ToString());
  }
  oracle.Fenced(late);
  old->Close().IgnoreError("it is fenced");
  RETURN_IF_ERROR(world->Save(owner.get(), oracle.Begin(30)).status());
  return owner->Close();
}

/// The sync of a manifest's name fails: the save takes its manifest back, and the next one works.
Status Withdraw(World* world) {
  ASSIGN_OR_RETURN(auto manager, world->Open());
  RETURN_IF_ERROR(SaveTimes(world, manager.get(), 1));
  world->FailOnce("save: manifest", FsOpKind::kSyncDirectory);
  const auto failed = world->Save(manager.get(), world->oracle().Begin(20));
  if (failed.ok()) return InternalError("a manifest that could not be synced was acknowledged");
  manager->WaitAll().IgnoreError("says it once more");
  RETURN_IF_ERROR(world->Save(manager.get(), world->oracle().Begin(30)).status());
  return manager->Close();
}

/// One save of a chain; `back`: of an increment, how many saves ago its rows are counted from.
struct ChainStep {
  SaveKind kind = SaveKind::kFull;
  int back = 0;
};

/// Makes them on one rank, on from whatever the manager has restored.
Status SaveChain(World* world, CheckpointManager* manager, const std::vector<ChainStep>& steps,
                 int rank = 0, const std::vector<int>* shared = nullptr) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const int serial = shared != nullptr
                           ? (*shared)[i]
                           : world->oracle().Begin(10 * static_cast<std::int64_t>(i + 1));
    const int since = steps[i].kind == SaveKind::kFull ? 0 : serial - steps[i].back;
    RETURN_IF_ERROR(world->Save(manager, serial, rank, steps[i].kind, since).status());
    RETURN_IF_ERROR(manager->WaitAll());
  }
  return Status::Ok();
}

Status OpenAndSaveChain(World* world, const std::vector<ChainStep>& steps, bool restore = false) {
  ASSIGN_OR_RETURN(auto manager, world->Open());
  if (restore) {
    TestTableSink sink;
    RETURN_IF_ERROR(manager->Restore({.tables = &sink}).status());
  }
  RETURN_IF_ERROR(SaveChain(world, manager.get(), steps));
  return manager->Close();
}

Status SaveChainOnAllRanks(World* world, const std::vector<ChainStep>& steps) {
  std::vector<int> serials;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    serials.push_back(world->oracle().Begin(10 * static_cast<std::int64_t>(i + 1)));
  }
  const auto size = static_cast<std::size_t>(world->options().world_size);
  std::vector<Status> statuses(size);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t i = 0; i < size; ++i) {
      ranks.emplace_back([&, i] {
        const int rank = static_cast<int>(i);
        statuses[i] = [&]() -> Status {
          ASSIGN_OR_RETURN(auto manager, world->Open(rank));
          RETURN_IF_ERROR(SaveChain(world, manager.get(), steps, rank, &serials));
          return manager->Close();
        }();
      });
    }
  }
  for (const Status& status : statuses) RETURN_IF_ERROR(status);
  return Status::Ok();
}

/// A consecutive chain is put together in the middle of it, and goes on.
Status CompactChain(World* world) {
  constexpr auto kNext = SaveKind::kConsecutive;
  RETURN_IF_ERROR(OpenAndSaveChain(world, {{SaveKind::kFull, 0}, {kNext, 1}, {kNext, 1}}));
  RETURN_IF_ERROR(world->Compact());
  return OpenAndSaveChain(world, {{kNext, 1}}, /*restore=*/true);
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

std::vector<Scenario> ChainScenarios(Machine::Kind kind) {
  constexpr auto kFull = SaveKind::kFull;
  constexpr auto kSinceBase = SaveKind::kCumulative;
  constexpr auto kNext = SaveKind::kConsecutive;
  std::vector<Scenario> all;
  const auto add = [&](std::string name, std::optional<std::uint64_t> keep_last,
                       std::function<Status(World*)> run, std::vector<std::string> must_do) {
    all.push_back(Make(std::move(name), kind, MostlyFrozenModel(), keep_last, std::move(run),
                       std::move(must_do)));
    all.back().world.job = Job(1, MostlyFrozenModel(), /*user_files=*/false, /*table_keys=*/90);
  };
  add("increments and retention", 2,
      [=](World* world) {
        return OpenAndSaveChain(
            world,
            {{kFull, 0}, {kSinceBase, 1}, {kSinceBase, 2}, {kFull, 0}, {kNext, 1}, {kNext, 1}});
      },
      {"remove: manifest"});
  all.back().foreign = true;
  add("increments in two generations", 2,
      [=](World* world) -> Status {
        RETURN_IF_ERROR(OpenAndSaveChain(world, {{kFull, 0}, {kNext, 1}}));
        return OpenAndSaveChain(world, {{kNext, 1}, {kSinceBase, 3}, {kFull, 0}, {kFull, 0}},
                                /*restore=*/true);
      },
      {"remove: manifest"});
  add("increments of two ranks", 1,
      [=](World* world) {
        return SaveChainOnAllRanks(world, {{kFull, 0}, {kNext, 1}, {kSinceBase, 2}, {kFull, 0}});
      },
      {"save: part", "remove: manifest"});
  all.back().world.world_size = 2;
  add("compaction", std::nullopt, CompactChain, {"remove: manifest", "save: claim"});
  return all;
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
  all.push_back(Make("overtaken writer", kind, MostlyFrozenModel(), std::nullopt, Overtake));
  all.back().late_commits = true;
  if (disk) {
    all.push_back(Make("withdrawn manifest", kind, MostlyFrozenModel(), std::nullopt, Withdraw));
  }
  for (Scenario& scenario : ChainScenarios(kind)) all.push_back(std::move(scenario));
  if (kind == Machine::Kind::kShelves) {
    for (Scenario& scenario : all) {
      scenario.must_do.insert(scenario.must_do.end(), {"open: shelves", "save: shelves"});
    }
  }
  return all;
}

Recording Record(const Scenario& scenario, const Mutation* mutation) {
  World::Options options = scenario.world;
  options.mutation = mutation;
  World world(options);
  if (scenario.foreign) world.PlantForeign();
  if (scenario.world.kind == Machine::Kind::kDisk) world.WatchSyncs();
  world.StartRecording();
  Recording recording;
  recording.status = scenario.run(&world);
  recording.cuts = world.StopRecording();
  recording.syncs = world.syncs();
  recording.first_effect = world.first_effect();
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
  options.manager.run = cut.promise.run + 1;
  World world(options, cut.image, end.ending, end.seed, cut.promise);
  world.StartRecording();
  Recording recording;
  recording.status = [&]() -> Status {
    ASSIGN_OR_RETURN(auto manager, world.Open());
    ASSIGN_OR_RETURN(const std::set<int> sealed, ListSerials(manager.get()));
    world.oracle().Opened(options.manager.run);
    world.oracle().Adopt(sealed);
    RETURN_IF_ERROR(SaveTimes(&world, manager.get(), 1));
    return manager->Close();
  }();
  recording.cuts = world.StopRecording();
  return recording;
}

std::vector<End> Ends(Machine::Kind kind, int seeds, std::uint64_t first_seed) {
  if (IsBucket(kind)) return {{Ending::kKill, 0}};
  std::vector<End> ends = {{Ending::kForget, 0}, {Ending::kKeep, 0}, {Ending::kKill, 0}};
  for (int i = 0; i < seeds; ++i) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(i);
    ends.push_back({Ending::kSubset, seed});
    ends.push_back({Ending::kTorn, seed});
  }
  return ends;
}

namespace {

/// Calls work(i) for all i below `total` on all cores, until one says false.
void OnAllCores(std::size_t total, const std::function<bool(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned core = 0; core < cores; ++core) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < total; i = next++) {
        if (!work(i)) next = total;
      }
    });
  }
}

std::string DescribeEnd(const Cut& cut, std::size_t at, const End& end) {
  return "cut " + std::to_string(at) + " before \"" + cut.before + "\" (" + cut.step + "), " +
         std::string(EndingName(end.ending)) + " with seed " + std::to_string(end.seed);
}

/// Violations that several threads find.
class Findings {
 public:
  explicit Findings(std::size_t max) : max_(max) {}
  /// False when there are enough.
  bool Add(Violation violation) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    violations_.push_back(std::move(violation));
    return violations_.size() < max_;
  }
  std::vector<Violation> Take() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return std::move(violations_);
  }

 private:
  const std::size_t max_;
  Mutex mu_;
  std::vector<Violation> violations_ GUARDED_BY(mu_);
};

}  // namespace

Tally Enumerate(const Scenario& scenario, const std::vector<Cut>& cuts,
                const std::vector<End>& ends, const EnumerateOptions& how) {
  Tally tally;
  const std::size_t count =
      std::min(cuts.size() - std::min(how.first_cut, cuts.size()), how.max_cuts);
  tally.cuts = count;
  const std::size_t total = std::min<std::uint64_t>(count * ends.size(), how.max_images);
  std::atomic<std::uint64_t> images{0};
  Findings findings(how.max_violations);
  OnAllCores(total, [&](std::size_t i) {
    const std::size_t at = how.first_cut + i % count;
    const Cut& cut = cuts[at];
    End end = ends[i / count];
    end.seed = (end.seed * 1'000'003 + at) ^ Xxh3(std::as_bytes(std::span(scenario.name)));
    Machine machine(cut.image, end.ending, end.seed);
    RecoveryOptions options;
    options.foreign = scenario.foreign;
    options.world_size = scenario.world.world_size;
    options.no_garbage =
        !scenario.late_commits && (end.ending == Ending::kKeep || end.ending == Ending::kKill);
    options.save_again = how.save_again;
    options.mutation = how.mutation;
    const std::string broken = CheckRecovery(&machine, scenario.world.job, cut.promise, options);
    ++images;
    if (broken.empty()) return true;
    return findings.Add({at, scenario.name + ", " + DescribeEnd(cut, at, end) + ": " + broken});
  });
  tally.images = images;
  tally.violations = findings.Take();
  return tally;
}

Tally EnumerateTwice(const Scenario& scenario, const std::vector<Cut>& cuts,
                     const TwiceOptions& how) {
  const Machine::Kind kind = scenario.world.kind;
  const std::vector<End> ends = Ends(kind, 1);
  Tally tally;
  tally.cuts = (cuts.size() - std::min(how.first_cut, cuts.size()) + how.stride - 1) / how.stride;
  std::atomic<std::uint64_t> images{0};
  Findings findings(how.max_violations);
  OnAllCores(tally.cuts, [&](std::size_t i) {
    const std::size_t at = how.first_cut + i * how.stride;
    const Cut& cut = cuts[at];
    SeededRandom random((how.seed * 1'000'003 + at) ^
                        Xxh3(std::as_bytes(std::span(scenario.name))));
    const End first{ends[random.Below(ends.size())].ending, random.Next()};
    const std::string name = scenario.name + ", " + DescribeEnd(cut, at, first);
    const Recording again = RecordAfter(scenario, cut, first);
    if (!again.status.ok()) {
      return findings.Add({at, name + ": the recovery: " + again.status.ToString()});
    }
    for (int sample = 0; sample < how.samples; ++sample) {
      const std::size_t second_at = random.Below(again.cuts.size());
      const Cut& second_cut = again.cuts[second_at];
      const End second{ends[random.Below(ends.size())].ending, random.Next()};
      Machine machine(second_cut.image, second.ending, second.seed);
      RecoveryOptions options;
      options.foreign = scenario.foreign;
      options.save_again = false;
      const std::string broken =
          CheckRecovery(&machine, scenario.world.job, second_cut.promise, options);
      ++images;
      if (broken.empty()) continue;
      if (!findings.Add({at, name + "; then " + DescribeEnd(second_cut, second_at, second) + ": " +
                                 broken})) {
        return false;
      }
    }
    return true;
  });
  tally.images = images;
  tally.violations = findings.Take();
  return tally;
}

}  // namespace cairn::crash
