#pragma once

#include <memory>

#include <cairn/status.h>

#include "storage/fs.h"

namespace cairn {

/// True when this kernel lets this process use io_uring with the operations we need (some sandboxes
/// forbid it) and CAIRN_NO_IO_URING is not 1. Asked of the kernel once.
bool UringWorks();

/// A queue over io_uring for files of PosixFs. Unimplemented or ResourceExhausted where the kernel
/// gives no ring; use a thread queue then.
Result<std::unique_ptr<IoQueue>> NewUringQueue(int depth);

}  // namespace cairn
