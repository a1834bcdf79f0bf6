// The cluster: slots and queue, storage, events, webhooks, figures, health.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/api.h"
#include "master/api_json.h"
#include "master/prometheus.h"
#include "net/token.h"
#include "storage/open_store.h"

namespace cairn::master {
namespace {

constexpr std::string_view kStates[] = {"QUEUED",   "STARTING",  "RUNNING",  "PAUSING", "PAUSED",
                                        "STOPPING", "COMPLETED", "CANCELED", "ERROR"};

Value EntryOf(const ApiParts& parts, const LaunchInfo& launch, const std::string& trial) {
  const std::string experiment = parts.experiments->ExperimentOfTrial(trial);
  Value::Object out{
      {"trial", trial},
      {"experiment", experiment},
      {"name", ""},
      {"owner", ""},
      {"state", "QUEUED"},
      {"slots", launch.slots},
      {"priority", launch.priority},
      {"since",
       static_cast<double>(launch.started != 0 ? launch.started : launch.submitted) / 1e9}};
  if (!launch.reason.empty()) out["reason"] = launch.reason;
  if (!launch.launcher.empty()) out["launcher"] = launch.launcher;
  if (const auto view = parts.engine->Summary(trial); view.ok()) {
    out["state"] = std::string(TrialStateName(view->state));
  }
  if (const auto id = ExperimentId(experiment); id.ok()) {
    if (const auto record = parts.catalog->experiments().Get(*id); record.ok()) {
      out["name"] = record->name;
      out["owner"] = record->owner;
    }
  }
  return out;
}

Result<ApiAnswer> Cluster(const ApiParts& parts) {
  ASSIGN_OR_RETURN(std::vector<LaunchInfo> launches, parts.launcher->List());
  std::erase_if(launches, [](const LaunchInfo& one) { return one.state == LaunchState::kEnded; });
  std::ranges::stable_sort(launches, [](const LaunchInfo& a, const LaunchInfo& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.submitted < b.submitted;
  });
  Value::List running;
  Value::List queue;
  int used = 0;
  for (const LaunchInfo& launch : launches) {
    const auto run = parts.engine->RunOfLaunch(launch.id);
    if (HasSlotsHere(launch)) used += launch.slots;
    if (!run) continue;
    const bool runs = launch.state == LaunchState::kRunning;
    Value::List& list = runs ? running : queue;
    if (list.size() < kMaxPage) list.push_back(EntryOf(parts, launch, run->trial));
  }
  return ApiAnswer{.body = Value::Object{{"slots", parts.slots},
                                         {"used_slots", used},
                                         {"running", std::move(running)},
                                         {"queue", std::move(queue)},
                                         {"services", parts.services->List()}}};
}

Result<ApiAnswer> Storage(const ApiParts& parts) {
  ASSIGN_OR_RETURN(const auto usage, parts.catalog->trials().StorageUsage());
  Value::List list;
  std::uint64_t bytes = 0;
  std::uint64_t checkpoints = 0;
  for (const CatalogTrials::Usage& one : usage) {
    const auto id = ExperimentId(one.experiment);
    const auto record =
        id.ok() ? parts.catalog->experiments().Get(*id) : Result<Experiment>(id.status());
    if (!record.ok()) continue;  // deleted: its storage is being freed
    std::uint64_t pinned_bytes = 0;
    ASSIGN_OR_RETURN(const Page<CheckpointRow> pinned,
                     parts.catalog->trials().Checkpoints({.experiment = one.experiment,
                                                          .states = {"COMPLETED"},
                                                          .pinned = true,
                                                          .limit = kMaxPage}));
    for (const CheckpointRow& row : pinned.items) pinned_bytes += row.record.bytes;
    bytes += one.bytes;
    checkpoints += one.checkpoints;
    list.emplace_back(Value::Object{{"experiment", one.experiment},
                                    {"name", record->name},
                                    {"storage", Located(record->storage, parts.data_directory)},
                                    {"checkpoints", one.checkpoints},
                                    {"bytes", one.bytes},
                                    {"pinned_bytes", pinned_bytes}});
  }
  Value free;
  if (const auto store = OpenStore(parts.default_storage, {.create = false}); store.ok()) {
    if (const auto left = (*store)->FreeBytes(); left.ok() && left->has_value()) free = **left;
  }
  return ApiAnswer{.body = Value::Object{{"bytes", bytes},
                                         {"checkpoints", checkpoints},
                                         {"free_bytes", free},
                                         {"experiments", std::move(list)}}};
}

Status Events(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  QueryReader reader(call);
  EventFeed::Filter filter{.experiment = reader.Text("experiment", 64),
                           .trial = reader.Text("trial", 64)};
  for (std::string& kind : reader.List("kinds")) filter.kinds.insert(std::move(kind));
  std::optional<std::uint64_t> after;
  if (const auto number = reader.Int("after", 0, std::int64_t{1} << 60)) {
    after = static_cast<std::uint64_t>(*number);
  }
  RETURN_IF_ERROR(reader.status());
  const std::string& last = call.last_event_id;
  if (!last.empty() && last.size() < 19 &&
      last.find_first_not_of("0123456789") == std::string::npos) {
    after = std::stoull(last);
  }
  parts.feed->Subscribe(reply, std::move(filter), after,
                        [parts, who = call.who] { return parts.accounts->StillValid(who); });
  return Status::Ok();
}

Result<ApiAnswer> ReportService(const ApiParts& parts, const ApiCall& call) {
  std::string kind;
  std::string host;
  std::string repository;
  BodyReader body(call);
  body->Text("kind", &kind);
  body->Text("host", &host);
  body->Text("repository", &repository);
  const ConfigNode* facts = body->Take("facts");
  RETURN_IF_ERROR(body->Finish());
  if (kind != "paramserver" && kind != "serving") {
    return InvalidArgumentError("kind must be paramserver or serving");
  }
  if (!IsTrialId(call.Param("service")) || host.size() > 256 || repository.size() > 4096) {
    return InvalidArgumentError(
        "the name: 1 to 64 letters, digits, . _ -; host: at most 256 bytes");
  }
  Value::Object said{{"kind", kind},
                     {"host", host},
                     {"repository", repository},
                     {"facts", facts == nullptr ? Value(Value::Object{}) : facts->ToValue()}};
  if (!said["facts"].is_object()) return InvalidArgumentError("facts must be an object");
  if (!parts.services->Report(call.Param("service"), said)) {
    return UnavailableError("too many services report here");
  }
  said["name"] = call.Param("service");
  parts.feed->Publish("service", std::move(said));
  return ApiAnswer{};
}

Value HookJson(const Webhook& webhook) {
  const Value* states = webhook.triggers.Find("states");
  const Value* events = webhook.triggers.Find("events");
  const Value* experiment = webhook.triggers.Find("experiment");
  return Value::Object{{"id", std::to_string(webhook.id)},
                       {"url", webhook.url},
                       {"states", states == nullptr ? Value(Value::List{}) : *states},
                       {"events", events == nullptr ? Value(Value::List{kTrialEvent}) : *events},
                       {"experiment", experiment == nullptr ? Value() : *experiment},
                       {"created", static_cast<double>(webhook.created) / 1e9}};
}

Result<ApiAnswer> CreateHook(const ApiParts& parts, const ApiCall& call) {
  std::string url;
  std::vector<std::string> states = {"COMPLETED", "CANCELED", "ERROR"};
  std::vector<std::string> events = {std::string(kTrialEvent), std::string(kExperimentEvent)};
  std::string experiment;
  BodyReader body(call);
  body->Text("url", &url);
  body->Texts("states", &states);
  body->Texts("events", &events);
  body->Text("experiment", &experiment);
  RETURN_IF_ERROR(body->Finish());
  if ((!url.starts_with("http://") && !url.starts_with("https://")) || url.size() > 2048) {
    return InvalidArgumentError("url must begin with http:// or https://");
  }
  if (std::ranges::any_of(url, [](unsigned char c) { return c <= ' ' || c == 0x7f; })) {
    return InvalidArgumentError("url must hold no spaces and no line breaks");
  }
  if (states.empty() || states.size() > 16) return InvalidArgumentError("states: 1 to 16 of them");
  for (const std::string& state : states) {
    if (std::ranges::find(kStates, state) == std::end(kStates)) {
      return InvalidArgumentError(
          fmt::format("states: there is no state {}", QuoteForMessage(state)));
    }
  }
  const auto known = [](const std::string& event) {
    return event == kTrialEvent || event == kExperimentEvent;
  };
  if (events.empty() || events.size() > 16 || !std::ranges::all_of(events, known)) {
    return InvalidArgumentError(
        fmt::format("events: \"{}\" (of trials), \"{}\" or both", kTrialEvent, kExperimentEvent));
  }
  Value::Object triggers{{"states", Value::List(states.begin(), states.end())},
                         {"events", Value::List(events.begin(), events.end())}};
  if (!experiment.empty()) {
    RETURN_IF_ERROR(ExperimentId(experiment).status());
    triggers["experiment"] = experiment;
  }
  Webhook webhook{.url = url,
                  .owner = call.who.name,
                  .triggers = std::move(triggers),
                  .created = parts.clock->WallNanos()};
  ASSIGN_OR_RETURN(webhook.secret, NewToken());
  ASSIGN_OR_RETURN(webhook.id, parts.catalog->webhooks().Create(webhook));
  Value answer = HookJson(webhook);
  (*answer.if_object())["secret"] = webhook.secret;
  return ApiAnswer{.status = 201, .body = std::move(answer)};
}

Result<Webhook> HookOf(const ApiParts& parts, const ApiCall& call) {
  const std::string& text = call.Param("webhook");
  std::int64_t id = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, id);
  if (parsed.ec != std::errc() || parsed.ptr != end) return NotFoundError("no such webhook");
  return parts.catalog->webhooks().Get(id);
}

Result<ApiAnswer> GetHook(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const Webhook webhook, HookOf(parts, call));
  Value answer = HookJson(webhook);
  ASSIGN_OR_RETURN(const Page<Delivery> page,
                   parts.catalog->webhooks().Deliveries(webhook.id, 0, 50));
  Value::List deliveries;
  std::uint64_t pending = 0;
  for (const Delivery& one : page.items) {
    pending += one.state == DeliveryState::kPending ? 1 : 0;
    deliveries.emplace_back(Value::Object{{"id", one.key},
                                          {"event", EventOfDelivery(one.key)},
                                          {"time", static_cast<double>(one.created) / 1e9},
                                          {"attempts", one.attempts},
                                          {"delivered", one.state == DeliveryState::kDelivered},
                                          {"message", one.message}});
  }
  (*answer.if_object())["deliveries"] = std::move(deliveries);
  (*answer.if_object())["pending"] = pending;
  return ApiAnswer{.body = std::move(answer)};
}

