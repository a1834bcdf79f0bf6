// Kills writers of full checkpoints and increments with SIGKILL, in saves, in retention and in
// compaction, and checks from outside that every restore point that is listed is whole and no
// acknowledged one is lost. CAIRN_TORTURE_SECONDS makes it run that long instead.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kill/campaign.h"
#include "tests/kill/harness.h"
#include "tests/kill/listed_checkpoints.h"
#include "tests/kill/table_state.h"

namespace cairn::kill {
namespace {

void CheckRepository(const std::string& directory, std::uint64_t seed, std::int64_t acknowledged) {
  CheckListed(directory, acknowledged, [&](CheckpointManager* manager, const CheckpointInfo& info) {
    TestTableSink sink;
    std::vector<std::uint64_t> hot(100);
    std::vector<std::uint64_t> expected(100);
    JobState::Fill(&expected, seed ^ static_cast<std::uint64_t>(info.step));
    RestoreRequest request;
    request.into = {{.name = "hot", .dtype = DType::kU64, .shape = {100}, .data = hot.data()}};
    request.id = info.id;
    request.tables = &sink;
    auto restored = manager->Restore(std::move(request));
    ASSERT_TRUE(restored.ok()) << info.path << ": " << restored.status().ToString();
    ASSERT_EQ(sink.broken, "") << info.path;
    ASSERT_EQ(hot, expected) << info.path;
    ASSERT_TRUE(sink.tables["table"] == TableAt(seed, info.step))
        << info.path << " does not give the rows of its step";
  });
}

TEST(IncrementKillTest, NoRestorePointIsLostOrTornWhereverTheWriterIsKilled) {
  RunCampaign({.writer = "increment_writer", .rounds = 2, .check = CheckRepository});
}

}  // namespace
}  // namespace cairn::kill
