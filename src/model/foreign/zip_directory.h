#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include <cairn/status.h>

namespace cairn {

/// The files of a zip archive whose entries are all stored, not compressed: name → its bytes, which
/// stand in the archive's. Zip64 is understood. Corruption for damaged bytes and entries that
/// overlap the directory; Unimplemented for compressed or encrypted entries.
Result<std::map<std::string, std::span<const std::byte>, std::less<>>> DecodeZipDirectory(
    std::span<const std::byte> bytes);

}  // namespace cairn
