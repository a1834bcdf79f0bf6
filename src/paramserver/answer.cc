#include "paramserver/answer.h"

#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "paramserver/declaration.h"

namespace cairn::ps {
namespace {

ReplyHead HeadFor(const RequestHead& request, std::uint64_t generation) {
  return {.kind = request.kind, .generation = generation, .sequence = request.sequence};
}

Result<rpc::Message> Pull(Holdings* holdings, const Request& request, const Peer& peer,
                          const ReplyHead& head) {
  ASSIGN_OR_RETURN(Table * table, holdings->FindTable(request.head.id));
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> keys, DecodeKeys(request.body));
  const std::size_t floats = keys.size() * table->options().dim;
  rpc::Message reply = NewReply(head, floats * sizeof(float));
  // Straight into the message: its body is aligned for floats.
  static_assert(kHeadBytes % alignof(float) == 0);
  const std::span<float> out(reinterpret_cast<float*>(Body(&reply).data()), floats);
  const bool create = (request.head.flags & kCreateRows) != 0 && peer.trainer != kObserver;
  RETURN_IF_ERROR(table->Lookup(keys, out, create ? Missing::kCreate : Missing::kInitial));
  return reply;
}

Result<std::string> DeclareTable(Holdings* holdings, const Request& request) {
  ASSIGN_OR_RETURN(const Value value, DecodeJson(AsText(request.body)));
  ASSIGN_OR_RETURN(const TableSpec spec, TableSpecFrom(value));
  ASSIGN_OR_RETURN(const std::uint32_t id, holdings->DeclareTable(spec));
  return EncodeNumber(id);
}

Result<std::string> DeclareDense(Holdings* holdings, const Request& request) {
  ASSIGN_OR_RETURN(const DenseBody body, DecodeDenseBody(request.body));
  ASSIGN_OR_RETURN(const Value value, DecodeJson(body.description));
  ASSIGN_OR_RETURN(const DenseSpec spec, DenseSpecFrom(value));
  ASSIGN_OR_RETURN(const std::vector<float> values, DecodeFloats(body.values));
  ASSIGN_OR_RETURN(const std::uint32_t id, holdings->DeclareDense(spec, values));
  return EncodeNumber(id);
}

Result<std::string> Change(Holdings* holdings, const Request& request, const Peer& peer) {
  const RequestHead& head = request.head;
  if (head.kind == Kind::kDensePush) {
    ASSIGN_OR_RETURN(std::vector<float> gradient, DecodeFloats(request.body));
    RETURN_IF_ERROR(holdings->PushDense(peer.trainer, head.sequence, head.id, std::move(gradient)));
    return std::string();
  }
  ASSIGN_OR_RETURN(Table * table, holdings->FindTable(head.id));
  if (head.kind == Kind::kErase) {
    ASSIGN_OR_RETURN(const auto keys, DecodeKeys(request.body));
    ASSIGN_OR_RETURN(const std::uint64_t erased,
                     holdings->Erase(peer.trainer, head.sequence, head.id, keys));
    return EncodeNumber(erased);
  }
  ASSIGN_OR_RETURN(Rows rows, DecodeRows(request.body, table->options().dim));
  if (head.kind == Kind::kAssign) {
    RETURN_IF_ERROR(holdings->Assign(peer.trainer, head.sequence, head.id, rows));
  } else {
    RETURN_IF_ERROR(holdings->Push(peer.trainer, head.sequence, head.id, std::move(rows)));
  }
  return std::string();
}

Result<std::string> Text(Holdings* holdings, const Request& request, Peer* peer, bool* lost) {
  const RequestHead& head = request.head;
  switch (head.kind) {
    case Kind::kHello: {
      ASSIGN_OR_RETURN(const HelloRequest hello, DecodeHelloRequest(request.body));
      ASSIGN_OR_RETURN(const HelloReply reply, holdings->Hello(hello, lost));
      peer->trainer = hello.trainer;
      return Encode(reply);
    }
    case Kind::kDeclareTable:
      return DeclareTable(holdings, request);
    case Kind::kDeclareDense:
      return DeclareDense(holdings, request);
    case Kind::kPush:
    case Kind::kAssign:
    case Kind::kErase:
    case Kind::kDensePush:
      return Change(holdings, request, *peer);
    case Kind::kDensePull: {
      ASSIGN_OR_RETURN(const std::vector<float> values, holdings->PullDense(head.id));
      return std::string(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(float));
    }
    case Kind::kEndStep: {
      ASSIGN_OR_RETURN(const EndStepRequest step, DecodeEndStepRequest(request.body));
      ASSIGN_OR_RETURN(const EndStepReply reply, holdings->EndStep(peer->trainer, step));
      return Encode(reply);
    }
    case Kind::kBarrier: {
      ASSIGN_OR_RETURN(const std::uint64_t number, DecodeNumber(request.body));
      RETURN_IF_ERROR(holdings->Barrier(peer->trainer, number));
      return std::string();
    }
    case Kind::kSave:
      RETURN_IF_ERROR(holdings->RequestSave((head.flags & kFullSave) != 0));
      return std::string();
    case Kind::kCut: {
      ASSIGN_OR_RETURN(const Marker marker, DecodeMarker(request.body));
      RETURN_IF_ERROR(holdings->CutNow(marker));
      return std::string();
    }
    case Kind::kLeave:
      holdings->TrainerLeft(peer->trainer);
      peer->trainer = kObserver;
      return std::string();
    case Kind::kTableSize: {
      ASSIGN_OR_RETURN(Table * table, holdings->FindTable(head.id));
      return EncodeNumber(table->size());
    }
    case Kind::kExport: {
      if (head.sequence >= kExportPages) return InvalidArgumentError("there is no such page");
      ASSIGN_OR_RETURN(const ExportedRows rows,
                       holdings->Export(head.id, static_cast<std::uint32_t>(head.sequence)));
      return Encode(rows);
    }
    case Kind::kPull:
    case Kind::kStatus:
    case Kind::kMetrics:
    case Kind::kRollBack:
      break;
  }
  return UnimplementedError("a request that is answered elsewhere");
}

}  // namespace

rpc::Message Refuse(const RequestHead& request, std::uint64_t generation, const Status& status) {
  ReplyHead head = HeadFor(request, generation);
  head.code = status.code();
  head.reason = status.reason();
  return NewReply(head, status.message());
}

rpc::Message Answer(Holdings* holdings, const Request& request, Peer* peer, bool* lost) {
  const std::uint64_t generation = holdings->generation();
  const ReplyHead head = HeadFor(request.head, generation);
  // Greetings find out which generation it is; all else belongs to one.
  if (request.head.kind != Kind::kHello && request.head.generation != generation) {
    return Refuse(request.head, generation,
                  AbortedError("the job is in generation " + std::to_string(generation) +
                               ", not in " + std::to_string(request.head.generation)));
  }
  if (request.head.kind == Kind::kPull) {
    auto reply = Pull(holdings, request, *peer, head);
    return reply.ok() ? std::move(reply).value() : Refuse(request.head, generation, reply.status());
  }
  const auto body = Text(holdings, request, peer, lost);
  return body.ok() ? NewReply(head, *body) : Refuse(request.head, generation, body.status());
}

}  // namespace cairn::ps
