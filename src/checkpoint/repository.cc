#include "checkpoint/repository.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <unordered_set>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "checkpoint/chain.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/shelves.h"
#include "storage/deep_listing.h"
#include "storage/forwarding_store.h"

namespace cairn {
namespace {

// Passes over a repository that does not stand still. A writer would have to commit and remove in
// each of them.
constexpr int kMaxRounds = 16;

bool IsEngineDirectory(std::string_view name) {
  return name == names::kGenerations || name == names::kPool || name == "log";
}

bool LooksLikeCheckpoint(std::string_view name) {
  return name.starts_with("checkpoint_") || name.starts_with("increment_");
}

std::string_view FileName(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

/// The disk does not give bytes that are there, or we may not look at them. Anything else says
/// nothing of the thing itself: the store cannot be reached, there are no descriptors left.
bool IsUnread(const Status& status) {
  return status.Is(Code::kInternal) || status.Is(Code::kPermissionDenied);
}

/// For owners. `what`: a name inside the repository.
Status RefuseUnread(const Status& status, const std::string& what, std::string_view remedy) {
  return Status(
      status.code(),
      what + " cannot be read (" + std::string(status.message()) + "); " + std::string(remedy),
      status.reason());
}

/// Of a directory whose manifest is no manifest: whether the engine, or a copy of what it made, put
/// anything else there.
bool HoldsEngineNames(Store* store, const std::string& directory) {
  const auto listing = store->List(directory);
  if (!listing.ok()) return true;  // unknown: rather damage than nothing
  const auto is_marker = [](const ObjectInfo& object) {
    return FileName(object.name) == names::kMarker;
  };
  const auto is_engines = [](const std::string& prefix) {
    const std::string_view name = FileName(prefix);
    if (name == names::kModel || name == names::kTables) return true;
    return names::IsUsualParticipant(name);
  };
  return std::ranges::any_of(listing->objects, is_marker) ||
         std::ranges::any_of(listing->prefixes, is_engines);
}

constexpr std::string_view kRecordRemedy =
    "who writes here must know what it says: make it readable (its disk, its permissions), or put "
    "a copy of it in its place, and open again";

/// The numbers of fences and of seals, or what stands in their place.
struct GenerationNumbers {
  std::set<std::uint64_t> fences;
  std::set<std::uint64_t, std::greater<>> seals;

  std::uint64_t Newest() const {
    // A seal, should its fence be lost.
    return std::max(fences.empty() ? 0 : *fences.rbegin(), seals.empty() ? 0 : *seals.begin());
  }
};

Result<GenerationNumbers> ListGenerations(Store* store) {
  RETURN_IF_ERROR(store->Refresh(std::string(names::kGenerations)));
  ASSIGN_OR_RETURN(const Listing listing, store->List(std::string(names::kGenerations)));
  GenerationNumbers numbers;
  for (const ObjectInfo& object : listing.objects) {
    const std::string_view file = FileName(object.name);
    if (const auto fence = names::GenerationOfFence(file)) numbers.fences.insert(*fence);
    if (const auto seal = names::GenerationOfSeal(file)) numbers.seals.insert(*seal);
  }
  return numbers;
}

/// The generation records that decide what counts.
struct GenerationRecords {
  std::uint64_t newest_fence = 0;
  std::optional<SealRecord> seal;         // the newest readable one
  std::unordered_set<std::string> named;  // its commits
  std::uint64_t newest_sealed = 0;        // also of a damaged seal
  std::vector<std::uint64_t> unsealed;    // fences above it with no record in a seal's place
  std::vector<std::string> damaged;

  /// A generation saves only after it was sealed, so a manifest tells of a seal that was lost.
  void NoticeManifest(std::uint64_t generation) {
    if (generation <= newest_sealed) return;
    newest_sealed = generation;
    newest_fence = std::max(newest_fence, generation);
    damaged.push_back(names::Seal(generation));
  }
};

Result<GenerationRecords> ReadGenerations(Store* store, ReadFor purpose) {
  ASSIGN_OR_RETURN(const GenerationNumbers numbers, ListGenerations(store));
  GenerationRecords records;
  records.newest_fence = numbers.Newest();
  for (const std::uint64_t generation : numbers.seals) {
    const std::string name = names::Seal(generation);
    auto bytes = store->Get(name, kMaxRecordBytes);
    // Readers bridge it as a damaged one. It may void a removal, which only its owner may not miss.
    const bool unread = bytes.status().Is(Code::kInternal);
    if (unread && purpose == ReadFor::kOwning) {
      return RefuseUnread(bytes.status(), name, kRecordRemedy);
    }
    if (!bytes.ok() && !unread) return bytes.status().WithContext("read " + name);
    auto seal = bytes.ok() ? Decode<SealRecord>(*bytes) : bytes.status();
    if (bytes.ok() && !seal.ok()) {
      const auto closed = Decode<ClosedRecord>(*bytes);
      if (closed.ok() && closed->generation == generation) continue;
    }
    records.newest_sealed = std::max(records.newest_sealed, generation);
    if (seal.ok() && seal->generation == generation) {
      records.named.insert(seal->commits.begin(), seal->commits.end());
      records.seal = *std::move(seal);
      break;
    }
    records.damaged.push_back(name);
  }
  for (const std::uint64_t fence : numbers.fences) {
    if (fence > records.newest_sealed && !numbers.seals.contains(fence)) {
      records.unsealed.push_back(fence);
    }
  }
  return records;
}

/// docs/protocol.md, "What counts". A damaged or lost newest seal is bridged by the newest readable
/// one: then all manifests of the generations from that one on count, which can only add commits
/// that the lost seal might have left out, never lose one.
bool CountsBySeal(const GenerationRecords& records, const Manifest& manifest,
                  const ProtocolRules& rules) {
  if (records.newest_sealed == 0) return false;
  const std::uint64_t generation = manifest.CommitGeneration();
  if (!records.seal) return generation <= records.newest_sealed;
  const SealRecord& seal = *records.seal;
  if (generation >= seal.generation && generation <= records.newest_sealed) return true;
  const auto named = [&](const std::string& id) { return records.named.contains(id); };
  // The hole that judging by the committing generation closes: by what it replaces, it would count
  // also after its committer was overtaken and the increment deleted.
  if (!rules.judge_by_commit_generation && named(manifest.replaces)) return true;
  return named(manifest.id);
}

void JudgeNotes(const GenerationRecords& records, Checkpoint* checkpoint) {
  for (const NoteRecord& note : checkpoint->notes) {
    switch (note.kind) {
      case NoteKind::kPin:
        checkpoint->pinned = true;
        break;
      case NoteKind::kUnpin:
        checkpoint->pinned = false;
        break;
      case NoteKind::kRemove: {
        // Void when a seal of a later generation names the checkpoint: its remover was overtaken
        // before it deleted anything.
        const bool sealed_later = records.seal && records.seal->generation > note.generation &&
                                  records.named.contains(checkpoint->manifest->id);
        if (!sealed_later) checkpoint->removed = true;
        break;
      }
      case NoteKind::kDamaged:
        checkpoint->reported_damaged = true;
        break;
      case NoteKind::kScore:
      case NoteKind::kLabel:
        break;
    }
  }
}

/// Answers from listings of the whole repository, made before: where notes lie, for few checkpoints
/// have any; and manifests that are on a shelf. May be used from several threads.
///
/// Whoever owns a repository must see notes before manifests (RepositoryReader::Look): the notes
/// are those of a first listing, a manifest on a shelf is taken for there when a second one names
/// it. One listing would not do: it comes in pages, manifests before notes, and a removal may end
/// in between. Who only reads does with one: what it finds was there a moment ago, and readers have
/// to bear its going anyway. For both a note that was listed and is gone when it is read was
/// perhaps a removal's, so that the manifest itself is asked for.
class ReadAhead final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  Status Prepare(const std::vector<std::string>& directories, ReadFor purpose,
                 const ProtocolRules& rules) {
    auto* deep = dynamic_cast<DeepListingStore*>(inner());
    if (deep == nullptr) return Status::Ok();
    const std::size_t many = deep->listing_costs().many_directories;
    if (many == 0 || directories.size() < many) return Status::Ok();
    const auto list = [&] {
      return deep->ListAll(directories, DeepListingLimit(directories.size()));
    };
    auto all = list();
    if (all.status().Is(Code::kResourceExhausted) || all.status().Is(Code::kUnimplemented)) {
      return Status::Ok();  // one by one
    }
    if (!all.ok()) return all.status();
    manifests_ = ReadShelves(inner(), *all, rules.compare_tags);
    if (!manifests_.empty() && purpose == ReadFor::kOwning && rules.notes_before_manifest) {
      const auto later = list();
      if (later.status().Is(Code::kResourceExhausted)) {
        manifests_.clear();
      } else if (!later.ok()) {
        return later.status();
      } else {
        KeepCurrent(*later, rules.compare_tags, &manifests_);
      }
    }
    notes_.emplace();
    for (TaggedObject& object : *all) {
      const std::string_view directory = DirectoryOfNote(object.name);
      if (directory.empty()) continue;
      const std::string key(directory);
      (*notes_)[key].objects.push_back({.name = std::move(object.name), .bytes = object.bytes});
    }
    return Status::Ok();
  }
  Result<Listing> List(const std::string& prefix) override {
    if (!notes_ || !prefix.ends_with("/notes")) return inner()->List(prefix);
    const auto it = notes_->find(prefix);
    return it == notes_->end() ? Listing() : it->second;
  }
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    const auto it = manifests_.find(name);
    if (it != manifests_.end() && !IsDoubtful(name)) return it->second.bytes;
    auto bytes = inner()->Get(name, limit);
    const std::string_view notes = DirectoryOfNote(name);
    if (!notes.empty() && bytes.status().Is(Code::kNotFound)) Doubt(notes);
    return bytes;
  }

