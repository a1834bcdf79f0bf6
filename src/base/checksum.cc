#include "base/checksum.h"

// Debian's library carries the AVX2 and AVX-512 loops too and picks one at run time, but only for
// those who ask by these names; the plain ones are compiled for the oldest x86-64, at half the
// speed.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>

namespace cairn {
namespace {

// Both hashes of a file are taken over pieces that stay in the second-level cache, so that the
// second one reads no memory. Of shorter pieces the beginning of each is felt.
constexpr std::size_t kPieceBytes = 64u << 10;

std::optional<std::uint64_t> ParseHex(std::string_view hex) {
  std::uint64_t value = 0;
  for (const char c : hex) {
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    value = (value << 4) | static_cast<std::uint64_t>(digit);
  }
  return value;
}

}  // namespace

std::uint64_t Xxh3(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t Xxh3(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hash128 Xxh3Wide(std::span<const std::byte> bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return {h.high64, h.low64};
}

std::string ToHex(std::uint64_t hash) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = 16; i-- > 0; hash >>= 4) out[i] = kHex[hash & 15];
  return out;
}

std::string ToHex(const Hash128& hash) { return ToHex(hash.high) + ToHex(hash.low); }

std::optional<std::uint64_t> Hash64FromHex(std::string_view hex) {
  if (hex.size() != 16) return std::nullopt;
  return ParseHex(hex);
}

std::optional<Hash128> Hash128FromHex(std::string_view hex) {
  if (hex.size() != 32) return std::nullopt;
  const auto high = ParseHex(hex.substr(0, 16));
  const auto low = ParseHex(hex.substr(16));
  if (!high || !low) return std::nullopt;
  return Hash128{*high, *low};
}

struct Xxh3Stream::State {
  XXH3_state_t* state = XXH3_createState();

  State() { XXH3_128bits_reset(state); }
  ~State() { XXH3_freeState(state); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->state, bytes.data(), bytes.size());
}

std::uint64_t Xxh3Stream::Finish() {
  const std::uint64_t hash = XXH3_64bits_digest(state_->state);
  XXH3_128bits_reset(state_->state);
  return hash;
}

Hash128 Xxh3Stream::FinishWide() {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->state);
  XXH3_128bits_reset(state_->state);
  return {hash.high64, hash.low64};
}

struct FileHasher::State {
  XXH3_state_t* whole = XXH3_createState();
  XXH3_state_t* chunk = XXH3_createState();
  std::size_t in_chunk = 0;
  FileHash out;

  State() { Reset(); }
  ~State() {
    XXH3_freeState(whole);
    XXH3_freeState(chunk);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void Reset() {
    XXH3_128bits_reset(whole);
    XXH3_64bits_reset(chunk);
    in_chunk = 0;
    out = {};
  }
};

FileHasher::FileHasher() : state_(std::make_unique<State>()) {}
FileHasher::~FileHasher() = default;
FileHasher::FileHasher(FileHasher&&) noexcept = default;
FileHasher& FileHasher::operator=(FileHasher&&) noexcept = default;

void FileHasher::Update(std::span<const std::byte> bytes) {
  State& s = *state_;
  while (!bytes.empty()) {
    const std::size_t n = std::min({bytes.size(), kPieceBytes, kChunkBytes - s.in_chunk});
    XXH3_64bits_update(s.chunk, bytes.data(), n);
    XXH3_128bits_update(s.whole, bytes.data(), n);
    s.in_chunk += n;
    s.out.bytes += n;
    if (s.in_chunk == kChunkBytes) {
      s.out.chunks.push_back(XXH3_64bits_digest(s.chunk));
      XXH3_64bits_reset(s.chunk);
      s.in_chunk = 0;
    }
    bytes = bytes.subspan(n);
  }
}

FileHash FileHasher::Finish() {
  State& s = *state_;
  if (s.in_chunk != 0) s.out.chunks.push_back(XXH3_64bits_digest(s.chunk));
  const XXH128_hash_t h = XXH3_128bits_digest(s.whole);
  s.out.whole = {h.high64, h.low64};
  FileHash out = std::move(s.out);
  s.Reset();
  return out;
}

}  // namespace cairn
