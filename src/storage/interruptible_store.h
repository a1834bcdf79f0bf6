#pragma once

#include <memory>
#include <string>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "storage/store.h"

namespace cairn {

/// An ability of stores that speak to servers: to be let go of while one of these is silent. Apart
/// from Store, as AppendingStore is.
class InterruptibleStore {
 public:
  virtual ~InterruptibleStore() = default;
  /// Calls that wait for a server end with Cancelled, soon; those to come at once. Any thread.
  virtual void Interrupt() = 0;
};

/// Interrupts a store that can be.
inline void Interrupt(Store* store) {
  if (auto* waits = dynamic_cast<InterruptibleStore*>(store)) waits->Interrupt();
}

/// Opens a place to read from (open_store.h), and asks no server whether it is there: whoever uses
/// the store finds out, and there is something to interrupt before anything waits.
Result<std::unique_ptr<Store>> OpenUnasked(const std::string& where, const StorageOptions& storage);

}  // namespace cairn
