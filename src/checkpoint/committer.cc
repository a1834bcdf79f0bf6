#include "checkpoint/committer.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/names.h"
#include "checkpoint/removal.h"
#include "checkpoint/retention.h"

// One save, and why in this order (PROTOCOL.md, "Saving"):
//
//  1. Claim a directory: an exclusive marker keeps an older writer, who may still be alive, out of
//     it. With several participants the attempt record tells the others its name.
//  2. Write all files, sync their bytes, sync all names that lead to them. Only then may anything
//     refer to them.
//  3. Publish the part (several participants), and when all parts are there the manifest. The
//     manifest is create-only and durable when the publish returns: the commit.
//  4. Re-read the fence. A newer opener lists manifests after it published its fence; if there is
//     no newer fence now, every later opener will find this manifest and seal it. So it counts for
//     ever, and may be acknowledged. If there is one, it may or may not have seen it: Fenced.

namespace cairn {
namespace {

std::optional<std::int64_t> SerialOf(std::string_view directory) {
  constexpr std::string_view kPrefix = "checkpoint_";
  if (!directory.starts_with(kPrefix)) return std::nullopt;
  directory.remove_prefix(kPrefix.size());
  std::int64_t serial = 0;
  const auto [end, error] =
      std::from_chars(directory.data(), directory.data() + directory.size(), serial);
  if (error != std::errc() || (end != directory.data() + directory.size() && *end != '-')) {
    return std::nullopt;
  }
  return serial;
}

}  // namespace

Result<std::unique_ptr<Committer>> Committer::Open(const Environment& env, Generation* generation,
                                                   CommitterOptions options) {
  auto committer = std::unique_ptr<Committer>(new Committer(env, generation, std::move(options)));
  committer->checkpoints_ = generation->sealed();
  ASSIGN_OR_RETURN(const Listing root, env.store->List(""));
  std::set<std::string> taken(root.prefixes.begin(), root.prefixes.end());
  taken.insert(generation->retired().begin(), generation->retired().end());
  for (const std::string& directory : taken) {
    committer->directories_.insert(directory);
    if (const auto serial = SerialOf(directory)) {
      committer->next_serial_ = std::max(committer->next_serial_, *serial + 1);
    }
  }
  return committer;
}

Result<std::uint64_t> Committer::LastDecidedAttempt() {
  if (!generation_->readmitted()) return std::uint64_t{0};
  Store* store = env_.store.get();
  for (std::uint64_t number = 1;; ++number) {
    auto bytes = store->Get(names::Attempt(generation_->number(), number), kMaxRecordBytes);
    if (bytes.status().Is(Code::kNotFound)) return number - 1;
    if (!bytes.ok()) return bytes.status();
    ASSIGN_OR_RETURN(const AttemptRecord attempt, Decode<AttemptRecord>(*bytes));
    if (attempt.skipped) continue;
    bool decided = false;
    for (const std::string_view outcome : {names::kManifest, names::kAbandoned}) {
      const auto stat = store->Stat(names::Path(attempt.directory, outcome));
      if (!stat.ok() && !stat.status().Is(Code::kNotFound)) return stat.status();
      decided = decided || stat.ok();
    }
    if (!decided) return number - 1;
  }
}

std::uint64_t Committer::pooled_bytes() const {
  std::uint64_t bytes = 0;
  for (const ObjectInfo& object : pool_) bytes += object.bytes;
  return bytes;
}

std::string Committer::NextDirectory(const SaveTask& task, int* copy) {
  for (;;) {
    ++*copy;
    const std::int64_t number = options_.serial_names ? next_serial_ : task.request.step;
    std::string name =
        names::CheckpointDirectory(/*increment=*/false, options_.serial_names, number, *copy);
    if (directories_.insert(name).second) {
      if (options_.serial_names) ++next_serial_;
      return name;
    }
  }
}

Manifest Committer::NewManifest(const SaveTask& task, std::string attempt) {
  Manifest manifest;
  manifest.id = env_.ids->NewUuid();
  manifest.job = generation_->job();
  manifest.generation = generation_->number();
  manifest.sequence = ++sequence_;
  manifest.attempt = std::move(attempt);
  manifest.step = task.request.step;
  manifest.parent = parent_;
  manifest.participants = options_.participants;
  manifest.counters = task.request.counters;
  manifest.metrics = task.request.metrics;
  manifest.metadata = task.request.metadata;
  manifest.lineage = task.request.lineage;
  if (options_.private_parts) {
    if (Value::Object* lineage = manifest.lineage.if_object()) {
      (*lineage)["private"] =
          Value::Object{{"rank", options_.rank}, {"world_size", options_.world_size}};
    }
  }
  manifest.time = env_.clock->WallNanos();
  return manifest;
}

Status Committer::Write(const SaveTask& task, const std::byte* arena, const std::string& directory,
                        const std::string& marker, WrittenFiles* written) {
  const ShareableFiles shareable =
      checkpoints_.empty()
          ? ShareableFiles()
          : ShareableFiles(checkpoints_.back().directory, *checkpoints_.back().manifest);
  FileWriterInput input;
  input.plan = &task.plan;
  input.request = &task.request;
  input.arena = arena;
  input.directory = directory;
  input.participant = self();
  input.shareable = &shareable;
  input.history = &history_;
  input.pool = &pool_;
  input.recycle_from_bytes = options_.recycle_from_bytes;
  input.marker = marker;
  input.mode = options_.mode;
  RETURN_IF_ERROR(WriteFiles(env_, input, &ring_, &task.state->progress, written));
  task.state->MarkCopied(Status::Ok());  // a save that streams has read all of its tensors now
  return Status::Ok();
}

Status Committer::PublishManifest(const std::string& directory, const Manifest& manifest,
                                  bool* unknown) {
  *unknown = false;
  RETURN_IF_ERROR(ValidateManifest(manifest));
  env_.Step("save: manifest");
  const std::string name = names::Path(directory, names::kManifest);
  Status published = PublishRecord(env_, name, EncodeManifest(manifest));
  if (published.ok() || published.Is(Code::kAlreadyExists)) return published;
  // The manifest may be there and not durable. It must not outlive its files, nor count by chance
  // later: take it back first, durably. With several participants the others may have seen it and
  // acknowledged: then it stays, and its files with it. So it does where it may still arrive when
  // nobody looks any more; the next opening sweeps the files, and a manifest that comes after its
  // seal does not count.
  Status settled;
  if (MayAppearLate(env_, published)) {
    settled = UnavailableError("the request may still arrive");
  } else if (collective()) {
    settled = env_.store->Stat(name).status();
    if (settled.ok()) settled = UnavailableError("it is there, perhaps not for good");
  } else {
    settled = env_.store->Delete(name);
    if (settled.ok()) settled = env_.store->SyncNames(directory, "withdrawn manifest");
  }
  if (settled.ok() || settled.Is(Code::kNotFound)) return published;
  *unknown = true;
  Checkpoint checkpoint;
  checkpoint.directory = directory;
  checkpoint.manifest = std::make_shared<const Manifest>(manifest);
  uncertain_.push_back(std::move(checkpoint));
  return UnavailableError(std::string(published.message()) +
                          "; whether the checkpoint counts is unknown (" +
                          std::string(settled.message()) + ")");
}

void Committer::CleanUp(const std::string& directory, const std::vector<std::string>& created) {
  // The marker was made first and goes last: while anything is left, the next opening must see
  // whose it is.
  for (auto it = created.rbegin(); it != created.rend(); ++it) {
    const Status deleted = env_.store->Delete(*it);
    if (!deleted.ok() && !deleted.Is(Code::kNotFound)) return;
  }
  env_.store->PruneDirectories(directory).IgnoreError("empty directories are harmless");
}

Result<CheckpointInfo> Committer::Commit(const SaveTask& task, const std::byte* arena) {
  std::string directory;
  auto manifest = !collective()  ? CommitAlone(task, arena, &directory)
                  : committing() ? CommitTogether(task, arena, &directory)
                                 : Join(task, arena, &directory);
  if (!manifest.ok()) return manifest.status();

  Checkpoint checkpoint;
  checkpoint.directory = directory;
  checkpoint.manifest = std::make_shared<const Manifest>(*std::move(manifest));
  checkpoint.counts = true;
  env_.Step("save: fence");
  if (env_.rules.reread_fence_before_ack) {
    const Status fence = generation_->CheckFence();
    if (!fence.ok()) {
      // Committed, but the look failed: not acknowledged, and retention's all the same.
      if (!fence.Is(Code::kAborted)) uncertain_.push_back(std::move(checkpoint));
      return fence;
    }
  }
  CheckpointInfo info = MakeInfo(*env_.store, checkpoint);
  Remember(std::move(checkpoint));
  return info;
}

void Committer::Remember(Checkpoint checkpoint) {
  parent_ = checkpoint.manifest->id;
  last_bytes_ = checkpoint.manifest->Bytes();
  // Objects that this save did not take are of sizes that are no longer written.
  for (const ObjectInfo& object : pool_) {
    env_.store->Delete(object.name).IgnoreError("the pool is swept at the next opening");
  }
  pool_.clear();
  if (!committing()) checkpoints_.clear();  // only what the next save may share
  // Now that a newer one is durable, commits of unknown outcome are retention's like all others.
  for (Checkpoint& uncertain : std::exchange(uncertain_, {})) {
    const auto manifest = env_.store->Stat(names::Path(uncertain.directory, names::kManifest));
    if (manifest.status().Is(Code::kNotFound)) continue;
    uncertain.counts = true;
    checkpoints_.push_back(std::move(uncertain));
  }
  checkpoints_.push_back(std::move(checkpoint));
}

Result<Manifest> Committer::CommitAlone(const SaveTask& task, const std::byte* arena,
                                        std::string* directory) {
  const std::string attempt = env_.ids->NewUuid();
  MarkerRecord marker;
  marker.generation = generation_->number();
  marker.attempt = attempt;
  WrittenFiles written;
  for (int copy = 0;;) {
    *directory = NextDirectory(task, &copy);
    written = {};
    const Status status = Write(task, arena, *directory, Encode(marker), &written);
    if (status.ok()) break;
    CleanUp(*directory, written.created);
    // Only the claim answers so: the directory is somebody else's.
    if (status.Is(Code::kAlreadyExists) && written.created.empty()) continue;
    directories_.erase(*directory);
    return status;
  }
  Manifest manifest = NewManifest(task, attempt);
  manifest.files = std::move(written.files);
  bool unknown = false;
  const Status published = PublishManifest(*directory, manifest, &unknown);
  if (!published.ok()) {
    if (!unknown) CleanUp(*directory, written.created);
    return published;
  }
  Learn(std::move(written.history));
  return manifest;
}

void Committer::Learn(SaveHistory written) {
  bool same = written.size() == history_.size();
  for (auto& [name, tensor] : written) {
    const auto before = history_.find(name);
    tensor.changed = before == history_.end() || before->second.hash != tensor.hash;
    same = same && before != history_.end() && before->second.changed == tensor.changed;
  }
  if (!same) ++history_version_;
  history_ = std::move(written);
}

Result<std::string> Committer::ClaimDirectory(const SaveTask& task, const std::string& attempt) {
  MarkerRecord marker;
  marker.generation = generation_->number();
  marker.attempt = attempt;
  for (int copy = 0;;) {
    std::string directory = NextDirectory(task, &copy);
    env_.Step("save: claim");
    const Status claimed =
        PublishForTheLiving(env_, names::Path(directory, names::kMarker), Encode(marker));
    if (claimed.ok()) return directory;
    if (!claimed.Is(Code::kAlreadyExists)) return claimed;
  }
}

Result<Manifest> Committer::CommitTogether(const SaveTask& task, const std::byte* arena,
                                           std::string* directory) {
  AttemptRecord record;
  record.number = task.number;
  record.attempt = env_.ids->NewUuid();
  record.step = task.request.step;
  record.participants = options_.participants;
  auto begin = [&]() -> Status {
    RETURN_IF_ERROR(generation_->CheckFence());
    RETURN_IF_ERROR(generation_->AdmitRestarted(parent_));
    ASSIGN_OR_RETURN(record.directory, ClaimDirectory(task, record.attempt));
    return Status::Ok();
  };
  if (const Status begun = begin(); !begun.ok()) {
    AnnounceSkipped(task).IgnoreError("the others give up at their own deadline");
    return begun;
  }
  *directory = record.directory;
  Attempt attempt(env_, generation_, options_.participants, options_.self, options_.deadline);
  WrittenFiles written;
  written.created.push_back(names::Path(record.directory, names::kMarker));
  std::vector<std::string> missing = {self()};
  bool announced = false;
  bool unknown = false;
  auto commit = [&]() -> Result<Manifest> {
    RETURN_IF_ERROR(attempt.Announce(record));
    announced = true;
    RETURN_IF_ERROR(Write(task, arena, record.directory, "", &written));
    PartRecord part;
    part.files = written.files;
    RETURN_IF_ERROR(attempt.PublishPart(record, std::move(part)));
    ASSIGN_OR_RETURN(std::vector<PartRecord> parts, attempt.WaitParts(record, parent_, &missing));
    Manifest manifest = NewManifest(task, record.attempt);
    for (PartRecord& one : parts) {
      std::move(one.files.begin(), one.files.end(), std::back_inserter(manifest.files));
    }
    RETURN_IF_ERROR(WriteIndex(record.directory, &manifest.files));
    RETURN_IF_ERROR(PublishManifest(record.directory, manifest, &unknown));
    return manifest;
  };
  auto manifest = commit();
  if (!manifest.ok()) {
    if (manifest.status().Is(Code::kAborted) || unknown) return manifest;  // others clean up
    // Only a deadline says that others are missing; any other failure is our own.
    if (!manifest.status().Is(Code::kDeadlineExceeded)) missing = {self()};
    if (!announced) {
      // Harmless when the announcement is there all the same: of two records the first stays.
      AnnounceSkipped(task).IgnoreError("the others give up at their own deadline");
    }
    attempt.Abandon(record, missing).IgnoreError("the others give up at their own deadline");
    // All of its data goes at once; the record that says why stays until the next opening.
    for (const std::string_view sub : {names::kModel, names::kTables, names::kFiles}) {
      DeleteDataBelow(names::Path(record.directory, sub));
    }
    for (const std::string& participant : options_.participants) {
      DeleteDataBelow(names::Path(record.directory, participant));
    }
    return manifest;
  }
  Learn(std::move(written.history));
  return manifest;
}

void Committer::DeleteDataBelow(const std::string& prefix) {
  auto listing = env_.store->List(prefix);
  if (!listing.ok()) return;
  for (const ObjectInfo& object : listing->objects) {
    env_.store->Delete(object.name).IgnoreError("what stays is swept at the next opening");
  }
  for (const std::string& sub : listing->prefixes) DeleteDataBelow(sub);
}

Result<Manifest> Committer::Join(const SaveTask& task, const std::byte* arena,
                                 std::string* directory) {
  Attempt attempt(env_, generation_, options_.participants, options_.self, options_.deadline);
  ASSIGN_OR_RETURN(const AttemptRecord record,
                   attempt.WaitAnnounced(task.number, task.request.step));
  if (record.skipped) {
    return CancelledError("skipped by " + options_.participants[0] +
                          ": its save before it is still being written, or it cannot save");
  }
  *directory = record.directory;
  WrittenFiles written;
  const Status wrote = Write(task, arena, record.directory, "", &written);
  if (!wrote.ok()) {
    // Tell the others at once that nothing will come from here. The committer then deletes what is
    // there. We do not: a process that replaced us goes by the same names, its part may be
    // committed, and on object stores it shows only at the end whose bytes a name has.
    attempt.Abandon(record, {self()}).IgnoreError("they give up at the deadline");
    return wrote;
  }
  PartRecord part;
  part.files = written.files;
  if (const Status published = attempt.PublishPart(record, std::move(part)); !published.ok()) {
    // The part may be there all the same, and the checkpoint be committed with it: its files stay.
    attempt.Abandon(record, {self()}).IgnoreError("they give up at the deadline");
    return published;
  }
  ASSIGN_OR_RETURN(Manifest manifest, attempt.WaitManifest(record));
  // The committer publishes first and syncs then: what we saw may not be durable yet.
  RETURN_IF_ERROR(env_.store->SyncDirectory(record.directory, "seen manifest"));
  Learn(std::move(written.history));
  return manifest;
}

Status Committer::Decline(const SaveTask& task) {
  if (committing()) return AnnounceSkipped(task);
  Attempt attempt(env_, generation_, options_.participants, options_.self, options_.deadline);
  const auto record = attempt.WaitAnnounced(task.number, task.request.step);
  if (!record.ok() || record->skipped) return Status::Ok();  // nobody waits for this participant
  return attempt.Abandon(*record, {self()});
}

Status Committer::AnnounceSkipped(const SaveTask& task) {
  AttemptRecord record;
  record.number = task.number;
  record.step = task.request.step;
  record.attempt = env_.ids->NewUuid();
  record.skipped = true;
  Attempt attempt(env_, generation_, options_.participants, options_.self, options_.deadline);
  return attempt.Announce(record);
}

Status Committer::WriteIndex(const std::string& directory, std::vector<ManifestFile>* files) {
  // Only the committer sees all parts, so it reads the names from their headers.
  auto manifest = std::make_shared<Manifest>();
  manifest->files = *files;
  ASSIGN_OR_RETURN(std::unique_ptr<OpenCheckpoint> open,
                   OpenCheckpoint::Open(env_.store.get(), directory, manifest));
  ASSIGN_OR_RETURN(const SafetensorsIndex index, open->BuildIndex());
  const std::string bytes = EncodeSafetensorsIndex(index);
  const std::string name = names::Path(directory, names::kIndex);
  // An array with a part missing would be refused by every restore: refuse the commit instead.
  auto catalog = open->ReadCatalog(TensorGroup::kModel, "");
  if (!catalog.ok()) return FailedPreconditionError(std::string(catalog.status().message()));
  RETURN_IF_ERROR(env_.store->Put(name, bytes));
  FileHasher hasher;
  hasher.Update(std::as_bytes(std::span(bytes)));
  ManifestFile entry;
  entry.path = names::kIndex;
  entry.hash = hasher.Finish();
  files->push_back(std::move(entry));
  return Status::Ok();
}

std::vector<std::string> Committer::Referenced(std::string_view except) const {
  std::vector<std::string> paths;
  for (const auto* list : {&checkpoints_, &uncertain_}) {
    for (const Checkpoint& checkpoint : *list) {
      if (checkpoint.manifest->id == except) continue;
      for (const ManifestFile& file : checkpoint.manifest->files) {
        if (!file.ref.empty()) paths.push_back(file.ref);
      }
    }
  }
  return paths;
}

Status Committer::Remove(const Checkpoint& checkpoint, bool* removed) {
  RemovalOptions removal;
  removal.kept = Referenced(checkpoint.manifest->id);
  const std::uint64_t limit = std::min(options_.pool_bytes, last_bytes_);
  const std::uint64_t pooled = pooled_bytes();
  if (limit > pooled) {
    removal.pool = names::Path(names::kPool, std::to_string(generation_->number()));
    removal.pool_bytes = limit - pooled;
    removal.pool_min_file = options_.recycle_from_bytes;
  }
  ASSIGN_OR_RETURN(Removed result, RemoveCheckpoint(env_, *generation_, checkpoint, removal));
  *removed = result.removed;
  std::move(result.pooled.begin(), result.pooled.end(), std::back_inserter(pool_));
  if (result.removed) {
    const std::string prefix = checkpoint.directory + "/";
    const bool referenced =
        std::any_of(removal.kept.begin(), removal.kept.end(),
                    [&](const std::string& path) { return path.starts_with(prefix); });
    if (referenced) {
      leftovers_.push_back(checkpoint.directory);
    } else {
      directories_.erase(checkpoint.directory);
    }
  }
  return Status::Ok();
}

Status Committer::ApplyRetention() {
  if (!committing()) return Status::Ok();
  for (Checkpoint& checkpoint : checkpoints_) {
    // Unpinned since, by us or by a tool? When that cannot be read it stays for now.
    if (checkpoint.pinned) RereadNotes(&checkpoint).IgnoreError("it stays");
  }
  std::vector<RetentionItem> items;
  for (const Checkpoint& checkpoint : checkpoints_) {
    RetentionItem item;
    item.id = checkpoint.manifest->id;
    item.step = checkpoint.manifest->step;
    item.metrics = checkpoint.Metrics();
    item.pinned = checkpoint.pinned;
    item.base = checkpoint.manifest->base;
    if (checkpoint.manifest->chain == "consecutive") item.parent = checkpoint.manifest->parent;
    items.push_back(std::move(item));
  }
  for (const std::string& id : ChooseRemovals(options_.retention, items)) {
    const auto it =
        std::find_if(checkpoints_.begin(), checkpoints_.end(),
                     [&](const Checkpoint& checkpoint) { return checkpoint.manifest->id == id; });
    bool removed = false;
    const Status status = Remove(*it, &removed);
    if (status.Is(Code::kAborted)) return Status::Ok();  // the next save says that we are fenced
    if (!status.ok()) return status.WithContext("remove " + it->directory);
    if (removed) {
      checkpoints_.erase(it);
    } else {
      it->pinned = true;
    }
  }
  // Files that the last reference to is gone.
  if (!leftovers_.empty()) {
    const std::vector<std::string> referenced = Referenced("");
    std::erase_if(leftovers_, [&](const std::string& directory) {
      const std::string prefix = directory + "/";
      for (const std::string& path : referenced) {
        if (path.starts_with(prefix)) return false;
      }
      if (!DeleteCheckpointDirectory(env_.store.get(), directory, referenced).ok()) return false;
      directories_.erase(directory);
      return true;
    });
  }
  return Status::Ok();
}

Status Committer::RereadNotes(Checkpoint* checkpoint) {
  RepositoryReader reader(env_.store.get(), env_.rules);
  ASSIGN_OR_RETURN(checkpoint->notes,
                   reader.ReadNotes(checkpoint->directory, checkpoint->manifest->id));
  checkpoint->pinned = false;
  for (const NoteRecord& note : checkpoint->notes) {
    if (note.kind == NoteKind::kPin) checkpoint->pinned = true;
    if (note.kind == NoteKind::kUnpin) checkpoint->pinned = false;
  }
  return Status::Ok();
}

Status Committer::Reload() {
  for (Checkpoint& checkpoint : checkpoints_) RETURN_IF_ERROR(RereadNotes(&checkpoint));
  return Status::Ok();
}

Status Committer::Delete(const std::string& id) {
  if (!committing()) {
    return FailedPreconditionError("only " + options_.participants[0] + " deletes checkpoints");
  }
  const auto it =
      std::find_if(checkpoints_.begin(), checkpoints_.end(),
                   [&](const Checkpoint& checkpoint) { return checkpoint.manifest->id == id; });
  if (it == checkpoints_.end()) return NotFoundError("there is no checkpoint with id " + id);
  for (const Checkpoint& other : checkpoints_) {
    if (other.manifest->base == id) {
      return FailedPreconditionError(other.directory + " builds on it; delete that one first");
    }
  }
  bool removed = false;
  const std::string directory = it->directory;
  RETURN_IF_ERROR(Remove(*it, &removed).WithContext("remove " + directory));
  if (!removed) return FailedPreconditionError(directory + " is pinned; unpin it first");
  checkpoints_.erase(it);
  return Status::Ok();
}

}  // namespace cairn
