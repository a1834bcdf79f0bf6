// kill -9 of a writer in the middle of its uploads to a real S3 server. CAIRN_TORTURE_SECONDS makes
// it run that long instead.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "tests/kill/harness.h"
#include "tests/s3/large_state.h"
#include "tests/s3/s3_job.h"

namespace cairn::s3 {
namespace {

using kill::MappedBoard;
using kill::TempDir;

TEST(S3Kill, NothingAcknowledgedIsLostAndUploadsAreSwept) {
  TestS3Server* server = TestS3Server::Get();
  ASSERT_NE(server, nullptr);
  const std::string url = "s3://" + server->NewBucket() + "/runs/a";
  for (const auto& [name, value] : server->Variables()) setenv(name.c_str(), value.c_str(), 1);
  const auto store = server->Open(url);
  TempDir temp;
  MappedBoard board(temp.path() / "board");
  std::map<std::string, int> hits;
  std::int64_t acknowledged = -1;
  int mid_upload = 0;
  int shared_with_removed = 0;
  kill::Record record = kill::Record::Load();
  const auto deadline = std::chrono::steady_clock::now() + kill::TortureTime();
  constexpr int kLeast = 8;
  int cycle = 0;
  for (; cycle < kLeast || std::chrono::steady_clock::now() < deadline; ++cycle) {
    board->SetStep("start");
    const pid_t pid = kill::StartProcess("s3_writer", {url, board.path().string()});
    // Killed when an upload is seen under way, every other time a moment later and, the other ones,
    // when files are shared. Those that the process before has left are still listed while the new
    // one opens.
    const std::int64_t before = board->acknowledged;
    const std::int64_t saves = cycle % 2 == 0 ? remote::kSavesUntilShared : cycle % 3;
    bool seen = false;
    for (int look = 0; look < 20'000 && !seen; ++look) {
      const auto unfinished = store->ListUnfinished("");
      ASSERT_TRUE(unfinished.ok()) << unfinished.status().ToString();
      seen = !unfinished->empty() && std::string_view(board->step) == "save: write" &&
             board->acknowledged >= before + saves;
    }
    if (cycle % 2 == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * (cycle % kLeast)));
    ::kill(pid, SIGKILL);
    int exit_code = 0;
    ASSERT_TRUE(kill::WaitKilled(pid, &exit_code)) << "it ended by itself: " << exit_code;
    ++hits[board->step];
    mid_upload += store->ListUnfinished("")->empty() ? 0 : 1;
    ASSERT_GE(std::max(board->acknowledged, board->resumed), acknowledged);
    acknowledged = std::max(acknowledged, board->acknowledged);

    auto manager =
        OpenManager({.directory = url, .read_only = true}, EnvironmentOn(server->Options(url)));
    if (!manager.ok() && acknowledged < 0) continue;
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    LargeState state;
    auto restored = (*manager)->Restore({.into = state.Targets()});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    if (!restored->has_value()) {
      ASSERT_LT(acknowledged, 0);
      continue;
    }
    ASSERT_GE((*restored)->step, acknowledged);
    LargeState expected;
    expected.Compute((*restored)->step);
    ASSERT_TRUE(state == expected) << "step " << (*restored)->step;
    const auto contents = remote::VerifyAll(store.get());
    ASSERT_TRUE(contents.ok()) << contents.status().ToString();
    shared_with_removed += contents->shared_with_removed;
  }
  EXPECT_GT(mid_upload, 0) << "no kill left an upload unfinished: nothing was tested";
  auto last = OpenManager({.directory = url}, EnvironmentOn(server->Options(url)));
  ASSERT_TRUE(last.ok()) << last.status().ToString();
  EXPECT_TRUE(store->ListUnfinished("")->empty()) << "the opening sweeps";
  EXPECT_GT(shared_with_removed, 0) << "no kill met a file of a removed checkpoint: nothing tested";
  const auto contents = remote::VerifyAll(store.get());
  ASSERT_TRUE(contents.ok()) << contents.status().ToString();
  EXPECT_THAT(contents->garbage, ::testing::IsEmpty());
  record.cycles += cycle;
  record.Save();
  std::printf(
      "%d kills (%lld in all), %d with uploads unfinished, %d files of removed checkpoints met; "
      "acknowledged up to %lld\n",
      cycle, static_cast<long long>(record.cycles), mid_upload, shared_with_removed,
      static_cast<long long>(acknowledged));
  for (const auto& [step, count] : hits) std::printf("  %d\t%s\n", count, step.c_str());
}

}  // namespace
}  // namespace cairn::s3
