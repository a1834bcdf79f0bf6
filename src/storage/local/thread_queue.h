#pragma once

#include <memory>

#include <cairn/status.h>

#include "storage/fs.h"

namespace cairn {

/// A queue over the blocking calls of FsFile, for files of any file system: up to eight threads
/// (never more than `depth`) that start with the first submission and end with the queue.
Result<std::unique_ptr<IoQueue>> NewThreadQueue(int depth);

/// InvalidArgument unless 1 <= depth <= 4096.
Status CheckQueueDepth(int depth);

}  // namespace cairn
