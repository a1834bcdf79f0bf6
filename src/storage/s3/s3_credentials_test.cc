#include "storage/s3/s3_credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "net/test_http_server.h"
#include "storage/local/temp_directory.h"
#include "storage/s3/test_s3_server.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

class SetClock final : public Clock {
 public:
  Duration Now() override { return Clock::System()->Now(); }
  std::int64_t WallNanos() override { return wall.load(); }
  void Sleep(Duration duration) override { Clock::System()->Sleep(duration); }
  std::atomic<std::int64_t> wall{1'800'000'000 * kSecond};
};

std::unique_ptr<S3CredentialSource> Source(std::map<std::string, std::string> variables,
                                           Clock* clock = Clock::System()) {
  variables.emplace("HOME", "/nonexistent");
  return *S3CredentialSource::Open(VariablesOf(std::move(variables)), clock);
}

TEST(S3Credentials, VariablesGoFirst) {
  const auto keys =
      Source(
          {{"AWS_ACCESS_KEY_ID", "a"}, {"AWS_SECRET_ACCESS_KEY", "s"}, {"AWS_SESSION_TOKEN", "t"}})
          ->Get();
  ASSERT_TRUE(keys.ok());
  EXPECT_EQ(keys->access_key, "a");
  EXPECT_EQ(keys->secret_key, "s");
  EXPECT_EQ(keys->session_token, "t");
}

TEST(S3Credentials, HalfAPairIsNamed) {
  const Status status = Source({{"AWS_ACCESS_KEY_ID", "a"}})->Get().status();
  EXPECT_TRUE(status.Is(Code::kPermissionDenied));
  EXPECT_THAT(status.ToString(), HasSubstr("without AWS_SECRET_ACCESS_KEY"));
}

TEST(S3Credentials, NoneSaysWhereItLooked) {
  const Status status = Source({})->Get().status();
  EXPECT_TRUE(status.Is(Code::kPermissionDenied));
  EXPECT_THAT(status.ToString(), HasSubstr("AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(status.ToString(), HasSubstr("/nonexistent/.aws/credentials"));
}

TEST(S3Credentials, ProfilesKeysAreReadAgainWhenRefused) {
  const TempDirectory dir;
  const auto write = [&](const std::string& key) {
    std::ofstream(dir / "credentials") << "[lab]\naws_access_key_id = " << key
                                       << "\naws_secret_access_key = s\naws_session_token = t\n";
  };
  write("one");
  const auto source =
      Source({{"AWS_SHARED_CREDENTIALS_FILE", dir / "credentials"}, {"AWS_PROFILE", "lab"}});
  EXPECT_EQ(source->Get()->access_key, "one");
  write("two");
  EXPECT_EQ(source->Get()->access_key, "one") << "files are not read for each request";
  source->Invalidate("another");
  EXPECT_EQ(source->Get()->access_key, "one");
  source->Invalidate("one");
  EXPECT_EQ(source->Get()->access_key, "two");
}

TEST(S3Credentials, ContainersKeysAreRenewedBeforeTheyExpire) {
  SetClock clock;
  std::atomic<int> requests = 0;
  std::atomic<bool> down = false;
  TestHttpServer server([&](const TestHttpRequest& request) {
    if (request.Header("authorization") != "secret token") return Answer(401);
    if (down) return Answer(404);
    const int n = ++requests;
    // 2027-01-15T08:00:00Z is 1,800,000,000 s; an hour more each time.
    return Answer(200, "{\"AccessKeyId\":\"k" + std::to_string(n) +
                           "\",\"SecretAccessKey\":\"s\",\"Token\":\"t\",\"Expiration\":\"2027-01-"
                           "15T" +
                           (n == 1 ? "09" : "10") + ":00:00.5Z\"}");
  });
  const auto source = Source({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/keys"},
                              {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "secret token"}},
                             &clock);
  EXPECT_EQ(source->Get()->access_key, "k1");
  clock.wall += 3290 * kSecond;
  EXPECT_EQ(source->Get()->access_key, "k1");
  down = true;
  clock.wall += 20 * kSecond;  // within five minutes of the end
  EXPECT_EQ(source->Get()->access_key, "k1") << "still valid, and nobody answers";
  down = false;
  EXPECT_EQ(source->Get()->access_key, "k2");
  EXPECT_EQ(requests, 2);
  down = true;
  clock.wall += 7200 * kSecond;
  EXPECT_TRUE(source->Get().status().Is(Code::kPermissionDenied)) << "expired keys are of no use";
}

TEST(S3Credentials, ContainersTokenMayBeInAFile) {
  const TempDirectory dir;
  std::ofstream(dir / "token") << "from file\n";
  TestHttpServer server([&](const TestHttpRequest& request) {
    return Answer(200, "{\"AccessKeyId\":\"" + std::string(request.Header("authorization")) +
                           "\",\"SecretAccessKey\":\"s\"}");
  });
  EXPECT_EQ(Source({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url()},
                    {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", dir / "token"}})
                ->Get()
                ->access_key,
            "from file");
}

TEST(S3Credentials, ContainersKeysAreNotFetchedThroughAProxy) {
  std::atomic<int> seen = 0;
  TestHttpServer proxy([&](const TestHttpRequest&) {
    ++seen;
    return Answer(502);
  });
  TestHttpServer server([&](const TestHttpRequest&) {
    return Answer(200, "{\"AccessKeyId\":\"direct\",\"SecretAccessKey\":\"s\"}");
  });
  for (const char* name : {"http_proxy", "all_proxy"}) setenv(name, proxy.url().c_str(), 1);
  const auto keys = Source({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url()}})->Get();
  for (const char* name : {"http_proxy", "all_proxy"}) unsetenv(name);
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  EXPECT_EQ(keys->access_key, "direct");
  EXPECT_EQ(seen, 0) << "no token goes to a proxy";
}

TEST(S3Credentials, SourcesThatAreNotKnownAreNamed) {
  const TempDirectory dir;
  std::ofstream(dir / "config")
      << "[profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = base\n"
         "[profile sso]\nsso_session = corp\n[profile both]\nrole_arn = arn:aws:iam::1:role/x\n"
         "[profile process]\ncredential_process = /bin/keys\n[profile plain]\nregion = r\n";
  std::ofstream(dir / "credentials")
      << "[base]\naws_access_key_id = b\naws_secret_access_key = s\n"
         "[both]\naws_access_key_id = k\naws_secret_access_key = s\n";
  const auto get = [&](const std::string& profile, const std::string& variable = "X") {
    return Source({{"AWS_CONFIG_FILE", dir / "config"},
                   {"AWS_SHARED_CREDENTIALS_FILE", dir / "credentials"},
                   {"AWS_PROFILE", profile},
                   {variable, "/some/file"}})
        ->Get();
  };
  for (const auto& [profile, says] :
       {std::pair{"role", "role_arn"}, {"sso", "sso_session"}, {"process", "credential_process"}}) {
    const Status status = get(profile).status();
    EXPECT_TRUE(status.Is(Code::kPermissionDenied)) << status.ToString();
    EXPECT_THAT(status.ToString(), HasSubstr("the profile \"" + std::string(profile) + "\""));
    EXPECT_THAT(status.ToString(), HasSubstr(says));
    EXPECT_THAT(status.ToString(),
                HasSubstr("export-credentials --profile " + std::string(profile)));
  }
  EXPECT_EQ(get("both")->access_key, "k") << "keys that are there are used";
  EXPECT_THAT(get("plain").status().ToString(), HasSubstr("set AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(get("plain", "AWS_WEB_IDENTITY_TOKEN_FILE").status().ToString(),
              HasSubstr("AWS_WEB_IDENTITY_TOKEN_FILE asks"));
}

TEST(S3Credentials, KeysAreNotFetchedFromStrangersInTheClear) {
  const Status status =
      Source({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/keys"}})->Get().status();
  EXPECT_TRUE(status.Is(Code::kInvalidArgument));
  EXPECT_THAT(status.ToString(), HasSubstr("https"));
}

TEST(S3Credentials, DamagedAnswersAreRefused) {
  for (const char* body :
       {"", "[]", "{}", "{\"AccessKeyId\":\"a\"}", "{\"AccessKeyId\":1}",
        "{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"s\",\"Expiration\":\"x\"}"}) {
    EXPECT_TRUE(DecodeContainerCredentials(body).status().Is(Code::kCorruption)) << body;
  }
}

TEST(S3Credentials, ReadsUtcTimesOnly) {
  EXPECT_EQ(*ParseIsoTime("1970-01-01T00:00:01Z"), kSecond);
  EXPECT_EQ(*ParseIsoTime("2027-01-15T08:00:00.123456Z"), 1'800'000'000 * kSecond);
  for (const char* bad :
       {"", "now", "2027-01-15", "2027-01-15T08:00:00", "2027-01-15T08:00:00+01"}) {
    EXPECT_FALSE(ParseIsoTime(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace cairn
