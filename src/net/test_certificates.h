#pragma once

#include <string>

namespace cairn {

/// For tests: an authority of its own, and a server's certificate of it for 127.0.0.1, localhost
/// and cairn.test, as PEM files in a directory. Two of them know nothing of each other.
class TestCertificates {
 public:
  explicit TestCertificates(std::string directory);
  bool ok() const { return ok_; }

  std::string ca() const { return directory_ + "/ca.crt"; }
  std::string certificate() const { return directory_ + "/server.crt"; }
  std::string key() const { return directory_ + "/server.key"; }
  /// The same key, with a passphrase.
  std::string locked_key() const { return directory_ + "/locked.key"; }

 private:
  const std::string directory_;
  bool ok_ = false;
};

}  // namespace cairn
