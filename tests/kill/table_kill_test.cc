// Kills trainings of real tables with SIGKILL, in saves, in retention and in compaction, and checks
// from outside that every restore point that is listed gives the rows of its step, bit for bit and
// in any partition, and that no acknowledged one is lost. CAIRN_TORTURE_SECONDS makes it run that
// long instead.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "checkpoint/manager.h"
#include "tests/kill/campaign.h"
#include "tests/table/real_training.h"

namespace cairn::kill {
namespace {

TEST(TableKillTest, NoRowIsLostOrTornWhereverTheTrainingIsKilled) {
  std::map<std::uint64_t, table::Digests> digests;  // by seed
  RunCampaign(
      {.writer = "table_writer",
       .rounds = 2,
       .check = [&](const std::string& directory, std::uint64_t seed, std::int64_t acknowledged) {
         auto env = EnvironmentAt(directory, {.create = false});
         ASSERT_TRUE(env.ok()) << env.status().ToString();
         auto manager = OpenManager({.directory = directory, .read_only = true}, *env);
         if (!manager.ok() && acknowledged < 0) return;  // killed before cairn.json
         ASSERT_TRUE(manager.ok()) << manager.status().ToString();
         const auto latest = (*manager)->Latest();
         ASSERT_TRUE(latest.ok()) << latest.status().ToString();
         if (acknowledged >= 0) {
           ASSERT_TRUE(latest->has_value()) << "step " << acknowledged << " is gone";
           ASSERT_GE((*latest)->step, acknowledged);
         }
         const auto infos = (*manager)->List();
         ASSERT_TRUE(infos.ok()) << infos.status().ToString();
         table::Digests& expected = digests.try_emplace(seed, seed).first->second;
         for (const CheckpointInfo& info : *infos) {
           const auto pieces = 1 + static_cast<std::uint64_t>(info.step) % 5;
           ASSERT_EQ(table::CompareRestored(manager->get(), info.id, seed, pieces, &expected), "")
               << info.path;
         }
       }});
}

}  // namespace
}  // namespace cairn::kill
