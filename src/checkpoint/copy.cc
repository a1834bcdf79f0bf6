#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/stored_bytes.h"
#include "checkpoint/transfer.h"

namespace cairn {
namespace {

/// The name that the copy's directory should have: the source's, if a sweep would know it as a
/// checkpoint's.
std::string DirectoryFor(const Checkpoint& checkpoint) {
  const bool increment = checkpoint.manifest->kind == CheckpointKind::kIncrement;
  if (checkpoint.directory.starts_with(increment ? "increment_" : "checkpoint_")) {
    return checkpoint.directory;
  }
  return names::CheckpointDirectory(increment, /*serial=*/false, checkpoint.manifest->step, 1);
}

bool IsGone(Store* store, const Checkpoint& checkpoint) {
  return store->Stat(names::Path(checkpoint.directory, names::kManifest))
      .status()
      .Is(Code::kNotFound);
}

/// The same repository under two names; false when that cannot be told.
bool SamePlace(const std::string& a, const std::string& b) {
  const auto without_slash = [](std::string_view where) {
    while (where.ends_with('/')) where.remove_suffix(1);
    return where;
  };
  if (IsRemote(a) || IsRemote(b)) return without_slash(a) == without_slash(b);
  const auto first = LocalPath(a);
  const auto second = LocalPath(b);
  std::error_code error;
  return first.ok() && second.ok() && std::filesystem::equivalent(*first, *second, error);
}

/// Copies from one repository into one other. One use, one thread.
class Copier {
 public:
  Copier(const Environment& source, const Environment& target, const TransferControl& control)
      : source_(source), target_(target), control_(control) {}

  Result<CopyReport> Run(const std::string& job, const std::vector<const Checkpoint*>& chosen,
                         bool takeover) {
    ASSIGN_OR_RETURN(const std::vector<const Checkpoint*> missing, Missing(chosen));
    if (missing.empty()) return std::move(report_);
    for (const Checkpoint* checkpoint : missing) total_ += checkpoint->manifest->Bytes();
    const auto goes_on = [&](const MarkerRecord& marker) {
      return std::any_of(missing.begin(), missing.end(), [&](const Checkpoint* checkpoint) {
        return checkpoint->manifest->id == marker.copies;
      });
    };
    ASSIGN_OR_RETURN(const std::unique_ptr<Generation> generation,
                     OpenForTool(target_, {.job = job, .takeover = takeover, .spare = goes_on}));
    left_ = generation->spared();
    ASSIGN_OR_RETURN(committer_, IncomingCommitter::Open(target_, generation.get()));
    for (const Checkpoint* checkpoint : missing) {
      // Another copy may have been quicker between the look and the opening.
      const auto& sealed = generation->sealed();
      const auto there = std::find_if(sealed.begin(), sealed.end(), [&](const Checkpoint& other) {
        return other.manifest->id == checkpoint->manifest->id;
      });
      if (there != sealed.end()) {
        report_.already_there.push_back(MakeInfo(*target_.store, *there));
      } else {
        RETURN_IF_ERROR(
            WithRemedy(CopyOne(*checkpoint))
                .WithContext("copy step " + std::to_string(checkpoint->manifest->step)));
      }
      done_ += checkpoint->manifest->Bytes();
    }
    RETURN_IF_ERROR(generation->SweepSpared());
    WarnOfOrder(*chosen.back(), *missing.back());
    return std::move(report_);
  }

 private:
  Status WithRemedy(Status copied) const {
    if (!copied.Is(Code::kCorruption)) return copied;
    return CorruptionError(std::string(copied.message()) +
                           "; copy another step (`cairn checkpoint " + "verify " +
                           source_.store->Describe() + "` shows which are whole)");
  }

