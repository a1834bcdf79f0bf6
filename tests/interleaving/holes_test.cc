// The holes of docs/decisions/0005, each as the schedule that led into it, driven step by step on
// the real code: today's outcome keeps all promises, and with the mend switched off the same
// schedule breaks one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"
#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

using testing::HasSubstr;

class Hole : public testing::TestWithParam<Disk> {
 protected:
  static void ExpectClosed(const Scenario& scenario, const std::vector<Turn>& turns) {
    const Exploration found = Replay(scenario, turns);
    EXPECT_EQ(found.violation, "") << found.schedule;
  }
  static void ExpectOpen(Scenario scenario, bool ProtocolRules::* mend,
                         const std::vector<Turn>& turns, const std::string& violation) {
    scenario.rules.*mend = false;
    const Exploration found = Replay(scenario, turns);
    EXPECT_THAT(found.violation, HasSubstr(violation)) << found.schedule;
  }
};

TEST_P(Hole, OneASweepByName) {
  const Scenario scenario = TakeoverDuringSaves(GetParam(), 1);
  // The old writer claims the directory after the new owner's seal, and writes its files. It finds
  // the new owner's manifest in its way, or not, and cleans up after itself.
  const std::vector<Turn> turns = {Past(1, "create generations/000003.seal.json"),
                                   Before(0, "create checkpoint_000020/manifest.json"), ToTheEnd(1),
                                   ToTheEnd(0)};
  ExpectClosed(scenario, turns);
  ExpectOpen(scenario, &ProtocolRules::retire_names, turns, "counts but is not whole");
}

TEST_P(Hole, TwoAPinAgainstAFinishedRemoval) {
  const Scenario scenario = PinAgainstRetention(GetParam());
  const std::vector<Turn> turns = {Before(1, "create checkpoint_000010/notes/000001.json"),
                                   Past(0, "delete checkpoint_000010/.cairn-attempt"), ToTheEnd(1),
                                   ToTheEnd(0)};
  ExpectClosed(scenario, turns);
  ExpectOpen(scenario, &ProtocolRules::reread_manifest_after_note, turns,
             "is pinned and no longer counts");
}

TEST_P(Hole, ThreeAReaderBetweenTwoSaves) {
  const Scenario scenario = ReaderBesideRetention(GetParam());
  // The reader has listed the directories.
  const std::vector<Turn> turns = {Before(1, "list checkpoint_000010/notes"), ToTheEnd(0),
                                   ToTheEnd(1)};
  ExpectClosed(scenario, turns);
  ExpectOpen(scenario, &ProtocolRules::reread_when_moved, turns, "found nothing to restore");
}

TEST_P(Hole, FourSealingACheckpointThatIsBeingRemoved) {
  const Scenario scenario = TakeoverDuringRemoval(GetParam());
  // The removal has made sure that nobody overtook it; the opener has done one of the two reads of
  // the checkpoint when the removal goes on to its end.
  const auto turns = [](const std::string& second_read) -> std::vector<Turn> {
    return {Before(0, "delete checkpoint_000010/manifest.json"),
            Past(1, "create generations/000003.json"), Before(1, second_read), ToTheEnd(0),
            ToTheEnd(1)};
  };
  ExpectClosed(scenario, turns("get checkpoint_000010/manifest.json"));
  ExpectOpen(scenario, &ProtocolRules::notes_before_manifest, turns("list checkpoint_000010/notes"),
             "was acknowledged and does not count any more");
}

TEST_P(Hole, SevenALateRemoveNoteOnANameThatIsInUseAgain) {
  const Scenario scenario = TakeoverByARemover(GetParam());
  const std::vector<Turn> turns = {Before(0, "create checkpoint_000010/notes/000001.json"),
                                   ToTheEnd(1), ToTheEnd(0)};
  ExpectClosed(scenario, turns);
  ExpectOpen(scenario, &ProtocolRules::notes_name_checkpoint, turns,
             "was acknowledged and does not count any more");
}

TEST_P(Hole, EightAPartOfARankThatWasReplacedMeanwhile) {
  const Scenario scenario = ReplacedRankOfThree(GetParam());
  const std::vector<Turn> turns = {
      Past(0, "create generations/000001/attempts/1.json"),
      // The part of rank 1 is there, and is taken while that of rank 2 is missing.
      Past(1, "create checkpoint_000020/parts/rank_1.json"), Past(3, "create generations/joins"),
      // Then rank 1 is found to have been started again, and the new process is admitted.
      Past(0, "create generations/000001.start-2.json"),
      Past(2, "create checkpoint_000020/parts/rank_2.json"), ToTheEnd(3), ToTheEnd(0)};
  ExpectClosed(scenario, turns);
  ExpectOpen(scenario, &ProtocolRules::check_part_identity, turns, "holds another state");
}

TEST_P(Hole, NineAReplacedRankThatCleansUp) {
  Scenario scenario = ReplacedRank(GetParam(), 0);
  scenario.failing_writer = 1;
  // Both processes of rank 1 write a file of the same name. On an object store the one that comes
  // first shows only at the end; the other's write fails for a reason of its own.
  const std::string first_write =
      GetParam() == Disk::kPlain ? "open object checkpoint_000020" : "drain checkpoint_000020";
  ExpectClosed(
      scenario,
      {Past(0, "create generations/000001/attempts/1.json"), Before(1, first_write),
       Past(2, "create generations/joins"), Past(0, "create generations/000001.start-2.json"),
       Past(2, "create checkpoint_000020/parts/rank_1.json"), ToTheEnd(0), ToTheEnd(1)});
}

