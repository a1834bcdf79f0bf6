#include "checkpoint/import_place.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "storage/local/posix_fs.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// Files of the user's own come through memory from a store.
constexpr std::uint64_t kMaxUserFileBytes = 256u << 20;

/// A local file as a store's object. Links are followed, any name will do.
class LocalFile final : public ObjectReader {
 public:
  LocalFile(std::string path, std::unique_ptr<FsFile> file, std::uint64_t bytes)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}

  const std::string& name() const override { return path_; }
  std::uint64_t bytes() const override { return bytes_; }
  Status Read(std::uint64_t offset, std::span<std::byte> into) override {
    ASSIGN_OR_RETURN(const std::size_t read, file_->ReadAt(offset, into));
    if (read == into.size()) return Status::Ok();
    return CorruptionError("\"" + path_ + "\" became shorter while it was being read");
  }

 private:
  const std::string path_;
  const std::unique_ptr<FsFile> file_;
  const std::uint64_t bytes_;
};

class LocalPlace final : public ImportPlace {
 public:
  explicit LocalPlace(std::string directory) : directory_(std::move(directory)) {}

  std::string PathOf(const std::string& name) const override {
    return (fs::path(directory_) / name).string();
  }
  bool IsOurs() override {
    return IsCheckpointDirectory(directory_) || fs::exists(PathOf(std::string(names::kRepository)));
  }
  Result<std::vector<std::string>> Files() override { return FilesTo(/*depth=*/-1); }
  Result<std::vector<std::string>> FilesDirectly() override { return FilesTo(/*depth=*/0); }
  Result<std::unique_ptr<ObjectReader>> Open(const std::string& name) override {
    const std::string path = PathOf(name);
    ASSIGN_OR_RETURN(std::unique_ptr<FsFile> file, PosixFs()->Open(path, {}));
    ASSIGN_OR_RETURN(const FsStat stat, file->Stat());
    return std::unique_ptr<ObjectReader>(
        std::make_unique<LocalFile>(path, std::move(file), stat.bytes));
  }
  Status CheckBeside(const std::string& name, const std::string& from) const override {
    std::error_code error;
    const auto real = [&](const std::string& path) {
      return fs::weakly_canonical(fs::absolute(path, error), error);
    };
    const fs::path target = real(PathOf(name));
    if (error) return InvalidArgumentError("\"" + PathOf(name) + "\": " + error.message());
    const auto within = [&](const fs::path& directory) {
      const fs::path way = target.lexically_relative(directory);
      return !way.empty() && *way.begin() != "..";
    };
    const std::string here = directory_.empty() ? "." : directory_;
    if (within(real(here)) || within(real(PathOf(from)).parent_path())) return Status::Ok();
    return InvalidArgumentError("it is a link to \"" + target.string() + "\", outside of \"" +
                                here + "\"");
  }
  Result<UserFile> AsUserFile(const std::string& name) override {
    return UserFile{.name = name, .path = PathOf(name), .bytes = ""};
  }

 private:
  Result<std::vector<std::string>> FilesTo(int depth) {  // -1: all of them
    std::vector<std::string> names;
    std::error_code error;
    fs::recursive_directory_iterator it(directory_, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      const fs::path& path = it->path();
      const bool hidden = path.filename().string().starts_with('.');
      if (hidden || it.depth() == depth) it.disable_recursion_pending();
      std::error_code unknown;
      if (!hidden && it->is_regular_file(unknown)) {
        names.push_back(path.lexically_relative(directory_).string());
      }
    }
    if (error) return PermissionDeniedError("\"" + directory_ + "\": " + error.message());
    std::sort(names.begin(), names.end());
    return names;
  }

  const std::string directory_;
};

class StorePlace final : public ImportPlace {
 public:
  explicit StorePlace(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  std::string PathOf(const std::string& name) const override {
    const std::string where = store_->Describe();
    return where + (where.ends_with('/') ? "" : "/") + name;
  }
  bool IsOurs() override {
    return store_->Stat(std::string(names::kRepository)).ok() ||
           store_->Stat(std::string(names::kManifest)).ok();
  }
  Result<std::vector<std::string>> Files() override {
    std::vector<std::string> names;
    RETURN_IF_ERROR(Collect("", &names));
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<std::vector<std::string>> FilesDirectly() override {
    std::vector<std::string> names;
    ASSIGN_OR_RETURN(const Listing listing, store_->List(""));
    for (const ObjectInfo& object : listing.objects) {
      if (!IsHidden(object.name)) names.push_back(object.name);
    }
    return names;
  }
  Result<std::unique_ptr<ObjectReader>> Open(const std::string& name) override {
    return store_->OpenReader(name);
  }
  Status CheckBeside(const std::string&, const std::string&) const override {
    return Status::Ok();  // stores have no links
  }
  Result<UserFile> AsUserFile(const std::string& name) override {
    ASSIGN_OR_RETURN(std::string bytes, store_->Get(name, kMaxUserFileBytes));
    return UserFile{.name = name, .path = "", .bytes = std::move(bytes)};
  }

 private:
  static bool IsHidden(std::string_view name) {
    return name.substr(name.rfind('/') + 1).starts_with('.');
  }
  Status Collect(const std::string& prefix, std::vector<std::string>* names) {
    ASSIGN_OR_RETURN(const Listing listing, store_->List(prefix));
    for (const ObjectInfo& object : listing.objects) {
      if (!IsHidden(object.name)) names->push_back(object.name);
    }
    for (const std::string& below : listing.prefixes) {
      if (!IsHidden(below)) RETURN_IF_ERROR(Collect(below, names));
    }
    return Status::Ok();
  }

  const std::shared_ptr<Store> store_;  // shared: an environment's
};

Result<ImportTarget> FindRemote(const std::string& source) {
  if (!source.ends_with('/')) {
    ASSIGN_OR_RETURN(const Place place, PlaceOfCheckpoint(source));
    ASSIGN_OR_RETURN(const Environment above, EnvironmentAt(place.where, {.create = false}));
    const auto object = above.store->Stat(place.name);
    if (object.ok()) {
      return ImportTarget{std::make_unique<StorePlace>(above.store), place.name};
    }
    if (!object.status().Is(Code::kNotFound)) return object.status();
  }
  ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(source, {.create = false}));
  ASSIGN_OR_RETURN(const Listing listing, env.store->List(""));
  if (listing.objects.empty() && listing.prefixes.empty()) {
    return NotFoundError("there is no file or directory \"" + source + "\"");
  }
  return ImportTarget{std::make_unique<StorePlace>(env.store), ""};
}

}  // namespace

Result<ImportTarget> FindImport(const std::string& source) {
  RETURN_IF_ERROR(CheckPath(source));
  if (IsRemote(source)) return FindRemote(source);
  ASSIGN_OR_RETURN(const std::string local, LocalPath(source));
  std::error_code error;
  const fs::file_status status = fs::status(local, error);
  if (status.type() == fs::file_type::not_found) {
    return NotFoundError("there is no file or directory \"" + source + "\"");
  }
  if (error) return PermissionDeniedError("\"" + source + "\": " + error.message());
  if (fs::is_directory(status)) return ImportTarget{std::make_unique<LocalPlace>(local), ""};
  if (!fs::is_regular_file(status)) {
    return InvalidArgumentError("\"" + source + "\" is neither a file nor a directory");
  }
  const fs::path path(local);
  return ImportTarget{std::make_unique<LocalPlace>(path.parent_path().string()),
                      path.filename().string()};
}

}  // namespace cairn
