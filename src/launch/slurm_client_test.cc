#include "launch/slurm_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/run_command.h"
#include "launch/slurm_script.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using namespace std::chrono_literals;  // NOLINT

TEST(SlurmClientTest, ReadsWhatSqueueSays) {
  const auto jobs = ParseSqueue(
      "17|N/A|RUNNING|n1|None|a.0f8f\n"
      "18_3|3|PENDING|n/a|Nodes required for job are DOWN, DRAINED|cairn-array.1|2\n"
      "19|N/A|NODE_FAIL|n2|None|\n"
      "slurm_load_jobs error: nothing\n"
      "20|N/A|COMPLETED");
  ASSERT_THAT(jobs, SizeIs(3));
  EXPECT_EQ(jobs[0].id, "17");
  EXPECT_EQ(jobs[0].index, -1);
  EXPECT_EQ(jobs[0].name, "a.0f8f");
  EXPECT_FALSE(jobs[0].ended());
  EXPECT_EQ(jobs[1].index, 3);
  EXPECT_TRUE(jobs[1].pending());
  EXPECT_EQ(jobs[1].name, "cairn-array.1|2");
  EXPECT_THAT(jobs[1].reason, HasSubstr("DRAINED"));
  EXPECT_TRUE(jobs[2].ended());
}

TEST(SlurmClientTest, ResourcesBecomeFlags) {
  const auto flags = SlurmFlags({{"partition", "gpu"},
                                 {"gres", "gpu:2"},
                                 {"cpus_per_task", "4"},
                                 {"extra", " --mail-type=END\n --nice "}});
  ASSERT_TRUE(flags.ok()) << flags.status().ToString();
  EXPECT_THAT(*flags, ElementsAre("--cpus-per-task=4", "--gres=gpu:2", "--partition=gpu",
                                  "--mail-type=END", "--nice"));
}

TEST(SlurmClientTest, ScriptsQuoteWhatTheyAreGiven) {
  EXPECT_EQ(SlurmScript("/opt/it's", {{.directory = "/a b", .key = "k"}}),
            "#!/bin/sh\nexec '/opt/it'\\''s' '/a b' remote:k\n");
  EXPECT_THAT(
      SlurmScript("/shim", {{.directory = "/a", .key = "k"}, {.directory = "/b", .key = "l"}}),
      HasSubstr("1) exec '/shim' '/b' remote:l ;;"));
}

TEST(RunCommandTest, GivesOutputAndCode) {
  const auto outcome =
      RunCommand({"/bin/sh", "-c", "cat; echo $A >&2; exit 3"}, {"A=b"}, "input", 30s);
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_EQ(outcome->code, 3);
  EXPECT_EQ(outcome->out, "input");
  EXPECT_EQ(outcome->err, "b\n");
}

TEST(RunCommandTest, GivesUpInTime) {
  EXPECT_EQ(RunCommand({"/bin/sleep", "100"}, {}, "", 50ms).status().code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(RunCommand({"no-such-program"}, {}, "", 1s).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace cairn
