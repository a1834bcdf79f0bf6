#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/restore_point.h"
#include "checkpoint/stored_bytes.h"
#include "checkpoint/table_merge.h"
#include "checkpoint/transfer.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxWorldSize = 1u << 20;

struct PrivateRank {
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
};

/// What a save with private parts recorded of its rank.
std::optional<PrivateRank> RankOf(const Manifest& manifest) {
  const Value* recorded = manifest.lineage.Find("private");
  if (recorded == nullptr) return std::nullopt;
  const Value* rank = recorded->Find("rank");
  const Value* world_size = recorded->Find("world_size");
  if (rank == nullptr || world_size == nullptr) return std::nullopt;
  PrivateRank out{rank->AsInt(-1), world_size->AsInt(-1)};
  if (out.rank < 0 || out.rank >= out.world_size) return std::nullopt;
  return out;
}

/// One rank's repository.
struct RankDirectory {
  const Environment* env = nullptr;
  std::string where;
  PrivateRank rank;
  std::vector<Checkpoint> checkpoints;  // private, counting, with all they build on; oldest first
  std::vector<Checkpoint> all;

  const Checkpoint* OfStep(std::int64_t step) const {
    const Checkpoint* found = nullptr;
    for (const Checkpoint& checkpoint : checkpoints) {
      if (checkpoint.manifest->step == step) found = &checkpoint;
    }
    return found;
  }
  std::string Steps() const {
    std::string text;
    int listed = 0;
    for (auto it = checkpoints.rbegin(); it != checkpoints.rend() && listed < 10; ++it, ++listed) {
      text += (text.empty() ? "" : ", ") + std::to_string(it->manifest->step);
    }
    return text;
  }
};

Result<RankDirectory> ReadRank(const Environment& env) {
  RankDirectory directory;
  directory.env = &env;
  directory.where = env.store->Describe();
  RepositoryReader reader(env.store.get());
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  const ChainIndex index(view.checkpoints);
  bool any = false;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts) continue;
    any = true;
    const auto rank = RankOf(*checkpoint.manifest);
    if (!rank || checkpoint.manifest->participants.size() != 1) continue;
    if (!index.Resolve(checkpoint).ok()) continue;
    // After a restart with another number of ranks the newest ones tell.
    if (!directory.checkpoints.empty() &&
        (directory.rank.rank != rank->rank || directory.rank.world_size != rank->world_size)) {
      directory.checkpoints.clear();
    }
    directory.rank = *rank;
    directory.checkpoints.push_back(checkpoint);
  }
  if (!any) return NotFoundError("\"" + directory.where + "\" has no checkpoints");
  if (directory.checkpoints.empty()) {
    return FailedPreconditionError(
        "\"" + directory.where +
        "\" has no parts to merge: its checkpoints were not saved with private=True");
  }
  directory.all = view.checkpoints;
  return directory;
}

/// The directories by rank, every rank once.
Result<std::vector<RankDirectory>> SortByRank(std::vector<RankDirectory> directories) {
  std::map<std::int64_t, RankDirectory> by_rank;
  const std::int64_t world_size = directories.front().rank.world_size;
  if (static_cast<std::uint64_t>(world_size) > kMaxWorldSize) {
    return CorruptionError("\"" + directories.front().where + "\" speaks of " +
                           std::to_string(world_size) + " ranks");
  }
  const std::string first = directories.front().where;
  for (RankDirectory& directory : directories) {
    const PrivateRank rank = directory.rank;
    if (rank.world_size != world_size) {
      return FailedPreconditionError(
          fmt::format("\"{}\" is of {} ranks, \"{}\" of {}; they are not of one training", first,
                      world_size, directory.where, rank.world_size));
    }
    if (const auto it = by_rank.find(rank.rank); it != by_rank.end()) {
      return FailedPreconditionError(fmt::format("\"{}\" and \"{}\" are both of rank {}",
                                                 it->second.where, directory.where, rank.rank));
    }
    by_rank.emplace(rank.rank, std::move(directory));
  }
  std::string missing;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    if (by_rank.contains(rank)) continue;
    if (missing.size() > 60) {
      missing += " …";
      break;
    }
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!missing.empty()) {
    std::string given;
    for (const auto& [rank, directory] : by_rank) {
      given += fmt::format("{}rank {} in \"{}\"", given.empty() ? "" : ", ", rank, directory.where);
    }
    return NotFoundError(
        fmt::format("the part of rank {} is missing (of {} ranks; given: {}); name its directory "
                    "too",
                    missing, world_size, given));
  }
  std::vector<RankDirectory> sorted;
  for (auto& [rank, directory] : by_rank) sorted.push_back(std::move(directory));
  return sorted;
}

