#include "tune/directory_of_this_life.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "storage/local/temp_directory.h"

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr char kPrefix[] = "cairn-tune-launches-";

TEST(DirectoryOfThisLife, GoWithIt) {
  const TempDirectory parent;
  auto life = std::make_unique<DirectoryOfThisLife>(kPrefix);
  ASSERT_TRUE(life->Make(parent.path()).ok());
  std::ofstream(life->path() + "/log") << "words";
  ASSERT_FALSE(fs::is_empty(parent.path()));
  life.reset();
  EXPECT_TRUE(fs::is_empty(parent.path()));
}

TEST(DirectoryOfThisLife, ThoseOfTheDeadAreRemovedAndNoOthers) {
  const TempDirectory parent;
  const std::string dead = parent / "cairn-tune-launches-dead00";
  const std::string foreign = parent / "cairn-tune";
  fs::create_directories(dead + "/trial_00000.1");
  fs::create_directories(foreign);
  fs::create_directory_symlink(foreign, parent / "cairn-tune-launches-link00");
  DirectoryOfThisLife first(kPrefix);
  ASSERT_TRUE(first.Make(parent.path(), seconds(3600)).ok());
  EXPECT_TRUE(fs::exists(dead)) << "it may have been made a moment ago";
  DirectoryOfThisLife second(kPrefix);
  ASSERT_TRUE(second.Make(parent.path(), seconds(0)).ok());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(first.path())) << "its process lives";
  EXPECT_TRUE(fs::exists(foreign));
  EXPECT_TRUE(fs::is_symlink(parent / "cairn-tune-launches-link00"));
  DirectoryOfThisLife third(kPrefix);
  EXPECT_FALSE(third.Make(parent / "missing").ok());
}

}  // namespace
}  // namespace cairn::tune
