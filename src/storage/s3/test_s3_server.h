#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "net/held_port.h"
#include "storage/s3/s3_store.h"

namespace cairn {

/// A real S3 server (versitygw; with CAIRN_S3_SERVER=minio MinIO) on the loopback interface over a
/// temporary directory, for tests. Started once per test program, which it does not outlive.
/// `scripts/service versitygw` builds it; without it every test that needs it fails and says so.
class TestS3Server {
 public:
  static constexpr const char* kAccessKey = "test";
  static constexpr const char* kSecretKey = "testsecret";

  /// The program's server; null, and a test failure, when it cannot be started.
  static TestS3Server* Get();
  ~TestS3Server();

  std::uint16_t port() const { return port_.number(); }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port()); }
  /// Where the server keeps its buckets, for tests that go behind its back.
  const std::string& directory() const { return directory_; }

  /// A fresh bucket's name.
  std::string NewBucket();
  void DeleteBucket(const std::string& bucket);

  /// The environment of a process that uses the server, or another `port` such as a proxy's.
  std::map<std::string, std::string> Variables(std::uint16_t port = 0) const;
  /// Options for s3://bucket/prefix with quick retries.
  S3StoreOptions Options(const std::string& url, std::uint16_t port = 0) const;
  std::unique_ptr<S3Store> Open(const std::string& url, std::uint16_t port = 0) const;

 private:
  TestS3Server();
  bool Start();
  /// In the child: becomes the server.
  [[noreturn]] void Run(const std::string& program) const;
  /// Whether it serves, not only listens.
  bool IsReady() const;

  const bool minio_;
  std::string directory_;
  const HeldPort port_;
  const HeldPort console_port_;  // MinIO wants one
  pid_t process_ = -1;
  std::atomic<int> buckets_{0};
};

/// Looks names up in a map instead of the process.
Variables VariablesOf(std::map<std::string, std::string> values);

}  // namespace cairn
