#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rpc/client_stream.h"
#include "rpc/health_probe.h"
#include "rpc/stream_server.h"
#include "rpc/token.h"

namespace cairn::rpc {
namespace {

Message MessageOf(std::string_view text) {
  Message message(text.size());
  if (!text.empty()) std::memcpy(message.bytes().data(), text.data(), text.size());
  return message;
}

std::string TextOf(const Received& received) {
  return {reinterpret_cast<const char*>(received.bytes().data()), received.bytes().size()};
}

void Echo(ServerStream* stream) {
  for (;;) {
    auto received = stream->Receive();
    if (!received.ok()) return;
    if (!stream->Send(MessageOf(TextOf(*received))).ok()) return;
  }
}

/// What every transport does.
class Streams : public testing::TestWithParam<Transport> {
 protected:
  void Start(StreamServerOptions options = {}, StreamServer::Handler handler = Echo) {
    options.plain_connections = GetParam() == Transport::kSocket;
    auto server = StreamServer::Start(options, std::move(handler));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
  }
  ConnectOptions To() const {
    ConnectOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.transport = GetParam();
    return options;
  }
  std::unique_ptr<StreamServer> server_;
};
INSTANTIATE_TEST_SUITE_P(Transports, Streams, testing::Values(Transport::kGrpc, Transport::kSocket),
                         [](const auto& info) {
                           return info.param == Transport::kGrpc ? "Grpc" : "Socket";
                         });

TEST_P(Streams, CarryMessagesOfAnySizeInOrder) {
  Start();
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok()) << stream.status().ToString();
  for (const std::size_t size : {1UL, 24UL, 4096UL, 1UL << 20, 20UL << 20}) {
    const std::string text(size, static_cast<char>('a' + size % 7));
    ASSERT_TRUE((*stream)->Send(MessageOf(text)).ok());
    auto back = (*stream)->Receive();
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_TRUE(TextOf(*back) == text) << size;
  }
}

TEST_P(Streams, SeveralRequestsMayBeUnderWay) {
  Start();
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*stream)->Send(MessageOf(std::to_string(i))).ok());
  for (int i = 0; i < 100; ++i) {
    auto back = (*stream)->Receive();
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(TextOf(*back), std::to_string(i));
  }
}

TEST_P(Streams, AWrongTokenIsTurnedAwayAndTheServerLives) {
  StreamServerOptions options;
  options.security.token = "secret";
  Start(options);
  for (const char* token : {"", "secret2", "Secret", "s"}) {
    ConnectOptions to = To();
    to.security.token = token;
    auto stream = ClientStream::Open(to);
    Status refused = stream.status();
    if (stream.ok()) {
      (void)(*stream)->Send(MessageOf("x"));
      refused = (*stream)->Receive().status();
    }
    EXPECT_EQ(refused.code(), Code::kPermissionDenied) << token;
  }
  ConnectOptions to = To();
  to.security.token = "secret";
  auto stream = ClientStream::Open(to);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->Send(MessageOf("x")).ok());
  EXPECT_TRUE((*stream)->Receive().ok());
}

TEST_P(Streams, AMessageOverTheLimitEndsItsStreamOnly) {
  StreamServerOptions options;
  options.max_message_bytes = 1 << 16;
  Start(options);
  auto other = ClientStream::Open(To());
  ASSERT_TRUE(other.ok());
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  (void)(*stream)->Send(MessageOf(std::string(1 << 20, 'x')));
  EXPECT_EQ((*stream)->Receive().status().code(), Code::kResourceExhausted);
  ASSERT_TRUE((*other)->Send(MessageOf("still here")).ok());
  EXPECT_TRUE((*other)->Receive().ok());
}

TEST_P(Streams, CancelEndsAWait) {
  Start({}, [](ServerStream* stream) {
    (void)stream->Receive();
    (void)stream->Receive();
  });
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->Send(MessageOf("x")).ok());
  std::jthread cancel([&] { (*stream)->Cancel(); });
  EXPECT_FALSE((*stream)->Receive().ok());
}

TEST_P(Streams, EndWithTheirLifetime) {
  Start({}, [](ServerStream* stream) {
    while (stream->Receive().ok()) {
    }
  });
  ConnectOptions to = To();
  to.lifetime = std::chrono::seconds(2);
  auto stream = ClientStream::Open(to);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->Send(MessageOf("x")).ok());
  EXPECT_EQ((*stream)->Receive().status().code(), Code::kDeadlineExceeded);
}

TEST_P(Streams, TheHealthServiceSaysWhatItWasTold) {
  Start();
  EXPECT_EQ(HealthAt(server_->port()), Health::kServing);
  server_->SetServing(false);
  EXPECT_EQ(HealthAt(server_->port()), Health::kNotServing);
  server_->SetServing(true);
  EXPECT_EQ(HealthAt(server_->port()), Health::kServing);
  server_->Stop();
  server_->SetServing(true);  // whoever says it too late does no harm
}

