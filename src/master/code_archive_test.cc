#include "master/code_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "master/glob.h"
#include "storage/local/temp_directory.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void Write(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Item {
  std::string path;
  unsigned type = AE_IFREG;
  std::string content;  // or what a link points to
  std::string hardlink;
  unsigned perm = 0644;
};

/// An archive that our own writer would never make.
std::string Tar(const std::vector<Item>& items) {
  std::string out(1u << 20, '\0');
  std::size_t used = 0;
  archive* writer = archive_write_new();
  archive_write_set_format_pax(writer);
  archive_write_add_filter_gzip(writer);
  EXPECT_EQ(archive_write_open_memory(writer, out.data(), out.size(), &used), ARCHIVE_OK);
  for (const Item& item : items) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, item.path.c_str());
    archive_entry_set_perm(entry, item.perm);
    archive_entry_set_filetype(entry, item.type);
    if (item.type == AE_IFLNK) archive_entry_set_symlink(entry, item.content.c_str());
    if (!item.hardlink.empty()) archive_entry_set_hardlink(entry, item.hardlink.c_str());
    if (item.type == AE_IFREG && item.hardlink.empty()) {
      archive_entry_set_size(entry, static_cast<la_int64_t>(item.content.size()));
    }
    archive_write_header(writer, entry);
    if (item.type == AE_IFREG) archive_write_data(writer, item.content.data(), item.content.size());
    archive_entry_free(entry);
  }
  archive_write_close(writer);
  archive_write_free(writer);
  out.resize(used);
  return out;
}

class CodeArchiveTest : public ::testing::Test {
 protected:
  std::string Complaint(const std::vector<Item>& items, const CodeLimits& limits = {}) {
    const Status status = ExtractCode(Tar(items), out_, limits);
    EXPECT_FALSE(fs::exists(out_));
    EXPECT_FALSE(fs::exists(out_ + ".partial"));
    EXPECT_FALSE(fs::exists(temp_.path() + "/evil"));
    return status.ToString();
  }

  TempDirectory temp_;
  const std::string in_ = temp_.path() + "/in";
  const std::string out_ = temp_.path() + "/deep/out";

  void SetUp() override { fs::create_directories(temp_.path() + "/deep"); }
};

