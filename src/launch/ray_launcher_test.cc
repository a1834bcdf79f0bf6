// The launcher on a real Ray: the conformance suite, and what only a scheduler behind HTTP does.
#include "launch/ray_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "launch/conformance.h"
#include "launch/ray_client.h"
#include "launch/ray_fixture.h"
#include "launch/ray_jobs.h"
#include "net/test_http_server.h"
#include "net/url.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

/// Once, for all tests that want two.
void StartSecondNode() {
  static const bool started = [] {
    TestRay::Get().StartNode("second");
    return true;
  }();
  static_cast<void>(started);
}

template <int kNodes>
LauncherUnderTest MakeRay() {
  constexpr auto kPatience = 180s;  // each job is a process of Python, and there may be forty
  if (kNodes > 1) StartSecondNode();
  return ClusterUnderTest<RayLauncherOptions>(
      OpenRayLauncher, kPatience,
      [](const std::filesystem::path& directory) { return RayOptionsAt(directory); }, kNodes);
}

const auto kRay = ::testing::Values(LauncherFactory{"Ray", MakeRay<1>});
INSTANTIATE_TEST_SUITE_P(Ray, LauncherConformance, kRay, LauncherConformance::Name);
INSTANTIATE_TEST_SUITE_P(Ray, LauncherOwnerConformance, kRay, LauncherOwnerConformance::Name);
INSTANTIATE_TEST_SUITE_P(Ray, LauncherRanksConformance,
                         ::testing::Values(LauncherFactory{"Ray", MakeRay<1>},
                                           LauncherFactory{"TwoNodes", MakeRay<2>}),
                         LauncherRanksConformance::Name);

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(RayLauncherTest, RefusesResourcesThatItDoesNotKnow) {
  Open();
  LaunchSpec spec = Script("a", "true");
  spec.resources["partition"] = "low";
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("partition"));
  spec.resources = {{"num_gpus", "two"}};
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("two"));
}

TEST_F(RayLauncherTest, ATokenThatRayRefusesIsNamed) {
  options_.token_file = (temp_.path() / "token").string();
  std::ofstream(options_.token_file) << std::string(64, 'a');
  Open();
  Submit(Script("a", "true"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_FALSE(info.exit->stopped);
  EXPECT_THAT(info.exit->message, HasSubstr("token"));
}

TEST_F(RayLauncherTest, AnAddressWithoutARayIsNamed) {
  TestHttpServer other([](const TestHttpRequest&) { return Answer(404, "a web page"); });
  options_.address = other.url();
  Open();
  Submit(Script("a", "true"));
  const LaunchInfo info = End("a");
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_THAT(info.exit->message, HasSubstr(other.url() + " is no Ray"));
}

TEST_F(RayLauncherTest, AnAddressWithoutAnyoneSaysSoAndWhatWaitsCanBeStopped) {
  options_.address = "http://127.0.0.1:1";
  Open();
  Submit(Script("a", "true"));
  Until("it says so", [&] {
    return launcher_->Get("a")->reason.find("http://127.0.0.1:1") != std::string::npos;
  });
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued);
  ASSERT_TRUE(launcher_->Stop("a", 30s).ok());
  EXPECT_TRUE(End("a").exit->stopped);
}

TEST_F(RayLauncherTest, WhatWaitsInRaySaysWhyAndCanBeStopped) {
  Open();
  Submit(Waiting("a", "true"));
  UntilItWaits("a");
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued);
  EXPECT_THAT(launcher_->Get("a")->reason, HasSubstr("resources"));
  ASSERT_TRUE(launcher_->Stop("a", 30s).ok());
  const LaunchInfo info = End("a", 5s);
  EXPECT_EQ(info.exit->kind, ExitKind::kNotStarted);
  EXPECT_TRUE(info.exit->stopped);
}

