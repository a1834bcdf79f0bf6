#include "trial/repository_access.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

CheckpointInfo Save(CheckpointManager* manager, std::int64_t step, std::int64_t steps_completed) {
  return manager
      ->Save({.step = step,
              .counters = Value::Object{{"x", step}},
              .metrics = Value::Object{{"loss", 0.5}},
              .metadata = Value::Object{{"steps_completed", steps_completed}},
              .blocking = true})
      .value()
      .Wait()
      .value();
}

TEST(RepositoryAccess, WhereNothingWasEverSavedThereIsNoRepository) {
  TempDirectory directory;
  auto repositories = RepositoryAccess::Real();
  EXPECT_TRUE(repositories->List(directory / "nothing/here").status().Is(Code::kNotFound));
  EXPECT_TRUE(repositories->List(directory.path()).status().Is(Code::kNotFound));
}

TEST(RepositoryAccess, FindsWhatWasCommittedAndRemovesAsTheOwnerBetweenRuns) {
  TempDirectory directory;
  const std::string repository = directory / "e/1";
  std::vector<std::string> ids;
  {
    auto manager =
        CheckpointManager::Open(
            {.directory = repository, .run = 3, .retention = {.keep_last = std::nullopt}})
            .value();
    for (int i = 1; i <= 3; ++i) ids.push_back(Save(manager.get(), i, i * 10).id);
    // The run that lives is the owner.
    auto repositories = RepositoryAccess::Real();
    EXPECT_TRUE(repositories->Remove(repository, 3, {ids[0]}).status().Is(Code::kUnavailable));
    EXPECT_EQ(repositories->List(repository).value().size(), 3u);
    ASSERT_TRUE(manager->Close().ok());
  }
  auto repositories = RepositoryAccess::Real();
  const auto found = repositories->List(repository).value();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[1].id, ids[1]);
  EXPECT_EQ(found[1].steps, 20);
  EXPECT_EQ(*found[1].metrics.Find("loss"), Value(0.5));
  EXPECT_LT(found[0].sequence, found[2].sequence);
  const auto gone = repositories->Remove(repository, 3, {ids[0], ids[1]}).value();
  EXPECT_EQ(gone.size(), 2u);
  EXPECT_EQ(repositories->List(repository).value().size(), 1u);
  // What is not there any more is gone; an older run may not touch it.
  EXPECT_EQ(repositories->Remove(repository, 3, {ids[0]}).value().size(), 1u);
  EXPECT_FALSE(repositories->Remove(repository, 2, {ids[2]}).ok());
  EXPECT_EQ(repositories->List(repository).value().size(), 1u);
}

TEST(RepositoryAccess, PinsBesideALivingRunAndFindsThatOneIsGone) {
  TempDirectory directory;
  const std::string repository = directory / "e/1";
  auto repositories = RepositoryAccess::Real();
  EXPECT_TRUE(repositories->Pin(repository, "x", true).Is(Code::kNotFound));
  auto manager = CheckpointManager::Open(
                     {.directory = repository, .run = 1, .retention = {.keep_last = std::nullopt}})
                     .value();
  const std::string pinned = Save(manager.get(), 1, 1).id;
  const std::string removed = Save(manager.get(), 2, 2).id;
  ASSERT_TRUE(repositories->Pin(repository, pinned, true).ok());
  EXPECT_TRUE(manager->Delete(pinned).Is(Code::kFailedPrecondition));
  ASSERT_TRUE(manager->Delete(removed).ok());
  EXPECT_FALSE(repositories->Pin(repository, removed, true).ok());
  EXPECT_TRUE(repositories->List(repository).value().at(0).pinned);
  ASSERT_TRUE(repositories->Pin(repository, pinned, false).ok());
  EXPECT_TRUE(manager->Delete(pinned).ok());
}

}  // namespace
}  // namespace cairn
