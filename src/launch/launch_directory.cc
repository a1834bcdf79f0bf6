#include "launch/launch_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/ids.h"
#include "base/status_macros.h"
#include "launch/log_line.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxRecordBytes = std::size_t{4} << 20;

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus("write " + path, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return Status::Ok();
}

Status SyncDirectory(const std::string& path) {
  const OwnedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || fsync(directory.get()) != 0) return ErrnoStatus("fsync " + path, errno);
  return Status::Ok();
}

bool ReadInteger(std::string_view text, std::int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<OwnedFd> LockFile(const std::string& path, Clock* clock, std::chrono::nanoseconds patience) {
  const std::chrono::nanoseconds deadline = clock->Now() + patience;
  OwnedFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus("open " + path, errno);
  // Bound to the open file, not to the process: whoever has the descriptor holds the lock, and it
  // is gone with the last of them.
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return ErrnoStatus("flock " + path, errno);
    if (clock->Now() >= deadline) return UnavailableError(path + " is locked by another process");
    clock->Sleep(std::chrono::milliseconds(2));
  }
  return fd;
}

Status LaunchDirectory::Create(const LaunchRecord& record) const {
  if (mkdir(path_.c_str(), 0700) != 0) return ErrnoStatus("mkdir " + path_, errno);
  const std::string control = path_ + "/control";
  if (mkfifo(control.c_str(), 0600) != 0) return ErrnoStatus("mkfifo " + control, errno);
  return PublishFile("launch.json", Encode(record), /*durable=*/false);
}

Status LaunchDirectory::CreateShared(const LaunchRecord& record,
                                     const std::vector<std::string>& environment) const {
  if (mkdir(path_.c_str(), 0700) != 0) return ErrnoStatus("mkdir " + path_, errno);
  std::string entries;
  for (const std::string& entry : environment) {
    entries += entry;
    entries += '\0';
  }
  RETURN_IF_ERROR(PublishFile("environment", entries, /*durable=*/false));
  RETURN_IF_ERROR(PublishFile("commands", "", /*durable=*/false));
  return PublishFile("launch.json", Encode(record), /*durable=*/true);
}

Status LaunchDirectory::Remove() const {
  // Away from its name at once: a shim that comes late must not find half of it. It looks for each
  // file by the whole path.
  const std::filesystem::path path(path_);
  const std::string removed =
      (path.parent_path() / (kRemovedPrefix + IdSource::System()->NewUuid())).string();
  if (rename(path_.c_str(), removed.c_str()) != 0) {
    return errno == ENOENT ? Status::Ok() : ErrnoStatus("rename " + path_, errno);
  }
  std::error_code left_to_the_next_opening;
  std::filesystem::remove_all(removed, left_to_the_next_opening);
  return Status::Ok();
}

Result<std::string> LaunchDirectory::ReadFile(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  const OwnedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("open " + path, errno);
  std::string text;
  char block[16384];
  for (;;) {
    const ssize_t got = read(fd.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("read " + path, errno);
    if (got == 0) return text;
    text.append(block, static_cast<std::size_t>(got));
    if (text.size() > kMaxRecordBytes) return CorruptionError(path + ": too long for a record");
  }
}

Status LaunchDirectory::PublishFile(const std::string& name, std::string_view bytes,
                                    bool durable) const {
  const std::string path = path_ + "/" + name;
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  {
    const OwnedFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid()) return ErrnoStatus("open " + temporary, errno);
    Status written = WriteAll(fd.get(), bytes, temporary);
    if (written.ok() && durable && fdatasync(fd.get()) != 0) {
      written = ErrnoStatus("fdatasync " + temporary, errno);
    }
    if (!written.ok()) {
      unlink(temporary.c_str());
      return written;
    }
  }
  const int linked = link(temporary.c_str(), path.c_str());
  const int error = errno;
  unlink(temporary.c_str());
  if (linked != 0) return ErrnoStatus("link " + path, error);
  return durable ? SyncDirectory(path_) : Status::Ok();
}

Result<LaunchRecord> LaunchDirectory::ReadLaunch() const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile("launch.json"));
  return DecodeLaunch(bytes);
}

Result<KeeperRecord> LaunchDirectory::ReadKeeper() const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile("keeper.json"));
  return DecodeKeeper(bytes);
}

Result<RunningRecord> LaunchDirectory::ReadRunning() const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile("running.json"));
  return DecodeRunning(bytes);
}

Result<LaunchExit> LaunchDirectory::ReadExit() const {
  ASSIGN_OR_RETURN(const std::string bytes, ReadFile("exit.json"));
  return DecodeExit(bytes);
}

Status LaunchDirectory::Publish(const KeeperRecord& record) const {
  return PublishFile("keeper.json", Encode(record), /*durable=*/false);
}

Status LaunchDirectory::Publish(const RunningRecord& record) const {
  return PublishFile("running.json", Encode(record), /*durable=*/false);
}

