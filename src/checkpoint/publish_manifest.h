#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "checkpoint/environment.h"
#include "format/manifest.h"
#include "format/records.h"

namespace cairn {

/// How the commit of a checkpoint ended when it did not succeed.
enum class Commitment : std::uint8_t {
  kNotThere,  // it does not count and never will: its files may go
  kUnknown,   // it may count: its files must stay
};

/// The commit: publishes the manifest, create-only and durable. `seen_by_others`: several
/// participants wait for it and may have acknowledged it as soon as it is there. On an error
/// `*commitment` says what became of it. `prepared`: what PrepareManifest gave for the very same
/// manifest, or null.
Status PublishManifest(const Environment& env, const std::string& directory,
                       const Manifest& manifest, bool seen_by_others, Commitment* commitment,
                       PreparedObject* prepared = nullptr);
/// Begins to make its bytes durable beside the files that it names; null where that gains nothing.
Result<std::unique_ptr<PreparedObject>> PrepareManifest(WriteSession* session,
                                                        const std::string& directory,
                                                        const Manifest& manifest);

/// True when no checkpoint can be written under the name because somebody put a file there: it is
/// not ours to delete, and another name does as well. Asked only after a claim failed.
bool IsTakenByFile(const Environment& env, const std::string& directory);

/// True when something lies in the directory that a claim is about to make: somebody put it there
/// since the opening listed the names that are taken. Only where directories can be looked into
/// cheaply.
bool HoldsAnything(const Environment& env, const std::string& directory);

/// Removes the empty directories inside one that was claimed, but not that one. For who takes a
/// claim back, before its marker goes.
void PruneBelow(Store* store, const std::string& directory);

/// Makes the first of the directories that `next` names and nobody has ours, by an unsynced marker
/// that tells a later sweep whose it is.
Result<std::string> ClaimDirectory(const Environment& env, const MarkerRecord& marker,
                                   const std::function<std::string()>& next);

}  // namespace cairn