TEST_F(RayLauncherTest, SeveralNodesAreWaitedForTogetherAndHaveARankEach) {
  Open();
  // Which node it is: that of the process of Ray above the rank's shim.
  LaunchSpec spec = Script("a",
                           "shim=$(cut -d' ' -f4 /proc/$PPID/stat); tr '\\0' '\\n' < "
                           "/proc/$shim/environ | grep ^CAIRN_RAY_NODE=");
  spec.processes = 2;
  spec.resources = {{"nodes", "2"}, {"custom", "second=1"}};
  Submit(spec);
  Until("it waits", [&] {
    return launcher_->Get("a")->reason.find("until 2 nodes have what it wants") !=
           std::string::npos;
  });
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kQueued) << "only one node has that resource";
  ASSERT_TRUE(launcher_->Stop("a", 30s).ok());
  const LaunchInfo stopped = End("a");
  EXPECT_EQ(stopped.exit->kind, ExitKind::kNotStarted) << stopped.exit->message;
  EXPECT_TRUE(stopped.exit->stopped);

  StartSecondNode();
  spec.id = "b";
  spec.resources = {{"nodes", "2"}, {"num_cpus", "1"}};
  Submit(spec);
  EXPECT_TRUE(End("b").exit->succeeded()) << launcher_->Get("b")->exit->message;
  EXPECT_THAT(Texts("b"),
              ::testing::UnorderedElementsAre("CAIRN_RAY_NODE=head", "CAIRN_RAY_NODE=second"));
}

/// Something between the launcher and Ray.
class RayProxyTest : public RayLauncherTest {
 protected:
  using Handler = std::function<TestHttpReply(const TestHttpRequest&)>;

  static TestHttpReply Forward(const TestHttpRequest& request) {
    return ForwardTo(ParseListenAddress(ParseUrl(TestRay::Get().url())->authority)->port, request);
  }

  void OpenThrough(Handler handler) {
    proxy_ = std::make_unique<TestHttpServer>([this, handler](const TestHttpRequest& request) {
      ++calls_;
      if (request.method == "POST" && request.target == "/api/jobs/") ++submissions_;
      return handler(request);
    });
    options_.address = proxy_->url();
    Open();
  }

  void TearDown() override {
    RayLauncherTest::TearDown();
    proxy_.reset();
  }

  std::unique_ptr<TestHttpServer> proxy_;
  std::atomic<int> calls_ = 0;
  std::atomic<int> submissions_ = 0;
};

TEST_F(RayProxyTest, ASubmissionWhoseAnswerWasLostStartsOneJob) {
  OpenThrough([this](const TestHttpRequest& request) {
    TestHttpReply reply = Forward(request);
    if (request.method == "POST" && submissions_ == 1) return TestHttpReply{.close = true};
    return reply;
  });
  const auto counter = (temp_.path() / "starts").string();
  Submit(Script("a", "echo start >> " + counter + "; sleep 3"));
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_EQ(submissions_, 2) << "once more, and Ray has it";
  EXPECT_EQ(ReadAll(counter), "start\n");
}

TEST_F(RayProxyTest, ASubmissionThatDidNotGetThroughIsMadeAgain) {
  OpenThrough([this](const TestHttpRequest& request) {
    if (request.method == "POST" && submissions_ == 1) return TestHttpReply{.close = true};
    return Forward(request);
  });
  Submit(Script("a", "true"));
  EXPECT_TRUE(End("a").exit->succeeded());
  EXPECT_EQ(submissions_, 2);
}

TEST_F(RayProxyTest, ManyAreFollowedWithFewCalls) {
  options_.calls_per_second = 2;
  options_.poll = 1s;
  OpenThrough(Forward);
  for (int i = 0; i < 12; ++i) Submit(Waiting("t" + std::to_string(i), "true"));
  for (int i = 0; i < 12; ++i) UntilItWaits("t" + std::to_string(i));
  const int before = calls_;
  std::this_thread::sleep_for(3s);
  EXPECT_LE(calls_ - before, 7) << "in three seconds";
  EXPECT_GE(calls_ - before, 2);
}

TEST_F(RayLauncherTest, AnOwnerThatDiedBeforeItsSubmissionLeavesNothing) {
  ExpectThatAnUnsubmittedLaunchIsForgotten();
}

TEST_F(RayLauncherTest, OldRecordsOfJobsAreRemovedFromRay) {
  options_.keep_jobs = 1;
  Open();
  auto client = RayClient::Open(*FindRay(options_.address, ""));
  ASSERT_TRUE(client.ok());
  const auto records = [&] {
    const auto jobs = (*client)->Jobs();
    return std::ranges::count_if(*jobs, [&](const RayJob& job) {
      const auto origin = OriginOf(job);
      return origin.has_value() && origin->launches == options_.directory && job.ended();
    });
  };
  for (int i = 0; i < 3; ++i) {
    const std::string id = "t" + std::to_string(i);
    Submit(Script(id, "true"));
    EXPECT_TRUE(End(id).exit->succeeded());
  }
  Submit(Script("last", "while :; do sleep 0.05; done"));  // while one lives Ray is asked
  Until("one record is left", [&] { return records() == 1; });
}

}  // namespace
}  // namespace cairn
