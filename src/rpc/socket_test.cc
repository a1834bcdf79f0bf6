#include <sys/socket.h>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rpc/addresses.h"
#include "rpc/client_stream.h"
#include "rpc/frame_socket.h"
#include "rpc/socket_frames.h"
#include "rpc/stream_server.h"

// What only plain connections do; what all streams do is in stream_test.cc.

namespace cairn::rpc {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Message MessageOf(std::string_view text) {
  Message message(text.size());
  if (!text.empty()) std::memcpy(message.bytes().data(), text.data(), text.size());
  return message;
}

std::string TextOf(const Received& received) {
  return {reinterpret_cast<const char*>(received.bytes().data()), received.bytes().size()};
}

TEST(SocketFrames, AreTheBytesThatTheirPageShows) {
  const auto head = Encode(FrameHead{FrameKind::kMessage, 88});
  EXPECT_EQ(std::memcmp(head.data(), "\x01\0\0\0\x58\0\0\0", 8), 0);
  EXPECT_EQ(Encode(ClientGreeting{6}), std::string("CAIRNRPC\x01\0\0\0\x06\0\0\0", 16));
  EXPECT_EQ(EncodeAnswer(Verdict::kWrongToken), std::string("CAIRNRPS\x01\0\0\0\x01\0\0\0", 16));
  EXPECT_EQ(EncodeEnd(ResourceExhaustedError("why")), std::string("\x09\0\0\0why", 7));
}

TEST(SocketFrames, OthersAreRefused) {
  EXPECT_EQ(DecodeFrameHead(BytesOf(std::string("\x03\0\0\0\x58\0\0\0", 8))).status().code(),
            Code::kCorruption);
  EXPECT_EQ(DecodeFrameHead(BytesOf("1234567")).status().code(), Code::kCorruption);
  EXPECT_EQ(DecodeClientGreeting(BytesOf("GET / HTTP/1.1\r\n")).status().code(), Code::kCorruption);
  EXPECT_EQ(DecodeClientGreeting(BytesOf(std::string("CAIRNRPC\x02\0\0\0\x06\0\0\0", 16)))
                .status()
                .code(),
            Code::kUnimplemented);
  EXPECT_EQ(DecodeClientGreeting(BytesOf(std::string("CAIRNRPC\x01\0\0\0\0\0\0\x01", 16)))
                .status()
                .code(),
            Code::kCorruption);
  EXPECT_EQ(DecodeAnswer(BytesOf(EncodeAnswer(Verdict::kWelcome))).code(), Code::kOk);
  EXPECT_EQ(DecodeAnswer(BytesOf(EncodeAnswer(Verdict::kWrongToken))).code(),
            Code::kPermissionDenied);
  EXPECT_EQ(DecodeAnswer(BytesOf(EncodeAnswer(Verdict::kOtherVersion))).code(),
            Code::kUnimplemented);
  EXPECT_EQ(DecodeAnswer(BytesOf(std::string("CAIRNRPS\x01\0\0\0\x07\0\0\0", 16))).code(),
            Code::kCorruption);
  // A socket that is connected to itself hears itself.
  EXPECT_EQ(DecodeAnswer(BytesOf(Encode(ClientGreeting{0}))).code(), Code::kUnavailable);
  EXPECT_EQ(DecodeEnd(BytesOf("")).code(), Code::kCorruption);
  EXPECT_EQ(DecodeEnd(BytesOf(std::string("\0\0\0\0ok", 6))).code(), Code::kCorruption);
  EXPECT_EQ(DecodeEnd(BytesOf(std::string("\xff\0\0\0", 4))).code(), Code::kCorruption);
}

TEST(Addresses, AreFoundInBothForms) {
  const auto four = ResolveAddress("127.0.0.1:5000", false);
  ASSERT_TRUE(four.ok()) << four.status().ToString();
  EXPECT_EQ(Describe(four->at(0)), "ipv4:127.0.0.1:5000");
  const auto six = ResolveAddress("[::1]:5000", false);
  ASSERT_TRUE(six.ok()) << six.status().ToString();
  EXPECT_EQ(Describe(six->at(0)), "ipv6:[::1]:5000");
  for (const char* wrong :
       {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:5000x"}) {
    EXPECT_EQ(ResolveAddress(wrong, false).status().code(), Code::kInvalidArgument) << wrong;
  }
  EXPECT_TRUE(ResolveAddress(":0", true).ok());
  EXPECT_EQ(ResolveAddress("no such host:1", false).status().code(), Code::kUnavailable);
}

TEST(Addresses, AConnectionWithinTheMachineIsNotPaced) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  TuneConnection(fd);
  char control[16] = {};
  socklen_t length = sizeof control;
  ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, control, &length), 0);
  EXPECT_STREQ(control, "reno");
  close(fd);
  close(listener);
}

