#include "checkpoint/restore_point.h"

#include <utility>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"

namespace cairn {

Result<OpenRestorePoint> OpenRestorePoint::Open(Store* store, const Chain& chain) {
  OpenRestorePoint point;
  for (const Checkpoint* checkpoint : chain) {
    auto open = OpenCheckpoint::Open(store, checkpoint->directory, checkpoint->manifest);
    if (!open.ok()) return open.status();
    point.open_.push_back(*std::move(open));
  }
  return point;
}

std::vector<OpenCheckpoint*> OpenRestorePoint::chain() const {
  std::vector<OpenCheckpoint*> all;
  for (const auto& open : open_) all.push_back(open.get());
  return all;
}

Result<Restored> RestorePoint(Store* store, const Chain& chain, const RestoreRequest& request,
                              const std::string& participant) {
  ASSIGN_OR_RETURN(const OpenRestorePoint point, OpenRestorePoint::Open(store, chain));
  ASSIGN_OR_RETURN(Restored restored,
                   RestoreChain(store, point.chain(), request, participant, request.progress));
  restored.info = MakeInfo(*store, *chain.back());
  restored.metrics = restored.info.metrics;
  return restored;
}

Status JudgeRestoreFailure(RepositoryReader* reader, const Checkpoint& checkpoint,
                           const Status& failure) {
  if (!failure.Is(Code::kNotFound)) return failure;
  const auto still = reader->ReadManifest(checkpoint.directory);
  const bool removed =
      still.status().Is(Code::kNotFound) || (still.ok() && still->id != checkpoint.manifest->id);
  return removed ? failure : CorruptionError(std::string(failure.message()));
}

Result<std::vector<Checkpoint>> ReadSiblings(Store* store) {
  RepositoryReader reader(store);
  if (auto view = reader.Read(); view.ok()) return std::move(view->checkpoints);
  ASSIGN_OR_RETURN(const Listing root, store->List(""));
  std::vector<Checkpoint> siblings;
  for (const std::string& directory : root.prefixes) {
    auto manifest = reader.ReadManifest(directory);
    if (!manifest.ok()) continue;  // whatever it is, no increment can build on it
    Checkpoint checkpoint;
    checkpoint.directory = directory;
    checkpoint.manifest = std::make_shared<const Manifest>(*std::move(manifest));
    siblings.push_back(std::move(checkpoint));
  }
  return siblings;
}

Result<Restored> RestoreDirectory(Store* store, const std::string& directory,
                                  const RestoreRequest& request, const std::string& participant,
                                  const std::string& job) {
  RepositoryReader reader(store);
  Checkpoint checkpoint;
  checkpoint.directory = directory;
  ASSIGN_OR_RETURN(Manifest manifest, reader.ReadManifest(directory));
  checkpoint.manifest = std::make_shared<const Manifest>(std::move(manifest));
  ASSIGN_OR_RETURN(checkpoint.notes, reader.ReadNotes(directory, checkpoint.manifest->id));
  checkpoint.foreign = checkpoint.manifest->job != job;
  if (checkpoint.manifest->kind == CheckpointKind::kFull) {
    auto restored = RestorePoint(store, {&checkpoint}, request, participant);
    if (!restored.ok()) return JudgeRestoreFailure(&reader, checkpoint, restored.status());
    return restored;
  }
  ASSIGN_OR_RETURN(const std::vector<Checkpoint> siblings, ReadSiblings(store));
  auto chain = ChainIndex(siblings).Resolve(checkpoint);
  if (!chain.ok()) return CorruptionError("it " + std::string(chain.status().message()));
  auto restored = RestorePoint(store, *chain, request, participant);
  if (!restored.ok()) return JudgeRestoreFailure(&reader, checkpoint, restored.status());
  return restored;
}

}  // namespace cairn
