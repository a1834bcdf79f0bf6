#include "net/http_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <restinio/all.hpp>
#include <restinio/tls.hpp>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "net/http_intake.h"
#include "net/http_routes.h"
#include "net/lingering_socket.h"
#include "net/tls_files.h"
#include "net/unix_listener.h"
#include "net/url.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxStreamBacklog = 4u << 20;
constexpr std::string_view kUnixPrefix = "unix:";
/// A refused body up to this long is read and thrown away: the connection can be kept, and clients
/// that send all before they listen get their answer instead of a broken pipe.
constexpr std::uint64_t kMaxSkippedBody = 16u << 20;
// What the intake has to say of a request, beside its own headers: no client can send a name with a
// colon.
constexpr const char* kRefusal = ":refusal";
constexpr const char* kLimit = ":limit";

/// Names the callbacks of ours to RESTinio, which chooses them by the type of the mapper.
struct Methods : restinio::default_http_methods_t {};

using RequestHandler =
    std::function<restinio::request_handling_status_t(restinio::request_handle_t)>;

template <typename Base>
struct TraitsOver : Base {
  static constexpr bool use_connection_count_limiter = true;
  using http_methods_mapper_t = Methods;
};
template <typename Socket>
using TraitsWith = TraitsOver<
    restinio::traits_t<restinio::asio_timer_manager_t, restinio::null_logger_t, RequestHandler,
                       asio::strand<restinio::default_asio_executor>, Socket>>;
using Traits = TraitsWith<PlainSocket>;
using TlsTraits = TraitsWith<TlsSocket>;
using PlainServer = restinio::http_server_t<Traits>;
using TlsServer = restinio::http_server_t<TlsTraits>;
using Chunked = restinio::response_builder_t<restinio::chunked_output_t>;

std::string LowerCase(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return out;
}

/// The intake and the patience of the server that this thread works for.
thread_local const HttpIntake* intake = nullptr;
thread_local std::chrono::nanoseconds handshake_timeout{0};

/// RESTinio finds it before its own, which would wait for a silent client for ever: its timers
/// begin with the first request. The strand keeps the timer away from the handshake.
template <typename Start, typename Fail>
void prepare_connection_and_start_read(TlsSocket& socket,
                                       restinio::impl::connection_t<TlsTraits>& connection,
                                       Start start, Fail fail) {
  auto strand = asio::make_strand(socket.get_executor());
  auto timer = std::make_shared<asio::steady_timer>(socket.get_executor(), handshake_timeout);
  auto held = connection.shared_from_this();
  timer->async_wait(
      asio::bind_executor(strand, [timer, held, &socket](const asio::error_code& cancelled) {
        // An expiry that was queued when the handshake ended finds the time taken back.
        if (cancelled || timer->expiry() == asio::steady_timer::time_point::max()) return;
        asio::error_code ignored;
        socket.lowest_layer().close(ignored);
      }));
  socket.async_handshake(asio::ssl::stream_base::server,
                         asio::bind_executor(strand, [timer, held, start,
                                                      fail](const asio::error_code& error) mutable {
                           timer->expires_at(asio::steady_timer::time_point::max());
                           timer->cancel();
                           if (error) return fail(error);
                           start();
                         }));
}

ServerRequest HeadOf(const restinio::http_request_header_t& header, std::string method) {
  ServerRequest request;
  request.method = std::move(method);
  request.peer = reading_from;
  request.query = DecodeQuery({header.query().data(), header.query().size()});
  header.for_each_field([&](const auto& field) {
    if (field.name().starts_with(':')) return;
    request.headers.push_back(
        {LowerCase({field.name().data(), field.name().size()}), std::string(field.value())});
  });
  return request;
}

using ParserContext = restinio::impl::http_parser_ctx_t;

