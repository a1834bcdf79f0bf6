#include "tests/interleaving/scenarios.h"

#include <string>

namespace cairn::interleaving {
namespace {

constexpr int kSetupActor = 100;
// cairn.json, and of the first checkpoint the marker, index, file and manifest: its notes come with
// the next page.
constexpr std::size_t kPageObjects = 5;

MemoryStoreOptions StoreOf(Disk disk) {
  MemoryStoreOptions options;
  options.object_store = disk != Disk::kPlain;
  options.part_bytes = 4096;
  if (disk == Disk::kShelves) {
    options.listing = {.many_directories = 1, .many_objects = 1};
    options.page_objects = kPageObjects;
  }
  return options;
}

/// "two ranks, 2 saves, 1 late".
std::string Counted(const std::string& what, int saves, int expiries) {
  return what + ", " + std::to_string(saves) + (saves == 1 ? " save" : " saves") +
         (expiries == 0 ? "" : ", " + std::to_string(expiries) + " late");
}

std::string NameOf(const std::string& what, Disk disk) {
  return what + " (" + std::string(DiskName(disk)) + ")";
}

/// A finished writer left these steps.
std::function<void(World*)> Saved(std::vector<std::int64_t> steps) {
  return [steps = std::move(steps)](World* world) {
    Actor* actor = world->AddActor(kSetupActor);
    ManagerOptions options = actor->Options();
    options.retention.keep_last.reset();
    auto manager = actor->Open(options);
    for (const std::int64_t step : steps) actor->Save(manager.get(), step);
  };
}

ManagerOptions KeepLast(const Actor& actor, std::optional<std::uint64_t> keep) {
  ManagerOptions options = actor.Options();
  options.retention.keep_last = keep;
  return options;
}

void SaveSteps(Actor* actor, CheckpointManager* manager, std::vector<std::int64_t> steps) {
  for (const std::int64_t step : steps) {
    if (!actor->Save(manager, step)) break;
  }
  manager->Close().IgnoreError("what it left is what is judged");
}

/// Opens before anybody else runs, then saves.
std::function<void(Actor*)> OpenedWriter(std::vector<std::int64_t> steps,
                                         std::optional<std::uint64_t> keep = std::nullopt) {
  return [=](Actor* actor) {
    actor->set_quiet(true);
    auto manager = actor->Open(KeepLast(*actor, keep));
    actor->set_quiet(false);
    if (manager != nullptr) SaveSteps(actor, manager.get(), steps);
  };
}

std::function<void(Actor*)> Writer(std::vector<std::int64_t> steps,
                                   std::optional<std::uint64_t> keep = std::nullopt) {
  return [=](Actor* actor) {
    actor->Pause();
    const auto floor = actor->Floor();
    auto manager = actor->Open(KeepLast(*actor, keep));
    if (manager == nullptr) return;
    actor->Restore(manager.get(), floor);
    SaveSteps(actor, manager.get(), steps);
  };
}

std::function<void(Actor*)> Reader() {
  return [](Actor* actor) {
    actor->Pause();
    const auto floor = actor->Floor();
    ManagerOptions options = actor->Options();
    options.read_only = true;
    auto manager = actor->Open(options);
    if (manager == nullptr) return;
    actor->Restore(manager.get(), floor);
  };
}

/// Says something of the checkpoint in that directory, once.
std::function<void(Actor*)> Noter(const std::string& directory,
                                  void (Actor::*says)(CheckpointManager*, const std::string&)) {
  return [=](Actor* actor) {
    actor->set_quiet(true);
    ManagerOptions options = actor->Options();
    options.read_only = true;
    auto manager = actor->Open(options);
    const std::string id = actor->world()->ledger().IdIn(directory);
    actor->set_quiet(false);
    if (manager != nullptr) (actor->*says)(manager.get(), id);
  };
}

std::function<void(Actor*)> Pinner(const std::string& directory) {
  return Noter(directory, &Actor::Pin);
}

std::function<void(Actor*)> Judge(const std::string& directory) {
  return Noter(directory, &Actor::Score);
}

/// An opened writer that keeps the newest and the best.
std::function<void(Actor*)> WriterThatKeepsTheBest(std::vector<std::int64_t> steps) {
  return [=](Actor* actor) {
    ManagerOptions options = KeepLast(*actor, 1);
    options.retention.keep_best = 1;
    options.retention.score = "accuracy";
    actor->set_quiet(true);
    auto manager = actor->Open(options);
    actor->set_quiet(false);
    if (manager != nullptr) SaveSteps(actor, manager.get(), steps);
  };
}

/// `opened`: nobody else does anything while it opens, but where it waits for them.
std::function<void(Actor*)> Rank(int rank, std::vector<std::int64_t> steps, bool opened = false,
                                 int world_size = 2) {
  return [=](Actor* actor) {
    ManagerOptions options = actor->RankOptions(rank, world_size);
    options.retention.keep_last.reset();
    actor->set_quiet(opened);
    auto manager = actor->Open(options);
    actor->set_quiet(false);
    if (manager != nullptr) SaveSteps(actor, manager.get(), steps);
  };
}

std::vector<std::int64_t> Steps(int count) {
  std::vector<std::int64_t> steps;
  for (int i = 0; i < count; ++i) steps.push_back(20 + 10 * i);
  return steps;
}

}  // namespace

std::string_view DiskName(Disk disk) {
  switch (disk) {
    case Disk::kPlain:
      return "plain";
    case Disk::kObjects:
      return "objects";
    case Disk::kShelves:
      return "shelves";
  }
  return "unknown";
}

Scenario TakeoverDuringSaves(Disk disk, int saves) {
  return {.name = NameOf(Counted("takeover during saves", saves, 0), disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter(Steps(saves)), Writer(Steps(saves))}};
}

Scenario TwoOpenAtOnce(Disk disk) {
  return {.name = NameOf("two open at once", disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Writer({20}), Writer({20})}};
}

Scenario TakeoverDuringRemoval(Disk disk) {
  return {.name = NameOf("takeover during removal", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter({20}, 1), Writer({10})}};
}

Scenario TakeoverDuringRemovalOfSharedFiles(Disk disk) {
  Scenario scenario = TakeoverDuringRemoval(disk);
  scenario.name = NameOf("takeover during removal of shared files", disk);
  scenario.share_files = true;
  return scenario;
}

Scenario TakeoverOfAFailingWriter(Disk disk) {
  Scenario scenario = TakeoverDuringSaves(disk, 2);
  scenario.name = NameOf("takeover of a failing writer", disk);
  scenario.failing_writer = 0;
  return scenario;
}

Scenario TakeoverByARemover(Disk disk) {
  return {.name = NameOf("takeover by a remover", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter({20}, 1), Writer({20, 10}, 1)}};
}

Scenario PinAgainstRetention(Disk disk) {
  return {.name = NameOf("pin against retention", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter({20, 10}, 1), Pinner("checkpoint_000010")}};
}

Scenario PinRemovalTakeover(Disk disk) {
  return {.name = NameOf("pin, removal and takeover", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter({20}, 1), Pinner("checkpoint_000010"), Writer({}, 1)}};
}

Scenario PinRemovalTwoTakeovers(Disk disk) {
  Scenario scenario = PinRemovalTakeover(disk);
  scenario.name = NameOf("pin, removal and two takeovers", disk);
  scenario.scripts.push_back(Writer({}, 1));
  return scenario;
}

Scenario ScoreAgainstRetention(Disk disk) {
  return {.name = NameOf("score against retention", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {WriterThatKeepsTheBest({20, 30}), Judge("checkpoint_000010")}};
}

Scenario ReaderBesideRetention(Disk disk) {
  return {.name = NameOf("reader beside retention", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter({20, 30}, 1), Reader()}};
}

Scenario TwoRanks(Disk disk, int saves, int expiries) {
  return {.name = NameOf(Counted("two ranks", saves, expiries), disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, Steps(saves)), Rank(1, Steps(saves))},
          .expiries = expiries};
}

Scenario TwoOpenedRanks(Disk disk, int saves, int expiries) {
  return {.name = NameOf(Counted("two opened ranks", saves, expiries), disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, Steps(saves), true), Rank(1, Steps(saves), true)},
          .expiries = expiries};
}

