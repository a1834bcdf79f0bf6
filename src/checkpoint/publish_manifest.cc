#include "checkpoint/publish_manifest.h"

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "format/records.h"

namespace cairn {

Status PublishManifest(const Environment& env, const std::string& directory,
                       const Manifest& manifest, bool seen_by_others, Commitment* commitment,
                       PreparedObject* prepared) {
  *commitment = Commitment::kNotThere;
  RETURN_IF_ERROR(ValidateManifest(manifest));
  env.Step("save: manifest");
  const std::string name = names::Path(directory, names::kManifest);
  const std::string bytes = EncodeManifest(manifest);
  Status published = PublishPrepared(env, name, bytes, prepared);
  if (published.ok() || published.Is(Code::kAlreadyExists)) return published;
  // The manifest may be there and not durable. It must not outlive its files, nor count by chance
  // later: take it back first, durably. With several participants the others may have seen it and
  // acknowledged: then it stays, and its files with it. So it does where it may still arrive when
  // nobody looks any more; the next opening sweeps the files, and a manifest that comes after its
  // seal does not count.
  Status settled;
  if (MayAppearLate(env, published)) {
    settled = UnavailableError("the request may still arrive");
  } else if (seen_by_others) {
    settled = env.store->Stat(name).status();
    if (settled.ok()) settled = UnavailableError("it is there, perhaps not for good");
  } else {
    // One that is not ours is none of ours to take back: all may have been made again meanwhile.
    const auto there = env.store->Get(name, kMaxManifestBytes);
    if (there.ok() && *there != bytes) return published;
    settled = there.status();
    if (settled.ok()) settled = env.store->Delete(name);
    if (settled.ok()) settled = env.store->SyncNames(directory, "withdrawn manifest");
  }
  if (settled.ok() || settled.Is(Code::kNotFound)) return published;
  *commitment = Commitment::kUnknown;
  return UnavailableError(std::string(published.message()) +
                          "; whether the checkpoint counts is unknown (" +
                          std::string(settled.message()) + ")");
}

Result<std::unique_ptr<PreparedObject>> PrepareManifest(WriteSession* session,
                                                        const std::string& directory,
                                                        const Manifest& manifest) {
  RETURN_IF_ERROR(ValidateManifest(manifest));
  return session->Prepare(names::Path(directory, names::kManifest), EncodeManifest(manifest));
}

bool IsTakenByFile(const Environment& env, const std::string& directory) {
  return env.store->traits().directories && env.store->Stat(directory).ok();
}

bool HoldsAnything(const Environment& env, const std::string& directory) {
  if (!env.store->traits().directories) return false;
  const auto listing = env.store->List(directory);
  if (!listing.ok()) return false;  // the claim says what is wrong
  return !listing->objects.empty() || !listing->prefixes.empty() || !listing->unreachable.empty();
}

void PruneBelow(Store* store, const std::string& directory) {
  if (!store->traits().directories) return;
  const auto listing = store->List(directory);
  if (!listing.ok()) return;
  for (const std::string& sub : listing->prefixes) {
    store->PruneDirectories(sub).IgnoreError("empty directories are harmless");
  }
}

Result<std::string> ClaimDirectory(const Environment& env, const MarkerRecord& marker,
                                   const std::function<std::string()>& next) {
  for (;;) {
    std::string directory = next();
    env.Step("save: claim");
    if (HoldsAnything(env, directory)) continue;
    const Status claimed =
        PublishForTheLiving(env, names::Path(directory, names::kMarker), Encode(marker));
    if (claimed.ok()) return directory;
    if (!claimed.Is(Code::kAlreadyExists) && !IsTakenByFile(env, directory)) return claimed;
  }
}

}  // namespace cairn