Result<std::int64_t> CommonStep(const std::vector<RankDirectory>& ranks,
                                std::optional<std::int64_t> wanted) {
  const auto lacks = [&](std::int64_t step) -> const RankDirectory* {
    for (const RankDirectory& rank : ranks) {
      if (rank.OfStep(step) == nullptr) return &rank;
    }
    return nullptr;
  };
  if (wanted) {
    const RankDirectory* lacking = lacks(*wanted);
    if (lacking == nullptr) return *wanted;
    return NotFoundError(
        fmt::format("the part of rank {} for step {} is missing: \"{}\" has the steps {}",
                    lacking->rank.rank, *wanted, lacking->where, lacking->Steps()));
  }
  const std::vector<Checkpoint>& first = ranks.front().checkpoints;
  for (auto it = first.rbegin(); it != first.rend(); ++it) {
    if (lacks(it->manifest->step) == nullptr) return it->manifest->step;
  }
  std::string steps;
  for (const RankDirectory& rank : ranks) {
    steps +=
        fmt::format("{}rank {} has {}", steps.empty() ? "" : ", ", rank.rank.rank, rank.Steps());
  }
  return NotFoundError("there is no step of which all ranks have their part: " + steps);
}

/// A tensor of one rank's model file.
struct ModelTensor {
  std::size_t part = 0;
  std::size_t file = 0;
  TensorEntry entry;
  std::uint64_t data_offset = 0;
};

/// Builds one checkpoint of the parts. One use, one thread.
class Merger {
 public:
  Merger(std::vector<MergePart> parts, const MergeRequest& request, const TransferControl& control)
      : parts_(std::move(parts)), request_(request), control_(control) {}

  Result<MergeReport> Run(const Environment& target) {
    RETURN_IF_ERROR(OpenParts());
    RETURN_IF_ERROR(ReadHeaders());
    RETURN_IF_ERROR(FindDuplicates());
    for (std::size_t part = 0; part < parts_.size(); ++part) RETURN_IF_ERROR(AddFiles(part));

    ASSIGN_OR_RETURN(const std::unique_ptr<Generation> generation,
                     OpenForTool(target, {.job = Job(), .takeover = request_.takeover}));
    ASSIGN_OR_RETURN(const auto committer, IncomingCommitter::Open(target, generation.get()));
    Manifest manifest = NewManifest(target);
    for (ManifestTable& table : facts_) table.held.clear();
    manifest.tables = std::move(facts_);
    if (committer->Latest() != nullptr) manifest.parent = committer->Latest()->manifest->id;
    report_.bytes = files_.bytes();
    const std::string directory = names::CheckpointDirectory(
        /*increment=*/false, /*serial=*/false, manifest.step, /*copy=*/1);
    ASSIGN_OR_RETURN(const Checkpoint committed,
                     committer->Commit(std::move(manifest), directory, std::move(files_),
                                       /*rebuild_index=*/true, control_));
    report_.info = MakeInfo(*target.store, committed);
    return std::move(report_);
  }

  /// The ids of the parts: what tells two merges apart.
  Value MergedFrom() const {
    Value::List ids;
    for (const MergePart& part : parts_) ids.push_back(part.checkpoint.manifest->id);
    return ids;
  }
  /// The job that all parts agree on, or "".
  std::string Job() const {
    const std::string& job = parts_.front().checkpoint.manifest->job;
    for (const MergePart& part : parts_) {
      if (part.checkpoint.manifest->job != job) return "";
    }
    return job;
  }

 private:
  Status OpenParts() {
    for (const MergePart& part : parts_) {
      Store* store = part.env.store.get();
      Chain chain;
      for (const Checkpoint& below : part.below) chain.push_back(&below);
      chain.push_back(&part.checkpoint);
      auto point = OpenRestorePoint::Open(store, chain);
      if (!point.ok()) return point.status().WithContext(store->Describe());
      points_.push_back(*std::move(point));
      open_.push_back(points_.back().tip());
      bytes_.push_back(std::make_unique<StoredBytes>(store, open_.back()));
    }
    return Status::Ok();
  }

