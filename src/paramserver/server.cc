#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include <cairn/ps.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "format/json.h"
#include "net/http_server.h"
#include "paramserver/answer.h"
#include "paramserver/holdings.h"
#include "paramserver/leaving_clock.h"
#include "paramserver/metrics_page.h"
#include "paramserver/observer.h"
#include "paramserver/registry.h"
#include "rpc/stream_server.h"
#include "storage/open_store.h"

// The life of a server: generation after generation.
//
//  1. It sees that no other process is this server, listens, and registers its address in the
//     repository.
//  2. A fresh process tells its peers to leave the generation they are in: whichever that is, this
//     process is not part of it, so a server of the job was lost.
//  3. It opens the repository's next generation with them (docs/protocol.md, "Opening for
//     writing"), restores the checkpoint that all of them chose, and serves.
//     Recovery partial and log: a process that was in the generation before goes on with what it
//     has instead.
//  4. It leaves when a peer says so, when a trainer was lost in the middle of a step, or when it
//     cannot go on; it tells the others which generation it left, and goes to 3. Who has moved on
//     already is not disturbed: the number says so.
//
// A peer that was not reached in 2 or 4 (stopped, a network that was away) goes on serving a
// generation that nobody else is in. Whoever waits in 3 keeps looking for such peers and tells
// them. With recovery partial a server that was lost also asks the others who has left the job
// since its checkpoint: nobody else would tell it, and it would wait for them.

namespace cairn::ps {
namespace {

constexpr std::chrono::milliseconds kPeerTimeout{500};
constexpr std::chrono::milliseconds kLook{300};
// So long a server waits for the process before it, which may be about to end.
constexpr std::chrono::seconds kPredecessorPatience{5};
constexpr std::chrono::milliseconds kPredecessorLook{100};
// A peer seen serving so often in a row, while this server is still on its way, is left behind; it
// is not just a moment ahead.
constexpr int kLooksUntilLeftBehind = 4;
constexpr int kMaxFailures = 6;
constexpr std::chrono::milliseconds kFirstPause{50};

class ServerImpl final : public Server {
 public:
  explicit ServerImpl(ServerOptions options) : options_(std::move(options)) {}
  ~ServerImpl() override { Stop(); }

  Status Open();

  int port() const override { return streams_->port(); }
  int metrics_port() const override { return page_ == nullptr ? 0 : page_->port(); }
  Status Wait() override EXCLUDES(mu_);
  void Stop() override EXCLUDES(mu_);
  bool serving() const override EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return holdings_ != nullptr;
  }
  std::string StatusText() const override EXCLUDES(mu_);
  std::string MetricsText() const override EXCLUDES(mu_);

 private:
  enum class Phase : std::uint8_t { kOpening, kRestoring, kServing, kStopped };

  void Serve(rpc::ServerStream* stream) EXCLUDES(mu_);
  rpc::Message AnswerOne(const Request& request, Peer* peer) EXCLUDES(mu_);
  std::shared_ptr<Holdings> Current() const EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return holdings_;
  }
  /// Unavailable when another process is this server and goes on.
  Status WaitForPredecessor() const;
  /// `generation` 0: whichever it is.
  void AskToLeave(std::uint64_t generation, std::string_view why) EXCLUDES(mu_);
  void Live(const std::stop_token& stop) EXCLUDES(mu_);
  Status NotServing() const EXCLUDES(mu_);
  /// OK: it was left. Otherwise it could not be opened.
  Status LiveOne() EXCLUDES(mu_);
  void TellPeersToLeave(std::uint64_t generation);
  void LookForPeersLeftBehind(const std::stop_token& stop) EXCLUDES(mu_);
  void AskWhoLeft() EXCLUDES(mu_);

  const ServerOptions options_;
  std::shared_ptr<Store> store_;  // shared: as OpenStore gives it
  std::string process_;
  std::unique_ptr<rpc::StreamServer> streams_;

  mutable Mutex mu_;
  CondVar changed_;
  Phase phase_ GUARDED_BY(mu_) = Phase::kOpening;
  std::shared_ptr<LeavingClock> clock_ GUARDED_BY(mu_);  // of the generation; shared with it
  std::shared_ptr<Holdings> holdings_ GUARDED_BY(mu_);   // shared: requests under way hold it too
  bool leave_ GUARDED_BY(mu_) = false;
  bool gone_ GUARDED_BY(mu_) = false;  // the holdings of the last generation are
  bool stopping_ GUARDED_BY(mu_) = false;
  Status failure_ GUARDED_BY(mu_);
  std::unique_ptr<Holdings::Kept> kept_ GUARDED_BY(mu_);  // of the last generation
  std::uint64_t generations_ GUARDED_BY(mu_) = 0;