/// Called when the headers are there: 0 goes on with the body, 1 goes on without one.
int OnHeaders(http_parser* parser) {
  auto* const context = static_cast<ParserContext*>(parser->data);
  context->m_leading_headers_completed = true;
  parser->upgrade = 0;  // nothing here speaks another protocol
  const bool chunked = (parser->flags & F_CHUNKED) != 0;
  const bool sized = !chunked && parser->content_length != ULLONG_MAX;
  const std::uint64_t length = sized ? parser->content_length : 0;
  restinio::http_request_header_t& header = context->m_header;
  const auto method = static_cast<enum http_method>(parser->method);
  const HttpIntake::Verdict verdict = intake->Judge(HeadOf(header, http_method_str(method)),
                                                    {header.path().data(), header.path().size()},
                                                    sized ? std::optional(length) : std::nullopt);
  if (verdict.refusal) {
    const bool hang_up = chunked || length > kMaxSkippedBody;
    header.add_field(kRefusal, HttpIntake::Encode(*verdict.refusal, hang_up));
    return hang_up ? 1 : 0;
  }
  if (chunked) header.add_field(kLimit, std::to_string(verdict.max_body_bytes));
  context->m_body.reserve(length);
  return 0;
}

int OnBody(http_parser* parser, const char* bytes, std::size_t length) {
  auto* const context = static_cast<ParserContext*>(parser->data);
  restinio::http_request_header_t& header = context->m_header;
  if (header.has_field(kRefusal)) return 0;
  if (const auto limit = header.opt_value_of(kLimit); limit) {
    const std::uint64_t most = std::stoull(std::string(*limit));
    if (context->m_body.size() + length > most) {
      context->m_body = {};
      header.add_field(kRefusal, HttpIntake::Encode(intake->TooLarge(most), true));
      return restinio::impl::restinio_message_complete_cb<Methods>(parser);
    }
  }
  context->m_body.append(bytes, length);
  return 0;
}

restinio::http_status_line_t StatusLine(int status) {
  return {restinio::http_status_code_t{static_cast<std::uint16_t>(status)},
          std::string(ReasonPhrase(status))};
}

}  // namespace
}  // namespace cairn

namespace restinio::impl {

template <>
http_parser_settings create_parser_settings<cairn::Methods>() noexcept {
  http_parser_settings settings = create_parser_settings<default_http_methods_t>();
  settings.on_headers_complete = [](http_parser* parser) {
    try {
      return cairn::OnHeaders(parser);
    } catch (...) {
      return -1;
    }
  };
  settings.on_body = [](http_parser* parser, const char* bytes, std::size_t length) {
    try {
      return cairn::OnBody(parser, bytes, length);
    } catch (...) {
      return -1;
    }
  };
  // RESTinio would keep a record of each chunk, however small.
  settings.on_chunk_header = [](http_parser*) { return 0; };
  return settings;
}

}  // namespace restinio::impl

namespace cairn {
namespace {

/// An answer that is to be sent.
struct Answer {
  restinio::request_handle_t request;
  ServerResponse response;
  bool hang_up = false;
};

/// What replies that outlive the server must not touch.
struct Shared {
  explicit Shared(HttpErrorShape shape) : error(std::move(shape)) {}
  const HttpErrorShape error;
  Mutex mu;
  CondVar changed;
  bool stopped GUARDED_BY(mu) = false;
  int calling GUARDED_BY(mu) = 0;  // threads inside RESTinio on behalf of a reply
  int sending GUARDED_BY(mu) = 0;  // answers that are not on the wire yet
  /// Answers of other threads than the server's, which sends them: whoever answers many at once (a
  /// group of reports that became durable) wakes one thread, once, and goes on.
  std::vector<Answer> outbox GUARDED_BY(mu);
  asio::io_context* io GUARDED_BY(mu) = nullptr;  // null when the server has stopped
  std::set<HttpReply::State*> waiting GUARDED_BY(mu);
  std::set<HttpStream::State*> streams GUARDED_BY(mu);
};

/// A call into RESTinio. None begins after the server stopped, and it is not taken apart before the
/// last one is over. No lock is held meanwhile that a handler needs: RESTinio may run the next
/// request of the connection inside the call.
class Call {
 public:
  enum Counted { kCounted };

