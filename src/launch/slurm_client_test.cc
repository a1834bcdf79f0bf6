#include "launch/slurm_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/run_command.h"
#include "launch/slurm_programs.h"
#include "launch/slurm_rest.h"
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

TEST(SlurmClientTest, WarningsAreNumbers) {
  EXPECT_EQ(*SlurmWarning({}, 60s), 60s);
  EXPECT_EQ(*SlurmWarning({{"warning", "300"}}, 60s), 300s);
  EXPECT_EQ(SlurmFlags({{"warning", "soon"}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SlurmFlags({{"extra", "--signal=USR2"}}).status().code(), Code::kInvalidArgument);
}

TEST(SlurmRestTest, FlagsBecomeMembers) {
  const auto body = SlurmSubmission({"--time=5", "--ntasks-per-node=2", "--signal=B:USR1@60",
                                     "--exclusive", "--hold", "--job-name=a=b"},
                                    "#!/bin/sh\n", {{"PATH", "/bin"}});
  ASSERT_TRUE(body.ok()) << body.status().ToString();
  EXPECT_EQ(*body, R"({"job":{"current_working_directory":"/","environment":{"PATH":"/bin"},)"
                   R"("exclusive":"exclusive","hold":true,"name":"a=b","no_requeue":true,)"
                   R"("tasks_per_node":"2","time_limit":"5"},"script":"#!/bin/sh\n"})");
  EXPECT_THAT(std::string(SlurmSubmission({"-p", "low"}, "", {}).status().message()),
              HasSubstr("\"-p\""));
}

TEST(SlurmRestTest, ReadsJobsAndTheElementsOfArrays) {
  const auto jobs = ParseSlurmJobs(
      R"({"jobs": [
        {"job_id": 16, "user_id": 7, "job_state": "RUNNING", "name": "other"},
        {"job_id": 17, "user_id": 5, "job_state": "RUNNING", "name": "a", "batch_host": "n1",
         "array_job_id": 0, "array_task_id": null, "array_task_string": "", "end_time": 99,
         "preempt_time": 98},
        {"job_id": 19, "user_id": 5, "job_state": "COMPLETED", "name": "b", "array_job_id": 18,
         "array_task_id": 3, "array_task_string": "", "preempt_time": 98},
        {"job_id": 18, "user_id": 5, "job_state": "PENDING", "state_reason": "Resources",
         "name": "b", "array_job_id": 18, "array_task_id": null, "array_task_string": "0-2,7%4"},
        {"user_id": 5}, "nothing"]})",
      5);
  ASSERT_TRUE(jobs.ok()) << jobs.status().ToString();
  std::vector<std::string> ids;
  for (const SlurmJob& job : *jobs) ids.push_back(job.id);
  EXPECT_THAT(ids, ElementsAre("17", "18_3", "18_0", "18_1", "18_2", "18_7"));
  EXPECT_EQ((*jobs)[0].index, -1);
  EXPECT_EQ((*jobs)[0].ends, 99);
  EXPECT_TRUE((*jobs)[0].preempted);
  EXPECT_TRUE((*jobs)[1].ended());
  EXPECT_FALSE((*jobs)[1].preempted);
  EXPECT_EQ((*jobs)[5].index, 7);
  EXPECT_EQ((*jobs)[5].reason, "Resources");
  EXPECT_TRUE((*jobs)[5].pending());
  EXPECT_FALSE(ParseSlurmJobs("{}", 5).ok());
  EXPECT_FALSE(ParseSlurmJobs("nothing", 5).ok());
}

TEST(SlurmRestTest, ElementsThatALongListLeavesOutAreNotThoughtLost) {
  const auto jobs = ParseSlurmJobs(
      R"({"jobs": [
        {"job_id": 20, "user_id": 5, "job_state": "COMPLETED", "name": "b", "array_job_id": 18,
         "array_task_id": 5},
        {"job_id": 18, "user_id": 5, "job_state": "PENDING", "name": "b", "array_job_id": 18,
         "array_task_id": null, "array_task_string": "0,2,..."}]})",
      5);
  ASSERT_TRUE(jobs.ok());
  std::map<int, std::string> states;
  for (const SlurmJob& job : *jobs) EXPECT_TRUE(states.emplace(job.index, job.state).second);
  EXPECT_FALSE(states.contains(1)) << "between two that are named";
  EXPECT_EQ(states.at(5), "COMPLETED");
  EXPECT_EQ(states.at(3), "PENDING");
  EXPECT_EQ(states.at(499), "PENDING");
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