void AddHooks(const ApiParts& parts, std::vector<ApiRoute>* out) {
  const RoutesUnder add("/api/v1/webhooks", out);
  add("GET", "", Access::kAdmin, [parts](const ApiCall&) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const std::vector<Webhook> all, parts.catalog->webhooks().List());
    Value::List list;
    for (const Webhook& webhook : all) list.push_back(HookJson(webhook));
    return ApiAnswer{.body = Value::Object{{"webhooks", std::move(list)}}};
  });
  add("POST", "", Access::kAdmin, [parts](const ApiCall& call) { return CreateHook(parts, call); });
  add("GET", "/{webhook}", Access::kAdmin,
      [parts](const ApiCall& call) { return GetHook(parts, call); });
  add("DELETE", "/{webhook}", Access::kAdmin, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const Webhook webhook, HookOf(parts, call));
    RETURN_IF_ERROR(parts.catalog->webhooks().Delete(webhook.id));
    return ApiAnswer{};
  });
  add("POST", "/{webhook}/test", Access::kAdmin,
      [parts](const ApiCall& call, const HttpReply& reply) -> Status {
        ASSIGN_OR_RETURN(const Webhook webhook, HookOf(parts, call));
        // Nobody waits for it here: a URL may take its time.
        parts.webhooks->Test(webhook, [reply](const Result<std::string>& sent) {
          const std::string said = sent.ok() ? *sent : std::string(sent.status().message());
          reply.Send(
              {.body = EncodeJson(Value::Object{{"delivered", sent.ok()}, {"message", said}})});
        });
        return Status::Ok();
      });
}

}  // namespace