  explicit Call(Shared* shared) : shared_(shared) {
    MutexLock hold(&shared_->mu);
    allowed_ = !shared_->stopped;
    if (allowed_) ++shared_->calling;
  }
  /// Of one who was allowed and has counted himself.
  Call(Shared* shared, Counted) : shared_(shared), allowed_(true) {}
  ~Call() {
    if (!allowed_) return;
    MutexLock hold(&shared_->mu);
    if (--shared_->calling == 0) shared_->changed.NotifyAll();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  bool allowed() const { return allowed_; }

 private:
  Shared* const shared_;
  bool allowed_ = false;
};

/// The server that this thread works for.
thread_local const Shared* serving = nullptr;

void Sent(Shared* shared) {
  MutexLock hold(&shared->mu);
  if (--shared->sending == 0) shared->changed.NotifyAll();
}

/// Within a Call.
void SendNow(const std::shared_ptr<Shared>& shared, Answer answer) {
  try {
    ServerResponse& response = answer.response;
    auto out = answer.request->create_response(StatusLine(response.status));
    out.append_header(restinio::http_field::content_type, response.content_type);
    for (const HttpHeader& header : response.headers) {
      out.append_header(header.name, header.value);
    }
    if (answer.hang_up || !answer.request->header().should_keep_alive()) out.connection_close();
    out.set_body(std::move(response.body));
    out.done([shared](const auto&) { Sent(shared.get()); });
  } catch (const std::exception& e) {
    Sent(shared.get());
    LogWarning(fmt::format("http server: an answer was not sent: {}", e.what()));
  }
}

/// On a thread of the server.
void SendOutbox(const std::shared_ptr<Shared>& shared) {
  std::vector<Answer> answers;
  const Call call(shared.get());
  {
    MutexLock hold(&shared->mu);
    answers.swap(shared->outbox);
  }
  if (!call.allowed()) return;
  for (Answer& answer : answers) SendNow(shared, std::move(answer));
}

}  // namespace

Status HttpServerOptions::Validate() const {
  if (threads < 1 || threads > kMaxHttpThreads) {
    return InvalidArgumentError(
        fmt::format("http server: threads {} must be 1 to {}", threads, kMaxHttpThreads));
  }
  if (max_connections < 1) {
    return InvalidArgumentError("http server: max_connections must be positive");
  }
  if (listen.starts_with(kUnixPrefix) && !tls.empty()) {
    return InvalidArgumentError("http server: a socket of this machine needs no TLS");
  }
  if (!listen.starts_with(kUnixPrefix) && listen.rfind(':') == std::string::npos) {
    return InvalidArgumentError(
        fmt::format("http server: \"{}\" is neither host:port nor unix:/path", listen));
  }
  if (!error) return InvalidArgumentError("http server: no shape of errors");
  return Status::Ok();
}

/// The connection that waits for an answer; let go when the server stops.
class HttpReply::State {
 public:
  State(std::shared_ptr<Shared> shared, restinio::request_handle_t request)
      : shared_(std::move(shared)), request_(std::move(request)) {
    MutexLock hold(&shared_->mu);
    if (shared_->stopped) {
      request_.reset();
    } else {
      shared_->waiting.insert(this);
    }
  }
  ~State() {
    if (Waits()) Send(shared_->error(500, "internal", "the request was not answered"));
  }

  void Send(ServerResponse response, bool hang_up = false) {
    Answer answer{.request = nullptr, .response = std::move(response), .hang_up = hang_up};
    {
      MutexLock hold(&shared_->mu);
      shared_->waiting.erase(this);
      answer.request = std::exchange(request_, nullptr);
      if (answer.request == nullptr || shared_->stopped) return;
      ++shared_->sending;
      if (serving != shared_.get()) {
        shared_->outbox.push_back(std::move(answer));
        if (shared_->outbox.size() == 1) {
          asio::post(*shared_->io, [shared = shared_] { SendOutbox(shared); });
        }
        return;
      }
      ++shared_->calling;
    }
    const Call call(shared_.get(), Call::kCounted);
    SendNow(shared_, std::move(answer));
  }