  /// The header of a safetensors file, from bytes that were compared.
  Result<SafetensorsHeader> ReadHeader(std::size_t part, std::size_t file) {
    const ManifestFile& entry = *open_[part]->files()[file].entry;
    std::string head(8, '\0');
    if (entry.hash.bytes < 8) return CorruptionError(entry.path + ": too short");
    RETURN_IF_ERROR(bytes_[part]->Read(file, 0, std::as_writable_bytes(std::span(head))));
    ASSIGN_OR_RETURN(const std::uint64_t length, SafetensorsHeaderBytes(head, entry.hash.bytes));
    head.resize(length);
    RETURN_IF_ERROR(bytes_[part]->Read(file, 0, std::as_writable_bytes(std::span(head))));
    return DecodeSafetensorsHeader(head, entry.hash.bytes);
  }

  static bool IsModelFile(const std::string& path) {
    return path.starts_with(names::Path(names::kModel, "")) && path.ends_with(".safetensors");
  }

  Status ReadHeaders() {
    headers_.resize(parts_.size());
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (std::size_t file = 0; file < open_[part]->files().size(); ++file) {
        if (!IsModelFile(open_[part]->files()[file].entry->path)) continue;
        auto header = ReadHeader(part, file);
        if (!header.ok()) {
          return header.status().WithContext(
              parts_[part].env.store->Describe() + "/" +
              names::Path(open_[part]->directory(), open_[part]->files()[file].entry->path));
        }
        for (const TensorEntry& entry : header->tensors) {
          tensors_[entry.name].push_back({part, file, entry, header->data_offset});
        }
        headers_[part].emplace(file, *std::move(header));
      }
    }
    return Status::Ok();
  }

  Result<Hash128> HashOf(const ModelTensor& tensor) {
    constexpr std::uint64_t kStep = 8u << 20;
    FileHasher hasher;
    const std::uint64_t bytes = tensor.entry.end - tensor.entry.begin;
    std::vector<std::byte> buffer(std::min(bytes, kStep));
    for (std::uint64_t at = 0; at < bytes; at += kStep) {
      if (control_.cancelled && control_.cancelled()) return CancelledError("interrupted");
      const std::span<std::byte> piece(buffer.data(), std::min(kStep, bytes - at));
      RETURN_IF_ERROR(bytes_[tensor.part]->Read(
          tensor.file, tensor.data_offset + tensor.entry.begin + at, piece));
      hasher.Update(piece);
    }
    return hasher.Finish().whole;
  }

  /// Tensors that several ranks saved: alike, they are kept once; otherwise which is right?
  Status FindDuplicates() {
    for (const auto& [name, holders] : tensors_) {
      if (holders.size() < 2) continue;
      const ModelTensor& first = holders.front();
      ASSIGN_OR_RETURN(const Hash128 hash, HashOf(first));
      for (std::size_t i = 1; i < holders.size(); ++i) {
        const ModelTensor& other = holders[i];
        bool same =
            other.entry.dtype == first.entry.dtype && other.entry.shape == first.entry.shape;
        if (same) {
          ASSIGN_OR_RETURN(const Hash128 found, HashOf(other));
          same = found == hash;
        }
        if (!same) {
          return FailedPreconditionError(fmt::format(
              "{} and {} both saved the tensor \"{}\", with other values; save it as a shard, or "
              "under a name of its own on each rank",
              parts_[first.part].participant, parts_[other.part].participant, name));
        }
        duplicates_.insert({other.part, other.file, name});
        report_.deduplicated += other.entry.end - other.entry.begin;
      }
    }
    return Status::Ok();
  }

  /// Rows of an increment are put together with those of what it builds on.
  Status AddMergedTables(std::size_t part) {
    Store* store = parts_[part].env.store.get();
    ASSIGN_OR_RETURN(auto merged, MergedTables::Open(store, points_[part].chain()));
    RETURN_IF_ERROR(merged->AddTo(&files_));
    merged_.push_back(std::move(merged));
    std::vector<ManifestTable> facts = merged_.back()->facts();
    for (ManifestTable& table : facts) {
      for (const ManifestTable& saved : open_[part]->manifest().tables) {
        if (saved.name == table.name) table.held = saved.held;
      }
    }
    return AddManifestTables(facts, &facts_);
  }

  Status AddFiles(std::size_t part) {
    const std::string user = names::Path(names::kFiles, "");
    const std::string tables = names::Path(names::kTables, "");
    const bool increment = !parts_[part].below.empty();
    RETURN_IF_ERROR(increment ? AddMergedTables(part)
                              : AddManifestTables(open_[part]->manifest().tables, &facts_));
    for (std::size_t i = 0; i < open_[part]->files().size(); ++i) {
      const ManifestFile& file = *open_[part]->files()[i].entry;
      if (file.path == names::kIndex) continue;  // made anew
      if (increment && file.path.starts_with(tables)) continue;
      if (IsModelFile(file.path)) {
        RETURN_IF_ERROR(AddModelFile(part, i));
      } else if (file.path.starts_with(user)) {
        RETURN_IF_ERROR(AddUserFile(part, i, file.path.substr(user.size())));
      } else {
        RETURN_IF_ERROR(AddWhole(part, i, file.path));
      }
    }
    return Status::Ok();
  }

  Status AddWhole(std::size_t part, std::size_t file, const std::string& path) {
    const ManifestFile& entry = *open_[part]->files()[file].entry;
    const auto [it, fresh] = taken_.emplace(path, std::pair(part, entry.hash));
    if (!fresh) {
      return FailedPreconditionError(fmt::format("{} and {} both have a file \"{}\"",
                                                 parts_[it->second.first].participant,
                                                 parts_[part].participant, path));
    }
    files_.AddCopy(path, parts_[part].participant, entry.hash,
                   std::make_unique<StoredFileSource>(bytes_[part].get(), file, /*begin=*/0));
    return Status::Ok();
  }

  Status AddUserFile(std::size_t part, std::size_t file, const std::string& name) {
    const ManifestFile& entry = *open_[part]->files()[file].entry;
    const auto it = taken_.find(entry.path);
    if (it == taken_.end()) return AddWhole(part, file, entry.path);
    if (it->second.second == entry.hash) return Status::Ok();  // the same file on both
    const std::string& participant = parts_[part].participant;
    if (!request_.separate_files) {
      return FailedPreconditionError(
          fmt::format("{} and {} saved different files called \"{}\"; merge with separate_files "
                      "(--separate-files) to keep the later one as {}/{}",
                      parts_[it->second.first].participant, participant, name, participant, name));
    }
    const std::string path = names::Path(names::kFiles, names::Path(participant, name));
    report_.renamed_files.push_back(names::Path(participant, name));
    return AddWhole(part, file, path);
  }

  Status AddModelFile(std::size_t part, std::size_t file) {
    const ManifestFile& entry = *open_[part]->files()[file].entry;
    const SafetensorsHeader& header = headers_[part].at(file);
    std::vector<TensorEntry> kept;
    std::vector<std::unique_ptr<TensorSource>> sources;
    std::uint64_t end = 0;
    for (const TensorEntry& tensor : header.tensors) {
      if (duplicates_.contains({part, file, tensor.name})) continue;
      TensorEntry moved = tensor;
      moved.begin = end;
      moved.end = end + (tensor.end - tensor.begin);
      end = moved.end;
      kept.push_back(std::move(moved));
      sources.push_back(std::make_unique<StoredFileSource>(bytes_[part].get(), file,
                                                           header.data_offset + tensor.begin));
    }
    if (kept.size() == header.tensors.size()) return AddWhole(part, file, entry.path);
    if (kept.empty()) return Status::Ok();
    ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(kept, header.metadata));
    if (!taken_.emplace(entry.path, std::pair(part, entry.hash)).second) {
      return FailedPreconditionError("two ranks have a file \"" + entry.path + "\"");
    }
    files_.AddTensors(entry.path, parts_[part].participant, std::move(head), kept,
                      std::move(sources));
    return Status::Ok();
  }

  Manifest NewManifest(const Environment& target) const {
    const Checkpoint& first = parts_.front().checkpoint;
    Manifest manifest;
    manifest.id = target.ids->NewUuid();
    manifest.step = first.manifest->step;
    manifest.counters = first.manifest->counters;
    manifest.metrics = first.Metrics();
    manifest.metadata = first.manifest->metadata;
    manifest.time = first.manifest->time;
    for (const MergePart& part : parts_) {
      const Manifest& own = *part.checkpoint.manifest;
      manifest.participants.push_back(part.participant);
      for (const std::string& feature : own.features) {
        if (std::find(manifest.features.begin(), manifest.features.end(), feature) ==
            manifest.features.end()) {
          manifest.features.push_back(feature);
        }
      }
    }
    if (const Value::Object* lineage = first.manifest->lineage.if_object()) {
      manifest.lineage = *lineage;
    }
    Value::Object& lineage = *manifest.lineage.if_object();
    lineage.erase("private");
    lineage["merged_from"] = MergedFrom();
    return manifest;
  }

  const std::vector<MergePart> parts_;
  const MergeRequest& request_;
  const TransferControl& control_;
  std::vector<OpenRestorePoint> points_;
  std::vector<OpenCheckpoint*> open_;  // of each part what was chosen
  std::vector<std::unique_ptr<StoredBytes>> bytes_;
  std::vector<std::unique_ptr<MergedTables>> merged_;
  std::vector<ManifestTable> facts_;
  std::vector<std::map<std::size_t, SafetensorsHeader>> headers_;         // by part: file → header
  std::map<std::string, std::vector<ModelTensor>, std::less<>> tensors_;  // by stored name
  std::set<std::tuple<std::size_t, std::size_t, std::string>> duplicates_;  // part, file, name
  std::map<std::string, std::pair<std::size_t, FileHash>> taken_;           // path → whose, what
  IncomingFiles files_;
  MergeReport report_;
};

}  // namespace