 private:
  /// "checkpoint_000040/notes" of a name in it; "" of anything else.
  static std::string_view DirectoryOfNote(std::string_view name) {
    const std::size_t slash = name.rfind('/');
    if (slash == name.npos || !name.substr(0, slash).ends_with("/notes")) return {};
    return name.substr(0, slash);
  }
  void Doubt(std::string_view notes) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    doubtful_.insert(names::Path(notes.substr(0, notes.rfind('/')), names::kManifest));
  }
  bool IsDoubtful(const std::string& manifest) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return doubtful_.contains(manifest);
  }

  std::optional<std::map<std::string, Listing>> notes_;  // by directory of notes
  ShelvedManifests manifests_;
  Mutex mu_;
  std::set<std::string> doubtful_ GUARDED_BY(mu_);  // manifests
};

}  // namespace

Value Checkpoint::Metrics() const {
  Value metrics = manifest->metrics;
  Value::Object* object = metrics.if_object();
  if (object == nullptr) return metrics;
  for (const NoteRecord& note : notes) {
    if (note.kind != NoteKind::kScore) continue;
    if (const auto* late = note.values.if_object()) {
      for (const auto& [key, value] : *late) (*object)[key] = value;
    }
  }
  return metrics;
}

const Checkpoint* RepositoryView::Latest() const {
  const Checkpoint* latest = nullptr;
  for (const Checkpoint& checkpoint : checkpoints) {
    if (checkpoint.counts) latest = &checkpoint;  // ordered by (generation, sequence)
  }
  return latest;
}

