#pragma once

#include <string>

#include <cairn/status.h>

#include "checkpoint/checkpoint_path.h"
#include "checkpoint/environment.h"
#include "checkpoint/repository.h"

namespace cairn::cli {

/// A repository as a command found it.
struct OpenedRepository {
  Environment env;
  RepositoryView view;
};

/// Reads the repository in an existing directory; makes nothing. The errors say what the directory
/// is instead.
Result<OpenedRepository> OpenRepository(const std::string& directory);

struct Selected {
  const Checkpoint* checkpoint = nullptr;  // in the view
  std::string note;                        // when the choice was not the only one
};

/// What a user means by a step, an id (its first four digits or more suffice), a checkpoint's
/// directory name, or "latest" (also ""). InvalidArgument for a word that is none of these.
Result<Selected> Select(const RepositoryView& view, const std::string& where,
                        const std::string& word);

/// The same for a directory that may itself be a checkpoint's.
struct SelectedCheckpoint {
  Environment env;
  Checkpoint checkpoint;
  bool latest = false;
  std::string note;
};
Result<SelectedCheckpoint> SelectIn(const std::string& directory, const std::string& word);

}  // namespace cairn::cli
