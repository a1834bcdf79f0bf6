#include "checkpoint/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/publish_manifest.h"
#include "format/json.h"
#include "format/records.h"
#include "storage/adopting_store.h"

// Bringing in a checkpoint from elsewhere, and why in this order:
//
//  1. The caller opened a generation: fence and seal are published, so an older writer that is
//     still alive finds itself overtaken, and what we commit counts under our seal.
//  2. Claim a free directory with a create-only marker, which also tells a later sweep whose
//     garbage it is should we stop here.
//  3. Write or link every file; of a copy that was cut short, take over what it left. Take over,
//     never refer to it: its process may be alive, and delete its files by their names.
//     For all of them: bytes and names are durable before anything refers to them. What
//     was copied is compared with what its first manifest said.
//  4. Publish the manifest, create-only and durable: the commit.
//  5. Re-read the fence, and only then call it done: without a newer fence every later opener lists
//     after ours and seals it.

namespace cairn {
namespace {

// As in the engine's own saves: a file is written anew rather than linked once more often.
constexpr std::uint64_t kMaxLinks = 8;

/// Whether the object has the bytes of the hash.
Result<bool> HasBytes(Store* store, const std::string& name, const FileHash& hash) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ObjectReader> reader, store->OpenReader(name));
  if (reader->bytes() != hash.bytes) return false;
  FileHasher hasher;
  std::vector<std::byte> block(std::min<std::uint64_t>(hash.bytes, kChunkBytes));
  for (std::uint64_t offset = 0; offset < hash.bytes; offset += block.size()) {
    const std::span<std::byte> piece(block.data(),
                                     std::min<std::uint64_t>(block.size(), hash.bytes - offset));
    RETURN_IF_ERROR(reader->Read(offset, piece));
    hasher.Update(piece);
  }
  return hasher.Finish() == hash;
}

/// Gives `from`, what an earlier copy left, the name `to`. False when it is not there, not whole,
/// or cannot be taken over.
Result<bool> TakeOver(Store* store, AdoptingStore* adopting, const std::string& from,
                      const std::string& to, const FileHash& hash) {
  const auto there = store->Stat(from);
  if (there.status().Is(Code::kNotFound)) return false;
  if (!there.ok()) return there.status();
  if (there->bytes != hash.bytes) return false;
  const Status adopted = adopting->Adopt(from, to);
  if (adopted.Is(Code::kNotFound) || adopted.Is(Code::kUnimplemented) ||
      adopted.Is(Code::kResourceExhausted)) {
    return false;
  }
  RETURN_IF_ERROR(adopted);
  if (store->traits().hard_links) {
    ASSIGN_OR_RETURN(const bool whole, HasBytes(store, to, hash));
    if (whole) return true;
  } else {
    const auto arrived = store->Stat(to);
    if (!arrived.ok() && !arrived.status().Is(Code::kNotFound)) return arrived.status();
    if (arrived.ok() && arrived->bytes == hash.bytes) return true;
  }
  const Status deleted = store->Delete(to);
  if (!deleted.ok() && !deleted.Is(Code::kNotFound)) return deleted;
  return false;
}

/// After these the same copy may be started again, and goes on.
bool WasCutShort(const Status& status) {
  return status.Is(Code::kCancelled) || status.Is(Code::kUnavailable) ||
         status.Is(Code::kDeadlineExceeded);
}

}  // namespace

Status ExplainLivingWriter(const Environment& env, Status status) {
  if (!status.Is(Code::kUnavailable)) return status;
  Store* store = env.store.get();
  RepositoryReader reader(store);
  const auto newest = reader.NewestFence();
  if (!newest.ok() || *newest == 0) return status;
  const auto bytes = store->Get(names::Fence(*newest), kMaxRecordBytes);
  if (!bytes.ok()) return status;
  const auto fence = Decode<FenceRecord>(*bytes);
  if (!fence.ok()) return status;
  return UnavailableError(
      fmt::format("\"{}\" is being written by the process {} on {}: wait until it ends or stop it",
                  store->Describe(), fence->pid, fence->host));
}

