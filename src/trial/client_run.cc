#include "trial/client_run.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "format/json.h"
#include "launch/file_tunnel.h"
#include "net/http_client.h"
#include "net/unix_http_connection.h"
#include "net/url.h"

namespace cairn {
namespace {

using Nanos = std::chrono::nanoseconds;

constexpr Nanos kLook = std::chrono::milliseconds(50);
constexpr Nanos kLongestWait = std::chrono::seconds(2);
constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kFiles = "files:";

/// The base of all URLs: what libcurl is given for a server on TCP or on a socket of this machine.
Result<std::string> ServerUrl(std::string_view url) {
  if (url.starts_with(kUnix)) return "http+unix://" + PercentEncode(url.substr(kUnix.size()));
  if (url.starts_with("http://") || url.starts_with("https://")) {
    while (url.ends_with('/')) url.remove_suffix(1);
    return std::string(url);
  }
  return InvalidArgumentError(
      "a trial engine is at http://host:port, https://host:port, unix:/path or files:/path, not "
      "at " +
      QuoteForMessage(url));
}

std::string TextOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : *text;
}

bool BoolOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const bool* truth = value == nullptr ? nullptr : value->if_bool();
  return truth != nullptr && *truth;
}

std::int64_t IntOf(const Value& object, std::string_view key, std::int64_t fallback = 0) {
  const Value* value = object.Find(key);
  return value == nullptr ? fallback : value->AsInt(fallback);
}

std::vector<std::string> TextsOf(const Value& object, std::string_view key) {
  std::vector<std::string> texts;
  const Value* value = object.Find(key);
  const Value::List* list = value == nullptr ? nullptr : value->if_list();
  if (list == nullptr) return texts;
  for (const Value& item : *list) {
    if (const std::string* text = item.if_string()) texts.push_back(*text);
  }
  return texts;
}

/// The table of errors of the protocol.
Status ErrorOf(const HttpResponse& response) {
  const auto body = DecodeJson(response.body);
  const std::string code = body.ok() ? TextOf(*body, "code") : "";
  std::string message = body.ok() ? TextOf(*body, "message") : "";
  if (message.empty()) message = "the trial engine answered " + std::to_string(response.status);
  switch (response.status) {
    case 400:
    case 405:
      return InvalidArgumentError(message);
    case 401:
    case 403:
      return PermissionDeniedError(message);
    case 404:
      return NotFoundError(message);
    case 409:
      if (code == "run_replaced") return AbortedError(message);
      if (code == "out_of_order") return FailedPreconditionError(message);
      return AlreadyExistsError(message);
    case 412:
      return FailedPreconditionError(message);
    case 413:  // no matter of space: it would be refused again
      return InvalidArgumentError(message + ": put what is large into a checkpoint");
    case 507:
      return ResourceExhaustedError(message);
    case 502:
    case 503:
    case 504:
      return UnavailableError(message);
    default:
      return InternalError(message);
  }
}

}  // namespace

class RunClient::Impl : public std::enable_shared_from_this<RunClient::Impl> {
 public:
  Impl(RunClientOptions options, std::string server, RetryPolicy retry, Nanos stall_timeout)
      : options_(std::move(options)), server_(std::move(server)), retry_(retry) {
    // Nothing else is under way then: the caller's thread does it all.
    if (!options_.describe && options_.url.starts_with(kUnix)) {
      direct_.emplace(UnixHttpConnection::Options{.path = options_.url.substr(kUnix.size()),
                                                  .stall_timeout = stall_timeout,
                                                  .cancelled = options_.cancelled});
    }
  }

  bool direct() const { return direct_.has_value(); }
  void SetHttp(HttpClient* http) { http_ = http; }

  void SetRun(std::string trial, std::uint64_t run, std::string token) {
    options_.trial = std::move(trial);
    options_.run = run;
    options_.token = std::move(token);
    base_ = "/trial/v1/trials/" + PercentEncode(options_.trial) + "/runs/" + std::to_string(run);
  }

  void SetDescription(Value description) {
    description_ = std::move(description);
    MutexLock lock(&report_mu_);
    next_sequence_ = IntOf(description_, "next_sequence", 1);
  }

