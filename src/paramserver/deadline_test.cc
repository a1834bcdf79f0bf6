#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/ps.h>

#include "base/thread_annotations.h"
#include "paramserver/payload.h"
#include "rpc/stream_server.h"

// Servers that take a request and stand still. A client cuts such an answer off, and asks again.

namespace cairn::ps {
namespace {

constexpr std::uint64_t kGeneration = 7;

/// A server that greets, and answers a request of that kind only when it comes again over another
/// connection.
class StandingServer {
 public:
  explicit StandingServer(Kind silent) : silent_(silent) {
    rpc::StreamServerOptions listen;
    listen.listen = "127.0.0.1:0";
    listen.plain_connections = true;
    streams_ = rpc::StreamServer::Start(listen, [this](rpc::ServerStream* stream) {
                 Serve(stream);
               }).value();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(streams_->port()); }
  /// Of the requests of that kind, in the order in which they came.
  std::vector<std::uint64_t> sequences() {
    MutexLock lock(&mu_);
    return sequences_;
  }

 private:
  void Serve(rpc::ServerStream* stream) {
    for (;;) {
      auto received = stream->Receive();
      if (!received.ok()) return;
      const auto request = DecodeRequest(received->bytes());
      if (!request.ok()) return;
      std::string body;
      if (request->head.kind == silent_) {
        MutexLock lock(&mu_);
        sequences_.push_back(request->head.sequence);
        if (sequences_.size() == 1) continue;  // waits for what comes next: the end of the stream
      }
      if (request->head.kind == Kind::kHello) {
        body = Encode(HelloReply{.max_message_bytes = 1 << 20});
      } else if (request->head.kind == Kind::kDeclareTable) {
        body = EncodeNumber(0);
      } else if (request->head.kind == Kind::kPull) {
        body = std::string(request->body.size() / sizeof(std::int64_t) * sizeof(float), '\0');
      }
      const ReplyHead head{.kind = request->head.kind,
                           .generation = kGeneration,
                           .sequence = request->head.sequence};
      if (!stream->Send(NewReply(head, body)).ok()) return;
    }
  }

  const Kind silent_;
  Mutex mu_;
  std::vector<std::uint64_t> sequences_ GUARDED_BY(mu_);
  std::unique_ptr<rpc::StreamServer> streams_;
};

/// The timeout is short enough to be waited for, and the server answers everything else at once.
std::unique_ptr<Client> ConnectTo(const StandingServer& server, Transport transport) {
  ClientOptions options;
  options.servers = {server.address()};
  options.transport = transport;
  options.request_timeout = std::chrono::milliseconds(300);
  return Client::Connect(options).value();
}

TEST(Deadline, APullThatIsNotAnsweredIsAskedForAgain) {
  for (const Transport transport : {Transport::kSocket, Transport::kGrpc}) {
    StandingServer server(Kind::kPull);
    auto client = ConnectTo(server, transport);
    RemoteTable* const table = client->Table({.name = "t", .dim = 1}).value();
    const std::vector<std::int64_t> ids{1, 2, 3};
    std::vector<float> rows(3, 9);
    const Status looked = table->Lookup(ids, rows);
    EXPECT_TRUE(looked.ok()) << looked.ToString();
    EXPECT_EQ(rows, std::vector<float>(3, 0));
    EXPECT_GE(server.sequences().size(), 2u);
    EXPECT_EQ(client->rollbacks(), 0u);
  }
}

TEST(Deadline, APushThatIsNotAnsweredIsSentAgainWithItsNumber) {
  StandingServer server(Kind::kPush);
  auto client = ConnectTo(server, Transport::kSocket);
  RemoteTable* const table = client->Table({.name = "t", .dim = 1}).value();
  const std::vector<std::int64_t> ids{1, 2, 3};
  for (int push = 0; push < 2; ++push) {
    const Status pushed = table->ApplyGradients(ids, std::vector<float>(3, 1));
    EXPECT_TRUE(pushed.ok()) << pushed.ToString();
  }
  const std::vector<std::uint64_t> sequences = server.sequences();
  ASSERT_GE(sequences.size(), 3u);
  EXPECT_EQ(sequences[0], 1u);
  EXPECT_EQ(sequences[1], 1u);
  EXPECT_EQ(sequences.back(), 2u);
}

}  // namespace
}  // namespace cairn::ps