  std::jthread life_;
  std::jthread look_;
  std::unique_ptr<HttpServer> page_;  // last: it asks the rest until it is gone
};

Status ServerImpl::Open() {
  RETURN_IF_ERROR(options_.Validate());
  OpenStoreOptions open;
  open.create = true;
  ASSIGN_OR_RETURN(store_, OpenStore(options_.directory, open));
  RETURN_IF_ERROR(WaitForPredecessor());
  process_ = IdSource::System()->NewUuid();
  rpc::StreamServerOptions listen;
  listen.listen = options_.listen;
  listen.security = ToRpc(options_.security);
  listen.max_message_bytes = options_.max_message_bytes;
  listen.plain_connections = true;
  ASSIGN_OR_RETURN(streams_, rpc::StreamServer::Start(
                                 listen, [this](rpc::ServerStream* stream) { Serve(stream); }));
  streams_->SetServing(false);  // alive, and not ready
  if (!options_.metrics.empty()) {
    ASSIGN_OR_RETURN(const std::string metrics, MetricsAddress(options_.metrics));
    ASSIGN_OR_RETURN(page_, StartMetricsPage(metrics, options_.security.token, this));
  }
  std::string address = options_.address;
  if (address.empty()) {
    address = options_.listen.substr(0, options_.listen.rfind(':')) + ":" +
              std::to_string(streams_->port());
  } else if (address.ends_with(":0")) {  // the port that it got
    address.replace(address.size() - 1, 1, std::to_string(streams_->port()));
  }
  RETURN_IF_ERROR(RegisterServer(store_.get(), options_.index, {address, process_}));
  life_ = std::jthread([this](const std::stop_token& stop) { Live(stop); });
  if (options_.servers > 1) {
    look_ = std::jthread([this](const std::stop_token& stop) { LookForPeersLeftBehind(stop); });
  }
  return Status::Ok();
}

/// Who takes the place of a server that lives does harm before the repository refuses it: trainers
/// look for the job at an address where soon nobody is, and the other servers go back.
Status ServerImpl::WaitForPredecessor() const {
  const Clock::Duration until = Clock::System()->Now() + kPredecessorPatience;
  for (;;) {
    const auto registered = FindServer(store_.get(), options_.index);
    if (!registered.ok()) return Status::Ok();  // there was none, or it is written anew
    auto observer = Observer::Connect(registered->address, options_.security, kPeerTimeout);
    if (!observer.ok()) return Status::Ok();  // gone; if it only stands still, its lease decides
    const auto state = observer->Status();
    if (!state.ok() || state->stopped) return Status::Ok();
    if (state->process != registered->process) return Status::Ok();  // another one has its port
    if (Clock::System()->Now() >= until) {
      return UnavailableError(fmt::format(
          "ps_{} of {} lives already, at {}: end that process first, or give this one an index of "
          "its own",
          options_.index, QuoteForMessage(options_.directory), registered->address));
    }
    std::this_thread::sleep_for(kPredecessorLook);
  }
}

void ServerImpl::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (clock_ != nullptr) clock_->Leave();
    if (holdings_ != nullptr) holdings_->Leave();
    changed_.NotifyAll();
  }
  if (streams_ != nullptr) streams_->Stop();
  look_ = {};  // joins
  life_ = {};
}

Status ServerImpl::Wait() {
  MutexLock lock(&mu_);
  while (phase_ != Phase::kStopped) changed_.Wait(&mu_);
  return failure_;
}

void ServerImpl::Serve(rpc::ServerStream* stream) {
  Peer peer;
  for (;;) {
    auto received = stream->Receive();
    if (!received.ok()) return;
    auto request = DecodeRequest(received->bytes());
    if (!request.ok()) {
      // Nothing that follows can be trusted to begin where a message begins.
      LogWarning(fmt::format("ps_{}: {}: {}", options_.index, stream->peer(),
                             request.status().ToString()));
      stream->Send(Refuse({}, 0, request.status())).IgnoreError("the stream ends anyway");
      return;
    }
    if (!stream->Send(AnswerOne(*request, &peer)).ok()) return;
  }
}

