#include "storage/s3/s3_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "storage/local/temp_directory.h"
#include "storage/s3/test_s3_server.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

Result<S3Config> Make(const std::string& url, std::map<std::string, std::string> variables,
                      const StorageOptions& options = {}) {
  variables.emplace("HOME", "/nonexistent");
  return MakeS3Config(url, options, VariablesOf(std::move(variables)));
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(S3Config, AwsIsTheDefaultAndHasTheBucketInTheHost) {
  const auto config = Make("s3://my-bucket/runs/a/", {{"AWS_REGION", "eu-central-1"}});
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->scheme, "https");
  EXPECT_EQ(config->host, "my-bucket.s3.eu-central-1.amazonaws.com");
  EXPECT_EQ(config->base_path, "");
  EXPECT_EQ(config->prefix, "runs/a");
  EXPECT_EQ(config->KeyOf("x"), "runs/a/x");
  EXPECT_EQ(config->Describe(), "s3://my-bucket/runs/a");
  EXPECT_EQ(Make("s3://bbb", {})->host, "bbb.s3.us-east-1.amazonaws.com");
  EXPECT_EQ(Make("s3://bbb", {{"AWS_DEFAULT_REGION", "cn-north-1"}})->host,
            "bbb.s3.cn-north-1.amazonaws.com.cn");
}

TEST(S3Config, PathStyleForAddressesLocalhostAndBucketsWithDots) {
  for (const char* endpoint : {"http://127.0.0.1:9000", "http://localhost:9000",
                               "http://[::1]:9000", "http://minio:9000", "http://10.1.2.3"}) {
    const auto config = Make("s3://bbb/p", {{"AWS_ENDPOINT_URL", endpoint}});
    ASSERT_TRUE(config.ok()) << endpoint;
    EXPECT_EQ("http://" + config->host, endpoint);
    EXPECT_EQ(config->base_path, "/bbb");
  }
  EXPECT_EQ(Make("s3://b.c.d", {})->base_path, "/b.c.d");
  EXPECT_EQ(Make("s3://bbb", {{"AWS_ENDPOINT_URL", "https://s3.example.org/"}})->host,
            "bbb.s3.example.org");
}

TEST(S3Config, StyleCanBeFixed) {
  EXPECT_EQ(Make("s3://bbb", {{"CAIRN_S3_ADDRESSING", "path"}})->base_path, "/bbb");
  EXPECT_EQ(Make("s3://bbb",
                 {{"CAIRN_S3_ADDRESSING", "virtual"}, {"AWS_ENDPOINT_URL", "http://localhost:1"}})
                ->host,
            "bbb.localhost:1");
  EXPECT_TRUE(
      Make("s3://bbb", {{"CAIRN_S3_ADDRESSING", "dns"}}).status().Is(Code::kInvalidArgument));
}

TEST(S3Config, EndpointOfS3GoesBeforeTheGeneralOne) {
  EXPECT_EQ(Make("s3://bbb", {{"AWS_ENDPOINT_URL", "http://1.1.1.1"},
                              {"AWS_ENDPOINT_URL_S3", "http://2.2.2.2"}})
                ->host,
            "2.2.2.2");
  EXPECT_EQ(Make("s3://bbb", {{"AWS_ENDPOINT_URL", "http://1.1.1.1:80/base/"}})->base_path,
            "/base/bbb");
  EXPECT_EQ(Make("s3://bbb", {{"AWS_ENDPOINT_URL", "http://1.1.1.1:80"}})->host, "1.1.1.1")
      << "the usual port is not sent";
  for (const char* bad : {"1.1.1.1:9000", "ftp://x", "http://", "http://x?y=z"}) {
    EXPECT_TRUE(Make("s3://bbb", {{"AWS_ENDPOINT_URL", bad}}).status().Is(Code::kInvalidArgument))
        << bad;
  }
}

TEST(S3Config, RefusesWhatIsNoBucketOrPrefix) {
  for (const char* url : {"s3://", "s3://b", "s3://bb_/../x", "s3://bbb/a//b", "s3://bbb/a?x",
                          "s3://bbb/#a", "s3://user@bbb/a", "s3://bbb/.cairn-tmp/x"}) {
    EXPECT_TRUE(Make(url, {}).status().Is(Code::kInvalidArgument)) << url;
  }
}

