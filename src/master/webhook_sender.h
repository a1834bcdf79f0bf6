#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

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

/// Tells URLs what became of trials and experiments. Deliveries are queued in the catalog, of
/// trials from the engine's events, each looked at once, of experiments with the change itself
/// (ExperimentDeliveries), and tried again with growing pauses: they survive the master, and may
/// come twice, with the same id. One at a time is on its way to each URL, whatever the others do.
/// May be called from any thread.
class WebhookSender {
 public:
  using Options = WebhookSenderOptions;
  static Result<std::unique_ptr<WebhookSender>> Open(Options options);
  ~WebhookSender();
  WebhookSender(const WebhookSender&) = delete;
  WebhookSender& operator=(const WebhookSender&) = delete;

  void Start();
  void Stop();
  /// There are events that nobody looked at, or deliveries that others queued. Quick.
  void Wake();
  /// Sends one now, once, and calls `done` with how it was answered: on a thread that others need.
  void Test(const Webhook& webhook, std::function<void(Result<std::string>)> done);

 private:
  explicit WebhookSender(Options options) : options_(std::move(options)) {}
  /// A delivery that was answered, or not.
  struct Outcome {
    Delivery delivery;
    Result<std::string> said;
  };

  /// Calls `turn` again and again: at once while it returns true, else when `awake`, or now and
  /// then.
  void Run(const std::stop_token& stop, bool WebhookSender::* awake,
           const std::function<Result<bool>()>& turn);
  /// Puts deliveries of new events into the queue. True: there are more events.
  Result<bool> Queue();
  Status QueueEvent(const Event& event, const std::vector<Webhook>& webhooks,
                    std::vector<Delivery>* deliveries);
  /// Records how deliveries were answered, and sends to each webhook that waits for none.
  Result<bool> SendDue();
  HttpCall CallOf(const Webhook& webhook, const std::string& id, std::string payload,
                  std::function<void(Result<std::string>)> done) const;

  const Options options_;
  std::unique_ptr<HttpClient> client_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool queue_awake_ GUARDED_BY(mu_) = true;
  bool send_awake_ GUARDED_BY(mu_) = true;
  std::set<std::int64_t> on_the_way_ GUARDED_BY(mu_);  // webhooks
  std::vector<Outcome> answered_ GUARDED_BY(mu_);
  std::jthread queue_;
  std::jthread send_;
};

/// What a webhook can be told of: the word in `events` of its triggers and in what it is told.
inline constexpr std::string_view kTrialEvent = "state";
inline constexpr std::string_view kExperimentEvent = "experiment";
/// Which of the two a delivery with this key is.
std::string_view EventOfDelivery(std::string_view key);
/// What the webhooks that want to hear of it are told when the experiment comes to `state`: for
/// ExperimentChange::deliveries.
std::vector<Delivery> ExperimentDeliveries(const std::vector<Webhook>& webhooks,
                                           const Experiment& experiment, const std::string& state,
                                           std::int64_t now);

/// What goes into X-Cairn-Signature: "t=TIME,sha256=HMAC" over "TIME.BODY".
std::string WebhookSignature(std::string_view secret, std::int64_t seconds, std::string_view body);

}  // namespace cairn::master
