#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/generation.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/reserve.h"
#include "checkpoint/shelves.h"

// What an opening deletes of what older generations left (docs/protocol.md, "Opening for writing"),
// in this order:
//
//  1. The records of older meetings are listed, then everything else is looked at: whatever such an
//     attempt announced was claimed before, and so is seen.
//  2. The fence is read again: an overtaken opener must not judge by its old seal.
//  3. Uploads, removals and attempts that never ended; all by names that the own seal has retired.
//  4. The meetings themselves: attempts, start records and last steps of older generations. Ranks
//     of such a generation that still look for one find none, look at the fences, and are told
//     that they were overtaken: our fence was there before. An attempt whose directory is left to
//     the next opening stays with it, as the mark that it is the engine's.
//  5. Pools, and what only serves readers or a full disk.
//
// What cannot be deleted (an immutable file, a bad block, another user's directory) is garbage, and
// no reason not to train: it is left to the next opening, with a warning.

namespace cairn {
namespace {

std::string_view FileName(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

/// Something in a checkpoint's directory.
bool IsCheckpointName(std::string_view name) {
  return name.starts_with("checkpoint_") || name.starts_with("increment_");
}

Status DeleteIfThere(Store* store, const std::string& name) {
  Status deleted = store->Delete(name);
  return deleted.Is(Code::kNotFound) ? Status::Ok() : deleted;
}

Status DeleteTree(Store* store, const std::string& prefix, const std::set<std::string>& kept) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  for (const ObjectInfo& object : listing.objects) {
    if (!kept.contains(object.name)) RETURN_IF_ERROR(DeleteIfThere(store, object.name));
  }
  for (const std::string& sub : listing.prefixes) RETURN_IF_ERROR(DeleteTree(store, sub, kept));
  return Status::Ok();
}

/// With the empty directories that stay behind.
Status DeleteWithDirectories(Store* store, const std::string& prefix,
                             const std::set<std::string>& kept) {
  RETURN_IF_ERROR(DeleteTree(store, prefix, kept));
  return store->traits().directories ? store->PruneDirectories(prefix) : Status::Ok();
}

/// With something of somebody's in it, be it an empty directory, it stays.
Status PruneIfEmpty(Store* store, const std::string& directory) {
  if (!store->traits().directories) return Status::Ok();
  ASSIGN_OR_RETURN(const Listing left, store->List(directory));
  const bool empty = left.objects.empty() && left.prefixes.empty() && left.unreachable.empty();
  return empty ? store->PruneDirectories(directory) : Status::Ok();
}

bool IsNote(std::string_view file_name) { return names::NumberOfNote(file_name).has_value(); }
bool IsPart(std::string_view file_name) { return file_name.ends_with(".json"); }

/// What else somebody put there stays (an editor's copy, what a file browser leaves everywhere).
Status DeleteRecords(Store* store, const std::string& prefix, bool (*is_ours)(std::string_view)) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  for (const ObjectInfo& object : listing.objects) {
    if (is_ours(FileName(object.name))) RETURN_IF_ERROR(DeleteIfThere(store, object.name));
  }
  return PruneIfEmpty(store, prefix);
}

/// "worker_" of "worker_12".
std::string_view KindOf(std::string_view participant) {
  return participant.substr(0, participant.rfind('_') + 1);
}

/// What is in every checkpoint, and what its participants have there.
bool IsEngineDirectory(std::string_view name, const DoomedDirectory& doomed) {
  if (name == names::kModel || name == names::kTables || name == names::kFiles) return true;
  if (names::IsUsualParticipant(name)) return true;  // should nothing say who took part
  const std::string_view kind = KindOf(name);
  return doomed.participants.contains(name) || (!kind.empty() && kind == doomed.kind);
}

/// OK where only that one thing could not be deleted, which stays then.
Status UnlessItStays(const std::string& what, const Status& deleted) {
  if (!IsOfThisOneAlone(deleted)) return deleted;
  LogWarning(what + " is of no use any more and could not be deleted; the next opening tries " +
             "again: " + deleted.ToString());
  return Status::Ok();
}

/// Whether the manifest that may lie in the directory is the one that is meant.
Result<bool> IsTheOneMeant(Store* store, const DoomedDirectory& doomed) {
  const auto manifest = RepositoryReader(store).ReadManifest(doomed.directory);
  if (manifest.ok()) return manifest->id == doomed.id;
  if (manifest.status().Is(Code::kNotFound)) return true;
  if (manifest.status().Is(Code::kCorruption) || manifest.status().Is(Code::kUnimplemented)) {
    return !doomed.id.empty();  // it rotted
  }
  return manifest.status();
}

}  // namespace

