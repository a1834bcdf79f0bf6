#include "bench/raw_io.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/status_macros.h"

namespace cairn::bench {
namespace {

Status Failed(const std::string& what, const std::string& path, int error) {
  return InternalError(what + " " + path + ": " + std::strerror(error));
}

class File {
 public:
  File(const std::string& path, int flags)
      : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  Status Check() const { return fd_ >= 0 ? Status::Ok() : Failed("open", path_, errno); }

 private:
  const std::string path_;
  const int fd_;
};

Status SyncDirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  File directory(parent, O_RDONLY | O_DIRECTORY);
  RETURN_IF_ERROR(directory.Check());
  return fsync(directory.fd()) == 0 ? Status::Ok() : Failed("fsync", parent, errno);
}

/// Moves [0, bytes) of the file in blocks, `depth` at a time.
Status Transfer(const std::string& path, int fd, std::byte* memory, std::uint64_t bytes, bool write,
                const RawOptions& options) {
  io_uring ring = {};
  const int made = io_uring_queue_init(static_cast<unsigned>(options.depth), &ring, 0);
  if (made < 0) return Failed("io_uring for", path, -made);
  Status status;
  std::uint64_t next = 0;
  int in_flight = 0;
  while (status.ok() && (next < bytes || in_flight > 0)) {
    while (next < bytes && in_flight < options.depth) {
      const auto n = static_cast<unsigned>(std::min<std::uint64_t>(options.block, bytes - next));
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      if (write) {
        io_uring_prep_write(sqe, fd, memory + next, n, next);
      } else {
        io_uring_prep_read(sqe, fd, memory + next, n, next);
      }
      io_uring_sqe_set_data64(sqe, n);
      next += n;
      ++in_flight;
    }
    io_uring_submit(&ring);
    io_uring_cqe* cqe = nullptr;
    const int waited = io_uring_wait_cqe(&ring, &cqe);
    if (waited < 0) {
      status = Failed("wait for", path, -waited);
      break;
    }
    if (cqe->res != static_cast<int>(io_uring_cqe_get_data64(cqe))) {
      status = Failed("transfer", path, cqe->res < 0 ? -cqe->res : EIO);
    }
    io_uring_cqe_seen(&ring, cqe);
    --in_flight;
  }
  io_uring_queue_exit(&ring);
  return status;
}

}  // namespace

Status WriteDirect(const std::string& path, std::span<const std::byte> bytes, bool overwrite,
                   const RawOptions& options) {
  File file(path, O_WRONLY | O_DIRECT | (overwrite ? 0 : O_CREAT | O_EXCL));
  RETURN_IF_ERROR(file.Check());
  if (!overwrite && options.allocate) {
    const auto size = static_cast<off_t>(bytes.size());
    if (fallocate(file.fd(), FALLOC_FL_KEEP_SIZE, 0, size) != 0 ||
        ftruncate(file.fd(), size) != 0) {
      return Failed("allocate", path, errno);
    }
  }
  // The ring's interface has one pointer type for both directions.
  RETURN_IF_ERROR(Transfer(path, file.fd(), const_cast<std::byte*>(bytes.data()), bytes.size(),
                           /*write=*/true, options));
  if (fdatasync(file.fd()) != 0) return Failed("fdatasync", path, errno);
  return SyncDirectoryOf(path);
}

Status WriteBuffered(const std::string& path, std::span<const std::byte> bytes, bool overwrite) {
  File file(path, O_WRONLY | (overwrite ? 0 : O_CREAT | O_EXCL));
  RETURN_IF_ERROR(file.Check());
  constexpr std::size_t kBlock = 8u << 20;
  for (std::uint64_t offset = 0; offset < bytes.size();) {
    const std::size_t n = std::min<std::uint64_t>(kBlock, bytes.size() - offset);
    const ssize_t wrote = write(file.fd(), bytes.data() + offset, n);
    if (wrote <= 0) return Failed("write", path, errno);
    offset += static_cast<std::uint64_t>(wrote);
    // The disk begins while the next block is being copied.
    sync_file_range(file.fd(), static_cast<off_t>(offset) - wrote, wrote, SYNC_FILE_RANGE_WRITE);
  }
  if (fsync(file.fd()) != 0) return Failed("fsync", path, errno);
  return SyncDirectoryOf(path);
}

Status ReadDirect(const std::string& path, std::span<std::byte> into, const RawOptions& options) {
  File file(path, O_RDONLY | O_DIRECT);
  RETURN_IF_ERROR(file.Check());
  return Transfer(path, file.fd(), into.data(), into.size(), /*write=*/false, options);
}

Status ReadBuffered(const std::string& path, std::span<std::byte> into) {
  File file(path, O_RDONLY);
  RETURN_IF_ERROR(file.Check());
  posix_fadvise(file.fd(), 0, 0, POSIX_FADV_SEQUENTIAL);
  while (!into.empty()) {
    const ssize_t n = read(file.fd(), into.data(), std::min<std::size_t>(into.size(), 8u << 20));
    if (n <= 0) return Failed("read", path, n < 0 ? errno : EIO);
    into = into.subspan(static_cast<std::size_t>(n));
  }
  return Status::Ok();
}

void CopyOnThreads(std::span<const std::byte> from, std::byte* to, int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  const std::size_t share = (from.size() / static_cast<std::size_t>(threads) + 4095) / 4096 * 4096;
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    const std::size_t begin = std::min(from.size(), static_cast<std::size_t>(i) * share);
    const std::size_t n =
        i + 1 == threads ? from.size() - begin : std::min(share, from.size() - begin);
    const auto copy = [=] { std::memcpy(to + begin, from.data() + begin, n); };
    if (i + 1 == threads) {
      copy();
    } else {
      workers.emplace_back(copy);
    }
  }
}

}  // namespace cairn::bench
