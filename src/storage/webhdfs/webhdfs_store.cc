#include "storage/webhdfs/webhdfs_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/webhdfs/webhdfs_reader.h"
#include "storage/webhdfs/webhdfs_write_session.h"

namespace cairn {
namespace {

constexpr std::string_view kTemporaryPrefix = ".cairn-tmp";

Status ValidatePrefix(const std::string& prefix) {
  return prefix.empty() ? Status::Ok() : ValidateObjectName(prefix);
}

std::string Below(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "/" + name;
}

class WebHdfsAppendObject final : public AppendObject {
 public:
  WebHdfsAppendObject(std::shared_ptr<WebHdfsClient> client, std::string path, std::uint64_t bytes)
      : client_(std::move(client)), path_(std::move(path)), bytes_(bytes) {}

  std::uint64_t bytes() const override EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    return bytes_;
  }
  Status Append(std::string_view bytes) override EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    RETURN_IF_ERROR(condemned_);
    if (bytes.empty()) return Status::Ok();
    condemned_ = client_->Append(path_, std::as_bytes(std::span(bytes.data(), bytes.size())));
    if (!condemned_.ok()) return condemned_;
    bytes_ += bytes.size();
    synced_ = false;
    return Status::Ok();
  }
  Status Sync(std::string_view why) override EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    RETURN_IF_ERROR(condemned_);
    if (synced_) return Status::Ok();
    return UnimplementedError(fmt::format(
        "sync \"{}\" on {} ({}): WebHDFS has nothing to sync what was appended; put what must be "
        "durable",
        path_, client_->config().where, why));
  }

 private:
  const std::shared_ptr<WebHdfsClient> client_;  // shared with the store, which it may outlive
  const std::string path_;
  mutable Mutex mu_;
  std::uint64_t bytes_ GUARDED_BY(mu_);
  bool synced_ GUARDED_BY(mu_) = true;  // as Put and Create left it
  Status condemned_ GUARDED_BY(mu_);
};

}  // namespace

std::string TemporaryPath(const WebHdfsConfig& config, std::string_view name) {
  return config.root + "/" + std::string(kTemporaryPrefix) + "/" + std::string(name);
}

std::string PartsBelow(const WebHdfsConfig& config, const std::string& name) {
  std::string below;
  for (const char c : config.PathOf(name).substr(config.root.size())) {
    if (c == ',') {
      below += "%2C";
    } else {
      below += c;
    }
  }
  return below;
}

Status PruneDirectoriesAt(WebHdfsClient* client, const std::string& path, bool itself) {
  ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> files, ListAll(client, path));
  for (const HdfsFileStatus& file : files) {
    if (!file.directory || file.name.starts_with(kTemporaryPrefix)) continue;
    RETURN_IF_ERROR(PruneDirectoriesAt(client, path + "/" + file.name, true));
  }
  if (!itself) return Status::Ok();
  const Status deleted = client->Delete(path, /*recursive=*/false).status();
  // Something is in it, or another was quicker.
  if (deleted.Is(Code::kFailedPrecondition) || deleted.Is(Code::kNotFound)) return Status::Ok();
  return deleted;
}

Status RenameIntoPlace(WebHdfsClient* client, const std::string& from, const std::string& to,
                       bool replace) {
  constexpr int kTries = 10;  // somebody may prune the directory that we make, again and again
  const std::string parent = to.substr(0, to.rfind('/'));
  Status status;
  for (int i = 0; i < kTries; ++i) {
    status = client->Rename(from, to, replace);
    if (!status.Is(Code::kNotFound) || parent.empty()) return status;
    RETURN_IF_ERROR(client->MakeDirectories(parent));
  }
  return status;
}

