#include "serving/lookup/lookup_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include <cairn/serving_client.h>

#include "base/status_macros.h"
#include "net/held_port.h"
#include "net/test_certificates.h"
#include "rpc/client_stream.h"
#include "rpc/stream_server.h"
#include "serving/lookup/lookup_message.h"

namespace cairn::serving {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// A lookup that begins with this id finds no memory.
constexpr std::int64_t kNoMemory = 404;

/// Tables of which every number is the step of the version; no rows below 0.
class NumberedModel final : public Model {
 public:
  class OneView final : public View {
   public:
    explicit OneView(std::int64_t step) : step_(step) {}
    VersionInfo version() const override {
      return {.step = step_, .id = "id-" + std::to_string(step_)};
    }
    Status Lookup(std::string_view table, std::span<const std::int64_t> ids,
                  std::span<float> out) const override {
      const std::size_t dim = table == "a" ? 4 : 3;
      if (!ids.empty() && ids[0] == kNoMemory) throw std::bad_alloc();
      if (out.size() != ids.size() * dim) return InternalError("the rows do not fit");
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = ids[i / dim] < 0 ? 0 : static_cast<float>(step_);
      }
      return Status::Ok();
    }
    Result<std::vector<OwnedTensor>> Predict(
        const std::map<std::string, FeedTensor>&) const override {
      return UnimplementedError("");
    }

   private:
    const std::int64_t step_;
  };

  Result<std::unique_ptr<View>> Take() const override {
    const std::int64_t step = step_;
    if (step == 0) return UnavailableError("there is no version yet");
    return std::unique_ptr<View>(std::make_unique<OneView>(step));
  }
  Result<std::unique_ptr<View>> TakeStep(std::int64_t) const override {
    return UnimplementedError("");
  }
  Status Lookup(std::string_view, std::span<const std::int64_t>, std::span<float>) const override {
    return UnimplementedError("");
  }
  Result<std::vector<OwnedTensor>> Predict(
      const std::map<std::string, FeedTensor>&) const override {
    return UnimplementedError("");
  }
  Result<VersionInfo> Version() const override { return UnimplementedError(""); }
  const ModelSignature& signature() const override { return signature_; }
  std::vector<TableInfo> tables() const override { return {{"a", 4}, {"b", 3}}; }
  std::vector<std::string> fixed_weights() const override { return {}; }
  Status Rollback(std::size_t) override { return UnimplementedError(""); }
  Status Pin(std::string_view) override { return UnimplementedError(""); }
  Status PinStep(std::int64_t) override { return UnimplementedError(""); }
  void Resume() override {}
  bool held() const override { return false; }
  std::vector<VersionInfo> Versions() const override { return {}; }
  void Notify() override {}
  Status Update() override { return UnimplementedError(""); }
  void StopFollowing() override {}
  ModelStats stats() const override { return {}; }

  std::atomic<std::int64_t> step_{0};

 private:
  ModelSignature signature_;
};

class LookupServerTest : public testing::Test {
 protected:
  void Start(LookupServerOptions options = {}) {
    options.on_request = [this](double, bool ok) { ++(ok ? answered_ : refused_); };
    server_ = LookupServer::Start(std::move(options), &model_).value();
  }
  std::string Address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  std::unique_ptr<LookupClient> Client(std::string token = "") const {
    return LookupClient::Connect({.address = Address(), .token = std::move(token)}).value();
  }
  static Result<LookupClient::Found> Ask(LookupClient* client, const std::string& table,
                                         const std::vector<std::int64_t>& ids,
                                         std::uint32_t dim = 0) {
    const LookupClient::Wanted wanted[] = {{.table = table, .ids = ids, .dim = dim}};
    return client->Lookup(wanted);
  }
  /// What the server answers to bytes that no client of ours sends.
  Result<LookupClient::Found> AskRaw(const std::string& bytes) const {
    auto stream = rpc::ClientStream::Open({.address = Address()}).value();
    rpc::Message message(bytes.size());
    std::memcpy(message.bytes().data(), bytes.data(), bytes.size());
    RETURN_IF_ERROR(stream->Send(std::move(message)));
    auto answer = stream->Receive();
    if (!answer.ok()) return answer.status();
    return DecodeLookupReply(answer->bytes());
  }

