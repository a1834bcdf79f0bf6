#pragma once

#include <cstdint>
#include <functional>

#include <cairn/status.h>

#include "checkpoint/environment.h"

// Room for the records of a removal on a disk that is full.
//
// A checkpoint is removed by an owner: fence, seal and remove note are written before the first
// byte is freed, each for a reason that a full disk does not change. So the room for them is kept:
// each opening leaves a file of a few blocks in the repository, and whoever comes to remove, and
// finds no room for a record, deletes that file and publishes the record again. The file is no
// record: nobody reads it, it is not synced, and a repository without it differs in nothing else.

namespace cairn {

/// Fence, seal, a directory for notes and the note take 16 KiB on most file systems. The rest is
/// for seals that name thousands of checkpoints, and for openings that were cut short.
inline constexpr std::uint64_t kReserveBytes = 64u << 10;

/// Makes the reserve when it is missing and the disk has much more room than that. For owners;
/// failures leave none and tell nobody.
void KeepReserve(Store* store);

/// Publishes a record on the way to a removal: when there is no room for it, what only stands ready
/// (the reserve, and recycled files) is given up, and it is tried once more.
Status PublishWithReserve(const Environment& env, const std::function<Status()>& publish);

}  // namespace cairn