const Checkpoint* RepositoryView::Find(std::string_view id) const {
  const auto it = std::find_if(checkpoints.rbegin(), checkpoints.rend(),
                               [&](const Checkpoint& one) { return one.manifest->id == id; });
  return it == checkpoints.rend() ? nullptr : &*it;
}

Status RepositoryView::CheckAllRead() const {
  for (const DamagedCheckpoint& checkpoint : damaged) {
    if (!checkpoint.unread) continue;
    return RefuseUnread(checkpoint.status, checkpoint.directory,
                        "it may be whole and is not passed over: make it readable (its disk, its "
                        "permissions), or move the directory elsewhere, and try again");
  }
  return Status::Ok();
}

Result<RepositoryRecord> RepositoryReader::ReadRecord(ReadFor purpose) {
  auto bytes = store_->Get(std::string(names::kRepository), kMaxRecordBytes);
  const bool unread = bytes.status().Is(Code::kInternal);
  // It names features that who writes has to know.
  if (unread && purpose == ReadFor::kOwning) {
    return RefuseUnread(bytes.status(), std::string(names::kRepository), kRecordRemedy);
  }
  if (!bytes.ok() && !bytes.status().Is(Code::kNotFound) && !unread) return bytes.status();
  Result<RepositoryRecord> record =
      bytes.ok() ? Decode<RepositoryRecord>(*bytes)
      : unread   ? bytes.status()
                 : NotFoundError("\"" + store_->Describe() +
                                 "\" is not a checkpoint repository (it has no cairn.json)");
  if (record.ok() || (bytes.ok() && !record.status().Is(Code::kCorruption))) return record;

  // The job is in every fence and every manifest as well, and neither is made before cairn.json: a
  // damaged or lost one loses nothing.
  ASSIGN_OR_RETURN(const std::uint64_t newest, NewestFence());
  std::string from;
  RepositoryRecord rebuilt;
  for (std::uint64_t generation = newest; generation > 0 && from.empty(); --generation) {
    auto fence_bytes = store_->Get(names::Fence(generation), kMaxRecordBytes);
    auto fence = fence_bytes.ok() ? Decode<FenceRecord>(*fence_bytes) : fence_bytes.status();
    if (!fence.ok()) continue;
    rebuilt.job = fence->job;
    from = names::Fence(generation);
  }
  if (newest > 0 && from.empty()) {
    ASSIGN_OR_RETURN(const Listing root, store_->List(""));
    for (auto it = root.prefixes.rbegin(); it != root.prefixes.rend() && from.empty(); ++it) {
      const auto manifest = LooksLikeCheckpoint(*it) ? ReadManifest(*it) : NotFoundError("");
      if (!manifest.ok()) continue;
      rebuilt.job = manifest->job;
      from = *it;
    }
  }
  if (!from.empty()) {
    LogWarning("\"" + store_->Describe() + "\": cairn.json is " +
               (bytes.ok() ? "damaged"
                : unread   ? "unreadable"
                           : "missing") +
               "; the job id was taken from " + from);
    return rebuilt;
  }
  if (bytes.status().Is(Code::kNotFound)) {
    const Status checkpoint = RefuseCheckpoint();
    if (!checkpoint.ok()) return NotFoundError(std::string(checkpoint.message()));
  }
  if (!bytes.ok()) return record;
  return record.status().WithContext("\"" + store_->Describe() + "\": cairn.json");
}

