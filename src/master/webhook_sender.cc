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
/// URLs that are told something at the same time: one that does not answer keeps its place for a
/// while.
constexpr int kConnections = 64;
/// What an answer takes that comes bit by bit.
constexpr auto kLongestAnswer = std::chrono::seconds(30);

constexpr std::string_view kExperimentKey = "experiment.";

/// The states that a webhook wants to hear of, of what, and of which experiment.
struct Wish {
  std::vector<std::string> states;
  /// One that was made before experiments were told of says nothing, and hears of trials.
  std::vector<std::string> events = {std::string(kTrialEvent)};
  std::string experiment;  // "": all
};

Wish WishOf(const Webhook& webhook) {
  Wish wish;
  const auto read = [&](std::string_view key, std::vector<std::string>* out) {
    const Value* words = webhook.triggers.Find(key);
    if (words == nullptr || words->if_list() == nullptr) return;
    out->clear();
    for (const Value& word : *words->if_list()) {
      if (word.if_string() != nullptr) out->push_back(*word.if_string());
    }
  };
  read("states", &wish.states);
  read("events", &wish.events);
  const Value* experiment = webhook.triggers.Find("experiment");
  if (experiment != nullptr && experiment->if_string() != nullptr) {
    wish.experiment = *experiment->if_string();
  }
  return wish;
}

bool Wants(const Webhook& webhook, std::string_view event, std::string_view state,
           std::int64_t time) {
  if (!webhook.active || webhook.created > time) return false;
  const Wish wish = WishOf(webhook);
  return std::ranges::find(wish.events, event) != wish.events.end() &&
         std::ranges::find(wish.states, state) != wish.states.end();
}

}  // namespace

std::string_view EventOfDelivery(std::string_view key) {
  return key.starts_with(kExperimentKey) ? kExperimentEvent : kTrialEvent;
}

std::vector<Delivery> ExperimentDeliveries(const std::vector<Webhook>& webhooks,
                                           const Experiment& experiment, const std::string& state,
                                           std::int64_t now) {
  std::vector<Delivery> deliveries;
  const std::string id = std::to_string(experiment.id);
  // An experiment comes to a state again and again, but not in the same moment.
  const std::string key = fmt::format("{}{}.{}.{}", kExperimentKey, id, now, state);
  for (const Webhook& webhook : webhooks) {
    const std::string of = WishOf(webhook).experiment;
    if (!Wants(webhook, kExperimentEvent, state, now) || (!of.empty() && of != id)) continue;
    deliveries.push_back(
        {.webhook = webhook.id,
         .key = key,
         .payload = EncodeJson(Value::Object{{"id", key},
                                             {"event", kExperimentEvent},
                                             {"time", static_cast<double>(now) / 1e9},
                                             {"experiment", id},
                                             {"name", experiment.name},
                                             {"trials", experiment.trials},
                                             {"state", state}}),
         .created = now,
         .next_attempt = now});
  }
  return deliveries;
}

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
  ASSIGN_OR_RETURN(sender->client_, HttpClient::Open({.connections = kConnections,
                                                      .stall_timeout = std::chrono::seconds(10),
                                                      .attempt_timeout = kLongestAnswer}));
  return sender;
}

WebhookSender::~WebhookSender() { Stop(); }

void WebhookSender::Start() {
  queue_ = std::jthread([this](const std::stop_token& stop) {
    Run(stop, &WebhookSender::queue_awake_, [this] { return Queue(); });
  });
  send_ = std::jthread([this](const std::stop_token& stop) {
    Run(stop, &WebhookSender::send_awake_, [this] { return SendDue(); });
  });
}

void WebhookSender::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::jthread* thread : {&queue_, &send_}) {
    thread->request_stop();
    if (thread->joinable()) thread->join();
  }
  client_.reset();  // what is on its way is sent again by the next one
}

void WebhookSender::Wake() {
  MutexLock hold(&mu_);
  queue_awake_ = send_awake_ = true;
  changed_.NotifyAll();
}

