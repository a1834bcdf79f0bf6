#pragma once

#include <cstddef>
#include <string>

/// Names of the small files that servers put into a checkpoint.
namespace cairn::ps {

inline constexpr char kJobFile[] = "job.json";  // of each server

/// A trainer's own state: from the root of the checkpoint, written by the lead server.
inline std::string TrainerFile(std::size_t trainer, const char* name) {
  return "/trainer_" + std::to_string(trainer) + "/" + name;
}

}  // namespace cairn::ps