  restinio::request_handle_t Take() {
    MutexLock hold(&shared_->mu);
    shared_->waiting.erase(this);
    return std::exchange(request_, nullptr);
  }
  bool Waits() {
    MutexLock hold(&shared_->mu);
    return request_ != nullptr;
  }
  void Drop() { request_.reset(); }
  const std::shared_ptr<Shared>& shared() const { return shared_; }

 private:
  const std::shared_ptr<Shared> shared_;
  restinio::request_handle_t request_;  // guarded by shared_->mu
};

class HttpStream::State {
 public:
  explicit State(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~State() {
    End();
    MutexLock hold(&shared_->mu);
    shared_->streams.erase(this);
  }

  void Begin(const restinio::request_handle_t& request, int status, std::string content_type,
             const std::vector<HttpHeader>& headers) {
    const Call call(shared_.get());
    if (request == nullptr || !call.allowed()) return;
    {
      MutexLock hold(&shared_->mu);
      shared_->streams.insert(this);
    }
    MutexLock hold(&mu_);
    try {
      out_.emplace(request->create_response<restinio::chunked_output_t>(StatusLine(status)));
      out_->append_header(restinio::http_field::content_type, std::move(content_type));
      for (const HttpHeader& header : headers) out_->append_header(header.name, header.value);
      out_->flush();
    } catch (const std::exception& e) {
      out_.reset();
      LogWarning(fmt::format("http server: a stream was not begun: {}", e.what()));
    }
  }

  bool Write(std::string bytes) {
    const Call call(shared_.get());
    if (!call.allowed()) return false;
    MutexLock hold(&mu_);
    if (!out_.has_value() || *gone_) return false;
    const std::uint64_t size = bytes.size();
    if (*backlog_ + size > kMaxStreamBacklog) {
      out_.reset();  // without the last chunk: the client sees that it was cut
      return false;
    }
    try {
      *backlog_ += size;
      out_->append_chunk(std::move(bytes));
      out_->flush([gone = gone_, backlog = backlog_, size](const auto& error) {
        *backlog -= size;
        if (error) *gone = true;
      });
    } catch (const std::exception&) {
      out_.reset();
      return false;
    }
    return true;
  }

  void End() {
    const Call call(shared_.get());
    if (!call.allowed()) return;
    MutexLock hold(&mu_);
    if (!out_.has_value()) return;
    try {
      out_->done();
    } catch (const std::exception&) {
      *gone_ = true;
    }
    out_.reset();
  }
  bool open() {
    MutexLock hold(&mu_);
    return out_.has_value() && !*gone_;
  }
  void Drop() {
    MutexLock hold(&mu_);
    out_.reset();
  }
  std::uint64_t backlog() {
    MutexLock hold(&mu_);
    return *backlog_;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  Mutex mu_;
  std::optional<Chunked> out_ GUARDED_BY(mu_);
  // Shared with RESTinio's callbacks, which come on its threads and may come late.
  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<std::atomic<std::uint64_t>> backlog_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

bool HttpStream::Write(std::string bytes) { return state_->Write(std::move(bytes)); }
void HttpStream::End() { state_->End(); }
void HttpStream::Abort() { state_->Drop(); }
bool HttpStream::open() const { return state_->open(); }
std::uint64_t HttpStream::backlog() const { return state_->backlog(); }

void HttpReply::Send(ServerResponse response) const { state_->Send(std::move(response)); }

HttpStream HttpReply::Stream(int status, std::string content_type,
                             std::vector<HttpHeader> headers) const {
  auto state = std::make_shared<HttpStream::State>(state_->shared());
  state->Begin(state_->Take(), status, std::move(content_type), headers);
  return HttpStream(std::move(state));
}

class HttpServer::Impl {
 public:
  Impl(Options options, HttpRoutes routes)
      : options_(std::move(options)), routes_(std::move(routes)) {}
  ~Impl() { Stop(); }

  Status Start();
  void Stop();

  std::string url_;
  std::uint16_t port_ = 0;

 private:
  restinio::request_handling_status_t Handle(restinio::request_handle_t request) noexcept;
  void Dispatch(const restinio::request_handle_t& request);
  template <typename Settings>
  void Configure(Settings& settings, const ListenAddress& at, int* unix_fd);

  const Options options_;
  const HttpRoutes routes_;
  const HttpIntake intake_{&routes_, options_.max_body_bytes, options_.error};
  Lingerers lingerers_{{.total = options_.client_timeout}};
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>(options_.error);
  std::string socket_path_;
  asio::io_context io_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::variant<std::unique_ptr<PlainServer>, std::unique_ptr<TlsServer>> server_;
  std::vector<std::jthread> threads_;
  bool running_ = false;
};

template <typename Settings>
void HttpServer::Impl::Configure(Settings& settings, const ListenAddress& at, int* unix_fd) {
  settings.protocol(at.v6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4())
      .address(at.host)
      .port(at.port)
      .max_parallel_connections(static_cast<std::size_t>(options_.max_connections))
      .concurrent_accepts_count(1)  // with more, RESTinio numbers connections in a race
      .max_pipelined_requests(4)
      .incoming_http_msg_limits(restinio::incoming_http_msg_limits_t{}
                                    .max_url_size(65536)
                                    .max_field_name_size(256)
                                    .max_field_value_size(16384)
                                    .max_field_count(100)
                                    .max_body_size(options_.max_body_bytes))
      .read_next_http_message_timelimit(options_.client_timeout)
      .write_http_response_timelimit(options_.client_timeout)
      .handle_request_timeout(options_.answer_timeout)
      .acceptor_options_setter([](restinio::acceptor_options_t& acceptor) {
        acceptor.set_option(asio::ip::tcp::acceptor::reuse_address(true));
      })
      .acceptor_post_bind_hook([this, unix_fd](asio::ip::tcp::acceptor& acceptor) {
        if (*unix_fd >= 0) {
          // asio looks at the family of no socket that it is given, and RESTinio only accepts,
          // reads and writes: the listener is exchanged before it listens.
          acceptor.close();
          acceptor.assign(asio::ip::tcp::v4(), *unix_fd);
          *unix_fd = -1;
          return;
        }
        port_ = acceptor.local_endpoint().port();
      })
      .request_handler(
          [this](restinio::request_handle_t request) { return Handle(std::move(request)); });
}

Status HttpServer::Impl::Start() {
  int unix_fd = -1;
  ListenAddress at{.host = "127.0.0.1"};
  std::optional<asio::ssl::context> tls;
  if (options_.listen.starts_with(kUnixPrefix)) {
    const std::string path = options_.listen.substr(kUnixPrefix.size());
    ASSIGN_OR_RETURN(unix_fd, BindUnixSocket(path));
    socket_path_ = path;
  } else {
    ASSIGN_OR_RETURN(at, ParseListenAddress(options_.listen));
  }
  try {
    if (!options_.tls.empty()) {
      tls.emplace(asio::ssl::context::tls_server);
      RETURN_IF_ERROR(LoadTlsFiles(options_.tls, tls->native_handle()));
      server_ =
          std::make_unique<TlsServer>(restinio::external_io_context(io_), [&](auto& settings) {
            Configure(settings, at, &unix_fd);
            settings.tls_context(*std::move(tls));
          });
    } else {
      server_ =
          std::make_unique<PlainServer>(restinio::external_io_context(io_),
                                        [&](auto& settings) { Configure(settings, at, &unix_fd); });
    }
    std::visit([](auto& server) { server->open_sync(); }, server_);
  } catch (const std::exception& e) {
    if (unix_fd >= 0) close(unix_fd);
    std::visit([](auto& server) { server.reset(); }, server_);
    return UnavailableError(
        fmt::format("http server: cannot listen on {}: {}", options_.listen, e.what()));
  }
  url_ = socket_path_.empty() ? fmt::format(fmt::runtime(at.v6 ? "{}://[{}]:{}" : "{}://{}:{}"),
                                            options_.tls.empty() ? "http" : "https", at.host, port_)
                              : options_.listen;
  work_.emplace(io_.get_executor());
  running_ = true;
  {
    MutexLock hold(&shared_->mu);
    shared_->io = &io_;
  }
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] {
      intake = &intake_;
      serving = shared_.get();
      lingerers = &lingerers_;
      handshake_timeout = options_.client_timeout;
      while (true) {
        try {
          io_.run();
          return;
        } catch (const std::exception& e) {
          LogWarning(fmt::format("http server: {}", e.what()));
        }
      }
    });
  }
  return Status::Ok();
}

void HttpServer::Impl::Stop() {
  if (!running_) return;
  running_ = false;
  std::atomic<bool> closed{false};
  const auto tell = [&closed] {
    closed = true;
    closed.notify_all();
  };
  std::visit(
      [&](auto& server) { server->close_async(tell, [tell](std::exception_ptr) { tell(); }); },
      server_);
  closed.wait(false);
  {
    MutexLock hold(&shared_->mu);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (shared_->sending > 0 && std::chrono::steady_clock::now() < until) {
      shared_->changed.WaitFor(&shared_->mu, std::chrono::milliseconds(20));
    }
    shared_->stopped = true;
    shared_->io = nullptr;
    while (shared_->calling > 0) shared_->changed.Wait(&shared_->mu);
  }
  work_.reset();
  io_.stop();
  threads_.clear();
  {
    MutexLock hold(&shared_->mu);
    for (HttpReply::State* reply : shared_->waiting) reply->Drop();
    for (HttpStream::State* stream : shared_->streams) stream->Drop();
    shared_->waiting.clear();
    shared_->streams.clear();
    shared_->outbox.clear();
  }
  // Connections go with the operations that io_ still holds, and look into the server when they do.
  // What is posted goes last, so the server goes with it.
  std::visit(
      [this](auto& server) { asio::post(io_, [gone = std::shared_ptr(std::move(server))] {}); },
      server_);
  if (!socket_path_.empty()) unlink(socket_path_.c_str());
}

restinio::request_handling_status_t HttpServer::Impl::Handle(
    restinio::request_handle_t request) noexcept {
  try {
    Dispatch(request);
    return restinio::request_accepted();
  } catch (const std::exception& e) {
    LogError(fmt::format("http server: a handler threw: {}", e.what()));
  } catch (...) {
    LogError("http server: a handler threw");
  }
  return restinio::request_accepted();
}

void HttpServer::Impl::Dispatch(const restinio::request_handle_t& handle) {
  const auto state = std::make_shared<HttpReply::State>(shared_, handle);
  const auto& header = handle->header();
  if (const auto refusal = header.opt_value_of(kRefusal); refusal) {
    bool hang_up = false;
    ServerResponse answer = HttpIntake::Decode({refusal->data(), refusal->size()}, &hang_up);
    return state->Send(std::move(answer), hang_up);
  }
  const std::string_view path(header.path().data(), header.path().size());
  ServerRequest request = HeadOf(header, header.method().c_str());
  HttpRoutes::Match match = routes_.Find(request.method, path);
  HttpReply reply(state);
  DecodePercent(path, false, &request.path);
  request.params = std::move(match.params);
  request.body = handle->body();
  match.route->handler(request, std::move(reply));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(Options options,
                                                      std::vector<HttpRoute> routes) {
  RETURN_IF_ERROR(options.Validate());
  ASSIGN_OR_RETURN(HttpRoutes table, HttpRoutes::Make(std::move(routes)));
  auto impl = std::make_unique<Impl>(std::move(options), std::move(table));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::url() const { return impl_->url_; }
std::uint16_t HttpServer::port() const { return impl_->port_; }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace cairn
