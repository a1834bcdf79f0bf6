#include "paramserver/remote_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/status_macros.h"
#include "format/json.h"
#include "paramserver/batch_split.h"
#include "paramserver/declaration.h"

namespace cairn::ps {
namespace {

// A large pull is asked for in parts whose answers are about so long: while one travels the server
// looks up the next, and what was received is still in the cache when it is put into its place.
constexpr std::size_t kPartBytes = 384 << 10;

}  // namespace

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

Status RemoteTableImpl::Lookup(std::span<const std::int64_t> ids, std::span<float> out,
                               Missing missing) {
  if (out.size() != ids.size() * spec_.dim) {
    return InvalidArgumentError(
        fmt::format("table \"{}\": {} ids of {} weights need room for {}, "
                    "not for {}",
                    spec_.name, ids.size(), spec_.dim, ids.size() * spec_.dim, out.size()));
  }
  ASSIGN_OR_RETURN(const BatchSplit split, BatchSplit::Make(ids, client_->servers()));
  const std::size_t row = spec_.dim * sizeof(float);
  const std::uint16_t flags = missing == Missing::kCreate ? kCreateRows : 0;
  // With admission a lookup counts: once, also when it has to be sent again.
  const bool counts = missing == Missing::kCreate && spec_.admission && client_->trainer() >= 0;
  const std::size_t most = split.most();
  const std::size_t step =
      std::max<std::size_t>(counts ? most : kPartBytes / std::max(row, sizeof(std::int64_t)), 1);
  const auto keys_in = [&](int server, std::uint32_t part) {
    const std::size_t keys = split.keys(server);
    return std::min(step, keys - std::min(keys, part * step));
  };
  return client_->ExchangeParts(
      {.kind = Kind::kPull, .flags = flags}, counts,
      static_cast<std::uint32_t>(std::max<std::size_t>((most + step - 1) / step, 1)),
      [&](int i, std::uint32_t part, RequestHead head) -> std::optional<rpc::Message> {
        const std::size_t keys = keys_in(i, part);
        if (keys == 0) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        rpc::Message message = NewRequest(head, keys * sizeof(std::int64_t));
        split.CopyKeys(i, part * step, ids, Body(&message));
        return message;
      },
      [&](int i, std::uint32_t part, std::span<const std::byte> body) {
        if (body.size() != keys_in(i, part) * row) {
          return CorruptionError("an answer with another number of rows");
        }
        split.PlaceRows(i, part * step, body, spec_.dim, out);
        return Status::Ok();
      },
      std::chrono::milliseconds(0));
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
  ASSIGN_OR_RETURN(const BatchSplit split, BatchSplit::Make(ids, client_->servers()));
  return client_->Exchange(
      {.kind = kind}, true,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        const std::size_t count = split.keys(i);
        if (count == 0) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        rpc::Message message = NewRequest(head, RowsBytes(count, spec_.dim));
        std::span<std::byte> keys;
        std::span<std::byte> values;
        BeginRows(Body(&message), count, spec_.dim, &keys, &values);
        split.CopyKeys(i, 0, ids, keys);
        split.CopyRows(i, 0, rows, spec_.dim, values);
        return message;
      },
      [](int, std::span<const std::byte>) { return Status::Ok(); });
}

Result<std::uint64_t> RemoteTableImpl::Erase(std::span<const std::int64_t> ids) {
  if (client_->trainer() < 0) return FailedPreconditionError("this client only looks");
  ASSIGN_OR_RETURN(const BatchSplit split, BatchSplit::Make(ids, client_->servers()));
  std::uint64_t erased = 0;
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kErase}, true,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        const std::size_t count = split.keys(i);
        if (count == 0) return std::nullopt;
        head.id = ids_[static_cast<std::size_t>(i)];
        rpc::Message message = NewRequest(head, count * sizeof(std::int64_t));
        split.CopyKeys(i, 0, ids, Body(&message));
        return message;
      },
      [&](int, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const std::uint64_t count, DecodeNumber(body));
        erased += count;
        return Status::Ok();
      }));
  return erased;
}

Result<std::optional<EvictReport>> RemoteTableImpl::Evict(std::int64_t step) {
  if (client_->trainer() < 0) return FailedPreconditionError("this client only looks");
  const std::string at = EncodeNumber(static_cast<std::uint64_t>(step));
  EvictReport all;
  bool told = true;
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kEvict}, true,
      [&](int i, RequestHead head) {
        head.id = ids_[static_cast<std::size_t>(i)];
        return std::optional(NewRequest(head, at));
      },
      [&](int, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const auto evicted, DecodeEvicted(body));
        told = told && evicted.has_value();
        all.rows += evicted.value_or(EvictReport()).rows;
        all.pending += evicted.value_or(EvictReport()).pending;
        return Status::Ok();
      }));
  return told ? std::optional(all) : std::nullopt;
}

Status RemoteTableImpl::SetLearningRate(float rate) {
  if (client_->trainer() < 0) return FailedPreconditionError("this client only looks");
  const std::string body = EncodeRate(rate);
  return client_->Exchange(
      {.kind = Kind::kSetRate}, true,
      [&](int i, RequestHead head) {
        head.id = ids_[static_cast<std::size_t>(i)];
        return std::optional(NewRequest(head, body));
      },
      [](int, std::span<const std::byte>) { return Status::Ok(); });
}

Result<float> RemoteTableImpl::LearningRate() {
  float rate = 0;
  RETURN_IF_ERROR(client_->Exchange(
      {.kind = Kind::kRate}, false,
      [&](int i, RequestHead head) -> std::optional<rpc::Message> {
        // All have the same, but for where SetLearningRate says that they may not.
        if (i != 0) return std::nullopt;
        head.id = ids_[0];
        return NewRequest(head, "");
      },
      [&](int, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(rate, DecodeRate(body));
        return Status::Ok();
      }));
  return rate;
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