Result<std::vector<HdfsFileStatus>> ListAll(WebHdfsClient* client, const std::string& path) {
  std::vector<HdfsFileStatus> all;
  std::string after;
  while (true) {
    auto page = client->List(path, after);
    if (page.status().Is(Code::kNotFound)) return all;
    if (!page.ok()) return page.status();
    all.insert(all.end(), page->files.begin(), page->files.end());
    if (page->remaining == 0 || page->files.empty()) return all;
    after = page->files.back().name;
  }
}

Result<std::unique_ptr<Store>> OpenHdfsStore(WebHdfsStoreOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<WebHdfsStore> store, WebHdfsStore::Open(std::move(options)));
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<WebHdfsStore>> WebHdfsStore::Open(Options options) {
  ASSIGN_OR_RETURN(WebHdfsConfig config,
                   MakeWebHdfsConfig(options.url, options.storage, options.environment.variables));
  ASSIGN_OR_RETURN(std::shared_ptr<WebHdfsClient> client,
                   WebHdfsClient::Open(std::move(config), options.environment));
  const std::string root = client->config().PathOf("");
  if (options.create && root.find(',') != std::string::npos) {
    return InvalidArgumentError("\"" + client->config().where +
                                "\" cannot be written to: WebHDFS does not join files whose path "
                                "has a comma; choose another directory");
  }
  if (options.create) {
    RETURN_IF_ERROR(client->MakeDirectories(root));
  } else if (options.look) {
    ASSIGN_OR_RETURN(const HdfsFileStatus there, client->Stat(root));
    if (!there.directory) {
      return InvalidArgumentError("\"" + client->config().where + "\" is not a directory");
    }
  }
  return std::unique_ptr<WebHdfsStore>(new WebHdfsStore(std::move(options), std::move(client)));
}

StoreTraits WebHdfsStore::traits() const {
  return {.directories = true, .resumes = true, .parallel_requests = client_->config().connections};
}

// ---------------------------------------------------------------- whole objects

Status WebHdfsStore::Publish(const std::string& name, std::string_view bytes, bool replace) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  const WebHdfsConfig& config = client_->config();
  const std::string temporary = TemporaryPath(config, options_.ids->NewUuid());
  RETURN_IF_ERROR(client_->Write(temporary, std::as_bytes(std::span(bytes.data(), bytes.size()))));
  Status renamed = RenameIntoPlace(client_.get(), temporary, config.PathOf(name), replace);
  if (!renamed.ok()) {
    client_->Delete(temporary, false).status().IgnoreError("the rename's error says more");
  }
  return renamed;
}

Status WebHdfsStore::Adopt(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(ValidateObjectName(to));
  RETURN_IF_ERROR(Stat(from).status());
  const WebHdfsConfig& config = client_->config();
  return RenameIntoPlace(client_.get(), config.PathOf(from), config.PathOf(to),
                         /*replace=*/false);
}

Status WebHdfsStore::Put(const std::string& name, std::string_view bytes) {
  return Publish(name, bytes, /*replace=*/true);
}

Status WebHdfsStore::Create(const std::string& name, std::string_view bytes) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  // The rename decides; this is to answer the many who lose without writing anything.
  const auto there = client_->Stat(client_->config().PathOf(name));
  if (there.ok()) {
    return AlreadyExistsError("create \"" + Describe() + "/" + name + "\": it exists");
  }
  if (!there.status().Is(Code::kNotFound)) return there.status();
  return Publish(name, bytes, /*replace=*/false);
}

Result<HdfsFileStatus> WebHdfsStore::File(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  auto status = client_->Stat(client_->config().PathOf(name));
  // What stands above is a file, so nothing stands here.
  if (status.status().Is(Code::kFailedPrecondition) || (status.ok() && status->directory)) {
    return NotFoundError("\"" + Describe() + "/" + name + "\" is not there");
  }
  return status;
}