Status RepositoryReader::RefuseCheckpoint() {
  const auto bytes = store_->Get(std::string(names::kManifest), kMaxManifestBytes);
  const auto manifest = bytes.ok() ? DecodeManifest(*bytes) : bytes.status();
  if (!manifest.ok()) return Status::Ok();
  return InvalidArgumentError("\"" + store_->Describe() + "\" is a single checkpoint (of step " +
                              std::to_string(manifest->step) +
                              "), not a repository: name the directory that it is in, or restore "
                              "this one by its path");
}

Result<std::uint64_t> RepositoryReader::NewestFence() {
  ASSIGN_OR_RETURN(const GenerationNumbers numbers, ListGenerations(store_));
  return numbers.Newest();
}

Result<Manifest> RepositoryReader::ReadManifest(const std::string& directory) {
  return ReadManifest(directory, /*ours=*/nullptr);
}

Result<Manifest> RepositoryReader::ReadManifest(const std::string& directory, bool* ours) {
  const std::string name = names::Path(directory, names::kManifest);
  ASSIGN_OR_RETURN(const std::string bytes, store_->Get(name, kMaxManifestBytes));
  auto manifest = DecodeManifest(bytes);
  if (manifest.ok()) return manifest;
  if (ours != nullptr && manifest.status().Is(Code::kCorruption)) {
    *ours = MayHaveBeenManifest(bytes) || HoldsEngineNames(store_, directory);
  }
  return manifest.status().WithContext(name);
}