Scenario RanksAndTakeover(Disk disk) {
  return {.name = NameOf("ranks and takeover", disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, {20}, true), Rank(1, {20}, true), Writer({20})}};
}

Scenario TwoCoordinators(Disk disk) {
  return {.name = NameOf("two coordinators", disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, {20}), Rank(0, {20}), Rank(1, {20}), Rank(1, {20})}};
}

Scenario ReplacedRank(Disk disk, int expiries) {
  return {.name = NameOf(Counted("replaced rank", 1, expiries), disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, {20}, true), Rank(1, {20}, true), Rank(1, {20})},
          .expiries = expiries};
}

Scenario ReplacedFailingRank(Disk disk) {
  Scenario scenario = ReplacedRank(disk, 0);
  scenario.name = NameOf("replaced failing rank", disk);
  scenario.failing_writer = 1;
  return scenario;
}

Scenario ReplacedRankOfThree(Disk disk) {
  return {.name = NameOf("replaced rank of three", disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, {20}, true, 3), Rank(1, {20}, true, 3), Rank(2, {20}, true, 3),
                      Rank(1, {20}, false, 3)}};
}

Scenario RestartedRank(Disk disk) {
  return {.name = NameOf("restarted rank", disk),
          .store = StoreOf(disk),
          .setup = nullptr,
          .scripts = {Rank(0, {20, 30}), Rank(1, {20, 30}), Rank(1, {30})}};
}