Result<std::string> WebHdfsStore::Get(const std::string& name, std::uint64_t limit) {
  while (true) {
    ASSIGN_OR_RETURN(const std::unique_ptr<ObjectReader> reader, OpenReader(name));
    if (reader->bytes() > limit) {
      return ResourceExhaustedError(fmt::format("read \"{}/{}\": has {} bytes, at most {} are read",
                                                Describe(), name, reader->bytes(), limit));
    }
    std::string bytes(reader->bytes(), '\0');
    const Status read = reader->Read(0, std::as_writable_bytes(std::span(bytes)));
    if (read.ok()) return bytes;
    // Replaced between the two: the next look finds the new one, or nothing.
    if (!read.Is(Code::kNotFound)) return read;
  }
}

Result<ObjectInfo> WebHdfsStore::Stat(const std::string& name) {
  ASSIGN_OR_RETURN(const HdfsFileStatus status, File(name));
  return ObjectInfo{.name = name, .bytes = status.bytes};
}

Result<Listing> WebHdfsStore::List(const std::string& prefix) {
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  const std::string path = client_->config().PathOf(prefix);
  if (!prefix.empty()) {  // a file's listing is the file itself
    const auto there = client_->Stat(path);
    if (there.status().Is(Code::kNotFound) || there.status().Is(Code::kFailedPrecondition)) {
      return Listing();
    }
    if (!there.ok()) return there.status();
    if (!there->directory) return Listing();
  }
  ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> files, ListAll(client_.get(), path));
  Listing listing;
  for (const HdfsFileStatus& file : files) {
    if (file.name.starts_with(kTemporaryPrefix)) continue;
    std::string name = Below(prefix, NameOfComponent(file.name));
    if (!ValidateObjectName(name).ok()) continue;
    if (file.directory) {
      listing.prefixes.push_back(std::move(name));
    } else {
      listing.objects.push_back({.name = std::move(name), .bytes = file.bytes});
    }
  }
  std::sort(listing.objects.begin(), listing.objects.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
  std::sort(listing.prefixes.begin(), listing.prefixes.end());
  return listing;
}

Status WebHdfsStore::Delete(const std::string& name) {
  RETURN_IF_ERROR(File(name).status());
  ASSIGN_OR_RETURN(const bool deleted,
                   client_->Delete(client_->config().PathOf(name), /*recursive=*/false));
  return deleted ? Status::Ok() : NotFoundError("\"" + Describe() + "/" + name + "\": not there");
}

Status WebHdfsStore::PruneDirectories(const std::string& prefix) {
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  const std::string path = client_->config().PathOf(prefix);
  if (!prefix.empty()) {
    const auto there = client_->Stat(path);
    if (!there.ok() || !there->directory) {
      return there.ok() || there.status().Is(Code::kNotFound) ||
                     there.status().Is(Code::kFailedPrecondition)
                 ? Status::Ok()
                 : there.status();
    }
  }
  return PruneDirectoriesAt(client_.get(), path, /*itself=*/!prefix.empty());
}

// ---------------------------------------------------------------- sessions and readers

Result<std::unique_ptr<WriteSession>> WebHdfsStore::NewWriteSession(WriteMode /*mode*/) {
  return std::unique_ptr<WriteSession>(
      std::make_unique<WebHdfsWriteSession>(client_, options_.ids->NewUuid()));
}

Result<std::unique_ptr<ObjectReader>> WebHdfsStore::OpenReader(const std::string& name) {
  ASSIGN_OR_RETURN(const HdfsFileStatus status, File(name));
  return std::unique_ptr<ObjectReader>(std::make_unique<WebHdfsReader>(client_, name, status));
}

Result<std::unique_ptr<ReadQueue>> WebHdfsStore::NewReadQueue(int depth) {
  if (depth < 1) return InvalidArgumentError("a read queue has a depth of at least 1");
  return std::unique_ptr<ReadQueue>(
      std::make_unique<WebHdfsReadQueue>(depth, client_->config().connections));
}

