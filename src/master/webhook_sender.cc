#include "master/webhook_sender.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "master/experiments.h"

namespace cairn::master {
namespace {

constexpr std::size_t kEventsAtOnce = 1000;

/// The states that a webhook wants to hear of, and of which experiment.
struct Wish {
  std::vector<std::string> states;
  std::string experiment;  // "": all
};

Wish WishOf(const Webhook& webhook) {
  Wish wish;
  const Value* states = webhook.triggers.Find("states");
  if (states != nullptr && states->if_list() != nullptr) {
    for (const Value& state : *states->if_list()) {
      if (state.if_string() != nullptr) wish.states.push_back(*state.if_string());
    }
  }
  const Value* experiment = webhook.triggers.Find("experiment");
  if (experiment != nullptr && experiment->if_string() != nullptr) {
    wish.experiment = *experiment->if_string();
  }
  return wish;
}

}  // namespace

std::string WebhookSignature(std::string_view secret, std::int64_t seconds, std::string_view body) {
  const std::string text = fmt::format("{}.{}", seconds, body);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &size);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return fmt::format("t={},sha256={}", seconds, hex);
}

Result<std::unique_ptr<WebhookSender>> WebhookSender::Open(Options options) {
  std::unique_ptr<WebhookSender> sender(new WebhookSender(std::move(options)));
  ASSIGN_OR_RETURN(sender->client_,
                   HttpClient::Open({.connections = 4, .stall_timeout = std::chrono::seconds(10)}));
  return sender;
}

WebhookSender::~WebhookSender() { Stop(); }

