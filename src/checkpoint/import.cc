#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <cairn/transfer.h>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/import_place.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/transfer.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::uint64_t kMaxIndexBytes = 1u << 30;

Result<std::string> ReadStart(ObjectReader* file, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  RETURN_IF_ERROR(file->Read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

/// What all sources of an import share: counts bytes, ends them when the caller wants to.
struct ImportProgress {
  const TransferControl* control = nullptr;
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};

/// A stretch of a file as a tensor.
class FileSource final : public TensorSource {
 public:
  FileSource(ObjectReader* file, std::uint64_t begin, ImportProgress* progress)
      : file_(file), begin_(begin), progress_(progress) {}

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    if (progress_->control->cancelled && progress_->control->cancelled()) {
      return CancelledError("interrupted");
    }
    RETURN_IF_ERROR(file_->Read(begin_ + offset, into));
    progress_->done += into.size();
    if (progress_->control->progress) {
      progress_->control->progress(progress_->done, progress_->total);
    }
    return Status::Ok();
  }

 private:
  ObjectReader* const file_;
  const std::uint64_t begin_;
  ImportProgress* const progress_;
};

/// Reads what is to be imported; its sources live as long as it does. One use, one thread.
class ImportSource {
 public:
  explicit ImportSource(const TransferControl& control) { progress_.control = &control; }

  Status Open(const ImportRequest& request) {
    ASSIGN_OR_RETURN(ImportTarget target, FindImport(request.source));
    place_ = std::move(target.place);
    if (!target.name.empty()) return AddFile(target.name);
    if (place_->IsOurs()) {
      return InvalidArgumentError("\"" + request.source +
                                  "\" is Cairn's own; use `cairn checkpoint copy` to bring its "
                                  "checkpoints into another repository");
    }
    return AddAll(request.source, request.files);
  }

  std::vector<Tensor> TakeTensors() { return std::move(tensors_); }
  std::vector<UserFile> TakeFiles() { return std::move(user_files_); }
  std::uint64_t tensor_count() const { return owners_.size(); }
  std::uint64_t bytes() const { return progress_.total; }
  const std::vector<std::pair<std::string, std::string>>& skipped() const { return skipped_; }

 private:
  struct OpenedFile {
    std::string path;
    std::unique_ptr<ObjectReader> file;
  };

  Status AddFile(const std::string& name) {
    const Status added = AddTensorsOf(name);
    if (added.ok() || added.Is(Code::kAlreadyExists)) return added;
    return added.WithContext("\"" + place_->PathOf(name) + "\"");
  }

  Status AddTensorsOf(const std::string& name) {
    auto opened = std::make_unique<OpenedFile>();
    opened->path = place_->PathOf(name);
    ASSIGN_OR_RETURN(opened->file, place_->Open(name));
    const std::uint64_t bytes = opened->file->bytes();
    if (bytes < 8) {
      return CorruptionError("is not a safetensors file: it has " + std::to_string(bytes) +
                             " bytes");
    }
    ASSIGN_OR_RETURN(const std::string first, ReadStart(opened->file.get(), 8));
    auto length = SafetensorsHeaderBytes(first, bytes);
    if (!length.ok()) return length.status().WithContext("is not a safetensors file");
    ASSIGN_OR_RETURN(const std::string head, ReadStart(opened->file.get(), *length));
    auto header = DecodeSafetensorsHeader(head, bytes);
    if (!header.ok()) return header.status().WithContext("is not a safetensors file");
    for (const TensorEntry& entry : header->tensors) {
      const auto [owner, fresh] = owners_.emplace(entry.name, opened.get());
      if (!fresh) {
        return AlreadyExistsError("both \"" + owner->second->path + "\" and \"" + opened->path +
                                  "\" hold a tensor \"" + entry.name +
                                  "\"; import one of the files by its name");
      }
      ASSIGN_OR_RETURN(Piece piece, DescribePiece(entry, header->metadata));
      sources_.push_back(std::make_unique<FileSource>(
          opened->file.get(), header->data_offset + entry.begin, &progress_));
      Tensor tensor;
      tensor.name = piece.name;
      tensor.dtype = entry.dtype;
      tensor.shape = entry.shape;
      tensor.source = sources_.back().get();
      if (!piece.whole) tensor.shard = ShardSpec{piece.global_shape, piece.offset};
      tensors_.push_back(std::move(tensor));
      progress_.total += entry.end - entry.begin;
    }
    files_.push_back(std::move(opened));
    return Status::Ok();
  }

  Status AddAll(const std::string& source, bool with_files) {
    ASSIGN_OR_RETURN(std::vector<std::string> names, place_->Files());
    std::vector<std::string> indexes;
    std::vector<std::string> tensor_files;
    std::vector<std::string> others;
    for (std::string& name : names) {
      const bool top = name.find('/') == name.npos;
      if (top && name.ends_with(kIndexSuffix)) {
        indexes.push_back(std::move(name));
      } else if (top && name.ends_with(kSafetensors)) {
        tensor_files.push_back(std::move(name));
      } else {
        others.push_back(std::move(name));
      }
    }
    if (indexes.size() == 1) RETURN_IF_ERROR(FollowIndex(indexes[0], &tensor_files));
    if (tensor_files.empty()) {
      const bool rows_alone =
          std::any_of(others.begin(), others.end(), [](const std::string& name) {
            return name.starts_with(names::Path(names::kTables, ""));
          });
      return NotFoundError("\"" + source +
                           (rows_alone
                                ? "\" has the rows of tables alone, which cannot be imported; "
                                  "`cairn checkpoint copy` brings a checkpoint over with its tables"
                                : "\" has no .safetensors files"));
    }
    for (const std::string& name : tensor_files) RETURN_IF_ERROR(AddFile(name));
    for (const std::string& name : others) {
      if (!with_files) {
        skipped_.emplace_back(name, "files are not wanted");
        continue;
      }
      auto file = place_->AsUserFile(name);
      if (file.status().Is(Code::kResourceExhausted)) {
        skipped_.emplace_back(name, "too large: download it, and import the local directory");
        continue;
      }
      if (!file.ok()) return file.status();
      user_files_.push_back(*std::move(file));
    }
    return Status::Ok();
  }

  /// Keeps the files that the index names: others hold the same tensors in another cut.
  Status FollowIndex(const std::string& name, std::vector<std::string>* tensor_files) {
    const std::string path = place_->PathOf(name);
    ASSIGN_OR_RETURN(const std::unique_ptr<ObjectReader> file, place_->Open(name));
    if (file->bytes() > kMaxIndexBytes) {
      return ResourceExhaustedError("\"" + path + "\" is too large");
    }
    ASSIGN_OR_RETURN(const std::string text, ReadStart(file.get(), file->bytes()));
    const auto index = DecodeSafetensorsIndex(text);
    if (!index.ok()) return index.status().WithContext("\"" + path + "\"");
    std::set<std::string> named;
    for (const auto& [tensor, tensor_file] : index->files) named.insert(tensor_file);
    for (const std::string& wanted : named) {
      if (std::find(tensor_files->begin(), tensor_files->end(), wanted) == tensor_files->end()) {
        return NotFoundError("\"" + path + "\" names \"" + wanted + "\", which is not there");
      }
    }
    std::erase_if(*tensor_files, [&](const std::string& tensor_file) {
      if (named.contains(tensor_file)) return false;
      skipped_.emplace_back(tensor_file, "not named in " + name);
      return true;
    });
    return Status::Ok();
  }

  std::unique_ptr<ImportPlace> place_;
  ImportProgress progress_;
  std::vector<std::unique_ptr<OpenedFile>> files_;
  std::vector<std::unique_ptr<FileSource>> sources_;
  std::map<std::string, const OpenedFile*> owners_;  // stored name → file
  std::vector<Tensor> tensors_;
  std::vector<UserFile> user_files_;
  std::vector<std::pair<std::string, std::string>> skipped_;
};

}  // namespace

