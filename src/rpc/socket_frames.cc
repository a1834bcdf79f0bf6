#include "rpc/socket_frames.h"

#include <bit>
#include <cstring>

namespace cairn::rpc {
namespace {

static_assert(std::endian::native == std::endian::little);

std::uint32_t NumberAt(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void Append(std::uint32_t number, std::string* out) {
  out->append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Magic, version, and a number: what both greetings are.
std::string Greeting(std::string_view magic, std::uint32_t number) {
  std::string out(magic);
  Append(kSocketVersion, &out);
  Append(number, &out);
  return out;
}

bool BeginsWith(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() == kGreetingBytes &&
         std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Status OtherVersion(std::uint32_t version) {
  return UnimplementedError("the other side speaks version " + std::to_string(version) +
                            " of plain connections, this one " + std::to_string(kSocketVersion));
}

}  // namespace

std::string Encode(const ClientGreeting& greeting) {
  return Greeting(kClientMagic, greeting.token_bytes);
}

Result<ClientGreeting> DecodeClientGreeting(std::span<const std::byte> bytes) {
  if (!BeginsWith(bytes, kClientMagic)) {
    return CorruptionError("a connection that does not begin as one of Cairn");
  }
  if (NumberAt(bytes, 8) != kSocketVersion) return OtherVersion(NumberAt(bytes, 8));
  const ClientGreeting greeting{.token_bytes = NumberAt(bytes, 12)};
  if (greeting.token_bytes > kMaxTokenBytes) return CorruptionError("a token that is too long");
  return greeting;
}

std::string EncodeAnswer(Verdict verdict) {
  return Greeting(kServerMagic, static_cast<std::uint32_t>(verdict));
}

Status DecodeAnswer(std::span<const std::byte> bytes) {
  if (!BeginsWith(bytes, kServerMagic)) {
    // Not for good: the place of a server that moved may be anybody's by now.
    return UnavailableError(
        "the other side is no server of Cairn, or one that wants TLS (a CA's file)");
  }
  const std::uint32_t verdict = NumberAt(bytes, 12);
  if (verdict == static_cast<std::uint32_t>(Verdict::kWelcome)) {
    return NumberAt(bytes, 8) == kSocketVersion ? Status::Ok() : OtherVersion(NumberAt(bytes, 8));
  }
  if (verdict == static_cast<std::uint32_t>(Verdict::kWrongToken)) {
    return PermissionDeniedError("the token is missing or wrong");
  }
  if (verdict == static_cast<std::uint32_t>(Verdict::kOtherVersion)) {
    return OtherVersion(NumberAt(bytes, 8));
  }
  return CorruptionError("an unknown answer to a greeting");
}

std::array<std::byte, kFrameHeadBytes> Encode(const FrameHead& head) {
  std::array<std::byte, kFrameHeadBytes> out;
  std::memcpy(out.data(), &head.kind, 4);
  std::memcpy(out.data() + 4, &head.bytes, 4);
  return out;
}

Result<FrameHead> DecodeFrameHead(std::span<const std::byte> bytes) {
  if (bytes.size() != kFrameHeadBytes) return CorruptionError("a frame without its head");
  const std::uint32_t kind = NumberAt(bytes, 0);
  if (kind != static_cast<std::uint32_t>(FrameKind::kMessage) &&
      kind != static_cast<std::uint32_t>(FrameKind::kEnd)) {
    return CorruptionError("a frame of unknown kind " + std::to_string(kind));
  }
  return FrameHead{.kind = static_cast<FrameKind>(kind), .bytes = NumberAt(bytes, 4)};
}

std::string EncodeEnd(const Status& why) {
  std::string out;
  Append(static_cast<std::uint32_t>(why.code()), &out);
  out.append(why.message());
  return out;
}

Status DecodeEnd(std::span<const std::byte> body) {
  if (body.size() < 4) return CorruptionError("an end without a reason");
  const std::uint32_t code = NumberAt(body, 0);
  if (code == 0 || code > static_cast<std::uint32_t>(Code::kInternal)) {
    return CorruptionError("an end with an unknown code");
  }
  const std::span<const std::byte> text = body.subspan(4);
  return {static_cast<Code>(code),
          std::string(reinterpret_cast<const char*>(text.data()), text.size())};
}

}  // namespace cairn::rpc
