#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "rpc/message.h"

namespace cairn::rpc {

/// Either side's end of a plain TCP connection, and the messages on it (socket_frames.h). Blocking:
/// between the socket and the caller no other thread runs, and a small message costs one system
/// call to send and one to receive when it is there. Who was answered soon looks for the next
/// answer for a moment before it sleeps. One thread sends, one (the same or another) receives;
/// Cancel comes from any. After an error the connection is useless.
class FrameSocket {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Takes over the descriptor, which is blocking. `who` stands in error messages.
  /// `takes_while_sending`: while a send waits for room, what comes is taken in meanwhile, so that
  /// two sides that send at the same time do not wait for each other for ever. For the side that
  /// has several requests under way.
  FrameSocket(int fd, std::string who, std::uint64_t max_message_bytes, bool takes_while_sending);
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;

  /// Later, Send and Receive are DeadlineExceeded; nothing: they wait for ever. Not beside them.
  void set_deadline(std::optional<Time> deadline) { deadline_ = deadline; }
  const std::string& who() const { return who_; }

  /// Unavailable: the other side is gone. Cancelled. ResourceExhausted: longer than a frame can be.
  Status Send(const Message& message) EXCLUDES(receiving_);
  /// The next message. As Send; ResourceExhausted also when the other side says that a message was
  /// over its limit, or one that came is over ours. Corruption: no frame.
  Result<Received> Receive() EXCLUDES(receiving_);
  /// So many bytes that are no frame, as greetings are.
  Status SendBytes(std::string_view bytes) EXCLUDES(receiving_);
  Result<Received> ReceiveBytes(std::size_t count) EXCLUDES(receiving_);

  /// Tells the other side why there is no more, as well as that goes.
  void SendEnd(const Status& why) EXCLUDES(receiving_);
  /// Waits a little until the other side has closed too: what was sent last would be lost if this
  /// end closed while bytes are on their way to it.
  void Linger() EXCLUDES(receiving_);

  /// Ends what Send and Receive are waiting for, now and later.
  void Cancel();

 private:
  struct Buffer {
    explicit Buffer(std::size_t size) : bytes(new std::byte[size]), size(size) {}
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size;
  };

  Status SendAll(std::span<const std::byte> head, std::span<const std::byte> body)
      EXCLUDES(receiving_);
  /// Until the socket takes more.
  Status AwaitRoom() EXCLUDES(receiving_);
  /// Until bytes [begin_, begin_ + count) are there.
  Status Fill(std::size_t count) REQUIRES(receiving_);
  /// Room behind end_ for at least one byte, and for `count` from begin_ on.
  Status MakeRoom(std::size_t count) REQUIRES(receiving_);
  /// Takes at least a byte.
  Status TakeNext() REQUIRES(receiving_);
  /// Takes what has come, without waiting.
  Status TakeSome() REQUIRES(receiving_);
  Received Take(std::size_t count) REQUIRES(receiving_);
  /// Poll's events, or an error when the deadline has passed.
  Result<short> Await(short events) const;
  Status Failed(const char* what, int error) const;
  Status Gone() const;

  const int fd_;
  const std::string who_;
  const std::uint64_t max_message_bytes_;
  const bool takes_while_sending_;
  std::optional<Time> deadline_;
  std::atomic<bool> cancelled_{false};

  Mutex receiving_;
  // Shared with the messages that were handed out of it: only without them it is used again.
  std::shared_ptr<Buffer> buffer_ GUARDED_BY(receiving_);
  std::size_t begin_ GUARDED_BY(receiving_) = 0;  // of what nobody took yet …
  std::size_t end_ GUARDED_BY(receiving_) = 0;    // … and its end
  bool lively_ GUARDED_BY(receiving_) = false;    // what was waited for last came soon
  Time crowded_until_ GUARDED_BY(receiving_);     // others want the core
};

}  // namespace cairn::rpc
