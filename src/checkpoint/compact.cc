#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/removal.h"
#include "checkpoint/restore_point.h"
#include "checkpoint/stored_bytes.h"
#include "checkpoint/table_merge.h"
#include "checkpoint/transfer.h"

// Compacting, and why in this order (docs/protocol.md, "Tools on a live repository"):
//
//  1. Open a generation: fence and seal. A writer that lives is named and left alone; what we
//     commit counts under our seal, and not at all should somebody overtake us first.
//  2. Write the full checkpoint: a claimed directory, every file durable, the manifest last. It
//     keeps the place (generation, sequence) of the increment, so that it is the latest exactly if
//     the increment was, and names the increment in `replaces`. Because its generation is an older
//     one, `compacted` says which generation committed it: that one decides whether it counts.
//  3. From here on both are there, with the same state. Readers take the new one; increments on top
//     of the old one stand on the new one.
//  4. A pin moves over: first it is on both, then on the new one alone.
//  5. Remove the increment, as any other checkpoint is removed. Nothing needs it any more. Anybody
//     may score it until then, which the removal sees: such a score moves over first.

namespace cairn {
namespace {

bool IsTableFile(const ManifestFile& file) {
  return file.path.starts_with(names::Path(names::kTables, ""));
}

/// One compaction. One use, one thread.
class Compactor {
 public:
  Compactor(const Environment& env, const TransferControl& control)
      : env_(env), control_(control) {}

  Result<CompactReport> Run(const std::string& id, bool takeover) {
    ASSIGN_OR_RETURN(generation_, OpenForTool(env_, {.job = "", .takeover = takeover}));
    ASSIGN_OR_RETURN(committer_, IncomingCommitter::Open(env_, generation_.get()));
    const std::vector<Checkpoint> counting = committer_->checkpoints();
    const auto tip =
        std::find_if(counting.begin(), counting.end(),
                     [&](const Checkpoint& checkpoint) { return checkpoint.manifest->id == id; });
    if (tip == counting.end()) {
      return NotFoundError("\"" + env_.store->Describe() + "\" has no checkpoint " + id +
                           " that counts any more");
    }
    auto chain = ChainIndex(counting).Resolve(*tip);
    if (!chain.ok()) {
      return CorruptionError(tip->directory + " " + std::string(chain.status().message()));
    }
    for (const Checkpoint* one : *chain) report_.chain.push_back(one->manifest->id);
    ASSIGN_OR_RETURN(const Checkpoint full, CommitFull(*chain));
    RETURN_IF_ERROR(Replace(*tip, full));
    report_.info = MakeInfo(*env_.store, full);
    report_.info.pinned = tip->pinned;
    return std::move(report_);
  }

 private:
  Result<Checkpoint> CommitFull(const Chain& chain) {
    ASSIGN_OR_RETURN(const OpenRestorePoint point, OpenRestorePoint::Open(env_.store.get(), chain));
    ASSIGN_OR_RETURN(const auto merged, MergedTables::Open(env_.store.get(), point.chain()));
    StoredBytes bytes(env_.store.get(), point.tip());
    IncomingFiles files;
    RETURN_IF_ERROR(AddOtherFiles(*point.tip(), &bytes, committer_.get(), &files, control_));
    RETURN_IF_ERROR(merged->AddTo(&files));
    report_.bytes = files.bytes();
    const Checkpoint& tip = *chain.back();
    Manifest manifest = *tip.manifest;
    manifest.id = env_.ids->NewUuid();
    manifest.replaces = tip.manifest->id;
    manifest.kind = CheckpointKind::kFull;
    manifest.chain.clear();
    manifest.base.clear();
    manifest.tables = merged->facts();
    manifest.metrics = tip.Metrics();
    if (!manifest.lineage.is_object()) manifest.lineage = Value::Object{};
    Value::List ids;
    for (const std::string& id : report_.chain) ids.emplace_back(id);
    (*manifest.lineage.if_object())["compacted_from"] = std::move(ids);
    return committer_->Commit(std::move(manifest), DirectoryFor(tip), std::move(files),
                              /*rebuild_index=*/false, control_, /*keep_place=*/true);
  }

  /// "increment_000060" becomes "checkpoint_000060".
  static std::string DirectoryFor(const Checkpoint& tip) {
    constexpr std::string_view kPrefix = "increment_";
    if (tip.directory.starts_with(kPrefix)) {
      return "checkpoint_" + tip.directory.substr(kPrefix.size());
    }
    return names::CheckpointDirectory(/*increment=*/false, /*serial=*/false, tip.manifest->step, 1);
  }