Result<std::vector<NoteRecord>> RepositoryReader::ReadNotes(const std::string& directory) {
  return ReadNotes(directory, /*unread_are_pins=*/false);
}

Result<std::vector<NoteRecord>> RepositoryReader::ReadNotes(const std::string& directory,
                                                            bool unread_are_pins) {
  ASSIGN_OR_RETURN(const Listing listing, store_->List(names::Path(directory, "notes")));
  std::vector<NoteRecord> notes;
  for (const ObjectInfo& object : listing.objects) {
    if (!names::NumberOfNote(FileName(object.name))) continue;
    auto bytes = store_->Get(object.name, kMaxRecordBytes);
    if (bytes.status().Is(Code::kNotFound)) continue;  // removed together with its checkpoint
    const bool unread = unread_are_pins && bytes.status().Is(Code::kInternal);
    if (!bytes.ok() && !unread) return bytes.status();
    auto note = bytes.ok() ? Decode<NoteRecord>(*bytes) : bytes.status();
    if (!note.ok()) {
      // A note whose kind cannot be read may be a pin: keep the checkpoint rather than guess.
      LogWarning(object.name + (unread ? " cannot be read" : " is damaged") +
                 " and is taken for a pin");
      NoteRecord unknown;
      unknown.kind = NoteKind::kPin;
      unknown.number = notes.empty() ? 1 : notes.back().number + 1;
      notes.push_back(unknown);
      continue;
    }
    notes.push_back(*std::move(note));
  }
  std::sort(notes.begin(), notes.end(),
            [](const NoteRecord& a, const NoteRecord& b) { return a.number < b.number; });
  return notes;
}

std::vector<NoteRecord> RepositoryReader::NotesAbout(std::string_view id,
                                                     std::vector<NoteRecord> notes) const {
  if (!rules_.notes_name_checkpoint) return notes;
  std::erase_if(notes, [&](const NoteRecord& note) {
    return !note.checkpoint.empty() && note.checkpoint != id;
  });
  return notes;
}

Result<std::vector<NoteRecord>> RepositoryReader::ReadNotes(const std::string& directory,
                                                            std::string_view id) {
  ASSIGN_OR_RETURN(std::vector<NoteRecord> notes, ReadNotes(directory));
  return NotesAbout(id, std::move(notes));
}

Result<bool> RepositoryReader::HasMoved(const Listing& root,
                                        const std::vector<std::string>& unfinished) {
  for (const std::string& directory : unfinished) {
    // This machine may have looked in while the save was under way, and remember that.
    if (names::IsCheckpointDirectory(directory)) RETURN_IF_ERROR(store_->Refresh(directory));
    const auto stat = store_->Stat(names::Path(directory, names::kManifest));
    // Something may have that name and be no file: a pipe, a socket.
    if (stat.ok() && !ReadManifest(directory).status().Is(Code::kNotFound)) return true;
    if (!stat.ok() && !stat.status().Is(Code::kNotFound)) return stat.status();
  }
  RETURN_IF_ERROR(store_->Refresh(""));
  ASSIGN_OR_RETURN(const Listing now, store_->List(""));
  return now.prefixes != root.prefixes;
}

