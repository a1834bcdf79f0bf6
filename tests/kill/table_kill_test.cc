// Kills trainings of real tables with SIGKILL, in saves, in retention and in compaction, and checks
// from outside that every restore point that is listed gives the rows of its step, bit for bit and
// in any partition, and that no acknowledged one is lost. CAIRN_TORTURE_SECONDS makes it run that
// long instead.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/kill/campaign.h"
#include "tests/kill/listed_checkpoints.h"
#include "tests/table/real_training.h"

namespace cairn::kill {
namespace {

TEST(TableKillTest, NoRowIsLostOrTornWhereverTheTrainingIsKilled) {
  std::map<std::uint64_t, table::Digests> digests;  // by seed
  RunCampaign(
      {.writer = "table_writer",
       .rounds = 2,
       .check = [&](const std::string& directory, std::uint64_t seed, std::int64_t acknowledged) {
         table::Digests& expected = digests.try_emplace(seed, seed).first->second;
         CheckListed(
             directory, acknowledged, [&](CheckpointManager* manager, const CheckpointInfo& info) {
               const auto pieces = 1 + static_cast<std::uint64_t>(info.step) % 5;
               ASSERT_EQ(table::CompareRestored(manager, info.id, seed, pieces, &expected), "")
                   << info.path;
             });
       }});
}

}  // namespace
}  // namespace cairn::kill