  NumberedModel model_;
  std::atomic<int> answered_{0};
  std::atomic<int> refused_{0};
  std::unique_ptr<LookupServer> server_;
};

TEST_F(LookupServerTest, AnswersSeveralTablesOfOneVersion) {
  Start();
  const auto client = Client();
  const auto early = Ask(client.get(), "a", {1});
  EXPECT_TRUE(early.status().Is(Code::kUnavailable)) << early.status().ToString();
  model_.step_ = 7;
  const std::vector<std::int64_t> users = {1, -5, 1};
  const std::vector<std::int64_t> items = {std::numeric_limits<std::int64_t>::max()};
  const LookupClient::Wanted wanted[] = {{.table = "a", .ids = users, .dim = 4},
                                         {.table = "b", .ids = items},
                                         {.table = "b", .ids = {}}};
  const auto found = client->Lookup(wanted);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->step, 7);
  EXPECT_EQ(found->id, "id-7");
  ASSERT_EQ(found->tables.size(), 3u);
  EXPECT_THAT(found->tables[0].values, ElementsAre(7, 7, 7, 7, 0, 0, 0, 0, 7, 7, 7, 7));
  EXPECT_EQ(found->tables[1].dim, 3u);
  EXPECT_THAT(found->tables[1].values, ElementsAre(7, 7, 7));
  EXPECT_TRUE(found->tables[2].values.empty());
}

