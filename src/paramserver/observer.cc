#include "paramserver/observer.h"

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn::ps {
namespace {

// A server that stands still answers nobody; questions are asked again.
constexpr std::chrono::seconds kLifetime{5};

}  // namespace

rpc::Security ToRpc(const Security& security) {
  return {.token = security.token,
          .ca = security.ca,
          .certificate = security.certificate,
          .key = security.key,
          .server_name = security.server_name};
}

Result<Observer> Observer::Connect(const std::string& address, const Security& security,
                                   std::chrono::milliseconds timeout) {
  rpc::ConnectOptions options;
  options.address = address;
  options.security = ToRpc(security);
  options.timeout = timeout;
  options.lifetime = kLifetime;
  ASSIGN_OR_RETURN(auto stream, rpc::ClientStream::Open(options));
  return Observer(std::move(stream));
}

Result<rpc::Received> Observer::Ask(const RequestHead& head, std::string_view body) {
  RETURN_IF_ERROR(stream_->Send(NewRequest(head, body)));
  ASSIGN_OR_RETURN(rpc::Received received, stream_->Receive());
  ASSIGN_OR_RETURN(const Reply reply, DecodeReply(received.bytes()));
  RETURN_IF_ERROR(ReplyStatus(reply));
  return received;
}

Result<Observer::State> Observer::Status() {
  ASSIGN_OR_RETURN(const rpc::Received received, Ask({.kind = Kind::kStatus}, ""));
  State state;
  ASSIGN_OR_RETURN(state.value, DecodeJson(AsText(received.bytes().subspan(kHeadBytes))));
  const Value* serving = state.value.Find("state");
  state.serving = serving != nullptr && *serving == Value("serving");
  state.stopped = serving != nullptr && *serving == Value("stopped");
  if (const Value* generation = state.value.Find("generation")) {
    state.generation = static_cast<std::uint64_t>(generation->AsInt());
  }
  if (const Value* servers = state.value.Find("servers")) state.servers = servers->AsInt();
  if (const Value* process = state.value.Find("process")) {
    if (const std::string* text = process->if_string()) state.process = *text;
  }
  return state;
}

bool Observer::State::TrainerIs(std::size_t trainer, std::string_view what) const {
  const Value* trainers = value.Find("trainers");
  const Value::List* list = trainers == nullptr ? nullptr : trainers->if_list();
  if (list == nullptr || trainer >= list->size()) return false;
  const Value* member = (*list)[trainer].Find(what);
  return member != nullptr && *member == Value(true);
}

Result<std::string> Observer::Metrics() {
  ASSIGN_OR_RETURN(const rpc::Received received, Ask({.kind = Kind::kMetrics}, ""));
  return std::string(AsText(received.bytes().subspan(kHeadBytes)));
}

Status Observer::RollBack(std::uint64_t generation) {
  return Ask({.kind = Kind::kRollBack, .generation = generation}, "").status();
}

Status Observer::RequestSave(std::uint64_t generation, bool full) {
  const std::uint16_t flags = full ? kFullSave : 0;
  return Ask({.kind = Kind::kSave, .flags = flags, .generation = generation}, "").status();
}

Status Observer::TrainerEnded(std::uint64_t generation, std::uint32_t trainer) {
  return Ask({.kind = Kind::kLeave, .flags = kLeaveFor, .id = trainer, .generation = generation},
             "")
      .status();
}

Status Observer::Cut(std::uint64_t generation, const Marker& marker) {
  return Ask({.kind = Kind::kCut, .generation = generation}, Encode(marker)).status();
}

}  // namespace cairn::ps