rpc::Message ServerImpl::AnswerOne(const Request& request, Peer* peer) {
  const ReplyHead head{.kind = request.head.kind, .sequence = request.head.sequence};
  switch (request.head.kind) {
    case Kind::kStatus:
      return NewReply(head, StatusText());
    case Kind::kMetrics:
      return NewReply(head, MetricsText());
    case Kind::kRollBack:
      AskToLeave(request.head.generation, "another server said so");
      return NewReply(head, "");
    default:
      break;
  }
  const std::shared_ptr<Holdings> holdings = Current();
  if (holdings == nullptr) {
    return Refuse(request.head, 0, NotServing());
  }
  bool lost = false;
  rpc::Message reply = Answer(holdings.get(), request, peer, &lost);
  if (lost) AskToLeave(holdings->generation(), "a trainer was lost");
  if (holdings->is_broken()) {
    AskToLeave(holdings->generation(), holdings->Broken().ToString());
  }
  return reply;
}

void ServerImpl::AskToLeave(std::uint64_t generation, std::string_view why) {
  MutexLock lock(&mu_);
  if (holdings_ == nullptr) return;  // on its way already
  if (generation != 0 && holdings_->generation() != generation) return;
  if (leave_) return;
  LogInfo(
      fmt::format("ps_{} leaves generation {}: {}", options_.index, holdings_->generation(), why));
  leave_ = true;
  holdings_->Leave();
  changed_.NotifyAll();
}

void ServerImpl::TellPeersToLeave(std::uint64_t generation) {
  for (int i = 0; i < options_.servers; ++i) {
    if (i == options_.index) continue;
    const auto peer = FindServer(store_.get(), i);
    if (!peer.ok()) continue;  // never started
    auto observer = Observer::Connect(peer->address, options_.security, kPeerTimeout);
    if (!observer.ok()) continue;  // dead: the next one begins as we do
    const auto state = observer->Status();
    if (state.ok() && state->servers != options_.servers) {
      // Another size of the job still runs, and is not disturbed: the repository is its own.
      LogWarning(fmt::format(
          "ps_{} is one of {} servers and waits: {} is served by {} (ps_{} at {}); end those first",
          options_.index, options_.servers, QuoteForMessage(options_.directory), state->servers, i,
          peer->address));
      return;
    }
    observer->RollBack(generation).IgnoreError("LookForPeersLeftBehind finds it");
  }
}

void ServerImpl::LookForPeersLeftBehind(const std::stop_token& stop) {
  struct Seen {
    std::uint64_t generation = 0;
    int times = 0;
  };
  std::vector<Seen> seen(static_cast<std::size_t>(options_.servers));
  while (!stop.stop_requested()) {
    bool opening = false;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      changed_.WaitFor(&mu_, kLook);
      if (stopping_) return;
      opening = phase_ == Phase::kOpening;
    }
    if (!opening) {
      for (Seen& each : seen) each = {};
      if (options_.recovery == Recovery::kPartial) AskWhoLeft();
      continue;
    }
    for (int i = 0; i < options_.servers; ++i) {
      if (i == options_.index) continue;
      Seen& last = seen[static_cast<std::size_t>(i)];
      const auto peer = FindServer(store_.get(), i);
      if (!peer.ok()) continue;
      auto observer = Observer::Connect(peer->address, options_.security, kPeerTimeout);
      if (!observer.ok()) continue;
      const auto state = observer->Status();
      if (!state.ok() || !state->serving || state->servers != options_.servers) {
        last = {};
        continue;
      }
      last.times = last.generation == state->generation ? last.times + 1 : 1;
      last.generation = state->generation;
      if (last.times < kLooksUntilLeftBehind) continue;
      LogInfo(fmt::format("ps_{}: ps_{} was left behind in generation {}", options_.index, i,
                          state->generation));
      observer->RollBack(state->generation).IgnoreError("tried again");
      last = {};
    }
  }
}

