#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "catalog/catalog.h"
#include "launch/launcher.h"
#include "master/accounts.h"
#include "master/code_store.h"
#include "master/config_reader.h"
#include "master/event_feed.h"
#include "master/experiments.h"
#include "master/log_collector.h"
#include "master/log_followers.h"
#include "master/new_bytes.h"
#include "master/rate_limit.h"
#include "master/services.h"
#include "master/task_threads.h"
#include "master/verifications.h"
#include "master/webhook_sender.h"
#include "net/http_server.h"
#include "trial/repository_access.h"
#include "trial/trial_engine.h"

namespace cairn::master {

/// What the routes work with; all borrowed.
struct ApiParts {
  Catalog* catalog = nullptr;
  TrialEngine* engine = nullptr;
  Launcher* launcher = nullptr;
  Experiments* experiments = nullptr;
  Accounts* accounts = nullptr;
  const CodeStore* code = nullptr;
  EventFeed* feed = nullptr;
  LogFollowers* followers = nullptr;
  WebhookSender* webhooks = nullptr;
  Services* services = nullptr;
  Verifications* verifications = nullptr;
  NewBytes* new_bytes = nullptr;
  TaskThreads* threads = nullptr;
  TaskThreads* downloads = nullptr;
  Clock* clock = Clock::System();
  std::string data_directory;
  std::string default_storage;  // where it is
  std::string join_token;  // what the engine wants of those that join: the routes have judged them
  std::string version;
  std::string instance;
  std::string web_directory;  // "": no page
  int slots = 1;
  bool secure = false;  // TLS: cookies say so
};

/// Who may use a route (x-cairn-role in docs/openapi.yaml).
enum class Access : std::uint8_t { kNone, kViewer, kUser, kAdmin, kRun };

/// A request on its way through the API. A value.
struct ApiCall {
  Principal who;  // empty for kNone and kRun
  std::string method;
  std::string path;
  std::map<std::string, std::string, std::less<>> params;
  std::map<std::string, std::string, std::less<>> query;
  std::string bearer;
  std::string last_event_id;
  std::string raw;  // the body's bytes, of routes that take them
  Value body = Value::Object{};

  const std::string& Param(std::string_view name) const { return params.find(name)->second; }
  std::string_view Query(std::string_view name) const;
};

struct ApiAnswer {
  int status = 200;
  Value body = Value::Object{};
};

struct ApiRoute {
  using Answer = std::function<Result<ApiAnswer>(const ApiCall&)>;
  /// Takes care of the reply itself unless it returns an error.
  using Serve = std::function<Status(const ApiCall&, const HttpReply&)>;

  std::string method;
  std::string pattern;
  Access access = Access::kViewer;
  Answer answer;  // one of these two
  Serve serve;
  std::uint64_t max_body_bytes = 1u << 20;
  bool raw = false;  // the body is no JSON
};

/// Adds routes whose patterns begin alike.
class RoutesUnder {
 public:
  RoutesUnder(std::string base, std::vector<ApiRoute>* out) : base_(std::move(base)), out_(out) {}
  /// The route is there until the next one is added.
  ApiRoute& operator()(std::string method, std::string_view path, Access access,
                       ApiRoute::Answer answer) const;
  ApiRoute& operator()(std::string method, std::string_view path, Access access,
                       ApiRoute::Serve serve) const;

 private:
  const std::string base_;
  std::vector<ApiRoute>* const out_;
};

/// Reads what a query says; errors are collected as in ConfigReader.
class QueryReader {
 public:
  explicit QueryReader(const ApiCall& call) : call_(call) {}
  std::optional<std::int64_t> Int(std::string_view name, std::int64_t least, std::int64_t most);
  std::optional<double> Double(std::string_view name);
  bool Bool(std::string_view name, bool fallback = false);
  /// One of the words, or `fallback`.
  std::string Word(std::string_view name, std::vector<std::string_view> words,
                   std::string_view fallback);
  std::string Text(std::string_view name, std::size_t most = 1024);
  /// Separated by commas.
  std::vector<std::string> List(std::string_view name);
  /// Some of the words, separated by commas; also in small letters. For names of states.
  std::vector<std::string> Words(std::string_view name, std::span<const std::string_view> words);
  /// States of trials and experiments, by `state`.
  std::vector<std::string> TrialStates();
  void Page(std::uint64_t* offset, std::uint64_t* limit);
  const Status& status() const { return status_; }

 private:
  void Fail(std::string_view name, std::string_view why);
  const ApiCall& call_;
  Status status_;
};

// By subject; the parts must outlive the routes.
void AddAccountRoutes(const ApiParts& parts, std::vector<ApiRoute>* out);
void AddExperimentRoutes(const ApiParts& parts, std::vector<ApiRoute>* out);
void AddTrialRoutes(const ApiParts& parts, std::vector<ApiRoute>* out);
void AddCheckpointRoutes(const ApiParts& parts, std::vector<ApiRoute>* out);
void AddClusterRoutes(const ApiParts& parts, std::vector<ApiRoute>* out);

/// All routes of the REST API, as docs/openapi.yaml has them (but for the trial protocol's).
std::vector<ApiRoute> ApiRoutes(const ApiParts& parts);

/// The same for an HttpServer: authorised by their headers, before a body is taken; carried out on
/// the task threads. `limit` is borrowed. With the web page's files, when there are any.
std::vector<HttpRoute> ServedRoutes(const ApiParts& parts, std::vector<ApiRoute> routes,
                                    RateLimit* limit);

/// Whether a launch has slots of this machine: a cluster counts its own.
bool HasSlotsHere(const LaunchInfo& launch);
/// What a status is on the wire, with {code, message, details}.
ServerResponse ApiError(const Status& status);
/// NotFound unless it is a trial of an experiment that was not deleted.
Status CheckTrial(const ApiParts& parts, const std::string& trial);
/// The body's members; call Finish at the end.
class BodyReader {
 public:
  explicit BodyReader(const ApiCall& call)
      : node_(ConfigNode::FromValue(call.body)), reader_(node_, "") {}
  ConfigReader* operator->() { return &reader_; }

 private:
  const ConfigNode node_;
  ConfigReader reader_;
};

}  // namespace cairn::master
