#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "catalog/page.h"

namespace cairn {

class CatalogDatabase;
class Connection;

struct Webhook {
  std::int64_t id = 0;
  std::string url;
  std::string secret;  // for the signature
  std::string owner;
  Value triggers = Value::List{};  // the caller's
  bool active = true;
  std::int64_t created = 0;  // nanoseconds since 1970
};

enum class DeliveryState : std::uint8_t { kPending, kDelivered, kFailed };
std::string_view DeliveryStateName(DeliveryState state);

/// Something to be told to a webhook.
struct Delivery {
  std::int64_t id = 0;
  std::int64_t webhook = 0;
  std::string key;      // unique in its webhook (an event's number): the same again is kept once
  std::string payload;  // what is sent
  std::int64_t created = 0;
  DeliveryState state = DeliveryState::kPending;
  std::uint64_t attempts = 0;
  std::int64_t next_attempt = 0;  // nanoseconds since 1970
  std::string message;            // how the last attempt ended
};

/// Queues deliveries in the transaction of something else; `now` for those that say no time.
Status InsertDeliveries(std::span<const Delivery> deliveries, std::int64_t now,
                        Connection* connection);

/// Webhooks and the queue of what they shall be told. May be called from any thread.
class CatalogWebhooks {
 public:
  explicit CatalogWebhooks(CatalogDatabase* db) : db_(db) {}

  Result<std::int64_t> Create(const Webhook& webhook);
  Result<Webhook> Get(std::int64_t id);  // NotFound
  Result<std::vector<Webhook>> List();
  Status SetActive(std::int64_t id, bool active);
  Status Delete(std::int64_t id);  // with its deliveries; NotFound is OK

  /// Queues deliveries and remembers, in the same transaction, that events up to `seq` have been
  /// looked at: who starts again replays from Cursor() + 1 and neither misses nor doubles one.
  Status Enqueue(std::span<const Delivery> deliveries, std::uint64_t seq);
  Result<std::uint64_t> Cursor();
  /// Pending ones whose time has come, oldest first, of active webhooks.
  Result<std::vector<Delivery>> Due(std::int64_t now, std::uint64_t limit = 100);
  /// The oldest of them for one webhook.
  Result<std::optional<Delivery>> DueOf(std::int64_t webhook, std::int64_t now);
  Status Delivered(std::int64_t delivery, std::string message);
  /// Tried in vain: again at `next_attempt`, or never (0).
  Status Failed(std::int64_t delivery, std::string message, std::int64_t next_attempt);
  /// Newest first.
  Result<Page<Delivery>> Deliveries(std::int64_t webhook, std::uint64_t offset,
                                    std::uint64_t limit);
  /// Forgets what was delivered or given up before `time`.
  Status Forget(std::int64_t time);

 private:
  CatalogDatabase* const db_;
};

}  // namespace cairn
