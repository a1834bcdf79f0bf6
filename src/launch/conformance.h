#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "launch/launcher.h"

namespace cairn {

/// A launcher to be put to the test, with nothing launched at first.
struct LauncherUnderTest {
  /// Whatever it stands on (a directory, a cluster); destroyed after all launchers. Shared: also
  /// captured by `open`.
  std::shared_ptr<void> ground;
  /// A launcher on that ground; the last one is closed, or its process dead, by then. It has
  /// `slots` slots.
  std::function<Result<std::unique_ptr<Launcher>>(LaunchListener listener)> open;
  int slots = 2;
  /// Over which launches of several ranks are spread; more than one is asked for with
  /// resources["nodes"].
  int nodes = 1;
  /// The longest time that a start or an end may take to be seen.
  std::chrono::nanoseconds patience = std::chrono::seconds(30);
};

struct LauncherFactory {
  std::string name;  // letters, digits and underscores
  std::function<LauncherUnderTest()> make;
};

void PrintTo(const LauncherFactory& factory, std::ostream* out);

/// The one conformance suite: every sentence of launcher.h as a test, in three parts. A launcher's
/// own test links cairn::launch_conformance and says
///
///   INSTANTIATE_TEST_SUITE_P(Local, LauncherConformance, ::testing::Values(LauncherFactory{…}),
///                            LauncherConformance::Name);
///
/// and the same of LauncherRanksConformance and LauncherOwnerConformance.
///
/// It runs /bin/sh and what POSIX has beside it, on this machine.
class LauncherConformance : public ::testing::TestWithParam<LauncherFactory> {
 public:
  static std::string Name(const ::testing::TestParamInfo<LauncherFactory>& info);

 protected:
  void SetUp() override;
  void TearDown() override;

  Launcher& launcher() { return *launcher_; }
  /// Opens the launcher of this process (SetUp does not: a test may fork an owner first).
  void Open(LaunchListener listener = {});
  /// Runs `body` with a launcher in a process of its own, which then waits to be killed. Returns
  /// its pid when `body` is done. This process must not have one open.
  pid_t ForkOwner(const std::function<void(Launcher&)>& body);
  static void KillOwner(pid_t owner);

  /// A launch of a shell script.
  LaunchSpec Script(const std::string& id, const std::string& text) const;
  void Submit(const LaunchSpec& spec);
  /// Waits for its end.
  LaunchInfo End(const std::string& id);
  /// Waits until the predicate holds, looking again and again; fails after `patience`.
  void Until(const std::string& what, const std::function<bool()>& predicate);
  /// Waits until the launch's log holds the line.
  void UntilLine(const std::string& id, const std::string& text);
  std::vector<LaunchLogLine> Lines(const std::string& id);
  std::vector<std::string> Texts(const std::string& id, bool from_stderr = false);
  /// Processes of the test's launches that live.
  std::size_t Living() const;

  LauncherUnderTest under_test_;
  std::unique_ptr<Launcher> launcher_;
  std::string mark_;  // in the environment of all launches of the test
};

/// Of several ranks, perhaps on several nodes.
class LauncherRanksConformance : public LauncherConformance {
 public:
  static std::string Name(const ::testing::TestParamInfo<LauncherFactory>& info);

 protected:
  /// Makes it a launch of so many ranks, over all nodes.
  void Spread(int processes, LaunchSpec* spec) const;
};

/// Of owners that die or leave.
class LauncherOwnerConformance : public LauncherConformance {
 public:
  static std::string Name(const ::testing::TestParamInfo<LauncherFactory>& info);
};

}  // namespace cairn
