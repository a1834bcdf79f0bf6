#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/thread_annotations.h"
#include "storage/forwarding_store.h"

namespace cairn {

/// A store as a machine sees it through the cache of a network file system: that a name was
/// missing, and what a directory held, it remembers until something in that directory changes
/// through this object, or until Refresh. What others do meanwhile is not seen; on a real client
/// that ends after a while, here never. Names that were found are asked for anew each time, as an
/// opening of a file is.
///
/// May be used from several threads, as the inner store.
class NameCacheStore final : public ForwardingStore {
 public:
  /// `inner` is borrowed.
  explicit NameCacheStore(Store* inner) : ForwardingStore(inner) {}

  Status Put(const std::string& name, std::string_view bytes) override;
  Status Create(const std::string& name, std::string_view bytes) override;
  Status CreateVolatile(const std::string& name, std::string_view bytes, AfterCrash crash) override;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override EXCLUDES(mu_);
  Result<ObjectInfo> Stat(const std::string& name) override EXCLUDES(mu_);
  Result<Listing> List(const std::string& prefix) override EXCLUDES(mu_);
  Status Delete(const std::string& name) override;
  Status PruneDirectories(const std::string& prefix) override EXCLUDES(mu_);
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override EXCLUDES(mu_);
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override EXCLUDES(mu_);
  Status Link(const std::string& from, const std::string& to) override;
  Status Refresh(const std::string& prefix) override EXCLUDES(mu_);

 private:
  /// Whether it, or a directory that leads to it, is remembered as missing.
  bool IsMissing(std::string_view name) const REQUIRES(mu_);
  /// Remembers the first missing directory on the way to `name`, or that.
  void RememberMissing(const std::string& name) REQUIRES(mu_);
  void RefreshLocked(std::string_view prefix) REQUIRES(mu_);
  void ForgetIn(std::string_view directory) REQUIRES(mu_);
  /// Something was made or taken away there by this machine, and so it has looked.
  void Changed(std::string_view name) EXCLUDES(mu_);
  void ForgetAll() EXCLUDES(mu_);

  Mutex mu_;
  std::set<std::string, std::less<>> missing_ GUARDED_BY(mu_);
  std::map<std::string, Listing, std::less<>> listings_ GUARDED_BY(mu_);
};

}  // namespace cairn
