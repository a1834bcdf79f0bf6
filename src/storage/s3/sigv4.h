#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/http.h"

namespace cairn {

/// The keys that requests are signed with.
struct S3Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token;       // "" for keys that do not expire
  std::int64_t expires_nanos = 0;  // since 1970; 0: never, or nobody knows
};

/// The hash that stands for a body which is not signed; its checksum, sent as a header, is.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct SigningRequest {
  std::string method;
  std::string path;  // as it is sent: percent-encoded, from '/'
  std::vector<std::pair<std::string, std::string>> query;  // not encoded
  std::vector<HttpHeader> headers;  // all of them are signed; host and x-amz-date among them
  std::string payload_hash;         // SHA-256 in hex, or kUnsignedPayload
};

/// AWS Signature Version 4: the value of the Authorization header. `date` is "20130524T000000Z", as
/// in x-amz-date.
std::string SignV4(const SigningRequest& request, const S3Credentials& credentials,
                   std::string_view date, std::string_view region, std::string_view service);

/// The string that is hashed and signed; for tests that compare it with other signers'.
std::string CanonicalRequest(const SigningRequest& request);

/// "20130524T000000Z" of nanoseconds since 1970.
std::string SigningDate(std::int64_t wall_nanos);

std::string Sha256Hex(std::span<const std::byte> bytes);
std::string Sha256Hex(std::string_view text);

}  // namespace cairn