Result<std::vector<MergePart>> ChooseForMerge(const std::vector<Environment>& parts,
                                              const MergeRequest& request) {
  if (parts.empty()) return InvalidArgumentError("name the directories of all ranks");
  std::vector<RankDirectory> directories;
  for (const Environment& env : parts) {
    ASSIGN_OR_RETURN(RankDirectory directory, ReadRank(env));
    directories.push_back(std::move(directory));
  }
  ASSIGN_OR_RETURN(const std::vector<RankDirectory> ranks, SortByRank(std::move(directories)));
  ASSIGN_OR_RETURN(const std::int64_t step, CommonStep(ranks, request.step));
  std::vector<MergePart> chosen;
  std::set<std::string> participants;
  for (const RankDirectory& rank : ranks) {
    const Checkpoint* checkpoint = rank.OfStep(step);
    const std::string& participant = checkpoint->manifest->participants.front();
    if (!participants.insert(participant).second) {
      return FailedPreconditionError("two parts are of a participant called \"" + participant +
                                     "\"");
    }
    ASSIGN_OR_RETURN(const Chain chain, ChainIndex(rank.all).Resolve(*checkpoint));
    MergePart part{*rank.env, *checkpoint, participant, {}};
    for (const Checkpoint* below : chain) {
      if (below != checkpoint) part.below.push_back(*below);
    }
    chosen.push_back(std::move(part));
  }
  return chosen;
}