  /// One request and its answer; `target` is the path below the server.
  Result<Value> Ask(const std::string& method, const std::string& target, const Value* body) {
    return Judge(direct_ ? AskDirectly(method, target, body)
                         : AskClient(method, target, body, 0, options_.cancelled));
  }
  /// The same for what is not worth waiting for.
  Result<Value> AskOnce(const std::string& target, const Value& body,
                        const std::function<bool()>& cancelled) {
    if (direct_) return UnimplementedError("this client has one connection, which others wait for");
    return Judge(AskClient("POST", target, &body, 1, cancelled));
  }
  Result<Value> Judge(const Result<HttpResponse>& outcome) {
    if (!outcome.ok()) return outcome.status().WithContext("trial engine at " + options_.url);
    if (!outcome->Succeeded()) {
      Status refused = ErrorOf(*outcome);
      if (refused.Is(Code::kAborted)) SetPreemption(true, "replaced");
      return refused;
    }
    return DecodeJson(outcome->body);
  }

  /// By this thread, with the attempts and waits of the client.
  Result<HttpResponse> AskDirectly(const std::string& method, const std::string& target,
                                   const Value* body) {
    const std::string bytes = body == nullptr ? "" : EncodeJson(*body);
    ASSIGN_OR_RETURN(HttpRequest request, Request(method, target, bytes));
    request.url = target;
    for (int attempt = 1;; ++attempt) {
      auto outcome = direct_->Fetch(request);
      if (attempt >= retry_.max_attempts || !IsTransient(outcome)) return outcome;
      // Alone on its socket: there is nobody to come back together with.
      const auto until = options_.clock->Now() + retry_.Wait(attempt, 0.5, Nanos::zero());
      while (options_.clock->Now() < until) {
        if (options_.cancelled && options_.cancelled()) return CancelledError("the call was ended");
        options_.clock->Sleep(std::min<Nanos>(kLook, until - options_.clock->Now()));
      }
    }
  }

  /// `attempts`: 0 for as many as the options say.
  Result<HttpResponse> AskClient(const std::string& method, const std::string& target,
                                 const Value* body, int attempts,
                                 const std::function<bool()>& ended) {
    struct Waiting {
      Mutex mu;
      CondVar done;
      std::optional<Result<HttpResponse>> outcome GUARDED_BY(mu);
      std::string body;
    };
    // Shared: a call that is given up ends on the client's thread.
    const auto waiting = std::make_shared<Waiting>();
    if (body != nullptr) waiting->body = EncodeJson(*body);
    HttpCall call;
    call.max_attempts = attempts;
    call.prepare = [this, waiting, method, target](int) -> Result<HttpRequest> {
      return Request(method, target, waiting->body);
    };
    call.done = [waiting](Result<HttpResponse> outcome) {
      MutexLock lock(&waiting->mu);
      waiting->outcome.emplace(std::move(outcome));
      waiting->done.NotifyAll();
    };
    const HttpClient::CallId id = http_->Start(std::move(call));
    bool cancelled = false;
    std::optional<Result<HttpResponse>> outcome;
    while (!outcome.has_value()) {
      {
        MutexLock lock(&waiting->mu);
        if (!waiting->outcome.has_value()) waiting->done.WaitFor(&waiting->mu, kLook);
        if (waiting->outcome.has_value()) outcome = std::move(waiting->outcome);
      }
      if (!outcome.has_value() && !cancelled && ended && ended()) {
        cancelled = true;
        http_->Cancel(id);
      }
    }
    return *std::move(outcome);
  }

  Result<Value> Get(const std::string& path) { return Ask("GET", base_ + path, nullptr); }
  Result<Value> Post(const std::string& path, Value::Object body) {
    const Value value(std::move(body));
    return Ask("POST", base_ + path, &value);
  }
  Status Tell(const std::string& path, Value::Object body) {
    auto answer = Post(path, std::move(body));
    return answer.ok() ? Status::Ok() : answer.status();
  }