Status WebhookSender::QueueEvent(const Event& event, const std::vector<Webhook>& webhooks,
                                 std::vector<Delivery>* deliveries) {
  const Value* after = event.body.Find("state");
  const Value* before = event.body.Find("was");
  if (after == nullptr || after->if_string() == nullptr || before == nullptr || *after == *before) {
    return Status::Ok();
  }
  const std::string& state = *after->if_string();
  const auto wanted = [&](const Webhook& webhook) {
    return Wants(webhook, kTrialEvent, state, event.time);
  };
  if (std::ranges::none_of(webhooks, wanted)) return Status::Ok();
  const auto row = options_.catalog->trials().Get(event.trial);
  if (row.status().Is(Code::kNotFound)) return Status::Ok();
  RETURN_IF_ERROR(row.status());
  std::string name;
  if (const auto id = ExperimentId(row->experiment); id.ok()) {
    const auto experiment = options_.catalog->experiments().Get(*id);
    if (!experiment.ok() && !experiment.status().Is(Code::kNotFound)) return experiment.status();
    if (experiment.ok()) name = experiment->name;
  }
  const std::int64_t now = options_.clock->WallNanos();
  const std::string key = fmt::format("{}.{}.{}", event.trial, event.seq, state);
  for (const Webhook& webhook : webhooks) {
    const std::string of = WishOf(webhook).experiment;
    if (!wanted(webhook) || (!of.empty() && of != row->experiment)) continue;
    deliveries->push_back(
        {.webhook = webhook.id,
         .key = key,
         .payload = EncodeJson(Value::Object{{"id", key},
                                             {"event", kTrialEvent},
                                             {"time", static_cast<double>(event.time) / 1e9},
                                             {"experiment", row->experiment},
                                             {"trial", event.trial},
                                             {"name", name},
                                             {"state", state}}),
         .created = now,
         .next_attempt = now});
  }
  return Status::Ok();
}

Result<bool> WebhookSender::Queue() {
  ASSIGN_OR_RETURN(const std::uint64_t cursor, options_.catalog->webhooks().Cursor());
  ASSIGN_OR_RETURN(const std::uint64_t last, options_.catalog->LastEvent());
  if (cursor >= last) return false;
  ASSIGN_OR_RETURN(const std::vector<Webhook> webhooks, options_.catalog->webhooks().List());
  std::vector<Delivery> deliveries;
  std::uint64_t to = last;
  if (!webhooks.empty()) {
    // Read first and looked at then: a replay holds one of the catalog's readers.
    std::vector<Event> events;
    const Status read =
        options_.catalog->events().Replay(cursor + 1, [&](const Event& event) -> Status {
          if (event.seq > last || events.size() == kEventsAtOnce) {
            to = event.seq - 1;
            return CancelledError("enough");
          }
          if (event.body.Find("state") != nullptr) events.push_back(event);
          return Status::Ok();
        });
    if (!read.ok() && !read.Is(Code::kCancelled)) return read;
    for (const Event& event : events) {
      RETURN_IF_ERROR(QueueEvent(event, webhooks, &deliveries));
    }
  }
  RETURN_IF_ERROR(options_.catalog->webhooks().Enqueue(deliveries, to));
  if (!deliveries.empty()) {
    MutexLock hold(&mu_);
    send_awake_ = true;
    changed_.NotifyAll();
  }
  return to < last;
}

HttpCall WebhookSender::CallOf(const Webhook& webhook, const std::string& id, std::string payload,
                               std::function<void(Result<std::string>)> done) const {
  const std::int64_t seconds = options_.clock->WallNanos() / 1'000'000'000;
  // Shared: the request borrows it until its end.
  const auto body = std::make_shared<const std::string>(std::move(payload));
  HttpRequest request{
      .method = "POST",
      .url = webhook.url,
      .headers = {{"Content-Type", "application/json"},
                  {"X-Cairn-Delivery", id},
                  {"X-Cairn-Signature", WebhookSignature(webhook.secret, seconds, *body)}},
      .body = std::as_bytes(std::span(body->data(), body->size())),
      .max_body_bytes = 64u << 10};
  return {.prepare = [request = std::move(request), body](int) -> Result<HttpRequest> {
            return request;
          },
          .retry = nullptr,
          .done =
              [done = std::move(done)](const Result<HttpResponse>& response) {
                if (!response.ok()) return done(response.status());
                std::string said = fmt::format("answered with {}", response->status);
                if (!response->Succeeded()) return done(UnavailableError(std::move(said)));
                done(std::move(said));
              },
          .max_attempts = 1};
}

