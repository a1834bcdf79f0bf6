// How ranks meet (docs/format/rank_protocol.md):
// 1. Rank 0 listens, and says where: at CAIRN_CHIEF=host:port, or in the file that file:PATH names.
// 2. Whoever connects gets a nonce, and answers with rank, size, a nonce of its own, and the HMAC
// of
//    rank 0's nonce under the trial's token: so strangers are sent away before they change
//    anything.
// 3. Rank 0 answers with the HMAC of that nonce: so a worker notices a file or a port that an older
//    job left, and looks again.
// 4. Each further message is numbered and says which call it belongs to: so ranks that are out of
//    step are told, instead of taking one call's value for another's.

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include <cairn/core.h>

#include "base/clock.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "launch/process_identity.h"
#include "net/token.h"
#include "trial/rank_place.h"
#include "trial/rank_wire.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;
using std::chrono::nanoseconds;

constexpr std::uint64_t kMaxBytes = 1u << 30;
constexpr std::uint64_t kHelloBytes = 4096;
constexpr nanoseconds kHelloTime = std::chrono::seconds(10);
constexpr nanoseconds kRetry = std::chrono::milliseconds(20);
constexpr std::string_view kFile = "file:";

std::string SystemError() { return std::strerror(errno); }

void SetTimeout(int fd, nanoseconds timeout) {
  const auto micros = std::max<std::int64_t>(
      1, std::chrono::duration_cast<std::chrono::microseconds>(timeout).count());
  const timeval value{.tv_sec = micros / 1'000'000, .tv_usec = micros % 1'000'000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof(value));  // also bounds connect
}

Status SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return DeadlineExceededError("takes nothing any more");
    if (sent < 0) return UnavailableError("is gone (" + SystemError() + ")");
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return Status::Ok();
}

/// Exactly so many bytes. They are taken in as they come: a length alone allocates little.
Result<std::string> ReceiveExactly(int fd, std::uint64_t count) {
  constexpr std::uint64_t kPiece = 1u << 20;
  std::string bytes;
  while (bytes.size() < count) {
    const std::size_t before = bytes.size();
    bytes.resize(before + std::min<std::uint64_t>(count - before, kPiece));
    const ssize_t got = recv(fd, bytes.data() + before, bytes.size() - before, 0);
    const int error = errno;
    bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 || (got < 0 && error == EINTR)) continue;
    if (got == 0) return UnavailableError("is gone");
    if (error == EAGAIN) return DeadlineExceededError("says nothing");
    return UnavailableError(fmt::format("is gone ({})", std::strerror(error)));
  }
  return bytes;
}

Status SendMessage(int fd, std::string_view bytes) {
  if (bytes.size() > kMaxBytes) {
    return ResourceExhaustedError(fmt::format(
        "a message of {} bytes between ranks; at most {} are taken", bytes.size(), kMaxBytes));
  }
  std::string framed(8, '\0');
  for (int i = 0; i < 8; ++i) {
    framed[static_cast<std::size_t>(i)] = static_cast<char>(bytes.size() >> (8 * i) & 0xFF);
  }
  framed += bytes;
  return SendAll(fd, framed);
}

Result<std::string> ReceiveMessage(int fd, std::uint64_t limit) {
  ASSIGN_OR_RETURN(const std::string head, ReceiveExactly(fd, 8));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(head[static_cast<std::size_t>(i)]);
  }
  if (length > limit) {
    return CorruptionError(
        fmt::format("sends a message of {} bytes; at most {} are taken", length, limit));
  }
  return ReceiveExactly(fd, length);
}

Result<std::string> Nonce() {
  std::string bytes(32, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return InternalError("the kernel gave no random numbers");
  }
  return bytes;
}

/// "gather: rank 1 is gone"
Status About(const Status& status, const char* what, int rank) {
  if (status.ok()) return status;
  return {status.code(), fmt::format("{}: rank {} {}", what, rank, status.message())};
}

/// Proof of knowing the token without sending it.
std::string Proof(std::string_view token, std::string_view nonce, std::string_view who) {
  const std::string said = std::string(nonce) + std::string(who);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
       reinterpret_cast<const unsigned char*>(said.data()), said.size(), digest.data(), &size);
  return {reinterpret_cast<const char*>(digest.data()), size};
}

