// The store on a real HDFS: the conformance suite, what a power cut leaves, and what errors say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/http_client.h"
#include "net/test_certificates.h"
#include "net/test_http_server.h"
#include "net/test_tls_front.h"
#include "storage/conformance.h"
#include "storage/local/temp_directory.h"
#include "storage/open_store.h"
#include "storage/webhdfs/test_hdfs_server.h"
#include "storage/webhdfs/webhdfs_store.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TestHdfsServer& Server() {
  const auto server = TestHdfsServer::Shared();
  if (!server.ok()) {
    ADD_FAILURE() << server.status().ToString();
    std::abort();  // there is nothing to test against
  }
  return **server;
}

Result<std::unique_ptr<Store>> Open(const std::string& url, const std::string& user = "ann",
                                    bool create = true) {
  WebHdfsStore::Options options{.url = url, .create = create};
  options.storage.part_bytes = 64u << 10;
  options.environment.variables = [user](const std::string& name) -> std::optional<std::string> {
    if (name == "CAIRN_HDFS_USER") return user;
    return std::nullopt;
  };
  options.environment.retry.first_wait = std::chrono::milliseconds(10);
  options.environment.retry.max_attempts = 4;
  auto store = WebHdfsStore::Open(std::move(options));
  if (!store.ok()) return store.status();
  return std::unique_ptr<Store>(*std::move(store));
}

StoreFactory Factory() {
  return {.name = "webhdfs", .make = [] {
            StoreUnderTest under_test;
            const std::string url = Server().FreshUrl();
            under_test.open = [url] { return Open(url); };
            under_test.long_listing = 40;
            return under_test;
          }};
}

INSTANTIATE_TEST_SUITE_P(Hdfs, StoreConformance, ::testing::Values(Factory()),
                         StoreConformance::Name);

std::string Fetch(const std::string& url) {
  auto client = HttpClient::Open({});
  EXPECT_TRUE(client.ok());
  const auto response = (*client)->Fetch(HttpRequest{.url = url});
  EXPECT_TRUE(response.ok()) << response.status().ToString();
  return response.ok() ? response->body : "";
}

TEST(HdfsStore, AnObjectIsAFileThatOthersRead) {
  auto store = Open(Server().Url("plain"));
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_TRUE((*store)->Put("a/b.txt", "hello").ok());
  const std::string status = Fetch("http://127.0.0.1:" + std::to_string(Server().http_port()) +
                                   "/webhdfs/v1/plain/a/b.txt?op=GETFILESTATUS&user.name=someone");
  EXPECT_THAT(status, AllOf(HasSubstr("\"length\":5"), HasSubstr("\"owner\":\"ann\"")));
}

// The DataNode's own count, which it shows with a delay of seconds.
long Fsyncs(const TestHdfsServer& server) {
  const std::string text = Fetch("http://127.0.0.1:" + std::to_string(server.data_port()) +
                                 "/jmx?qry=Hadoop:service=DataNode,name=DataNodeActivity*");
  constexpr std::string_view kName = "\"FsyncCount\" : ";
  const std::size_t at = text.find(kName);
  return at == std::string::npos ? -1 : std::strtol(text.c_str() + at + kName.size(), nullptr, 10);
}

TEST(HdfsStore, FilesHaveTheReplicationAndTheBlocksThatWereAskedFor) {
  const std::string url = Server().FreshUrl();
  WebHdfsStore::Options options{.url = url};
  options.storage.hdfs_replication = 2;
  options.storage.hdfs_block_bytes = 1u << 20;
  auto store = WebHdfsStore::Open(std::move(options));
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_TRUE((*store)->Put("small", "hello").ok());
  auto session = (*store)->NewWriteSession(WriteMode::kAuto);
  const std::string large((*session)->part_bytes() + 10, 'x');
  const auto object = (*session)->Open("large", {.bytes = large.size()});
  ASSERT_TRUE(object.ok());
  const auto bytes = std::as_bytes(std::span(large));
  const std::size_t part = (*session)->part_bytes();
  ASSERT_TRUE((*session)->Append(*object, bytes.first(part), false, 1).ok());
  ASSERT_TRUE((*session)->Append(*object, bytes.subspan(part), false, 2).ok());
  ASSERT_TRUE((*session)->Close(*object).ok());
  ASSERT_TRUE((*session)->Drain().ok());
  const std::string path = url.substr(url.find('/', url.find("//") + 2));
  for (const char* name : {"small", "large"}) {
    const std::string status =
        Fetch("http://127.0.0.1:" + std::to_string(Server().http_port()) + "/webhdfs/v1" + path +
              "/" + name + "?op=GETFILESTATUS&user.name=someone");
    EXPECT_THAT(status, AllOf(HasSubstr("\"replication\":2"), HasSubstr("\"blockSize\":1048576")))
        << name;
  }
}