void ServerImpl::AskWhoLeft() {
  const std::shared_ptr<Holdings> holdings = Current();
  if (holdings == nullptr) return;
  const std::vector<std::uint32_t> unseen = holdings->UnseenTrainers();
  for (int i = 0; i < options_.servers && !unseen.empty(); ++i) {
    if (i == options_.index) continue;
    const auto peer = FindServer(store_.get(), i);
    if (!peer.ok()) continue;
    auto observer = Observer::Connect(peer->address, options_.security, kPeerTimeout);
    if (!observer.ok()) continue;
    const auto state = observer->Status();
    if (!state.ok() || !state->serving || state->generation != holdings->generation()) continue;
    for (const std::uint32_t trainer : unseen) {
      // As a process that never came: should it have come meanwhile, this says nothing about it.
      if (!state->TrainerIs(trainer, "left")) continue;
      holdings->TrainerLeft({trainer, ""}).IgnoreError("it is here after all");
    }
  }
}

Status ServerImpl::LiveOne() {
  std::shared_ptr<LeavingClock> clock = std::make_shared<LeavingClock>(Clock::System());
  std::unique_ptr<Holdings::Kept> kept;
  {
    MutexLock lock(&mu_);
    if (stopping_) return CancelledError("stopped");
    kept = std::move(kept_);
    clock_ = clock;
    phase_ = Phase::kOpening;
    leave_ = false;
    gone_ = false;
  }
  auto opened = Holdings::Open(options_, clock, &kept, [this] {
    MutexLock lock(&mu_);
    phase_ = Phase::kRestoring;
  });
  if (!opened.ok()) {
    MutexLock lock(&mu_);
    kept_ = std::move(kept);  // for the next try
    return opened.status();
  }
  std::shared_ptr<Holdings> holdings(opened->release(), [this](Holdings* last) {
    auto next = last->Keep();
    delete last;  // gives up the save in flight, and the repository
    MutexLock lock(&mu_);
    kept_ = std::move(next);
    gone_ = true;
    changed_.NotifyAll();
  });
  const std::uint64_t generation = holdings->generation();
  LogInfo(fmt::format("ps_{} serves generation {}", options_.index, generation));
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    holdings_ = holdings;
    phase_ = Phase::kServing;
    ++generations_;
    changed_.NotifyAll();
  }
  streams_->SetServing(true);
  {
    MutexLock lock(&mu_);
    while (!leave_ && !stopping_) changed_.Wait(&mu_);
    holdings_ = nullptr;
    phase_ = Phase::kOpening;
    stopping = stopping_;
  }
  streams_->SetServing(false);
  holdings->Leave();
  clock->Leave();
  if (!stopping) TellPeersToLeave(generation);
  holdings = nullptr;
  // Requests under way end soon: nothing they wait for waits any longer.
  MutexLock lock(&mu_);
  while (!gone_) changed_.Wait(&mu_);
  return Status::Ok();
}

void ServerImpl::Live(const std::stop_token& stop) {
  TellPeersToLeave(0);
  int failures = 0;
  auto pause = kFirstPause;
  Status failure;
  while (!stop.stop_requested()) {
    const Status lived = LiveOne();
    // Whichever generation the others are in, we are in none.
    if (!lived.ok() && !lived.Is(Code::kCancelled)) TellPeersToLeave(0);
    MutexLock lock(&mu_);
    if (stopping_) break;
    if (lived.ok()) {
      failures = 0;
      pause = kFirstPause;
      continue;
    }
    LogWarning(fmt::format("ps_{}: {}", options_.index, lived.ToString()));
    // Damage that this server found makes the next opening choose an older checkpoint; another
    // process may be about to give up a lock. What stays is told.
    const bool lasting = lived.Is(Code::kFailedPrecondition) || lived.Is(Code::kInvalidArgument);
    if (lasting || ++failures >= kMaxFailures) {
      failure = lived;
      break;
    }
    const Clock::Duration until = Clock::System()->Now() + pause;
    while (!stopping_ && Clock::System()->Now() < until) {
      changed_.WaitFor(&mu_, until - Clock::System()->Now());
    }
    pause *= 2;
  }
  MutexLock lock(&mu_);
  failure_ = failure;
  phase_ = Phase::kStopped;
  changed_.NotifyAll();
}

/// Unavailable in any case: another process may take the place of one that gave up.
Status ServerImpl::NotServing() const {
  MutexLock lock(&mu_);
  if (phase_ != Phase::kStopped || failure_.ok()) {
    return UnavailableError(fmt::format("ps_{} is not ready yet", options_.index));
  }
  return UnavailableError(
      fmt::format("ps_{} has given up: {}", options_.index, failure_.message()));
}