TEST(S3Config, ProfileGivesWhatVariablesDoNot) {
  const TempDirectory dir;
  Write(dir / "config",
        "# mine\n[default]\nregion = eu-west-1\n[profile lab]\nendpoint_url = http://10.0.0.1:9\n"
        "region=lab-1\nca_bundle = /etc/lab.pem\ns3 =\n  addressing_style = path\n");
  const std::map<std::string, std::string> variables = {{"AWS_CONFIG_FILE", dir / "config"},
                                                        {"AWS_PROFILE", "lab"}};
  const auto config = Make("s3://bbb", variables);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->host, "10.0.0.1:9");
  EXPECT_EQ(config->region, "lab-1");
  EXPECT_EQ(config->ca_bundle, "/etc/lab.pem");
  EXPECT_EQ(Make("s3://bbb", {{"AWS_CONFIG_FILE", dir / "config"}})->region, "eu-west-1");
  auto unknown = variables;
  unknown["AWS_PROFILE"] = "nobody";
  const Status status = Make("s3://bbb", unknown).status();
  EXPECT_TRUE(status.Is(Code::kInvalidArgument));
  EXPECT_THAT(status.ToString(), HasSubstr("nobody"));
}

TEST(S3Config, NestedSettingsOfAProfileAreRead) {
  const TempDirectory dir;
  Write(
      dir / "config",
      "[profile lab]\ns3 =\n  max_concurrent_requests = 20\n\taddressing_style = path\nregion = r\n"
      "services = here\nendpoint_url = https://general.example.org\n"
      "[services here]\ndynamodb =\n  endpoint_url = https://other.example.org\ns3 = \n"
      "  endpoint_url = https://s3.example.org\n"
      "[profile bad]\ns3 =\n  addressing_style = dns\n"
      "[profile general]\nservices = nowhere\nendpoint_url = https://general.example.org\n");
  std::map<std::string, std::string> variables = {{"AWS_CONFIG_FILE", dir / "config"},
                                                  {"AWS_PROFILE", "lab"}};
  const auto config = Make("s3://bbb", variables);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->base_path, "/bbb");
  EXPECT_EQ(config->host, "s3.example.org");
  EXPECT_EQ(config->region, "r");
  variables["CAIRN_S3_ADDRESSING"] = "virtual";
  EXPECT_EQ(Make("s3://bbb", variables)->host, "bbb.s3.example.org") << "ours goes first";
  variables.erase("CAIRN_S3_ADDRESSING");
  variables["AWS_ENDPOINT_URL"] = "https://mine.example.org";
  EXPECT_EQ(Make("s3://bbb", variables)->host, "mine.example.org") << "variables go first";
  variables.erase("AWS_ENDPOINT_URL");
  variables["AWS_PROFILE"] = "general";
  EXPECT_EQ(Make("s3://bbb", variables)->host, "bbb.general.example.org");
  variables["AWS_PROFILE"] = "bad";
  EXPECT_TRUE(Make("s3://bbb", variables).status().Is(Code::kInvalidArgument));
}

TEST(S3Config, DamagedProfileFileNamesFileAndLine) {
  const TempDirectory dir;
  Write(dir / "config", "[default]\nregion = a\nnonsense\n");
  const Status status = Make("s3://bbb", {{"AWS_CONFIG_FILE", dir / "config"}}).status();
  EXPECT_TRUE(status.Is(Code::kInvalidArgument));
  EXPECT_THAT(status.ToString(), HasSubstr("config"));
  EXPECT_THAT(status.ToString(), HasSubstr("line 3"));
  EXPECT_FALSE(ParseAwsFile("[open\n").ok());
  EXPECT_FALSE(ParseAwsFile("a = b\n").ok());
}

TEST(S3Config, OptionsAreChecked) {
  EXPECT_EQ(Make("s3://bbb", {{"CAIRN_UPLOAD_LIMIT", "64M"}})->upload_bytes_per_second, 64u << 20);
  EXPECT_EQ(Make("s3://bbb", {{"CAIRN_UPLOAD_LIMIT", "64M"}}, {.upload_bytes_per_second = 5})
                ->upload_bytes_per_second,
            5u);
  EXPECT_FALSE(Make("s3://bbb", {{"CAIRN_UPLOAD_LIMIT", "fast"}}).ok());
  EXPECT_FALSE(Make("s3://bbb", {{"CAIRN_UPLOAD_LIMIT", "99999999999999999999"}}).ok());
  EXPECT_FALSE(Make("s3://bbb", {{"CAIRN_UPLOAD_LIMIT", "99999999999999G"}}).ok());
  EXPECT_FALSE(Make("s3://bbb", {}, {.part_bytes = 4u << 20}).ok());
  EXPECT_FALSE(Make("s3://bbb", {}, {.part_bytes = (8u << 20) + 1}).ok());
  EXPECT_FALSE(Make("s3://bbb", {}, {.connections = -1}).ok());
  EXPECT_TRUE(Make("s3://bbb", {{"CAIRN_SINGLE_WRITER", "1"}})->single_writer);
  EXPECT_FALSE(Make("s3://bbb", {})->single_writer);
}

}  // namespace
}  // namespace cairn