Result<std::uint64_t> NewestRun(const Environment& env) {
  RepositoryReader reader(env.store.get());
  ASSIGN_OR_RETURN(const std::uint64_t newest, reader.NewestFence());
  if (newest == 0) return std::uint64_t{0};
  ASSIGN_OR_RETURN(const std::string bytes, env.store->Get(names::Fence(newest), kMaxRecordBytes));
  const auto fence = Decode<FenceRecord>(bytes);
  return fence.ok() ? fence->run : 0;
}

Result<std::unique_ptr<Generation>> OpenForTool(const Environment& env, const std::string& job,
                                                std::function<bool(const MarkerRecord&)> spare) {
  GenerationOptions options;
  options.spare = std::move(spare);
  options.participants = {names::Participant("rank", 0)};
  ASSIGN_OR_RETURN(options.run, NewestRun(env));
  RepositoryReader reader(env.store.get());
  if (reader.ReadRecord().status().Is(Code::kNotFound)) options.job = job;
  auto generation = Generation::Open(env, std::move(options));
  if (!generation.ok()) return ExplainLivingWriter(env, generation.status());
  return generation;
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
  if (chosen != nullptr) return chosen;
  if (listed > 10) steps += fmt::format(" and {} more", listed - 10);
  if (listed == 0) steps = "none";
  const std::string which = !choice.id.empty() ? " with the id " + choice.id
                            : choice.step      ? " of step " + std::to_string(*choice.step)
                                               : "";
  return NotFoundError("\"" + where + "\" has no checkpoint" + which + "; steps there: " + steps);
}

PlannedFile* IncomingFiles::Add(std::string path, std::string part, std::uint64_t bytes,
                                const FileHash* expected) {
  PlannedFile file;
  file.path = std::move(path);
  file.bytes = bytes;
  file.streamed = true;
  plan_.total_bytes += bytes;
  plan_.files.push_back(std::move(file));
  parts_.push_back(std::move(part));
  expected_.push_back(expected == nullptr ? std::nullopt : std::optional(*expected));
  left_.emplace_back();
  return &plan_.files.back();
}

void IncomingFiles::AddCopy(std::string path, std::string part, const FileHash& hash,
                            std::unique_ptr<TensorSource> source, std::vector<std::string> left) {
  PlannedFile* file = Add(std::move(path), std::move(part), hash.bytes, &hash);
  left_.back() = std::move(left);
  PlannedTensor tensor;
  tensor.index = request_.tensors.size();
  tensor.bytes = hash.bytes;
  file->tensors.push_back(std::move(tensor));
  request_.tensors.push_back({.name = file->path, .source = source.get()});
  sources_.push_back(std::move(source));
}

void IncomingFiles::AddBytes(std::string path, std::string part, std::string bytes) {
  PlannedFile* file = Add(std::move(path), std::move(part), bytes.size(), nullptr);
  file->head = std::move(bytes);
}

void IncomingFiles::AddTensors(std::string path, std::string part, std::string head,
                               const std::vector<TensorEntry>& entries,
                               std::vector<std::unique_ptr<TensorSource>> sources) {
  const std::uint64_t data = entries.empty() ? 0 : entries.back().end;
  PlannedFile* file = Add(std::move(path), std::move(part), head.size() + data, nullptr);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    PlannedTensor tensor;
    tensor.index = request_.tensors.size();
    tensor.stored_name = entries[i].name;
    tensor.file_offset = head.size() + entries[i].begin;
    tensor.bytes = entries[i].end - entries[i].begin;
    file->tensors.push_back(std::move(tensor));
    request_.tensors.push_back({.name = entries[i].name, .source = sources[i].get()});
    sources_.push_back(std::move(sources[i]));
  }
  file->head = std::move(head);
}

std::uint64_t IncomingFiles::RoomNeeded(bool links) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    if (!links || left_[i].empty()) bytes += plan_.files[i].bytes;
  }
  return bytes;
}