RepositoryReader::Found RepositoryReader::Look(const std::string& directory, ReadFor purpose) {
  // A removal writes its note, deletes the manifest, then the notes. So the notes are read first: a
  // manifest that is there afterwards was not being removed when they were read.
  Found found;
  const bool lenient = purpose == ReadFor::kReading;
  const bool notes_first = LooksLikeCheckpoint(directory) && rules_.notes_before_manifest;
  if (notes_first) {
    if (purpose == ReadFor::kOwning && names::IsCheckpointDirectory(directory)) {
      if (Status seen = store_->Refresh(names::Path(directory, "notes")); !seen.ok()) {
        found.notes = std::move(seen);
        return found;
      }
    }
    found.notes = ReadNotes(directory, lenient);
    if (!found.notes.ok()) return found;
  }
  found.manifest = ReadManifest(directory, &found.ours);
  if (found.manifest.ok() && !notes_first) found.notes = ReadNotes(directory, lenient);
  return found;
}

Status RepositoryReader::Add(const std::string& directory, Found found,
                             RepositoryView* view) const {
  // Other programs have files of that name too, also in directories that are called like ours: only
  // what was ours can be damaged. A copy of ours may have any name.
  const bool own_copy = found.manifest.ok() && found.manifest->job == view->record.job;
  const bool ours = (LooksLikeCheckpoint(directory) && found.ours) || own_copy;
  const Status& failed = found.notes.ok() ? found.manifest.status() : found.notes.status();
  if (failed.ok()) {
    Checkpoint checkpoint;
    checkpoint.directory = directory;
    checkpoint.manifest = std::make_shared<const Manifest>(*std::move(found.manifest));
    checkpoint.foreign = checkpoint.manifest->job != view->record.job;
    checkpoint.notes = NotesAbout(checkpoint.manifest->id, *std::move(found.notes));
    view->checkpoints.push_back(std::move(checkpoint));
  } else if (failed.Is(Code::kNotFound)) {
    if (ours) view->unfinished.push_back(directory);
  } else if (failed.Is(Code::kCorruption) || failed.Is(Code::kUnimplemented)) {
    if (ours) view->damaged.push_back({directory, failed});
  } else if (ours && IsUnread(failed)) {
    // What somebody called "checkpoint_old" need not be ours; and is not, where we may not look.
    const bool unread = own_copy || names::IsCheckpointDirectory(directory);
    if (!unread && failed.Is(Code::kPermissionDenied)) return Status::Ok();
    view->damaged.push_back({directory, failed, unread});
  } else if (ours || failed.Is(Code::kUnavailable)) {
    return failed;
  }
  return Status::Ok();
}

