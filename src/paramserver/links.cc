#include "paramserver/links.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "paramserver/observer.h"
#include "paramserver/placement.h"
#include "paramserver/registry.h"
#include "storage/open_store.h"

namespace cairn::ps {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kConnectTimeout{1000};
constexpr std::chrono::milliseconds kGreetTimeout{5000};
constexpr std::chrono::milliseconds kFirstPause{5};
constexpr std::chrono::milliseconds kLongestPause{200};
/// A wait that is longer than a start of servers is told, so that nobody waits for a wrong address
/// in silence.
constexpr std::chrono::seconds kFirstWord{3};
constexpr std::chrono::seconds kNextWord{60};

/// Not by waiting.
bool Lasting(const Status& status) {
  return status.Is(Code::kPermissionDenied) || status.Is(Code::kFailedPrecondition) ||
         status.Is(Code::kInvalidArgument) || status.Is(Code::kUnimplemented) ||
         status.Is(Code::kCorruption);
}

}  // namespace

Links::~Links() {
  watch_ = {};  // joined before the streams go
}

Status Links::CheckProcess() const {
  if (process_ == 0 || process_ == getpid()) return Status::Ok();
  return FailedPreconditionError(
      fmt::format("this client belongs to process {}, and this is a fork of it, which cannot speak "
                  "over its connections: connect a client of its own here, as a trainer of its own "
                  "or (trainer -1) as one that only looks",
                  process_));
}

Status Links::Open() {
  std::size_t servers = options_->servers.size();
  if (servers == 0) {
    if (options_->directory.empty() || options_->num_servers < 1) {
      return InvalidArgumentError(
          "name the servers' addresses, or the job's directory and the number of servers");
    }
    servers = static_cast<std::size_t>(options_->num_servers);
  }
  if (servers > static_cast<std::size_t>(kMaxServers)) {
    return InvalidArgumentError("more than 1,024 servers");
  }
  if (options_->trainer >= options_->trainers || options_->trainers < 1 || options_->trainer < -1) {
    return InvalidArgumentError(
        fmt::format("there is no trainer {} of {}", options_->trainer, options_->trainers));
  }
  incarnation_ = IdSource::System()->NewUuid();
  process_ = getpid();
  links_.resize(servers);
  for (std::size_t i = 0; i < options_->servers.size(); ++i) {
    links_[i].address = options_->servers[i];
  }
  watch_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
  return Status::Ok();
}

Result<std::string> Links::AddressOf(int server) {
  // Registered last is nearest to the truth; without a repository there is only what was given. The
  // servers make the repository, perhaps after the trainers were started.
  if (store_ == nullptr && !options_->directory.empty()) {
    OpenStoreOptions open;
    open.create = false;
    if (auto store = OpenStore(options_->directory, open); store.ok()) {
      store_ = std::move(store).value();
    }
  }
  if (store_ != nullptr) {
    if (auto found = FindServer(store_.get(), server); found.ok()) return found->address;
  }
  const std::string& address = At(server).address;
  if (address.empty()) {
    return UnavailableError(
        fmt::format("no server {} has registered in \"{}\"", server, options_->directory));
  }
  return address;
}

Status Links::Greet(int server, HelloReply* reply, std::uint64_t* generation) {
  Link& link = At(server);
  if (link.stream == nullptr) {
    rpc::ConnectOptions connect;
    ASSIGN_OR_RETURN(connect.address, AddressOf(server));
    connect.security = ToRpc(options_->security);
    // Plain connections have no TLS.
    const bool plain = options_->transport == Transport::kSocket && options_->security.ca.empty();
    connect.transport = plain ? rpc::Transport::kSocket : rpc::Transport::kGrpc;
    connect.timeout = kConnectTimeout;
    connect.max_message_bytes = options_->max_message_bytes;
    ASSIGN_OR_RETURN(auto stream, rpc::ClientStream::Open(connect));
    MutexLock lock(&mu_);
    link.stream = std::move(stream);
  }
  HelloRequest hello;
  if (options_->trainer >= 0) {
    hello.trainer = static_cast<std::uint32_t>(options_->trainer);
    hello.trainers = static_cast<std::uint32_t>(options_->trainers);
    hello.incarnation = incarnation_;
    hello.known = generation_ != 0;
    hello.step = step_;
    hello.acknowledged = link.acknowledged;
    hello.barrier = barrier_;
  }
  hello.server = static_cast<std::uint32_t>(server);
  hello.servers = static_cast<std::uint32_t>(links_.size());
  const Timer timer(this, kGreetTimeout);
  RETURN_IF_ERROR(Send(server, NewRequest({.kind = Kind::kHello}, Encode(hello))));
  ASSIGN_OR_RETURN(const rpc::Received received, Receive(server));
  ASSIGN_OR_RETURN(const Reply answer, DecodeReply(received.bytes()));
  RETURN_IF_ERROR(ReplyStatus(answer));
  ASSIGN_OR_RETURN(*reply, DecodeHelloReply(answer.body));
  *generation = answer.head.generation;
  return Status::Ok();
}

