#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "base/ids.h"
#include "base/thread_annotations.h"
#include "storage/adopting_store.h"
#include "storage/deep_listing.h"
#include "storage/interruptible_store.h"
#include "storage/s3/s3_client.h"
#include "storage/s3/s3_limits.h"
#include "storage/store.h"

namespace cairn {

struct S3StoreOptions {
  std::string url;  // s3://bucket/prefix
  StorageOptions storage;
  S3Environment environment;
  IdSource* ids = IdSource::System();  // of the probe's name. Borrowed.
  /// Larger objects are copied by the server in parts. S3's limit for one request; tests lower it.
  std::uint64_t most_copied_at_once = kS3RequestBytes;
  /// Of an upload or copy; larger objects get larger parts. S3's limit; tests lower it.
  std::uint64_t most_parts = kS3Parts;
};

/// A bucket, or what is under a prefix of it, as a Store.
///
/// Objects have the keys <prefix>/<name>. Create is a put with `If-None-Match: *`; before the first
/// one a probe makes sure that the server heeds that header, because many do not and say nothing: a
/// server that ignores it is refused for writing, unless the options promise a single writer. A
/// write session uploads small objects in one request and larger ones in parallel parts; every
/// upload carries a CRC-32C that the server compares. Readers pin an object by its ETag.
///
/// May be called from several threads and processes. A failed call leaves nothing, but Put and
/// Create may have stored the object when no answer came (DeadlineExceeded, Unavailable); sessions
/// give up their uploads, and what a killed one leaves ListUnfinished finds.
class S3Store final : public Store,
                      public DeepListingStore,
                      public AdoptingStore,
                      public InterruptibleStore {
 public:
  using Options = S3StoreOptions;

  static Result<std::unique_ptr<S3Store>> Open(Options options);

  std::string Describe() const override { return client_->config().Describe(); }
  StoreTraits traits() const override;
  void Interrupt() override { client_->CancelAll(); }

  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override;
  Result<ObjectInfo> Stat(const std::string& name) override;
  Result<Listing> List(const std::string& prefix) override;
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override;
  Result<std::vector<TaggedObject>> ListAll(const std::vector<std::string>& directories,
                                            std::size_t limit) override;
  Status Delete(const std::string& name) override;
  Status PruneDirectories(const std::string& prefix) override;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override;
  Status SyncNames(const std::string& prefix, std::string_view why) override;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override;
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override;
  Status Link(const std::string& from, const std::string& to) override;
  /// Copied by the server, in parts where one request cannot.
  Status Adopt(const std::string& from, const std::string& to) override;
  Result<std::uint64_t> LinkCount(const std::string& name) override;
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override;
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override;
  Result<std::optional<std::uint64_t>> FreeBytes() override;
  Status Refresh(const std::string& prefix) override;
  Result<std::vector<std::string>> ListUnfinished(const std::string& prefix) override;
  Status AbandonUnfinished(const std::string& name) override;

  const std::shared_ptr<S3Client>& client() const { return client_; }

 private:
  enum class CreateOnly : int { kUnknown, kHeeded, kIgnored };

  S3Store(Options options, std::shared_ptr<S3Client> client)
      : options_(std::move(options)), client_(std::move(client)) {}

  std::string KeyOf(const std::string& name) const { return client_->config().KeyOf(name); }
  S3Request PutRequest(const std::string& name, std::string_view bytes) const;
  /// Finds out, once, whether the server heeds `If-None-Match: *`; an error when it does not and
  /// nobody promised to be the single writer.
  Status EnsureCreateOnly() EXCLUDES(probe_mu_);
  Result<CreateOnly> Probe();
  Status CreateUnguarded(const std::string& name, std::string_view bytes);
  /// Everything below, or (deep = false) only what stands directly under the prefix.
  struct Pages {
    std::vector<TaggedObject> objects;  // sorted by name
    std::vector<std::string> prefixes;
  };
  /// Keys to list: behind `after` and before `before`; "": no bound.
  struct KeyRange {
    std::string after;
    std::string before;
  };
  /// `count`: objects listed so far, by all who list at once; ResourceExhausted over the limit.
  Result<Pages> ListPages(const std::string& prefix, bool deep, const KeyRange& range,
                          std::size_t limit, std::atomic<std::size_t>* count);
  /// The answer to HEAD; NotFound only when the bucket is there.
  Result<HttpResponse> Head(const std::string& name);
  Status BucketIsThere();

  const Options options_;
  std::shared_ptr<S3Client> client_;  // shared: with sessions, readers and queues
  Mutex probe_mu_;
  std::atomic<CreateOnly> create_only_{CreateOnly::kUnknown};
};

/// Opens s3://bucket/prefix with the settings of this process.
Result<std::unique_ptr<Store>> OpenS3Store(const std::string& url, const StorageOptions& options);

}  // namespace cairn
