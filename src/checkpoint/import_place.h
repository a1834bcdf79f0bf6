#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

/// Where plain files are read from, for an import or by readers of other programs' files: a
/// directory of this machine, or one of a bucket or cluster. For one thread.
class ImportPlace {
 public:
  virtual ~ImportPlace() = default;

  /// For messages: the path or URL of a file.
  virtual std::string PathOf(const std::string& name) const = 0;
  /// True when a checkpoint or a repository of ours lies there.
  virtual bool IsOurs() = 0;
  /// All files below, by names relative to the place, sorted; hidden ones are left out.
  virtual Result<std::vector<std::string>> Files() = 0;
  /// Those directly in it: one listing, however much is below.
  virtual Result<std::vector<std::string>> FilesDirectly() = 0;
  virtual Result<std::unique_ptr<ObjectReader>> Open(const std::string& name) = 0;
  /// InvalidArgument when links lead from `name`, which the file `from` refers to, to outside of
  /// the place, and not to the directory that those of `from` lead to either (a cache of downloads
  /// has all its files elsewhere).
  virtual Status CheckBeside(const std::string& name, const std::string& from) const = 0;
  /// As a file of the new checkpoint. ResourceExhausted when it is too large to be read into
  /// memory, where that is the only way.
  virtual Result<UserFile> AsUserFile(const std::string& name) = 0;
};

/// What somebody was pointed at: one file of a place, or (name empty) all of them.
struct ImportTarget {
  std::unique_ptr<ImportPlace> place;
  std::string name;
};

/// `source`: a path or URL. NotFound when nothing is there.
Result<ImportTarget> FindImport(const std::string& source);

}  // namespace cairn