  /// What is copied last is the latest in the target.
  void WarnOfOrder(const Checkpoint& newest, const Checkpoint& last) {
    if (&newest == &last || report_.copied.empty()) return;
    const std::string step = std::to_string(newest.manifest->step);
    const std::string target = target_.store->Describe();
    LogWarning("step " + step + " was in \"" + target + "\" before, so the one copied last (step " +
               std::to_string(last.manifest->step) +
               ") is the latest there; to change that, `cairn " + "checkpoint rm " + target + " " +
               step + "` and copy it again");
  }

  /// Those of `chosen` that do not count in the target yet.
  Result<std::vector<const Checkpoint*>> Missing(const std::vector<const Checkpoint*>& chosen) {
    RepositoryReader reader(target_.store.get());
    auto view = reader.Read();
    if (view.status().Is(Code::kNotFound)) return chosen;
    if (!view.ok()) return view.status();
    std::vector<const Checkpoint*> missing;
    for (const Checkpoint* checkpoint : chosen) {
      const Checkpoint* there = nullptr;
      for (const Checkpoint& other : view->checkpoints) {
        if (other.counts && other.manifest->id == checkpoint->manifest->id) there = &other;
      }
      if (there == nullptr) {
        missing.push_back(checkpoint);
        continue;
      }
      const auto whole =
          OpenCheckpoint::Open(target_.store.get(), there->directory, there->manifest);
      if (!whole.ok()) {
        return FailedPreconditionError(
            "step " + std::to_string(checkpoint->manifest->step) +
            " is there already but is damaged: " + std::string(whole.status().message()) +
            "; remove it (`cairn checkpoint rm`) and copy again");
      }
      report_.already_there.push_back(MakeInfo(*target_.store, *there));
    }
    return missing;
  }

  /// Where copies of the checkpoint that were cut short may have left the file.
  std::vector<std::string> LeftBehind(const Checkpoint& checkpoint, const std::string& path) const {
    std::vector<std::string> names;
    for (const SparedAttempt& attempt : left_) {
      if (attempt.marker.copies != checkpoint.manifest->id) continue;
      names.push_back(names::Path(attempt.directory, path));
    }
    return names;
  }

  Status CopyOne(const Checkpoint& checkpoint) {
    auto opened =
        OpenCheckpoint::Open(source_.store.get(), checkpoint.directory, checkpoint.manifest);
    if (opened.status().Is(Code::kNotFound) && IsGone(source_.store.get(), checkpoint)) {
      report_.vanished.push_back(checkpoint.directory);
      return Status::Ok();
    }
    if (!opened.ok()) return opened.status();
    StoredBytes bytes(source_.store.get(), opened->get());
    IncomingFiles files;
    files.progress_before = done_;
    files.progress_total = total_;
    files.copies = checkpoint.manifest->id;
    std::uint64_t shared = 0;
    for (std::size_t i = 0; i < (*opened)->files().size(); ++i) {
      ManifestFile file = *(*opened)->files()[i].entry;
      ASSIGN_OR_RETURN(file.ref, committer_->Shareable(file.hash, control_));
      if (!file.ref.empty()) {
        shared += file.hash.bytes;
        files.AddShared(std::move(file));
      } else {
        files.AddCopy(file.path, file.part, file.hash,
                      std::make_unique<StoredFileSource>(&bytes, i, /*begin=*/0),
                      LeftBehind(checkpoint, file.path));
      }
    }
    files.progress_before += shared;
    const std::uint64_t needed = files.bytes();
    Manifest manifest = *checkpoint.manifest;
    manifest.metrics = checkpoint.Metrics();
    if (!manifest.lineage.is_object()) manifest.lineage = Value::Object{};
    (*manifest.lineage.if_object())["copied_from"] =
        Value::Object{{"repository", LineagePath(source_.store->Describe())},
                      {"job", checkpoint.manifest->job},
                      {"generation", checkpoint.manifest->generation},
                      {"sequence", checkpoint.manifest->sequence}};
    auto committed = committer_->Commit(std::move(manifest), DirectoryFor(checkpoint),
                                        std::move(files), /*rebuild_index=*/false, control_);
    if (committed.status().Is(Code::kNotFound) && IsGone(source_.store.get(), checkpoint)) {
      report_.vanished.push_back(checkpoint.directory);
      return Status::Ok();
    }
    if (!committed.ok()) return committed.status();
    report_.bytes += needed - committer_->bytes_adopted();
    report_.bytes_resumed += committer_->bytes_adopted();
    report_.bytes_shared += shared;
    report_.copied.push_back(MakeInfo(*target_.store, *committed));
    return Status::Ok();
  }

