#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"
#include "tests/kill/job_state.h"

/// A job whose state is a function of its step, for tests of the engine on real servers.
namespace cairn::remote {

inline constexpr std::uint64_t kSeed = 5;

/// Saves of one opening after which files are shared. From its second save on a writer knows which
/// tensors do not change, with the third they get a file of their own, and the fourth refers to it.
/// So the sixth has removed (keep_last = 2) the checkpoint that holds a file which two refer to.
inline constexpr int kSavesUntilShared = 6;

inline Result<CheckpointInfo> SaveStep(CheckpointManager* manager, std::int64_t step,
                                       std::uint64_t* shared = nullptr) {
  kill::JobState state;
  state.Compute(kSeed, step, 0);
  auto handle = manager->Save({.step = step, .tensors = state.Views(0, 1)});
  if (!handle.ok()) return handle.status();
  auto saved = handle->Wait();
  if (shared != nullptr) *shared = handle->BytesShared();
  return saved;
}

/// The step that was restored, bit-equal; -1 when there is nothing; an error otherwise.
inline Result<std::int64_t> RestoreLatest(CheckpointManager* manager) {
  kill::JobState state;
  auto restored = manager->Restore({.into = state.Targets(0, 1)});
  if (!restored.ok()) return restored.status();
  if (!restored->has_value()) return std::int64_t{-1};
  kill::JobState expected;
  expected.Compute(kSeed, (*restored)->step, 0);
  if (!(state == expected)) return CorruptionError("the restored state is not that of its step");
  return (*restored)->step;
}

/// What is in a repository.
struct Contents {
  std::vector<std::int64_t> steps;   // of the checkpoints that count, in their order
  int shared = 0;                    // files of theirs that are another checkpoint's
  int shared_with_removed = 0;       // …which is not there any more, but for these files
  std::vector<std::string> garbage;  // data that no manifest refers to
};

/// All that is below a directory.
inline Status AddNames(Store* store, const std::string& directory, std::vector<std::string>* to) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(directory));
  for (const ObjectInfo& object : listing.objects) to->push_back(object.name);
  for (const std::string& below : listing.prefixes) RETURN_IF_ERROR(AddNames(store, below, to));
  return Status::Ok();
}

/// Reads every byte of every checkpoint that counts; an error when one is not whole.
inline Result<Contents> VerifyAll(Store* store) {
  Contents contents;
  ASSIGN_OR_RETURN(const RepositoryView view, RepositoryReader(store).Read());
  if (!view.damaged.empty()) return view.damaged.front().status;
  std::set<std::string> directories;
  std::set<std::string> referred;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    // Also a whole one that does not count, of a writer that was overtaken: it stays by intent.
    for (const ManifestFile& file : checkpoint.manifest->files) {
      referred.insert(file.ref.empty() ? checkpoint.directory + "/" + file.path : file.ref);
    }
    if (checkpoint.counts) directories.insert(checkpoint.directory);
  }
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts) continue;
    ASSIGN_OR_RETURN(const auto open,
                     OpenCheckpoint::Open(store, checkpoint.directory, checkpoint.manifest));
    std::vector<VerifyProblem> problems;
    RETURN_IF_ERROR(VerifyFiles(store, *open, {}, &problems).status());
    if (!problems.empty()) {
      return CorruptionError(checkpoint.directory + ": " + problems.front().what);
    }
    for (const ManifestFile& file : checkpoint.manifest->files) {
      if (file.ref.empty()) continue;
      ++contents.shared;
      const std::string owner = file.ref.substr(0, file.ref.find('/'));
      if (!directories.contains(owner)) ++contents.shared_with_removed;
    }
    contents.steps.push_back(checkpoint.manifest->step);
  }
  std::vector<std::string> names;
  RETURN_IF_ERROR(AddNames(store, "", &names));
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors") && !referred.contains(name)) {
      contents.garbage.push_back(name);
    }
  }
  return contents;
}

}  // namespace cairn::remote
