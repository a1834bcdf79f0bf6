#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cairn::kill {

/// Kills writers of full checkpoints and increments with SIGKILL, one protocol step after the
/// other, in saves, in retention and in compaction.
struct Campaign {
  /// A program of the build with the arguments of a DoomedWriter.
  std::string writer;
  /// How often each step is aimed at; more when CAIRN_TORTURE_SECONDS says how long to go on. In
  /// the first round a kill strikes the very beginning of its step.
  std::size_t rounds = 2;
  /// Called after each kill, from outside of the writer, with the newest step that was
  /// acknowledged (-1: none). Fails the test.
  std::function<void(const std::string& directory, std::uint64_t seed, std::int64_t acknowledged)>
      check;
};

/// Fails the test when a writer ends by itself, an acknowledged step goes backwards, `check` fails,
/// or a step was never hit. Prints how often each was.
void RunCampaign(const Campaign& campaign);

}  // namespace cairn::kill
