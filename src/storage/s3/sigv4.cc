#include "storage/s3/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include "net/url.h"

namespace cairn {
namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

std::string Hex(std::span<const unsigned char> bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

Digest Hmac(std::span<const unsigned char> key, std::string_view text) {
  Digest out{};
  unsigned int bytes = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), &bytes);
  return out;
}

/// Lower case, the values trimmed and with runs of spaces made one; sorted.
std::vector<HttpHeader> CanonicalHeaders(const std::vector<HttpHeader>& headers) {
  std::vector<HttpHeader> sorted;
  for (const HttpHeader& header : headers) {
    HttpHeader canonical;
    for (const char c : header.name) {
      canonical.name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    for (const char c : header.value) {
      const bool space = c == ' ' || c == '\t';
      if (space && (canonical.value.empty() || canonical.value.back() == ' ')) continue;
      canonical.value += space ? ' ' : c;
    }
    if (canonical.value.ends_with(' ')) canonical.value.pop_back();
    sorted.push_back(std::move(canonical));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const HttpHeader& a, const HttpHeader& b) { return a.name < b.name; });
  return sorted;
}

std::string SignedHeaders(const std::vector<HttpHeader>& canonical) {
  std::string names;
  for (const HttpHeader& header : canonical) names += (names.empty() ? "" : ";") + header.name;
  return names;
}

}  // namespace

std::string Sha256Hex(std::span<const std::byte> bytes) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return Hex(digest);
}

std::string Sha256Hex(std::string_view text) {
  return Sha256Hex(std::as_bytes(std::span(text.data(), text.size())));
}

std::string SigningDate(std::int64_t wall_nanos) {
  const std::time_t seconds = static_cast<std::time_t>(wall_nanos / 1'000'000'000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string CanonicalRequest(const SigningRequest& request) {
  std::vector<std::pair<std::string, std::string>> query;
  for (const auto& [name, value] : request.query) {
    query.emplace_back(PercentEncode(name), PercentEncode(value));
  }
  std::sort(query.begin(), query.end());
  std::string query_text;
  for (const auto& [name, value] : query) {
    query_text += (query_text.empty() ? "" : "&") + name + "=" + value;
  }
  const std::vector<HttpHeader> headers = CanonicalHeaders(request.headers);
  std::string header_text;
  for (const HttpHeader& header : headers) header_text += header.name + ":" + header.value + "\n";
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method,
                     request.path.empty() ? "/" : request.path, query_text, header_text,
                     SignedHeaders(headers), request.payload_hash);
}

std::string SignV4(const SigningRequest& request, const S3Credentials& credentials,
                   std::string_view date, std::string_view region, std::string_view service) {
  const std::string_view day = date.substr(0, 8);
  const std::string scope = fmt::format("{}/{}/{}/aws4_request", day, region, service);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", date, scope,
                                          Sha256Hex(CanonicalRequest(request)));
  const std::string secret = "AWS4" + credentials.secret_key;
  Digest key =
      Hmac(std::span(reinterpret_cast<const unsigned char*>(secret.data()), secret.size()), day);
  key = Hmac(key, region);
  key = Hmac(key, service);
  key = Hmac(key, "aws4_request");
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                     credentials.access_key, scope,
                     SignedHeaders(CanonicalHeaders(request.headers)), Hex(Hmac(key, to_sign)));
}

}  // namespace cairn