Result<std::vector<ManifestFile>> IncomingFiles::Adopt(const Environment& env,
                                                       const std::string& directory,
                                                       const TransferControl& control,
                                                       std::vector<std::string>* created) {
  std::vector<ManifestFile> adopted;
  AdoptingStore* const adopting = FindAdopting(env.store.get());
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    if (!left_[i].empty()) candidates.push_back(i);
  }
  if (adopting == nullptr || candidates.empty()) return adopted;
  for (const std::size_t i : candidates) {
    created->push_back(names::Path(directory, plan_.files[i].path));
  }
  std::vector<Result<bool>> outcomes(candidates.size(), false);
  ForEachRequest(*env.store, candidates.size(), [&](std::size_t c) {
    const std::size_t i = candidates[c];
    const std::string to = names::Path(directory, plan_.files[i].path);
    for (const std::string& from : left_[i]) {
      if (control.cancelled && control.cancelled()) {
        outcomes[c] = CancelledError("interrupted");
        return;
      }
      env.Step("copy: adopt");
      outcomes[c] = TakeOver(env.store.get(), adopting, from, to, *expected_[i]);
      if (!outcomes[c].ok() || *outcomes[c]) return;
    }
  });
  for (std::size_t c = candidates.size(); c-- > 0;) {
    RETURN_IF_ERROR(outcomes[c].status());
    if (!*outcomes[c]) continue;
    const auto i = static_cast<std::ptrdiff_t>(candidates[c]);
    ManifestFile file;
    file.path = plan_.files[candidates[c]].path;
    file.part = parts_[candidates[c]];
    file.hash = *expected_[candidates[c]];
    plan_.total_bytes -= file.hash.bytes;
    progress_before += file.hash.bytes;
    adopted.push_back(std::move(file));
    plan_.files.erase(plan_.files.begin() + i);
    parts_.erase(parts_.begin() + i);
    expected_.erase(expected_.begin() + i);
    left_.erase(left_.begin() + i);
  }
  return adopted;
}

Result<std::vector<ManifestFile>> IncomingFiles::Write(const Environment& env,
                                                       const std::string& directory,
                                                       const TransferControl& control,
                                                       std::vector<std::string>* created) {
  WriteProgress progress;
  FileWriterInput input;
  input.plan = &plan_;
  input.request = &request_;
  input.directory = directory;
  input.expected = &expected_;
  input.cancelled = [&] {
    if (control.progress) {
      control.progress(progress_before + progress.written,
                       std::max(progress_total, plan_.total_bytes));
    }
    return control.cancelled && control.cancelled();
  };
  StreamRing ring;
  WrittenFiles written;
  Status status = WriteFiles(env, input, &ring, &progress, &written);
  std::move(written.created.begin(), written.created.end(), std::back_inserter(*created));
  if (status.Is(Code::kCancelled)) return CancelledError("interrupted");
  RETURN_IF_ERROR(status);
  input.cancelled();
  for (std::size_t i = 0; i < written.files.size(); ++i) written.files[i].part = parts_[i];
  return std::move(written.files);
}

Result<std::unique_ptr<IncomingCommitter>> IncomingCommitter::Open(const Environment& env,
                                                                   Generation* generation) {
  std::unique_ptr<IncomingCommitter> committer(new IncomingCommitter(env, generation));
  committer->checkpoints_ = generation->sealed();
  ASSIGN_OR_RETURN(const Listing root, env.store->List(""));
  committer->directories_.insert(root.prefixes.begin(), root.prefixes.end());
  committer->directories_.insert(generation->retired().begin(), generation->retired().end());
  return committer;
}

Result<std::string> IncomingCommitter::Shareable(const FileHash& hash) {
  if (hash.bytes == 0) return std::string();
  for (auto it = checkpoints_.rbegin(); it != checkpoints_.rend(); ++it) {
    for (const ManifestFile& file : it->manifest->files) {
      if (file.hash != hash) continue;
      std::string location = file.ref.empty() ? names::Path(it->directory, file.path) : file.ref;
      const auto stat = env_.store->Stat(location);
      if (stat.status().Is(Code::kNotFound)) continue;  // removed by hand
      if (!stat.ok()) return stat.status();
      if (stat->bytes != hash.bytes) continue;
      if (!env_.store->traits().hard_links) return location;
      ASSIGN_OR_RETURN(const std::uint64_t links, env_.store->LinkCount(location));
      if (links < kMaxLinks) return location;
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
                                                           .copies = files.copies}));
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
  checkpoints_.push_back(checkpoint);
  return checkpoint;
}

}  // namespace cairn