  Status Report(std::string_view group, std::int64_t steps, const Value& metrics) {
    MutexLock lock(&report_mu_);
    Value::Object report{{"sequence", next_sequence_},
                         {"group", group},
                         {"steps_completed", steps},
                         {"metrics", metrics}};
    // The last report may or may not have been taken. A script that repeats it means the same one:
    // under its number it counts once. For another one its number must not be used.
    if (uncertain_ && *uncertain_ != EncodeJson(Value(report))) {
      ASSIGN_OR_RETURN(const Value now, Get(""));
      next_sequence_ = IntOf(now, "next_sequence", next_sequence_);
      report["sequence"] = next_sequence_;
    }
    uncertain_.reset();
    const auto answer = Post("/reports", report);
    if (answer.ok()) {
      ++next_sequence_;
      return Status::Ok();
    }
    const Code code = answer.status().code();
    if (code == Code::kFailedPrecondition) {
      uncertain_ = "";  // the number was wrong: whatever comes next needs another
    } else if (code != Code::kInvalidArgument && code != Code::kAborted) {
      uncertain_ = EncodeJson(Value(std::move(report)));
    }
    return answer.status();
  }

  /// Asks for preemption in the background, again and again.
  void Poll() {
    {
      MutexLock lock(&poll_mu_);
      if (closed_) return;
    }
    const std::weak_ptr<Impl> self = weak_from_this();
    HttpCall call;
    call.max_attempts = 1 << 30;  // until the engine is back, or we are closed
    call.prepare = [self](int) -> Result<HttpRequest> {
      const auto impl = self.lock();
      if (impl == nullptr) return CancelledError("closed");
      const double seconds = std::chrono::duration<double>(impl->options_.poll).count();
      std::string query = "?timeout=" + std::to_string(seconds);
      MutexLock lock(&impl->poll_mu_);
      if (impl->version_ >= 0) query += "&seen=" + std::to_string(impl->version_);
      return impl->Request("GET", impl->base_ + "/preemption" + query, impl->empty_);
    };
    call.done = [self](const Result<HttpResponse>& outcome) {
      if (const auto impl = self.lock()) impl->OnPolled(outcome);
    };
    const HttpClient::CallId id = http_->Start(std::move(call));
    MutexLock lock(&poll_mu_);
    poll_ = id;
    if (closed_) http_->Cancel(id);
  }

  /// On the client's thread.
  void OnPolled(const Result<HttpResponse>& outcome) {
    if (!outcome.ok()) return;  // closed
    if (!outcome->Succeeded()) {
      const Status refused = ErrorOf(*outcome);
      if (refused.Is(Code::kAborted)) {
        SetPreemption(true, "replaced");
      } else {
        LogWarning("preemption is not watched any more: " + refused.ToString());
      }
      return;
    }
    if (const auto body = DecodeJson(outcome->body); body.ok()) {
      {
        MutexLock lock(&poll_mu_);
        version_ = IntOf(*body, "version", -1);
      }
      SetPreemption(BoolOf(*body, "preempt"), TextOf(*body, "reason"));
    }
    Poll();
  }

  void SetPreemption(bool preempt, std::string reason) {
    MutexLock lock(&poll_mu_);
    if (reason_ == "replaced") return;  // there is no way back
    reason_ = preempt ? std::move(reason) : "";
    preempt_.store(preempt, std::memory_order_release);
  }

  void Close() {
    HttpClient::CallId poll = 0;
    {
      MutexLock lock(&poll_mu_);
      if (closed_) return;
      closed_ = true;
      poll = poll_;
    }
    if (poll != 0) http_->Cancel(poll);
  }

  std::string reason() {
    MutexLock lock(&poll_mu_);
    return reason_;
  }

  const std::string& base() const { return base_; }

  RunClientOptions options_;
  Value description_;
  std::atomic<bool> preempt_{false};

 private:
  Result<HttpRequest> Request(const std::string& method, const std::string& target,
                              const std::string& body) const {
    HttpRequest request;
    request.method = method;
    request.url = server_ + target;
    request.headers = {{"Authorization", "Bearer " + options_.token}};
    if (method == "POST") request.headers.push_back({"Content-Type", "application/json"});
    request.body = std::as_bytes(std::span(body.data(), body.size()));
    return request;
  }

  const std::string server_;
  const std::string empty_;
  const RetryPolicy retry_;
  std::optional<UnixHttpConnection> direct_;
  HttpClient* http_ = nullptr;  // null when it is direct
  std::string base_;

