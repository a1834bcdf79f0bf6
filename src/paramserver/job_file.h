#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

/// The small files that servers put into a checkpoint.
namespace cairn::ps {

inline constexpr char kJobFile[] = "job.json";  // of each server

/// A trainer's own state: from the root of the checkpoint, written by the lead server.
inline std::string TrainerFile(std::size_t trainer, const char* name) {
  return "/trainer_" + std::to_string(trainer) + "/" + name;
}

/// What a checkpoint says about the job, in every server's job.json.
struct JobFile {
  Mode mode = Mode::kSync;
  int servers = 1;
  std::int64_t step = 0;
  std::vector<std::int64_t> trainer_steps;
  std::vector<std::uint64_t> sequences;  // of the trainers' last changes, to this server
  /// Those of them that the trainers' last steps ended with; empty: all of them. In async mode a
  /// step may have been begun by a process that was lost.
  std::vector<std::uint64_t> step_sequences;
  std::vector<bool> left;      // which trainers were done; empty: nobody was
  std::string log_name;        // "": there was none
  std::uint64_t log_next = 0;  // the first record after the cut
  /// Of an increment: how old its full checkpoint was, in steps and in milliseconds of training.
  std::uint64_t full_age_steps = 0;
  std::uint64_t full_age_ms = 0;
  std::vector<TableSpec> tables;
  std::vector<DenseSpec> dense;
};
std::string Encode(const JobFile& job);
Result<JobFile> DecodeJobFile(const std::string& text);

}  // namespace cairn::ps