Status LaunchDirectory::Publish(const LaunchExit& record) const {
  return PublishFile("exit.json", Encode(record), /*durable=*/true);
}

Result<OwnedFd> LaunchDirectory::Lock(Clock* clock, std::chrono::nanoseconds patience) const {
  return LockFile(path_ + "/lock", clock, patience);
}

Result<OwnedFd> LaunchDirectory::OpenControl() const {
  const std::string path = path_ + "/control";
  OwnedFd fd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("open " + path, errno);
  return fd;
}

Result<OwnedFd> LaunchDirectory::OpenCommands() const {
  const std::string path = path_ + "/commands";
  OwnedFd fd(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("open " + path, errno);
  return fd;
}

std::string LaunchDirectory::ReadCommands(std::uint64_t* offset) const {
  // Opened anew each time: that is when NFS asks its server whether the file has grown.
  const OwnedFd fd(open((path_ + "/commands").c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char block[512];
  while (fd.valid()) {
    const ssize_t got = pread(fd.get(), block, sizeof(block), static_cast<off_t>(*offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(block, static_cast<std::size_t>(got));
    *offset += static_cast<std::uint64_t>(got);
  }
  return text;
}

Result<std::vector<std::string>> LaunchDirectory::TakeEnvironment() const {
  ASSIGN_OR_RETURN(const std::string text, ReadFile("environment"));
  std::vector<std::string> entries;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    entries.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (unlink((path_ + "/environment").c_str()) != 0) {
    return ErrnoStatus("unlink " + path_ + "/environment", errno);
  }
  return entries;
}

std::string LaunchDirectory::ReadOwnerBeat() const {
  const std::filesystem::path path(path_);
  const LaunchDirectory beside(path.parent_path().string());
  const auto beat = beside.ReadFile(kOwnerBeat);
  return beat.ok() ? *beat : "";
}

Status LaunchDirectory::AskForPulse() const { return PublishFile("pulse", "", /*durable=*/false); }

void LaunchDirectory::Pulse(std::uint64_t beat) const {
  const OwnedFd fd(open((path_ + "/pulse").c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!fd.valid()) return;
  WriteAll(fd.get(), std::to_string(beat), path_ + "/pulse").IgnoreError("the next one comes soon");
}

std::string LaunchDirectory::ReadPulse() const {
  const auto pulse = ReadFile("pulse");
  return pulse.ok() ? *pulse : "";
}

void LaunchDirectory::Refresh() const {
  const std::string probe = fmt::format("{}/.probe.{}", path_, getpid());
  const OwnedFd fd(open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (fd.valid()) unlink(probe.c_str());
}

Result<LaunchLogPage> LaunchDirectory::ReadLog(std::uint64_t offset, std::uint64_t max_bytes,
                                               bool ended) const {
  LaunchLogPage page;
  page.next = offset;
  const OwnedFd fd(open(log_path().c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno != ENOENT) return ErrnoStatus("open " + log_path(), errno);
    page.end = ended;
    return page;
  }
  // At least one whole line fits, however little was asked for.
  const std::size_t wanted =
      std::max<std::uint64_t>(std::min<std::uint64_t>(max_bytes, 64u << 20), kMaxLogText + 256);
  std::string text(wanted, '\0');
  std::size_t filled = 0;
  while (filled < wanted) {
    const ssize_t got =
        pread(fd.get(), text.data() + filled, wanted - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("read " + log_path(), errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  const bool at_end = filled < wanted;
  std::string_view rest(text.data(), filled);
  while (!rest.empty()) {
    const std::size_t newline = rest.find('\n');
    // A line without newline: still being written, or, at the very end of a log that nobody
    // writes any more, cut by a power failure.
    if (newline == std::string_view::npos && !(ended && at_end)) break;
    const std::string_view line = rest.substr(0, newline);
    page.lines.push_back(ParseLogLine(line));
    const std::size_t taken = newline == std::string_view::npos ? rest.size() : newline + 1;
    page.next += taken;
    rest.remove_prefix(taken);
  }
  page.end = ended && at_end && rest.empty();
  return page;
}

std::string EncodeCommand(const ControlCommand& command) {
  if (command.kind == ControlCommand::Kind::kStop) return fmt::format("stop {}\n", command.grace);
  return fmt::format("signal {}\n", command.signal);
}

std::optional<ControlCommand> ParseCommand(std::string_view line) {
  const std::size_t blank = line.find(' ');
  std::int64_t number = 0;
  if (blank == std::string_view::npos || !ReadInteger(line.substr(blank + 1), &number)) {
    return std::nullopt;
  }
  const std::string_view word = line.substr(0, blank);
  if (word == "stop" && number >= 0) {
    return ControlCommand{.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = number};
  }
  if (word == "signal" && number > 0 && number < NSIG) {
    return ControlCommand{
        .kind = ControlCommand::Kind::kSignal, .signal = static_cast<int>(number), .grace = 0};
  }
  return std::nullopt;
}

}  // namespace cairn
