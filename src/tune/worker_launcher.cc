#include "tune/worker_launcher.h"

#include <cstdio>
#include <utility>

namespace cairn::tune {

Status WorkerLauncher::Submit(LaunchSpec spec) {
  spec.argv = argv_;
  for (const auto& [name, value] : env_) spec.env[name] = value;
  {
    MutexLock hold(&mu_);
    unread_.try_emplace(spec.id, 0);
  }
  return beneath_->Submit(std::move(spec));
}

void WorkerLauncher::Relay() {
  std::map<std::string, std::uint64_t, std::less<>> unread;
  {
    MutexLock hold(&mu_);
    unread = unread_;
  }
  for (auto& [id, offset] : unread) {
    bool end = false;
    for (bool more = true; more && !end;) {
      const auto page = beneath_->ReadLog(id, offset);
      if (!page.ok()) break;  // it waits for its place, or its log is not there yet
      for (const LaunchLogLine& line : page->lines) {
        std::FILE* const out = line.from_stderr ? stderr : stdout;
        std::fwrite(line.text.data(), 1, line.text.size(), out);
        if (!line.unfinished) std::fputc('\n', out);
      }
      more = page->next != offset;
      offset = page->next;
      end = page->end;
    }
    MutexLock hold(&mu_);
    if (end) {
      unread_.erase(id);
    } else {
      unread_[id] = offset;
    }
  }
  std::fflush(stdout);
  std::fflush(stderr);
}

}  // namespace cairn::tune