void WebhookSender::Start() {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void WebhookSender::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void WebhookSender::Wake() {
  MutexLock hold(&mu_);
  awake_ = true;
  changed_.NotifyAll();
}

/// States after events are folded again from the log, so that none is missed while the master was
/// away: a change is an event after which the trial is in another state than before.
Status WebhookSender::Queue() {
  ASSIGN_OR_RETURN(const std::uint64_t cursor, options_.catalog->webhooks().Cursor());
  ASSIGN_OR_RETURN(const std::uint64_t last, options_.catalog->LastEvent());
  if (cursor >= last) return Status::Ok();
  ASSIGN_OR_RETURN(const std::vector<Webhook> webhooks, options_.catalog->webhooks().List());
  std::vector<Delivery> deliveries;
  const std::int64_t now = options_.clock->WallNanos();
  if (!webhooks.empty()) {
    std::size_t seen = 0;
    std::uint64_t to = last;
    RETURN_IF_ERROR([&] {
      const Status status =
          options_.catalog->events().Replay(cursor + 1, [&](const Event& event) -> Status {
            if (event.kind != EventKind::kRunExited && event.kind != EventKind::kRunReady &&
                event.kind != EventKind::kPauseRequested &&
                event.kind != EventKind::kCancelRequested &&
                event.kind != EventKind::kKillRequested && event.kind != EventKind::kActivated &&
                event.kind != EventKind::kRunStarted && event.kind != EventKind::kTrialCreated) {
              return Status::Ok();
            }
            if (++seen > kEventsAtOnce) {
              to = event.seq - 1;
              return CancelledError("enough");
            }
            const auto row = options_.catalog->trials().Get(event.trial);
            if (!row.ok()) return Status::Ok();
            const std::string state(TrialStateName(row->core.state));
            std::string name;
            if (const auto id = ExperimentId(row->experiment); id.ok()) {
              const auto experiment = options_.catalog->experiments().Get(*id);
              if (experiment.ok()) name = experiment->name;
            }
            for (const Webhook& webhook : webhooks) {
              const Wish wish = WishOf(webhook);
              if (!webhook.active || webhook.created > event.time ||
                  std::ranges::find(wish.states, state) == wish.states.end() ||
                  (!wish.experiment.empty() && wish.experiment != row->experiment)) {
                continue;
              }
              // The run's number tells two ends of the same trial apart, and one change that is
              // seen with several events is told once.
              const std::string key = fmt::format("{}.{}.{}", event.trial, row->core.run, state);
              deliveries.push_back({.webhook = webhook.id,
                                    .key = key,
                                    .payload = EncodeJson(Value::Object{
                                        {"id", key},
                                        {"event", "state"},
                                        {"time", static_cast<double>(event.time) / 1e9},
                                        {"experiment", row->experiment},
                                        {"trial", event.trial},
                                        {"name", name},
                                        {"state", state}}),
                                    .created = now,
                                    .next_attempt = now});
            }
            return Status::Ok();
          });
      return status.Is(Code::kCancelled) ? Status::Ok() : status;
    }());
    return options_.catalog->webhooks().Enqueue(deliveries, to);
  }
  return options_.catalog->webhooks().Enqueue(deliveries, last);
}

Result<std::string> WebhookSender::Post(const Webhook& webhook, const std::string& id,
                                        const std::string& payload) {
  const std::int64_t seconds = options_.clock->WallNanos() / 1'000'000'000;
  HttpRequest request{
      .method = "POST",
      .url = webhook.url,
      .headers = {{"Content-Type", "application/json"},
                  {"X-Cairn-Delivery", id},
                  {"X-Cairn-Signature", WebhookSignature(webhook.secret, seconds, payload)}},
      .body = std::as_bytes(std::span(payload.data(), payload.size())),
      .max_body_bytes = 64u << 10};
  HttpCall call{.prepare = [&](int) -> Result<HttpRequest> { return request; },
                .retry = nullptr,
                .done = nullptr,
                .max_attempts = 1};
  ASSIGN_OR_RETURN(const HttpResponse response, client_->Fetch(std::move(call)));
  const std::string said = fmt::format("answered with {}", response.status);
  if (!response.Succeeded()) return UnavailableError(said);
  return said;
}

Result<std::string> WebhookSender::Test(const Webhook& webhook) {
  return Post(
      webhook, "test",
      EncodeJson(Value::Object{{"id", "test"},
                               {"event", "test"},
                               {"time", static_cast<double>(options_.clock->WallNanos()) / 1e9}}));
}

Status WebhookSender::SendDue() {
  ASSIGN_OR_RETURN(const std::vector<Delivery> due,
                   options_.catalog->webhooks().Due(options_.clock->WallNanos(), 20));
  for (const Delivery& delivery : due) {
    {
      MutexLock hold(&mu_);
      if (stopping_) return Status::Ok();
    }
    const auto webhook = options_.catalog->webhooks().Get(delivery.webhook);
    if (!webhook.ok()) continue;
    const auto sent = Post(*webhook, delivery.key, delivery.payload);
    if (sent.ok()) {
      RETURN_IF_ERROR(options_.catalog->webhooks().Delivered(delivery.id, *sent));
      continue;
    }
    const std::int64_t now = options_.clock->WallNanos();
    const auto shift = std::min<std::uint64_t>(delivery.attempts, 20);
    const std::int64_t pause = std::min<std::int64_t>(options_.first_pause.count() << shift,
                                                      options_.longest_pause.count());
    const bool over = now - delivery.created > options_.give_up.count();
    RETURN_IF_ERROR(options_.catalog->webhooks().Failed(
        delivery.id, std::string(sent.status().message()), over ? 0 : now + pause));
  }
  return Status::Ok();
}

void WebhookSender::Run(const std::stop_token& stop) {
  bool failing = false;  // said once
  while (!stop.stop_requested()) {
    {
      MutexLock hold(&mu_);
      if (!awake_ && !stopping_) changed_.WaitFor(&mu_, options_.interval);
      if (stopping_) return;
      awake_ = false;
    }
    Status status = Queue();
    if (status.ok()) status = SendDue();
    if (status.ok()) {
      if (std::exchange(failing, false)) LogInfo("webhooks: they go on");
    } else {
      if (!std::exchange(failing, true)) {
        LogWarning(fmt::format("webhooks: {}; trying again", status.ToString()));
      }
      MutexLock hold(&mu_);
      if (!stopping_) changed_.WaitFor(&mu_, options_.interval);
    }
  }
}

}  // namespace cairn::master
