#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/thread_annotations.h"
#include "catalog/catalog.h"
#include "net/http_client.h"
#include "trial/trial_engine.h"

namespace cairn::master {

struct WebhookSenderOptions {
  Catalog* catalog = nullptr;  // borrowed, as all pointers here
  Clock* clock = Clock::System();
  std::function<std::string(const std::string& trial)> experiment_of;
  /// After so long a delivery is given up.
  std::chrono::nanoseconds give_up = std::chrono::hours(24);
  std::chrono::nanoseconds first_pause = std::chrono::seconds(2);
  std::chrono::nanoseconds longest_pause = std::chrono::minutes(30);
  /// How often the queue is looked at.
  std::chrono::nanoseconds interval = std::chrono::seconds(1);
};

/// Tells URLs what became of trials. Deliveries are queued in the catalog from the engine's events,
/// each looked at once, and tried again with growing pauses: they survive the master, and may come
/// twice, with the same id. May be called from any thread.
class WebhookSender {
 public:
  using Options = WebhookSenderOptions;
  static Result<std::unique_ptr<WebhookSender>> Open(Options options);
  ~WebhookSender();
  WebhookSender(const WebhookSender&) = delete;
  WebhookSender& operator=(const WebhookSender&) = delete;

  void Start();
  void Stop();
  /// There are events that nobody looked at. Quick.
  void Wake();
  /// Sends one now, once: how it was answered.
  Result<std::string> Test(const Webhook& webhook);

 private:
  explicit WebhookSender(Options options) : options_(std::move(options)) {}
  void Run(const std::stop_token& stop);
  Status Queue();
  Status SendDue();
  Result<std::string> Post(const Webhook& webhook, const std::string& id,
                           const std::string& payload);

  const Options options_;
  std::unique_ptr<HttpClient> client_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool awake_ GUARDED_BY(mu_) = true;
  std::jthread thread_;
};

/// What goes into X-Cairn-Signature: "t=TIME,sha256=HMAC" over "TIME.BODY".
std::string WebhookSignature(std::string_view secret, std::int64_t seconds, std::string_view body);

}  // namespace cairn::master
