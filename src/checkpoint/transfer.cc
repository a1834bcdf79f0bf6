#include "checkpoint/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/names.h"
#include "checkpoint/publish_manifest.h"
#include "format/json.h"
#include "format/records.h"

// Bringing in a checkpoint from elsewhere, and why in this order:
//
//  1. The caller opened a generation: fence and seal are published, so an older writer that is
//     still alive finds itself overtaken, and what we commit counts under our seal.
//  2. Claim a free directory with a create-only marker, which also tells a later sweep whose
//     garbage it is should we stop here.
//  3. Write or link every file; of a copy that was cut short, take over what it left, after what
//     it left unfinished was finished in its place. Take over, never refer to it: its process may
//     be alive, and delete its files by their names. Should it still write, it writes the same.
//     For all of them: bytes and names are durable before anything refers to them. What
//     was copied is compared with what its first manifest said.
//  4. Publish the manifest, create-only and durable: the commit.
//  5. Re-read the fence, and only then call it done: without a newer fence every later opener lists
//     after ours and seals it.

namespace cairn {
namespace {

// As in the engine's own saves: a file is written anew rather than linked once more often.
constexpr std::uint64_t kMaxLinks = 8;

}  // namespace

Result<std::uint64_t> NewestRun(const Environment& env) {
  RepositoryReader reader(env.store.get());
  ASSIGN_OR_RETURN(const std::uint64_t newest, reader.NewestFence());
  if (newest == 0) return std::uint64_t{0};
  ASSIGN_OR_RETURN(const std::string bytes, env.store->Get(names::Fence(newest), kMaxRecordBytes));
  const auto fence = Decode<FenceRecord>(bytes);
  return fence.ok() ? fence->run : 0;
}

Result<std::unique_ptr<Generation>> OpenBriefly(const Environment& env, BriefOptions brief) {
  GenerationOptions options;
  options.spare = std::move(brief.spare);
  options.takeover = brief.takeover;
  options.ends_with_object = true;
  options.participants = {names::Participant("rank", 0)};
  ASSIGN_OR_RETURN(options.run, NewestRun(env));
  RepositoryReader reader(env.store.get());
  if (reader.ReadRecord().status().Is(Code::kNotFound)) options.job = std::move(brief.job);
  return Generation::Open(env, std::move(options));
}

Result<std::unique_ptr<Generation>> OpenForTool(const Environment& env, BriefOptions options) {
  Environment tool = env;
  tool.tool = true;
  return OpenBriefly(tool, std::move(options));
}

std::string LineagePath(const std::string& path) { return IsValidUtf8(path) ? path : ""; }

Status CheckRoom(const Environment& env, std::uint64_t bytes) {
  ASSIGN_OR_RETURN(const std::optional<std::uint64_t> free, env.store->FreeBytes());
  if (!free || bytes <= *free) return Status::Ok();
  return ResourceExhaustedError(fmt::format(
      "no space: {} bytes are needed, \"{}\" has {} free; remove checkpoints there (`cairn "
      "checkpoint rm`), or use another disk",
      bytes, env.store->Describe(), *free));
}

Result<const Checkpoint*> Choose(const RepositoryView& view, const std::string& where,
                                 const CheckpointChoice& choice) {
  const Checkpoint* chosen = nullptr;
  std::string steps;
  int listed = 0;
  for (auto it = view.checkpoints.rbegin(); it != view.checkpoints.rend(); ++it) {
    const Manifest& manifest = *it->manifest;
    if (!choice.id.empty()) {
      // A directory that was put back by hand has the id too, and does not count.
      if (manifest.id == choice.id && !it->removed && (chosen == nullptr || it->counts)) {
        chosen = &*it;
      }
    } else if (it->counts && (!choice.step || manifest.step == *choice.step)) {
      if (chosen == nullptr) chosen = &*it;
    }
    if (it->counts && ++listed <= 10) {
      steps += (steps.empty() ? "" : ", ") + std::to_string(manifest.step);
    }
  }
  if (chosen == nullptr) RETURN_IF_ERROR(view.CheckAllRead());  // that may be the one
  for (const DamagedCheckpoint& damaged : view.damaged) {
    if (!damaged.unread || !choice.id.empty()) continue;
    LogWarning("\"" + where + "\": step " + std::to_string(chosen->manifest->step) +
               " is taken without a look at " + damaged.directory +
               ", which cannot be read: " + std::string(damaged.status.message()));
  }
  if (chosen != nullptr) return chosen;
  if (listed > 10) steps += fmt::format(" and {} more", listed - 10);
  if (listed == 0) steps = "none";
  const std::string which = !choice.id.empty() ? " with the id " + choice.id
                            : choice.step      ? " of step " + std::to_string(*choice.step)
                                               : "";
  return NotFoundError("\"" + where + "\" has no checkpoint" + which + "; steps there: " + steps);
}

Result<std::unique_ptr<IncomingCommitter>> IncomingCommitter::Open(const Environment& env,
                                                                   Generation* generation) {
  std::unique_ptr<IncomingCommitter> committer(new IncomingCommitter(env, generation));
  committer->checkpoints_ = generation->sealed();
  ASSIGN_OR_RETURN(const Listing root, env.store->List(""));
  committer->directories_.insert(root.prefixes.begin(), root.prefixes.end());
  committer->directories_.insert(root.unreachable.begin(), root.unreachable.end());
  committer->directories_.insert(generation->retired().begin(), generation->retired().end());
  return committer;
}

Result<bool> IncomingCommitter::IsIntact(const std::string& location, const FileHash& hash,
                                         const TransferControl& control) {
  if (!env_.store->traits().hard_links) return true;  // those that give references keep checksums
  if (const auto known = intact_.find(location); known != intact_.end()) return known->second;
  const auto has = HasBytes(env_.store.get(), location, hash, 0, control.cancelled);
  if (WasCutShort(has.status())) return has.status();
  const bool intact = has.ok() && *has;
  if (!intact) {
    LogWarning("\"" + env_.store->Describe() + "\": " + location + " is damaged (" +
               (has.ok() ? "its bytes are not those of its manifest"
                         : std::string(has.status().message())) +
               "): the file is written anew instead of shared; `cairn checkpoint verify` tells "
               "which checkpoints have it");
  }
  intact_[location] = intact;
  return intact;
}

Result<std::string> IncomingCommitter::Shareable(const FileHash& hash,
                                                 const TransferControl& control) {
  if (hash.bytes == 0) return std::string();
  for (auto it = checkpoints_.rbegin(); it != checkpoints_.rend(); ++it) {
    for (const ManifestFile& file : it->manifest->files) {
      if (file.hash != hash) continue;
      std::string location = file.ref.empty() ? names::Path(it->directory, file.path) : file.ref;
      const auto stat = env_.store->Stat(location);
      if (stat.status().Is(Code::kNotFound)) continue;  // removed by hand
      if (!stat.ok()) return stat.status();
      if (stat->bytes != hash.bytes) continue;
      if (env_.store->traits().hard_links) {
        ASSIGN_OR_RETURN(const std::uint64_t links, env_.store->LinkCount(location));
        if (links >= kMaxLinks) continue;
      }
      ASSIGN_OR_RETURN(const bool intact, IsIntact(location, hash, control));
      if (intact) return location;
    }
  }
  return std::string();
}

Result<std::string> IncomingCommitter::Claim(const std::string& wish, const MarkerRecord& marker) {
  int copy = 0;
  return ClaimDirectory(env_, marker, [&] {
    std::string directory;
    do {
      ++copy;
      directory = copy == 1 ? wish : wish + "-" + std::to_string(copy);
    } while (!directories_.insert(directory).second);
    return directory;
  });
}

void IncomingCommitter::CleanUp(const std::string& directory,
                                const std::vector<std::string>& created) {
  for (auto it = created.rbegin(); it != created.rend(); ++it) {
    if (std::next(it) == created.rend()) PruneBelow(env_.store.get(), directory);
    env_.store->Delete(*it).IgnoreError("what stays is swept at the next opening");
  }
  env_.store->PruneDirectories(directory).IgnoreError("empty directories are harmless");
  directories_.erase(directory);
}

Status IncomingCommitter::ShareFiles(const std::string& directory,
                                     const std::vector<ManifestFile>& files, Manifest* manifest,
                                     std::vector<std::string>* created) {
  for (ManifestFile file : files) {
    if (env_.store->traits().hard_links) {
      env_.Step("save: link");
      const std::string name = names::Path(directory, file.path);
      RETURN_IF_ERROR(env_.store->Link(file.ref, name));
      created->push_back(name);
      file.ref.clear();
    }
    manifest->files.push_back(std::move(file));
  }
  return Status::Ok();
}

Status IncomingCommitter::WriteIndex(const std::string& directory, Manifest* manifest,
                                     std::vector<std::string>* created) {
  auto files = std::make_shared<Manifest>();
  files->files = manifest->files;
  ASSIGN_OR_RETURN(const std::unique_ptr<OpenCheckpoint> open,
                   OpenCheckpoint::Open(env_.store.get(), directory, files));
  // Pieces that do not make whole arrays are better found now than at a restore.
  RETURN_IF_ERROR(open->ReadCatalog(TensorGroup::kModel, "").status());
  ASSIGN_OR_RETURN(const SafetensorsIndex index, open->BuildIndex());
  const std::string bytes = EncodeSafetensorsIndex(index);
  const std::string name = names::Path(directory, names::kIndex);
  created->push_back(name);
  RETURN_IF_ERROR(env_.store->Put(name, bytes));
  FileHasher hasher;
  hasher.Update(std::as_bytes(std::span(bytes)));
  ManifestFile entry;
  entry.path = names::kIndex;
  entry.hash = hasher.Finish();
  manifest->files.push_back(std::move(entry));
  return Status::Ok();
}

Status IncomingCommitter::Fill(const std::string& directory, IncomingFiles* files,
                               bool rebuild_index, const TransferControl& control,
                               Manifest* manifest, std::vector<std::string>* created) {
  manifest->files.clear();
  RETURN_IF_ERROR(ShareFiles(directory, files->shared(), manifest, created));
  ASSIGN_OR_RETURN(const std::vector<ManifestFile> adopted,
                   files->Adopt(env_, directory, control, created));
  for (const ManifestFile& file : adopted) bytes_adopted_ += file.hash.bytes;
  manifest->files.insert(manifest->files.end(), adopted.begin(), adopted.end());
  std::uint64_t bytes_kept = 0;
  ASSIGN_OR_RETURN(const std::vector<ManifestFile> resumed,
                   files->Resume(env_, directory, control, created, &bytes_kept));
  bytes_adopted_ += bytes_kept;
  manifest->files.insert(manifest->files.end(), resumed.begin(), resumed.end());
  // Syncs the names of the linked files too.
  ASSIGN_OR_RETURN(std::vector<ManifestFile> written,
                   files->Write(env_, directory, control, created));
  std::move(written.begin(), written.end(), std::back_inserter(manifest->files));
  std::sort(manifest->files.begin(), manifest->files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
  if (rebuild_index) RETURN_IF_ERROR(WriteIndex(directory, manifest, created));
  return Status::Ok();
}

Result<Checkpoint> IncomingCommitter::Commit(Manifest manifest, const std::string& directory,
                                             IncomingFiles files, bool rebuild_index,
                                             const TransferControl& control, bool keep_place) {
  RETURN_IF_ERROR(CheckRoom(env_, files.RoomNeeded(env_.store->traits().hard_links)));
  manifest.job = generation_->job();
  manifest.compacted = keep_place ? generation_->number() : 0;
  if (!keep_place) {
    manifest.generation = generation_->number();
    manifest.sequence = sequence_ + 1;
  }
  manifest.attempt = env_.ids->NewUuid();
  Checkpoint checkpoint;
  bytes_adopted_ = 0;
  ASSIGN_OR_RETURN(checkpoint.directory, Claim(directory, {.generation = generation_->number(),
                                                           .attempt = manifest.attempt,
                                                           .copies = files.copies,
                                                           .participants = manifest.participants}));
  std::vector<std::string> created = {names::Path(checkpoint.directory, names::kMarker)};
  auto commitment = Commitment::kNotThere;
  Status status = Fill(checkpoint.directory, &files, rebuild_index, control, &manifest, &created);
  if (status.ok()) {
    status = PublishManifest(env_, checkpoint.directory, manifest, false, &commitment);
  }
  if (!status.ok()) {
    const bool goes_on = !files.copies.empty() && WasCutShort(status);
    if (commitment == Commitment::kNotThere && !goes_on) CleanUp(checkpoint.directory, created);
    return status;
  }
  ++sequence_;
  env_.Step("save: fence");
  RETURN_IF_ERROR(generation_->CheckFence());
  checkpoint.manifest = std::make_shared<const Manifest>(std::move(manifest));
  checkpoint.counts = true;
  for (const ManifestFile& file : checkpoint.manifest->files) {
    if (file.ref.empty()) intact_[names::Path(checkpoint.directory, file.path)] = true;
  }
  checkpoints_.push_back(checkpoint);
  return checkpoint;
}

}  // namespace cairn