bool IsOfThisOneAlone(const Status& status) {
  switch (status.code()) {
    case Code::kPermissionDenied:
    case Code::kInternal:
    case Code::kCorruption:
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kUnimplemented:
      return true;
    default:
      return false;
  }
}

DoomedDirectory Doom(const Checkpoint& checkpoint) {
  DoomedDirectory doomed{.directory = checkpoint.directory, .id = checkpoint.manifest->id};
  doomed.participants.insert(checkpoint.manifest->participants.begin(),
                             checkpoint.manifest->participants.end());
  for (const ManifestFile& file : checkpoint.manifest->files) {
    const std::size_t slash = file.path.find('/');
    if (slash != file.path.npos) doomed.participants.insert(file.path.substr(0, slash));
  }
  return doomed;
}

Result<bool> DeleteCheckpointDirectory(Store* store, DoomedDirectory doomed,
                                       const std::vector<std::string>& kept_list) {
  const std::string& directory = doomed.directory;
  const std::set<std::string> kept(kept_list.begin(), kept_list.end());
  ASSIGN_OR_RETURN(const bool meant, IsTheOneMeant(store, doomed));
  if (!meant) return false;
  if (!doomed.id.empty()) {
    RETURN_IF_ERROR(DeleteIfThere(store, names::Path(directory, names::kManifest)));
  }
  ASSIGN_OR_RETURN(const Listing listing, store->List(directory));
  const std::string parts = names::Path(directory, "parts");
  const bool has_parts = std::ranges::count(listing.prefixes, parts) > 0;
  if (has_parts) {
    ASSIGN_OR_RETURN(const Listing named, store->List(parts));
    for (const ObjectInfo& part : named.objects) {
      std::string_view name = FileName(part.name);
      if (name.ends_with(".json")) name.remove_suffix(std::string_view(".json").size());
      doomed.participants.emplace(name);
    }
  }
  for (const std::string& sub : listing.prefixes) {
    if (!IsEngineDirectory(FileName(sub), doomed)) continue;
    RETURN_IF_ERROR(DeleteWithDirectories(store, sub, kept));
  }
  if (has_parts) RETURN_IF_ERROR(DeleteRecords(store, parts, IsPart));
  RETURN_IF_ERROR(DeleteIfThere(store, names::Path(directory, names::kAbandoned)));
  const bool data_stays = std::any_of(kept.begin(), kept.end(), [&](const std::string& path) {
    return path.starts_with(directory + "/");
  });
  if (!data_stays) {
    // The marks go last: a sweep that is cut short finds the rest next time.
    RETURN_IF_ERROR(DeleteRecords(store, names::Path(directory, "notes"), IsNote));
    RETURN_IF_ERROR(DeleteIfThere(store, names::Path(directory, names::kMarker)));
  }
  RETURN_IF_ERROR(PruneIfEmpty(store, directory));
  return true;
}

/// What is left of the meetings of older generations. For one thread.
class Generation::OldMeetings {
 public:
  static Result<OldMeetings> List(Store* store, std::uint64_t generation) {
    OldMeetings old(store);
    ASSIGN_OR_RETURN(const Listing listing, store->List(std::string(names::kGenerations)));
    for (const ObjectInfo& object : listing.objects) {
      const auto number = names::GenerationOfStart(FileName(object.name));
      if (number && *number < generation) old.others_.push_back(object.name);
    }
    for (const std::string& prefix : listing.prefixes) {
      const auto number = names::GenerationOfDirectory(FileName(prefix));
      if (!number || *number >= generation) continue;
      old.directories_.push_back(prefix);
      old.others_.push_back(names::LastStep(*number));
    }
    std::vector<Result<Listing>> listed(old.directories_.size(), Listing());
    ForEachRequest(*store, listed.size(), [&](std::size_t i) {
      listed[i] = store->List(names::Path(old.directories_[i], "attempts"));
    });
    for (const Result<Listing>& attempts : listed) {
      if (!attempts.ok()) return attempts.status();
      for (const ObjectInfo& object : attempts->objects) {
        if (names::NumberOfAttempt(FileName(object.name))) old.attempts_.push_back(object.name);
      }
    }
    return old;
  }

