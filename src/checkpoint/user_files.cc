#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/stored_bytes.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = 1u << 20;
// Smaller ones are copied: that costs as much as a link, and nobody can spoil the checkpoint.
constexpr std::uint64_t kLinkFrom = 64u << 10;

std::string FilesPrefix() { return std::string(names::kFiles) + "/"; }

/// A copy that shares its blocks, where the file system knows such.
bool Clone(const std::string& from, const std::string& to) {
  const int source = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  const int target = open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const bool cloned = source >= 0 && target >= 0 && ioctl(target, FICLONE, source) == 0;
  if (source >= 0) close(source);
  if (target >= 0) close(target);
  if (target >= 0 && !cloned) unlink(to.c_str());
  return cloned;
}

/// The user's files of one checkpoint, opened once for all that is asked of it.
class UserFiles {
 public:
  static Result<std::unique_ptr<UserFiles>> Open(const std::string& checkpoint,
                                                 const Progress& progress) {
    auto files = std::unique_ptr<UserFiles>(new UserFiles(checkpoint, progress));
    ASSIGN_OR_RETURN(files->placed_, ReadCheckpointAt(checkpoint));
    const PlacedCheckpoint& placed = *files->placed_;
    ASSIGN_OR_RETURN(files->open_,
                     OpenCheckpoint::Open(placed.env.store.get(), placed.checkpoint.directory,
                                          placed.checkpoint.manifest));
    for (std::size_t i = 0; i < files->open_->files().size(); ++i) {
      const std::string& path = files->open_->files()[i].entry->path;
      if (path.starts_with(FilesPrefix())) files->index_[path.substr(FilesPrefix().size())] = i;
    }
    // One for all files: it reads ahead into the next ones, and to make one takes longer than to
    // read a small file.
    files->bytes_.emplace(placed.env.store.get(), files->open_.get());
    return files;
  }

  /// In the order in which they are stored, which is the one that they are read ahead in.
  void Sort(std::vector<std::string>* names) const {
    std::ranges::stable_sort(*names, {}, [this](const std::string& name) {
      const auto at = index_.find(name);
      return at == index_.end() ? 0 : at->second;  // what is missing is told at once
    });
  }

  /// Before they are fetched: so many bytes they are, as far as they are there.
  void Expect(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const auto at = index_.find(name);
      if (at != index_.end()) total_ += open_->files()[at->second].entry->hash.bytes;
    }
  }

  Status Fetch(const std::string& name, const std::string& path, FetchHow how) {
    const auto at = index_.find(name);
    if (at == index_.end()) {
      return NotFoundError("\"" + checkpoint_ + "\" has no file \"" + name + "\"");
    }
    RETURN_IF_ERROR(GoOn(0));
    const std::uint64_t bytes = open_->files()[at->second].entry->hash.bytes;
    const std::string here = checkpoint_ + "/" + FilesPrefix() + name;
    std::error_code error;
    if (how == FetchHow::kLink && bytes >= kLinkFrom && fs::is_regular_file(here, error)) {
      RETURN_IF_ERROR(Read(at->second, bytes, nullptr));
      unlink(path.c_str());  // it may be a link from before: never written through
      clones_ = clones_ && Clone(here, path);
      if (clones_ || link(here.c_str(), path.c_str()) == 0) return Status::Ok();
    }
    if (how == FetchHow::kCheck) return Read(at->second, bytes, nullptr);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    RETURN_IF_ERROR(Read(at->second, bytes, &out));
    out.close();
    if (!out) return ResourceExhaustedError("\"" + path + "\" could not be written");
    return Status::Ok();
  }

 private:
  UserFiles(std::string checkpoint, Progress progress)
      : checkpoint_(std::move(checkpoint)), progress_(std::move(progress)) {}

  /// Cancelled when nobody wants the files any more. `read`: bytes, since it was last asked.
  Status GoOn(std::uint64_t read) {
    done_ += read;
    if (progress_(done_, total_)) return Status::Ok();
    return CancelledError("fetching the files of \"" + checkpoint_ + "\" was cancelled");
  }

  Status Read(std::size_t index, std::uint64_t size, std::ofstream* out) {
    piece_.resize(kPiece);
    for (std::uint64_t at = 0; at < size; at += kPiece) {
      const std::span<std::byte> part(piece_.data(), std::min<std::uint64_t>(kPiece, size - at));
      RETURN_IF_ERROR(bytes_->Read(index, at, part));  // compares checksums on the way
      RETURN_IF_ERROR(GoOn(part.size()));
      if (out == nullptr) continue;
      out->write(reinterpret_cast<const char*>(part.data()),
                 static_cast<std::streamsize>(part.size()));
    }
    return Status::Ok();
  }

  const std::string checkpoint_;
  const Progress progress_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  std::optional<PlacedCheckpoint> placed_;
  std::unique_ptr<OpenCheckpoint> open_;
  std::map<std::string, std::size_t> index_;
  std::optional<StoredBytes> bytes_;
  std::vector<std::byte> piece_;
  bool clones_ = true;  // until the file system said that it knows no clones
};

}  // namespace

Result<std::vector<std::string>> UserFilesOf(const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(checkpoint));
  std::vector<std::string> found;
  for (const ManifestFile& file : placed.checkpoint.manifest->files) {
    if (!file.path.starts_with(FilesPrefix())) continue;
    found.push_back(file.path.substr(FilesPrefix().size()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Status FetchUserFile(const std::string& checkpoint, const std::string& name,
                     const std::string& path, const Progress& progress) {
  ASSIGN_OR_RETURN(const auto files, UserFiles::Open(checkpoint, progress));
  files->Expect({name});
  return files->Fetch(name, path, FetchHow::kCopy);
}

Status FetchUserFiles(const std::string& checkpoint, const std::vector<std::string>& wanted,
                      const std::string& where, FetchHow how, const Progress& progress) {
  if (IsRemote(where)) {
    return InvalidArgumentError("\"" + where +
                                "\" is not on this machine: the files are brought to a local "
                                "directory");
  }
  ASSIGN_OR_RETURN(const std::string directory, LocalPath(where));
  ASSIGN_OR_RETURN(const auto files, UserFiles::Open(checkpoint, progress));
  files->Expect(wanted);
  std::error_code error;
  if (how != FetchHow::kCheck) fs::create_directories(directory, error);
  std::vector<std::string> names = wanted;
  files->Sort(&names);
  for (const std::string& name : names) {
    const fs::path path = fs::path(directory) / name;
    const bool placeholder = path.filename() == kEmptyDirectory;
    if (how != FetchHow::kCheck) {
      fs::create_directories(path.parent_path(), error);
      if (error) {
        return UnavailableError("make " + path.parent_path().string() + ": " + error.message());
      }
    }
    RETURN_IF_ERROR(files->Fetch(name, path.string(), placeholder ? FetchHow::kCheck : how));
  }
  return Status::Ok();
}

}  // namespace cairn
