#pragma once

#include <string>

namespace cairn {

/// The real Ray beside which this program was started (tests/services/ray/in-ray). Ends the
/// program, with the reason, when there is none.
class TestRay {
 public:
  static TestRay& Get();

  /// Its dashboard's URL; the token is in the environment.
  const std::string& url() const { return url_; }
  /// Kills all processes of a node, "head" or "second", with SIGKILL, and starts one.
  /// `environment`: more for it, "A=b B=c".
  void KillNode(const std::string& node);
  void StartNode(const std::string& node, const std::string& environment = "");
  /// Runs a command line, with Ray's programs on the PATH, and gives its output.
  std::string Shell(const std::string& command);

 private:
  TestRay();

  std::string url_;
  std::string directory_;
  std::string programs_;
};

}  // namespace cairn