/// Two ends of one connection.
class Pair : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    left_ = std::make_unique<FrameSocket>(fds[0], "left", 1 << 20, true);
    right_ = fds[1];
  }
  void TearDown() override { close(right_); }
  void Write(std::string_view bytes) const {
    ASSERT_EQ(write(right_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  std::unique_ptr<FrameSocket> left_;
  int right_ = -1;
};

TEST_F(Pair, MessagesArriveByteByByteOrSeveralAtOnce) {
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    const std::string text(static_cast<std::size_t>(i * 37), static_cast<char>('a' + i % 26));
    const auto head =
        Encode(FrameHead{FrameKind::kMessage, static_cast<std::uint32_t>(text.size())});
    bytes.append(reinterpret_cast<const char*>(head.data()), head.size());
    bytes += text;
  }
  const auto expect_all = [&] {
    for (int i = 0; i < 50; ++i) {
      const auto received = left_->Receive();
      ASSERT_TRUE(received.ok()) << received.status().ToString();
      EXPECT_EQ(TextOf(*received),
                std::string(static_cast<std::size_t>(i * 37), static_cast<char>('a' + i % 26)));
    }
  };
  Write(bytes);
  expect_all();
  std::jthread drip([&] {
    for (const char byte : bytes) Write({&byte, 1});
  });
  expect_all();
}

TEST_F(Pair, AMessageOverTheLimitTakesNoMemoryAndIsNamed) {
  const auto head = Encode(FrameHead{FrameKind::kMessage, 0xffffffff});
  Write({reinterpret_cast<const char*>(head.data()), head.size()});
  const Status refused = left_->Receive().status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("4294967295"), std::string_view::npos) << refused.ToString();
}

