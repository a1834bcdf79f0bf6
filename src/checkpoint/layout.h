#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "format/safetensors.h"

namespace cairn {

/// What the last save learned of each tensor of this participant: packed files keep tensors that
/// did not change apart from those that did, so that whole files can be shared.
struct TensorHistory {
  std::uint64_t hash = 0;  // XXH3-64 of the bytes
  bool changed = true;     // between the last two saves
};
using SaveHistory = std::unordered_map<std::string, TensorHistory>;  // by stored name

struct LayoutLimits {
  std::uint64_t own_file_bytes = 64u << 20;  // tensors of at least this have a file of their own
  std::uint64_t packed_file_bytes = 256u << 20;  // others are packed up to this
  std::uint64_t header_bytes = kSafetensorsHeaderBudget;
  std::uint64_t recycle_from_bytes = 1u << 20;  // smaller files of removed checkpoints are unlinked
};

/// A tensor's place in a planned file.
struct PlannedTensor {
  std::size_t index = 0;          // into the request's tensors
  std::string stored_name;        // "<name>" or "<name>@<offset,…>"
  std::uint64_t file_offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;
  std::uint64_t arena_offset = 0;  // of plain tensors in streamed files; others follow their file
};

/// A file to be written: `head` bytes (a safetensors header, or a small file whole), then tensors
/// back to back; or a user's file read from `source_path`.
struct PlannedFile {
  std::string path;  // relative to the checkpoint's directory
  std::string head;
  std::vector<PlannedTensor> tensors;
  std::string source_path;
  std::uint64_t bytes = 0;
  bool own_file = false;           // of one large tensor: the file changes exactly when it does
  bool expect_unchanged = false;   // all its tensors were unchanged last time
  bool streamed = false;           // from sources: does not stand in the arena
  std::uint64_t arena_offset = 0;  // multiple of 4 KiB; where not streamed
};

struct SavePlan {
  std::vector<PlannedFile> files;
  std::uint64_t arena_bytes = 0;
  std::uint64_t total_bytes = 0;
};

/// Decides which bytes of the request go into which file, for `participant` (number `rank` of
/// `world_size`). Refuses by name: duplicate names, data missing, shapes that overflow, shards
/// outside their array, names that are not UTF-8, unsafe file names. `index_file`: also plans
/// __model__/model.safetensors.index.json, which only a single participant can know beforehand.
/// `stream_all`: nothing goes through the arena (low-memory mode).
Result<SavePlan> PlanSave(const SaveRequest& request, const std::string& participant, int rank,
                          int world_size, const SaveHistory& history, const LayoutLimits& limits,
                          bool index_file, bool stream_all);

/// The same for a request with the same tensors as the one that `last` was made for, which only its
/// other files may differ from; participant and stream_all are the same too.
Result<SavePlan> PlanAgain(SavePlan last, const SaveRequest& request,
                           const std::string& participant, bool stream_all);

/// Which rank writes each replicated tensor: the same answer on every rank that has the same list.
/// Balanced by bytes. Indexed like `bytes_by_name` (sorted by name).
std::map<std::string, int> AssignReplicated(
    const std::map<std::string, std::uint64_t>& bytes_by_name, int world_size);

}  // namespace cairn