void WebhookSender::Test(const Webhook& webhook, std::function<void(Result<std::string>)> done) {
  const Value payload =
      Value::Object{{"id", "test"},
                    {"event", "test"},
                    {"time", static_cast<double>(options_.clock->WallNanos()) / 1e9}};
  client_->Start(CallOf(webhook, "test", EncodeJson(payload), std::move(done)));
}

Result<bool> WebhookSender::SendDue() {
  std::vector<Outcome> answered;
  {
    MutexLock hold(&mu_);
    answered.swap(answered_);
  }
  const std::int64_t now = options_.clock->WallNanos();
  for (std::size_t i = 0; i < answered.size(); ++i) {
    const Delivery& delivery = answered[i].delivery;
    const auto shift = std::min<std::uint64_t>(delivery.attempts, 20);
    const std::int64_t pause = std::min<std::int64_t>(options_.first_pause.count() << shift,
                                                      options_.longest_pause.count());
    const bool over = now - delivery.created > options_.give_up.count();
    const Status recorded =
        answered[i].said.ok()
            ? options_.catalog->webhooks().Delivered(delivery.id, *answered[i].said)
            : options_.catalog->webhooks().Failed(delivery.id,
                                                  std::string(answered[i].said.status().message()),
                                                  over ? 0 : now + pause);
    MutexLock hold(&mu_);
    if (!recorded.ok()) {
      // Before it is written down nothing else goes there.
      answered_.insert(answered_.end(), std::make_move_iterator(answered.begin() + i),
                       std::make_move_iterator(answered.end()));
      return recorded;
    }
    on_the_way_.erase(delivery.webhook);
  }
  ASSIGN_OR_RETURN(const std::vector<Webhook> webhooks, options_.catalog->webhooks().List());
  for (const Webhook& webhook : webhooks) {
    {
      MutexLock hold(&mu_);
      if (stopping_) return false;
      if (!webhook.active || on_the_way_.contains(webhook.id)) continue;
    }
    ASSIGN_OR_RETURN(auto due, options_.catalog->webhooks().DueOf(webhook.id, now));
    if (!due) continue;
    {
      MutexLock hold(&mu_);
      on_the_way_.insert(webhook.id);
    }
    std::string payload = due->payload;
    const std::string key = due->key;
    client_->Start(CallOf(webhook, key, std::move(payload),
                          [this, delivery = *std::move(due)](Result<std::string> said) {
                            MutexLock hold(&mu_);
                            answered_.push_back({delivery, std::move(said)});
                            send_awake_ = true;
                            changed_.NotifyAll();
                          }));
  }
  return false;
}

void WebhookSender::Run(const std::stop_token& stop, bool WebhookSender::* awake,
                        const std::function<Result<bool>()>& turn) {
  bool failing = false;  // said once
  while (!stop.stop_requested()) {
    {
      MutexLock hold(&mu_);
      if (!(this->*awake) && !stopping_) changed_.WaitFor(&mu_, options_.interval);
      if (stopping_) return;
      this->*awake = false;
    }
    const Result<bool> done = turn();
    if (done.ok()) {
      if (std::exchange(failing, false)) LogInfo("webhooks: they go on");
      MutexLock hold(&mu_);
      this->*awake = this->*awake || *done;
      continue;
    }
    if (!std::exchange(failing, true)) {
      LogWarning(fmt::format("webhooks: {}; trying again", done.status().ToString()));
    }
    MutexLock hold(&mu_);
    if (!stopping_) changed_.WaitFor(&mu_, options_.interval);
  }
}

}  // namespace cairn::master
