#include "base/ids.h"

#include <sys/random.h>

#include <array>
#include <random>

namespace cairn {
namespace {

std::string FormatUuid(std::array<unsigned char, 16> bytes) {
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);  // version 4
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);  // the RFC's variant
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(36);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += kHex[bytes[i] >> 4];
    out += kHex[bytes[i] & 15];
  }
  return out;
}

class SystemIds final : public IdSource {
 public:
  std::string NewUuid() override {
    std::array<unsigned char, 16> bytes;
    std::size_t have = 0;
    while (have < bytes.size()) {
      const ssize_t n = getrandom(bytes.data() + have, bytes.size() - have, 0);
      if (n > 0) {
        have += static_cast<std::size_t>(n);
      } else {  // ENOSYS under odd sandboxes: the C++ library has its own way to the kernel
        std::random_device device;
        while (have < bytes.size()) bytes[have++] = static_cast<unsigned char>(device());
      }
    }
    return FormatUuid(bytes);
  }
};

std::uint64_t SplitMix(std::uint64_t* state) {
  std::uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

IdSource* IdSource::System() {
  static SystemIds ids;
  return &ids;
}

std::string SeededIds::NewUuid() {
  MutexLock lock(&mu_);
  std::array<unsigned char, 16> bytes;
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t r = SplitMix(&state_);
    for (std::size_t i = 0; i < 8; ++i) {
      bytes[half * 8 + i] = static_cast<unsigned char>(r);
      r >>= 8;
    }
  }
  return FormatUuid(bytes);
}

bool IsUuid(std::string_view text) {
  if (text.size() != 36) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (c != '-') return false;
    } else if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
      return false;
    }
  }
  return true;
}

}  // namespace cairn
