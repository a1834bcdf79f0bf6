#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/deep_listing.h"
#include "storage/store.h"

namespace cairn {

/// Hands every operation on to another store: the base of stores that change some of them. Also
/// those that Store answers by itself are handed on, so that a decorator hides nothing of them, and
/// whole listings, if the inner store has them. What it has besides (AppendingStore) is hidden.
/// Threads as of the inner store.
class ForwardingStore : public Store, public DeepListingStore {
 public:
  /// `inner` is borrowed.
  explicit ForwardingStore(Store* inner) : inner_(inner) {}

  std::string Describe() const override { return inner_->Describe(); }
  StoreTraits traits() const override { return inner_->traits(); }
  Status Put(const std::string& name, std::string_view bytes) override {
    return inner_->Put(name, bytes);
  }
  Status Create(const std::string& name, std::string_view bytes) override {
    return inner_->Create(name, bytes);
  }
  Status CreateVolatile(const std::string& name, std::string_view bytes,
                        AfterCrash crash) override {
    return inner_->CreateVolatile(name, bytes, crash);
  }
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    return inner_->Get(name, limit);
  }
  Result<ObjectInfo> Stat(const std::string& name) override { return inner_->Stat(name); }
  Result<Listing> List(const std::string& prefix) override { return inner_->List(prefix); }
  DeepListingCosts listing_costs() const override {
    const auto* deep = dynamic_cast<const DeepListingStore*>(inner_);
    return deep == nullptr ? DeepListingCosts{.many_directories = 0} : deep->listing_costs();
  }
  Result<std::vector<TaggedObject>> ListBelow(const std::string& prefix,
                                              std::size_t limit) override {
    auto* deep = dynamic_cast<DeepListingStore*>(inner_);
    if (deep == nullptr) return UnimplementedError("the store lists no trees");
    return deep->ListBelow(prefix, limit);
  }
  Status Delete(const std::string& name) override { return inner_->Delete(name); }
  Status PruneDirectories(const std::string& prefix) override {
    return inner_->PruneDirectories(prefix);
  }
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override {
    return inner_->NewWriteSession(mode);
  }
  Status SyncNames(const std::string& prefix, std::string_view why) override {
    return inner_->SyncNames(prefix, why);
  }
  Status SyncDirectory(const std::string& directory, std::string_view why) override {
    return inner_->SyncDirectory(directory, why);
  }
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override {
    return inner_->OpenReader(name);
  }
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override {
    return inner_->NewReadQueue(depth);
  }
  Status Link(const std::string& from, const std::string& to) override {
    return inner_->Link(from, to);
  }
  Result<std::uint64_t> LinkCount(const std::string& name) override {
    return inner_->LinkCount(name);
  }
  Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) override {
    return inner_->MoveToPool(name, pool_name);
  }
  Result<std::vector<std::string>> ListUnfinished(const std::string& prefix) override {
    return inner_->ListUnfinished(prefix);
  }
  Status AbandonUnfinished(const std::string& name) override {
    return inner_->AbandonUnfinished(name);
  }
  Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) override {
    return inner_->TryLock(name);
  }
  Result<std::optional<std::uint64_t>> FreeBytes() override { return inner_->FreeBytes(); }
  Status Refresh(const std::string& prefix) override { return inner_->Refresh(prefix); }

 protected:
  Store* inner() const { return inner_; }

 private:
  Store* const inner_;
};

}  // namespace cairn