TEST_P(Streams, AServerThatStopsEndsItsStreams) {
  Start();
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->Send(MessageOf("x")).ok());
  ASSERT_TRUE((*stream)->Receive().ok());
  server_->Stop();
  EXPECT_FALSE((*stream)->Receive().ok());
  EXPECT_FALSE((*stream)->Receive().ok());
}

TEST_P(Streams, AnswersMayBeFarLargerThanWhatTheSocketsHoldWhileRequestsAreSent) {
  // Both sides send more than fits between them, and nobody waits for ever.
  Start();
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  const std::string text(12 << 20, 'x');
  for (int i = 0; i < 2; ++i) ASSERT_TRUE((*stream)->Send(MessageOf(text)).ok());
  for (int i = 0; i < 2; ++i) {
    auto back = (*stream)->Receive();
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_TRUE(TextOf(*back) == text);
  }
}

TEST_P(Streams, AMessageStaysAsItIsWhileLaterOnesCome) {
  Start();
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  std::vector<Received> kept;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        (*stream)->Send(MessageOf(std::string(1000 * (i + 1), static_cast<char>('a' + i)))).ok());
    auto back = (*stream)->Receive();
    ASSERT_TRUE(back.ok());
    kept.push_back(*std::move(back));
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(TextOf(kept[static_cast<std::size_t>(i)]) ==
                std::string(1000 * static_cast<std::size_t>(i + 1), static_cast<char>('a' + i)));
  }
}

TEST_P(Streams, OneThreadMaySendWhileAnotherReceives) {
  Start();
  auto stream = ClientStream::Open(To());
  ASSERT_TRUE(stream.ok());
  const std::string text(300'000, 'y');
  std::jthread sender([&] {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE((*stream)->Send(MessageOf(text)).ok());
  });
  for (int i = 0; i < 100; ++i) {
    auto back = (*stream)->Receive();
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_TRUE(TextOf(*back) == text);
  }
}

TEST_P(Streams, NobodyThereIsUnavailable) {
  Start();
  ConnectOptions to = To();
  server_->Stop();
  to.timeout = std::chrono::milliseconds(200);
  EXPECT_EQ(ClientStream::Open(to).status().code(), Code::kUnavailable);
}

TEST_P(Streams, AnAddressInUseIsNamed) {
  Start();
  StreamServerOptions same;
  same.listen = "127.0.0.1:" + std::to_string(server_->port());
  same.plain_connections = GetParam() == Transport::kSocket;
  const auto second = StreamServer::Start(same, Echo);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find(same.listen), std::string_view::npos);
}

TEST_P(Streams, TlsWorksWithACertificateThatTheClientTrusts) {
  // Whoever may use plain connections has gRPC alone with TLS.
  const std::string base = testing::TempDir() + "cairn_rpc_tls";
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
      "/CN=cairn.test -addext subjectAltName=DNS:cairn.test -keyout " +
      base + ".key -out " + base + ".crt 2>/dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  StreamServerOptions options;
  options.security.certificate = base + ".crt";
  options.security.key = base + ".key";
  Start(options);
  ConnectOptions to = To();
  to.transport = Transport::kGrpc;
  to.security.ca = base + ".crt";
  to.security.server_name = "cairn.test";
  auto stream = ClientStream::Open(to);
  ASSERT_TRUE(stream.ok()) << stream.status().ToString();
  ASSERT_TRUE((*stream)->Send(MessageOf("hidden")).ok());
  auto back = (*stream)->Receive();
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(TextOf(*back), "hidden");

  ConnectOptions plain = To();
  plain.timeout = std::chrono::milliseconds(300);
  auto refused = ClientStream::Open(plain);
  if (refused.ok()) {
    (void)(*refused)->Send(MessageOf("x"));
    EXPECT_FALSE((*refused)->Receive().ok());
  }
}

TEST(Token, ComparesEveryByte) {
  EXPECT_TRUE(SameToken("", ""));
  EXPECT_TRUE(SameToken("abc", "abc"));
  EXPECT_FALSE(SameToken("abc", "abd"));
  EXPECT_FALSE(SameToken("abc", "ab"));
  EXPECT_FALSE(SameToken("", "a"));
  EXPECT_FALSE(SameToken("aa", "a"));
}

TEST(Token, OfAFileIsWithoutItsLineEnd) {
  const std::string path = testing::TempDir() + "cairn_token";
  std::ofstream(path) << "secret\n";
  EXPECT_EQ(ReadTokenFile(path).value(), "secret");
  std::ofstream(path) << "\n";
  EXPECT_EQ(ReadTokenFile(path).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::rpc
