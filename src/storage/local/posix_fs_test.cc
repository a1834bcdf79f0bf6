#include "storage/local/posix_fs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "storage/local/aligned_buffer.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::unique_ptr<FsFile> MakeFile(const std::string& path, std::string_view text = "") {
  auto file = PosixFs()->Open(path, {.write = true, .create = true});
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE((*file)->WriteAt(0, Bytes(text)).ok());
  return *std::move(file);
}

std::string ReadAll(FsFile* file) {
  std::string text((*file->Stat()).bytes, '\0');
  auto read = file->ReadAt(0, std::as_writable_bytes(std::span(text)));
  EXPECT_TRUE(read.ok());
  text.resize(*read);
  return text;
}

// Runs `body` in a forked child and returns its exit code.
int InChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

TEST(ErrnoStatus, NamesOperationPathAndReason) {
  const Status status = ErrnoStatus(EACCES, "open", "/some/path");
  EXPECT_EQ(status.ToString(), "PermissionDenied: open \"/some/path\": Permission denied");
}

TEST(ErrnoStatus, ALimitIsToldWithWhatRaisesIt) {
  const std::vector<std::pair<int, std::string>> remedies = {
      {EMFILE, "ulimit -n"}, {ENFILE, "fs.file-max"}, {EFBIG, "ulimit -f"}};
  for (const auto& [error, remedy] : remedies) {
    const std::string said = ErrnoStatus(error, "open", "f").ToString();
    EXPECT_NE(said.find(remedy), said.npos) << said;
  }
}

TEST(ErrnoStatus, CodesTellApartWhatCallersTreatDifferently) {
  const std::vector<std::pair<int, Code>> expected = {
      {ENOENT, Code::kNotFound},          {EEXIST, Code::kAlreadyExists},
      {ENOSPC, Code::kResourceExhausted}, {EDQUOT, Code::kResourceExhausted},
      {EACCES, Code::kPermissionDenied},  {EPERM, Code::kPermissionDenied},
      {EROFS, Code::kPermissionDenied},   {ENOTDIR, Code::kInvalidArgument},
      {EISDIR, Code::kInvalidArgument},   {ENAMETOOLONG, Code::kInvalidArgument},
      {EINVAL, Code::kInvalidArgument},   {ETIMEDOUT, Code::kUnavailable},
      {ESTALE, Code::kUnavailable},       {EIO, Code::kInternal},
      {EMFILE, Code::kResourceExhausted}, {ENOMEM, Code::kResourceExhausted}};
  for (const auto& [error, code] : expected) {
    EXPECT_EQ(ErrnoStatus(error, "x", "y").code(), code) << error;
  }
}

TEST(PosixFs, BytesWrittenAreReadBack) {
  TempDirectory dir;
  auto file = MakeFile(dir / "f", "hello");
  ASSERT_TRUE(file->WriteAt(5, Bytes(" world")).ok());
  ASSERT_TRUE(file->Sync("test").ok());
  EXPECT_EQ(ReadAll(file.get()), "hello world");
  std::string tail(100, '\0');
  EXPECT_EQ(*file->ReadAt(6, std::as_writable_bytes(std::span(tail))), 5u);
  EXPECT_EQ(*file->ReadAt(600, std::as_writable_bytes(std::span(tail))), 0u);
}

