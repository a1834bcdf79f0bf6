#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "net/held_port.h"
#include "storage/local/temp_directory.h"

namespace cairn {

/// A NameNode and a DataNode in one process of its own, on loopback and in a temporary directory.
/// `scripts/service hdfs` builds it. Destruction ends the process.
class TestHdfsServer {
 public:
  struct Options {
    bool permissions = false;  // keep users apart
  };

  /// The one that all tests of a program share, started when first asked for.
  static Result<TestHdfsServer*> Shared();
  static Result<std::unique_ptr<TestHdfsServer>> Start(const Options& options);
  ~TestHdfsServer();
  TestHdfsServer(const TestHdfsServer&) = delete;
  TestHdfsServer& operator=(const TestHdfsServer&) = delete;

  std::uint16_t http_port() const { return http_port_.number(); }
  std::uint16_t rpc_port() const { return rpc_port_.number(); }
  std::uint16_t data_port() const { return data_port_.number(); }
  /// hdfs://127.0.0.1:port/<path>
  std::string Url(const std::string& path) const;
  /// A URL that no other call has given.
  std::string FreshUrl();
  /// Ends the process as a power cut would, and starts it again on the same ports and data.
  Status KillAndRestart();

 private:
  TestHdfsServer() = default;
  Status Launch();
  void Kill(int signal);

  TempDirectory directory_;
  bool permissions_ = false;
  const HeldPort http_port_;
  const HeldPort rpc_port_;
  const HeldPort data_port_;
  pid_t pid_ = -1;
  int urls_ = 0;
};

}  // namespace cairn
