#include "launch/ray_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "launch/ray_jobs.h"
#include "launch/ray_launcher.h"
#include "net/test_http_server.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using Resources = std::map<std::string, std::string>;

Variables Of(std::map<std::string, std::string> set) {
  return [set](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    if (found == set.end()) return std::nullopt;
    return found->second;
  };
}

std::string Why(const Status& status) { return std::string(status.message()); }

TEST(RayResourcesTest, AreReadAndWithoutAnyEachRankHasACore) {
  const auto none = ReadRayResources({}, 3);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->num_cpus, 3);
  EXPECT_EQ(none->num_gpus, 0);
  const auto all = ReadRayResources(
      {{"num_cpus", "0.5"}, {"num_gpus", "2"}, {"memory", "2G"}, {"custom", "tpu=1, disk=0.25"}},
      1);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ(all->num_cpus, 0.5);
  EXPECT_EQ(all->num_gpus, 2);
  EXPECT_EQ(all->memory, std::uint64_t{2} << 30);
  EXPECT_THAT(all->custom, ElementsAre(Pair("disk", 0.25), Pair("tpu", 1)));
}

TEST(RayResourcesTest, OfSeveralNodesAreThoseOfEach) {
  const auto read = ReadRayResources({{"nodes", "3"}}, 12);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->nodes, 3);
  EXPECT_EQ(read->num_cpus, 4);
  EXPECT_EQ(ReadRayResources({{"nodes", "3"}, {"num_cpus", "1"}}, 12)->num_cpus, 1);
  EXPECT_THAT(Why(ReadRayResources({{"nodes", "2"}}, 3).status()),
              HasSubstr("3 processes cannot be shared evenly by 2 nodes"));
  EXPECT_THAT(Why(ReadRayResources({{"nodes", "0"}}, 3).status()), HasSubstr("nodes must be"));
  EXPECT_THAT(Why(ReadRayResources({{"nodes", "two"}}, 2).status()), HasSubstr("\"two\""));
  EXPECT_THAT(Why(ReadRayResources({{"nodes", "2"}, {"num_cpus", "0"}}, 2).status()),
              HasSubstr("num_cpus"));
}

TEST(RayResourcesTest, WhatIsNotKnownIsNamed) {
  EXPECT_THAT(Why(ReadRayResources({{"num_cpu", "1"}}, 1).status()),
              HasSubstr("\"num_cpu\" is not known; known: nodes, num_cpus"));
  EXPECT_THAT(Why(ReadRayResources({{"num_gpus", "two"}}, 1).status()), HasSubstr("two"));
  EXPECT_THAT(Why(ReadRayResources({{"num_gpus", "-1"}}, 1).status()), HasSubstr("num_gpus"));
  EXPECT_THAT(Why(ReadRayResources({{"num_cpus", "nan"}}, 1).status()), HasSubstr("num_cpus"));
  EXPECT_THAT(Why(ReadRayResources({{"memory", "much"}}, 1).status()), HasSubstr("memory"));
  EXPECT_THAT(Why(ReadRayResources({{"custom", "tpu"}}, 1).status()), HasSubstr("tpu"));
}

TEST(RayAddressTest, IsFoundAsRaysProgramsFindIt) {
  EXPECT_EQ(FindRay("", "", Of({}))->url, "http://127.0.0.1:8265");
  EXPECT_EQ(FindRay("", "", Of({{"RAY_ADDRESS", "http://head:1"}}))->url, "http://head:1");
  EXPECT_EQ(FindRay("", "", Of({{"RAY_ADDRESS", "head:6379"}}))->url, "http://127.0.0.1:8265")
      << "that is where programs of the cluster meet";
  EXPECT_EQ(
      FindRay("", "", Of({{"RAY_API_SERVER_ADDRESS", "https://a"}, {"RAY_ADDRESS", "http://b"}}))
          ->url,
      "https://a");
  EXPECT_EQ(FindRay("http://mine:2/", "", Of({{"RAY_ADDRESS", "http://b"}}))->url, "http://mine:2");
  EXPECT_THAT(Why(FindRay("head:8265", "", Of({})).status()), HasSubstr("head:8265"));
}

TEST(RayAddressTest, TheTokenIsFoundAndIsOneWord) {
  const std::string path = (std::filesystem::path(testing::TempDir()) / "ray-token").string();
  std::ofstream(path) << "secret\n";
  EXPECT_EQ(FindRay("", "", Of({}))->token, "");
  EXPECT_EQ(FindRay("", "", Of({{"RAY_AUTH_TOKEN", "word"}}))->token, "word");
  EXPECT_EQ(FindRay("", "", Of({{"RAY_AUTH_TOKEN_PATH", path}}))->token, "secret");
  EXPECT_EQ(FindRay("", path, Of({{"RAY_AUTH_TOKEN", "word"}}))->token, "secret");
  EXPECT_THAT(Why(FindRay("", "/no/token", Of({})).status()), HasSubstr("/no/token"));
  EXPECT_THAT(Why(FindRay("", "", Of({{"RAY_AUTH_TOKEN", "two words"}})).status()),
              HasSubstr("one word"));
}

