#include "bench/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

namespace cairn::bench {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Status WriteText(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return PermissionDeniedError("open " + path + ": " + std::strerror(errno));
  const ssize_t n = write(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  if (n == static_cast<ssize_t>(text.size())) return Status::Ok();
  return PermissionDeniedError("write " + path + ": " + std::strerror(error));
}

std::uint64_t StatusField(const char* field) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(field)) {
      return std::strtoull(line.c_str() + std::strlen(field) + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

/// utime + stime of a process and of its children that it waited for, in ticks: summed over all
/// living processes nothing is lost when one ends. Kernel threads count nothing: what they do for a
/// contender's writes is not somebody else's.
double ProcessTicks(const std::string& stat) {
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 2));
  std::string state;
  long parent = 0;
  long group = 0;
  long session = 0;
  long terminal = 0;
  long terminal_group = 0;
  unsigned long flags = 0;
  fields >> state >> parent >> group >> session >> terminal >> terminal_group >> flags;
  constexpr unsigned long kKernelThread = 0x00200000;
  if ((flags & kKernelThread) != 0) return 0;
  double faults = 0;
  for (int i = 0; i < 4; ++i) fields >> faults;
  double total = 0;
  for (int i = 0; i < 4; ++i) {
    double ticks = 0;
    fields >> ticks;
    total += ticks;
  }
  return total;
}

double StealTicks() {
  std::istringstream line(ReadText("/proc/stat"));
  std::string name;
  line >> name;
  double value = 0;
  for (int i = 0; i < 8; ++i) line >> value;  // user nice system idle iowait irq softirq steal
  return value;
}

}  // namespace

void TouchAndFree(std::uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  madvise(memory, bytes, MADV_HUGEPAGE);
  auto* first = static_cast<volatile char*>(memory);
  for (std::uint64_t i = 0; i < bytes; i += 4096) first[i] = 1;
  munmap(memory, bytes);
}

void Settle() {
  sync();
  // Discards of deleted blocks go out after the commit that freed them.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  sync();
}

Status DropCaches() {
  sync();
  return WriteText("/proc/sys/vm/drop_caches", "3\n");
}

double OthersCpuSeconds() {
  double ticks = StealTicks();
  const std::string self = std::to_string(getpid());
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return 0;
  while (const dirent* entry = readdir(proc)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    if (self == entry->d_name) continue;
    ticks += ProcessTicks(ReadText(std::string("/proc/") + entry->d_name + "/stat"));
  }
  closedir(proc);
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double OwnCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double LoadAverage() {
  double load[1] = {0};
  return getloadavg(load, 1) == 1 ? load[0] : 0;
}

std::uint64_t PeakMemory() { return StatusField("VmHWM:"); }
std::uint64_t ResidentMemory() { return StatusField("VmRSS:"); }
Status ResetPeakMemory() { return WriteText("/proc/self/clear_refs", "5\n"); }

}  // namespace cairn::bench
