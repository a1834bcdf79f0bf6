#include "format/key_column.h"

#include <zstd.h>

#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "base/checksum.h"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "columns are written as they stand");

struct Head {
  char magic[4] = {'C', 'K', 'E', 'Y'};
  std::uint32_t version = 1;
  std::uint64_t count = 0;
  std::uint64_t hash = 0;  // XXH3-64 of the keys as int64, little-endian
};
static_assert(sizeof(Head) == 24);

constexpr int kLevel = 1;  // higher ones gain little on differences of random keys

Status Damaged(const std::string& what) { return CorruptionError("compressed keys: " + what); }

}  // namespace

Result<std::vector<std::byte>> EncodeKeyColumn(std::span<const std::int64_t> keys) {
  const std::size_t n = keys.size();
  std::vector<std::byte> planes(n * 8);
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto key = static_cast<std::uint64_t>(keys[i]);
    const std::uint64_t difference = key - before;
    before = key;
    for (std::size_t b = 0; b < 8; ++b) {
      planes[b * n + i] = static_cast<std::byte>(difference >> (8 * b));
    }
  }
  std::vector<std::byte> out(sizeof(Head) + ZSTD_compressBound(planes.size()));
  const std::size_t size = ZSTD_compress(out.data() + sizeof(Head), out.size() - sizeof(Head),
                                         planes.data(), planes.size(), kLevel);
  if (ZSTD_isError(size) != 0) {
    return InternalError(std::string("compress keys: ") + ZSTD_getErrorName(size));
  }
  Head head;
  head.count = n;
  head.hash = Xxh3(std::as_bytes(keys));
  std::memcpy(out.data(), &head, sizeof head);
  out.resize(sizeof(Head) + size);
  return out;
}

Result<std::vector<std::int64_t>> DecodeKeyColumn(std::span<const std::byte> bytes,
                                                  std::uint64_t count) {
  Head head;
  if (bytes.size() < sizeof head) return Damaged("too short");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::memcmp(head.magic, Head{}.magic, sizeof head.magic) != 0) {
    return Damaged("no such column");
  }
  if (head.version != Head{}.version) {
    return UnimplementedError("compressed keys of version " + std::to_string(head.version) +
                              "; this program reads version 1");
  }
  if (head.count != count) {
    return Damaged("holds " + std::to_string(head.count) + " keys, not " + std::to_string(count));
  }
  const std::span<const std::byte> frame = bytes.subspan(sizeof head);
  const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (count > std::numeric_limits<std::uint64_t>::max() / 8 || size != count * 8) {
    return Damaged("of another size than its keys");
  }
  try {
    std::vector<std::byte> planes(size);
    const std::size_t got =
        ZSTD_decompress(planes.data(), planes.size(), frame.data(), frame.size());
    if (ZSTD_isError(got) != 0 || got != planes.size()) return Damaged("do not decompress");
    std::vector<std::int64_t> keys(count);
    std::uint64_t key = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::uint64_t difference = 0;
      for (std::size_t b = 0; b < 8; ++b) {
        difference |= std::to_integer<std::uint64_t>(planes[b * keys.size() + i]) << (8 * b);
      }
      key += difference;
      keys[i] = static_cast<std::int64_t>(key);
    }
    if (Xxh3(std::as_bytes(std::span(keys))) != head.hash) return Damaged("wrong checksum");
    return keys;
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("no memory for " + std::to_string(count) + " keys");
  }
}

}  // namespace cairn
