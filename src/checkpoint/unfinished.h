#pragma once

#include <string>
#include <vector>

#include "checkpoint/repository.h"

namespace cairn {

/// The directories without a manifest that a save or a removal is at work in, or left. Not those of
/// removed checkpoints, on object stores, whose files later ones refer to: they are there for good.
std::vector<std::string> UnfinishedDirectories(const RepositoryView& view);

}  // namespace cairn
