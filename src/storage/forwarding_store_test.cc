#include "storage/forwarding_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_store.h"

namespace cairn {
namespace {

using testing::ElementsAre;

/// A store with something unfinished, and a directory that can be synced: what Store itself would
/// answer without asking anybody.
class Remembering final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<std::vector<std::string>> ListUnfinished(const std::string&) override {
    return unfinished;
  }
  Status AbandonUnfinished(const std::string& name) override {
    std::erase(unfinished, name);
    return Status::Ok();
  }
  Status CreateVolatile(const std::string& name, std::string_view bytes, AfterCrash) override {
    ++volatiles;
    return inner()->Create(name, bytes);
  }
  Status SyncDirectory(const std::string&, std::string_view) override {
    ++synced;
    return Status::Ok();
  }

  std::vector<std::string> unfinished = {"a/b"};
  int volatiles = 0;
  int synced = 0;
};

TEST(ForwardingStore, HidesNothingOfWhatTheInnerStoreCanDo) {
  const auto memory = MemoryStore::Open({.object_store = true}).value();
  Remembering inner(memory.get());
  FaultyStore faulty(&inner);
  ForwardingStore outer(&faulty);
  EXPECT_THAT(outer.ListUnfinished("").value(), ElementsAre("a/b"));
  EXPECT_TRUE(outer.AbandonUnfinished("a/b").ok());
  EXPECT_THAT(outer.ListUnfinished("").value(), ElementsAre());
  EXPECT_TRUE(outer.CreateVolatile("x", "1", AfterCrash::kAnything).ok());
  EXPECT_EQ(inner.volatiles, 1);
  EXPECT_TRUE(outer.SyncDirectory("d", "a test").ok());
  EXPECT_EQ(inner.synced, 1);
  EXPECT_EQ(faulty.operations(), 5u);
  faulty.Arm({.status = UnavailableError("away"), .trigger = {.kind = StoreOp::Kind::kList}});
  EXPECT_TRUE(outer.ListUnfinished("").status().Is(Code::kUnavailable));
}

}  // namespace
}  // namespace cairn