TEST(PosixFs, OpenTellsMissingTakenAndWrongKind) {
  TempDirectory dir;
  Fs* fs = PosixFs();
  EXPECT_EQ(fs->Open(dir / "missing", {}).status().code(), Code::kNotFound);
  MakeFile(dir / "f");
  EXPECT_EQ(fs->Open(dir / "f", {.write = true, .create = true, .exclusive = true}).status().code(),
            Code::kAlreadyExists);
  EXPECT_EQ(fs->Open(dir / "f/below", {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fs->Open(dir.path(), {}).status().code(), Code::kInvalidArgument);
}

TEST(PosixFs, OpenDoesNotHangOnAFifo) {
  TempDirectory dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const Status status = PosixFs()->Open(dir / "fifo", {}).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("regular"));
}

TEST(PosixFs, TruncateCutsAndGrows) {
  TempDirectory dir;
  auto file = MakeFile(dir / "f", "hello");
  ASSERT_TRUE(file->Truncate(2).ok());
  EXPECT_EQ(ReadAll(file.get()), "he");
  ASSERT_TRUE(file->Truncate(4).ok());
  EXPECT_EQ(ReadAll(file.get()), std::string("he\0\0", 4));
}

TEST(PosixFs, AllocateReservesWithoutChangingTheSize) {
  TempDirectory dir;
  auto file = MakeFile(dir / "f", "hello");
  const Status status = file->Allocate(1 << 20);
  if (status.Is(Code::kUnimplemented)) GTEST_SKIP() << status.ToString();
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(file->Stat()->bytes, 5u);
}

TEST(PosixFs, OffsetsBeyondWhatTheKernelKnowsAreRefused) {
  TempDirectory dir;
  auto file = MakeFile(dir / "f");
  std::string text = "x";
  EXPECT_EQ(file->WriteAt(~std::uint64_t{0}, Bytes(text)).code(), Code::kInvalidArgument);
  EXPECT_EQ(
      file->ReadAt(~std::uint64_t{0}, std::as_writable_bytes(std::span(text))).status().code(),
      Code::kInvalidArgument);
  EXPECT_FALSE(file->Truncate(~std::uint64_t{0}).ok());
}

TEST(PosixFs, DirectReadOfAFileWithAnOddEndStopsThere) {
  TempDirectory dir;
  const std::string text(4096 * 3 + 1000, 'z');
  MakeFile(dir / "f", text)->Sync("test").IgnoreError("test");
  auto file = PosixFs()->Open(dir / "f", {.direct = true});
  if (file.status().Is(Code::kInvalidArgument)) GTEST_SKIP() << file.status().ToString();
  ASSERT_TRUE(file.ok());
  AlignedBuffer buffer(4096 * 5);
  EXPECT_EQ(*(*file)->ReadAt(0, buffer.span()), text.size());
  EXPECT_EQ(*(*file)->ReadAt(8192, buffer.span().first(8192)), text.size() - 8192);
}

TEST(PosixFs, LinkNeverReplacesAndCountsNames) {
  TempDirectory dir;
  Fs* fs = PosixFs();
  MakeFile(dir / "a", "a");
  MakeFile(dir / "b", "b");
  EXPECT_EQ(fs->Link(dir / "a", dir / "b").code(), Code::kAlreadyExists);
  EXPECT_EQ(fs->Link(dir / "missing", dir / "c").code(), Code::kNotFound);
  ASSERT_TRUE(fs->Link(dir / "a", dir / "c").ok());
  EXPECT_EQ(fs->Stat(dir / "c")->links, 2u);
  EXPECT_EQ(fs->Stat(dir / "c")->inode, fs->Stat(dir / "a")->inode);
}

TEST(PosixFs, DirectoriesAreMadeListedAndRemovedOnlyWhenEmpty) {
  TempDirectory dir;
  Fs* fs = PosixFs();
  ASSERT_TRUE(fs->MakeDirectory(dir / "d").ok());
  EXPECT_EQ(fs->MakeDirectory(dir / "d").code(), Code::kAlreadyExists);
  EXPECT_EQ(fs->MakeDirectory(dir / "x/y").code(), Code::kNotFound);
  MakeFile(dir / "d/b");
  MakeFile(dir / "d/a");
  ASSERT_TRUE(fs->MakeDirectory(dir / "d/c").ok());
  auto entries = fs->List(dir / "d");
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_TRUE((*entries)[2].is_directory);
  EXPECT_EQ(fs->RemoveDirectory(dir / "d").code(), Code::kFailedPrecondition);
  ASSERT_TRUE(fs->RemoveDirectory(dir / "d/c").ok());
  EXPECT_TRUE(fs->SyncDirectory(dir / "d", "test").ok());
  EXPECT_EQ(fs->SyncDirectory(dir / "d/c", "test").code(), Code::kNotFound);
  EXPECT_EQ(fs->List(dir / "d/c").status().code(), Code::kNotFound);
  EXPECT_EQ(fs->List(dir / "d/a").status().code(), Code::kInvalidArgument);
}

TEST(PosixFs, SymbolicLinksAreFollowed) {
  TempDirectory dir;
  ASSERT_TRUE(PosixFs()->MakeDirectory(dir / "d").ok());
  ASSERT_EQ(symlink((dir / "d").c_str(), (dir / "to_directory").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", (dir / "dangling").c_str()), 0);
  auto entries = PosixFs()->List(dir.path());
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_FALSE((*entries)[1].is_directory);  // dangling
  EXPECT_TRUE((*entries)[2].is_directory);
}

TEST(PosixFs, FreeBytesIsKnown) {
  TempDirectory dir;
  EXPECT_GT(*PosixFs()->FreeBytes(dir.path()), 0u);
  EXPECT_EQ(PosixFs()->FreeBytes(dir / "missing").status().code(), Code::kNotFound);
  EXPECT_FALSE(PosixFs()->IsNetwork(dir / "missing"));
}

TEST(PosixFsLock, ASecondHolderInTheProcessIsRefused) {
  TempDirectory dir;
  auto lock = PosixFs()->TryLock(dir / "lock");
  ASSERT_TRUE(lock.ok()) << lock.status().ToString();
  auto second = PosixFs()->TryLock(dir / "lock");
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(getpid())));
  lock->reset();
  EXPECT_TRUE(PosixFs()->TryLock(dir / "lock").ok());
}

TEST(PosixFsLock, AnotherProcessIsRefusedAndToldThePid) {
  TempDirectory dir;
  auto lock = PosixFs()->TryLock(dir / "lock");
  ASSERT_TRUE(lock.ok());
  const std::string parent = std::to_string(getpid());
  const auto child = [&] {
    auto taken = PosixFs()->TryLock(dir / "lock");
    if (!taken.status().Is(Code::kUnavailable)) return 1;
    return taken.status().message().find(parent) == std::string_view::npos ? 2 : 0;
  };
  EXPECT_EQ(InChild(child), 0);
  // Neither the refused second holder here nor the child's attempt dropped the lock.
  EXPECT_FALSE(PosixFs()->TryLock(dir / "lock").ok());
  EXPECT_EQ(InChild(child), 0);
  lock->reset();
  EXPECT_EQ(InChild([&] { return PosixFs()->TryLock(dir / "lock").ok() ? 0 : 1; }), 0);
}

TEST(PosixFsLock, AForkedChildThatDestroysItsCopyLeavesTheLockInPlace) {
  TempDirectory dir;
  auto lock = PosixFs()->TryLock(dir / "lock");
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(InChild([&] {
              lock->reset();
              return 0;
            }),
            0);
  EXPECT_EQ(InChild([&] {
              return PosixFs()->TryLock(dir / "lock").status().Is(Code::kUnavailable) ? 0 : 1;
            }),
            0);
}

TEST(PosixFsLock, OneThatTheProcessLostByReadingTheFileIsTakenAgain) {
  TempDirectory dir;
  auto lock = PosixFs()->TryLock(dir / "lock");
  ASSERT_TRUE(lock.ok());
  const auto others = [&](Code code) {
    return InChild([&] { return PosixFs()->TryLock(dir / "lock").status().Is(code) ? 0 : 1; });
  };
  const auto read = [&] { close(open((dir / "lock").c_str(), O_RDONLY | O_CLOEXEC)); };
  (*lock)->Renew();
  EXPECT_EQ(others(Code::kUnavailable), 0) << "nothing was lost";
  read();
  ASSERT_EQ(others(Code::kOk), 0) << "as fcntl(2) says";
  (*lock)->Renew();
  EXPECT_EQ(others(Code::kUnavailable), 0);
  lock->reset();
  EXPECT_EQ(others(Code::kOk), 0);
}

TEST(PosixFsLock, ALockOfADeadProcessIsFree) {
  TempDirectory dir;
  EXPECT_EQ(InChild([&] {
              static auto lock = PosixFs()->TryLock(dir / "lock");
              return lock.ok() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(PosixFs()->TryLock(dir / "lock").ok());
}

TEST(PosixFsLock, ALockFileThatWasReplacedIsAnotherLock) {
  TempDirectory dir;
  auto first = PosixFs()->TryLock(dir / "lock");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(PosixFs()->Unlink(dir / "lock").ok());
  auto second = PosixFs()->TryLock(dir / "lock");
  EXPECT_TRUE(second.ok());
}

TEST(PosixFsUnused, AFileThatAnyoneHasOpenIsInUse) {
  TempDirectory dir;
  {
    MakeFile(dir / "f", "x");
  }
  ASSERT_TRUE(PosixFs()->IsUnused(dir / "f"));
  {
    auto reader = PosixFs()->Open(dir / "f", {});
    EXPECT_FALSE(PosixFs()->IsUnused(dir / "f"));
  }
  EXPECT_TRUE(PosixFs()->IsUnused(dir / "f"));
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    char c = 0;
    const int fd = open((dir / "f").c_str(), O_RDONLY);
    if (write(ready[1], &c, 1) != 1) _exit(1);
    close(done[1]);
    (void)!read(done[0], &c, 1);
    _exit(fd < 0);
  }
  char c = 0;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  EXPECT_FALSE(PosixFs()->IsUnused(dir / "f"));
  for (const int fd : {ready[0], ready[1], done[0], done[1]}) close(fd);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(PosixFs()->IsUnused(dir / "f"));
  EXPECT_FALSE(PosixFs()->IsUnused(dir / "missing"));
  EXPECT_FALSE(PosixFs()->IsUnused(dir.path()));
}

// Whoever opens the file at the wrong moment breaks the lease, and the kernel signals us.
TEST(PosixFsUnused, ALeaseBrokenByAnOpenerDoesNotKillTheProcess) {
  TempDirectory dir;
  {
    MakeFile(dir / "f", "x");
  }
  std::atomic<bool> stop{false};
  std::thread opener([&] {
    while (!stop) {
      const int fd = open((dir / "f").c_str(), O_RDONLY | O_CLOEXEC);
      if (fd >= 0) close(fd);
    }
  });
  for (int i = 0; i < 5000; ++i) PosixFs()->IsUnused(dir / "f");
  stop = true;
  opener.join();
}

}  // namespace
}  // namespace cairn
