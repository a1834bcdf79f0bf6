#pragma once

#include <map>
#include <string>
#include <string_view>

#include "tests/interleaving/explorer.h"

namespace cairn::interleaving {

/// Which memory store a scenario runs on. kShelves: an object store that lists whole trees, in
/// small pages, and on which every manifest is worth a shelf (shelves.h).
enum class Disk { kPlain, kObjects, kShelves };
std::string_view DiskName(Disk disk);

/// A writer that has opened saves `saves` times; another opens with takeover, restores and saves
/// the same steps. One checkpoint is there before.
Scenario TakeoverDuringSaves(Disk disk, int saves);
/// Two writers open a fresh repository at once and save.
Scenario TwoOpenAtOnce(Disk disk);
/// The first writer keeps one checkpoint: it removes the older ones while the other takes over.
Scenario TakeoverDuringRemoval(Disk disk);
/// A takeover during a save whose files never reach the store.
Scenario TakeoverOfAFailingWriter(Disk disk);
/// Both keep one checkpoint, and the second saves under the name that the first was about to free.
Scenario TakeoverByARemover(Disk disk);
/// TakeoverDuringRemoval of checkpoints that share a file.
Scenario TakeoverDuringRemovalOfSharedFiles(Disk disk);
/// A writer with retention, and a tool that pins the checkpoint which is about to go.
Scenario PinAgainstRetention(Disk disk);
/// The same, and another writer takes over.
Scenario PinRemovalTakeover(Disk disk);
/// The same with two that take over at once.
Scenario PinRemovalTwoTakeovers(Disk disk);
/// A writer that keeps the newest and the best, and a validation that scores the one that is about
/// to go.
Scenario ScoreAgainstRetention(Disk disk);
/// A writer that keeps one checkpoint, and a reader that restores the latest.
Scenario ReaderBesideRetention(Disk disk);
/// Two ranks make `saves` saves together; deadlines may pass `expiries` times.
Scenario TwoRanks(Disk disk, int saves, int expiries);
/// The same, where nobody is in the way while they open.
Scenario TwoOpenedRanks(Disk disk, int saves, int expiries);
/// Two ranks save together, and a single process takes over.
Scenario RanksAndTakeover(Disk disk);
/// Both ranks are started twice, all at once.
Scenario TwoCoordinators(Disk disk);
/// Two ranks save once; rank 1 is started again while its former process is still alive.
Scenario ReplacedRank(Disk disk, int expiries);
/// The same; the files of the former process never reach the store.
Scenario ReplacedFailingRank(Disk disk);
/// The same with three ranks.
Scenario ReplacedRankOfThree(Disk disk);
/// The same with two, from a fresh repository on, with two saves.
Scenario RestartedRank(Disk disk);
/// One process goes back to an earlier step and on again, then another takes over.
Scenario GoingBack(Disk disk);
/// Three writers, two saves each, retention, a reader and a pinning tool.
Scenario Crowd(Disk disk);

/// All of them by name, for the tests' tables and bin/explore.
const std::map<std::string, Scenario (*)(Disk)>& AllScenarios();

}  // namespace cairn::interleaving
