#include "base/living_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace cairn {
namespace {

/// A child that waits to be killed.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Child() { End(); }
  pid_t pid() const { return pid_; }
  void Kill() { kill(pid_, SIGKILL); }
  void Reap() {
    waitpid(pid_, nullptr, 0);
    ended_ = true;
  }
  void End() {
    if (ended_) return;
    Kill();
    Reap();
  }

 private:
  const pid_t pid_;
  bool ended_ = false;
};

TEST(LivingProcess, OneThatEndedIsTold) {
  Child child;
  const std::string identity = ProcessIdentity(child.pid());
  ASSERT_NE(identity, "");
  EXPECT_EQ(LifeOf(child.pid(), identity), ProcessLife::kLives);
  EXPECT_EQ(LifeOf(child.pid(), ""), ProcessLife::kLives);
  child.Kill();
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(LifeOf(child.pid(), identity), ProcessLife::kEnded) << "nobody has waited for it yet";
  child.Reap();
  EXPECT_EQ(LifeOf(child.pid(), identity), ProcessLife::kEnded);
  EXPECT_EQ(LifeOf(child.pid(), ""), ProcessLife::kEnded);
  EXPECT_EQ(ProcessIdentity(child.pid()), "");
}

TEST(LivingProcess, AnotherWithItsPidIsNotTakenForIt) {
  const std::string own = ProcessIdentity(getpid());
  const std::string earlier = own.substr(0, own.rfind(' ') + 1) + "1";
  EXPECT_EQ(LifeOf(getpid(), own), ProcessLife::kLives);
  EXPECT_EQ(LifeOf(getpid(), earlier), ProcessLife::kEnded);
}

TEST(LivingProcess, OneThatIsHiddenFromUsIsNotTakenForEnded) {
  // As where proc is mounted with hidepid=2 and the process is another user's.
  const std::string hidden = "/nowhere";
  Child child;
  const std::string identity = ProcessIdentity(child.pid());
  EXPECT_EQ(LifeOf(child.pid(), identity, hidden), ProcessLife::kUnknown);
  child.End();
  EXPECT_EQ(LifeOf(child.pid(), identity, hidden), ProcessLife::kEnded);
}

TEST(LivingProcess, OfAnotherBootOrContainerNobodyKnows) {
  const std::string own = ProcessIdentity(getpid());
  const std::size_t space = own.find(' ');
  EXPECT_EQ(LifeOf(getpid(), "0" + own), ProcessLife::kUnknown);
  EXPECT_EQ(LifeOf(getpid(), own.substr(0, space) + " pid:[1]" + own.substr(own.rfind(' '))),
            ProcessLife::kUnknown);
  EXPECT_EQ(LifeOf(0, ""), ProcessLife::kUnknown);
  EXPECT_EQ(LifeOf(-1, own), ProcessLife::kUnknown);
}

}  // namespace
}  // namespace cairn