  Mutex report_mu_;  // reports are numbered: one at a time
  std::int64_t next_sequence_ GUARDED_BY(report_mu_) = 1;
  /// The last report, when nobody knows whether it was taken.
  std::optional<std::string> uncertain_ GUARDED_BY(report_mu_);

  Mutex poll_mu_;
  std::string reason_ GUARDED_BY(poll_mu_);
  std::int64_t version_ GUARDED_BY(poll_mu_) = -1;
  HttpClient::CallId poll_ GUARDED_BY(poll_mu_) = 0;
  bool closed_ GUARDED_BY(poll_mu_) = false;
};

RunClient::RunClient(std::shared_ptr<Impl> impl, std::unique_ptr<HttpClient> http,
                     std::unique_ptr<TunnelEntry> tunnel)
    : tunnel_(std::move(tunnel)), impl_(std::move(impl)), http_(std::move(http)) {}

RunClient::~RunClient() { Close(); }

Result<std::unique_ptr<RunClient>> RunClient::Make(RunClientOptions options) {
  std::unique_ptr<TunnelEntry> tunnel;
  if (options.url.starts_with(kFiles)) {
    ASSIGN_OR_RETURN(tunnel, TunnelEntry::Open(options.url.substr(kFiles.size())));
    options.url = std::string(kUnix) + tunnel->socket();
  }
  ASSIGN_OR_RETURN(std::string server, ServerUrl(options.url));
  HttpClientOptions settings;
  settings.connections = 4;
  if (server.starts_with("https://")) settings.ca_bundle = options.ca;
  settings.connect_timeout = std::chrono::seconds(5);
  // An engine whose storage is away holds requests for a minute.
  settings.stall_timeout = std::max<Nanos>(options.poll * 2, std::chrono::seconds(90));
  settings.retry.max_attempts = options.attempts;
  settings.retry.first_wait = std::chrono::milliseconds(50);
  settings.retry.longest_wait = kLongestWait;
  settings.clock = options.clock;
  auto impl = std::make_shared<Impl>(std::move(options), std::move(server), settings.retry,
                                     settings.stall_timeout);
  std::unique_ptr<HttpClient> http;
  if (!impl->direct()) {
    ASSIGN_OR_RETURN(http, HttpClient::Open(std::move(settings)));
    impl->SetHttp(http.get());
  }
  return std::unique_ptr<RunClient>(
      new RunClient(std::move(impl), std::move(http), std::move(tunnel)));
}

Result<std::unique_ptr<RunClient>> RunClient::Open(RunClientOptions options) {
  if (options.trial.empty()) return InvalidArgumentError("the run's trial is not named");
  ASSIGN_OR_RETURN(std::unique_ptr<RunClient> client, Make(std::move(options)));
  Impl* impl = client->impl_.get();
  impl->SetRun(impl->options_.trial, impl->options_.run, impl->options_.token);
  if (!impl->options_.describe) return client;
  ASSIGN_OR_RETURN(Value description, impl->Get(""));
  impl->SetDescription(std::move(description));
  impl->Poll();
  return client;
}

Result<std::unique_ptr<RunClient>> RunClient::Join(RunClientOptions options,
                                                   const JoinRequest& join) {
  ASSIGN_OR_RETURN(std::unique_ptr<RunClient> client, Make(std::move(options)));
  Impl* impl = client->impl_.get();
  Value::Object body{{"external_id", join.external_id},
                     {"hparams", join.hparams},
                     {"world_size", join.world_size}};
  if (!join.experiment.empty()) body["experiment"] = join.experiment;
  if (!join.storage.empty()) body["storage"] = join.storage;
  if (!join.metric.empty()) {
    body["metric"] = join.metric;
    body["metric_group"] = join.metric_group;
    body["smaller_is_better"] = join.smaller_is_better;
  }
  const Value request(std::move(body));
  ASSIGN_OR_RETURN(Value description, impl->Ask("POST", "/trial/v1/join", &request));
  const std::string trial = TextOf(description, "trial_id");
  const std::string token = TextOf(description, "token");
  if (trial.empty() || token.empty()) {
    return CorruptionError("the trial engine's answer to a join names no trial and token");
  }
  impl->SetRun(trial, static_cast<std::uint64_t>(IntOf(description, "run_id")), token);
  if (const Value* beat = description.Find("heartbeat_seconds")) {
    // The question for preemption is the sign of life: it must come often enough.
    const auto often = std::chrono::duration_cast<Nanos>(
        std::chrono::duration<double>(std::max(beat->AsDouble(10), 0.2)));
    impl->options_.poll = std::min(impl->options_.poll, often);
  }
  impl->SetDescription(std::move(description));
  impl->Poll();
  return client;
}

