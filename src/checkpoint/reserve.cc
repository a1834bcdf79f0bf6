#include "checkpoint/reserve.h"

#include <string>
#include <string_view>

#include "base/log.h"
#include "checkpoint/names.h"

namespace cairn {
namespace {

// On a disk that is nearly full the reserve would be what is missing elsewhere, and a removal that
// has just given it up still needs its blocks.
constexpr std::uint64_t kKeepFromFreeBytes = 16 * kReserveBytes;

/// Bytes that no file system below makes smaller.
std::string Filler() {
  std::string bytes(kReserveBytes, '\0');
  std::uint64_t x = 88172645463325252u;
  for (char& byte : bytes) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    byte = static_cast<char>(x);
  }
  return bytes;
}

/// True when anything was there to be given up.
bool GiveUp(Store* store) {
  bool any = store->Delete(std::string(names::kReserve)).ok();
  // A pool's file is taken out by a rename: whoever finds it gone makes a new one. So this is safe
  // also while a writer lives that nobody knows of.
  const auto pools = store->List(std::string(names::kPool));
  if (!pools.ok()) return any;
  for (const std::string& pool : pools->prefixes) {
    if (!names::IsPool(pool)) continue;
    const auto files = store->List(pool);
    if (!files.ok()) continue;
    for (const ObjectInfo& file : files->objects) {
      if (names::IsRecycled(file.name)) any = store->Delete(file.name).ok() || any;
    }
  }
  // Some file systems give blocks out again only when it is durable that they are free.
  if (any) {
    store->SyncDirectory(std::string(names::kGenerations), "reserve")
        .IgnoreError("then the next attempt to write says that there is no room");
  }
  return any;
}

}  // namespace

void KeepReserve(Store* store) {
  if (!store->traits().directories) return;
  const auto free = store->FreeBytes();
  if (!free.ok() || !*free || **free < kKeepFromFreeBytes) return;
  const std::string name(names::kReserve);
  const auto there = store->Stat(name);
  if (there.ok() && there->bytes >= kReserveBytes) return;
  if (there.ok() && !store->Delete(name).ok()) return;  // what a crash left of it
  store->CreateVolatile(name, Filler(), AfterCrash::kAnything)
      .IgnoreError("it is missed on a full disk only, and the next opening tries again");
}

Status PublishWithReserve(const Environment& env, const std::function<Status()>& publish) {
  Status published = publish();
  if (!published.Is(Code::kResourceExhausted)) return published;
  if (GiveUp(env.store.get())) {
    LogInfo("\"" + env.store->Describe() +
            "\": the disk is full; what was kept in reserve for removals is used");
    published = publish();
    if (!published.Is(Code::kResourceExhausted)) return published;
  }
  return Status(published.code(),
                std::string(published.message()) +
                    "; a removal writes its records before it frees anything: free 64 KiB on "
                    "that disk in another way (and five files, where their number is limited), "
                    "and repeat it");
}

}  // namespace cairn
