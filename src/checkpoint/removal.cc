#include "checkpoint/removal.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/reserve.h"

// Removing a checkpoint, and why in this order:
//
//  1. The remove note takes the next number in notes/. Pins and scores compete for the same
//     numbers, so of a pin and a removal one comes first and the other sees it. It names the
//     checkpoint: a remover that was overtaken before this step may write it under a name that is
//     in use again. It is for the living: a crash that forgets it leaves a whole checkpoint, for
//     nothing is gone before step 3 is durable. A torn one would be taken for a pin, so its bytes
//     are synced.
//  2. Re-read the fence: overtaken → stop before anything is gone. The new owner may have sealed
//     the checkpoint; the note is void then. And re-read the manifest: should all have been deleted
//     and made again just now, the name is another's.
//  3. The manifest goes first and durably. From here the directory is garbage, whatever remains.
//  4. Only then the files that no live manifest refers to.

namespace cairn {
namespace {

Result<std::uint64_t> NextNoteNumber(Store* store, const std::string& directory) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(names::Path(directory, "notes")));
  std::uint64_t last = 0;
  for (const ObjectInfo& object : listing.objects) {
    const auto slash = object.name.rfind('/');
    const auto number = names::NumberOfNote(std::string_view(object.name).substr(slash + 1));
    if (number) last = std::max(last, *number);
  }
  return last + 1;
}

bool Pinned(const std::vector<NoteRecord>& notes) {
  bool pinned = false;
  for (const NoteRecord& note : notes) {
    if (note.kind == NoteKind::kPin) pinned = true;
    if (note.kind == NoteKind::kUnpin) pinned = false;
  }
  return pinned;
}

auto Scores(const std::vector<NoteRecord>& notes) {
  return std::ranges::count(notes, NoteKind::kScore, &NoteRecord::kind);
}

}  // namespace

Result<std::uint64_t> AppendNote(const Environment& env, const std::string& directory,
                                 const std::string& id, NoteRecord note) {
  note.uuid = env.ids->NewUuid();
  note.checkpoint = id;
  note.time = env.clock->WallNanos();
  RepositoryReader reader(env.store.get(), env.rules);
  for (;;) {
    ASSIGN_OR_RETURN(note.number, NextNoteNumber(env.store.get(), directory));
    // Judged after the number was chosen: a removal that takes a lower number is seen here, one
    // that wants the same number loses the race and sees us.
    ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
    const Checkpoint* found = nullptr;
    for (const Checkpoint& checkpoint : view.checkpoints) {
      if (checkpoint.directory == directory && checkpoint.manifest->id == id) found = &checkpoint;
    }
    if (found == nullptr) return NotFoundError("there is no checkpoint in " + directory);
    if (found->removed) return AbortedError(directory + " is being removed");
    const Status published = PublishRecord(env, names::Note(directory, note.number), Encode(note));
    if (published.Is(Code::kAlreadyExists)) continue;
    RETURN_IF_ERROR(published);
    if (!env.rules.reread_manifest_after_note) return note.number;
    // Retention may have taken it at once.
    if (note.kind == NoteKind::kUnpin) return note.number;
    // A removal that began after we judged may have ended before we wrote: it took its note with it
    // and so gave the number free. Then the manifest is gone, and ours is a note of nothing, left
    // to the next sweep (deleting it by name could hit another's).
    auto manifest = reader.ReadManifest(directory);
    if (manifest.ok() && manifest->id == id) return note.number;
    if (!manifest.ok() && !manifest.status().Is(Code::kNotFound)) return manifest.status();
    return AbortedError(directory + " was removed meanwhile");
  }
}

Result<Removed> RemoveCheckpoint(const Environment& env, const Generation& generation,
                                 const Checkpoint& checkpoint, const RemovalOptions& options) {
  Store* store = env.store.get();
  const std::string& directory = checkpoint.directory;
  RepositoryReader reader(store, env.rules);
  if (env.rules.remove_note_first) {
    NoteRecord note;
    note.kind = NoteKind::kRemove;
    note.uuid = env.ids->NewUuid();
    note.checkpoint = checkpoint.manifest->id;
    note.generation = generation.number();
    note.time = env.clock->WallNanos();
    for (;;) {
      ASSIGN_OR_RETURN(note.number, NextNoteNumber(store, directory));
      ASSIGN_OR_RETURN(const std::vector<NoteRecord> notes,
                       reader.ReadNotes(directory, note.checkpoint));
      if (Pinned(notes)) return Removed{};
      if (options.by_score && Scores(notes) > Scores(checkpoint.notes)) return Removed{};
      env.Step("remove: note");
      const Status published = PublishWithReserve(env, [&] {
        return PublishForTheLiving(env, names::Note(directory, note.number), Encode(note),
                                   AfterCrash::kWholeOrNothing);
      });
      if (published.ok()) break;
      if (!published.Is(Code::kAlreadyExists)) return published;
    }
  }
  env.Step("remove: fence");
  if (env.rules.reread_fence_before_delete) RETURN_IF_ERROR(generation.CheckFence());

  env.Step("remove: manifest");
  const auto there = reader.ReadManifest(directory);
  if (there.ok() && there->id != checkpoint.manifest->id) return Removed{.removed = true};
  if (!there.ok() && !there.status().Is(Code::kNotFound) && !there.status().Is(Code::kCorruption)) {
    return there.status();
  }
  const Status gone = store->Delete(names::Path(directory, names::kManifest));
  if (!gone.ok() && !gone.Is(Code::kNotFound)) return gone;
  const Status durable = store->SyncDirectory(directory, "removed manifest");
  if (!durable.ok() && !durable.Is(Code::kNotFound)) return durable;  // NotFound: gone by hand

  Removed result;
  result.removed = true;
  if (!options.pool.empty() && store->traits().hard_links) {
    env.Step("remove: pool");
    std::uint64_t room = options.pool_bytes;
    for (const ManifestFile& file : checkpoint.manifest->files) {
      if (file.hash.bytes < options.pool_min_file || file.hash.bytes > room) continue;
      if (!file.ref.empty()) continue;
      const std::string pooled = names::Path(options.pool, env.ids->NewUuid());
      const std::string name = names::Path(directory, file.path);
      const auto moved = store->MoveToPool(name, pooled);
      if (!moved.ok() || !*moved) continue;  // in use, shared or gone: it is deleted below
      room -= file.hash.bytes;
      result.pooled.push_back({pooled, file.hash.bytes});
    }
  }
  env.Step("remove: files");
  RETURN_IF_ERROR(DeleteCheckpointDirectory(store, Doom(checkpoint), options.kept).status());
  return result;
}

}  // namespace cairn