bool SameProof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// "" when there is none.
std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string WhoIs(std::int64_t rank, std::int64_t size) {
  return fmt::format("rank {} of {}", rank, size);
}

struct Address {
  std::string host;
  int port = 0;
};

Result<Address> ParseAddress(std::string_view text) {
  Address address;
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon > 0) {
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error == std::errc() && stopped == end && address.port >= 0 && address.port < 65536) {
      address.host = text.substr(0, colon);
      return address;
    }
  }
  return InvalidArgumentError("CAIRN_CHIEF must be host:port or file:PATH, not " +
                              QuoteForMessage(text));
}

bool IsOurs(std::string_view host) { return host == "127.0.0.1" || host == "localhost"; }

/// The addresses of a host, or of all interfaces when it is "".
Result<std::vector<sockaddr_in>> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  addrinfo* list = nullptr;
  const std::string service = std::to_string(port);
  const int failed =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), service.c_str(), &hints, &list);
  if (failed != 0) return UnavailableError(host + ": " + gai_strerror(failed));
  std::vector<sockaddr_in> found;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    sockaddr_in one{};
    std::memcpy(&one, at->ai_addr, std::min<std::size_t>(at->ai_addrlen, sizeof(one)));
    found.push_back(one);
  }
  freeaddrinfo(list);
  if (found.empty()) return UnavailableError(host + " has no address");
  return found;
}

/// Whole or not there, and for this user alone: it may hold the token.
Status WriteAddress(const std::string& path, const std::string& text) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  OwnedFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return UnavailableError("make " + temporary + ": " + SystemError());
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      rename(temporary.c_str(), path.c_str()) != 0) {
    return UnavailableError("write " + path + ": " + SystemError());
  }
  return Status::Ok();
}

class DistributedContextImpl final : public DistributedContext {
 public:
  ~DistributedContextImpl() override { Close(); }

