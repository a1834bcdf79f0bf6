#include "serving/lookup/lookup_server.h"

#include <atomic>
#include <cstring>
#include <map>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"
#include "rpc/stream_server.h"
#include "serving/lookup/lookup_message.h"

namespace cairn::serving {
namespace {

/// What one stream keeps between its requests.
struct Scratch {
  std::vector<std::int64_t> ids;
  std::vector<RowsShape> shapes;
  std::vector<std::span<float>> rows;
};

class Server final : public LookupServer {
 public:
  Server(LookupServerOptions options, const Model* model)
      : options_(std::move(options)), model_(model) {
    for (const Model::TableInfo& table : model_->tables()) dims_.emplace(table.name, table.dim);
  }

  Status Start() {
    rpc::StreamServerOptions streams;
    streams.listen = options_.listen;
    streams.security = options_.security;
    streams.max_message_bytes = options_.max_request_bytes;
    ASSIGN_OR_RETURN(server_,
                     rpc::StreamServer::Start(streams, [this](rpc::ServerStream* s) { Serve(s); }));
    return Status::Ok();
  }

  int port() const override { return server_->port(); }

 private:
  void Serve(rpc::ServerStream* stream) {
    if (++streams_ > options_.max_streams) {
      // After its first question: a stream that ends while the other side is still sending loses
      // the answer now and then. Unless there are so many that they would wait here in crowds.
      if (streams_ <= 2 * options_.max_streams) (void)stream->Receive();
      (void)stream->Send(EncodeLookupError(ResourceExhaustedError(
          "the server has " + std::to_string(options_.max_streams) + " clients already")));
      --streams_;
      return;
    }
    Scratch scratch;
    while (true) {
      auto request = stream->Receive();
      if (!request.ok()) break;
      const Clock::Duration began = options_.clock->Now();
      auto answer = AnswerWithin(request->bytes(), &scratch);
      if (options_.on_request) {
        const std::chrono::duration<double> took = options_.clock->Now() - began;
        options_.on_request(took.count(), answer.ok());
      }
      if (!answer.ok()) answer = EncodeLookupError(answer.status());
      if (!stream->Send(*std::move(answer)).ok()) break;
    }
    --streams_;
  }

  /// A request that there is no memory for costs its client an error, and nobody else anything.
  Result<rpc::Message> AnswerWithin(std::span<const std::byte> request, Scratch* scratch) const {
    try {
      return Answer(request, scratch);
    } catch (const std::bad_alloc&) {
      *scratch = {};
      return ResourceExhaustedError("the server has no memory for the answer; ask for fewer ids");
    }
  }

  Result<rpc::Message> Answer(std::span<const std::byte> request, Scratch* scratch) const {
    ASSIGN_OR_RETURN(const std::vector<LookupAsk> asks, DecodeLookup(request));
    scratch->shapes.clear();
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < asks.size(); ++i) {
      const std::string at = "asks[" + std::to_string(i) + "].";
      const auto found = dims_.find(asks[i].table);
      if (found == dims_.end()) {
        return NotFoundError(at + "table: there is no table " + QuoteForMessage(asks[i].table));
      }
      const std::uint32_t dim = found->second;
      if (asks[i].dim != 0 && asks[i].dim != dim) {
        return InvalidArgumentError(at + "dim: rows of table " + QuoteForMessage(asks[i].table) +
                                    " have " + std::to_string(dim) + " numbers, not " +
                                    std::to_string(asks[i].dim));
      }
      bytes += std::uint64_t{asks[i].count()} * dim * sizeof(float);
      if (bytes > options_.max_answer_bytes) {
        return ResourceExhaustedError(
            at + "ids: with these " + std::to_string(asks[i].count()) + " the rows have " +
            std::to_string(bytes) + " bytes; at most " + std::to_string(options_.max_answer_bytes) +
            " are given at once");
      }
      scratch->shapes.push_back({.dim = dim, .count = asks[i].count()});
    }
    ASSIGN_OR_RETURN(const auto view, model_->Take());
    const VersionInfo version = view->version();
    rpc::Message answer = NewLookupReply(version.step, version.id, scratch->shapes, &scratch->rows);
    for (std::size_t i = 0; i < asks.size(); ++i) {
      scratch->ids.resize(asks[i].count());
      if (!scratch->ids.empty()) {
        std::memcpy(scratch->ids.data(), asks[i].ids.data(), asks[i].ids.size());
      }
      RETURN_IF_ERROR(view->Lookup(asks[i].table, scratch->ids, scratch->rows[i]));
    }
    return answer;
  }

  const LookupServerOptions options_;
  const Model* const model_;
  std::map<std::string, std::uint32_t, std::less<>> dims_;
  std::atomic<int> streams_{0};
  std::unique_ptr<rpc::StreamServer> server_;  // the last: its threads use all of the above
};

}  // namespace

Result<std::unique_ptr<LookupServer>> LookupServer::Start(LookupServerOptions options,
                                                          const Model* model) {
  if (options.max_streams < 1) return InvalidArgumentError("lookups: max_streams: at least 1");
  auto server = std::make_unique<Server>(std::move(options), model);
  RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<LookupServer>(std::move(server));
}

}  // namespace cairn::serving
