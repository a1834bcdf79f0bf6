#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <cairn/status.h>

/// The bytes around messages on a plain TCP connection (docs/format/socket_streams.md). Pure: bytes
/// in, structs out. Anything malformed is Corruption, another version Unimplemented.
namespace cairn::rpc {

/// What the client begins with: tells such a connection from one of HTTP/2 on the same port.
inline constexpr std::string_view kClientMagic = "CAIRNRPC";
/// What the server answers with. Another one: a socket that connects to a port of its own machine
/// where nobody listens may be connected to itself, and must not take its own greeting for an
/// answer.
inline constexpr std::string_view kServerMagic = "CAIRNRPS";
inline constexpr std::uint32_t kSocketVersion = 1;
inline constexpr std::size_t kGreetingBytes = 16;
inline constexpr std::size_t kMaxTokenBytes = 4096;

/// The client's first bytes; the token follows.
struct ClientGreeting {
  std::uint32_t token_bytes = 0;
};
std::string Encode(const ClientGreeting& greeting);
/// Of exactly kGreetingBytes.
Result<ClientGreeting> DecodeClientGreeting(std::span<const std::byte> bytes);

/// The server's answer to it.
enum class Verdict : std::uint32_t {
  kWelcome = 0,
  kWrongToken = 1,
  kOtherVersion = 2,
};
std::string EncodeAnswer(Verdict verdict);
/// OK, or why the server does not want us.
Status DecodeAnswer(std::span<const std::byte> bytes);

enum class FrameKind : std::uint32_t {
  kMessage = 1,
  kEnd = 2,  // the last of its side: an error code u32 and a text, why there is no more
};

inline constexpr std::size_t kFrameHeadBytes = 8;
struct FrameHead {
  FrameKind kind = FrameKind::kMessage;
  std::uint32_t bytes = 0;  // that follow
  friend bool operator==(const FrameHead&, const FrameHead&) = default;
};
std::array<std::byte, kFrameHeadBytes> Encode(const FrameHead& head);
/// Of exactly kFrameHeadBytes.
Result<FrameHead> DecodeFrameHead(std::span<const std::byte> bytes);

std::string EncodeEnd(const Status& why);
/// Never OK.
Status DecodeEnd(std::span<const std::byte> body);

}  // namespace cairn::rpc
