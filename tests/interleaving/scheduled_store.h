#pragma once

#include <memory>

#include "storage/store.h"
#include "tests/interleaving/world.h"

namespace cairn::interleaving {

/// The shared memory store as one actor sees it. Before each operation that matters to others it
/// asks the scheduler; afterwards it tells the world what changed and the actor's history what was
/// seen. Once the actor has been stopped every operation fails with Cancelled and does nothing,
/// which is how a killed process looks from the store's side.
///
/// Points: every operation that changes the store, and every read whose answer another actor can
/// still change. Not points, because nobody else can notice when they happen: reading a record that
/// is there and is never replaced or deleted (cairn.json and what stands directly in generations/);
/// handing parts to a write session; syncs, locks and refreshes, which do nothing here. Data files
/// of one directory are created, opened, read, recycled or deleted in one step: who finds some of
/// them missing does what he does when all are.
std::unique_ptr<Store> NewScheduledStore(Actor* actor);

}  // namespace cairn::interleaving