Result<ImportReport> ImportCheckpoint(const ImportRequest& request,
                                      const TransferControl& control) {
  RETURN_IF_ERROR(CheckPath(request.directory));
  if (request.step < 0) {
    return InvalidArgumentError("a step is not negative: " + std::to_string(request.step));
  }
  ImportSource source(control);
  RETURN_IF_ERROR(source.Open(request));
  ImportReport report;
  report.tensors = source.tensor_count();
  report.bytes = source.bytes();
  report.skipped = source.skipped();
  SaveRequest save;
  save.step = request.step;
  save.tensors = source.TakeTensors();
  save.files = source.TakeFiles();
  for (const UserFile& file : save.files) report.files.push_back(file.name);
  std::string from = request.source;
  if (!IsRemote(from)) {
    std::error_code error;
    from = fs::absolute(from, error).lexically_normal().string();
  }
  save.lineage = Value::Object{{"imported_from", LineagePath(from)}};
  save.blocking = true;

  ASSIGN_OR_RETURN(Environment env, EnvironmentAt(request.directory, {.create = true}));
  env.tool = true;
  ManagerOptions options;
  options.directory = request.directory;
  options.retention.keep_last.reset();  // a tool removes nothing
  options.pool_bytes = 0;
  options.takeover = request.takeover;
  ASSIGN_OR_RETURN(options.run, NewestRun(env));
  ASSIGN_OR_RETURN(const auto manager, OpenManager(std::move(options), env));
  ASSIGN_OR_RETURN(const SaveHandle handle, manager->Save(std::move(save)));
  ASSIGN_OR_RETURN(report.info, handle.Wait());
  RETURN_IF_ERROR(manager->Close());
  return report;
}

}  // namespace cairn
