#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "net/http_client.h"

namespace cairn::cli {

struct PsSaveNotifierOptions {
  std::string url;    // POSTed to: `…/v2/models/<m>/notify` of a `cairn serve`
  std::string token;  // that it asks for; may be empty
  std::string ca;     // PEM file that its certificate is checked against; "": the system's
  /// How many checkpoints were committed so far; nothing: not known now. Asked on the notifier's
  /// thread, some times a second.
  std::function<std::optional<std::int64_t>()> saves;
};

/// Tells who serves that there is something new, each time that a parameter server has committed.
/// It says "look now" and nothing else: a notification that is lost makes a version later by the
/// period of polling. One that cannot be told changes nothing for the server: it is said once.
class PsSaveNotifier {
 public:
  /// Null when no URL is named.
  static Result<std::unique_ptr<PsSaveNotifier>> Start(PsSaveNotifierOptions options);
  /// Tells of the last one too.
  ~PsSaveNotifier();
  PsSaveNotifier(const PsSaveNotifier&) = delete;
  PsSaveNotifier& operator=(const PsSaveNotifier&) = delete;

 private:
  PsSaveNotifier(PsSaveNotifierOptions options, std::unique_ptr<HttpClient> client);
  void Run();
  void TellIfNew();

  const PsSaveNotifierOptions options_;
  const std::unique_ptr<HttpClient> client_;
  // The thread alone.
  std::int64_t told_ = 0;
  bool failing_ = false;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::jthread thread_;
};

}  // namespace cairn::cli
