#include "catalog/webhooks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "catalog/database.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::string_view kWebhookSelect =
    "SELECT id, url, secret, owner, triggers, active, created FROM webhooks";
Result<Webhook> WebhookFrom(const SqlRow& row) {
  Webhook webhook{.id = row.Int(0),
                  .url = row.Text(1),
                  .secret = row.Text(2),
                  .owner = row.Text(3),
                  .active = row.Bool(5),
                  .created = row.Int(6)};
  ASSIGN_OR_RETURN(webhook.triggers, DecodeJson(row.Text(4)));
  return webhook;
}

constexpr std::string_view kDeliverySelect =
    "SELECT d.id, d.webhook, d.key, d.payload, d.created, d.state, d.attempts, d.next_attempt, "
    "d.message FROM deliveries d";
constexpr std::string_view kDeliveryColumns = "iittitiit";
Delivery DeliveryFrom(const SqlRow& row) {
  Delivery delivery{.id = row.Int(0),
                    .webhook = row.Int(1),
                    .key = row.Text(2),
                    .payload = row.Text(3),
                    .created = row.Int(4),
                    .attempts = row.Uint(6),
                    .next_attempt = row.Int(7),
                    .message = row.Text(8)};
  for (const auto state :
       {DeliveryState::kPending, DeliveryState::kDelivered, DeliveryState::kFailed}) {
    if (DeliveryStateName(state) == row.Text(5)) delivery.state = state;
  }
  return delivery;
}

}  // namespace

std::string_view DeliveryStateName(DeliveryState state) {
  switch (state) {
    case DeliveryState::kPending:
      return "pending";
    case DeliveryState::kDelivered:
      return "delivered";
    case DeliveryState::kFailed:
      return "failed";
  }
  return "failed";
}

Result<std::int64_t> CatalogWebhooks::Create(const Webhook& webhook) {
  std::int64_t id = 0;
  RETURN_IF_ERROR(db_->Write([&](Connection& connection) {
    return connection.Query(
        "INSERT INTO webhooks (url, secret, owner, triggers, active, created) VALUES (?, ?, ?, ?, "
        "?, ?) RETURNING id",
        {webhook.url, webhook.secret, webhook.owner, EncodeJson(webhook.triggers),
         Flag(webhook.active), webhook.created != 0 ? webhook.created : db_->clock()->WallNanos()},
        "i", [&](const SqlRow& row) {
          id = row.Int(0);
          return Status::Ok();
        });
  }));
  return id;
}

Result<Webhook> CatalogWebhooks::Get(std::int64_t id) {
  std::optional<Webhook> found;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    return connection.Query(std::string(kWebhookSelect) + " WHERE id = ?", {id}, "ittttii",
                            [&](const SqlRow& row) -> Status {
                              ASSIGN_OR_RETURN(found, WebhookFrom(row));
                              return Status::Ok();
                            });
  }));
  if (!found) return NotFoundError(fmt::format("no webhook {}", id));
  return std::move(*found);
}

Result<std::vector<Webhook>> CatalogWebhooks::List() {
  std::vector<Webhook> webhooks;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    webhooks.clear();
    return connection.Query(std::string(kWebhookSelect) + " ORDER BY id", {}, "ittttii",
                            [&](const SqlRow& row) -> Status {
                              ASSIGN_OR_RETURN(Webhook webhook, WebhookFrom(row));
                              webhooks.push_back(std::move(webhook));
                              return Status::Ok();
                            });
  }));
  return webhooks;
}

Status CatalogWebhooks::SetActive(std::int64_t id, bool active) {
  return db_->Write([&](Connection& connection) -> Status {
    std::int64_t changed = 0;
    RETURN_IF_ERROR(connection.Run("UPDATE webhooks SET active = ? WHERE id = ?",
                                   {Flag(active), id}, &changed));
    return changed == 0 ? NotFoundError(fmt::format("no webhook {}", id)) : Status::Ok();
  });
}

Status CatalogWebhooks::Delete(std::int64_t id) {
  return db_->Write([&](Connection& connection) {
    return connection.Run("DELETE FROM webhooks WHERE id = ?", {id});
  });
}

