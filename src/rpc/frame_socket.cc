#include "rpc/frame_socket.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "base/status_macros.h"
#include "rpc/socket_frames.h"

namespace cairn::rpc {
namespace {

// A part of a large pull comes into it as it is; larger messages get what they need.
constexpr std::size_t kBufferBytes = 260 << 10;
// A buffer that one huge message needed is not kept for all the small ones that follow.
constexpr std::size_t kKeptBytes = 8 << 20;
constexpr std::chrono::milliseconds kLinger{1000};
// A core that went to sleep takes tens of microseconds to wake, more than a small answer needs. So
// where the last wait was short, the next one looks for as long before it sleeps.
constexpr std::chrono::microseconds kSoon{100};
// A core that did not come back for so long is wanted by somebody who works: who only gave it away
// waits for the end of that one's turn, however early the answer comes, where a sleeper is woken.
// Then this socket does not look for a while.
constexpr std::chrono::microseconds kCrowded{30};
constexpr std::chrono::milliseconds kWhileCrowded{5};

}  // namespace

FrameSocket::FrameSocket(int fd, std::string who, std::uint64_t max_message_bytes,
                         bool takes_while_sending)
    : fd_(fd),
      who_(std::move(who)),
      max_message_bytes_(
          std::min<std::uint64_t>(max_message_bytes, std::numeric_limits<std::uint32_t>::max())),
      takes_while_sending_(takes_while_sending) {}

FrameSocket::~FrameSocket() { close(fd_); }

void FrameSocket::Cancel() {
  cancelled_ = true;
  shutdown(fd_, SHUT_RDWR);  // wakes whoever waits
}

Status FrameSocket::Gone() const {
  if (cancelled_) return CancelledError(who_ + ": cancelled");
  return UnavailableError(who_ + ": the other side closed the connection");
}

Status FrameSocket::Failed(const char* what, int error) const {
  if (cancelled_ || error == EPIPE || error == ECONNRESET) return Gone();
  return UnavailableError(who_ + ": " + what + ": " + std::strerror(error));
}

Result<short> FrameSocket::Await(short events) const {
  for (;;) {
    int wait = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          *deadline_ - std::chrono::steady_clock::now());
      if (left.count() <= 0) return DeadlineExceededError(who_ + ": no answer in time");
      wait = static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000));
    }
    pollfd ready{fd_, events, 0};
    const int n = poll(&ready, 1, wait);
    if (n > 0) return ready.revents;
    if (n < 0 && errno != EINTR) return Failed("poll", errno);
  }
}

// ---------------------------------------------------------------- sending

Status FrameSocket::AwaitRoom() {
  if (!takes_while_sending_) return Await(POLLOUT).status();
  for (;;) {
    // Another thread that receives takes what comes: then room is all there is to wait for.
    const bool own = receiving_.try_lock();
    if (!own) return Await(POLLOUT).status();
    const auto ready = Await(POLLOUT | POLLIN);
    Status taken;
    if (ready.ok() && (*ready & POLLIN) != 0) taken = TakeSome();
    receiving_.unlock();
    if (!ready.ok()) return ready.status();
    RETURN_IF_ERROR(taken);
    if ((*ready & ~POLLIN) != 0) return Status::Ok();  // also an error: the next send tells it
  }
}

Status FrameSocket::SendAll(std::span<const std::byte> head, std::span<const std::byte> body) {
  // sendmsg does not write through them.
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(head.data()), head.size()},
                              {const_cast<std::byte*>(body.data()), body.size()}}};
  const int flags = MSG_NOSIGNAL | (takes_while_sending_ || deadline_ ? MSG_DONTWAIT : 0);
  std::size_t first = 0;
  for (;;) {
    while (first < parts.size() && parts[first].iov_len == 0) ++first;
    if (first == parts.size()) return Status::Ok();
    msghdr message{};
    message.msg_iov = &parts[first];
    message.msg_iovlen = parts.size() - first;
    const ssize_t n = sendmsg(fd_, &message, flags);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Failed("send", errno);
      RETURN_IF_ERROR(AwaitRoom());
      continue;
    }
    auto sent = static_cast<std::size_t>(n);
    for (std::size_t i = first; i < parts.size(); ++i) {
      const std::size_t here = std::min(sent, parts[i].iov_len);
      parts[i].iov_base = static_cast<std::byte*>(parts[i].iov_base) + here;
      parts[i].iov_len -= here;
      sent -= here;
    }
  }
}

Status FrameSocket::Send(const Message& message) {
  if (message.size() > std::numeric_limits<std::uint32_t>::max()) {
    return ResourceExhaustedError(who_ + ": a message of " + std::to_string(message.size()) +
                                  " bytes is longer than a frame can be");
  }
  return SendAll(Encode(FrameHead{FrameKind::kMessage, static_cast<std::uint32_t>(message.size())}),
                 message.bytes());
}

Status FrameSocket::SendBytes(std::string_view bytes) {
  return SendAll(std::as_bytes(std::span(bytes.data(), bytes.size())), {});
}

void FrameSocket::SendEnd(const Status& why) {
  const std::string body = EncodeEnd(why);
  SendAll(Encode(FrameHead{FrameKind::kEnd, static_cast<std::uint32_t>(body.size())}),
          std::as_bytes(std::span(body.data(), body.size())))
      .IgnoreError("the connection ends anyway");
}