Status Links::Meet() {
  const auto deadline = SteadyClock::now() + options_->reconnect_timeout;
  std::chrono::milliseconds pause = kFirstPause;
  auto word = SteadyClock::now() + kFirstWord;
  std::vector<HelloReply> replies(links_.size());
  for (;;) {
    Status missing;
    std::vector<std::uint64_t> generations(links_.size(), 0);
    for (int i = 0; i < servers(); ++i) {
      if (Interrupted()) return CancelledError("the wait for the servers was cancelled");
      const auto at = static_cast<std::size_t>(i);
      Status greeted = Greet(i, &replies[at], &generations[at]);
      if (greeted.ok()) continue;
      if (Lasting(greeted)) return greeted.WithContext("server " + std::to_string(i));
      {
        // A connection whose peer is gone says so only when it is used: a new one each time.
        MutexLock lock(&mu_);
        links_[at].stream = nullptr;
      }
      if (missing.ok()) missing = greeted.WithContext("server " + std::to_string(i));
    }
    const bool same = std::all_of(generations.begin(), generations.end(),
                                  [&](std::uint64_t each) { return each == generations[0]; });
    if (missing.ok() && same) {
      Settle(generations[0], replies);
      return Status::Ok();
    }
    if (missing.ok()) missing = UnavailableError("the servers are not in one generation");
    const auto now = SteadyClock::now();
    if (now >= word && now < deadline) {
      word = now + kNextWord;
      LogWarning(fmt::format("waiting for the servers, at most {} s more: {}",
                             std::chrono::ceil<std::chrono::seconds>(deadline - now).count(),
                             missing.message()));
    }
    if (now >= deadline) {
      return UnavailableError(fmt::format("waited {} s for the servers: {}",
                                          options_->reconnect_timeout.count() / 1000,
                                          missing.ToString()));
    }
    MutexLock lock(&mu_);
    const auto next = SteadyClock::now() + pause;
    while (!cancelled_ && SteadyClock::now() < next) {
      changed_.WaitFor(&mu_, next - SteadyClock::now());
    }
    pause = std::min(pause * 2, kLongestPause);
  }
}

void Links::Settle(std::uint64_t generation, const std::vector<HelloReply>& replies) {
  position_ = replies[0];
  max_message_bytes_ = options_->max_message_bytes;
  for (const HelloReply& reply : replies) {
    max_message_bytes_ = std::min(max_message_bytes_, reply.max_message_bytes);
    // A step that ended at one server has all its changes at the others. Who has left and comes
    // back is where the job is, and has its state from before: a server that has none was never
    // told.
    if (reply.step > position_.step) {
      position_.step = reply.step;
      if (reply.state) position_.state = reply.state;
    }
    if (!position_.state) position_.state = reply.state;
    // A server that was lost knows of no barriers.
    if (reply.barrier != 0 && (position_.barrier == 0 || reply.barrier < position_.barrier)) {
      position_.barrier = reply.barrier;
    }
  }
  uneven_ = std::any_of(replies.begin(), replies.end(),
                        [&](const HelloReply& reply) { return reply.step != position_.step; });
  went_back_ =
      generation_ == 0 || (generation_ != generation && position_.recovery == Recovery::kExact);
  generation_ = generation;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const HelloReply& reply = replies[i];
    if (went_back_) {
      links_[i].sequence = reply.step < position_.step ? reply.sequence : reply.step_sequence;
    } else if (forget_sequences_) {
      links_[i].sequence = reply.sequence;
    } else {
      continue;
    }
    links_[i].acknowledged = links_[i].sequence;
  }
  forget_sequences_ = false;
}

void Links::Drop() {
  MutexLock lock(&mu_);
  for (Link& link : links_) link.stream = nullptr;
}

Status Links::Send(int server, rpc::Message message) {
  Link& link = At(server);
  if (link.stream == nullptr) return UnavailableError("no connection");
  return link.stream->Send(std::move(message));
}

Result<rpc::Received> Links::Receive(int server) {
  Link& link = At(server);
  if (link.stream == nullptr) return UnavailableError("no connection");
  return link.stream->Receive();
}

void Links::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
  for (Link& link : links_) {
    if (link.stream != nullptr) link.stream->Cancel();
  }
  changed_.NotifyAll();
}

Links::Timer::Timer(Links* links, std::chrono::milliseconds timeout) : links_(links) {
  MutexLock lock(&links_->mu_);
  links_->until_ = SteadyClock::now() + timeout;
}

Links::Timer::~Timer() {
  MutexLock lock(&links_->mu_);
  links_->until_.reset();
}

void Links::Watch(const std::stop_token& stop) {
  // The timers are set on every request, so they do not wake this thread: it looks now and then.
  constexpr std::chrono::milliseconds kLook{50};
  std::stop_callback wake(stop, [this] {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(&mu_);
  while (!stop.stop_requested()) {
    changed_.WaitFor(&mu_, kLook);
    if (!until_ || SteadyClock::now() < *until_) continue;
    for (Link& link : links_) {
      if (link.stream != nullptr) link.stream->Cancel();
    }
  }
}

}  // namespace cairn::ps