TEST(HdfsStore, LargeFilesHaveBlocksOfTheSizeThatWasAskedFor) {
  constexpr std::uint64_t kBlock = 20u << 20;
  const std::string url = Server().FreshUrl();
  WebHdfsStore::Options options{.url = url};
  options.storage.hdfs_block_bytes = kBlock;
  auto store = WebHdfsStore::Open(std::move(options));
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const std::string large(2 * kBlock + 10, 'x');
  auto session = (*store)->NewWriteSession(WriteMode::kAuto);
  const auto object = (*session)->Open("large", {.bytes = large.size()});
  ASSERT_TRUE(object.ok());
  const std::size_t part = (*session)->PartsOf(large.size()).part_bytes;
  const auto bytes = std::as_bytes(std::span(large));
  for (std::size_t at = 0; at < large.size(); at += part) {
    const auto piece = bytes.subspan(at, std::min(part, large.size() - at));
    ASSERT_TRUE((*session)->Append(*object, piece, false, at).ok());
  }
  ASSERT_TRUE((*session)->Close(*object).ok());
  ASSERT_TRUE((*session)->Drain().ok());
  const std::string path = url.substr(url.find('/', url.find("//") + 2));
  const std::string blocks =
      Fetch("http://127.0.0.1:" + std::to_string(Server().http_port()) + "/webhdfs/v1" + path +
            "/large?op=GETFILEBLOCKLOCATIONS&user.name=someone");
  std::vector<std::uint64_t> lengths;
  constexpr std::string_view kName = "\"length\":";
  for (std::size_t at = blocks.find(kName); at != std::string::npos; at = blocks.find(kName, at)) {
    at += kName.size();
    lengths.push_back(std::strtoull(blocks.c_str() + at, nullptr, 10));
  }
  EXPECT_THAT(lengths, ::testing::ElementsAre(kBlock, kBlock, 10u)) << blocks;
}