Result<MergeReport> MergeInto(std::vector<MergePart> parts, const Environment& target,
                              const MergeRequest& request, const TransferControl& control) {
  Merger merger(std::move(parts), request, control);
  RepositoryReader reader(target.store.get());
  auto view = reader.Read();
  if (!view.ok() && !view.status().Is(Code::kNotFound)) return view.status();
  if (view.ok()) {
    const std::string job = merger.Job();
    if (!job.empty() && job != view->record.job) {
      return OwnedByAnotherJobError("\"" + target.store->Describe() + "\" belongs to the job \"" +
                                    view->record.job + "\", the parts to the job \"" + job +
                                    "\"; merge into another directory");
    }
    const Value merged_from = merger.MergedFrom();
    for (const Checkpoint& checkpoint : view->checkpoints) {
      const Value* from = checkpoint.manifest->lineage.Find("merged_from");
      if (!checkpoint.counts || from == nullptr || *from != merged_from) continue;
      MergeReport report;
      report.info = MakeInfo(*target.store, checkpoint);
      report.already_there = true;
      return report;
    }
  }
  return merger.Run(target);
}

Result<MergeReport> MergeCheckpoints(const MergeRequest& request, const TransferControl& control) {
  RETURN_IF_ERROR(CheckPath(request.target));
  std::vector<Environment> parts;
  for (const std::string& part : request.parts) {
    ASSIGN_OR_RETURN(Environment env, ExistingDirectory(part));
    parts.push_back(std::move(env));
  }
  ASSIGN_OR_RETURN(std::vector<MergePart> chosen, ChooseForMerge(parts, request));
  ASSIGN_OR_RETURN(const Environment target, EnvironmentAt(request.target, {.create = true}));
  return MergeInto(std::move(chosen), target, request, control);
}

}  // namespace cairn