TEST_F(Pair, ADeadlineEndsBothWaits) {
  left_->set_deadline(std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  EXPECT_EQ(left_->Receive().status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(left_->Send(MessageOf(std::string(8 << 20, 'x'))).code(), Code::kDeadlineExceeded);
}

TEST_F(Pair, CancelEndsASendThatWaitsForRoom) {
  std::jthread cancel([&] { left_->Cancel(); });
  Status sent;
  while (sent.ok()) sent = left_->Send(MessageOf(std::string(1 << 20, 'x')));
  EXPECT_EQ(sent.code(), Code::kCancelled);
}

TEST_F(Pair, WhatTheOtherSideSaidLastIsHeardAfterItLeft) {
  const std::string end = EncodeEnd(ResourceExhaustedError("too long"));
  const auto head = Encode(FrameHead{FrameKind::kEnd, static_cast<std::uint32_t>(end.size())});
  Write({reinterpret_cast<const char*>(head.data()), head.size()});
  Write(end);
  shutdown(right_, SHUT_WR);
  Status sent;
  while (sent.ok()) sent = left_->Send(MessageOf(std::string(1 << 20, 'x')));
  EXPECT_EQ(left_->Receive().status().code(), Code::kResourceExhausted);
  EXPECT_EQ(left_->Receive().status().code(), Code::kUnavailable);
}

/// A client of no library: bytes in, bytes out.
class RawConnection {
 public:
  explicit RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawConnection() { close(fd_); }
  bool connected() const { return connected_; }
  void Write(std::string_view bytes) const {
    (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// All that comes until the other side closes.
  std::string ReadAll() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      all.append(buffer, static_cast<std::size_t>(n));
    }
    return all;
  }

 private:
  int fd_;
  bool connected_ = false;
};

class SharedPort : public testing::Test {
 protected:
  void Start(const std::string& token = "", const std::string& listen = "127.0.0.1:0") {
    StreamServerOptions options;
    options.listen = listen;
    options.security.token = token;
    options.plain_connections = true;
    options.max_message_bytes = 1 << 16;
    auto server = StreamServer::Start(options, [](ServerStream* stream) {
      for (;;) {
        const auto received = stream->Receive();
        if (!received.ok() || !stream->Send(MessageOf(TextOf(*received))).ok()) return;
      }
    });
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }
  void ExpectEcho(Transport transport, const std::string& host = "127.0.0.1") {
    ConnectOptions to;
    to.address = host + ":" + std::to_string(server_->port());
    to.transport = transport;
    auto stream = ClientStream::Open(to);
    ASSERT_TRUE(stream.ok()) << stream.status().ToString();
    ASSERT_TRUE((*stream)->Send(MessageOf("hello")).ok());
    const auto back = (*stream)->Receive();
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(TextOf(*back), "hello");
  }
  std::unique_ptr<StreamServer> server_;
};

TEST_F(SharedPort, TakesBothTransports) {
  Start();
  ExpectEcho(Transport::kSocket);
  ExpectEcho(Transport::kGrpc);
  ExpectEcho(Transport::kSocket);
}

TEST_F(SharedPort, AnyAddressIsThatOfBothProtocols) {
  Start("", "0.0.0.0:0");
  ExpectEcho(Transport::kSocket);
  ExpectEcho(Transport::kGrpc);
  ExpectEcho(Transport::kSocket, "localhost");
}

TEST_F(SharedPort, StrangersAreTurnedAwayAndTheServerLives) {
  Start();
  const auto head = [](std::uint32_t kind, std::uint32_t bytes) {
    std::string out(8, '\0');
    std::memcpy(out.data(), &kind, 4);
    std::memcpy(out.data() + 4, &bytes, 4);
    return out;
  };
  const std::string hello = Encode(ClientGreeting{0});
  for (const std::string& bytes :
       {std::string("CONNECT / HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("CAIRNRPC\x01\0\0\0\xff\xff\xff\xff", 16),
        std::string("CAIRNRPC\x09\0\0\0\0\0\0\0", 16), hello + head(7, 4) + "abcd",
        hello + head(1, 1 << 20) + std::string(100'000, 'x'), hello + head(2, 1) + "x",
        hello + std::string(1000, '\xff')}) {
    const RawConnection stranger(server_->port());
    ASSERT_TRUE(stranger.connected());
    stranger.Write(bytes);
    (void)stranger.ReadAll();  // ends: it is closed, and not by us
    ExpectEcho(Transport::kSocket);
  }
  const RawConnection silent(server_->port());
  const RawConnection half(server_->port());
  half.Write("CAIR");
  ExpectEcho(Transport::kSocket);
  server_->Stop();  // does not wait for them
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_EQ(half.ReadAll(), "");
}

TEST_F(SharedPort, WhoIsRefusedIsToldWhy) {
  Start("secret");
  const RawConnection stranger(server_->port());
  stranger.Write(Encode(ClientGreeting{5}) + "Secre");
  EXPECT_EQ(stranger.ReadAll(), EncodeAnswer(Verdict::kWrongToken));
  const RawConnection other(server_->port());
  other.Write(std::string("CAIRNRPC\x09\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(other.ReadAll(), EncodeAnswer(Verdict::kOtherVersion));
  const RawConnection loud(server_->port());
  const auto head = Encode(FrameHead{FrameKind::kMessage, 1 << 20});
  loud.Write(Encode(ClientGreeting{6}) + "secret");
  loud.Write({reinterpret_cast<const char*>(head.data()), head.size()});
  loud.Write(std::string(1 << 20, 'x'));
  const std::string told = loud.ReadAll();
  EXPECT_TRUE(told.starts_with(EncodeAnswer(Verdict::kWelcome)));
  EXPECT_NE(told.find("1048576"), std::string::npos);
}

}  // namespace
}  // namespace cairn::rpc
