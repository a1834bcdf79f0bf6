#include "launch/file_tunnel.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launch/process_identity.h"

namespace cairn {
namespace {

constexpr int kLookMillis = 40;
constexpr std::size_t kBlock = 256u << 10;
constexpr std::string_view kUp = ".up";
constexpr std::string_view kDown = ".down";
constexpr std::string_view kEnd = ".end";
/// The other side may have died: what is left of a connection that is over is removed after so
/// long.
constexpr std::chrono::seconds kLeftovers{60};

bool MakeFile(const std::string& path) {
  return OwnedFd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)).valid();
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

/// One connection: a socket of this machine, a file that is written here and one that is read.
class Wire {
 public:
  Wire(OwnedFd socket, std::string written, std::string read)
      : socket_(std::move(socket)), written_(std::move(written)), read_(std::move(read)) {
    fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
    MakeFile(written_);
  }

  bool over() const { return heard_all_ && said_all_; }
  const OwnedFd& socket() const { return socket_; }
  bool listens() const { return !heard_all_; }

  /// Moves what there is. The file is opened anew each time: only that shows what another machine
  /// has written.
  void Pump() {
    if (!heard_all_) FromSocket();
    if (!said_all_) ToSocket();
  }

  void End() {
    if (!heard_all_) MakeFile(written_ + std::string(kEnd));
    heard_all_ = said_all_ = true;
  }

 private:
  void FromSocket() {
    std::vector<char> block(kBlock);
    OwnedFd file;
    for (;;) {
      const ssize_t got = recv(socket_.get(), block.data(), block.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return End();
      if (!file.valid()) {
        file = OwnedFd(open(written_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
      }
      // A disk that is full ends the connection: whoever needs it makes another.
      if (write(file.get(), block.data(), static_cast<std::size_t>(got)) != got) return End();
    }
  }

  void ToSocket() {
    const bool ended = Exists(read_ + std::string(kEnd));  // asked before the last bytes are read
    if (pending_.empty()) {
      const OwnedFd file(open(read_.c_str(), O_RDONLY | O_CLOEXEC));
      if (file.valid()) {
        pending_.resize(kBlock);
        const ssize_t got =
            pread(file.get(), pending_.data(), pending_.size(), static_cast<off_t>(offset_));
        pending_.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        offset_ += pending_.size();
      }
    }
    while (!pending_.empty()) {
      const ssize_t sent = send(socket_.get(), pending_.data(), pending_.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) return End();
      pending_.erase(0, static_cast<std::size_t>(sent));
      more_ = true;
    }
    if (!std::exchange(more_, false) && ended) {
      shutdown(socket_.get(), SHUT_WR);
      End();
    }
  }

  const OwnedFd socket_;
  const std::string written_;
  const std::string read_;
  std::uint64_t offset_ = 0;
  std::string pending_;     // read and not sent
  bool more_ = false;       // there may be more in the file
  bool heard_all_ = false;  // of the socket
  bool said_all_ = false;   // to it
};

/// Waits until a socket has something, or for a moment: nothing tells that a file grew.
void WaitALittle(const std::map<std::string, std::unique_ptr<Wire>>& wires, int listening) {
  std::vector<pollfd> waits = {{.fd = listening, .events = POLLIN, .revents = 0}};
  for (const auto& [id, wire] : wires) {
    if (wire->listens()) {
      waits.push_back({.fd = wire->socket().get(), .events = POLLIN, .revents = 0});
    }
  }
  poll(waits.data(), waits.size(), kLookMillis);
}

}  // namespace

class TunnelEntry::Impl {
 public:
  Impl(std::string directory, std::string place, OwnedFd listening)
      : directory_(std::move(directory)),
        place_(std::move(place)),
        socket_(place_ + "/s"),
        listening_(std::move(listening)),
        thread_([this](const std::stop_token& stop) { Work(stop); }) {}

  ~Impl() {
    thread_ = {};
    std::error_code left;
    std::filesystem::remove_all(place_, left);
  }

  const std::string& socket() const { return socket_; }

 private:
  void Work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      WaitALittle(wires_, listening_.get());
      for (;;) {
        OwnedFd taken(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!taken.valid()) break;
        const std::string id = IdSource::System()->NewUuid();
        const std::string path = directory_ + "/" + id;
        wires_.emplace(id, std::make_unique<Wire>(std::move(taken), path + std::string(kUp),
                                                  path + std::string(kDown)));
      }
      for (const auto& [id, wire] : wires_) wire->Pump();
      std::erase_if(wires_, [](const auto& entry) { return entry.second->over(); });
    }
    for (const auto& [id, wire] : wires_) wire->End();
  }

