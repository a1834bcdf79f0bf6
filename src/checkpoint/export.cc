#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/ids.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/restore_point.h"
#include "checkpoint/stored_bytes.h"
#include "checkpoint/table_merge.h"
#include "checkpoint/transfer.h"
#include "format/safetensors.h"
#include "storage/local/object_path.h"
#include "storage/local/posix_fs.h"

namespace cairn {
namespace {

// The size at which Hugging Face's tools begin another file.
constexpr std::uint64_t kFileBytes = 5'000'000'000;
constexpr std::string_view kIndexName = "model.safetensors.index.json";

/// A lock on a directory that goes with the process, however it ends. Where a directory cannot be
/// locked (NFS) nobody has one.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  explicit DirectoryLock(const std::filesystem::path& path)
      : fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    if (fd_ != -1 && flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    another_has_it_ = fd_ != -1 && errno == EWOULDBLOCK;
    Unlock();
  }
  ~DirectoryLock() { Unlock(); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(another_has_it_, other.another_has_it_);
    return *this;
  }

  bool held() const { return fd_ != -1; }
  bool another_has_it() const { return another_has_it_; }

 private:
  void Unlock() {
    if (fd_ != -1) close(fd_);
    fd_ = -1;
  }
  int fd_ = -1;
  bool another_has_it_ = false;
};

/// Begins the names of the hidden directories of this machine's exports. Where several machines
/// share a disk, a lock may be known to the machine that has it alone.
std::string StartOfHidden() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string start = fmt::format("{}-export-{}-", kTemporaryPrefix, host);
  std::replace(start.begin(), start.end(), '/', '-');
  return start;
}

/// A directory beside the final one, gone at the end unless it was renamed. It is locked, so that
/// one whose process was killed is known by the next export of the same machine to the same place,
/// which removes it.
class HiddenDirectory {
 public:
  HiddenDirectory() = default;
  ~HiddenDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  HiddenDirectory(const HiddenDirectory&) = delete;
  HiddenDirectory& operator=(const HiddenDirectory&) = delete;

  Status Make(const std::filesystem::path& beside, IdSource* ids) {
    const std::string start = StartOfHidden();
    Sweep(beside, start);
    for (;;) {
      path_ = beside / (start + ids->NewUuid());
      RETURN_IF_ERROR(PosixFs()->MakeDirectory(path_.string()));
      lock_ = DirectoryLock(path_);
      // Another export's sweep may have come between the two: then that removes it.
      std::error_code ignored;
      if (lock_.another_has_it() || !std::filesystem::exists(path_, ignored)) continue;
      return Status::Ok();
    }
  }
  Status MoveTo(const std::filesystem::path& out) {
    RETURN_IF_ERROR(PosixFs()->Rename(path_.string(), out.string()));
    path_.clear();
    return PosixFs()->SyncDirectory(out.parent_path().string(), "exported directory");
  }
  std::string path() const { return path_.string(); }

 private:
  static void Sweep(const std::filesystem::path& beside, std::string_view start) {
    std::error_code ignored;
    for (std::filesystem::directory_iterator it(beside, ignored), end; it != end;
         it.increment(ignored)) {
      const std::string name = it->path().filename().string();
      if (ignored || !name.starts_with(start) || !IsUuid(name.substr(start.size()))) continue;
      if (const DirectoryLock left(it->path()); left.held()) {
        std::filesystem::remove_all(it->path(), ignored);
      }
    }
  }

  std::filesystem::path path_;
  DirectoryLock lock_;
};

/// The absolute path of a directory that may be made.
Result<std::filesystem::path> CheckOut(const std::string& out) {
  ASSIGN_OR_RETURN(const std::string local, LocalPath(out));
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(local, error).lexically_normal();
  if (error) return InvalidArgumentError("\"" + out + "\": " + error.message());
  if (!path.has_filename()) path = path.parent_path();
  const auto parent = std::filesystem::status(path.parent_path(), error);
  if (!std::filesystem::is_directory(parent)) {
    return NotFoundError("there is no directory \"" + path.parent_path().string() +
                         "\" to export into; make it first");
  }
  const auto status = std::filesystem::symlink_status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return path;
  if (!std::filesystem::is_directory(status)) {
    return AlreadyExistsError("\"" + out + "\" exists and is not a directory; choose another name");
  }
  const bool empty = std::filesystem::is_empty(path, error);
  if (error) return PermissionDeniedError("\"" + out + "\": " + error.message());
  if (!empty) {
    return AlreadyExistsError("\"" + out +
                              "\" exists and is not empty; choose another name, or empty it first");
  }
  return path;
}

