#include "base/open_files.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

namespace cairn {
namespace {

// Fewer are opened without looking: nobody is that close to the limit for long.
constexpr std::size_t kFew = 32;
// For whoever opens something meanwhile.
constexpr rlim_t kSpare = 128;

std::size_t OpenNow() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  std::size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

}  // namespace

void AllowOpenFiles(std::size_t more) {
  rlimit limit{};
  if (more <= kFew || getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(OpenNow()) + more + kSpare;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  setrlimit(RLIMIT_NOFILE, &limit);  // refused: whoever opens one too many is told
}

}  // namespace cairn