TEST(HdfsStore, WhatWasAcknowledgedSurvivesAPowerCutOfTheServer) {
  auto server = TestHdfsServer::Start({});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  auto store = Open((*server)->Url("cut"));
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const std::string large(300'000, 'x');
  ASSERT_TRUE((*store)->Put("put", "1").ok());
  ASSERT_TRUE((*store)->Create("created", "2").ok());
  auto session = (*store)->NewWriteSession(WriteMode::kAuto);
  ASSERT_TRUE(session.ok());
  const auto object = (*session)->Open("large", {.bytes = large.size()});
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  for (std::size_t at = 0; at < large.size(); at += (*session)->part_bytes()) {
    const std::string_view part = std::string_view(large).substr(at, (*session)->part_bytes());
    ASSERT_TRUE((*session)
                    ->Append(*object, std::as_bytes(std::span(part.data(), part.size())), false, at)
                    .ok());
  }
  ASSERT_TRUE((*session)->Close(*object).ok());
  ASSERT_TRUE((*session)->Drain().ok());

  // Two small files and five parts, each synced to the disk: that cannot be tried from here.
  const auto begun = std::chrono::steady_clock::now();
  while (Fsyncs(**server) < 7) {
    ASSERT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

  ASSERT_TRUE((*server)->KillAndRestart().ok());
  EXPECT_EQ(*(*store)->Get("put", 100), "1");
  EXPECT_EQ(*(*store)->Get("created", 100), "2");
  EXPECT_EQ(*(*store)->Get("large", 1 << 20), large);
  EXPECT_TRUE((*store)->Create("created", "3").Is(Code::kAlreadyExists));
}

TEST(HdfsStore, WhatWasAppendedIsNotCalledSynced) {
  auto store = Open(Server().FreshUrl());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_TRUE((*store)->Create("log", "1").ok());
  auto object = FindAppending(store->get())->OpenAppend("log");
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  ASSERT_TRUE((*object)->Append("2").ok());
  const Status synced = (*object)->Sync("the test");
  EXPECT_TRUE(synced.Is(Code::kUnimplemented)) << synced.ToString();
  EXPECT_THAT(std::string(synced.message()), HasSubstr("put what must be durable"));
  ASSERT_TRUE((*object)->Append("3").ok()) << "nothing is wrong with the object";
  // Replaced behind its back: what is appended goes to the name, as the store's other calls do.
  ASSERT_TRUE((*store)->Delete("log").ok());
  EXPECT_TRUE((*object)->Append("4").Is(Code::kNotFound));
  EXPECT_TRUE((*object)->Append("5").Is(Code::kNotFound)) << "condemned";
}

TEST(HdfsStore, ErrorsTellWhatIsWrong) {
  auto server = TestHdfsServer::Start({.permissions = true});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  // The superuser is who started the server, whatever its name is here.
  const auto denied = Open((*server)->Url("no/place"), "mallory");
  EXPECT_TRUE(denied.status().Is(Code::kPermissionDenied)) << denied.status().ToString();
  EXPECT_THAT(std::string(denied.status().message()),
              AllOf(HasSubstr("mallory"), HasSubstr("CAIRN_HDFS_USER")));

  const auto missing = Open((*server)->Url("nothing"), "mallory", /*create=*/false);
  EXPECT_TRUE(missing.status().Is(Code::kNotFound)) << missing.status().ToString();

  const auto rpc = Open("hdfs://127.0.0.1:" + std::to_string((*server)->rpc_port()) + "/x");
  EXPECT_TRUE(rpc.status().Is(Code::kFailedPrecondition)) << rpc.status().ToString();
  EXPECT_THAT(std::string(rpc.status().message()), HasSubstr("RPC port"));

  const auto comma = Open((*server)->Url("a,b"), "mallory");
  EXPECT_TRUE(comma.status().Is(Code::kInvalidArgument)) << comma.status().ToString();
  EXPECT_THAT(std::string(comma.status().message()), HasSubstr("comma"));

  const auto data = Open("hdfs://127.0.0.1:" + std::to_string((*server)->data_port()) + "/x");
  EXPECT_FALSE(data.ok());

  const std::string gone = (*server)->Url("x");
  server->reset();
  const auto unreachable = Open(gone);
  EXPECT_TRUE(unreachable.status().Is(Code::kUnavailable)) << unreachable.status().ToString();
  EXPECT_THAT(std::string(unreachable.status().message()), HasSubstr(gone));
}

/// A file of three parts, there and back: every kind of request to either node.
void WriteAndRead(Store* store) {
  const std::string large(150'000, 'x');
  ASSERT_TRUE(store->Create("record", "1").ok());
  auto session = store->NewWriteSession(WriteMode::kAuto);
  const auto object = (*session)->Open("large", {.bytes = large.size()});
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  const auto bytes = std::as_bytes(std::span(large));
  const std::size_t part = (*session)->part_bytes();
  for (std::size_t at = 0; at < large.size(); at += part) {
    const auto piece = bytes.subspan(at, std::min(part, large.size() - at));
    const Status appended = (*session)->Append(*object, piece, false, at);
    ASSERT_TRUE(appended.ok()) << appended.ToString();
  }
  ASSERT_TRUE((*session)->Close(*object).ok());
  const Status drained = (*session)->Drain();
  ASSERT_TRUE(drained.ok()) << drained.ToString();
  EXPECT_EQ(*store->Get("large", 1 << 20), large);
  EXPECT_EQ(store->List("")->objects.size(), 2u);
  EXPECT_TRUE(store->Delete("record").ok());
}

Result<std::unique_ptr<Store>> OpenWith(const std::string& url,
                                        std::map<std::string, std::string> settings) {
  WebHdfsStore::Options options{.url = url};
  options.storage.part_bytes = 64u << 10;
  options.environment.retry.max_attempts = 2;
  options.environment.variables =
      [settings = std::move(settings)](const std::string& name) -> std::optional<std::string> {
    const auto found = settings.find(name);
    if (found == settings.end()) return std::nullopt;
    return found->second;
  };
  auto store = WebHdfsStore::Open(std::move(options));
  if (!store.ok()) return store.status();
  return std::unique_ptr<Store>(*std::move(store));
}

TEST(HdfsStore, ADelegationTokenSaysWhoWeAre) {
  auto server = TestHdfsServer::Start({.permissions = true, .tokens = true});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  ASSERT_FALSE((*server)->token().empty());
  const std::string api =
      "http://127.0.0.1:" + std::to_string((*server)->http_port()) + "/webhdfs/v1";
  // The superuser, who is this process's user, lets everyone write.
  const std::string super = MakeWebHdfsConfig("hdfs://x/", {}, [](const std::string&) {
                              return std::optional<std::string>();
                            })->user;
  auto client = HttpClient::Open({});
  const auto opened = (*client)->Fetch(HttpRequest{
      .method = "PUT", .url = api + "/?op=SETPERMISSION&permission=777&user.name=" + super});
  ASSERT_TRUE(opened.ok() && opened->Succeeded());

  const std::string url = (*server)->Url("of-ann");
  const auto store =
      OpenWith(url, {{"CAIRN_HDFS_TOKEN", (*server)->token()}, {"CAIRN_HDFS_USER", "mallory"}});
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  WriteAndRead(store->get());
  EXPECT_THAT(Fetch(api + "/of-ann/large?op=GETFILESTATUS&user.name=someone"),
              HasSubstr("\"owner\":\"ann\""));

  std::string forged = (*server)->token();
  char& inside = forged[forged.size() / 2];  // of what only the NameNode can make
  inside = inside == 'A' ? 'B' : 'A';
  const Status refused = OpenWith(url, {{"CAIRN_HDFS_TOKEN", forged}}).status();
  EXPECT_TRUE(refused.Is(Code::kPermissionDenied)) << refused.ToString();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("CAIRN_HDFS_TOKEN"));
}

TEST(HdfsStore, SpeaksTlsToBothNodes) {
  TempDirectory directory;
  const TestCertificates certificates(directory / "tls");
  ASSERT_TRUE(certificates.ok());
  const TestTlsFront data(Server().data_port(), certificates.certificate(), certificates.key());
  std::atomic<int> redirected = 0;
  // The DataNode that the NameNode names is behind TLS, too.
  const TestHttpServer names([&](const TestHttpRequest& request) {
    TestHttpReply reply = ForwardTo(Server().http_port(), request);
    const std::string plain =
        "{\"Location\":\"http://127.0.0.1:" + std::to_string(Server().data_port()) + "/";
    const std::size_t at = reply.bytes.find(plain);
    if (at == std::string::npos) return reply;
    ++redirected;
    std::string body = reply.bytes.substr(at, reply.bytes.rfind('}') + 1 - at);
    body.replace(0, plain.size(),
                 "{\"Location\":\"https://127.0.0.1:" + std::to_string(data.port()) + "/");
    return Answer(200, body);
  });
  const TestTlsFront front(names.port(), certificates.certificate(), certificates.key());
  const std::string fresh = Server().FreshUrl();
  const std::string url =
      "hdfs://127.0.0.1:" + std::to_string(front.port()) + fresh.substr(fresh.rfind('/'));
  const auto store = OpenWith(url, {{"CAIRN_HDFS_USER", "ann"},
                                    {"CAIRN_HDFS_TLS", "1"},
                                    {"CAIRN_HDFS_CA_BUNDLE", certificates.ca()}});
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  WriteAndRead(store->get());
  EXPECT_GT(redirected, 0);

  const Status unknown = OpenWith(url, {{"CAIRN_HDFS_TLS", "1"}}).status();
  EXPECT_TRUE(unknown.Is(Code::kFailedPrecondition)) << unknown.ToString();
  EXPECT_FALSE(OpenWith(url, {}).ok()) << "plain HTTP to a port with TLS";
}

TEST(HdfsStore, WhatAKilledWriterLeavesIsFoundAndGivenUp) {
  const std::string url = Server().FreshUrl();
  auto store = Open(url);
  ASSERT_TRUE(store.ok());
  const std::string part(64u << 10, 'x');
  auto session = (*store)->NewWriteSession(WriteMode::kAuto);
  const auto object = (*session)->Open("a/b:c", {.bytes = 2 * part.size()});
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  ASSERT_TRUE((*session)->Append(*object, std::as_bytes(std::span(part)), false, 1).ok());
  ASSERT_TRUE((*session)->WaitPart().ok());

  auto other = Open(url);  // sees what a session that was killed here would leave
  EXPECT_EQ(*(*other)->ListUnfinished(""), std::vector<std::string>{"a/b:c"});
  EXPECT_EQ(*(*other)->ListUnfinished("a"), std::vector<std::string>{"a/b:c"});
  EXPECT_TRUE((*other)->ListUnfinished("b")->empty());
  EXPECT_TRUE((*other)->List("")->prefixes.empty());
  EXPECT_TRUE((*other)->AbandonUnfinished("a/b:c").ok());
  EXPECT_TRUE((*other)->ListUnfinished("")->empty());
  EXPECT_TRUE((*other)->AbandonUnfinished("a/b:c").ok());
}

TEST(HdfsStore, OpenStoreKnowsHdfs) {
  auto encoded = OpenStore(Server().Url("by%20url"));
  ASSERT_TRUE(encoded.ok()) << encoded.status().ToString();
  EXPECT_TRUE((*encoded)->Put("x", "1").ok());
}

}  // namespace
}  // namespace cairn