std::string ServerImpl::StatusText() const {
  const std::shared_ptr<Holdings> holdings = Current();
  Value value = Value::Object{};
  if (holdings != nullptr) value = holdings->Describe();
  Value::Object& members = *value.if_object();
  MutexLock lock(&mu_);
  members["server"] = options_.index;
  members["servers"] = options_.servers;
  members["quantize"] = options_.quantize;
  members["process"] = process_;
  members["generation"] = holdings == nullptr ? 0 : holdings->generation();
  members["generations"] = generations_;
  members["state"] = holdings != nullptr           ? "serving"
                     : phase_ == Phase::kRestoring ? "restoring"
                     : phase_ == Phase::kStopped   ? "stopped"
                                                   : "opening";
  return EncodeJson(value);
}

std::string ServerImpl::MetricsText() const {
  const std::shared_ptr<Holdings> holdings = Current();
  std::string text = fmt::format(
      "# HELP cairn_ps_up Whether this server serves.\n# TYPE cairn_ps_up gauge\ncairn_ps_up {}\n",
      holdings == nullptr ? 0 : 1);
  if (holdings != nullptr) text += holdings->Metrics();
  return text;
}

}  // namespace

Status ServerOptions::Validate() const {
  if (directory.empty()) return InvalidArgumentError("a server needs the job's directory");
  if (servers < 1 || servers > kMaxServers) {
    return InvalidArgumentError("there may be 1 … 1,024 servers, not " + std::to_string(servers));
  }
  if (index < 0 || index >= servers) {
    return InvalidArgumentError(fmt::format("there is no server {} of {}", index, servers));
  }
  if (trainers < 1 || trainers > 65'536) {
    return InvalidArgumentError("there may be 1 … 65,536 trainers, not " +
                                std::to_string(trainers));
  }
  for (const auto& [name, secs] :
       {std::pair("full_secs", full_secs), std::pair("incremental_secs", incremental_secs)}) {
    if (secs && !(*secs > 0 && std::isfinite(*secs))) {
      return InvalidArgumentError(
          fmt::format("{} must be a positive number of seconds, not {}", name, *secs));
    }
  }
  for (const auto& [name, steps] :
       {std::pair("full_steps", full_steps), std::pair("incremental_steps", incremental_steps)}) {
    if (steps && *steps < 1) {
      return InvalidArgumentError(fmt::format("{} must be at least 1, not {}", name, *steps));
    }
  }
  if (!metrics.empty()) RETURN_IF_ERROR(MetricsAddress(metrics).status());
  const std::size_t colon = listen.rfind(':');
  int port = -1;
  if (colon != listen.npos) {
    const char* const end = listen.data() + listen.size();
    const auto [read, error] = std::from_chars(listen.data() + colon + 1, end, port);
    if (error != std::errc() || read != end) port = -1;
  }
  if (port < 0 || port > 65'535) {
    return InvalidArgumentError("listen: \"" + listen +
                                "\" is not host:port with a port of 0 to 65535");
  }
  if (security.certificate.empty() != security.key.empty()) {
    return InvalidArgumentError("a certificate and its key come together");
  }
  if (!security.certificate.empty() && servers > 1 && security.ca.empty()) {
    return InvalidArgumentError(
        "servers speak to each other: with a certificate they need the CA's file (--tls-ca) too");
  }
  if (address.empty() && servers > 1) {
    const std::string host = listen.substr(0, listen.rfind(':'));
    for (const std::string_view any : {"", "0.0.0.0", "[::]", "::", "*"}) {
      if (host != any) continue;
      return InvalidArgumentError("listen: \"" + listen +
                                  "\" is no address that others could reach it by: name one "
                                  "(--address host:port)");
    }
  }
  if (recovery != Recovery::kLog && !log_directory.empty()) {
    return InvalidArgumentError("a directory for update logs is for recovery log");
  }
  if (recovery != Recovery::kLog && log_level == LogLevel::kSynced) {
    return InvalidArgumentError(
        "log level synced is for recovery log: others keep no update log, and what came after a "
        "checkpoint is lost with its server");
  }
  return Status::Ok();
}

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  auto server = std::make_unique<ServerImpl>(std::move(options));
  RETURN_IF_ERROR(server->Open());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace cairn::ps