  /// The attempt that announced the directory; null: none did. Only the first call reads them.
  const AttemptRecord* Announced(const std::string& directory) {
    Read();
    const auto it = announced_.find(directory);
    return it == announced_.end() ? nullptr : &it->second;
  }

  /// `left`: directories that the next opening is to know for ours.
  void Delete(const std::set<std::string>& left) {
    std::vector<std::string> names = std::move(others_);
    if (!left.empty()) Read();
    for (const std::string& name : attempts_) {
      const auto of = directory_of_.find(name);
      if (of == directory_of_.end() || !left.contains(of->second)) names.push_back(name);
    }
    ForEachRequest(*store_, names.size(), [&](std::size_t i) {
      DeleteIfThere(store_, names[i]).IgnoreError("it costs the next opening a request");
    });
    for (const std::string& directory : directories_) {
      store_->PruneDirectories(directory).IgnoreError("empty directories are harmless");
    }
  }

 private:
  explicit OldMeetings(Store* store) : store_(store) {}

  void Read() {
    if (std::exchange(read_, true)) return;
    std::vector<Result<AttemptRecord>> records(attempts_.size(), NotFoundError("not looked for"));
    ForEachRequest(*store_, records.size(), [&](std::size_t i) {
      const auto bytes = store_->Get(attempts_[i], kMaxRecordBytes);
      records[i] = bytes.ok() ? Decode<AttemptRecord>(*bytes) : bytes.status();
    });
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (!records[i].ok() || records[i]->directory.empty()) continue;
      directory_of_[attempts_[i]] = records[i]->directory;
      announced_.insert_or_assign(records[i]->directory, *records[i]);
    }
  }

  Store* store_;
  std::vector<std::string> attempts_;
  std::vector<std::string> others_;       // start records and last steps
  std::vector<std::string> directories_;  // generations/000007
  bool read_ = false;
  std::map<std::string, AttemptRecord> announced_;   // by directory
  std::map<std::string, std::string> directory_of_;  // by name of the record
};

Result<std::optional<DoomedDirectory>> Generation::OldAttempt(RepositoryReader* reader,
                                                              const std::string& directory,
                                                              OldMeetings* old) {
  Store* store = env_.store.get();
  DoomedDirectory doomed{.directory = directory};
  doomed.kind = KindOf(options_.participants[0]);
  const auto marker = store->Get(names::Path(directory, names::kMarker), kMaxRecordBytes);
  if (marker.ok()) {
    const auto record = Decode<MarkerRecord>(*marker);
    // The marker is not synced: after a crash it may be empty or torn, and is still ours.
    if (record.ok()) {
      if (record->generation >= number_) return std::optional<DoomedDirectory>();
      doomed.participants.insert(record->participants.begin(), record->participants.end());
    }
    return std::optional(doomed);
  }
  if (!marker.status().Is(Code::kNotFound)) return marker.status();
  ASSIGN_OR_RETURN(const std::vector<NoteRecord> notes, reader->ReadNotes(directory));
  const bool noted =
      std::any_of(notes.begin(), notes.end(),
                  // With a uuid: read whole, and so ours; a removal's, or one that came after it.
                  [](const NoteRecord& note) { return !note.uuid.empty(); });
  if (noted || ours_.contains(directory)) return std::optional(doomed);
  const AttemptRecord* announced = old == nullptr ? nullptr : old->Announced(directory);
  if (announced == nullptr) return std::optional<DoomedDirectory>();
  doomed.participants.insert(announced->participants.begin(), announced->participants.end());
  return std::optional(doomed);
}

Result<std::optional<MarkerRecord>> Generation::ToBeSpared(const std::string& directory) {
  std::optional<MarkerRecord> spared;
  if (!options_.spare) return spared;
  const auto bytes = env_.store->Get(names::Path(directory, names::kMarker), kMaxRecordBytes);
  if (bytes.status().Is(Code::kNotFound)) return spared;
  if (!bytes.ok()) return bytes.status();
  const auto marker = Decode<MarkerRecord>(*bytes);
  if (marker.ok() && options_.spare(*marker)) spared = *marker;
  return spared;
}

Status Generation::SweepSpared() {
  options_.spare = nullptr;
  if (std::exchange(spared_, {}).empty()) return Status::Ok();
  return Sweep();
}

