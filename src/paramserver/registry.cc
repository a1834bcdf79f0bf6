#include "paramserver/registry.h"

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn::ps {
namespace {

constexpr std::uint64_t kMaxBytes = 64 << 10;

std::string NameOf(int server) { return "servers/ps_" + std::to_string(server) + ".json"; }

}  // namespace

Status RegisterServer(Store* store, int server, const ServerAddress& address) {
  return store->Put(
      NameOf(server),
      EncodeJson(Value::Object{{"address", address.address}, {"process", address.process}}, 2) +
          "\n");
}

Result<ServerAddress> FindServer(Store* store, int server) {
  ASSIGN_OR_RETURN(const std::string text, store->Get(NameOf(server), kMaxBytes));
  ASSIGN_OR_RETURN(const Value value, DecodeJson(text));
  if (value.if_object() == nullptr) return CorruptionError(NameOf(server) + " is no object");
  ServerAddress address;
  const MemberReader reader(*value.if_object());
  RETURN_IF_ERROR(reader.Text("address", &address.address));
  RETURN_IF_ERROR(reader.Text("process", &address.process));
  return address;
}

}  // namespace cairn::ps
