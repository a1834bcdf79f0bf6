#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "paramserver/job_fixture.h"

// Processes that fork while they are trainers, as loaders of data do.

namespace cairn::ps {
namespace {

class ForkTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    trainers_ = 1;
  }
  /// Whether it came to its end in a fork, and was true there.
  static bool InAFork(const std::function<bool()>& holds) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // who waits for a thread of the parent waits for ever
      _exit(holds() ? 0 : 1);
    }
    int ended = 0;
    EXPECT_EQ(waitpid(child, &ended, 0), child);
    return WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
  }
};

TEST_F(ForkTest, AForkIsRefusedAndItsParentLosesNoPush) {
  StartServers(2);
  auto client = Connect(0).value();
  Counts counts;
  ASSERT_TRUE(counts.Declare(client.get()).ok());
  // With the same number as the parent's next, which the servers would take for a repetition.
  EXPECT_TRUE(InAFork([&] { return counts.Push().Is(Code::kFailedPrecondition); }));
  EXPECT_TRUE(InAFork([&] { return client->EndStep("fork").Is(Code::kFailedPrecondition); }));
  EXPECT_TRUE(InAFork([&] { return client->Close().Is(Code::kFailedPrecondition); }));
  ASSERT_TRUE(counts.Push().ok());
  ASSERT_TRUE(client->EndStep("parent").ok());
  EXPECT_EQ(counts.Count(), 1);
  EXPECT_EQ(client->step(), 1);
  EXPECT_EQ(client->rollbacks(), 0u);
}

TEST_F(ForkTest, AForkThatLetsTheClientGoEndsNothingOfItsParents) {
  StartServers(2);
  auto client = Connect(0).value();
  Counts counts;
  ASSERT_TRUE(counts.Declare(client.get()).ok());
  EXPECT_TRUE(InAFork([&] {
    client = nullptr;
    return true;
  }));
  ASSERT_TRUE(counts.Push().ok());
  ASSERT_TRUE(client->EndStep("parent").ok());
  EXPECT_EQ(counts.Count(), 1);
  EXPECT_EQ(client->rollbacks(), 0u);
}

}  // namespace
}  // namespace cairn::ps
