#include "net/token.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <array>

namespace cairn {
namespace {

template <std::size_t N>
std::string Hex(const std::array<unsigned char, N>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * N);
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace

Result<std::string> NewToken() {
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return InternalError("token: the kernel gave no random numbers");
  }
  return Hex(bytes);
}

std::string HashToken(std::string_view token) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return Hex(digest);
}

bool TokenMatches(std::string_view token, std::string_view hash) {
  const std::string own = HashToken(token);
  return own.size() == hash.size() && CRYPTO_memcmp(own.data(), hash.data(), own.size()) == 0;
}

}  // namespace cairn