TEST_F(LookupServerTest, ErrorsNameTheFieldAndTheStreamGoesOn) {
  LookupServerOptions options;
  options.max_answer_bytes = 100 * 4 * sizeof(float);
  Start(options);
  model_.step_ = 1;
  const auto client = Client();
  const auto no_table = Ask(client.get(), "none", {1});
  EXPECT_TRUE(no_table.status().Is(Code::kNotFound));
  EXPECT_THAT(no_table.status().ToString(), HasSubstr("asks[0].table: there is no table \"none\""));
  const auto wrong_dim = Ask(client.get(), "b", {1}, 4);
  EXPECT_TRUE(wrong_dim.status().Is(Code::kInvalidArgument));
  EXPECT_THAT(wrong_dim.status().ToString(), HasSubstr("asks[0].dim"));
  EXPECT_TRUE(Ask(client.get(), "a", std::vector<std::int64_t>(100)).ok());
  const std::vector<std::int64_t> many(60);
  const LookupClient::Wanted together[] = {{.table = "a", .ids = many},
                                           {.table = "a", .ids = many}};
  const auto too_many = client->Lookup(together);
  EXPECT_TRUE(too_many.status().Is(Code::kResourceExhausted));
  EXPECT_THAT(too_many.status().ToString(), HasSubstr("asks[1].ids"));
  EXPECT_TRUE(client->Lookup({}).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(Ask(client.get(), "a", {1}).ok());
  EXPECT_EQ(answered_, 2);
  EXPECT_EQ(refused_, 3);
}

TEST_F(LookupServerTest, NoMemoryForAnAnswerIsAnErrorAndTheStreamGoesOn) {
  Start();
  model_.step_ = 7;
  const auto client = Client();
  const auto none = Ask(client.get(), "a", {kNoMemory});
  EXPECT_TRUE(none.status().Is(Code::kResourceExhausted)) << none.status().ToString();
  EXPECT_THAT(none.status().ToString(), HasSubstr("memory"));
  EXPECT_TRUE(Ask(client.get(), "a", {1}).ok());
  EXPECT_EQ(answered_, 1);
  EXPECT_EQ(refused_, 1);
}

TEST_F(LookupServerTest, MalformedBytesGetAnErrorAndHugeOnesEndTheStream) {
  LookupServerOptions options;
  options.max_request_bytes = 64 << 10;
  Start(options);
  model_.step_ = 1;
  EXPECT_TRUE(AskRaw("").status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(AskRaw("GET / HTTP/1.1").status().Is(Code::kUnimplemented));
  EXPECT_THAT(AskRaw(std::string("\x01\x01\x05\0\0\0\0\0", 8)).status().ToString(),
              HasSubstr("asks[0].table"));
  EXPECT_TRUE(AskRaw(std::string(1 << 20, '\x01')).status().Is(Code::kResourceExhausted));
  EXPECT_TRUE(Ask(Client().get(), "a", {1}).ok()) << "the server lives";
}

TEST_F(LookupServerTest, ALimitThatIsExceededIsNamedWithWhatToDo) {
  LookupServerOptions options;
  options.max_request_bytes = 64 << 10;
  Start(options);
  model_.step_ = 1;
  const auto client = Client();
  for (int i = 0; i < 3; ++i) {
    const Status refused = Ask(client.get(), "a", std::vector<std::int64_t>(10'000)).status();
    EXPECT_TRUE(refused.Is(Code::kResourceExhausted)) << refused.ToString();
    EXPECT_THAT(refused.ToString(), HasSubstr("the server takes at most 65536"));
    EXPECT_THAT(refused.ToString(), HasSubstr("--max-request"));
    EXPECT_THAT(refused.ToString(), testing::ContainsRegex("a message of 800[0-9]{2} bytes"));
    EXPECT_TRUE(Ask(client.get(), "a", {1}).ok()) << "the next one is answered";
  }
  const auto modest =
      LookupClient::Connect({.address = Address(), .max_answer_bytes = 32 << 10}).value();
  const Status answer = Ask(modest.get(), "a", std::vector<std::int64_t>(4'000)).status();
  EXPECT_TRUE(answer.Is(Code::kResourceExhausted)) << answer.ToString();
  EXPECT_THAT(answer.ToString(), HasSubstr("more than the 32768 bytes that are taken here"));
  EXPECT_THAT(answer.ToString(), HasSubstr("max_answer_bytes"));
}

TEST_F(LookupServerTest, TheTokenIsAskedFor) {
  LookupServerOptions options;
  options.security.token = "secret";
  Start(options);
  model_.step_ = 1;
  EXPECT_TRUE(Ask(Client("secret").get(), "a", {1}).ok());
  EXPECT_TRUE(Ask(Client("wrong").get(), "a", {1}).status().Is(Code::kPermissionDenied));
  EXPECT_TRUE(Ask(Client().get(), "a", {1}).status().Is(Code::kPermissionDenied));
}

TEST_F(LookupServerTest, TlsWithTheCertificateOfAnAuthority) {
  const TestCertificates ours(testing::TempDir() + "cairn_lookup_tls/ours");
  const TestCertificates theirs(testing::TempDir() + "cairn_lookup_tls/theirs");
  ASSERT_TRUE(ours.ok() && theirs.ok());
  LookupServerOptions options;
  options.security.certificate = ours.certificate();
  options.security.key = ours.key();
  Start(options);
  model_.step_ = 1;
  const auto client = LookupClient::Connect({.address = Address(), .ca = ours.ca()});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_TRUE(Ask(client->get(), "a", {1}).ok());
  const auto stranger = LookupClient::Connect(
      {.address = Address(), .ca = theirs.ca(), .timeout = milliseconds(500)});
  EXPECT_TRUE(stranger.status().Is(Code::kUnavailable)) << stranger.status().ToString();
  auto plain = LookupClient::Connect({.address = Address(), .timeout = milliseconds(500)});
  if (plain.ok()) {
    EXPECT_FALSE(Ask(plain->get(), "a", {1}).ok());
  }

  LookupServerOptions mismatched = options;
  mismatched.security.key = theirs.key();
  const auto refused = LookupServer::Start(mismatched, &model_);
  EXPECT_TRUE(refused.status().Is(Code::kInvalidArgument));
  EXPECT_THAT(refused.status().ToString(), HasSubstr("is not that of the certificate"));
  mismatched.security.key = "/nonexistent/key";
  EXPECT_THAT(LookupServer::Start(mismatched, &model_).status().ToString(),
              HasSubstr("/nonexistent/key"));
}

TEST_F(LookupServerTest, ClientsOverTheLimitAreTurnedAway) {
  LookupServerOptions options;
  options.max_streams = 2;
  Start(options);
  model_.step_ = 1;
  const auto first = Client();
  auto second = Client();
  ASSERT_TRUE(Ask(first.get(), "a", {1}).ok());
  ASSERT_TRUE(Ask(second.get(), "a", {1}).ok());
  const auto third = Client();
  const Status refused = Ask(third.get(), "a", {1}).status();
  EXPECT_TRUE(refused.Is(Code::kResourceExhausted)) << refused.ToString();
  second = nullptr;
  // Its place is free as soon as the server sees that it left.
  Result<LookupClient::Found> found = Ask(third.get(), "a", {1});
  while (!found.ok()) found = Ask(Client().get(), "a", {1});
  EXPECT_EQ(found->step, 1);
}

TEST_F(LookupServerTest, AClientFindsAServerThatWasStartedAgain) {
  const HeldPort port;
  ASSERT_NE(port.number(), 0);
  LookupServerOptions same;
  same.listen = "127.0.0.1:" + std::to_string(port.number());
  Start(same);
  model_.step_ = 1;
  // So long a call waits for the server that is gone, and as long may one take that succeeds.
  const auto client = LookupClient::Connect({.address = Address(), .timeout = seconds(5)}).value();
  ASSERT_TRUE(Ask(client.get(), "a", {1}).ok());
  server_ = nullptr;
  EXPECT_TRUE(Ask(client.get(), "a", {1}).status().Is(Code::kUnavailable));
  Start(same);
  EXPECT_TRUE(Ask(client.get(), "a", {1}).ok());
  server_ = nullptr;
  Start(same);
  EXPECT_TRUE(Ask(client.get(), "a", {1}).ok()) << "between two calls, unseen";
}

TEST_F(LookupServerTest, NoAnswerMixesVersions) {
  Start();
  model_.step_ = 1;
  std::atomic<bool> stop{false};
  std::jthread updates([&] {
    while (!stop) ++model_.step_;
  });
  std::vector<std::jthread> threads;
  std::atomic<int> mixtures{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      const auto client = Client();
      const std::vector<std::int64_t> ids(64, 1);
      const LookupClient::Wanted wanted[] = {{.table = "a", .ids = ids},
                                             {.table = "b", .ids = ids}};
      for (int i = 0; i < 300; ++i) {
        const auto found = client->Lookup(wanted);
        if (!found.ok()) ADD_FAILURE() << found.status().ToString();
        for (const auto& rows : found->tables) {
          for (const float value : rows.values) {
            mixtures += value == static_cast<float>(found->step) ? 0 : 1;
          }
        }
      }
    });
  }
  threads.clear();
  stop = true;
  EXPECT_EQ(mixtures, 0);
}

TEST(LookupClientTest, ASilentServerIsGivenUp) {
  // Accepts connections and never answers: what a stopped process does.
  auto silent = rpc::StreamServer::Start({}, [](rpc::ServerStream* stream) {
                  while (stream->Receive().ok()) {
                  }
                }).value();
  // As long as a connection may take on a machine that is busy.
  const auto client =
      LookupClient::Connect(
          {.address = "127.0.0.1:" + std::to_string(silent->port()), .timeout = seconds(5)})
          .value();
  const std::int64_t id = 1;
  const LookupClient::Wanted wanted[] = {{.table = "a", .ids = {&id, 1}}};
  EXPECT_TRUE(client->Lookup(wanted).status().Is(Code::kDeadlineExceeded));
  EXPECT_TRUE(LookupClient::Connect({.address = "127.0.0.1:1", .timeout = milliseconds(100)})
                  .status()
                  .Is(Code::kUnavailable));
}

}  // namespace
}  // namespace cairn::serving
