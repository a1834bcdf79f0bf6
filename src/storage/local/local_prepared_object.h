#pragma once

#include <memory>
#include <string>
#include <utility>

#include "storage/local/local_store.h"
#include "storage/store.h"

namespace cairn {

/// An object of a local store whose bytes lie beside its name-to-be. For one thread at a time.
class LocalPreparedObject final : public PreparedObject {
 public:
  /// `durable` becomes true when the bytes are; shared, as the session that makes them so and this
  /// object may end in either order.
  LocalPreparedObject(LocalStore* store, std::string name, LocalStore::Temporary temporary,
                      std::shared_ptr<const bool> durable)
      : store_(store),
        name_(std::move(name)),
        temporary_(std::move(temporary)),
        durable_(std::move(durable)) {}
  ~LocalPreparedObject() override;
  LocalPreparedObject(const LocalPreparedObject&) = delete;
  LocalPreparedObject& operator=(const LocalPreparedObject&) = delete;

  Status Create() override;

 private:
  LocalStore* const store_;
  const std::string name_;
  LocalStore::Temporary temporary_;  // without a file once it was given its name, or failed to be
  const std::shared_ptr<const bool> durable_;
};

}  // namespace cairn
