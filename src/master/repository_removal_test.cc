#include "master/repository_removal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <cairn/checkpoint_manager.h>

#include "storage/local/temp_directory.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

class RepositoryRemovalTest : public ::testing::Test {
 protected:
  TempDirectory storage_;
  const std::string experiment_ = storage_ / "5";
  const std::string trial_ = experiment_ + "/7";
};

TEST_F(RepositoryRemovalTest, TheLastOneTakesTheExperimentsDirectoryWithIt) {
  for (const std::string& name : {std::string("/7"), std::string("/8")}) {
    ASSERT_TRUE(CheckpointManager::Open({.directory = experiment_ + name}).ok());
  }
  ASSERT_TRUE(RemoveRepository(trial_, "").ok());
  EXPECT_FALSE(fs::exists(trial_));
  EXPECT_TRUE(fs::exists(experiment_ + "/8"));
  ASSERT_TRUE(RemoveRepository(experiment_ + "/8", "").ok());
  EXPECT_FALSE(fs::exists(experiment_));
  EXPECT_TRUE(fs::exists(storage_.path()));
}

TEST_F(RepositoryRemovalTest, OneThatWasKilledInTheMiddleIsFinished) {
  fs::create_directories(trial_);  // the record is gone, and what it was in is not yet
  ASSERT_TRUE(RemoveRepository(trial_, "job").ok());
  EXPECT_FALSE(fs::exists(experiment_));
  fs::create_directories(experiment_);
  ASSERT_TRUE(RemoveRepository(trial_, "job").ok());
  EXPECT_FALSE(fs::exists(experiment_));
}

TEST_F(RepositoryRemovalTest, WhatIsNoRepositoryStays) {
  fs::create_directories(trial_);
  std::ofstream(trial_ + "/notes.txt") << "mine";
  ASSERT_TRUE(RemoveRepository(trial_, "job").ok());
  EXPECT_TRUE(fs::exists(trial_ + "/notes.txt"));
  const std::string link = experiment_ + "/8";
  fs::create_directory_symlink("/nonexistent/disk", link);
  ASSERT_TRUE(RemoveRepository(link, "job").ok());
  EXPECT_TRUE(fs::is_symlink(link));
}

}  // namespace
}  // namespace cairn::master