Result<std::unique_ptr<AppendObject>> WebHdfsStore::OpenAppend(const std::string& name) {
  ASSIGN_OR_RETURN(const HdfsFileStatus status, File(name));
  return std::unique_ptr<AppendObject>(
      std::make_unique<WebHdfsAppendObject>(client_, client_->config().PathOf(name), status.bytes));
}

// ---------------------------------------------------------------- unfinished files

namespace {

constexpr std::int64_t kLeftoverMillis = 24ll * 3600 * 1000;

/// Names of objects whose parts stand below `path`, a session's directory or one in it.
Status FindUnfinished(WebHdfsClient* client, const std::string& path, const std::string& name,
                      std::vector<std::string>* names) {
  ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> files, ListAll(client, path));
  bool parts = false;
  for (const HdfsFileStatus& file : files) {
    if (!file.directory) {
      parts = true;
      continue;
    }
    RETURN_IF_ERROR(FindUnfinished(client, path + "/" + file.name,
                                   Below(name, NameOfComponent(file.name)), names));
  }
  if (parts && ValidateObjectName(name).ok()) names->push_back(name);
  return Status::Ok();
}

}  // namespace

Result<std::vector<std::string>> WebHdfsStore::ListUnfinished(const std::string& prefix) {
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  const std::string top = TemporaryPath(client_->config(), "");
  ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> entries, ListAll(client_.get(), top));
  std::int64_t newest = 0;
  for (const HdfsFileStatus& entry : entries) newest = std::max(newest, entry.modified_millis);
  std::vector<std::string> names;
  for (const HdfsFileStatus& entry : entries) {
    if (entry.directory) {
      RETURN_IF_ERROR(FindUnfinished(client_.get(), top + entry.name, "", &names));
    } else if (entry.modified_millis < newest - kLeftoverMillis) {
      // Of a small file that was never renamed. Both times are the NameNode's.
      RETURN_IF_ERROR(client_->Delete(top + entry.name, /*recursive=*/false).status());
    }
  }
  std::erase_if(names, [&](const std::string& name) {
    return !prefix.empty() && name != prefix && !name.starts_with(prefix + "/");
  });
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Status WebHdfsStore::AbandonUnfinished(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  const std::string top = TemporaryPath(client_->config(), "");
  ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> entries, ListAll(client_.get(), top));
  const std::string below = PartsBelow(client_->config(), name);
  for (const HdfsFileStatus& entry : entries) {
    if (!entry.directory) continue;
    const std::string session = top + entry.name;
    RETURN_IF_ERROR(client_->Delete(session + below, /*recursive=*/true).status());
    RETURN_IF_ERROR(PruneDirectoriesAt(client_.get(), session, /*itself=*/true));
  }
  return Status::Ok();
}

// ---------------------------------------------------------------- what HDFS does not have

Status WebHdfsStore::SyncNames(const std::string& prefix, std::string_view /*why*/) {
  return ValidatePrefix(prefix);
}
Status WebHdfsStore::Link(const std::string& /*from*/, const std::string& /*to*/) {
  return UnimplementedError("\"" + Describe() + "\": HDFS has no links");
}
Result<std::uint64_t> WebHdfsStore::LinkCount(const std::string& name) {
  RETURN_IF_ERROR(File(name).status());
  return std::uint64_t{1};
}
Result<bool> WebHdfsStore::MoveToPool(const std::string& name, const std::string& pool_name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  RETURN_IF_ERROR(ValidateObjectName(pool_name));
  return UnimplementedError("\"" + Describe() + "\": nothing is written over in HDFS");
}
Result<std::unique_ptr<StoreLock>> WebHdfsStore::TryLock(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  return UnimplementedError("\"" + Describe() + "\": WebHDFS has no locks");
}
Result<std::optional<std::uint64_t>> WebHdfsStore::FreeBytes() {
  return std::optional<std::uint64_t>();
}
Status WebHdfsStore::Refresh(const std::string& prefix) { return ValidatePrefix(prefix); }

}  // namespace cairn
