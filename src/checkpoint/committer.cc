#include "checkpoint/committer.h"

#include <algorithm>
#include <charconv>

#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/names.h"

// One save, and why in this order (docs/protocol.md, "Saving"):
//
//  0. Look whether the own fence is there. A directory that was deleted, or made again by another
//     run, must not get files of ours: their names, and that of the checkpoint, are the same.
//  1. Claim a directory: an exclusive marker keeps an older writer, who may still be alive, out of
//     it. With several participants the attempt record tells the others its name.
//  2. Write all files, sync their bytes, sync all names that lead to them. Only then may anything
//     refer to them. Alone, the manifest's bytes are synced beside them, under no name that counts.
//  3. Publish the part (several participants), and when all parts are there the manifest. The
//     manifest is create-only and durable when the publish returns: the commit.
//  4. Re-read the fence. A newer opener lists manifests after it published its fence; if there is
//     no newer fence now, every later opener will find this manifest and seal it. So it counts for
//     ever, and may be acknowledged. If there is one, it may or may not have seen it: Fenced. If
//     our own fence is another's by now, the manifest landed in another run's repository: it is
//     taken back.
//
// A save that fails deletes its files by their names, and only while the fence is its own. A newer
// opener sweeps what is not committed, also from under the hands of a save that still writes: what
// the store then says ("not found") is not why. And its retention removes what an increment would
// build on. So a save that failed asks the fences, too.

