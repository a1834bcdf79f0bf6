#include "rpc/token.h"

#include <cstddef>
#include <fstream>
#include <iterator>

#include "base/status_macros.h"

namespace cairn::rpc {
namespace {

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) return InvalidArgumentError("\"" + path + "\" cannot be read");
  return text;
}

}  // namespace

bool SameToken(std::string_view a, std::string_view b) {
  // The length is no secret; every byte of the given one is looked at.
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  return different == 0;
}

Result<std::string> ReadTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) return InvalidArgumentError("the token file \"" + path + "\" is empty");
  return text;
}

Result<std::string> ReadPemFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (text.find("-----BEGIN") == text.npos) {
    return InvalidArgumentError("\"" + path + "\" is not a PEM file");
  }
  return text;
}

}  // namespace cairn::rpc
