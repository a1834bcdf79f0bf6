#include "net/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "net/url.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::string_view kUnixScheme = "http+unix://";
constexpr long kReceiveBuffer = 512 << 10;
constexpr long kSendBuffer = 1 << 20;
// The longest sleep of the loop: the passed-in clock may run faster than the machine's.
constexpr nanoseconds kLongestPoll = milliseconds(1000);
constexpr nanoseconds kPollWithTimers = milliseconds(20);
constexpr std::size_t kMaxHeaderBytes = 256 << 10;

void StartCurlOnce() {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)started;
}

std::string Trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

/// Retry-After in seconds; its date form is not worth a parser.
nanoseconds RetryAfter(const Result<HttpResponse>& outcome) {
  if (!outcome.ok()) return nanoseconds(0);
  const std::string_view text = outcome->Header("retry-after");
  std::uint32_t seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return nanoseconds(0);
  return std::chrono::seconds(std::min(seconds, 3600u));
}

Status TransportError(CURLcode code, const HttpRequest& request, const char* detail) {
  const std::string where = ShownUrl(request.url);
  const std::string_view why = detail[0] != '\0' ? detail : curl_easy_strerror(code);
  const std::string message = fmt::format("{} {}: {}", request.method, where, why);
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
      return FailedPreconditionError(
          message +
          "; if the server has a certificate of an authority of your own, name the authority's PEM "
          "file as CA bundle");
    case CURLE_SSL_CACERT_BADFILE:
      return InvalidArgumentError(message + "; the CA bundle must be a readable PEM file");
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return InvalidArgumentError(message);
    case CURLE_COULDNT_RESOLVE_HOST:
      return UnavailableError(message + "; check the endpoint's host name and the network");
    case CURLE_COULDNT_CONNECT:
      return UnavailableError(message + "; check the endpoint's address and that it is running");
    default:
      return UnavailableError(message);
  }
}

std::function<double()> SystemRandom() {
  return [engine = std::mt19937_64(std::random_device()())]() mutable {
    return std::uniform_real_distribution<double>(0, 1)(engine);
  };
}

}  // namespace

std::string_view HttpResponse::Header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

bool IsTransient(const Result<HttpResponse>& outcome) {
  if (!outcome.ok()) {
    return outcome.status().Is(Code::kUnavailable) || outcome.status().Is(Code::kDeadlineExceeded);
  }
  switch (outcome->status) {
    case 408:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    default:
      return false;
  }
}

Status HttpClientOptions::Validate() const {
  if (connections < 1 || connections > 1024) {
    return InvalidArgumentError("HTTP client: connections must be between 1 and 1024");
  }
  if (retry.max_attempts < 1) {
    return InvalidArgumentError("HTTP client: retry.max_attempts must be at least 1");
  }
  if (connect_timeout <= nanoseconds(0) || stall_timeout <= nanoseconds(0) ||
      attempt_timeout < nanoseconds(0)) {
    return InvalidArgumentError("HTTP client: timeouts must be positive");
  }
  if (!ca_bundle.empty() && access(ca_bundle.c_str(), R_OK) != 0) {
    return InvalidArgumentError("the CA bundle \"" + ca_bundle +
                                "\" cannot be read; it must be a PEM file");
  }
  return Status::Ok();
}

/// The thread and all that it owns. What is not under the lock belongs to the thread.
class HttpClient::Loop {
 public:
  explicit Loop(Options options) : options_(std::move(options)), owner_(getpid()) {
    if (!options_.random) options_.random = SystemRandom();
  }