  const Environment& source_;
  const Environment& target_;
  const TransferControl& control_;
  std::unique_ptr<IncomingCommitter> committer_;
  std::vector<SparedAttempt> left_;  // of copies that were cut short
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  CopyReport report_;
};

}  // namespace

Result<std::vector<const Checkpoint*>> ChooseForCopy(const RepositoryView& view,
                                                     const std::string& where,
                                                     const CopyRequest& request) {
  std::set<const Checkpoint*> wanted;
  if (request.all) {
    for (const DamagedCheckpoint& damaged : view.damaged) {
      LogWarning("\"" + where + "\": " + damaged.directory +
                 " is not copied: " + std::string(damaged.status.message()));
    }
    for (const Checkpoint& checkpoint : view.checkpoints) {
      if (checkpoint.counts) wanted.insert(&checkpoint);
    }
    if (wanted.empty()) RETURN_IF_ERROR(Choose(view, where, {}).status());
  } else {
    for (const CheckpointChoice& choice : request.choices) {
      ASSIGN_OR_RETURN(const Checkpoint* chosen, Choose(view, where, choice));
      wanted.insert(chosen);
    }
  }
  // An increment is nothing without what it builds on.
  const ChainIndex index(view.checkpoints);
  for (const Checkpoint* chosen : std::vector(wanted.begin(), wanted.end())) {
    const auto chain = index.Resolve(*chosen);
    if (!chain.ok()) {
      return CorruptionError("the increment of step " + std::to_string(chosen->manifest->step) +
                             " in \"" + where + "\" " + std::string(chain.status().message()));
    }
    wanted.insert(chain->begin(), chain->end());
  }
  std::vector<const Checkpoint*> ordered;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (wanted.contains(&checkpoint)) ordered.push_back(&checkpoint);
  }
  return ordered;
}

Result<CopyReport> CopyInto(const Environment& source, const RepositoryView& view,
                            const std::vector<const Checkpoint*>& chosen, const Environment& target,
                            const CopyRequest& request, const TransferControl& control) {
  RepositoryReader reader(target.store.get());
  const auto record = reader.ReadRecord();
  if (!record.ok() && !record.status().Is(Code::kNotFound)) return record.status();
  if (record.ok() && !request.adopt) {
    for (const Checkpoint* checkpoint : chosen) {
      if (checkpoint->manifest->job == record->job) continue;
      return FailedPreconditionError(
          "\"" + target.store->Describe() + "\" belongs to the job \"" + record->job +
          "\", the checkpoint to the job \"" + checkpoint->manifest->job +
          "\"; copy into a new directory, or with adopt (--adopt) to make it that job's own");
    }
  }
  return Copier(source, target, control).Run(view.record.job, chosen, request.takeover);
}

Result<CopyReport> CopyCheckpoints(const CopyRequest& request, const TransferControl& control) {
  ASSIGN_OR_RETURN(const Environment source, ExistingDirectory(request.source));
  RETURN_IF_ERROR(CheckPath(request.target));
  if (SamePlace(request.source, request.target)) {
    return InvalidArgumentError("\"" + request.source + "\" and \"" + request.target +
                                "\" are the same repository");
  }
  RepositoryReader reader(source.store.get());
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  ASSIGN_OR_RETURN(const std::vector<const Checkpoint*> chosen,
                   ChooseForCopy(view, request.source, request));
  ASSIGN_OR_RETURN(const Environment target, EnvironmentAt(request.target, {.create = true}));
  return CopyInto(source, view, chosen, target, request, control);
}

}  // namespace cairn