  const std::string directory_;
  const std::string place_;
  const std::string socket_;
  const OwnedFd listening_;
  std::map<std::string, std::unique_ptr<Wire>> wires_;  // of the thread
  std::jthread thread_;
};

TunnelEntry::TunnelEntry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TunnelEntry::~TunnelEntry() = default;
const std::string& TunnelEntry::socket() const { return impl_->socket(); }

Result<std::unique_ptr<TunnelEntry>> TunnelEntry::Open(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return NotFoundError("there is no directory " + directory + " to speak through");
  }
  std::string place = (std::filesystem::temp_directory_path() / "cairn-tunnel-XXXXXX").string();
  if (mkdtemp(place.data()) == nullptr) return ErrnoStatus("mkdtemp " + place, errno);
  OwnedFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = place + "/s";
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("the path of a socket is too long: " + path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (!listening.valid() ||
      bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listening.get(), 128) != 0) {
    return ErrnoStatus("listen on " + path, errno);
  }
  return std::unique_ptr<TunnelEntry>(
      new TunnelEntry(std::make_unique<Impl>(directory, std::move(place), std::move(listening))));
}

class TunnelExit::Impl {
 public:
  Impl(std::string directory, std::uint16_t port) : directory_(std::move(directory)), port_(port) {
    // What an earlier exit had begun cannot be gone on with. What begins from now on can.
    for (const std::string& id : Ids()) Refuse(id);
    thread_ = std::jthread([this](const std::stop_token& stop) { Work(stop); });
  }

 private:
  using SteadyClock = std::chrono::steady_clock;

  void Work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      WaitALittle(wires_, -1);
      for (const std::string& id : Ids()) {
        if (!wires_.contains(id) && !over_.contains(id)) Connect(id);
      }
      for (const auto& [id, wire] : wires_) {
        wire->Pump();
        if (wire->over()) over_.emplace(id, SteadyClock::now());
      }
      std::erase_if(wires_, [](const auto& entry) { return entry.second->over(); });
      Sweep();
    }
    for (const auto& [id, wire] : wires_) wire->End();
  }

  /// The connections that were begun at the other side.
  std::vector<std::string> Ids() const {
    std::vector<std::string> ids;
    DIR* listing = opendir(directory_.c_str());
    if (listing == nullptr) return ids;
    while (const dirent* entry = readdir(listing)) {
      const std::string_view name(entry->d_name);
      if (name.ends_with(kUp)) ids.emplace_back(name.substr(0, name.size() - kUp.size()));
    }
    closedir(listing);
    return ids;
  }

  std::string Name(const std::string& id, std::string_view end) const {
    return directory_ + "/" + id + std::string(end);
  }

  void Refuse(const std::string& id) {
    MakeFile(Name(id, std::string(kDown) + std::string(kEnd)));
    over_.emplace(id, SteadyClock::now());
  }

  void Connect(const std::string& id) {
    OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port_);
    if (!fd.valid() ||
        connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      LogWarning(ErrnoStatus("tunnel: connect to port " + std::to_string(port_), errno).ToString());
      return Refuse(id);
    }
    wires_.emplace(id, std::make_unique<Wire>(std::move(fd), Name(id, kDown), Name(id, kUp)));
  }

  void Sweep() {
    std::erase_if(over_, [&](const auto& entry) {
      const auto& [id, since] = entry;
      const bool both = Exists(Name(id, std::string(kUp) + std::string(kEnd)));
      if (!both && SteadyClock::now() < since + kLeftovers) return false;
      for (const std::string_view file : {kUp, kDown}) {
        unlink(Name(id, std::string(file) + std::string(kEnd)).c_str());
        unlink(Name(id, file).c_str());
      }
      return true;
    });
  }

  const std::string directory_;
  const std::uint16_t port_;
  // Of the thread.
  std::map<std::string, std::unique_ptr<Wire>> wires_;
  std::map<std::string, SteadyClock::time_point> over_;  // since when
  std::jthread thread_;
};

TunnelExit::TunnelExit(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TunnelExit::~TunnelExit() = default;

Result<std::unique_ptr<TunnelExit>> TunnelExit::Open(const std::string& directory,
                                                     std::uint16_t port) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return UnavailableError("make " + directory + ": " + error.message());
  if (chmod(directory.c_str(), 0700) != 0) return ErrnoStatus("chmod " + directory, errno);
  return std::unique_ptr<TunnelExit>(new TunnelExit(std::make_unique<Impl>(directory, port)));
}

}  // namespace cairn
