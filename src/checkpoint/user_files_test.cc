#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <cairn/checkpoint_manager.h>
#include <cairn/transfer.h>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class UserFilesTest : public ::testing::Test {
 protected:
  UserFilesTest() {
    std::string name = (fs::temp_directory_path() / "cairn-user-files-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    manager_ = CheckpointManager::Open({.directory = (directory_ / "runs").string()}).value();
    SaveRequest request;
    request.files = {{.name = "large", .path = "", .bytes = large_},
                     {.name = "sub/small", .path = "", .bytes = "small"},
                     {.name = std::string("none/") + kEmptyDirectory, .path = "", .bytes = ""}};
    request.blocking = true;
    checkpoint_ = manager_->Save(std::move(request)).value().Wait().value();
    names_ = UserFilesOf(checkpoint_.path).value();
  }
  ~UserFilesTest() override { fs::remove_all(directory_); }

  static std::string Read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Status Fetch(FetchHow how) {
    return FetchUserFiles(checkpoint_.path, names_, (directory_ / "out").string(), how);
  }

  const std::string large_ = std::string(2'000'000, 'x');
  fs::path directory_;
  std::unique_ptr<CheckpointManager> manager_;
  CheckpointInfo checkpoint_;
  std::vector<std::string> names_;
};

TEST_F(UserFilesTest, CopiesAreFilesOfTheirOwnAndEmptyDirectoriesAreMade) {
  EXPECT_THAT(names_, ElementsAre("large", std::string("none/") + kEmptyDirectory, "sub/small"));
  ASSERT_TRUE(Fetch(FetchHow::kCopy).ok());
  EXPECT_EQ(Read(directory_ / "out" / "large"), large_);
  EXPECT_EQ(Read(directory_ / "out" / "sub" / "small"), "small");
  EXPECT_TRUE(fs::is_empty(directory_ / "out" / "none"));
  EXPECT_EQ(fs::hard_link_count(directory_ / "out" / "large"), 1u);
}

TEST_F(UserFilesTest, LinksOutliveTheCheckpointAndSmallFilesAreCopied) {
  for (int again = 0; again < 2; ++again) {  // over what is there already
    ASSERT_TRUE(Fetch(FetchHow::kLink).ok());
    EXPECT_EQ(Read(directory_ / "out" / "large"), large_);
    EXPECT_EQ(fs::hard_link_count(directory_ / "out" / "sub" / "small"), 1u);
  }
  struct stat stored{};
  struct stat linked{};
  ASSERT_EQ(stat((checkpoint_.path + "/files/large").c_str(), &stored), 0);
  ASSERT_EQ(stat((directory_ / "out" / "large").c_str(), &linked), 0);
  // One file with two names, or on disks that know it a second file of the same blocks.
  EXPECT_TRUE(linked.st_ino == stored.st_ino || linked.st_nlink == 1);
  SaveRequest request{.step = 1};
  request.files = {{.name = "large", .path = "", .bytes = std::string(2'000'000, 'y')}};
  request.blocking = true;
  ASSERT_TRUE(manager_->Save(std::move(request)).ok());
  ASSERT_TRUE(manager_->Delete(checkpoint_.id).ok());
  request = {.step = 2};  // would take over the files of removed ones
  request.files = {{.name = "large", .path = "", .bytes = std::string(2'000'000, 'z')}};
  request.blocking = true;
  ASSERT_TRUE(manager_->Save(std::move(request)).ok());
  EXPECT_EQ(Read(directory_ / "out" / "large"), large_);
}

TEST_F(UserFilesTest, DamageIsNoticedHoweverTheyAreFetched) {
  {
    std::fstream file(checkpoint_.path + "/files/large", std::ios::in | std::ios::out);
    file.seekp(1000);
    file << "!";
  }
  for (const FetchHow how : {FetchHow::kCopy, FetchHow::kLink, FetchHow::kCheck}) {
    const Status status = Fetch(how);
    EXPECT_EQ(status.code(), Code::kCorruption);
    EXPECT_THAT(status.ToString(), HasSubstr("files/large"));
  }
}

/// The least that it took of three times, of the processor: whoever else is at work does not count.
template <typename F>
double Fastest(F run) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begun = std::clock();
    run();
    best = std::min(best, static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC);
  }
  return best;
}

TEST_F(UserFilesTest, ManySmallFilesTakeAboutAsLongAsVerifyingThem) {
  constexpr int kFiles = 400;
  SaveRequest request{.step = 1};
  for (int i = 0; i < kFiles; ++i) {
    request.files.push_back({.name = std::to_string(i), .path = "", .bytes = std::to_string(i)});
  }
  request.blocking = true;
  const CheckpointInfo many = manager_->Save(std::move(request)).value().Wait().value();
  const auto names = UserFilesOf(many.path).value();
  ASSERT_EQ(names.size(), static_cast<std::size_t>(kFiles));
  const double verified =
      Fastest([&] { EXPECT_TRUE(Verify((directory_ / "runs").string(), true).value().ok()); });
  const double checked =
      Fastest([&] { EXPECT_TRUE(FetchUserFiles(many.path, names, "", FetchHow::kCheck).ok()); });
  EXPECT_LT(checked, verified * 6) << "something is made anew for each file";
  ASSERT_TRUE(FetchUserFiles(many.path, names, directory_ / "out", FetchHow::kCopy).ok());
  for (int i = 0; i < kFiles; ++i) {
    ASSERT_EQ(Read(directory_ / "out" / std::to_string(i)), std::to_string(i));
  }
}

/// The limits of descriptors while it lives.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(rlim_t soft) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{.rlim_cur = soft, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~OpenFilesLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(UserFilesTest, MoreFilesThanTheSoftLimitAllowsAreReadAllTheSame) {
  constexpr int kFiles = 400;
  const OpenFilesLimit limit(128);
  SaveRequest request{.step = 1};
  for (int i = 0; i < kFiles; ++i) {
    request.files.push_back({.name = std::to_string(i), .path = "", .bytes = std::to_string(i)});
  }
  request.blocking = true;
  const auto saved = manager_->Save(std::move(request));
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  const CheckpointInfo many = saved->Wait().value();
  const auto names = UserFilesOf(many.path).value();
  const Status fetched = FetchUserFiles(many.path, names, "", FetchHow::kCheck);
  EXPECT_TRUE(fetched.ok()) << fetched.ToString();
  const auto restored = manager_->Restore(RestoreRequest{});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->info.step, 1);
}

TEST_F(UserFilesTest, WhatIsNotThereIsNamed) {
  names_ = {"nothing"};
  const Status status = Fetch(FetchHow::kCheck);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.ToString(), HasSubstr("has no file \"nothing\""));
  EXPECT_FALSE(fs::exists(directory_ / "out")) << "a check makes nothing";
}

}  // namespace
}  // namespace cairn
