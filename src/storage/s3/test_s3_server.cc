#include "storage/s3/test_s3_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace cairn {
namespace {

constexpr auto kPatience = std::chrono::seconds(120);

bool WantsMinio() {
  const char* named = std::getenv("CAIRN_S3_SERVER");
  return named != nullptr && std::string_view(named) == "minio";
}

std::string FindProgram(bool minio) {
  if (const char* named = std::getenv(minio ? "CAIRN_MINIO" : "CAIRN_VERSITYGW")) return named;
  const std::string program = std::string(".cache/services/bin/") + (minio ? "minio" : "versitygw");
  // Tests run in the repository's root, those of other build trees somewhere below it.
  for (std::filesystem::path at = std::filesystem::current_path();; at = at.parent_path()) {
    if (std::filesystem::exists(at / program)) return (at / program).string();
    if (at == at.parent_path()) return "";
  }
}

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

/// The beginning of the answer to a GET of `path`, or of nothing but a connection for "": nullopt
/// when nobody listens.
std::optional<std::string> Ask(std::uint16_t port, const std::string& path) {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(port);
  std::optional<std::string> answer;
  if (connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    answer.emplace();
    if (!path.empty()) {
      const std::string request = "GET " + path + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
      char begin[64];
      const ssize_t sent = send(probe, request.data(), request.size(), MSG_NOSIGNAL);
      const ssize_t got = sent < 0 ? -1 : recv(probe, begin, sizeof begin, 0);
      if (got > 0) answer->assign(begin, static_cast<std::size_t>(got));
    }
  }
  close(probe);
  return answer;
}

}  // namespace

Variables VariablesOf(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

TestS3Server* TestS3Server::Get() {
  static const std::unique_ptr<TestS3Server> server = [] {
    std::unique_ptr<TestS3Server> made(new TestS3Server());
    return made->Start() ? std::move(made) : nullptr;
  }();
  if (server == nullptr) {
    const bool minio = WantsMinio();
    ADD_FAILURE() << "there is no S3 server to test with: build it with `scripts/service "
                  << (minio ? "minio" : "versitygw")
                  << "` (it goes to .cache/services/bin), or name one with "
                  << (minio ? "CAIRN_MINIO" : "CAIRN_VERSITYGW");
  }
  return server.get();
}

TestS3Server::TestS3Server() : minio_(WantsMinio()) {}

bool TestS3Server::IsReady() const {
  if (!minio_) return Ask(port(), "").has_value();
  const auto answer = Ask(port(), "/minio/health/ready");
  return answer && answer->find(" 200 ") != answer->npos;
}

void TestS3Server::Run(const std::string& program) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv(minio_ ? "MINIO_ROOT_USER" : "ROOT_ACCESS_KEY", kAccessKey, 1);
  setenv(minio_ ? "MINIO_ROOT_PASSWORD" : "ROOT_SECRET_KEY", kSecretKey, 1);
  setenv("MINIO_BROWSER", "off", 1);
  const int log = open((directory_ + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(log, 1);
  dup2(log, 2);
  const std::string where = "127.0.0.1:" + std::to_string(port());
  const std::string console = "127.0.0.1:" + std::to_string(console_port_.number());
  if (minio_) {
    execl(program.c_str(), program.c_str(), "server", "--quiet", "--address", where.c_str(),
          "--console-address", console.c_str(), directory_.c_str(), nullptr);
  } else {
    execl(program.c_str(), program.c_str(), "--port", where.c_str(), "posix", directory_.c_str(),
          nullptr);
  }
  _exit(127);
}

bool TestS3Server::Start() {
  const std::string program = FindProgram(minio_);
  if (program.empty()) return false;
  std::string pattern = ::testing::TempDir() + "/cairn-s3-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) return false;
  if (port() == 0 || console_port_.number() == 0) {
    ADD_FAILURE() << "no free port on 127.0.0.1";
    return false;
  }
  directory_ = pattern;
  process_ = fork();
  if (process_ == 0) Run(program);
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < kPatience) {
    if (IsReady()) return true;
    if (waitpid(process_, nullptr, WNOHANG) == process_) {
      process_ = -1;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // it does not tell
  }
  return false;
}

TestS3Server::~TestS3Server() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
  std::filesystem::remove(directory_ + ".log", ignored);
}

std::string TestS3Server::NewBucket() {
  const std::string bucket = "bucket-" + std::to_string(++buckets_);
  const auto store = Open("s3://" + bucket);
  const auto made = store->client()->Expect({.what = "make", .method = "PUT"});
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return bucket;
}

void TestS3Server::DeleteBucket(const std::string& bucket) {
  std::error_code ignored;
  std::filesystem::remove_all(directory_ + "/" + bucket, ignored);
}

std::map<std::string, std::string> TestS3Server::Variables(std::uint16_t port) const {
  return {
      {"AWS_ACCESS_KEY_ID", kAccessKey},
      {"AWS_SECRET_ACCESS_KEY", kSecretKey},
      {"AWS_REGION", "us-east-1"},
      {"AWS_ENDPOINT_URL", "http://127.0.0.1:" + std::to_string(port == 0 ? port_.number() : port)},
      // Nothing of the machine's own files.
      {"AWS_CONFIG_FILE", directory_ + "/no-config"},
      {"AWS_SHARED_CREDENTIALS_FILE", directory_ + "/no-credentials"}};
}

S3StoreOptions TestS3Server::Options(const std::string& url, std::uint16_t port) const {
  S3StoreOptions options;
  options.url = url;
  options.storage.part_bytes = 5u << 20;
  options.environment.variables = VariablesOf(Variables(port));
  options.environment.retry = {.max_attempts = 6,
                               .first_wait = std::chrono::milliseconds(2),
                               .longest_wait = std::chrono::milliseconds(50)};
  return options;
}

std::unique_ptr<S3Store> TestS3Server::Open(const std::string& url, std::uint16_t port) const {
  auto store = S3Store::Open(Options(url, port));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? *std::move(store) : nullptr;
}

}  // namespace cairn
