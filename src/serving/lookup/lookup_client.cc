#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include <cairn/serving_client.h>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "rpc/client_stream.h"
#include "serving/lookup/lookup_message.h"

namespace cairn::serving {
namespace {

using SteadyClock = std::chrono::steady_clock;

class Client final : public LookupClient {
 public:
  explicit Client(LookupClientOptions options)
      : options_(std::move(options)),
        watch_([this](const std::stop_token& stop) { Watch(stop); }) {}
  ~Client() override {
    watch_.request_stop();
    MutexLock hold(&watched_mu_);
    changed_.NotifyAll();
  }

  Status Connect() {
    MutexLock hold(&mu_);
    return Open();
  }

  Result<Found> Lookup(std::span<const Wanted> wanted) override {
    if (wanted.empty() || wanted.size() > kMaxAsks) {
      return InvalidArgumentError("lookup: 1 to " + std::to_string(kMaxAsks) +
                                  " tables are asked for at once");
    }
    MutexLock hold(&mu_);
    const bool kept = stream_ != nullptr;
    Result<Found> found = Ask(wanted);
    // The server may have been started again since the last call; asking twice changes nothing.
    if (kept && !found.ok() && found.status().Is(Code::kUnavailable) && stream_ == nullptr) {
      found = Ask(wanted);
    }
    return found;
  }

 private:
  Status Open() REQUIRES(mu_) {
    rpc::ConnectOptions to;
    to.address = options_.address;
    to.security.token = options_.token;
    to.security.ca = options_.ca;
    to.security.server_name = options_.server_name;
    to.timeout = options_.timeout;
    to.max_message_bytes = options_.max_answer_bytes;
    ASSIGN_OR_RETURN(stream_, rpc::ClientStream::Open(to));
    return Status::Ok();
  }

  Result<Found> Ask(std::span<const Wanted> wanted) REQUIRES(mu_) {
    if (stream_ == nullptr) RETURN_IF_ERROR(Open());
    SetDeadline(stream_.get());
    Status sent = stream_->Send(EncodeLookup(wanted));
    Result<rpc::Received> answer = sent.ok() ? stream_->Receive() : Result<rpc::Received>(sent);
    const bool late = ClearDeadline();
    if (!answer.ok()) {
      stream_ = nullptr;
      if (late) {
        return DeadlineExceededError(options_.address + ": no answer within " +
                                     std::to_string(options_.timeout.count()) + " ms");
      }
      if (answer.status().Is(Code::kResourceExhausted)) {
        return ResourceExhaustedError(
            std::string(answer.status().message()) +
            "; ask for fewer ids at once, or raise the limit (of requests `cairn serve "
            "--max-request`, of answers the client's max_answer_bytes)");
      }
      return answer.status();
    }
    return DecodeLookupReply(answer->bytes());
  }

  void SetDeadline(rpc::ClientStream* stream) {
    MutexLock hold(&watched_mu_);
    watched_ = stream;
    deadline_ = SteadyClock::now() + options_.timeout;
    late_ = false;
    changed_.NotifyAll();
  }
  bool ClearDeadline() {
    MutexLock hold(&watched_mu_);
    watched_ = nullptr;
    return late_;
  }

  /// gRPC's blocking calls end when somebody cancels them, and not otherwise.
  void Watch(const std::stop_token& stop) {
    MutexLock hold(&watched_mu_);
    while (!stop.stop_requested()) {
      if (watched_ == nullptr) {
        changed_.Wait(&watched_mu_);
        continue;
      }
      const auto left = deadline_ - SteadyClock::now();
      if (left > SteadyClock::duration::zero()) {
        changed_.WaitFor(&watched_mu_, left);
        continue;
      }
      late_ = true;
      watched_->Cancel();
      watched_ = nullptr;
    }
  }

  const LookupClientOptions options_;
  Mutex mu_;
  std::unique_ptr<rpc::ClientStream> stream_ GUARDED_BY(mu_);  // null: broken or never opened

  Mutex watched_mu_;
  CondVar changed_;
  rpc::ClientStream* watched_ GUARDED_BY(watched_mu_) = nullptr;
  SteadyClock::time_point deadline_ GUARDED_BY(watched_mu_);
  bool late_ GUARDED_BY(watched_mu_) = false;
  std::jthread watch_;  // the last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<LookupClient>> LookupClient::Connect(LookupClientOptions options) {
  if (options.timeout.count() <= 0) {
    return InvalidArgumentError("lookup client: the timeout must be positive");
  }
  auto client = std::make_unique<Client>(std::move(options));
  RETURN_IF_ERROR(client->Connect());
  return std::unique_ptr<LookupClient>(std::move(client));
}

}  // namespace cairn::serving
