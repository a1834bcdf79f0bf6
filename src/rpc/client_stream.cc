#include "rpc/client_stream.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <mutex>
#include <utility>

#include "base/status_macros.h"
#include "rpc/grpc_bytes.h"
#include "rpc/socket_client.h"
#include "rpc/token.h"

namespace cairn::rpc {
namespace {

using Call = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
using CallFactory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;

/// The blocking calls of gRPC poll their own completion queue on the calling thread: no other
/// thread has to be woken between the socket and the caller.
class Stream final : public ClientStream {
 public:
  Stream(std::shared_ptr<grpc::Channel> channel, const ConnectOptions& options)
      : channel_(std::move(channel)),
        address_(options.address),
        max_message_bytes_(options.max_message_bytes) {
    const std::string& token = options.security.token;
    if (!token.empty()) context_.AddMetadata(kTokenHeader, token);
    if (options.lifetime.count() > 0) {
      context_.set_deadline(std::chrono::system_clock::now() + options.lifetime);
    }
    call_.reset(CallFactory::Create(channel_.get(), method_, &context_));
  }
  ~Stream() override {
    context_.TryCancel();
    const std::lock_guard lock(mu_);
    if (!finished_) (void)call_->Finish();
  }

  Status Send(Message message) override {
    sent_ = message.size();
    if (call_->Write(ToBuffer(std::move(message)))) return Status::Ok();
    return Ended();
  }
  Result<Received> Receive() override {
    grpc::ByteBuffer buffer;
    if (call_->Read(&buffer)) return ToReceived(buffer);
    return Ended();
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  Status Ended() {
    const std::lock_guard lock(mu_);
    if (!finished_) {
      finished_ = true;
      const Status end = FromGrpc(call_->Finish());
      const bool too_large = end.Is(Code::kResourceExhausted) &&
                             end.message().find("larger than max") != end.message().npos;
      end_ = (too_large ? TooLarge() : end).WithContext(address_);
    }
    return end_;
  }

  /// Which of the two limits it was. After the end alone: the server's is known then.
  Status TooLarge() const {
    const std::string sent = "a message of " + std::to_string(sent_) + " bytes ";
    if (sent_ > max_message_bytes_) {
      return ResourceExhaustedError(sent + "was not sent: at most " +
                                    std::to_string(max_message_bytes_) + " are sent from here");
    }
    const auto& told = context_.GetServerInitialMetadata();
    const auto limit = told.find(kLimitHeader);
    std::uint64_t theirs = 0;
    if (limit != told.end()) {
      std::from_chars(limit->second.begin(), limit->second.end(), theirs);
    }
    if (theirs > 0 && sent_ > theirs) {
      return ResourceExhaustedError(sent + "was sent, and the server takes at most " +
                                    std::to_string(theirs));
    }
    return ResourceExhaustedError("a message of the server has more than the " +
                                  std::to_string(max_message_bytes_) +
                                  " bytes that are taken here");
  }

  const std::shared_ptr<grpc::Channel> channel_;  // shared: gRPC's own way of holding channels
  const std::string address_;
  const std::uint64_t max_message_bytes_;
  std::atomic<std::uint64_t> sent_{0};  // bytes of the last message
  const grpc::internal::RpcMethod method_{kMethod, grpc::internal::RpcMethod::BIDI_STREAMING};
  grpc::ClientContext context_;
  std::unique_ptr<Call> call_;

  // Not Cairn's Mutex: gRPC's headers bring macros of the same names as its annotations.
  std::mutex mu_;
  bool finished_ = false;  // guarded by mu_
  Status end_;             // likewise
};

}  // namespace

Result<std::unique_ptr<ClientStream>> ClientStream::Open(const ConnectOptions& options) {
  if (options.transport == Transport::kSocket) return OpenSocketStream(options);
  grpc::ChannelArguments arguments;
  const int limit = static_cast<int>(std::min<std::uint64_t>(options.max_message_bytes, INT_MAX));
  arguments.SetMaxReceiveMessageSize(limit);
  arguments.SetMaxSendMessageSize(limit);
  // Each stream a connection of its own: a large answer does not hold up another stream's small
  // one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kFrameBytes);
  // No retries, no service configuration, no load balancing statistics: each would look at every
  // message.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // A machine that vanished without a word is noticed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (options.security.ca.empty()) {
    credentials = grpc::InsecureChannelCredentials();
  } else {
    grpc::SslCredentialsOptions tls;
    ASSIGN_OR_RETURN(tls.pem_root_certs, ReadPemFile(options.security.ca));
    credentials = grpc::SslCredentials(tls);
    if (!options.security.server_name.empty()) {
      arguments.SetSslTargetNameOverride(options.security.server_name);
    }
  }
  auto channel = grpc::CreateCustomChannel(options.address, credentials, arguments);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + options.timeout)) {
    return UnavailableError(options.address + ": no connection within " +
                            std::to_string(options.timeout.count()) + " ms");
  }
  return std::unique_ptr<ClientStream>(std::make_unique<Stream>(std::move(channel), options));
}

}  // namespace cairn::rpc
