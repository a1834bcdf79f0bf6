#include "model/foreign/zip_directory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint32_t kEnd64 = 0x06064b50;
constexpr std::uint32_t kEnd64Locator = 0x07064b50;
constexpr std::uint32_t kCentral = 0x02014b50;
constexpr std::uint32_t kLocal = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kMaxComment = 65535;

Status Damaged(std::string_view what) {
  return CorruptionError("the zip archive " + std::string(what));
}

/// One pass over an archive.
class ZipReader {
 public:
  explicit ZipReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<ZipEntries> Read() {
    RETURN_IF_ERROR(FindDirectory());
    ZipEntries files;
    std::uint64_t at = directory_;
    for (std::uint64_t i = 0; i < count_; ++i) {
      std::string name;
      ZipEntry entry;
      RETURN_IF_ERROR(ReadEntry(&at, &name, &entry));
      if (!files.emplace(name, entry).second) {
        return Damaged("holds " + QuoteForMessage(name) + " twice");
      }
    }
    return files;
  }

 private:
  template <typename T>
  Status At(std::uint64_t offset, T* out) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) {
      return Damaged("ends too early");
    }
    std::memcpy(out, bytes_.data() + offset, sizeof(T));
    return Status::Ok();
  }

  Status FindDirectory() {
    if (bytes_.size() < kEndBytes) return Damaged("is too short");
    const std::uint64_t last = bytes_.size() - kEndBytes;
    const std::uint64_t first = last - std::min(last, kMaxComment);
    for (std::uint64_t end = last + 1; end-- > first;) {
      std::uint32_t signature = 0;
      RETURN_IF_ERROR(At(end, &signature));
      if (signature == kEnd) return ReadEnd(end);
    }
    return Damaged("has no directory; the file may be cut");
  }

  Status ReadEnd(std::uint64_t end) {
    std::uint16_t count = 0;
    std::uint32_t offset = 0;
    RETURN_IF_ERROR(At(end + 10, &count));
    RETURN_IF_ERROR(At(end + 16, &offset));
    count_ = count;
    directory_ = offset;
    std::uint32_t locator = 0;
    if (end >= 20) RETURN_IF_ERROR(At(end - 20, &locator));
    if (locator != kEnd64Locator) return Status::Ok();
    std::uint64_t end64 = 0;
    std::uint32_t signature = 0;
    RETURN_IF_ERROR(At(end - 20 + 8, &end64));
    RETURN_IF_ERROR(At(end64, &signature));
    if (signature != kEnd64) return Damaged("has a damaged directory");
    RETURN_IF_ERROR(At(end64 + 32, &count_));
    return At(end64 + 48, &directory_);
  }

  Status ReadEntry(std::uint64_t* at, std::string* name, ZipEntry* entry) {
    std::uint32_t signature = 0;
    std::uint16_t flags = 0;
    std::uint16_t method = 0;
    std::uint32_t packed = 0;
    std::uint32_t size = 0;
    std::uint16_t name_bytes = 0;
    std::uint16_t extra_bytes = 0;
    std::uint16_t comment_bytes = 0;
    std::uint32_t offset = 0;
    RETURN_IF_ERROR(At(*at, &signature));
    if (signature != kCentral) return Damaged("has a damaged directory");
    RETURN_IF_ERROR(At(*at + 8, &flags));
    RETURN_IF_ERROR(At(*at + 10, &method));
    RETURN_IF_ERROR(At(*at + 16, &entry->crc32));
    RETURN_IF_ERROR(At(*at + 20, &packed));
    RETURN_IF_ERROR(At(*at + 24, &size));
    RETURN_IF_ERROR(At(*at + 28, &name_bytes));
    RETURN_IF_ERROR(At(*at + 30, &extra_bytes));
    RETURN_IF_ERROR(At(*at + 32, &comment_bytes));
    RETURN_IF_ERROR(At(*at + 42, &offset));
    const std::uint64_t text = *at + 46;
    if (text + name_bytes + extra_bytes + comment_bytes > bytes_.size()) {
      return Damaged("ends within its directory");
    }
    name->assign(reinterpret_cast<const char*>(bytes_.data()) + text, name_bytes);
    std::uint64_t wide_size = size;
    std::uint64_t wide_offset = offset;
    RETURN_IF_ERROR(
        ReadExtra(text + name_bytes, extra_bytes, size, packed, offset, &wide_size, &wide_offset));
    if (method != 0 || (flags & 1) != 0) {
      return UnimplementedError("the entry " + QuoteForMessage(*name) +
                                " of the zip archive is compressed or encrypted, which torch.save "
                                "does not do (TorchScript does: save the state_dict)");
    }
    *at = text + name_bytes + extra_bytes + comment_bytes;
    return ReadContent(wide_offset, wide_size, &entry->content);
  }

  /// Zip64: sizes that do not fit stand in an extra field, in a fixed order.
  Status ReadExtra(std::uint64_t at, std::uint64_t bytes, std::uint32_t size, std::uint32_t packed,
                   std::uint32_t offset, std::uint64_t* wide_size, std::uint64_t* wide_offset) {
    constexpr std::uint32_t kWide = 0xffffffff;
    const std::uint64_t end = at + bytes;
    while (at + 4 <= end) {
      std::uint16_t id = 0;
      std::uint16_t length = 0;
      RETURN_IF_ERROR(At(at, &id));
      RETURN_IF_ERROR(At(at + 2, &length));
      std::uint64_t field = at + 4;
      at = field + length;
      if (id != 1) continue;
      std::uint64_t ignored = 0;
      if (size == kWide) RETURN_IF_ERROR(TakeWide(&field, at, wide_size));
      if (packed == kWide) RETURN_IF_ERROR(TakeWide(&field, at, &ignored));
      if (offset == kWide) RETURN_IF_ERROR(TakeWide(&field, at, wide_offset));
    }
    return Status::Ok();
  }
  Status TakeWide(std::uint64_t* field, std::uint64_t end, std::uint64_t* out) {
    if (*field + 8 > end) return Damaged("has a damaged directory");
    RETURN_IF_ERROR(At(*field, out));
    *field += 8;
    return Status::Ok();
  }

  Status ReadContent(std::uint64_t offset, std::uint64_t size,
                     std::span<const std::byte>* content) const {
    std::uint32_t signature = 0;
    std::uint16_t name_bytes = 0;
    std::uint16_t extra_bytes = 0;
    RETURN_IF_ERROR(At(offset, &signature));
    if (signature != kLocal) return Damaged("has no entry where its directory says");
    RETURN_IF_ERROR(At(offset + 26, &name_bytes));
    RETURN_IF_ERROR(At(offset + 28, &extra_bytes));
    const std::uint64_t begin = offset + 30 + name_bytes + extra_bytes;
    if (begin > bytes_.size() || size > bytes_.size() - begin) {
      return Damaged("ends within an entry");
    }
    *content = bytes_.subspan(begin, size);
    return Status::Ok();
  }

  const std::span<const std::byte> bytes_;
  std::uint64_t count_ = 0;
  std::uint64_t directory_ = 0;
};

}  // namespace

Result<ZipEntries> DecodeZipDirectory(std::span<const std::byte> bytes) {
  return ZipReader(bytes).Read();
}

}  // namespace cairn
