#include "rpc/stream_server.h"

#include <fcntl.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <mutex>
#include <utility>

#include "base/status_macros.h"
#include "net/tls_files.h"
#include "rpc/grpc_bytes.h"
#include "rpc/socket_acceptor.h"
#include "rpc/token.h"

namespace cairn::rpc {
namespace {

using Call = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

class Stream final : public ServerStream {
 public:
  Stream(Call* call, std::string peer) : call_(call), peer_(std::move(peer)) {}

  Result<Received> Receive() override {
    grpc::ByteBuffer buffer;
    if (!call_->Read(&buffer)) return CancelledError(peer_ + " left");
    return ToReceived(buffer);
  }
  Status Send(Message message) override {
    if (call_->Write(ToBuffer(std::move(message)))) return Status::Ok();
    return CancelledError(peer_ + " left");
  }
  std::string peer() const override { return peer_; }

 private:
  Call* const call_;
  const std::string peer_;
};

class ByteService final : public grpc::Service {
 public:
  ByteService(const StreamServerOptions& options, StreamServer::Handler handler)
      : token_(options.security.token),
        limit_(std::to_string(options.max_message_bytes)),
        handler_(std::move(handler)) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        kMethod, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::BidiStreamingHandler<ByteService, grpc::ByteBuffer, grpc::ByteBuffer>(
            [](ByteService* self, grpc::ServerContext* context, Call* call) {
              return self->Run(context, call);
            },
            this)));
  }

 private:
  grpc::Status Run(grpc::ServerContext* context, Call* call) {
    if (!token_.empty()) {
      const auto given = context->client_metadata().find(kTokenHeader);
      if (given == context->client_metadata().end() ||
          !SameToken({given->second.data(), given->second.size()}, token_)) {
        return {grpc::StatusCode::UNAUTHENTICATED, "the token is missing or wrong"};
      }
    }
    // gRPC ends a stream over a message that is too large, in words of its own: a client that knows
    // the limit can say more.
    context->AddInitialMetadata(kLimitHeader, limit_);
    call->SendInitialMetadata();
    Stream stream(call, context->peer());
    handler_(&stream);
    return grpc::Status::OK;
  }

  const std::string token_;
  const std::string limit_;
  const StreamServer::Handler handler_;
};

class Server final : public StreamServer {
 public:
  Server(const StreamServerOptions& options, Handler handler)
      : handler_(handler), service_(options, std::move(handler)) {}
  ~Server() override { Stop(); }

  Status Start(const StreamServerOptions& options) {
    std::shared_ptr<grpc::ServerCredentials> credentials;
    if (options.security.certificate.empty() && options.security.key.empty()) {
      credentials = grpc::InsecureServerCredentials();
    } else {
      // gRPC would say that it cannot listen, whatever is wrong with them.
      RETURN_IF_ERROR(CheckTlsFiles(
          {.certificate = options.security.certificate, .key = options.security.key}));
      grpc::SslServerCredentialsOptions tls;
      grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
      ASSIGN_OR_RETURN(pair.private_key, ReadPemFile(options.security.key));
      ASSIGN_OR_RETURN(pair.cert_chain, ReadPemFile(options.security.certificate));
      tls.pem_key_cert_pairs.push_back(std::move(pair));
      credentials = grpc::SslServerCredentials(tls);
    }
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    const int limit = static_cast<int>(std::min<std::uint64_t>(options.max_message_bytes, INT_MAX));
    builder.SetMaxReceiveMessageSize(limit);
    builder.SetMaxSendMessageSize(-1);
    // Two servers on one address would share the connections between them.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kFrameBytes);
    const bool plain = options.plain_connections && options.security.certificate.empty();
    if (plain) {
      // We listen, and gRPC gets those connections that begin as HTTP/2 does.
      others_ = builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
      ASSIGN_OR_RETURN(sockets_,
                       SocketAcceptor::Bind(options, handler_, [this](int fd) { Pass(fd); }));
      port_ = sockets_->port();
    } else {
      builder.AddListeningPort(options.listen, credentials, &port_);
    }
    builder.RegisterService(&service_);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    const bool started = server != nullptr;
    {
      const std::lock_guard lock(mu_);
      server_ = std::move(server);
    }
    if (plain && started) return sockets_->Start();
    if (!started || port_ == 0) {
      return UnavailableError("cannot listen on " + options.listen +
                              ": is the address in use, or not of this machine?");
    }
    return Status::Ok();
  }

  int port() const override { return port_; }
  void SetServing(bool serving) override {
    const std::lock_guard lock(mu_);
    if (server_ != nullptr) server_->GetHealthCheckService()->SetServingStatus(serving);
  }
  void Stop() override {
    if (sockets_ != nullptr) sockets_->Stop();
    std::unique_ptr<grpc::Server> server;
    {
      const std::lock_guard lock(mu_);
      server = std::move(server_);
    }
    if (server == nullptr) return;
    server->Shutdown(std::chrono::system_clock::now());  // streams are cancelled, not drained
    server->Wait();
  }

 private:
  void Pass(int fd) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    others_->HandleNewConnection(&connection);
  }

  const Handler handler_;
  ByteService service_;
  int port_ = 0;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> others_;
  std::unique_ptr<SocketAcceptor> sockets_;
  std::mutex mu_;                         // not Mutex: gRPC's headers have its macros too
  std::unique_ptr<grpc::Server> server_;  // under mu_; null: stopped
};

}  // namespace

Result<std::unique_ptr<StreamServer>> StreamServer::Start(const StreamServerOptions& options,
                                                          Handler handler) {
  auto server = std::make_unique<Server>(options, std::move(handler));
  RETURN_IF_ERROR(server->Start(options));
  return std::unique_ptr<StreamServer>(std::move(server));
}

}  // namespace cairn::rpc