TEST_F(CodeArchiveTest, WhatIsPackedComesBack) {
  Write(in_ + "/train.py", "print(1)\n");
  Write(in_ + "/run.sh", "#!/bin/sh\n");
  chmod((in_ + "/run.sh").c_str(), 04755);
  Write(in_ + "/lib/gr\xC3\xBC\xC3\x9F.txt", std::string(300'000, 'x'));
  Write(in_ + "/lib/" + std::string(200, 'n') + "/empty", "");
  fs::create_directories(in_ + "/hollow");
  fs::create_symlink("../train.py", in_ + "/lib/link");
  Write(in_ + "/.git/config", "secret");
  Write(in_ + "/lib/__pycache__/a.pyc", "x");
  Write(in_ + "/data/big.bin", "x");
  Write(in_ + "/data/keep.csv", "1,2");
  Write(in_ + "/.cairnignore", "# big things\n/data/*\n!keep.csv\n");
  const auto archive = PackCode(in_);
  ASSERT_TRUE(archive.ok()) << archive.status().ToString();
  EXPECT_EQ(*PackCode(in_), *archive) << "the same files give the same bytes";
  ASSERT_TRUE(ExtractCode(*archive, out_).ok()) << ExtractCode(*archive, out_).ToString();
  EXPECT_EQ(Read(out_ + "/train.py"), "print(1)\n");
  EXPECT_EQ(Read(out_ + "/lib/gr\xC3\xBC\xC3\x9F.txt").size(), 300'000u);
  EXPECT_TRUE(fs::exists(out_ + "/lib/" + std::string(200, 'n') + "/empty"));
  EXPECT_TRUE(fs::is_directory(out_ + "/hollow"));
  EXPECT_EQ(fs::read_symlink(out_ + "/lib/link"), "../train.py");
  EXPECT_EQ(Read(out_ + "/data/keep.csv"), "1,2");
  EXPECT_FALSE(fs::exists(out_ + "/data/big.bin"));
  EXPECT_FALSE(fs::exists(out_ + "/.git"));
  EXPECT_FALSE(fs::exists(out_ + "/lib/__pycache__"));
  struct stat status{};
  ASSERT_EQ(stat((out_ + "/run.sh").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0755u) << "runnable, but not as somebody else";
  EXPECT_TRUE(ExtractCode(*archive, out_).Is(Code::kAlreadyExists));
}

TEST_F(CodeArchiveTest, NothingIsWrittenOutside) {
  EXPECT_THAT(Complaint({{.path = "../evil", .content = "x"}}), HasSubstr("\"..\" in a name"));
  EXPECT_THAT(Complaint({{.path = "a/../../evil", .content = "x"}}), HasSubstr("\"..\" in a name"));
  EXPECT_THAT(Complaint({{.path = temp_.path() + "/evil", .content = "x"}}),
              HasSubstr("an absolute name"));
  EXPECT_THAT(Complaint({{.path = "l", .type = AE_IFLNK, .content = "/etc/passwd"}}),
              HasSubstr("leads out"));
  EXPECT_THAT(Complaint({{.path = "a/l", .type = AE_IFLNK, .content = "../../evil"}}),
              HasSubstr("leads out"));
  EXPECT_THAT(Complaint({{.path = "a/l", .type = AE_IFLNK, .content = "b/../../.."}}),
              HasSubstr("after a name"));
  // Through a link that is fine by itself.
  EXPECT_THAT(Complaint({{.path = "l", .type = AE_IFLNK, .content = "d"},
                         {.path = "l/evil", .content = "x"}}),
              HasSubstr("as two things"));
  EXPECT_THAT(Complaint({{.path = "a", .content = "1"}, {.path = "a", .content = "2"}}),
              HasSubstr("twice"));
  EXPECT_THAT(Complaint({{.path = "a", .content = "1"}, {.path = "a/b", .content = "2"}}),
              HasSubstr("twice"));
}

TEST_F(CodeArchiveTest, WhatCannotBeUnpackedIsRefusedWhenItIsLookedThrough) {
  const auto look = [&](const std::vector<Item>& entries) {
    return VisitCode(Tar(entries), {},
                     {.entry = [](const CodeEntry&) { return Status::Ok(); },
                      .data = [](std::string_view) { return Status::Ok(); }});
  };
  EXPECT_TRUE(look({{.path = "d", .type = AE_IFDIR}, {.path = "d/a", .content = "1"}}).ok());
  EXPECT_TRUE(look({{.path = "d/a", .content = "1"}, {.path = "d", .type = AE_IFDIR}}).ok());
  for (const std::vector<Item>& entries : std::vector<std::vector<Item>>{
           {{.path = "a", .content = "1"}, {.path = "a", .content = "2"}},
           {{.path = "a", .content = "1"}, {.path = "a/b", .content = "2"}},
           {{.path = "a/b", .content = "1"}, {.path = "a", .content = "2"}},
           {{.path = "l", .type = AE_IFLNK, .content = "d"}, {.path = "l/f", .content = "1"}},
           {{.path = "a", .content = "1"}, {.path = "a", .type = AE_IFDIR}}}) {
    EXPECT_TRUE(look(entries).Is(Code::kInvalidArgument)) << entries[1].path;
  }
}

TEST_F(CodeArchiveTest, OnlyFilesDirectoriesAndLinksAreTaken) {
  EXPECT_THAT(Complaint({{.path = "a", .content = "x"}, {.path = "b", .hardlink = "a"}}),
              HasSubstr("hard links"));
  EXPECT_THAT(Complaint({{.path = "f", .type = AE_IFIFO}}), HasSubstr("only files"));
  EXPECT_THAT(Complaint({{.path = "d", .type = AE_IFCHR}}), HasSubstr("only files"));
  mkfifo((temp_.path() + "/pipe").c_str(), 0600);
  fs::create_directories(in_);
  fs::rename(temp_.path() + "/pipe", in_ + "/pipe");
  EXPECT_THAT(PackCode(in_).status().ToString(), HasSubstr("pipe is neither file nor directory"));
  fs::remove(in_ + "/pipe");
  fs::create_symlink("/etc/passwd", in_ + "/link");
  EXPECT_THAT(PackCode(in_).status().ToString(), HasSubstr("leads out"));
  fs::remove(in_ + "/link");
  fs::create_symlink("../../../etc", in_ + "/link");
  EXPECT_THAT(PackCode(in_).status().ToString(),
              HasSubstr("\"link\" is a link to \"../../../etc\": it leads out of the directory: "
                        "name it in .cairnignore"));
  EXPECT_THAT(PackCode(temp_.path() + "/none").status().ToString(), HasSubstr("not a directory"));
}

TEST_F(CodeArchiveTest, BombsAreStopped) {
  EXPECT_THAT(
      Complaint({{.path = "zeros", .content = std::string(500'000, '\0')}}, {.bytes = 100'000}),
      HasSubstr("unpacks to more than 100000 bytes"));
  std::vector<Item> many;
  for (int i = 0; i < 20; ++i) many.push_back({.path = "f" + std::to_string(i)});
  EXPECT_THAT(Complaint(many, {.entries = 10}), HasSubstr("more than 10 files"));
  EXPECT_THAT(Complaint({{.path = "a", .content = "x"}}, {.archive_bytes = 10}),
              HasSubstr("at most 10"));
  EXPECT_THAT(Complaint({{.path = std::string(2000, 'a') + "/b", .content = "x"}}),
              HasSubstr("too long"));
  Write(in_ + "/big", std::string(5000, 'x'));
  EXPECT_THAT(PackCode(in_, {.bytes = 1000}).status().ToString(),
              HasSubstr("the largest are big (5000 bytes)"));
}

TEST_F(CodeArchiveTest, DamageIsRefused) {
  std::string archive = Tar({{.path = "a", .content = std::string(100'000, 'x') + "y"}});
  EXPECT_FALSE(ExtractCode("", out_).ok());
  EXPECT_FALSE(ExtractCode("hello, world", out_).ok());
  EXPECT_FALSE(ExtractCode(archive.substr(0, archive.size() / 2), out_).ok());
  archive[archive.size() / 2] ^= 0x20;
  EXPECT_FALSE(ExtractCode(archive, out_).ok());
  EXPECT_FALSE(fs::exists(out_));
}

TEST(GlobTest, MatchesAsUsersExpect) {
  EXPECT_TRUE(GlobMatch("*.py", "a.py"));
  EXPECT_FALSE(GlobMatch("*.py", "d/a.py"));
  EXPECT_TRUE(GlobMatch("**/*.py", "a.py"));
  EXPECT_TRUE(GlobMatch("**/*.py", "d/e/a.py"));
  EXPECT_TRUE(GlobMatch("d/**", "d/e/f"));
  EXPECT_FALSE(GlobMatch("d/**", "e/d/f"));
  EXPECT_TRUE(GlobMatch("d/**/f", "d/f"));
  EXPECT_FALSE(GlobMatch("d/**/f", "d/xf"));
  EXPECT_TRUE(GlobMatch("file[0-9]?", "file1x"));
  EXPECT_FALSE(GlobMatch("file[!0-9]", "file1"));
  EXPECT_TRUE(GlobMatch("\\*", "*"));
  EXPECT_FALSE(GlobMatch("\\*", "a"));
  EXPECT_TRUE(GlobMatch("a[", "a["));
  EXPECT_TRUE(GlobMatch("", ""));
  EXPECT_FALSE(GlobMatch("", "a"));
  // Exponential for those who try everything.
  EXPECT_FALSE(GlobMatch("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(500, 'a')));
}

TEST(GlobTest, IgnoreRulesAreThoseOfGit) {
  const IgnoreRules rules("build/\n/top\n*.log\n!keep.log\nsub/dir\n");
  EXPECT_TRUE(rules.Ignores("build", true));
  EXPECT_TRUE(rules.Ignores("a/build", true));
  EXPECT_FALSE(rules.Ignores("build", false));
  EXPECT_TRUE(rules.Ignores("top", false));
  EXPECT_FALSE(rules.Ignores("a/top", false));
  EXPECT_TRUE(rules.Ignores("a/b.log", false));
  EXPECT_FALSE(rules.Ignores("a/keep.log", false));
  EXPECT_TRUE(rules.Ignores("sub/dir", true));
  EXPECT_FALSE(rules.Ignores("x/sub/dir", true));
}

}  // namespace
}  // namespace cairn::master
