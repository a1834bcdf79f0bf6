#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/core.h>
#include <cairn/status.h>
#include <cairn/transfer.h>
#include <cairn/value.h>

/// The user's own files of a checkpoint: what is in a directory, and what several ranks give. What
/// ranks compare is the same in Python (python/cairn/core/_files.py), so that all decide alike.
namespace cairn::core {

/// Where processes write files that are to become a checkpoint, inside the repository.
inline constexpr char kStaging[] = ".cairn-staging";

/// The files below a directory, by name. Links to files count as files. InvalidArgument: a link to
/// a directory, or something that is neither a file nor a directory.
Result<std::vector<UserFile>> FilesIn(const std::string& directory, const Selector& selector);

/// Those of a checkpoint's own files that the selector picks, brought into a directory.
Status FetchFiles(const CheckpointInfo& info, const std::string& directory,
                  const Selector& selector, FetchHow how = FetchHow::kCopy);

/// The metadata of all ranks in one; `given`: an object of each, or null. InvalidArgument names
/// what they do not agree about, and the ranks.
Result<Value> MergeMetadata(const std::vector<Value>& given);

/// Which of its files this rank stores, of those that all ranks have: the same name with the same
/// content is stored once, by the first rank that has it. All ranks call it, and all see the same
/// problems (InvalidArgument): a name with other content, or a file's that is a directory
/// elsewhere.
Result<std::vector<UserFile>> SettleConflicts(std::vector<UserFile> mine,
                                              DistributedContext* ranks);

/// A directory of its own that is removed with all that is in it when its owner goes.
class ScratchDirectory {
 public:
  static Result<std::unique_ptr<ScratchDirectory>> Make(const std::filesystem::path& parent,
                                                        const std::string& prefix);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string path() const { return path_.string(); }

 private:
  explicit ScratchDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path path_;
};

}  // namespace cairn::core
