#include "paramserver/remote_table.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "base/status_macros.h"
#include "format/json.h"
#include "paramserver/declaration.h"
#include "paramserver/placement.h"

namespace cairn::ps {

Status RemoteTableImpl::Declare() {
  const std::string description = EncodeJson(ToValue(spec_));
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(client_->servers()));
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kDeclareTable}, false,
      [&](int, const RequestHead& head) { return std::optional(NewRequest(head, description)); },
      [&](int i, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const std::uint64_t id, DecodeNumber(body));
        ids[static_cast<std::size_t>(i)] = static_cast<std::uint32_t>(id);
        return Status::Ok();
      }));
  ids_ = std::move(ids);
  return Status::Ok();
}

Result<RemoteTableImpl::Split> RemoteTableImpl::SplitKeys(std::span<const std::int64_t> ids) const {
  if (ids.size() > 0xffffffff) return InvalidArgumentError("a batch of more than 2^32 ids");
  const int servers = client_->servers();
  Split split;
  split.positions.resize(static_cast<std::size_t>(servers));
  for (auto& positions : split.positions) {
    positions.reserve(ids.size() / static_cast<std::size_t>(servers) + 16);
  }
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    const int server = servers == 1 ? 0 : ServerOfShard(TableShardOf(ids[i]), servers);
    split.positions[static_cast<std::size_t>(server)].push_back(i);
  }
  return split;
}

rpc::Message RemoteTableImpl::KeysMessage(const RequestHead& head,
                                          std::span<const std::int64_t> ids,
                                          std::span<const std::uint32_t> positions) const {
  rpc::Message message = NewRequest(head, positions.size() * sizeof(std::int64_t));
  std::byte* at = Body(&message).data();
  for (const std::uint32_t position : positions) {
    std::memcpy(at, &ids[position], sizeof(std::int64_t));
    at += sizeof(std::int64_t);
  }
  return message;
}

Status RemoteTableImpl::Lookup(std::span<const std::int64_t> ids, std::span<float> out,
                               Missing missing) {
  if (out.size() != ids.size() * spec_.dim) {
    return InvalidArgumentError(
        fmt::format("table \"{}\": {} ids of {} weights need room for {}, "
                    "not for {}",
                    spec_.name, ids.size(), spec_.dim, ids.size() * spec_.dim, out.size()));
  }
  ASSIGN_OR_RETURN(const Split split, SplitKeys(ids));
  const std::size_t row = spec_.dim * sizeof(float);
  const std::uint16_t flags = missing == Missing::kCreate ? kCreateRows : 0;
  // With admission a lookup counts: once, also when it has to be sent again.
  const bool counts = missing == Missing::kCreate && spec_.admission && client_->trainer() >= 0;
  return client_->Exchange(
      {.kind = Kind::kPull, .flags = flags}, counts,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        const auto& positions = split.positions[static_cast<std::size_t>(i)];
        if (positions.empty()) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        return KeysMessage(head, ids, positions);
      },
      [&](int i, std::span<const std::byte> body) {
        const auto& positions = split.positions[static_cast<std::size_t>(i)];
        if (body.size() != positions.size() * row) {
          return CorruptionError("an answer with another number of rows");
        }
        const std::byte* at = body.data();
        for (const std::uint32_t position : positions) {
          std::memcpy(out.data() + std::size_t{position} * spec_.dim, at, row);
          at += row;
        }
        return Status::Ok();
      });
}

Status RemoteTableImpl::SendRows(Kind kind, std::span<const std::int64_t> ids,
                                 std::span<const float> rows) {
  if (client_->trainer() < 0) return FailedPreconditionError("this client only looks");
  if (rows.size() != ids.size() * spec_.dim) {
    return InvalidArgumentError(
        fmt::format("table \"{}\": {} ids of {} weights need {} numbers, "
                    "not {}",
                    spec_.name, ids.size(), spec_.dim, ids.size() * spec_.dim, rows.size()));
  }
  ASSIGN_OR_RETURN(const Split split, SplitKeys(ids));
  return client_->Exchange(
      {.kind = kind}, true,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        const auto& positions = split.positions[static_cast<std::size_t>(i)];
        if (positions.empty()) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        rpc::Message message = NewRequest(head, RowsBytes(positions.size(), spec_.dim));
        std::span<std::byte> keys;
        std::span<std::byte> values;
        BeginRows(Body(&message), positions.size(), spec_.dim, &keys, &values);
        const std::size_t row = spec_.dim * sizeof(float);
        for (std::size_t p = 0; p < positions.size(); ++p) {
          std::memcpy(keys.data() + p * sizeof(std::int64_t), &ids[positions[p]],
                      sizeof(std::int64_t));
          std::memcpy(values.data() + p * row, rows.data() + std::size_t{positions[p]} * spec_.dim,
                      row);
        }
        return message;
      },
      [](int, std::span<const std::byte>) { return Status::Ok(); });
}

Result<std::uint64_t> RemoteTableImpl::Erase(std::span<const std::int64_t> ids) {
  if (client_->trainer() < 0) return FailedPreconditionError("this client only looks");
  ASSIGN_OR_RETURN(const Split split, SplitKeys(ids));
  std::uint64_t erased = 0;
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kErase}, true,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        const auto& positions = split.positions[static_cast<std::size_t>(i)];
        if (positions.empty()) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        return KeysMessage(head, ids, positions);
      },
      [&](int, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const std::uint64_t count, DecodeNumber(body));
        erased += count;
        return Status::Ok();
      }));
  return erased;
}

Result<std::uint64_t> RemoteTableImpl::Size() {
  std::uint64_t rows = 0;
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kTableSize}, false,
      [&](int i, RequestHead head) {
        head.id = ids_[static_cast<std::size_t>(i)];
        return std::optional(NewRequest(head, ""));
      },
      [&](int, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const std::uint64_t count, DecodeNumber(body));
        rows += count;
        return Status::Ok();
      }));
  return rows;
}

Result<TableContent> RemoteTableImpl::Content() {
  TableContent content;
  const auto append = [](auto* to, const auto& from) {
    to->insert(to->end(), from.begin(), from.end());
  };
  for (std::uint32_t page = 0; page < kExportPages; ++page) {
    RETURN_IF_ERROR(client_->Exchange(
        {.kind = Kind::kExport, .sequence = page}, false,
        [&](int i, RequestHead head) {
          head.id = ids_[static_cast<std::size_t>(i)];
          return std::optional(NewRequest(head, ""));
        },
        [&](int, std::span<const std::byte> body) -> Status {
          ASSIGN_OR_RETURN(const ExportedRows rows, DecodeExportedRows(body));
          append(&content.keys, rows.keys);
          append(&content.frequency, rows.frequency);
          append(&content.version, rows.version);
          append(&content.weights, rows.weights);
          append(&content.slots, rows.slots);
          return Status::Ok();
        }));
  }
  return content;
}

}  // namespace cairn::ps
