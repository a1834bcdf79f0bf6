#include "tune/tuner_summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

namespace cairn::tune {
namespace {

using O = Value::Object;

/// A population in all of its states.
TunerSummary Example() {
  TunerSummary summary;
  std::uint64_t seq = 0;
  const auto add = [&](std::string trial, EventKind kind, Value body, std::uint64_t run = 0) {
    const Event event{.seq = ++seq,
                      .time = 1700000000000000000 + static_cast<std::int64_t>(seq),
                      .trial = std::move(trial),
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)};
    ASSERT_TRUE(summary.trials.Apply(event).ok());
    ASSERT_TRUE(summary.tuner.Apply(event).ok());
    summary.position = {seq + 3, event.seq, event.time};
  };
  const auto note = [&](const char* trial, O body) { add(trial, EventKind::kNote, body); };
  note("", {{"what", "experiment"}, {"description", O{{"format", 1}}}});
  note("", {{"what", "opened"}});
  for (const char* id : {"a", "b", "c", "d"}) {
    note(id, {{"what", "suggest"}, {"config", O{{"lr", 0.25}, {"id", id}}}});
  }
  const O created{
      {"config", ToValue(TrialConfig{.experiment = "e", .argv = {"worker"}, .storage = "."})},
      {"parent", Value()}};
  for (const char* id : {"a", "b", "c"}) {
    note(id, {{"what", "choose"}, {"choice", O{{"kind", "run"}, {"trial", id}}}});
    add(id, EventKind::kTrialCreated, created);
    add(id, EventKind::kRunStarted, O{{"token_hash", "00"}, {"resume_mode", "fresh"}}, 1);
    add(id, EventKind::kReport,
        O{{"sequence", 1},
          {"group", "training"},
          {"steps_completed", 1},
          {"metrics", O{{"loss", "NaN"}, {"n", std::numeric_limits<std::uint64_t>::max()}}},
          {"decision", O{{"action", "pause"}, {"checkpoint", true}}}},
        1);
  }
  note("a", {{"what", "end"}, {"error", false}});
  note("b", {{"what", "paused"}});
  note("b", {{"what", "choose"},
             {"choice", O{{"kind", "run"}, {"trial", "b"}, {"donor", "a"}, {"config", O{}}}},
             {"checkpoint", "c1"},
             {"iteration", 1}});
  note("c", {{"what", "paused"}});
  note("c", {{"what", "failure"}, {"error", "Traceback"}});
  summary.policy = O{{"seed", 7}};
  summary.policy_state = O{{"searcher", 3}};
  return summary;
}

TEST(TunerSummary, ComesBackWhole) {
  const TunerSummary summary = Example();
  const std::string bytes = EncodeSummary(summary);
  const auto again = DecodeSummary(bytes);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(EncodeSummary(*again), bytes);
  EXPECT_EQ(again->position, summary.position);
  EXPECT_EQ(again->policy, summary.policy);
  EXPECT_EQ(again->policy_state, summary.policy_state);
  EXPECT_EQ(again->tuner.order(), summary.tuner.order());
  EXPECT_EQ(again->tuner.pending(), std::vector<std::string>{"d"});
  EXPECT_EQ(again->tuner.paused(), std::vector<std::string>{"c"});
  EXPECT_EQ(again->tuner.worked(), summary.tuner.worked());
  EXPECT_GT(again->tuner.worked().count(), 0);
  const TuneTrial& b = again->tuner.trials().at("b");
  EXPECT_EQ(b.donor, "a");
  EXPECT_EQ(b.donor_checkpoint, "c1");
  EXPECT_EQ(b.number, 1u);
  EXPECT_EQ(again->tuner.trials().at("c").DecidedAt(1).action, TrialAction::kPause);
  EXPECT_TRUE(again->tuner.trials().at("c").DecidedAt(1).checkpoint);
  EXPECT_TRUE(std::isnan(b.last_result.Find("loss")->AsDouble()));
  EXPECT_EQ(again->trials.trials().size(), 3u);

  const auto head = DecodeSummaryHead(bytes);
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head->first, summary.position);
  EXPECT_EQ(head->second, summary.tuner.description());
}

// CAIRN_WRITE_GOLDEN=1 writes the file when it does not exist.
TEST(TunerSummary, ReadsWhatWasWrittenOnce) {
  const std::filesystem::path file = "tests/compat/tune_v1/summary.bin";
  const std::string bytes = EncodeSummary(Example());
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(file)) {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
  }
  std::ifstream in(file, std::ios::binary);
  const std::string golden{std::istreambuf_iterator<char>(in), {}};
  ASSERT_FALSE(golden.empty());
  EXPECT_TRUE(golden == bytes) << "the format changed: give it a new version";
  EXPECT_TRUE(DecodeSummary(golden).ok());
}

TEST(TunerSummary, EveryFlippedByteAndEveryCutIsSeen) {
  const std::string bytes = EncodeSummary(Example());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x21);
    EXPECT_FALSE(DecodeSummary(damaged).ok()) << i;
    EXPECT_FALSE(DecodeSummaryHead(damaged).ok()) << i;
    EXPECT_FALSE(DecodeSummary(std::string_view(bytes).substr(0, i)).ok()) << i;
  }
}

TEST(TunerSummary, PartsOfDifferentEventsAreRefused) {
  TunerSummary summary = Example();
  ++summary.position.seq;
  EXPECT_TRUE(DecodeSummary(EncodeSummary(summary)).status().Is(Code::kCorruption));
}

}  // namespace
}  // namespace cairn::tune
