#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include <cairn/status.h>

#include "net/held_port.h"
#include "storage/local/temp_directory.h"

namespace cairn {

/// A real PostgreSQL 15 on loopback and in a temporary directory, for tests. Destruction ends the
/// process; the kernel ends it with this one. Root runs it as the user postgres.
class TestPostgresServer {
 public:
  /// The one that all tests of a program share, started when first asked for.
  static Result<TestPostgresServer*> Shared();
  static Result<std::unique_ptr<TestPostgresServer>> Start();
  ~TestPostgresServer();
  TestPostgresServer(const TestPostgresServer&) = delete;
  TestPostgresServer& operator=(const TestPostgresServer&) = delete;

  /// The URL of a fresh, empty database.
  Result<std::string> FreshDatabase();
  std::string Url(const std::string& database) const;

  /// Stops it in good order, sending clients away; Launch starts it again on the same port and
  /// data.
  void Stop();
  /// Ends it as a power cut would.
  void Kill();
  Status Launch();

 private:
  TestPostgresServer() = default;
  Status Initialize();

  TempDirectory directory_;
  const HeldPort port_;
  pid_t pid_ = -1;
  int databases_ = 0;
};

}  // namespace cairn
