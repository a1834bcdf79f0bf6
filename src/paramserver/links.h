#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "paramserver/payload.h"
#include "rpc/client_stream.h"
#include "storage/store.h"

namespace cairn::ps {

/// A trainer's connections to all servers, which are in one generation. One thread at a time, but
/// Cancel. After a failure: Drop, then Meet.
class Links {
 public:
  explicit Links(const ClientOptions* options) : options_(options) {}
  ~Links();

  /// Reads the options; connects to nobody yet.
  Status Open();
  /// Connects to all servers, again and again with growing pauses, until all greet from the same
  /// generation. Unavailable, naming who is missing, after reconnect_timeout; other codes when a
  /// server refuses for good (a wrong token, another job).
  Status Meet();
  /// Closes all connections: what was sent and not answered is sent again after Meet.
  void Drop();

  int servers() const { return static_cast<int>(links_.size()); }
  std::uint64_t generation() const { return generation_; }
  /// Of this trainer: the furthest that any server knows of, with the lead's marker.
  const HelloReply& position() const { return position_; }
  /// Whether the last meeting was the first, or the job went back since the one before: then
  /// position() is where to go on.
  bool went_back() const { return went_back_; }
  /// Whether the servers named different steps then: a trainer that had left came back while the
  /// others were in the middle of ending one.
  bool uneven() const { return uneven_; }
  /// The most that every server takes.
  std::uint64_t max_message_bytes() const { return max_message_bytes_; }
  /// What this process did so far; told to servers that it meets again.
  void set_progress(std::int64_t step, std::uint64_t barrier) {
    step_ = step;
    barrier_ = barrier;
  }

  Status Send(int server, rpc::Message message);
  Result<rpc::Received> Receive(int server);
  /// Of changes to a server, each one more than the last.
  std::uint64_t NextSequence(int server) { return ++At(server).sequence; }
  /// The number was not used.
  void ReturnSequence(int server) { --At(server).sequence; }
  std::uint64_t sequence(int server) { return At(server).sequence; }
  /// The server has answered the change.
  void Acknowledged(int server, std::uint64_t sequence) { At(server).acknowledged = sequence; }
  /// A change was given up and may have been made or not: the servers' numbers count from the next
  /// meeting on.
  void ForgetSequences() { forget_sequences_ = true; }

  void Cancel() EXCLUDES(mu_);
  bool cancelled() const { return cancelled_; }

  /// FailedPrecondition in a fork of the process that opened these: two processes would read each
  /// other's answers, and number different changes alike.
  Status CheckProcess() const;

  /// While one lives, what waits for an answer longer than that is cut off.
  class [[nodiscard]] Timer {
   public:
    Timer(Links* links, std::chrono::milliseconds timeout);
    ~Timer();
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    Links* const links_;
  };

 private:
  struct Link {
    std::string address;
    std::unique_ptr<rpc::ClientStream> stream;  // replaced under mu_
    std::uint64_t sequence = 0;
    std::uint64_t acknowledged = 0;
  };
  Link& At(int server) { return links_[static_cast<std::size_t>(server)]; }
  Status Greet(int server, HelloReply* reply, std::uint64_t* generation);
  /// All have greeted from that generation.
  void Settle(std::uint64_t generation, const std::vector<HelloReply>& replies);
  Result<std::string> AddressOf(int server);
  void Watch(const std::stop_token& stop) EXCLUDES(mu_);
  bool Interrupted() const { return cancelled_ || (options_->cancelled && options_->cancelled()); }

  const ClientOptions* const options_;
  std::shared_ptr<Store> store_;  // where servers are registered; shared: as OpenStore gives it
  std::string incarnation_;
  std::vector<Link> links_;
  std::uint64_t generation_ = 0;
  HelloReply position_;
  bool went_back_ = false;
  bool uneven_ = false;
  bool forget_sequences_ = false;
  std::uint64_t max_message_bytes_ = 0;
  std::int64_t step_ = 0;
  std::uint64_t barrier_ = 0;
  std::atomic<bool> cancelled_{false};
  pid_t process_ = 0;

  Mutex mu_;  // of the streams, against Cancel and the watch
  CondVar changed_;
  std::optional<std::chrono::steady_clock::time_point> until_ GUARDED_BY(mu_);

  std::jthread watch_;
};

}  // namespace cairn::ps