  Status Begin() {
    StartCurlOnce();
    multi_ = curl_multi_init();
    if (multi_ == nullptr) return ResourceExhaustedError("HTTP client: libcurl: out of memory");
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options_.connections));
    thread_ = std::thread([this] { Run(); });
    return Status::Ok();
  }

  ~Loop() {
    if (!thread_.joinable()) {
      if (multi_ != nullptr) curl_multi_cleanup(multi_);
      return;
    }
    {
      MutexLock lock(&mu_);
      stop_ = true;
    }
    curl_multi_wakeup(multi_);
    thread_.join();
    for (CURL* easy : spare_) curl_easy_cleanup(easy);
    curl_multi_cleanup(multi_);
  }

  bool InOwnProcess() const { return getpid() == owner_; }
  /// In a forked copy, which has no such thread: there is nothing to join or to detach.
  void Abandon() { new std::thread(std::move(thread_)); }

  CallId Add(HttpCall call) {
    auto added = std::make_unique<Call>();
    added->call = std::move(call);
    MutexLock lock(&mu_);
    const CallId id = next_id_++;
    added->id = id;
    inbox_.push_back(std::move(added));
    curl_multi_wakeup(multi_);
    return id;
  }

  void Cancel(CallId id) {
    MutexLock lock(&mu_);
    cancelled_.push_back(id);
    curl_multi_wakeup(multi_);
  }

  void CancelAll() {
    MutexLock lock(&mu_);
    all_cancelled_ = true;
    curl_multi_wakeup(multi_);
  }

 private:
  /// A call from Start to done. `easy` only while a request is under way.
  struct Call {
    CallId id = 0;
    HttpCall call;
    int attempt = 0;
    bool admitted = false;  // its body has its place in the rate

    HttpRequest request;
    HttpResponse response;
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    char detail[CURL_ERROR_SIZE] = "";
    std::optional<Status> failure;  // found by a callback
    std::size_t header_bytes = 0;
    bool headers_ended = false;
    curl_off_t moved = 0;
    nanoseconds moved_at{0};
    nanoseconds begun_at{0};
    Clock* clock = nullptr;
  };
  using Calls = std::multimap<nanoseconds, std::unique_ptr<Call>>;  // by the time they are due

  void Run() {
    // Signals belong to the application's threads; a peer that hangs up must not raise SIGPIPE.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    while (TakeOrders()) {
      StartDue();
      int running = 0;
      curl_multi_perform(multi_, &running);
      TakeResults();
      EndStalled();
      // A finished request may have made room for the next one.
      StartDue();
      const auto timeout = std::chrono::ceil<milliseconds>(PollTime());
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(timeout.count()), nullptr);
    }
    EndAll();
  }

  /// False when the client is being destroyed.
  bool TakeOrders() {
    std::vector<std::unique_ptr<Call>> added;
    std::vector<CallId> cancelled;
    bool all_cancelled = false;
    {
      MutexLock lock(&mu_);
      all_cancelled = all_cancelled_;
      added.swap(inbox_);
      cancelled.swap(cancelled_);
      if (stop_) {
        for (auto& call : added) waiting_.emplace(nanoseconds(0), std::move(call));
        return false;
      }
    }
    for (auto& call : added) waiting_.emplace(nanoseconds(0), std::move(call));
    for (const CallId id : cancelled) EndById(id);
    if (all_cancelled) EndAll();
    return true;
  }

  void EndById(CallId id) {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->second->id != id) continue;
      std::unique_ptr<Call> call = std::move(it->second);
      waiting_.erase(it);
      call->call.done(CancelledError("the request was cancelled"));
      return;
    }
    for (auto& [easy, call] : active_) {
      if (call->id != id) continue;
      std::unique_ptr<Call> ended = Detach(easy);
      ended->call.done(CancelledError("the request was cancelled"));
      return;
    }
  }

  void EndAll() {
    while (!active_.empty()) {
      std::unique_ptr<Call> call = Detach(active_.begin()->first);
      call->call.done(CancelledError("the HTTP client was closed"));
    }
    for (auto& [due, call] : waiting_) {
      call->call.done(CancelledError("the HTTP client was closed"));
    }
    waiting_.clear();
  }

  void StartDue() {
    while (!waiting_.empty() && active_.size() < static_cast<std::size_t>(options_.connections)) {
      const nanoseconds now = options_.clock->Now();
      auto first = waiting_.begin();
      if (first->first > now) return;
      std::unique_ptr<Call> call = std::move(first->second);
      waiting_.erase(first);
      StartAttempt(std::move(call), now);
    }
  }

  void StartAttempt(std::unique_ptr<Call> call, nanoseconds now) {
    auto request = call->call.prepare(call->attempt + 1);
    if (!request.ok()) return call->call.done(request.status());
    if (options_.send_bytes_per_second > 0 && !request->body.empty() && !call->admitted) {
      call->admitted = true;
      const nanoseconds due = std::max(now, rate_free_at_);
      rate_free_at_ = due + nanoseconds(static_cast<nanoseconds::rep>(
                                static_cast<double>(request->body.size()) * 1e9 /
                                static_cast<double>(options_.send_bytes_per_second)));
      if (due > now) {
        waiting_.emplace(due, std::move(call));
        return;
      }
    }
    ++call->attempt;
    call->admitted = false;  // another attempt sends the body again
    call->request = *std::move(request);
    call->response = {};
    call->failure.reset();
    call->detail[0] = '\0';
    call->header_bytes = 0;
    call->headers_ended = false;
    call->moved = 0;
    call->moved_at = call->begun_at = now;
    call->clock = options_.clock;
    Attach(std::move(call));
  }

  void Attach(std::unique_ptr<Call> call) {
    CURL* easy = nullptr;
    if (spare_.empty()) {
      easy = curl_easy_init();
    } else {
      easy = spare_.back();
      spare_.pop_back();
      curl_easy_reset(easy);
    }
    if (easy == nullptr) {
      return call->call.done(ResourceExhaustedError("HTTP client: libcurl: out of memory"));
    }
    call->easy = easy;
    SetOptions(call.get());
    const CURLMcode added = curl_multi_add_handle(multi_, easy);
    Call* const borrowed = call.get();
    active_.emplace(easy, std::move(call));
    if (added != CURLM_OK) {
      std::unique_ptr<Call> failed = Detach(borrowed->easy);
      failed->call.done(InternalError(fmt::format("libcurl: {}", curl_multi_strerror(added))));
    }
  }

  void SetOptions(Call* call) {
    CURL* easy = call->easy;
    const HttpRequest& request = call->request;
    SetUrl(easy, request.url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    if (!options_.proxies || request.url.starts_with(kUnixScheme)) {
      curl_easy_setopt(easy, CURLOPT_PROXY, "");
    }
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);  // a signature covers the path as it was sent
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kReceiveBuffer);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kSendBuffer);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->detail);
    const auto connect = std::chrono::ceil<milliseconds>(options_.connect_timeout);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect.count()));
    if (!options_.ca_bundle.empty()) {
      curl_easy_setopt(easy, CURLOPT_CAINFO, options_.ca_bundle.c_str());
    }
    if (options_.send_bytes_per_second > 0) {
      curl_easy_setopt(easy, CURLOPT_MAX_SEND_SPEED_LARGE,
                       static_cast<curl_off_t>(options_.send_bytes_per_second));
    }
    SetMethod(call);
    if (request.method == "POST" && MaxAttempts(*call) == 1) {
      curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
    }
    for (const HttpHeader& header : request.headers) {
      // "Name;" is libcurl's way to send a header without a value.
      AddHeader(call, header.value.empty() ? header.name + ";" : header.name + ": " + header.value);
    }
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &OnHeader);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, call);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &OnBody);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, &OnProgress);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, call);
  }

  /// libcurl knows sockets of this machine by an option, not by the URL.
  static void SetUrl(CURL* easy, const std::string& url) {
    const std::size_t socket = kUnixScheme.size();
    const std::size_t slash = url.find('/', socket);
    if (!url.starts_with(kUnixScheme) || slash == std::string::npos) {
      curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
      return;
    }
    // A path that cannot be decoded is one that nobody listens on.
    const auto path = PercentDecode(url.substr(socket, slash - socket));
    curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, path.ok() ? path->c_str() : "/");
    curl_easy_setopt(easy, CURLOPT_URL, ("http://localhost" + url.substr(slash)).c_str());
  }

  static void SetMethod(Call* call) {
    const HttpRequest& request = call->request;
    if (request.method == "HEAD") {
      curl_easy_setopt(call->easy, CURLOPT_NOBODY, 1L);
      return;
    }
    curl_easy_setopt(call->easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (request.method == "GET" || (request.method == "DELETE" && request.body.empty())) return;
    // As form fields, because libcurl then sends them again by itself when a kept connection turns
    // out to be closed; the headers that go with forms are taken out.
    curl_easy_setopt(call->easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    const char* bytes = reinterpret_cast<const char*>(request.body.data());
    curl_easy_setopt(call->easy, CURLOPT_POSTFIELDS, bytes != nullptr ? bytes : "");
    AddHeader(call, "Expect:");
    const auto is_type = [](const HttpHeader& header) {
      return header.name == "Content-Type" || header.name == "content-type";
    };
    if (std::none_of(request.headers.begin(), request.headers.end(), is_type)) {
      AddHeader(call, "Content-Type:");
    }
  }

  static void AddHeader(Call* call, const std::string& line) {
    curl_slist* longer = curl_slist_append(call->headers, line.c_str());
    if (longer != nullptr) call->headers = longer;
  }

  static std::size_t OnHeader(char* data, std::size_t size, std::size_t count, void* user) {
    Call* call = static_cast<Call*>(user);
    const std::string_view line(data, size * count);
    call->header_bytes += line.size();
    if (call->header_bytes > kMaxHeaderBytes) {
      call->failure = ResourceExhaustedError("the answer's headers are too long");
      return 0;
    }
    if (line.starts_with("HTTP/")) {  // also after an interim answer
      call->response.headers.clear();
      call->headers_ended = false;
      return line.size();
    }
    if (line == "\r\n" || line == "\n") call->headers_ended = true;
    const std::size_t colon = line.find(':');
    if (colon == line.npos) return line.size();
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    call->response.headers.push_back({std::move(name), Trimmed(line.substr(colon + 1))});
    return line.size();
  }

  static std::size_t OnBody(char* data, std::size_t size, std::size_t count, void* user) {
    Call* call = static_cast<Call*>(user);
    const std::size_t bytes = size * count;
    long status = 0;
    curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    HttpResponse& response = call->response;
    if (call->request.sink && status >= 200 && status < 300) {
      if (call->request.sink(std::string_view(data, bytes))) return bytes;
      call->failure = CancelledError("the answer was not taken to its end");
      return 0;
    }
    if (!call->request.into.empty() && status >= 200 && status < 300) {
      const std::span<std::byte> into = call->request.into;
      if (bytes > into.size() - response.into_bytes) {
        call->failure = ResourceExhaustedError(
            fmt::format("the answer is longer than the {} bytes asked for", into.size()));
        return 0;
      }
      std::memcpy(into.data() + response.into_bytes, data, bytes);
      response.into_bytes += bytes;
      return bytes;
    }
    if (response.body.size() + bytes > call->request.max_body_bytes) {
      call->failure = ResourceExhaustedError(fmt::format(
          "the answer is longer than the {} bytes allowed", call->request.max_body_bytes));
      return 0;
    }
    response.body.append(data, bytes);
    return bytes;
  }

  static int OnProgress(void* user, curl_off_t, curl_off_t received, curl_off_t, curl_off_t sent) {
    Call* call = static_cast<Call*>(user);
    if (received + sent != call->moved) {
      call->moved = received + sent;
      call->moved_at = call->clock->Now();
    }
    return 0;
  }

  std::unique_ptr<Call> Detach(CURL* easy) {
    auto node = active_.extract(easy);
    std::unique_ptr<Call> call = std::move(node.mapped());
    curl_multi_remove_handle(multi_, easy);
    spare_.push_back(easy);
    curl_slist_free_all(call->headers);
    call->headers = nullptr;
    call->easy = nullptr;
    return call;
  }

  void TakeResults() {
    int left = 0;
    while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      CURL* easy = message->easy_handle;
      long status = 0;
      curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
      std::unique_ptr<Call> call = Detach(easy);
      call->response.status = static_cast<int>(status);
      if (call->failure) {
        const std::string where = ShownUrl(call->request.url);
        Status error = call->failure->WithContext(call->request.method + " " + where);
        Finish(std::move(call), std::move(error));
      } else if (code == CURLE_OK && !call->headers_ended) {
        // libcurl takes what there is of a head that was cut; a header may be missing.
        Status error = TransportError(CURLE_RECV_ERROR, call->request, "the answer was cut short");
        Finish(std::move(call), std::move(error));
      } else if (code != CURLE_OK) {
        Status error = TransportError(code, call->request, call->detail);
        Finish(std::move(call), std::move(error));
      } else {
        HttpResponse response = std::move(call->response);
        Finish(std::move(call), std::move(response));
      }
    }
  }

  void EndStalled() {
    const nanoseconds now = options_.clock->Now();
    std::vector<CURL*> stalled;
    for (const auto& [easy, call] : active_) {
      if (now - call->moved_at > Patience(*call) || now > LastsUntil(*call))
        stalled.push_back(easy);
    }
    for (CURL* easy : stalled) {
      std::unique_ptr<Call> call = Detach(easy);
      const auto seconds = [](nanoseconds time) {
        return std::chrono::duration<double>(time).count();
      };
      Status error = DeadlineExceededError(fmt::format(
          "{} {}: {}", call->request.method, ShownUrl(call->request.url),
          now > LastsUntil(*call)
              ? fmt::format("not answered in full within {:g} s", seconds(options_.attempt_timeout))
              : fmt::format("no byte moved for {:g} s", seconds(Patience(*call)))));
      Finish(std::move(call), std::move(error));
    }
  }

  /// By then one attempt is over in any case.
  nanoseconds LastsUntil(const Call& call) const {
    return options_.attempt_timeout == nanoseconds(0) ? nanoseconds::max()
                                                      : call.begun_at + options_.attempt_timeout;
  }

  nanoseconds Patience(const Call& call) const {
    return std::max(options_.stall_timeout, call.request.patience);
  }

  int MaxAttempts(const Call& call) const {
    return call.call.max_attempts > 0 ? call.call.max_attempts : options_.retry.max_attempts;
  }

  void Finish(std::unique_ptr<Call> call, Result<HttpResponse> outcome) {
    const bool again =
        call->attempt < MaxAttempts(*call) &&
        (call->call.retry ? call->call.retry(call->attempt, outcome) : IsTransient(outcome));
    if (!again) return call->call.done(std::move(outcome));
    const nanoseconds wait =
        options_.retry.Wait(call->attempt, options_.random(), RetryAfter(outcome));
    waiting_.emplace(options_.clock->Now() + wait, std::move(call));
  }

  nanoseconds PollTime() {
    if (waiting_.empty() && active_.empty()) return kLongestPoll;
    const nanoseconds now = options_.clock->Now();
    nanoseconds soonest = kLongestPoll;
    const bool room = active_.size() < static_cast<std::size_t>(options_.connections);
    if (!waiting_.empty() && room) {
      soonest = std::clamp(waiting_.begin()->first - now, nanoseconds(0), kPollWithTimers);
    }
    for (const auto& [easy, call] : active_) {
      const nanoseconds left = std::min(call->moved_at + Patience(*call), LastsUntil(*call)) - now;
      soonest = std::min(soonest, std::max(left, nanoseconds(milliseconds(1))));
    }
    return soonest;
  }

  Options options_;
  const pid_t owner_;
  CURLM* multi_ = nullptr;
  std::thread thread_;

  Mutex mu_;
  bool stop_ GUARDED_BY(mu_) = false;
  bool all_cancelled_ GUARDED_BY(mu_) = false;
  CallId next_id_ GUARDED_BY(mu_) = 1;
  std::vector<std::unique_ptr<Call>> inbox_ GUARDED_BY(mu_);
  std::vector<CallId> cancelled_ GUARDED_BY(mu_);

  Calls waiting_;
  std::map<CURL*, std::unique_ptr<Call>> active_;
  std::vector<CURL*> spare_;
  nanoseconds rate_free_at_{0};
};

