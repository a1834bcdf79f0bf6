#include "trial/repository_access.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "storage/local/temp_directory.h"
#include "storage/local/unprivileged.h"

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
    EXPECT_TRUE(
        repositories->Remove(repository, {.run = 3}, {ids[0]}).status().Is(Code::kUnavailable));
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
  const auto gone = repositories->Remove(repository, {.run = 3}, {ids[0], ids[1]}).value();
  EXPECT_EQ(gone.size(), 2u);
  EXPECT_EQ(repositories->List(repository).value().size(), 1u);
  // What is not there any more is gone; an older run may not touch it.
  EXPECT_EQ(repositories->Remove(repository, {.run = 3}, {ids[0]}).value().size(), 1u);
  EXPECT_FALSE(repositories->Remove(repository, {.run = 2}, {ids[2]}).ok());
  EXPECT_EQ(repositories->List(repository).value().size(), 1u);
}

TEST(RepositoryAccess, WhatARunWasRemovingWhenItDiedIsTidiedUp) {
  TempDirectory directory;
  const std::string repository = directory / "e/1";
  auto repositories = RepositoryAccess::Real();
  EXPECT_TRUE(repositories->Tidy(repository, {.run = 3}).ok());
  EXPECT_FALSE(std::filesystem::exists(repository)) << "nothing is made";
  std::string path;
  {
    auto manager =
        CheckpointManager::Open(
            {.directory = repository, .run = 3, .retention = {.keep_last = std::nullopt}})
            .value();
    path = Save(manager.get(), 1, 10).path;
    Save(manager.get(), 2, 20);
    ASSERT_TRUE(manager->Close().ok());
  }
  const auto generations = [&] {
    std::set<std::string> names;
    for (const auto& one : std::filesystem::directory_iterator(repository + "/generations")) {
      names.insert(one.path().filename());
    }
    return names;
  };
  const auto before = generations();
  EXPECT_TRUE(repositories->Tidy(repository, {.run = 3}).ok());
  EXPECT_EQ(generations(), before) << "where nothing is left, nobody opens it for writing";
  // A removal begins with the manifest.
  ASSERT_TRUE(std::filesystem::remove(path + "/manifest.json"));
  ASSERT_TRUE(repositories->Tidy(repository, {.run = 3}).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(repositories->List(repository).value().size(), 1U);
}

TEST(RepositoryAccess, WhoClaimsFirstHasTheRepositoryAndOthersRemoveNothing) {
  TempDirectory directory;
  const std::string repository = directory / "e/1";
  auto repositories = RepositoryAccess::Real();
  EXPECT_TRUE(repositories->Job(repository).status().Is(Code::kNotFound));
  EXPECT_EQ(repositories->Claim(repository, "mine").value(), "mine");
  EXPECT_EQ(repositories->Claim(repository, "yours").value(), "mine");
  EXPECT_EQ(repositories->Job(repository).value(), "mine");
  EXPECT_TRUE(repositories->List(repository).value().empty());
  // Whoever opens it without a name of its own goes on with the job that is there.
  std::string id;
  {
    auto manager = CheckpointManager::Open({.directory = repository, .run = 1}).value();
    EXPECT_EQ(manager->job(), "mine");
    id = Save(manager.get(), 1, 1).id;
    ASSERT_TRUE(manager->Close().ok());
  }
  EXPECT_TRUE(repositories->Remove(repository, {.job = "yours", .run = 1}, {id})
                  .status()
                  .Is(Code::kFailedPrecondition));
  EXPECT_EQ(repositories->Remove(repository, {.job = "mine", .run = 1}, {id}).value().size(), 1u);
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

TEST(RepositoryAccess, WhatCannotBeReadIsNotTakenForDeleted) {
  TempDirectory directory;
  const std::string repository = directory / "1";
  {
    auto manager = CheckpointManager::Open({.directory = repository}).value();
    for (int i = 1; i <= 2; ++i) Save(manager.get(), i, i);
    ASSERT_TRUE(manager->Close().ok());
  }
  for (const std::string& path : {directory.path(), repository}) {
    ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  }
  const std::string closed = repository + "/checkpoint_000001";
  ASSERT_EQ(chmod(closed.c_str(), 0), 0);
  EXPECT_EQ(RunUnprivileged([&]() -> std::string {
              const Status listed = RepositoryAccess::Real()->List(repository).status();
              return listed.Is(Code::kPermissionDenied) ? "" : listed.ToString();
            }),
            "");
  ASSERT_EQ(chmod(closed.c_str(), 0777), 0);
}

}  // namespace
}  // namespace cairn