TEST_P(Hole, TenThreeOpeningsAtOnce) {
  const Scenario scenario = PinRemovalTwoTakeovers(GetParam());
  // The first opener has looked before the remove note was there, the second after it. The first
  // seals and names the checkpoint; a pin finds it counting; the second seals and leaves it out.
  const std::vector<Turn> turns = {Before(0, "create checkpoint_000010/notes/000001.json"),
                                   Before(2, "create generations/000003.seal.json"),
                                   Past(0, "create checkpoint_000010/notes/000001.json"),
                                   Before(3, "create generations/000004.seal.json"),
                                   Past(2, "create generations/000003.seal.json"),
                                   ToTheEnd(1),
                                   ToTheEnd(3),
                                   ToTheEnd(2),
                                   ToTheEnd(0)};
  ExpectClosed(scenario, turns);
  ExpectOpen(scenario, &ProtocolRules::close_older, turns, "is pinned and no longer counts");
}

TEST_P(Hole, TenAnOlderOpeningThatSealsJustBeforeItIsClosed) {
  const Scenario scenario = PinRemovalTwoTakeovers(GetParam());
  // The second opener is about to close the first when that one seals: it judges by that seal.
  ExpectClosed(scenario, {Before(0, "create checkpoint_000010/notes/000001.json"),
                          Before(2, "create generations/000003.seal.json"),
                          Past(0, "create checkpoint_000010/notes/000001.json"),
                          Before(3, "create generations/000003.seal.json"),
                          Past(2, "create generations/000003.seal.json"), ToTheEnd(1), ToTheEnd(3),
                          ToTheEnd(2), ToTheEnd(0)});
}

/// The fourth hole again, where manifests are read from shelves.
class ShelfHole : public Hole {
 protected:
  /// The removal has made sure that nobody overtook it; it goes on to its end when the opener is
  /// about to do `next`.
  static void ExpectClosedByTheOrder(const std::string& next) {
    const Scenario scenario = TakeoverDuringRemoval(GetParam());
    const std::vector<Turn> turns = {Before(0, "delete checkpoint_000010/manifest.json"),
                                     Past(1, "create generations/000003.json"), Before(1, next),
                                     // Before it tidies its shelves.
                                     Past(0, "delete checkpoint_000010/.cairn-attempt"),
                                     ToTheEnd(1), ToTheEnd(0)};
    ExpectClosed(scenario, turns);
    ExpectOpen(scenario, &ProtocolRules::notes_before_manifest, turns,
               "was acknowledged and does not count any more");
  }
};

TEST_P(ShelfHole, ARemovalEndsBetweenThePagesWithTheManifestAndItsNotes) {
  ExpectClosedByTheOrder("list (all) checkpoint_000010/manifest.json");
}

TEST_P(ShelfHole, ARemovalEndsBetweenTheListingAndItsNotes) {
  ExpectClosedByTheOrder("get checkpoint_000010/notes/000001.json");
}

INSTANTIATE_TEST_SUITE_P(Disks, ShelfHole, testing::Values(Disk::kShelves),
                         [](const auto&) { return "Shelves"; });
INSTANTIATE_TEST_SUITE_P(Disks, Hole, testing::Values(Disk::kPlain, Disk::kObjects),
                         [](const auto& info) {
                           return info.param == Disk::kPlain ? "Plain" : "ObjectStore";
                         });

/// The fifth hole needs a disk that forgets.
class HoleFive : public testing::Test {
 protected:
  HoleFive() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~HoleFive() override { SetLogSink(nullptr); }

  std::unique_ptr<CheckpointManager> Open(SimFs* disk) {
    LocalStoreOptions options;
    options.root = "/run";
    options.fs = disk;
    options.ids = &ids_;
    Environment env;
    env.store = LocalStore::Open(std::move(options)).value();
    env.ids = &ids_;
    return OpenManager({.takeover = true}, std::move(env)).value();
  }

  /// The disk at the instant at which the writer has linked its manifest and not synced the name,
  /// as the next process on the machine finds it.
  std::unique_ptr<SimFs> KilledBeforeTheSync() {
    SimFs disk;
    std::shared_ptr<const SimImage> image;
    disk.SetHook([&](const SimOp& op) {
      linked_ = linked_ || (op.kind == SimOp::Kind::kLink && op.to.ends_with("/manifest.json"));
      if (linked_ && op.kind == SimOp::Kind::kSyncDirectory && !image) image = disk.Snapshot();
    });
    const std::int64_t value = 7;
    Open(&disk)
        ->Save({.step = 20,
                .tensors = {{.name = "w", .dtype = DType::kI64, .shape = {1}, .data = &value}},
                .blocking = true})
        .value();
    return SimFs::FromKill(*image);
  }

  /// How many checkpoints a restarted machine has after the next opening saw one and power failed.
  std::size_t LeftAfterTheNextOpening(SimFs* disk) {
    EXPECT_EQ(Open(disk)->List().value().size(), 1u) << "the kill came too early";
    const auto after = SimFs::FromCrash(*disk->Snapshot(), CrashMode::kForget, 1);
    return Open(after.get())->List().value().size();
  }

 private:
  SeededIds ids_{1};
  bool linked_ = false;
};

TEST_F(HoleFive, ASealedManifestSurvivesAPowerLoss) {
  const auto disk = KilledBeforeTheSync();
  EXPECT_EQ(LeftAfterTheNextOpening(disk.get()), 1u);
}

TEST_F(HoleFive, ItIsTheOpenersSyncThatKeepsIt) {
  const auto disk = KilledBeforeTheSync();
  disk->IgnoreSyncs([](const SimSync& sync) { return sync.why == "sealed manifest"; });
  EXPECT_EQ(LeftAfterTheNextOpening(disk.get()), 0u);
}

}  // namespace
}  // namespace cairn::interleaving