Status InsertDeliveries(std::span<const Delivery> deliveries, std::int64_t now,
                        Connection* connection) {
  for (const Delivery& delivery : deliveries) {
    RETURN_IF_ERROR(connection->Run(
        "INSERT INTO deliveries (webhook, key, payload, created, state, attempts, next_attempt, "
        "message) VALUES (?, ?, ?, ?, 'pending', 0, ?, '') ON CONFLICT (webhook, key) DO NOTHING",
        {delivery.webhook, delivery.key, delivery.payload,
         delivery.created != 0 ? delivery.created : now, delivery.next_attempt}));
  }
  return Status::Ok();
}

Status CatalogWebhooks::Enqueue(std::span<const Delivery> deliveries, std::uint64_t seq) {
  return db_->Write([&](Connection& connection) -> Status {
    RETURN_IF_ERROR(InsertDeliveries(deliveries, db_->clock()->WallNanos(), &connection));
    return connection.Run(
        "INSERT INTO settings (name, value) VALUES ('webhook cursor', ?) ON CONFLICT (name) DO "
        "UPDATE SET value = excluded.value",
        {std::to_string(seq)});
  });
}

Result<std::uint64_t> CatalogWebhooks::Cursor() {
  std::uint64_t cursor = 0;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    return connection.Query(
        "SELECT CAST(value AS BIGINT) FROM settings WHERE name = 'webhook cursor'", {}, "i",
        [&](const SqlRow& row) {
          cursor = row.Uint(0);
          return Status::Ok();
        });
  }));
  return cursor;
}

Result<std::vector<Delivery>> CatalogWebhooks::Due(std::int64_t now, std::uint64_t limit) {
  std::vector<Delivery> due;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    due.clear();
    return connection.Query(
        std::string(kDeliverySelect) +
            " JOIN webhooks w ON w.id = d.webhook WHERE d.state = 'pending' AND d.next_attempt <= "
            "? AND w.active = 1 ORDER BY d.next_attempt, d.id LIMIT ?",
        {now, Number(limit)}, kDeliveryColumns, [&](const SqlRow& row) {
          due.push_back(DeliveryFrom(row));
          return Status::Ok();
        });
  }));
  return due;
}

Result<std::optional<Delivery>> CatalogWebhooks::DueOf(std::int64_t webhook, std::int64_t now) {
  std::optional<Delivery> due;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    due.reset();
    return connection.Query(
        std::string(kDeliverySelect) +
            " WHERE d.webhook = ? AND d.state = 'pending' AND d.next_attempt <= ? ORDER BY "
            "d.next_attempt, d.id LIMIT 1",
        {webhook, now}, kDeliveryColumns, [&](const SqlRow& row) {
          due = DeliveryFrom(row);
          return Status::Ok();
        });
  }));
  return due;
}

Status CatalogWebhooks::Delivered(std::int64_t delivery, std::string message) {
  return db_->Write([&](Connection& connection) {
    return connection.Run(
        "UPDATE deliveries SET state = 'delivered', attempts = attempts + 1, message = ? WHERE id "
        "= ?",
        {message, delivery});
  });
}

Status CatalogWebhooks::Failed(std::int64_t delivery, std::string message,
                               std::int64_t next_attempt) {
  return db_->Write([&](Connection& connection) {
    return connection.Run(
        "UPDATE deliveries SET state = ?, attempts = attempts + 1, message = ?, next_attempt = ? "
        "WHERE id = ?",
        {std::string(next_attempt == 0 ? "failed" : "pending"), message, next_attempt, delivery});
  });
}

Result<Page<Delivery>> CatalogWebhooks::Deliveries(std::int64_t webhook, std::uint64_t offset,
                                                   std::uint64_t limit) {
  Page<Delivery> page;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    page = {};
    ASSIGN_OR_RETURN(
        const auto total,
        connection.QueryInt("SELECT COUNT(*) FROM deliveries WHERE webhook = ?", {webhook}));
    page.total = static_cast<std::uint64_t>(total.value_or(0));
    return connection.Query(
        std::string(kDeliverySelect) + " WHERE d.webhook = ? ORDER BY d.id DESC LIMIT ? OFFSET ?",
        {webhook, Number(std::min(limit, kMaxPage)), Number(offset)}, kDeliveryColumns,
        [&](const SqlRow& row) {
          page.items.push_back(DeliveryFrom(row));
          return Status::Ok();
        });
  }));
  return page;
}

Status CatalogWebhooks::Forget(std::int64_t time) {
  return db_->Write([&](Connection& connection) {
    return connection.Run("DELETE FROM deliveries WHERE state <> 'pending' AND created < ?",
                          {time});
  });
}

}  // namespace cairn