namespace cairn {
namespace {

/// Full checkpoints and increments are numbered together.
std::optional<std::int64_t> SerialOf(std::string_view directory) {
  const std::size_t digits = directory.find('_') + 1;
  const std::string_view prefix = directory.substr(0, digits);
  if (prefix != "checkpoint_" && prefix != "increment_") return std::nullopt;
  directory.remove_prefix(digits);
  std::int64_t serial = 0;
  const auto [end, error] =
      std::from_chars(directory.data(), directory.data() + directory.size(), serial);
  if (error != std::errc() || (end != directory.data() + directory.size() && *end != '-')) {
    return std::nullopt;
  }
  return serial;
}

std::string_view ChainName(SaveKind kind) {
  switch (kind) {
    case SaveKind::kFull:
      return "";
    case SaveKind::kCumulative:
      return "cumulative";
    case SaveKind::kConsecutive:
      return "consecutive";
  }
  return "";
}

CheckpointKind KindOf(SaveKind kind) {
  return kind == SaveKind::kFull ? CheckpointKind::kFull : CheckpointKind::kIncrement;
}

std::vector<ManifestTable> TablesOf(const SaveRequest& request) {
  std::vector<ManifestTable> tables;
  for (const TableFacts& table : request.tables) {
    tables.push_back({table.name, table.dim, table.dtype, table.rows, table.deleted, table.held});
  }
  return tables;
}

/// A save that was registered somewhere before it began has its id from there; "": it was not.
std::string RegisteredId(const Value& lineage) {
  const Value* id = lineage.Find("registration");
  const std::string* text = id == nullptr ? nullptr : id->if_string();
  return text != nullptr && IsUuid(*text) ? *text : "";
}

}  // namespace

Result<std::unique_ptr<Committer>> Committer::Open(const Environment& env, Generation* generation,
                                                   CommitterOptions options) {
  auto committer = std::unique_ptr<Committer>(new Committer(env, generation, std::move(options)));
  committer->checkpoints_ = generation->sealed();
  ASSIGN_OR_RETURN(const Listing root, env.store->List(""));
  std::set<std::string> taken(root.prefixes.begin(), root.prefixes.end());
  for (const ObjectInfo& object : root.objects) taken.insert(object.name);  // no directory can be
  taken.insert(root.unreachable.begin(), root.unreachable.end());
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
  RETURN_IF_ERROR(store->Refresh(names::AttemptsOf(generation_->number())));
  for (std::uint64_t number = 1;; ++number) {
    auto bytes = store->Get(names::Attempt(generation_->number(), number), kMaxRecordBytes);
    if (bytes.status().Is(Code::kNotFound)) return number - 1;
    if (!bytes.ok()) return bytes.status();
    ASSIGN_OR_RETURN(const AttemptRecord attempt, Decode<AttemptRecord>(*bytes));
    if (attempt.skipped) continue;
    bool decided = false;
    RETURN_IF_ERROR(store->Refresh(attempt.directory));
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

std::uint64_t Committer::kept_bytes() const {
  std::uint64_t bytes = 0;
  for (const Checkpoint& checkpoint : checkpoints_) bytes += checkpoint.manifest->Bytes();
  return bytes;
}

std::string Committer::NextDirectory(const SaveTask& task, int* copy) {
  for (;;) {
    // A step is what it is; of serial numbers there are more.
    const std::int64_t number = options_.serial_names ? next_serial_++ : task.request.step;
    *copy = options_.serial_names ? 1 : *copy + 1;
    std::string name = names::CheckpointDirectory(task.request.kind != SaveKind::kFull,
                                                  options_.serial_names, number, *copy);
    if (directories_.insert(name).second) return name;
  }
}

void Committer::GoOnFrom(const Manifest& manifest) {
  distrusted_.erase(manifest.id);  // whatever kept it from being read is gone
  parent_ = manifest.id;
  base_ = manifest.kind == CheckpointKind::kFull ? manifest.id : manifest.base;
}

Status Committer::CheckIncrement(const SaveRequest& request) const {
  if (request.kind == SaveKind::kFull) return Status::Ok();
  const std::string what = "step " + std::to_string(request.step) + " cannot be an increment: ";
  if (base_.empty()) {
    return FailedPreconditionError(what +
                                   "nothing was saved in full or restored since the opening, so "
                                   "there is nothing to build on; save a full one first");
  }
  const std::string& from = request.kind == SaveKind::kCumulative ? base_ : parent_;
  if (!request.since.empty() && request.since != from) {
    return FailedPreconditionError(what + "its rows are those that changed since checkpoint " +
                                   request.since + ", and it would build on checkpoint " + from +
                                   "; save a full one first");
  }
  if (!committing()) return Status::Ok();  // the committer knows what there is
  Checkpoint tip;
  auto manifest = std::make_shared<Manifest>();
  manifest->kind = CheckpointKind::kIncrement;
  manifest->chain = ChainName(request.kind);
  manifest->base = base_;
  manifest->parent = parent_;
  tip.manifest = manifest;
  tip.counts = true;
  const auto chain = ChainIndex(checkpoints_).Resolve(tip);
  if (!chain.ok()) {
    return FailedPreconditionError(what + "it " + std::string(chain.status().message()) +
                                   "; save a full one first");
  }
  // Somebody may have deleted them by hand.
  for (const Checkpoint* below : {chain->front(), (*chain)[chain->size() - 2]}) {
    const auto stat = env_.store->Stat(names::Path(below->directory, names::kManifest));
    if (stat.status().Is(Code::kNotFound)) {
      return FailedPreconditionError(what + "it builds on " + below->directory +
                                     ", which is gone; save a full one first");
    }
    RETURN_IF_ERROR(stat.status());
  }
  return Status::Ok();
}

Status Committer::CheckAgreed(const SaveTask& task, const AttemptRecord& record) const {
  const SaveRequest& request = task.request;
  if (record.kind != KindOf(request.kind) || record.chain != ChainName(request.kind)) {
    const auto words = [](CheckpointKind kind, std::string_view chain) {
      return kind == CheckpointKind::kFull ? "a full checkpoint"
                                           : "a " + std::string(chain) + " increment";
    };
    return FailedPreconditionError(
        self() + " saves step " + std::to_string(request.step) + " as " +
        words(KindOf(request.kind), ChainName(request.kind)) + ", " + options_.participants[0] +
        " as " + words(record.kind, record.chain) + ": all ranks must save the same kind");
  }
  if (request.kind == SaveKind::kFull) return Status::Ok();
  // A participant that saw a commit which the committer could not make sure of, or the other way
  // round, has other rows than the chain that the committer names.
  const bool same_base = record.base == base_;
  const bool same_parent = request.kind == SaveKind::kCumulative || record.parent == parent_;
  if (same_base && same_parent) return Status::Ok();
  return FailedPreconditionError(self() + " builds on checkpoint " + (same_base ? parent_ : base_) +
                                 ", " + options_.participants[0] + " on checkpoint " +
                                 (same_base ? record.parent : record.base) +
                                 "; save a full one first");
}

Manifest Committer::NewManifest(const SaveTask& task, std::string attempt) {
  Manifest manifest;
  manifest.id = RegisteredId(task.request.lineage);
  if (manifest.id.empty()) manifest.id = env_.ids->NewUuid();
  manifest.job = generation_->job();
  manifest.generation = generation_->number();
  manifest.sequence = ++sequence_;
  manifest.attempt = std::move(attempt);
  manifest.kind = KindOf(task.request.kind);
  manifest.chain = ChainName(task.request.kind);
  if (manifest.kind == CheckpointKind::kIncrement) manifest.base = base_;
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

const Checkpoint* Committer::SharedFrom() const {
  if (checkpoints_.empty()) return nullptr;
  if (checkpoints_.back().manifest->id == newest_own_) return &checkpoints_.back();
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (checkpoint.manifest->id == parent_) return &checkpoint;
  }
  return &checkpoints_.back();
}

Status Committer::Write(const SaveTask& task, const std::byte* arena, const std::string& directory,
                        WrittenFiles* written, const std::string& marker,
                        const WhenHanded& when_handed) {
  ShareableFiles shareable;
  if (const Checkpoint* from = SharedFrom(); from != nullptr) {
    // What other processes wrote long ago may have rotted since.
    const bool proven = from->manifest->id == newest_own_;
    shareable = ShareableFiles(from->directory, *from->manifest, proven);
  }
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
  input.when_handed = when_handed;
  input.mode = options_.mode;
  RETURN_IF_ERROR(WriteFiles(env_, input, &ring_, &task.state->progress, written));
  task.state->MarkCopied(Status::Ok());  // a save that streams has read all of its tensors now
  return Status::Ok();
}

Status Committer::Publish(const std::string& directory, const Manifest& manifest,
                          Commitment* commitment, PreparedObject* prepared) {
  Status published = PublishManifest(env_, directory, manifest, collective(), commitment, prepared);
  if (*commitment == Commitment::kUnknown) {
    Checkpoint checkpoint;
    checkpoint.directory = directory;
    checkpoint.manifest = std::make_shared<const Manifest>(manifest);
    uncertain_.push_back(std::move(checkpoint));
  }
  return published;
}

Status Committer::CheckFence() {
  Status fence = generation_->CheckFence();
  lost_ = !fence.ok();
  return fence;
}

Status Committer::WhyFailed(const Status& failure) {
  // The first says it already; of the second nothing was written here.
  if (failure.Is(Code::kAborted) || failure.Is(Code::kCancelled)) return failure;
  const Status fence = generation_->CheckFence();
  if (!fence.Is(Code::kAborted)) return failure;
  lost_ = true;
  return AbortedError(std::string(fence.message()) +
                      "; the save had failed by then: " + std::string(failure.message()));
}

void Committer::TakeBack(const Checkpoint& checkpoint) {
  // Of several participants one may have acknowledged it, when the repository was still ours.
  if (collective() || !generation_->CheckOwn().Is(Code::kAborted)) return;
  RepositoryReader reader(env_.store.get(), env_.rules);
  const auto there = reader.ReadManifest(checkpoint.directory);
  if (!there.ok() || there->id != checkpoint.manifest->id) return;
  // Only that: the files may be those of a save that was made under the same name meanwhile.
  const std::string name = names::Path(checkpoint.directory, names::kManifest);
  env_.store->Delete(name).IgnoreError("nobody was told that it counts");
}

void Committer::CleanUp(const std::string& directory, const std::vector<std::string>& created) {
  if (!created.empty() && !generation_->CheckOwn().ok()) return;
  // The marker was made first and goes last: while anything is left, be it an empty directory, the
  // next opening must see whose it is.
  for (auto it = created.rbegin(); it != created.rend(); ++it) {
    if (std::next(it) == created.rend()) PruneBelow(env_.store.get(), directory);
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
  if (!manifest.ok()) return WhyFailed(manifest.status());

  Checkpoint checkpoint;
  checkpoint.directory = directory;
  checkpoint.manifest = std::make_shared<const Manifest>(*std::move(manifest));
  checkpoint.counts = true;
  env_.Step("save: fence");
  if (env_.rules.reread_fence_before_ack) {
    const Status fence = CheckFence();
    if (!fence.ok()) {
      if (fence.Is(Code::kAborted)) {
        TakeBack(checkpoint);
      } else {
        // Committed, but the look failed: not acknowledged, and retention's all the same.
        uncertain_.push_back(std::move(checkpoint));
      }
      return fence;
    }
  }
  CheckpointInfo info = MakeInfo(*env_.store, checkpoint);
  Remember(std::move(checkpoint));
  return info;
}

void Committer::Remember(Checkpoint checkpoint) {
  GoOnFrom(*checkpoint.manifest);
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
  newest_own_ = checkpoint.manifest->id;
  checkpoints_.push_back(std::move(checkpoint));
}

Result<Manifest> Committer::CommitAlone(const SaveTask& task, const std::byte* arena,
                                        std::string* directory) {
  if (const Status own = generation_->CheckOwn(); !own.ok()) {
    lost_ = true;
    return own;
  }
  const std::string attempt = env_.ids->NewUuid();
  MarkerRecord marker;
  marker.generation = generation_->number();
  marker.attempt = attempt;
  marker.participants = options_.participants;
  WrittenFiles written;
  Manifest manifest;
  std::unique_ptr<PreparedObject> prepared;
  const auto prepare = [&](WriteSession* session,
                           const std::vector<ManifestFile>& files) -> Status {
    manifest = NewManifest(task, attempt);
    manifest.files = files;
    manifest.tables = TablesOf(task.request);
    if (!options_.private_parts) {  // merge wants to know it
      for (ManifestTable& table : manifest.tables) table.held.clear();
    }
    ASSIGN_OR_RETURN(prepared, PrepareManifest(session, *directory, manifest));
    return Status::Ok();
  };
  for (int copy = 0;;) {
    *directory = NextDirectory(task, &copy);
    written = {};
    const Status status = Write(task, arena, *directory, &written, Encode(marker), prepare);
    if (status.ok()) break;
    prepared.reset();
    // Only the claim answers so: the directory is somebody else's, or no directory at all.
    if (status.Is(Code::kAlreadyExists) && written.created.empty()) continue;
    CleanUp(*directory, written.created);
    if (IsTakenByFile(env_, *directory)) continue;
    directories_.erase(*directory);
    return status;
  }
  auto commitment = Commitment::kNotThere;
  const Status published = Publish(*directory, manifest, &commitment, prepared.get());
  prepared.reset();
  if (!published.ok()) {
    if (commitment == Commitment::kNotThere) CleanUp(*directory, written.created);
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

Result<Manifest> Committer::CommitTogether(const SaveTask& task, const std::byte* arena,
                                           std::string* directory) {
  AttemptRecord record;
  record.number = task.number;
  record.attempt = env_.ids->NewUuid();
  record.step = task.request.step;
  record.kind = KindOf(task.request.kind);
  record.chain = ChainName(task.request.kind);
  if (task.request.kind != SaveKind::kFull) record.base = base_;
  if (task.request.kind == SaveKind::kConsecutive) record.parent = parent_;
  record.participants = options_.participants;
  auto begin = [&]() -> Status {
    // Before the next announcement, which tells who still waits that the word will not come.
    if (owes_word()) SayOwed();
    RETURN_IF_ERROR(CheckFence());
    RETURN_IF_ERROR(generation_->AdmitRestarted(parent_));
    int copy = 0;
    ASSIGN_OR_RETURN(record.directory, ClaimDirectory(env_,
                                                      {.generation = generation_->number(),
                                                       .attempt = record.attempt,
                                                       .copies = "",
                                                       .participants = options_.participants},
                                                      [&] { return NextDirectory(task, &copy); }));
    return Status::Ok();
  };
  if (const Status begun = begin(); !begun.ok()) {
    // Overtaken: so are the others, and find out as we did.
    if (begun.Is(Code::kAborted)) return begun;
    SaySkipped(task).IgnoreError("it is said again");
    return begun;
  }
  *directory = record.directory;
  Attempt attempt = NewAttempt();
  WrittenFiles written;
  written.created.push_back(names::Path(record.directory, names::kMarker));
  std::vector<std::string> missing = {self()};
  bool announced = false;
  auto commitment = Commitment::kNotThere;
  auto commit = [&]() -> Result<Manifest> {
    RETURN_IF_ERROR(attempt.Announce(record));
    announced = true;
    RETURN_IF_ERROR(Write(task, arena, record.directory, &written));
    PartRecord part;
    part.files = written.files;
    part.tables = TablesOf(task.request);
    RETURN_IF_ERROR(attempt.PublishPart(record, std::move(part)));
    ASSIGN_OR_RETURN(std::vector<PartRecord> parts, attempt.WaitParts(record, parent_, &missing));
    Manifest manifest = NewManifest(task, record.attempt);
    for (PartRecord& one : parts) {
      std::move(one.files.begin(), one.files.end(), std::back_inserter(manifest.files));
      RETURN_IF_ERROR(AddManifestTables(one.tables, &manifest.tables));
    }
    for (ManifestTable& table : manifest.tables) table.held.clear();
    RETURN_IF_ERROR(WriteIndex(record.directory, &manifest.files));
    RETURN_IF_ERROR(Publish(record.directory, manifest, &commitment));
    return manifest;
  };
  auto manifest = commit();
  if (!manifest.ok()) {
    // Others clean up, or nobody may.
    if (manifest.status().Is(Code::kAborted) || commitment == Commitment::kUnknown) return manifest;
    // Only a deadline says that others are missing; any other failure is our own.
    if (!manifest.status().Is(Code::kDeadlineExceeded)) missing = {self()};
    if (!announced) {
      // Harmless when the announcement is there all the same: of two records the first stays.
      SaySkipped(task).IgnoreError("it is said again");
    }
    if (!generation_->CheckOwn().ok()) return manifest;
    const Status said = attempt.Abandon(record, missing);
    // All of its data goes at once; the record that says why stays until the next opening.
    for (const std::string_view sub : {names::kModel, names::kTables, names::kFiles}) {
      DeleteDataBelow(names::Path(record.directory, sub));
    }
    for (const std::string& participant : options_.participants) {
      DeleteDataBelow(names::Path(record.directory, participant));
    }
    if (!said.ok()) {  // a disk that was full has room for it now
      Say([this, record, missing]() -> Status {
        // In another's repository it would be a word to another's ranks.
        RETURN_IF_ERROR(generation_->CheckOwn());
        return NewAttempt().Abandon(record, missing);
      }).IgnoreError("it is said again");
    }
    return manifest;
  }
  Learn(std::move(written.history));
  return manifest;
}

Attempt Committer::NewAttempt() {
  // Whoever waits here for the others may be waited for by them: for what became of a save before.
  return {env_, generation_, options_.participants, options_.self, options_.deadline, [this] {
            if (owes_word()) SayOwed();
          }};
}

Status Committer::Say(std::function<Status()> word) {
  Status said = word();
  if (!said.ok() && !said.Is(Code::kAborted)) Owe(std::move(word));
  return said;
}

void Committer::Owe(std::function<Status()> word) {
  MutexLock lock(&owed_mu_);
  owed_.push_back(std::move(word));
}

Status Committer::SayThatNothingComes(Attempt* attempt, const AttemptRecord& record) {
  Status said = attempt->Abandon(record, {self()});
  if (said.ok() || said.Is(Code::kAborted)) return said;
  Owe([this, record]() -> Status {
    // By now the directory may be swept, or the save be over without us: who replaced us goes by
    // the same names.
    RETURN_IF_ERROR(generation_->CheckFence());
    RETURN_IF_ERROR(generation_->CheckPlace());
    const std::string manifest = names::Path(record.directory, names::kManifest);
    if (env_.store->Stat(manifest).ok()) return Status::Ok();
    return NewAttempt().Abandon(record, {self()});
  });
  return said;
}

void Committer::SayOwed() {
  std::vector<std::function<Status()>> owed;
  {
    MutexLock lock(&owed_mu_);
    owed.swap(owed_);
  }
  for (std::function<Status()>& word : owed) {
    Say(std::move(word)).IgnoreError("it is said again");
  }
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
  auto manifest = TakePart(task, arena, directory);
  if (manifest.ok() || manifest.status().Is(Code::kCancelled)) return manifest;
  // "nothing came from rank_1" is no answer for rank 1: what came was another process's.
  const Status place = generation_->CheckPlace();
  return place.Is(Code::kAborted) ? Result<Manifest>(place) : std::move(manifest);
}

Result<Manifest> Committer::TakePart(const SaveTask& task, const std::byte* arena,
                                     std::string* directory) {
  Attempt attempt = NewAttempt();
  ASSIGN_OR_RETURN(const AttemptRecord record,
                   attempt.WaitAnnounced(task.number, task.request.step));
  if (record.skipped) {
    return CancelledError("skipped by " + options_.participants[0] +
                          ": its save before it is still being written, or it cannot save");
  }
  *directory = record.directory;
  WrittenFiles written;
  Status wrote = CheckAgreed(task, record);
  if (wrote.ok()) wrote = Write(task, arena, record.directory, &written);
  if (!wrote.ok()) {
    // A committer that gave up deletes what is there, also from under our hands: what it said is
    // why. One whose disk is full may delete and not be able to say it, so we do.
    if (wrote.Is(Code::kNotFound)) RETURN_IF_ERROR(attempt.CheckAbandoned(record));
    if (wrote.Is(Code::kNotFound) && WasDeletedUnderWay(written)) {
      attempt.Abandon(record, {options_.participants[0]})
          .IgnoreError("they give up at the deadline");
      return Attempt::GivenUp(record, {options_.participants[0]});
    }
    // Tell the others at once that nothing will come from here. The committer then deletes what is
    // there. We do not: a process that replaced us goes by the same names, its part may be
    // committed, and on object stores it shows only at the end whose bytes a name has.
    SayThatNothingComes(&attempt, record).IgnoreError("it is said again");
    return wrote;
  }
  PartRecord part;
  part.files = written.files;
  part.tables = TablesOf(task.request);
  if (const Status published = attempt.PublishPart(record, std::move(part)); !published.ok()) {
    // The part may be there all the same, and the checkpoint be committed with it: its files stay.
    SayThatNothingComes(&attempt, record).IgnoreError("it is said again");
    return published;
  }
  ASSIGN_OR_RETURN(Manifest manifest, attempt.WaitManifest(record));
  // The committer publishes first and syncs then: what we saw may not be durable yet.
  RETURN_IF_ERROR(env_.store->SyncDirectory(record.directory, "seen manifest"));
  Learn(std::move(written.history));
  return manifest;
}

bool Committer::WasDeletedUnderWay(const WrittenFiles& written) const {
  // An object has its name only when all of its bytes are there: until then nobody deletes it. What
  // knows directories or links is a file system, where the name comes first.
  const StoreTraits traits = env_.store->traits();
  if (!traits.directories && !traits.hard_links) return false;
  const bool gone = std::any_of(
      written.created.begin(), written.created.end(),
      [&](const std::string& name) { return env_.store->Stat(name).status().Is(Code::kNotFound); });
  // Besides the committer a newer writer sweeps, and somebody may take the whole directory away.
  return gone && generation_->CheckFence().ok();
}

Status Committer::Decline(const SaveTask& task) {
  if (committing()) return SaySkipped(task);
  Attempt attempt = NewAttempt();
  const auto record = attempt.WaitAnnounced(task.number, task.request.step);
  if (!record.ok() || record->skipped) return Status::Ok();  // nobody waits for this participant
  return SayThatNothingComes(&attempt, *record);
}

Result<std::optional<bool>> Committer::IsSkipped(std::uint64_t number) const {
  const Attempt attempt(env_, generation_, options_.participants, options_.self, options_.deadline);
  ASSIGN_OR_RETURN(const auto record, attempt.Announced(number));
  if (!record) return std::optional<bool>();
  // Another writer's word is not for us: whoever takes part finds out what has happened.
  const bool ours = record->fence.empty() || record->fence == generation_->fence_uuid();
  return std::optional(ours && record->skipped);
}

Status Committer::SaySkipped(const SaveTask& task) {
  return Say([this, number = task.number, step = task.request.step] {
    return AnnounceSkipped(number, step);
  });
}

Status Committer::AnnounceSkipped(std::uint64_t number, std::int64_t step) {
  AttemptRecord record;
  record.number = number;
  record.step = step;
  record.attempt = env_.ids->NewUuid();
  record.skipped = true;
  // In another's repository it would be a word to another's ranks.
  RETURN_IF_ERROR(generation_->CheckOwn());
  return NewAttempt().Announce(record);
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

}  // namespace cairn