HttpClient::HttpClient(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

Result<std::unique_ptr<HttpClient>> HttpClient::Open(Options options) {
  RETURN_IF_ERROR(options.Validate());
  auto loop = std::make_unique<Loop>(std::move(options));
  RETURN_IF_ERROR(loop->Begin());
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(loop)));
}

HttpClient::~HttpClient() {
  if (loop_->InOwnProcess()) return;
  loop_->Abandon();
  (void)loop_.release();  // its thread, its locks and its sockets are the parent's
}

HttpClient::CallId HttpClient::Start(HttpCall call) {
  if (!loop_->InOwnProcess()) {
    call.done(FailedPreconditionError(
        "the connection was opened before fork; open the store again in this process"));
    return 0;
  }
  return loop_->Add(std::move(call));
}

void HttpClient::Cancel(CallId id) { loop_->Cancel(id); }

void HttpClient::CancelAll() {
  if (loop_->InOwnProcess()) loop_->CancelAll();
}

Result<HttpResponse> HttpClient::Fetch(HttpCall call) {
  Mutex mu;
  CondVar ready;
  std::optional<Result<HttpResponse>> outcome;
  call.done = [&](Result<HttpResponse> result) {
    MutexLock lock(&mu);
    outcome.emplace(std::move(result));
    ready.NotifyOne();
  };
  Start(std::move(call));
  MutexLock lock(&mu);
  while (!outcome) ready.Wait(&mu);
  return *std::move(outcome);
}

Result<HttpResponse> HttpClient::Fetch(HttpRequest request) {
  return Fetch(HttpCall{
      .prepare = [request = std::move(request)](int) -> Result<HttpRequest> { return request; }});
}

}  // namespace cairn