const Value& RunClient::description() const { return impl_->description_; }
const std::string& RunClient::trial() const { return impl_->options_.trial; }
std::uint64_t RunClient::run() const { return impl_->options_.run; }
const std::string& RunClient::token() const { return impl_->options_.token; }

Status RunClient::Ready(int rank, std::int64_t pid, std::string_view host) {
  return impl_->Tell("/ready", {{"rank", rank}, {"pid", pid}, {"host", host}});
}

Status RunClient::Report(std::string_view group, std::int64_t steps_completed,
                         const Value& metrics) {
  return impl_->Report(group, steps_completed, metrics);
}

Status RunClient::ReportProgress(double progress) {
  return impl_->Tell("/progress", {{"progress", progress}});
}

Status RunClient::SetStatus(std::string_view status) {
  return impl_->Tell("/status", {{"status", status}});
}

Status RunClient::RegisterCheckpoint(std::string_view id, std::int64_t steps_completed, int ranks,
                                     const Value& metadata) {
  return impl_->Tell("/checkpoints", {{"registration", id},
                                      {"steps_completed", steps_completed},
                                      {"ranks", ranks},
                                      {"metadata", metadata}});
}

Result<std::vector<std::string>> RunClient::CompleteCheckpoint(
    const CompletedCheckpoint& checkpoint) {
  Value::Object body{{"id", checkpoint.id},
                     {"steps_completed", checkpoint.steps_completed},
                     {"metadata", checkpoint.metadata},
                     {"metrics", checkpoint.metrics},
                     {"bytes", checkpoint.bytes},
                     {"generation", checkpoint.generation},
                     {"sequence", checkpoint.sequence},
                     {"kind", checkpoint.kind},
                     {"base", checkpoint.base},
                     {"awaits_score", checkpoint.awaits_score}};
  if (!checkpoint.path.empty()) body["path"] = checkpoint.path;
  ASSIGN_OR_RETURN(
      const Value answer,
      impl_->Post("/checkpoints/" + PercentEncode(checkpoint.id) + "/complete", std::move(body)));
  return TextsOf(answer, "remove");
}

Status RunClient::AbandonCheckpoint(std::string_view id, std::string_view reason) {
  return impl_->Tell("/checkpoints/" + PercentEncode(id) + "/abandon", {{"reason", reason}});
}

Status RunClient::CheckpointDeleted(std::string_view id) {
  return impl_->Tell("/checkpoints/" + PercentEncode(id) + "/deleted", {});
}

Result<Value> RunClient::Checkpoints() { return impl_->Get("/checkpoints"); }

bool RunClient::preempt() const { return impl_->preempt_.load(std::memory_order_acquire); }

std::string RunClient::preempt_reason() const { return impl_->reason(); }

Status RunClient::AcknowledgePreemption() {
  Status told = impl_->Tell("/preemption/ack", {});
  return told.Is(Code::kFailedPrecondition) ? Status::Ok() : told;
}

Status RunClient::Exit(int code, std::string_view message) {
  return impl_->Tell("/exit", {{"code", code}, {"message", message}});
}

Status RunClient::SendLogs(Value::List lines, const std::function<bool()>& cancelled) {
  const Value body = Value::Object{{"lines", std::move(lines)}};
  return impl_->AskOnce(impl_->base() + "/logs", body, cancelled).status();
}

Result<Value> RunClient::Call(const std::string& path, const Value& body) {
  auto answer = impl_->Ask("POST", impl_->base() + path, &body);
  if (answer.ok()) RestoreNonFinite(&*answer);
  return answer;
}

void RunClient::Close() { impl_->Close(); }

}  // namespace cairn
