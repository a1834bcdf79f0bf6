// The client and the store against a server that misbehaves on purpose. The real one: tests/hdfs.

#include "storage/webhdfs/webhdfs_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "net/test_http_server.h"
#include "storage/webhdfs/webhdfs_store.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Exception(const std::string& name, const std::string& message = "m") {
  return R"({"RemoteException":{"exception":")" + name + R"(","message":")" + message + R"("}})";
}

Variables Settings(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

class WebHdfsClientTest : public ::testing::Test {
 protected:
  /// A client of a server that answers as `handler` says.
  std::shared_ptr<WebHdfsClient> Client(TestHttpServer::Handler handler,
                                        std::map<std::string, std::string> settings = {}) {
    server_ = std::make_unique<TestHttpServer>([=, this](const TestHttpRequest& request) {
      {
        MutexLock lock(&mu_);
        targets_.push_back(request.method + " " + request.target);
      }
      return handler(request);
    });
    settings.emplace("CAIRN_HDFS_USER", "ann");
    WebHdfsEnvironment environment{.variables = Settings(std::move(settings)),
                                   .random = [] { return 0.5; }};
    environment.retry = {.max_attempts = 3, .first_wait = std::chrono::milliseconds(1)};
    const std::string url = "hdfs://127.0.0.1:" + std::to_string(server_->port()) + "/root";
    auto config = MakeWebHdfsConfig(url, {}, environment.variables);
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return *WebHdfsClient::Open(*config, environment);
  }
  std::vector<std::string> targets() {
    MutexLock lock(&mu_);
    return targets_;
  }

  Mutex mu_;
  std::vector<std::string> targets_ GUARDED_BY(mu_);
  std::unique_ptr<TestHttpServer> server_;
};

TEST_F(WebHdfsClientTest, SaysWhoAsks) {
  auto client = Client([](const auto&) { return Answer(200, R"({"boolean":true})"); });
  EXPECT_TRUE(client->MakeDirectories("/a b").ok());
  EXPECT_THAT(targets(), Each(AllOf(HasSubstr("/webhdfs/v1/a%20b?op=MKDIRS"),
                                    HasSubstr("user.name=ann"), Not(HasSubstr("delegation")))));
}

TEST_F(WebHdfsClientTest, SendsATokenInsteadOfAUser) {
  auto client = Client([](const auto&) { return Answer(200, R"({"boolean":true})"); },
                       {{"CAIRN_HDFS_TOKEN", "secret+/="}});
  EXPECT_TRUE(client->MakeDirectories("/a").ok());
  EXPECT_THAT(targets(),
              Each(AllOf(HasSubstr("delegation=secret%2B%2F%3D"), Not(HasSubstr("user.name")))));
}

TEST_F(WebHdfsClientTest, AsksForAnotherDataNodeWhenOneFails) {
  std::atomic<int> tries = 0;
  auto client = Client([&](const TestHttpRequest& request) {
    if (request.target.find("/data") == std::string::npos) {
      return Answer(200, R"({"Location":")" + server_->url() + R"(/data?try=1"})");
    }
    return ++tries < 3 ? TestHttpReply{.close = true} : Answer(201);
  });
  const std::string bytes = "bytes";
  EXPECT_TRUE(client->Write("/f", std::as_bytes(std::span(bytes))).ok());
  EXPECT_EQ(tries.load(), 3);
  // The HTTP library itself repeats a request on a kept connection that turns out to be closed.
  EXPECT_GE(targets().size(), 5u);
  EXPECT_THAT(targets()[0], HasSubstr("sync_block"));
}

TEST_F(WebHdfsClientTest, AppendsOnceWhateverBecomesOfTheAnswer) {
  std::atomic<int> appends = 0;
  auto client = Client([&](const TestHttpRequest& request) {
    if (request.target.find("/data") == std::string::npos) {
      return Answer(200, R"({"Location":")" + server_->url() + R"(/data"})");
    }
    ++appends;
    return request.body == "lost" ? TestHttpReply{.close = true} : Answer(500, "oh");
  });
  for (const std::string bytes : {"lost", "failed"}) {
    const Status status = client->Append("/f", std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  }
  EXPECT_EQ(appends.load(), 2) << "nobody knows whether the bytes are there";
  EXPECT_THAT(targets()[0], HasSubstr("POST /webhdfs/v1/f?op=APPEND"));
}

TEST_F(WebHdfsClientTest, AnAppendWaitsForTheWriterThatWasThereBefore) {
  std::atomic<int> appends = 0;
  auto client = Client([&](const TestHttpRequest& request) {
    if (request.target.find("/data") == std::string::npos) {
      return Answer(200, R"({"Location":")" + server_->url() + R"(/data"})");
    }
    return ++appends < 3 ? Answer(403, Exception("AlreadyBeingCreatedException")) : Answer(200);
  });
  const std::string bytes = "bytes";
  EXPECT_TRUE(client->Append("/f", std::as_bytes(std::span(bytes))).ok());
  appends = -100;
  EXPECT_TRUE(client->Append("/f", std::as_bytes(std::span(bytes))).Is(Code::kUnavailable));
}

TEST_F(WebHdfsClientTest, GivesUpWithTheReason) {
  auto client = Client([&](const TestHttpRequest& request) {
    if (request.target.find("/data") == std::string::npos) {
      return Answer(200, R"({"Location":")" + server_->url() + R"(/data"})");
    }
    return Answer(403, Exception("DSQuotaExceededException", "quota of /root"));
  });
  const Status status = client->Write("/f", {});
  EXPECT_TRUE(status.Is(Code::kResourceExhausted)) << status.ToString();
  EXPECT_THAT(std::string(status.message()), HasSubstr("quota of /root"));
  EXPECT_EQ(targets().size(), 2u);  // a quota does not go away
}

TEST_F(WebHdfsClientTest, WaitsForANameNodeInSafeMode) {
  std::atomic<int> tries = 0;
  auto client = Client([&](const auto&) {
    return ++tries < 3 ? Answer(403, Exception("SafeModeException"))
                       : Answer(200, R"({"boolean":true})");
  });
  EXPECT_TRUE(client->MakeDirectories("/a").ok());
  tries = -100;
  EXPECT_TRUE(client->MakeDirectories("/a").Is(Code::kUnavailable));
}

TEST_F(WebHdfsClientTest, ARenameWhoseAnswerWasLostIsRecognised) {
  std::atomic<int> tries = 0;
  auto client = Client([&](const TestHttpRequest& request) {
    if (request.method == "GET") return Answer(404, Exception("FileNotFoundException"));
    if (++tries == 1) return TestHttpReply{.close = true};
    return Answer(404, Exception("FileNotFoundException", "rename source is not found"));
  });
  EXPECT_TRUE(client->Rename("/from", "/to", false).ok());
}

TEST_F(WebHdfsClientTest, ARenameThatLostTheRaceIsNotTakenForItsOwn) {
  std::atomic<int> tries = 0;
  auto client = Client([&](const TestHttpRequest& request) {
    if (request.method == "GET") {  // our own file is still under its first name
      return Answer(200, R"({"FileStatus":{"fileId":1,"length":0,"modificationTime":1,)"
                         R"("pathSuffix":"","type":"FILE"}})");
    }
    if (++tries == 1) return TestHttpReply{.close = true};
    return Answer(403, Exception("FileAlreadyExistsException"));
  });
  EXPECT_TRUE(client->Rename("/from", "/to", false).Is(Code::kAlreadyExists));
  tries = 1;
  EXPECT_TRUE(client->Rename("/from", "/to", false).Is(Code::kAlreadyExists));
}

TEST_F(WebHdfsClientTest, FilesOfSeveralPartsInAnEncryptionZoneHaveARemedy) {
  auto client = Client([&](const TestHttpRequest&) {
    return Answer(400, Exception("HadoopIllegalArgumentException",
                                 "concat can not be called for files in an encryption zone."));
  });
  const Status status = client->Concat("/p0", {"/p1"});
  EXPECT_TRUE(status.Is(Code::kFailedPrecondition)) << status.ToString();
  EXPECT_THAT(status.ToString(),
              AllOf(HasSubstr("encryption zone"), HasSubstr("CAIRN_HDFS_PART_SIZE")));
}

TEST_F(WebHdfsClientTest, AShortAnswerPassesAndAShortFileDoesNot) {
  std::atomic<int> short_answers = 0;  // to come
  std::atomic<int> file_bytes = 10;
  auto client = Client([&](const TestHttpRequest& request) {
    const auto has = [&](const char* what) {
      return request.target.find(what) != std::string::npos;
    };
    if (has("/data")) return Answer(200, short_answers-- > 0 ? "1234" : "1234567890");
    if (has("GETFILESTATUS")) {
      return Answer(200, R"({"FileStatus":{"fileId":1,"modificationTime":1,"pathSuffix":"",)"
                         R"("type":"FILE","length":)" +
                             std::to_string(file_bytes) + "}}");
    }
    return Answer(200, R"({"Location":")" + server_->url() + R"(/data"})");
  });
  std::string into(10, '\0');
  const auto read = [&] { return client->Read("/f", 0, std::as_writable_bytes(std::span(into))); };
  short_answers = 1;
  EXPECT_TRUE(read().ok()) << "it was tried again";
  EXPECT_EQ(into, "1234567890");
  short_answers = 100;
  Status status = read();
  EXPECT_TRUE(status.Is(Code::kUnavailable)) << status.ToString();
  EXPECT_THAT(status.ToString(), HasSubstr("short read: 4 of 10 bytes"));
  file_bytes = 4;
  status = read();
  EXPECT_TRUE(status.Is(Code::kCorruption)) << status.ToString();
  EXPECT_THAT(status.ToString(), HasSubstr("it has 4"));
}

TEST_F(WebHdfsClientTest, NonsenseIsRefused) {
  for (const std::string body : {"", "{}", "[]", R"({"FileStatus":{}})", "{\"FileStatus\":"}) {
    auto client = Client([&](const auto&) { return Answer(200, body); });
    EXPECT_TRUE(client->Stat("/f").status().Is(Code::kCorruption)) << body;
    EXPECT_TRUE(client->List("/f", "").status().Is(Code::kCorruption)) << body;
    EXPECT_TRUE(client->Write("/f", {}).Is(Code::kCorruption)) << body;
  }
}

TEST(WebHdfsConfig, TakesSettingsFromUrlEnvironmentAndOptions) {
  const auto config = MakeWebHdfsConfig("hdfs://nn/a%20b/", {.hdfs_replication = 2},
                                        Settings({{"HADOOP_USER_NAME", "bob"},
                                                  {"CAIRN_HDFS_BLOCK_SIZE", "64M"},
                                                  {"CAIRN_HDFS_TLS", "1"}}));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->api, "https://nn:9870/webhdfs/v1");
  EXPECT_EQ(config->root, "/a b");
  EXPECT_EQ(config->user, "bob");
  EXPECT_EQ(config->replication, 2);
  EXPECT_EQ(config->block_bytes, 64u << 20);
  EXPECT_EQ(config->PathOf("x:y%"), "/a b/x%3Ay%25");
  EXPECT_EQ(NameOfComponent("x%3Ay%25"), "x:y%");
}

TEST(WebHdfsConfig, PartsAreOfTheSizeOfBlocks) {
  const auto part = [](const std::string& block, const std::string& part,
                       std::uint64_t option = 0) {
    std::map<std::string, std::string> settings;
    if (!block.empty()) settings["CAIRN_HDFS_BLOCK_SIZE"] = block;
    if (!part.empty()) settings["CAIRN_HDFS_PART_SIZE"] = part;
    return MakeWebHdfsConfig("hdfs://nn/a", {.part_bytes = option}, Settings(settings))->part_bytes;
  };
  EXPECT_EQ(part("", ""), 16u << 20);
  EXPECT_EQ(part("128M", ""), 128u << 20);
  EXPECT_EQ(part("5M", ""), 15u << 20) << "whole blocks";
  EXPECT_EQ(part("1G", ""), 256u << 20) << "bounded memory";
  EXPECT_EQ(part("1G", "1G"), 1u << 30) << "unless it is said";
  EXPECT_EQ(part("1G", "1G", 8u << 20), 8u << 20);
  EXPECT_EQ(part("1000000", ""), 16u << 20);
}

TEST(WebHdfsConfig, RefusesWhatItCannotMean) {
  for (const std::string url : {"hdfs://", "hdfs:///a", "hdfs://nn/a/../b", "hdfs://nn/a//b",
                                "hdfs://user@nn/a", "hdfs://nn/a?x=1"}) {
    EXPECT_FALSE(MakeWebHdfsConfig(url, {}, Settings({})).ok()) << url;
  }
  EXPECT_FALSE(
      MakeWebHdfsConfig("hdfs://nn/a", {}, Settings({{"CAIRN_HDFS_BLOCK_SIZE", "much"}})).ok());
  EXPECT_FALSE(
      MakeWebHdfsConfig("hdfs://nn/a", {}, Settings({{"CAIRN_HDFS_REPLICATION", "1000"}})).ok());
}

}  // namespace
}  // namespace cairn
