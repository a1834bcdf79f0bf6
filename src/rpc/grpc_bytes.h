#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <utility>

#include <cairn/status.h>

#include "rpc/message.h"

// What the two .cc files that speak gRPC share; not for others.
namespace cairn::rpc {

inline constexpr char kMethod[] = "/cairn.Bytes/Stream";
inline constexpr char kTokenHeader[] = "cairn-token";
/// What a server takes at most in one message; it tells each client when the stream begins.
inline constexpr char kLimitHeader[] = "cairn-max-message";

// Frames and windows that hold a whole batch: gRPC's own are made for many streams on slow lines,
// and cut an answer of a megabyte into 64 frames that wait for each other.
inline constexpr int kFrameBytes = 4 << 20;
inline constexpr int kWindowBytes = 16 << 20;

inline grpc::ByteBuffer ToBuffer(Message message) {
  const std::size_t size = message.size();
  std::byte* data = message.release();
  grpc::Slice slice(data, size, [](void* owned) { delete[] static_cast<std::byte*>(owned); }, data);
  return {&slice, 1};
}

/// ResourceExhausted never comes from here: memory for a message was there when it came.
inline Result<Received> ToReceived(const grpc::ByteBuffer& buffer) {
  auto slice = std::make_shared<grpc::Slice>();
  if (!buffer.TrySingleSlice(slice.get()).ok() && !buffer.DumpToSingleSlice(slice.get()).ok()) {
    return InternalError("a message without content");
  }
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(slice->begin()),
                                         slice->size());
  return Received(bytes, std::move(slice));
}

inline Status FromGrpc(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return UnavailableError("the other side closed the stream");
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return PermissionDeniedError(status.error_message());
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return ResourceExhaustedError(status.error_message());
    case grpc::StatusCode::CANCELLED:
      return CancelledError(status.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return DeadlineExceededError(status.error_message());
    case grpc::StatusCode::UNIMPLEMENTED:
      return UnimplementedError("the other side is not a server of Cairn: " +
                                status.error_message());
    default:
      return UnavailableError(status.error_message());
  }
}

}  // namespace cairn::rpc
