// The holes of docs/decisions/0005, each as the schedule that led into it, driven step by step on
// the real code: today's outcome keeps all promises, and with the mend switched off the same
// schedule breaks one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

class Hole : public testing::TestWithParam<Disk> {};

TEST_P(Hole, SevenALateRemoveNoteOnANameThatIsInUseAgain) {
  const Scenario scenario = TakeoverByARemover(GetParam());
  const Exploration found = Replay(
      scenario, {Before(0, "create checkpoint_000010/notes/000001"), ToTheEnd(1), ToTheEnd(0)});
  EXPECT_EQ(found.violation, "") << found.schedule;
}

INSTANTIATE_TEST_SUITE_P(Disks, Hole, testing::Values(Disk::kPlain, Disk::kObjects),
                         [](const auto& info) {
                           return info.param == Disk::kPlain ? "Plain" : "ObjectStore";
                         });

}  // namespace
}  // namespace cairn::interleaving