/// A prefix of a bucket or a directory of a cluster, with nothing in it.
Result<Environment> EmptyPlace(const std::string& url) {
  ASSIGN_OR_RETURN(Environment env, EnvironmentAt(url, {.create = true}));
  ASSIGN_OR_RETURN(const Listing listing, env.store->List(""));
  if (!listing.objects.empty() || !listing.prefixes.empty()) {
    return AlreadyExistsError("\"" + url +
                              "\" is not empty; choose another name, or empty it first");
  }
  return env;
}

/// Plans and writes one export. One use, one thread.
class Exporter {
 public:
  Exporter(Store* store, const Chain& chain)
      : store_(store), chain_(chain), checkpoint_(*chain.back()) {}

  /// Into a local directory, which appears whole or not at all.
  Result<ExportReport> Run(const std::filesystem::path& out, const TransferControl& control) {
    RETURN_IF_ERROR(Plan());
    HiddenDirectory hidden;
    RETURN_IF_ERROR(hidden.Make(out.parent_path(), IdSource::System()));
    ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(hidden.path(), {.create = false}));
    RETURN_IF_ERROR(Write(env, control));
    RETURN_IF_ERROR(hidden.MoveTo(out));
    return std::move(report_);
  }

  /// Into a bucket or cluster, where nothing can be renamed: the index comes last, and a failure
  /// takes away what was written.
  Result<ExportReport> RunRemote(const Environment& env, const TransferControl& control) {
    RETURN_IF_ERROR(Plan());
    RETURN_IF_ERROR(Write(env, control));
    return std::move(report_);
  }

 private:
  Status Plan() {
    ASSIGN_OR_RETURN(point_, OpenRestorePoint::Open(store_, chain_));
    open_ = point_.tip();
    bytes_ = std::make_unique<StoredBytes>(store_, open_);
    RETURN_IF_ERROR(PlanModel());
    RETURN_IF_ERROR(PlanOtherFiles());
    if (chain_.size() > 1) {
      ASSIGN_OR_RETURN(merged_, MergedTables::Open(store_, point_.chain()));
      RETURN_IF_ERROR(merged_->AddTo(&files_));
    }
    return Status::Ok();
  }

  Status Write(const Environment& env, const TransferControl& control) {
    RETURN_IF_ERROR(CheckRoom(env, files_.bytes()));
    std::vector<std::string> created;
    auto written = files_.Write(env, "", control, &created);
    Status status = written.status();
    if (status.ok() && !index_.empty()) {
      created.emplace_back(kIndexName);
      status = env.store->Put(std::string(kIndexName), index_);
      if (status.ok()) status = env.store->SyncNames("", "exported files");
    }
    if (!status.ok()) {
      for (const std::string& name : created) {
        env.store->Delete(name).IgnoreError("the export failed already");
      }
      return status;
    }
    for (const ManifestFile& file : *written) report_.files.push_back(file.path);
    if (!index_.empty()) report_.files.emplace_back(kIndexName);
    report_.bytes = files_.bytes() + index_.size();
    report_.info = MakeInfo(*store_, checkpoint_);
    return Status::Ok();
  }

  struct ModelFile {
    std::vector<TensorEntry> entries;
    std::vector<std::unique_ptr<TensorSource>> sources;
    std::uint64_t bytes = 0;
    std::uint64_t header = 1024;  // metadata and frame
  };

  Status PlanModel() {
    ASSIGN_OR_RETURN(TensorMap tensors, open_->ReadCatalog(TensorGroup::kModel, ""));
    report_.tensors = tensors.size();
    // As they stand in the files, so that the disk is read front to back.
    std::vector<TensorMap::value_type*> order;
    for (auto& item : tensors) order.push_back(&item);
    const auto place = [](const TensorMap::value_type* item) {
      const auto& pieces = item->second.pieces;
      return pieces.empty() ? std::pair(std::size_t{0}, std::uint64_t{0})
                            : std::pair(pieces.front().file, pieces.front().file_offset);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](const auto* a, const auto* b) { return place(a) < place(b); });
    std::vector<ModelFile> files;
    for (TensorMap::value_type* item : order) {
      StoredTensor& tensor = item->second;
      TensorEntry entry;
      entry.name = item->first;
      entry.dtype = tensor.dtype;
      entry.shape = tensor.shape;
      ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(tensor.dtype, tensor.shape));
      const std::uint64_t cost = SafetensorsHeaderCost(entry);
      if (files.empty() || (!files.back().entries.empty() &&
                            (files.back().bytes + bytes > kFileBytes ||
                             files.back().header + cost > kSafetensorsHeaderBudget))) {
        files.emplace_back();
      }
      ModelFile& file = files.back();
      entry.begin = file.bytes;
      entry.end = file.bytes + bytes;
      file.bytes += bytes;
      file.header += cost;
      file.entries.push_back(std::move(entry));
      file.sources.push_back(std::make_unique<StoredArraySource>(bytes_.get(), std::move(tensor)));
    }
    if (!files.empty()) RETURN_IF_ERROR(AddModelFiles(std::move(files)));
    return Status::Ok();
  }

  Status AddModelFiles(std::vector<ModelFile> files) {
    SafetensorsIndex index;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string name =
          files.size() == 1 ? "model.safetensors"
                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
      for (const TensorEntry& entry : files[i].entries) index.files[entry.name] = name;
      index.total_bytes += files[i].bytes;
      // "pt" is what Hugging Face's loaders ask for.
      const SafetensorsMetadata metadata = {
          {"format", "pt"},
          {"cairn.id", checkpoint_.manifest->id},
          {"cairn.step", std::to_string(checkpoint_.manifest->step)},
      };
      ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(files[i].entries, metadata));
      RETURN_IF_ERROR(Take(name));
      files_.AddTensors(name, "", std::move(head), files[i].entries, std::move(files[i].sources));
    }
    RETURN_IF_ERROR(Take(std::string(kIndexName)));
    index_ = EncodeSafetensorsIndex(index);
    return Status::Ok();
  }

  Status PlanOtherFiles() {
    const std::string user = names::Path(names::kFiles, "");
    const std::string tables = names::Path(names::kTables, "");
    const std::string model = names::Path(names::kModel, "");
    for (std::size_t i = 0; i < open_->files().size(); ++i) {
      const ManifestFile& file = *open_->files()[i].entry;
      std::string name;
      if (file.path.starts_with(user)) {
        name = file.path.substr(user.size());
      } else if (file.path.starts_with(tables)) {
        if (chain_.size() > 1) continue;  // the rows of the whole chain are put together instead
        name = file.path;
      } else {
        if (!file.path.starts_with(model)) report_.left_out.push_back(file.path);
        continue;
      }
      RETURN_IF_ERROR(Take(name));
      files_.AddCopy(name, "", file.hash,
                     std::make_unique<StoredFileSource>(bytes_.get(), i, /*begin=*/0));
    }
    return Status::Ok();
  }

  Status Take(const std::string& name) {
    if (taken_.insert(name).second) return Status::Ok();
    return FailedPreconditionError("the checkpoint's own file \"" + name +
                                   "\" has the name of a file that the export writes");
  }

  Store* const store_;
  const Chain& chain_;
  const Checkpoint& checkpoint_;  // the last of the chain
  OpenRestorePoint point_;        // before what reads it, ahead of what is wanted
  OpenCheckpoint* open_ = nullptr;
  std::unique_ptr<StoredBytes> bytes_;
  std::unique_ptr<MergedTables> merged_;
  IncomingFiles files_;
  std::string index_;  // written when all that it names is there
  std::set<std::string> taken_;
  ExportReport report_;
};

}  // namespace

Result<ExportReport> ExportFrom(Store* store, const Checkpoint& checkpoint, const std::string& out,
                                const TransferControl& control) {
  RETURN_IF_ERROR(CheckPath(out));
  std::filesystem::path path;
  Environment remote;
  if (IsRemote(out)) {
    ASSIGN_OR_RETURN(remote, EmptyPlace(out));
  } else {
    ASSIGN_OR_RETURN(path, CheckOut(out));
  }
  const auto run = [&](const Chain& chain) {
    Exporter exporter(store, chain);
    return remote.store ? exporter.RunRemote(remote, control) : exporter.Run(path, control);
  };
  if (checkpoint.manifest->kind == CheckpointKind::kFull) return run({&checkpoint});
  ASSIGN_OR_RETURN(const std::vector<Checkpoint> siblings, ReadSiblings(store));
  const auto chain = ChainIndex(siblings).Resolve(checkpoint);
  if (!chain.ok()) {
    return CorruptionError(checkpoint.directory + " " + std::string(chain.status().message()));
  }
  return run(*chain);
}

Result<ExportReport> ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                                      const TransferControl& control) {
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(checkpoint));
  return ExportFrom(placed.env.store.get(), placed.checkpoint, out, control);
}

}  // namespace cairn