void FrameSocket::Linger() {
  shutdown(fd_, SHUT_WR);
  const MutexLock lock(&receiving_);
  deadline_ = std::chrono::steady_clock::now() + kLinger;
  std::array<std::byte, 16384> dropped;
  for (;;) {
    const auto ready = Await(POLLIN);
    if (!ready.ok()) return;
    const ssize_t n = recv(fd_, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return;
  }
}

// ---------------------------------------------------------------- receiving

Status FrameSocket::MakeRoom(std::size_t count) {
  const bool shared = buffer_ != nullptr && buffer_.use_count() > 1;
  // The count alone orders nothing: giving back a reference of our own does, after what the last of
  // the others has read.
  if (!shared) (void)std::shared_ptr<Buffer>(buffer_);
  const std::size_t unread = end_ - begin_;
  if (buffer_ != nullptr && !shared) {
    const bool huge = buffer_->size > kKeptBytes && count + unread <= kBufferBytes;
    if (unread == 0) begin_ = end_ = 0;
    if (!huge && buffer_->size - begin_ >= count && end_ < buffer_->size) return Status::Ok();
    if (!huge && buffer_->size >= count && unread < buffer_->size) {
      std::memmove(buffer_->bytes.get(), buffer_->bytes.get() + begin_, unread);
      begin_ = 0;
      end_ = unread;
      return Status::Ok();
    }
  }
  std::shared_ptr<Buffer> fresh;
  try {
    fresh = std::make_shared<Buffer>(std::max({count, unread + kFrameHeadBytes, kBufferBytes}));
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError(who_ + ": no memory for a message of " + std::to_string(count) +
                                  " bytes");
  }
  if (unread > 0) std::memcpy(fresh->bytes.get(), buffer_->bytes.get() + begin_, unread);
  buffer_ = std::move(fresh);
  begin_ = 0;
  end_ = unread;
  return Status::Ok();
}

Status FrameSocket::TakeSome() {
  // More than what is there: it grows with the answers that are under way, no further.
  RETURN_IF_ERROR(MakeRoom(end_ - begin_ + kBufferBytes / 4));
  const ssize_t n = recv(fd_, buffer_->bytes.get() + end_, buffer_->size - end_, MSG_DONTWAIT);
  if (n == 0) return Gone();
  if (n < 0) return errno == EINTR || errno == EAGAIN ? Status::Ok() : Failed("receive", errno);
  end_ += static_cast<std::size_t>(n);
  return Status::Ok();
}

Status FrameSocket::Fill(std::size_t count) {
  if (end_ - begin_ >= count) return Status::Ok();
  RETURN_IF_ERROR(MakeRoom(count));
  while (end_ - begin_ < count) RETURN_IF_ERROR(TakeNext());
  return Status::Ok();
}

Status FrameSocket::TakeNext() {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> since;  // of the wait
  for (;;) {
    const Clock::time_point now = Clock::now();
    const bool looking = !since || (lively_ && now < *since + kSoon && now >= crowded_until_);
    if (!looking && deadline_) RETURN_IF_ERROR(Await(POLLIN).status());
    const ssize_t n =
        recv(fd_, buffer_->bytes.get() + end_, buffer_->size - end_, looking ? MSG_DONTWAIT : 0);
    if (n > 0) {
      end_ += static_cast<std::size_t>(n);
      if (since) lively_ = Clock::now() < *since + 2 * kSoon;
      return Status::Ok();
    }
    if (n == 0) return Gone();
    if (errno != EINTR && errno != EAGAIN) return Failed("receive", errno);
    if (!since) {
      since = now;
    } else if (looking) {
      sched_yield();  // the other side may want this very core
      if (const auto back = Clock::now(); back > now + kCrowded) {
        crowded_until_ = back + kWhileCrowded;
      }
    }
  }
}

Received FrameSocket::Take(std::size_t count) {
  const std::span<const std::byte> bytes(buffer_->bytes.get() + begin_, count);
  begin_ += count;
  return {bytes, buffer_};
}

Result<Received> FrameSocket::ReceiveBytes(std::size_t count) {
  const MutexLock lock(&receiving_);
  RETURN_IF_ERROR(Fill(count));
  return Take(count);
}

Result<Received> FrameSocket::Receive() {
  const MutexLock lock(&receiving_);
  RETURN_IF_ERROR(Fill(kFrameHeadBytes));
  ASSIGN_OR_RETURN(const FrameHead head,
                   DecodeFrameHead({buffer_->bytes.get() + begin_, kFrameHeadBytes}));
  // Before memory is taken for it.
  if (head.bytes > max_message_bytes_) {
    return ResourceExhaustedError(who_ + ": a message of " + std::to_string(head.bytes) +
                                  " bytes came, and at most " + std::to_string(max_message_bytes_) +
                                  " are taken");
  }
  RETURN_IF_ERROR(Fill(kFrameHeadBytes + head.bytes));
  begin_ += kFrameHeadBytes;
  Received received = Take(head.bytes);
  if (head.kind == FrameKind::kMessage) return received;
  return DecodeEnd(received.bytes()).WithContext(who_);
}

}  // namespace cairn::rpc