TEST(RayJobsTest, AreReadFromRaysAnswer) {
  const auto jobs = ParseRayJobs(R"([
    {"type": "DRIVER", "job_id": "01000000", "submission_id": null, "status": "RUNNING"},
    {"type": "SUBMISSION", "submission_id": "a.1", "status": "PENDING", "message": "waits",
     "error_type": null, "metadata": {"x": "y"}, "driver_exit_code": null, "end_time": null},
    {"type": "SUBMISSION", "submission_id": "b.1", "status": "FAILED", "message": "no",
     "error_type": "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", "metadata": null, "end_time": 17},
    {"type": "SUBMISSION", "submission_id": "c.1", "status": "FAILED", "driver_exit_code": -9}])");
  ASSERT_TRUE(jobs.ok());
  ASSERT_THAT(*jobs, SizeIs(3));
  EXPECT_TRUE(jobs->at(0).pending());
  EXPECT_FALSE(jobs->at(0).ended());
  EXPECT_THAT(jobs->at(0).metadata, ElementsAre(Pair("x", "y")));
  EXPECT_TRUE(jobs->at(1).ended());
  EXPECT_TRUE(jobs->at(1).gave_up_waiting());
  EXPECT_FALSE(jobs->at(1).process_ended());
  EXPECT_EQ(jobs->at(1).end_time, 17);
  EXPECT_TRUE(jobs->at(2).process_ended());
  EXPECT_FALSE(jobs->at(2).taken_away());
  EXPECT_EQ(ParseRayJobs("<html>").status().code(), Code::kCorruption);
  EXPECT_EQ(ParseRayJobs("{}").status().code(), Code::kCorruption);
}

TEST(RayJobsTest, MetadataTellsWhoseAJobIs) {
  const RayJobOrigin origin{.launches = "/shared/l",
                            .launch = "t",
                            .job = "t.1",
                            .attempt = 3,
                            .resources = {.nodes = 3,
                                          .num_cpus = 0.5,
                                          .num_gpus = 1,
                                          .memory = 7,
                                          .custom = {{"a", 1.5}, {"b", 2}}}};
  RayJob job;
  EXPECT_FALSE(OriginOf(job).has_value()) << "somebody else's";
  job.metadata = RayMetadata(origin);
  const auto read = OriginOf(job);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->launches, origin.launches);
  EXPECT_EQ(read->launch, "t");
  EXPECT_EQ(RayJobId(read->job, read->attempt), "t.1-3");
  EXPECT_EQ(read->resources.nodes, 3);
  EXPECT_EQ(read->resources.num_cpus, 0.5);
  EXPECT_EQ(read->resources.memory, 7u);
  EXPECT_EQ(read->resources.custom, origin.resources.custom);
}

/// What the client makes of an answer.
Status Submitted(int status, const std::string& body) {
  TestHttpServer server([&](const TestHttpRequest&) { return Answer(status, body); });
  auto client = RayClient::Open({.url = server.url(), .token = ""});
  return (*client)->Submit({.id = "a.1", .entrypoint = "true"});
}

TEST(RayClientTest, TellsRefusalsFromTrouble) {
  EXPECT_TRUE(Submitted(200, R"({"job_id": "a.1", "submission_id": "a.1"})").ok());
  EXPECT_TRUE(Submitted(500, "ValueError: Job with submission_id a.1 already exists.").ok())
      << "it is this one";
  EXPECT_EQ(Submitted(400, "bad").code(), Code::kInvalidArgument);
  EXPECT_EQ(Submitted(500, "RuntimeError: status code 400: no").code(), Code::kInvalidArgument);
  EXPECT_EQ(Submitted(500, "No available agent to submit job").code(), Code::kUnavailable);
  EXPECT_EQ(Submitted(401, "who are you").code(), Code::kPermissionDenied);
  EXPECT_EQ(Submitted(404, "nothing here").code(), Code::kFailedPrecondition);
  EXPECT_EQ(Submitted(200, "<html>hello</html>").code(), Code::kFailedPrecondition);
}

TEST(RayClientTest, SaysWhoIsNotThere) {
  auto client = RayClient::Open({.url = "http://127.0.0.1:1", .token = ""});
  const Status status = (*client)->Jobs().status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(Why(status), HasSubstr("http://127.0.0.1:1"));
}

TEST(RayClientTest, SendsTheTokenAndWhatIsAskedFor) {
  TestHttpRequest seen;
  TestHttpServer server([&](const TestHttpRequest& request) {
    seen = request;
    return Answer(200, R"({"submission_id": "a.1"})");
  });
  auto client = RayClient::Open({.url = server.url(), .token = "secret"});
  RayJobRequest request{.id = "a.1", .entrypoint = "exec shim"};
  request.resources = {.num_cpus = 2, .num_gpus = 0.5, .memory = 1024, .custom = {{"tpu", 1}}};
  request.environment["A"] = "b";
  ASSERT_TRUE((*client)->Submit(request).ok());
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.target, "/api/jobs/");
  EXPECT_EQ(seen.Header("authorization"), "Bearer secret");
  for (const char* part :
       {R"("entrypoint":"exec shim")", R"("submission_id":"a.1")", R"("entrypoint_memory":1024)",
        R"("entrypoint_resources":{"tpu":1.0})", R"("env_vars":{"A":"b"})"}) {
    EXPECT_THAT(seen.body, HasSubstr(part));
  }
}

TEST(RayOptionsTest, AreTakenOutOfResources) {
  Resources resources = {{"address", "http://head:8265"}, {"token_file", "/t"}, {"num_cpus", "2"}};
  RayLauncherOptions options;
  TakeRayOptions(&resources, &options);
  EXPECT_EQ(options.address, "http://head:8265");
  EXPECT_EQ(options.token_file, "/t");
  EXPECT_THAT(resources, ElementsAre(Pair("num_cpus", "2")));
}

}  // namespace
}  // namespace cairn
