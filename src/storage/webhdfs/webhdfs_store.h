#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "base/ids.h"
#include "storage/adopting_store.h"
#include "storage/append_object.h"
#include "storage/interruptible_store.h"
#include "storage/store.h"
#include "storage/webhdfs/webhdfs_client.h"

namespace cairn {

struct WebHdfsStoreOptions {
  std::string url;  // hdfs://host:port/path
  bool create = true;
  bool look = true;  // whether it is there, unless it is made; false: whoever uses it finds out
  StorageOptions storage;
  WebHdfsEnvironment environment;
  IdSource* ids = IdSource::System();  // of temporary names. Borrowed.
};

/// A directory of HDFS, over WebHDFS, as a Store.
///
/// A file of HDFS is visible while it is written, so nothing is written under its own name: bytes
/// go to `.cairn-tmp/<uuid>…` and the file is renamed when it is whole and synced. The rename
/// decides who creates a name. What Put and Create promise: when they return, each DataNode that
/// holds a copy has synced the bytes to its disk (the sync flag of the block, not the cluster's
/// setting), and the name is in the NameNode's log. What is appended to an object is with the
/// DataNodes, which hold it in memory: Sync of an AppendObject is Unimplemented.
///
/// May be called from several threads and processes. A failed call may leave a temporary file: one
/// that is a day older than the newest is deleted by ListUnfinished.
class WebHdfsStore final : public Store,
                           public AppendingStore,
                           public AdoptingStore,
                           public InterruptibleStore {
 public:
  using Options = WebHdfsStoreOptions;

  static Result<std::unique_ptr<WebHdfsStore>> Open(Options options);

  std::string Describe() const override { return client_->config().where; }
  StoreTraits traits() const override;
  void Interrupt() override { client_->CancelAll(); }

  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override;
  Result<ObjectInfo> Stat(const std::string& name) override;
  Result<Listing> List(const std::string& prefix) override;
  Status Delete(const std::string& name) override;
  Status PruneDirectories(const std::string& prefix) override;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override;
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override;
  Status Link(const std::string& from, const std::string& to) override;
  Status Adopt(const std::string& from, const std::string& to) override;
  Result<std::uint64_t> LinkCount(const std::string& name) override;
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override;
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override;
  Result<std::optional<std::uint64_t>> FreeBytes() override;
  Status Refresh(const std::string& prefix) override;
  Result<std::vector<std::string>> ListUnfinished(const std::string& prefix) override;
  Status AbandonUnfinished(const std::string& name) override;
  Result<std::unique_ptr<AppendObject>> OpenAppend(const std::string& name) override;

 private:
  WebHdfsStore(Options options, std::shared_ptr<WebHdfsClient> client)
      : options_(std::move(options)), client_(std::move(client)) {}

  Status Publish(const std::string& name, std::string_view bytes, bool replace);
  /// The file of that name; a directory is NotFound.
  Result<HdfsFileStatus> File(const std::string& name);

  const Options options_;
  std::shared_ptr<WebHdfsClient> client_;  // shared: with sessions, readers and queues
};

/// Opens hdfs://host:port/path with the settings of this process. Unless it may be created, a
/// directory that is not there is NotFound.
Result<std::unique_ptr<Store>> OpenHdfsStore(WebHdfsStoreOptions options);

/// Where files stand before they have their names: a path in HDFS, below the store's directory.
std::string TemporaryPath(const WebHdfsConfig& config, std::string_view name);
/// Where a session's directory has the parts of an object: "/…". A comma is %2C there: WebHDFS has
/// one between the paths of the files that it joins.
std::string PartsBelow(const WebHdfsConfig& config, const std::string& name);
/// Renames a whole file to the path of an object, making the directories above it.
Status RenameIntoPlace(WebHdfsClient* client, const std::string& from, const std::string& to,
                       bool replace);
/// Deletes the empty directories below `path`, and with `itself` that one too; what is in use
/// stays.
Status PruneDirectoriesAt(WebHdfsClient* client, const std::string& path, bool itself);

/// All entries of a directory; none when it is not there.
Result<std::vector<HdfsFileStatus>> ListAll(WebHdfsClient* client, const std::string& path);

}  // namespace cairn