void AddClusterRoutes(const ApiParts& parts, std::vector<ApiRoute>* out) {
  const RoutesUnder add("", out);
  add("GET", "/api/v1/master", Access::kNone, [parts](const ApiCall&) -> Result<ApiAnswer> {
    return ApiAnswer{.body = Value::Object{
                         {"version", parts.version}, {"api", 1}, {"instance", parts.instance}}};
  });
  add("GET", "/api/v1/cluster", Access::kViewer,
      [parts](const ApiCall&) { return Cluster(parts); });
  add("PUT", "/api/v1/services/{service}", Access::kUser,
      [parts](const ApiCall& call) { return ReportService(parts, call); });
  add("GET", "/api/v1/storage", Access::kViewer,
      [parts](const ApiCall&) { return Storage(parts); });
  add("GET", "/api/v1/events", Access::kViewer,
      [parts](const ApiCall& call, const HttpReply& reply) { return Events(parts, call, reply); });
  AddHooks(parts, out);
  add("GET", "/metrics", Access::kViewer,
      [parts](const ApiCall&, const HttpReply& reply) -> Status {
        ASSIGN_OR_RETURN(std::string text, PrometheusText(parts));
        reply.Send(
            {.body = std::move(text), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
        return Status::Ok();
      });
  add("GET", "/healthz", Access::kNone, [parts](const ApiCall&) -> Result<ApiAnswer> {
    if (const Status alive = parts.catalog->Ping(); !alive.ok()) {
      return UnavailableError("the database does not answer");  // what it says is not for everybody
    }
    return ApiAnswer{.body = Value::Object{{"status", "ok"}}};
  });
}

}  // namespace cairn::master
