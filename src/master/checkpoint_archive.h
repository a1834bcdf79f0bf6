#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn::master {

enum class ArchiveFormat : std::uint8_t { kTar, kTarGz, kZip };

/// Writes all files of the checkpoint (its directory or URL) as one archive, piece by piece; of an
/// increment with those that it builds on, in directories beside its own: without them nothing can
/// open it. An error of `write` ends it. Everything is open before the first byte is written: a
/// checkpoint that is removed meanwhile is still whole on a local disk. NotFound.
Status ArchiveCheckpoint(const std::string& checkpoint, ArchiveFormat format,
                         const std::function<Status()>& begin,
                         const std::function<Status(std::string_view bytes)>& write);

}  // namespace cairn::master
