// A save of variables that is cut short, at every operation of the store: the directory holds the
// save before it or the new one, whole, and never less than what was acknowledged.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/io.h>
#include <cairn/scope.h>

#include "checkpoint/manager.h"
#include "checkpoint/repository.h"
#include "model/save_variables.h"
#include "model/test_model.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/faulty_store.h"

namespace cairn {
namespace {

using Values = std::map<std::string, std::vector<std::byte>>;

/// A program whose values are all different for each number.
void Build(Scope* scope, int number) {
  BuildProgram(scope);
  FillProgram(scope, number * 1000);
  scope->EndIteration();
}

Environment Over(std::shared_ptr<Store> store) {
  Environment env;
  env.store = std::move(store);
  env.host = "host";
  env.pid = 1;
  return env;
}

/// What a reader finds.
Values Stored(std::shared_ptr<Store> store) {
  ManagerOptions options;
  options.directory = "memory";
  options.read_only = true;
  auto manager = OpenManager(std::move(options), Over(std::move(store)));
  EXPECT_TRUE(manager.ok()) << manager.status().ToString();
  if (!manager.ok()) return {};
  RestoreRequest request;
  request.allocate = true;
  const auto restored = (*manager)->Restore(std::move(request));
  EXPECT_TRUE(restored.ok()) << restored.status().ToString();
  if (!restored.ok() || !*restored) return {};
  EXPECT_TRUE((*restored)->fallbacks.empty());
  Values values;
  for (const OwnedTensor& tensor : (*restored)->tensors) {
    values[tensor.name].assign(tensor.data.get(), tensor.data.get() + tensor.bytes);
  }
  return values;
}

class SaveCrashTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    Build(&first_, 1);
    Build(&second_, 2);
  }
  /// A store with the first save in it.
  std::unique_ptr<MemoryStore> Begin() {
    std::unique_ptr<MemoryStore> store = MemoryStore::Open({.object_store = GetParam()}).value();
    EXPECT_TRUE(SaveVarsTo(Over(store->OpenAgain()), "memory", SelectVars(first_), {}).ok());
    return store;
  }

  Scope first_;
  Scope second_;
};

TEST_P(SaveCrashTest, ACrashAtAnyOperationLeavesOneOfTheTwoWhole) {
  std::unique_ptr<MemoryStore> store = Begin();
  std::vector<std::shared_ptr<const MemoryImage>> crashes;
  std::shared_ptr<MemoryStore> watched = store->OpenAgain();
  watched->SetHook([&](const StoreOp&) { crashes.push_back(store->Snapshot()); });
  ASSERT_TRUE(SaveVarsTo(Over(watched), "memory", SelectVars(second_), {}).ok());
  watched->SetHook({});
  ASSERT_GT(crashes.size(), 20u);
  const Values before = Memory(first_);
  const Values after = Memory(second_);
  int old_ones = 0;
  int new_ones = 0;
  for (const auto& image : crashes) {
    const Values stored = Stored(MemoryStore::FromSnapshot(*image));
    old_ones += stored == before;
    new_ones += stored == after;
    EXPECT_TRUE(stored == before || stored == after);
    // The next day the same directory is written again.
    std::shared_ptr<Store> survivor = MemoryStore::FromSnapshot(*image);
    EXPECT_TRUE(SaveVarsTo(Over(survivor), "memory", SelectVars(second_), {}).ok());
    EXPECT_EQ(Stored(survivor), after);
  }
  EXPECT_GT(old_ones, 0);
  EXPECT_GT(new_ones, 0);
}

TEST_P(SaveCrashTest, AFailureOfAnyOperationLeavesOneOfTheTwoWhole) {
  const Values before = Memory(first_);
  const Values after = Memory(second_);
  for (const StoreFault::When when : {StoreFault::When::kBefore, StoreFault::When::kAfter}) {
    for (std::uint64_t at = 0;; ++at) {
      std::unique_ptr<MemoryStore> store = Begin();
      auto faulty = std::make_shared<FaultyStore>(store.get());
      faulty->Arm({.status = UnavailableError("injected"), .when = when, .trigger = {.at = at}});
      const auto saved = SaveVarsTo(Over(faulty), "memory", SelectVars(second_), {});
      const bool hit = faulty->failures() > 0;
      faulty->Disarm();
      const Values stored = Stored(store->OpenAgain());
      EXPECT_TRUE(stored == before || stored == after) << "operation " << at;
      if (saved.ok()) {
        EXPECT_EQ(stored, after) << "acknowledged at operation " << at;
      }
      if (!hit) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, SaveCrashTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "object" : "plain"; });

}  // namespace
}  // namespace cairn