Result<RepositoryView> RepositoryReader::Read(ReadFor purpose) {
  for (int round = 0;; ++round) {
    RepositoryView view;
    ASSIGN_OR_RETURN(view.record, ReadRecord(purpose));
    ASSIGN_OR_RETURN(GenerationRecords records, ReadGenerations(store_, purpose));
    RETURN_IF_ERROR(store_->Refresh(""));
    ASSIGN_OR_RETURN(const Listing root, store_->List(""));
    std::vector<std::string> directories;
    for (const std::string& directory : root.prefixes) {
      if (!IsEngineDirectory(directory)) directories.push_back(directory);
    }
    // A checkpoint that was moved to where we may not look is not gone.
    const std::size_t reachable = directories.size();
    std::copy_if(root.unreachable.begin(), root.unreachable.end(), std::back_inserter(directories),
                 LooksLikeCheckpoint);
    std::vector<std::optional<Found>> found(directories.size());
    ReadAhead ahead(store_);
    RETURN_IF_ERROR(ahead.Prepare(directories, purpose, rules_));
    RepositoryReader looker(&ahead, rules_);
    ForEachRequest(*store_, directories.size(),
                   [&](std::size_t i) { found[i] = looker.Look(directories[i], purpose); });
    const std::uint64_t listed_seal = records.newest_sealed;
    for (std::size_t i = 0; i < directories.size(); ++i) {
      if (i >= reachable && found[i]->manifest.status().Is(Code::kNotFound) &&
          found[i]->notes.ok()) {
        continue;  // a link to nothing
      }
      RETURN_IF_ERROR(Add(directories[i], *std::move(found[i]), &view));
    }
    if (purpose == ReadFor::kOwning) RETURN_IF_ERROR(view.CheckAllRead());
    for (const Checkpoint& checkpoint : view.checkpoints) {
      if (!checkpoint.foreign) records.NoticeManifest(checkpoint.manifest->CommitGeneration());
    }
    bool removals = false;
    for (Checkpoint& checkpoint : view.checkpoints) {
      JudgeNotes(records, &checkpoint);
      removals = removals || checkpoint.removed;
      checkpoint.counts =
          !checkpoint.foreign && !checkpoint.removed &&
          (CountsBySeal(records, *checkpoint.manifest, rules_) || !rules_.readers_obey_seals);
    }
    std::sort(view.checkpoints.begin(), view.checkpoints.end(),
              [this](const Checkpoint& a, const Checkpoint& b) {
                if (!rules_.latest_by_sequence && a.manifest->step != b.manifest->step) {
                  return a.manifest->step < b.manifest->step;
                }
                // What compact wrote stands behind what it replaces, should both be there; and an
                // original behind copies of it that somebody made.
                const auto place = [](const Checkpoint& one) {
                  const Manifest& m = *one.manifest;
                  return std::tuple(m.generation, m.sequence, m.compacted,
                                    names::IsCheckpointDirectory(one.directory));
                };
                return place(a) < place(b);
              });
    // A seal published while we listed changes what counts.
    ASSIGN_OR_RETURN(const GenerationRecords after, ReadGenerations(store_, purpose));
    if (after.newest_sealed != listed_seal && round < kMaxRounds) continue;
    // So does a checkpoint that was committed after we looked for it: the one that it made
    // superfluous may be gone already, and we would see neither. Or we see an increment and not
    // what it builds on.
    if (rules_.reread_when_moved &&
        (removals || !view.unfinished.empty() || HasBrokenChain(view.checkpoints))) {
      ASSIGN_OR_RETURN(const bool moved, HasMoved(root, view.unfinished));
      if (moved && round < kMaxRounds) continue;
    }
    view.newest_fence = records.newest_fence;
    view.newest_seal = std::move(records.seal);
    view.unsealed = std::move(records.unsealed);
    view.damaged_records = std::move(records.damaged);
    return view;
  }
}

CheckpointInfo MakeInfo(const Store& store, const Checkpoint& checkpoint) {
  const Manifest& manifest = *checkpoint.manifest;
  CheckpointInfo info;
  info.id = manifest.id;
  info.step = manifest.step;
  info.kind = KindName(manifest.kind);
  info.path = store.Describe() + "/" + checkpoint.directory;
  info.bytes = manifest.Bytes();
  info.metrics = checkpoint.Metrics();
  info.metadata = manifest.metadata;
  info.counters = manifest.counters;
  info.time = manifest.time;
  info.chain = manifest.chain;
  info.parent = manifest.parent;
  info.base = manifest.base;
  for (const ManifestTable& table : manifest.tables) {
    info.tables.push_back({table.name, table.dim, table.dtype, table.rows, table.deleted});
  }
  info.generation = manifest.generation;
  info.sequence = manifest.sequence;
  info.pinned = checkpoint.pinned;
  info.foreign = checkpoint.foreign;
  return info;
}

}  // namespace cairn
