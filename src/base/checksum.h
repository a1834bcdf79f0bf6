#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

/// Files are checked in chunks of this size: the unit that is read, hashed and compared.
inline constexpr std::size_t kChunkBytes = 4u << 20;

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

std::uint64_t Xxh3(std::span<const std::byte> bytes);
std::uint64_t Xxh3(std::string_view bytes);
Hash128 Xxh3Wide(std::span<const std::byte> bytes);

std::string ToHex(std::uint64_t hash);   // 16 digits
std::string ToHex(const Hash128& hash);  // 32 digits, high half first (as xxhsum prints it)
std::optional<std::uint64_t> Hash64FromHex(std::string_view hex);
std::optional<Hash128> Hash128FromHex(std::string_view hex);

/// What a manifest records of a file's bytes.
struct FileHash {
  std::uint64_t bytes = 0;
  Hash128 whole;
  std::vector<std::uint64_t> chunks;  // XXH3-64 of each kChunkBytes piece; none for an empty file
  friend bool operator==(const FileHash&, const FileHash&) = default;
};

/// Xxh3 and Xxh3Wide of bytes that come in pieces. Both hashes of the same bytes have the same
/// state, so either may be taken at the end; the stream is then ready for other bytes. One caller
/// at a time.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  std::uint64_t Finish();
  Hash128 FinishWide();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hashes a file's bytes as they pass, in order. One caller at a time.
class FileHasher {
 public:
  FileHasher();
  ~FileHasher();
  FileHasher(FileHasher&&) noexcept;
  FileHasher& operator=(FileHasher&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  /// The hash of all bytes so far; the hasher is then ready for another file.
  FileHash Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn
