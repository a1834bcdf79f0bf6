#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <cairn/status.h>

namespace cairn {

struct ZipEntry {
  std::span<const std::byte> content;
  std::uint32_t crc32 = 0;  // as the directory has it; writers that compute none leave 0
};
using ZipEntries = std::map<std::string, ZipEntry, std::less<>>;

/// The files of a zip archive whose entries are all stored, not compressed: name → its bytes, which
/// stand in the archive's and are not read. Zip64 is understood. Corruption for damaged bytes and
/// entries that overlap the directory; Unimplemented for compressed or encrypted entries.
Result<ZipEntries> DecodeZipDirectory(std::span<const std::byte> bytes);

}  // namespace cairn
