// libslow_disk.so, put before a process by LD_PRELOAD: every operation that has to wait for a disk
// takes up to CAIRN_TEST_SLOW_DISK_MS milliseconds longer, each another time. What the process
// does is otherwise the same; what its ring of requests does (io_uring) is as fast as ever.

#include <dlfcn.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

void Wait() {
  static const long most = [] {
    const char* text = std::getenv("CAIRN_TEST_SLOW_DISK_MS");
    return text == nullptr ? 0L : std::atol(text) * 1'000'000L;
  }();
  static std::atomic<unsigned> calls{0};
  if (most <= 0) return;
  // Spread by a multiplicative hash of the call's number: no two processes wait alike.
  const unsigned mixed = (calls++ + static_cast<unsigned>(getpid())) * 2654435761u;
  const timespec pause{.tv_sec = 0, .tv_nsec = static_cast<long>(mixed % 1024) * (most / 1024)};
  nanosleep(&pause, nullptr);
}

template <typename F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int fd) {
  static auto* const next = Next<int(int)>("fsync");
  Wait();
  return next(fd);
}
int fdatasync(int fd) {
  static auto* const next = Next<int(int)>("fdatasync");
  Wait();
  return next(fd);
}
int link(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("link");
  Wait();
  return next(from, to);
}
int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  Wait();
  return next(from, to);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  Wait();
  return next(fd, bytes, count, offset);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  return pwrite64(fd, bytes, count, offset);
}

}  // extern "C"
