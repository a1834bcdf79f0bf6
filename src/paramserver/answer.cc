#include "paramserver/answer.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace cairn::ps {
namespace {

ReplyHead HeadFor(const RequestHead& request, std::uint64_t generation) {
  return {.kind = request.kind, .generation = generation, .sequence = request.sequence};
}

Result<rpc::Message> Pull(Holdings* holdings, const Request& request, const Peer& peer,
                          const ReplyHead& head) {
  ASSIGN_OR_RETURN(Table * table, holdings->FindTable(peer, request.head.id));
  std::vector<std::int64_t> copy;
  ASSIGN_OR_RETURN(const std::span<const std::int64_t> keys, ViewKeys(request.body, &copy));
  const std::size_t floats = keys.size() * table->options().dim;
  rpc::Message reply = NewReply(head, floats * sizeof(float));
  // Straight into the message: its body is aligned for floats.
  static_assert(kHeadBytes % alignof(float) == 0);
  const std::span<float> out(reinterpret_cast<float*>(Body(&reply).data()), floats);
  RETURN_IF_ERROR(holdings->Pull(peer, request, table, keys, out));
  return reply;
}

/// As Pull, of a dense variable: straight into the message.
Result<rpc::Message> PullDense(Holdings* holdings, const Request& request, const ReplyHead& head) {
  rpc::Message reply;
  RETURN_IF_ERROR(holdings->PullDense(request.head.id, [&](std::span<const float> values) {
    reply = NewReply(head, values.size_bytes());
    if (!values.empty()) std::memcpy(Body(&reply).data(), values.data(), values.size_bytes());
  }));
  return reply;
}

Result<std::string> Text(Holdings* holdings, const Request& request, Peer* peer, bool* lost) {
  const RequestHead& head = request.head;
  switch (head.kind) {
    case Kind::kHello: {
      ASSIGN_OR_RETURN(const HelloRequest hello, DecodeHelloRequest(request.body));
      ASSIGN_OR_RETURN(const HelloReply reply, holdings->Hello(hello, lost));
      *peer = {hello.trainer, hello.incarnation};
      return Encode(reply);
    }
    case Kind::kDeclareTable: {
      ASSIGN_OR_RETURN(const std::uint32_t id, holdings->DeclareTable(*peer, request));
      return EncodeNumber(id);
    }
    case Kind::kDeclareDense: {
      ASSIGN_OR_RETURN(const std::uint32_t id, holdings->DeclareDense(*peer, request));
      return EncodeNumber(id);
    }
    case Kind::kPush:
    case Kind::kAssign:
    case Kind::kErase:
    case Kind::kEvict:
    case Kind::kSetRate:
    case Kind::kDensePush:
      return holdings->Change(*peer, request);
    case Kind::kDenseExport: {
      ASSIGN_OR_RETURN(const std::vector<float> values, holdings->ExportDense(head.id));
      return std::string(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(float));
    }
    case Kind::kEndStep: {
      ASSIGN_OR_RETURN(const EndStepReply reply, holdings->EndStep(*peer, request));
      return Encode(reply);
    }
    case Kind::kBarrier: {
      ASSIGN_OR_RETURN(const std::uint64_t number, DecodeNumber(request.body));
      RETURN_IF_ERROR(holdings->Barrier(*peer, number));
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
      if ((head.flags & kLeaveFor) != 0) {
        RETURN_IF_ERROR(holdings->TrainerEnded(head.id));
        return std::string();
      }
      RETURN_IF_ERROR(holdings->TrainerLeft(*peer));
      *peer = {};
      return std::string();
    case Kind::kTableSize: {
      ASSIGN_OR_RETURN(Table * table, holdings->FindTable(head.id));
      return EncodeNumber(table->size());
    }
    case Kind::kRate: {
      ASSIGN_OR_RETURN(Table * table, holdings->FindTable(head.id));
      return EncodeRate(table->learning_rate());
    }
    case Kind::kExport: {
      if (head.sequence >= kExportPages) return InvalidArgumentError("there is no such page");
      ASSIGN_OR_RETURN(const ExportedRows rows,
                       holdings->Export(head.id, static_cast<std::uint32_t>(head.sequence)));
      return Encode(rows);
    }
    case Kind::kPull:
    case Kind::kDensePull:
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
  if (request.head.kind == Kind::kPull || request.head.kind == Kind::kDensePull) {
    auto reply = request.head.kind == Kind::kPull ? Pull(holdings, request, *peer, head)
                                                  : PullDense(holdings, request, head);
    return reply.ok() ? std::move(reply).value() : Refuse(request.head, generation, reply.status());
  }
  const auto body = Text(holdings, request, peer, lost);
  return body.ok() ? NewReply(head, *body) : Refuse(request.head, generation, body.status());
}

}  // namespace cairn::ps