Scenario GoingBack(Disk disk) {
  return {.name = NameOf("going back", disk),
          .store = StoreOf(disk),
          .setup = Saved({10}),
          .scripts = {OpenedWriter({40, 20}), Writer({20})}};
}

Scenario Crowd(Disk disk) {
  return {.name = NameOf("crowd", disk),
          .store = StoreOf(disk),
          .setup = Saved({10, 15}),
          .scripts = {OpenedWriter({20, 30}, 2), Writer({20, 30}, 1), Writer({20, 30}, 2), Reader(),
                      Pinner("checkpoint_000010")}};
}

const std::map<std::string, Scenario (*)(Disk)>& AllScenarios() {
  static const std::map<std::string, Scenario (*)(Disk)> all = {
      {"TakeoverDuringASave", [](Disk disk) { return TakeoverDuringSaves(disk, 1); }},
      {"TakeoverDuringTwoSaves", [](Disk disk) { return TakeoverDuringSaves(disk, 2); }},
      {"TakeoverOfAFailingWriter", TakeoverOfAFailingWriter},
      {"GoingBack", GoingBack},
      {"TwoOpenAtOnce", TwoOpenAtOnce},
      {"TakeoverDuringRemoval", TakeoverDuringRemoval},
      {"TakeoverDuringRemovalOfSharedFiles", TakeoverDuringRemovalOfSharedFiles},
      {"TakeoverByARemover", TakeoverByARemover},
      {"PinAgainstRetention", PinAgainstRetention},
      {"PinRemovalTakeover", PinRemovalTakeover},
      {"PinRemovalTwoTakeovers", PinRemovalTwoTakeovers},
      {"ScoreAgainstRetention", ScoreAgainstRetention},
      {"ReaderBesideRetention", ReaderBesideRetention},
      {"TwoRanks", [](Disk disk) { return TwoRanks(disk, 1, 0); }},
      {"TwoRanksTwoSavesLate", [](Disk disk) { return TwoRanks(disk, 2, 1); }},
      {"TwoOpenedRanks", [](Disk disk) { return TwoOpenedRanks(disk, 1, 0); }},
      {"TwoOpenedRanksLate", [](Disk disk) { return TwoOpenedRanks(disk, 1, 1); }},
      {"TwoOpenedRanksTwoSaves", [](Disk disk) { return TwoOpenedRanks(disk, 2, 0); }},
      {"RanksAndTakeover", RanksAndTakeover},
      {"TwoCoordinators", TwoCoordinators},
      {"ReplacedRank", [](Disk disk) { return ReplacedRank(disk, 0); }},
      {"ReplacedRankLate", [](Disk disk) { return ReplacedRank(disk, 1); }},
      {"ReplacedFailingRank", ReplacedFailingRank},
      {"ReplacedRankOfThree", ReplacedRankOfThree},
      {"RestartedRank", RestartedRank},
      {"Crowd", Crowd},
  };
  return all;
}

}  // namespace cairn::interleaving