  Status Meet(DistributedOptions options) {
    options_ = std::move(options);
    if (options_.local_rank < 0) options_.local_rank = options_.rank;
    if (options_.local_size < 0) options_.local_size = options_.size;
    if (size() < 1 || rank() < 0 || rank() >= size()) {
      return InvalidArgumentError(fmt::format("rank {} of {}: ranks count from 0", rank(), size()));
    }
    if (local_rank() >= local_size() || local_size() > size()) {
      return InvalidArgumentError(
          fmt::format("local rank {} of {} among {} ranks", local_rank(), local_size(), size()));
    }
    if (size() == 1) return Status::Ok();
    if (options_.chief.empty()) {
      return InvalidArgumentError("several ranks need to know how they find rank 0: chief");
    }
    if (!options_.chief.starts_with(kFile)) {
      ASSIGN_OR_RETURN(const Address chief, ParseAddress(options_.chief));
      if (options_.token.empty() && !IsOurs(chief.host)) {
        return InvalidArgumentError("rank 0 is at " + options_.chief +
                                    ", which other machines reach, and no secret keeps strangers "
                                    "out: set CAIRN_CHIEF_TOKEN "
                                    "to the same random text for all ranks");
      }
    }
    return is_chief() ? Listen() : Connect();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  int local_rank() const override { return options_.local_rank; }
  int local_size() const override { return options_.local_size; }
  int cross_rank() const override { return rank() / local_size(); }
  int cross_size() const override { return (size() + local_size() - 1) / local_size(); }

  Result<std::vector<Value>> Gather(const Value& value) override {
    if (size() == 1) return std::vector<Value>{value};
    ++calls_;
    std::vector<Value> all;
    if (!is_chief()) {
      RETURN_IF_ERROR(Tell(0, "gather", value));
      return all;
    }
    all.push_back(value);
    for (int other = 1; other < size(); ++other) {
      ASSIGN_OR_RETURN(Value said, Hear(other, "gather"));
      all.push_back(std::move(said));
    }
    return all;
  }

  Result<Value> Broadcast(const Value& value) override {
    if (size() == 1) return value;
    ++calls_;
    if (!is_chief()) return Hear(0, "broadcast");
    for (int other = 1; other < size(); ++other) RETURN_IF_ERROR(Tell(other, "broadcast", value));
    return value;
  }

  Result<std::vector<Value>> AllGather(const Value& value) override {
    ASSIGN_OR_RETURN(std::vector<Value> gathered, Gather(value));
    ASSIGN_OR_RETURN(Value all, Broadcast(Value(Value::List(std::move(gathered)))));
    Value::List* list = all.if_list();
    if (list == nullptr || list->size() != static_cast<std::size_t>(size())) {
      return CorruptionError("allgather: rank 0 did not send the values of all ranks");
    }
    return std::move(*list);
  }

  Result<std::vector<Value>> GatherLocal(const Value& value) override {
    ASSIGN_OR_RETURN(std::vector<Value> near, AllGatherLocal(value));
    if (local_rank() != 0) near.clear();
    return near;
  }

  Result<Value> BroadcastLocal(const Value& value) override {
    ASSIGN_OR_RETURN(std::vector<Value> near, AllGatherLocal(local_rank() == 0 ? value : Value()));
    return std::move(near.front());
  }

  Result<std::vector<Value>> AllGatherLocal(const Value& value) override {
    ASSIGN_OR_RETURN(std::vector<Value> all, AllGather(value));
    const auto first = all.begin() + std::clamp(rank() - local_rank(), 0, size() - 1);
    const auto count = std::min<std::ptrdiff_t>(local_size(), all.end() - first);
    return std::vector<Value>(std::make_move_iterator(first),
                              std::make_move_iterator(first + count));
  }

  Status Barrier() override { return AllGather(Value()).status(); }

  void Close() override { links_.clear(); }

 private:
  Status Listen() {
    const bool by_file = options_.chief.starts_with(kFile);
    const std::string path = by_file ? options_.chief.substr(kFile.size()) : "";
    const bool spread = local_size() < size();  // over several machines
    Address here{.host = "127.0.0.1"};
    if (!by_file) {
      ASSIGN_OR_RETURN(here, ParseAddress(options_.chief));
    } else if (spread) {
      char host[HOST_NAME_MAX + 1] = {};
      gethostname(host, sizeof(host) - 1);
      here.host = host;
    }
    const bool everywhere = by_file ? spread : !IsOurs(here.host);
    OwnedFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!server.valid()) return UnavailableError("socket: " + SystemError());
    const int yes = 1;
    setsockopt(server.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    ASSIGN_OR_RETURN(const auto at, Resolve(everywhere ? "" : here.host, here.port));
    sockaddr_in bound = at.front();
    socklen_t length = sizeof(bound);
    if (bind(server.get(), reinterpret_cast<const sockaddr*>(&bound), length) != 0 ||
        listen(server.get(), size()) != 0 ||
        getsockname(server.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
      if (errno == EADDRINUSE) {
        return UnavailableError("rank 0 cannot listen at " + options_.chief +
                                ": another living process does. Is it a second rank 0? Give each "
                                "process a rank of its own, or, when it is another job's, choose "
                                "another MASTER_PORT or CAIRN_CHIEF");
      }
      return UnavailableError("rank 0 cannot listen at " + options_.chief + ": " + SystemError());
    }
    std::string written;
    if (by_file) {
      if (options_.token.empty()) {
        ASSIGN_OR_RETURN(options_.token, NewToken());
      }
      written = fmt::format("{}:{} {}", here.host, ntohs(bound.sin_port), options_.token);
      RETURN_IF_ERROR(WriteAddress(path, written));
    }
    Status met = AcceptAll(server.get());
    if (met.Is(Code::kDeadlineExceeded) && by_file && ReadFile(path) != written) {
      met = UnavailableError(fmt::format(
          "{}; another living process took rank 0's place at {}: give each process a rank of its "
          "own",
          met.message(), path));
    }
    if (by_file && ReadFile(path) == written)
      unlink(path.c_str());  // else another chief's, or gone
    return met;
  }

  Status AcceptAll(int server) {
    const nanoseconds deadline = Clock::System()->Now() + options_.timeout;
    while (links_.size() + 1 < static_cast<std::size_t>(size())) {
      const nanoseconds left = deadline - Clock::System()->Now();
      pollfd ready{.fd = server, .events = POLLIN, .revents = 0};
      const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      const int events =
          left.count() <= 0 ? 0 : poll(&ready, 1, static_cast<int>(std::min<long>(millis, 60'000)));
      if (left.count() <= 0) {
        std::string missing;
        for (int other = 1; other < size(); ++other) {
          if (!links_.contains(other))
            missing += (missing.empty() ? "" : ", ") + fmt::to_string(other);
        }
        return DeadlineExceededError(
            fmt::format("ranks [{}] did not come within {:g} s", missing, Seconds()));
      }
      if (events <= 0) continue;
      OwnedFd connection(accept4(server, nullptr, nullptr, SOCK_CLOEXEC));
      if (connection.valid()) RETURN_IF_ERROR(Admit(std::move(connection)));
    }
    return Status::Ok();
  }

  /// Takes a rank in. Whoever does not know the token is sent away and changes nothing.
  Status Admit(OwnedFd connection) {
    SetTimeout(connection.get(), kHelloTime);
    const auto came = HearHello(connection.get());
    if (!came.ok()) return Status::Ok();  // a stranger
    const auto [other, all] = *came;
    if (all == size() && links_.contains(static_cast<int>(other))) {
      return FailedPreconditionError(
          fmt::format("two living processes came as rank {} of {}: give each process a rank of its "
                      "own (RANK or CAIRN_RANK), and end the one that is too many",
                      other, all));
    }
    if (all != size() || other <= 0 || other >= size()) {
      return FailedPreconditionError(fmt::format(
          "a process came as rank {} of {}, and rank 0 waits for the ranks 1 to {}: give all of "
          "them the same number",
          other, all, size() - 1));
    }
    Keep(static_cast<int>(other), std::move(connection));
    return Status::Ok();
  }

  Result<std::pair<std::int64_t, std::int64_t>> HearHello(int connection) {
    ASSIGN_OR_RETURN(const std::string nonce, Nonce());
    RETURN_IF_ERROR(SendMessage(connection, nonce));
    ASSIGN_OR_RETURN(const std::string bytes, ReceiveMessage(connection, kHelloBytes));
    ASSIGN_OR_RETURN(const Value hello, DecodeRankValue(bytes));
    const Value* theirs = hello.Find("nonce");
    const Value* proof = hello.Find("proof");
    const Value* other = hello.Find("rank");
    const Value* all = hello.Find("size");
    if (!theirs || !theirs->if_string() || !proof || !proof->if_string() || !other || !all) {
      return CorruptionError("no greeting");
    }
    const std::pair<std::int64_t, std::int64_t> who = {other->AsInt(-1), all->AsInt(-1)};
    if (!SameProof(*proof->if_string(),
                   Proof(options_.token, nonce, WhoIs(who.first, who.second)))) {
      return PermissionDeniedError("wrong token");
    }
    RETURN_IF_ERROR(SendMessage(connection, Proof(options_.token, *theirs->if_string(), "chief")));
    return who;
  }

  Status Connect() {
    const nanoseconds deadline = Clock::System()->Now() + options_.timeout;
    Status why = NotFoundError("no address");
    while (Clock::System()->Now() < deadline) {
      auto connection = FindChief();
      if (connection.ok()) {
        Keep(0, *std::move(connection));
        return Status::Ok();
      }
      why = connection.status();
      Clock::System()->Sleep(kRetry);  // nothing tells when the chief begins to listen
    }
    return DeadlineExceededError(
        fmt::format("rank {0}: rank 0 was not found at {1}: {2}. Is it running? If it is, another "
                    "living process may have come as rank {0} before: give each a rank of its own",
                    rank(), options_.chief, why.message()));
  }

  Result<OwnedFd> FindChief() {
    std::string address = options_.chief;
    std::string token = options_.token;
    if (address.starts_with(kFile)) {
      const std::string text = ReadFile(address.substr(kFile.size()));
      const std::size_t space = text.find(' ');
      if (token.empty() && space != std::string::npos) token = text.substr(space + 1);
      address = text.substr(0, space);
      if (address.empty()) return NotFoundError("rank 0 has not said where it is");
    }
    ASSIGN_OR_RETURN(const Address chief, ParseAddress(address));
    ASSIGN_OR_RETURN(const auto addresses, Resolve(chief.host, chief.port));
    Status last = UnavailableError("no address");
    for (const sockaddr_in& at : addresses) {
      OwnedFd connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!connection.valid()) return UnavailableError("socket: " + SystemError());
      SetTimeout(connection.get(), kHelloTime);
      if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
        last = UnavailableError(address + ": " + SystemError());
        continue;
      }
      last = Introduce(connection.get(), token);
      if (last.ok()) return connection;
    }
    return last;
  }

  Status Introduce(int connection, const std::string& token) {
    ASSIGN_OR_RETURN(const std::string challenge, ReceiveMessage(connection, kHelloBytes));
    ASSIGN_OR_RETURN(const std::string nonce, Nonce());
    const std::string proof = Proof(token, challenge, WhoIs(rank(), size()));
    const Value hello = Value::Object{{"rank", rank()},
                                      {"size", size()},
                                      {"nonce", BytesForRanks(nonce)},
                                      {"proof", BytesForRanks(proof)}};
    RETURN_IF_ERROR(SendMessage(connection, EncodeJson(hello)));
    ASSIGN_OR_RETURN(const std::string answer, ReceiveMessage(connection, kHelloBytes));
    if (!SameProof(answer, Proof(token, nonce, "chief"))) {
      return PermissionDeniedError("the process there is not rank 0 of this trial");
    }
    return Status::Ok();
  }

  void Keep(int other, OwnedFd connection) {
    SetTimeout(connection.get(), options_.timeout);
    const int yes = 1;
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    links_.insert_or_assign(other, std::move(connection));
  }

  Result<int> LinkTo(int other, const char* what) {
    const auto link = links_.find(other);
    if (link == links_.end()) {
      return FailedPreconditionError(std::string(what) + ": this context was closed");
    }
    return link->second.get();
  }

  Status Tell(int other, const char* what, const Value& value) {
    ASSIGN_OR_RETURN(const int link, LinkTo(other, what));
    ASSIGN_OR_RETURN(const std::string message,
                     EncodeRankValue(Value::List{Value(calls_), what, value}));
    return About(SendMessage(link, message), what, other);
  }

  Result<Value> Hear(int other, const char* what) {
    ASSIGN_OR_RETURN(const int link, LinkTo(other, what));
    auto bytes = ReceiveMessage(link, kMaxBytes);
    if (bytes.status().Is(Code::kDeadlineExceeded)) {
      return DeadlineExceededError(
          fmt::format("{}: nothing came from rank {} within {:g} s", what, other, Seconds()));
    }
    if (!bytes.ok()) return About(bytes.status(), what, other);
    auto message = DecodeRankValue(*bytes);
    if (!message.ok()) return About(message.status(), what, other);
    Value::List* words = message->if_list();
    if (words == nullptr || words->size() != 3 || (*words)[1].if_string() == nullptr) {
      return CorruptionError(fmt::format("{}: rank {} sent no message of ranks", what, other));
    }
    const std::string& said = *(*words)[1].if_string();
    if ((*words)[0] != Value(calls_) || said != what) {
      return FailedPreconditionError(fmt::format(
          "rank {} is at its call {}, {}, and rank {} at its call {}, {}: all ranks must "
          "make the same calls in the same order",
          rank(), calls_, what, other, (*words)[0].AsInt(-1), said));
    }
    return std::move((*words)[2]);
  }

  double Seconds() const { return std::chrono::duration<double>(options_.timeout).count(); }

  DistributedOptions options_;
  std::int64_t calls_ = 0;
  std::map<int, OwnedFd> links_;  // by rank: of the chief all others, of the others the chief
};

}  // namespace

Result<std::unique_ptr<DistributedContext>> DistributedContext::Open(DistributedOptions options) {
  auto context = std::make_unique<DistributedContextImpl>();
  RETURN_IF_ERROR(context->Meet(std::move(options)));
  return std::unique_ptr<DistributedContext>(std::move(context));
}

Result<std::unique_ptr<DistributedContext>> DistributedContext::FromEnv(
    std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(DistributedOptions place, RankPlaceFrom(ProcessVariables()));
  place.timeout = timeout;
  return Open(std::move(place));
}

}  // namespace cairn::core