Status Generation::SweepUnfinished(RepositoryReader* reader, const RepositoryView& view,
                                   const std::vector<std::string>& kept, OldMeetings* old,
                                   std::set<std::string>* left) {
  Store* store = env_.store.get();
  for (const std::string& directory : view.unfinished) {
    left->insert(directory);
    // What an overtaken writer claims after our seal is not retired: swept, its name would be free
    // while that writer still works in it. The next opening takes it.
    if (!IsRetired(directory)) continue;
    if (!names::IsCheckpointDirectory(directory)) continue;  // a copy that somebody is making
    ASSIGN_OR_RETURN(const auto doomed, OldAttempt(reader, directory, old));
    // Also an empty one: a save that ended between the directory and its marker may have left it,
    // or somebody may have made it.
    if (!doomed) continue;
    ASSIGN_OR_RETURN(const auto spared, ToBeSpared(directory));
    if (spared) {
      spared_.push_back({.directory = directory, .marker = *spared});
      continue;
    }
    // A manifest that came late is left to the next opening, which judges it.
    const auto gone = DeleteCheckpointDirectory(store, *doomed, kept);
    RETURN_IF_ERROR(UnlessItStays(directory, gone.status()));
    if (gone.ok() && *gone) left->erase(directory);
  }
  return Status::Ok();
}

Status Generation::SweepPools() {
  Store* store = env_.store.get();
  const std::string top(names::kPool);
  ASSIGN_OR_RETURN(const Listing pools, store->List(top));
  bool any = false;
  for (const std::string& pool : pools.prefixes) {
    if (!names::IsPool(pool) || FileName(pool) == std::to_string(number_)) continue;
    any = true;
    // Its owner may still be writing into what lies there, so never reuse, unlink.
    ASSIGN_OR_RETURN(const Listing recycled, store->List(pool));
    for (const ObjectInfo& object : recycled.objects) {
      if (!names::IsRecycled(object.name)) continue;
      RETURN_IF_ERROR(UnlessItStays(object.name, DeleteIfThere(store, object.name)));
    }
    RETURN_IF_ERROR(UnlessItStays(pool, PruneIfEmpty(store, pool)));
  }
  return any ? UnlessItStays(top, PruneIfEmpty(store, top)) : Status::Ok();
}

Status Generation::Sweep() {
  Store* store = env_.store.get();
  env_.Step("open: sweep");
  ASSIGN_OR_RETURN(OldMeetings old, OldMeetings::List(store, number_));
  RepositoryReader reader(store, env_.rules);
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read(ReadFor::kOwning));
  // Uploads that are listed before the fence is read again were begun by older generations: ours
  // has begun none, and a newer one had not opened.
  ASSIGN_OR_RETURN(const std::vector<std::string> uploads, store->ListUnfinished(""));
  RETURN_IF_ERROR(CheckFence());
  for (const std::string& name : uploads) {
    if (!IsCheckpointName(name)) continue;
    ASSIGN_OR_RETURN(const auto spared, ToBeSpared(name.substr(0, name.find('/'))));
    if (spared) continue;
    RETURN_IF_ERROR(store->AbandonUnfinished(name).WithContext("sweep unfinished uploads"));
  }
  std::vector<std::string> kept;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts && !checkpoint.foreign) continue;
    for (const ManifestFile& file : checkpoint.manifest->files) {
      if (!file.ref.empty()) kept.push_back(file.ref);
    }
  }
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.foreign || !checkpoint.removed || !IsRetired(checkpoint.directory)) continue;
    if (!names::IsCheckpointDirectory(checkpoint.directory)) continue;
    const Status gone = DeleteCheckpointDirectory(store, Doom(checkpoint), kept).status();
    RETURN_IF_ERROR(UnlessItStays(checkpoint.directory, gone));
  }
  std::set<std::string> left;
  RETURN_IF_ERROR(SweepUnfinished(&reader, view, kept, &old, &left));
  old.Delete(left);
  RETURN_IF_ERROR(SweepPools());
  // Only readers' time depends on it.
  if (TidyEvery(store) > 0) env_.Step("open: shelves");
  TidyShelves(store, env_.ids).IgnoreError("listings fetch each manifest");
  KeepReserve(store);
  return Status::Ok();
}

}  // namespace cairn
