// What the benchmark of starts starts: says when its first line was reached, in nanoseconds of the
// monotonic clock, to the file that CAIRN_BENCH_FIRST_LINE names.

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const char* path = std::getenv("CAIRN_BENCH_FIRST_LINE");
  if (path == nullptr) return 2;
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) return 3;
  char text[64];
  const int length =
      std::snprintf(text, sizeof(text), "%lld\n",
                    static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec);
  return write(fd, text, static_cast<size_t>(length)) == length ? 0 : 4;
}