  Status Replace(Checkpoint tip, const Checkpoint& full) {
    if (tip.pinned) {
      RETURN_IF_ERROR(
          AppendNote(env_, full.directory, full.manifest->id, {.kind = NoteKind::kPin}).status());
      RETURN_IF_ERROR(
          AppendNote(env_, tip.directory, tip.manifest->id, {.kind = NoteKind::kUnpin}).status());
    }
    RemovalOptions removal;
    for (const Checkpoint& checkpoint : committer_->checkpoints()) {
      if (checkpoint.manifest->id == tip.manifest->id) continue;
      for (const ManifestFile& file : checkpoint.manifest->files) {
        if (!file.ref.empty()) removal.kept.push_back(file.ref);
      }
    }
    removal.by_score = true;
    for (bool scored = true; scored && !report_.replaced_removed;) {
      ASSIGN_OR_RETURN(const Removed removed, RemoveCheckpoint(env_, *generation_, tip, removal));
      report_.replaced_removed = removed.removed;
      if (!removed.removed) {
        ASSIGN_OR_RETURN(scored, MoveScores(full, &tip));
      }
    }
    return Status::Ok();
  }

  /// Those that came since the increment was looked at; false: there are none.
  Result<bool> MoveScores(const Checkpoint& full, Checkpoint* tip) {
    RepositoryReader reader(env_.store.get(), env_.rules);
    ASSIGN_OR_RETURN(std::vector<NoteRecord> notes,
                     reader.ReadNotes(tip->directory, tip->manifest->id));
    bool any = false;
    for (const NoteRecord& note : notes) {
      const bool known = std::ranges::count(tip->notes, note.number, &NoteRecord::number) > 0;
      if (note.kind != NoteKind::kScore || known) continue;
      any = true;
      RETURN_IF_ERROR(AppendNote(env_, full.directory, full.manifest->id,
                                 {.kind = NoteKind::kScore, .values = note.values})
                          .status());
    }
    tip->notes = std::move(notes);
    return any;
  }

  const Environment& env_;
  const TransferControl& control_;
  std::unique_ptr<Generation> generation_;
  std::unique_ptr<IncomingCommitter> committer_;
  CompactReport report_;
};

}  // namespace

Status AddOtherFiles(const OpenCheckpoint& open, StoredBytes* bytes, IncomingCommitter* committer,
                     IncomingFiles* files, const TransferControl& control) {
  for (std::size_t i = 0; i < open.files().size(); ++i) {
    ManifestFile file = *open.files()[i].entry;
    if (IsTableFile(file)) continue;
    ASSIGN_OR_RETURN(file.ref, committer->Shareable(file.hash, control));
    if (!file.ref.empty()) {
      files->AddShared(std::move(file));
    } else {
      files->AddCopy(file.path, file.part, file.hash,
                     std::make_unique<StoredFileSource>(bytes, i, /*begin=*/0));
    }
  }
  return Status::Ok();
}

Result<CompactReport> CompactIn(const Environment& env, const CheckpointChoice& choice,
                                const TransferControl& control, bool takeover) {
  RepositoryReader reader(env.store.get());
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  ASSIGN_OR_RETURN(const Checkpoint* chosen, Choose(view, env.store->Describe(), choice));
  if (chosen->manifest->kind == CheckpointKind::kFull) {
    CompactReport report;
    report.info = MakeInfo(*env.store, *chosen);
    report.already_full = true;
    report.chain = {chosen->manifest->id};
    return report;
  }
  if (!chosen->counts) {
    return FailedPreconditionError(chosen->directory +
                                   (chosen->foreign ? " is another job's" : " does not count") +
                                   "; only the job's own checkpoints are compacted");
  }
  // Before the repository is taken: what cannot be put together is told at once.
  auto chain = ChainIndex(view.checkpoints).Resolve(*chosen);
  if (!chain.ok()) {
    return CorruptionError(chosen->directory + " " + std::string(chain.status().message()));
  }
  return Compactor(env, control).Run(chosen->manifest->id, takeover);
}

Result<CompactReport> CompactCheckpoint(const std::string& directory,
                                        const CheckpointChoice& choice,
                                        const TransferControl& control, bool takeover) {
  ASSIGN_OR_RETURN(const Environment env, ExistingDirectory(directory));
  return CompactIn(env, choice, control, takeover);
}

}  // namespace cairn
