#include "storage/local/dirty_directories.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "storage/local/object_path.h"

namespace cairn {
namespace {

// Deepest first: a directory that a crash leaves in place then has its content.
struct DeeperFirst {
  static auto Depth(const std::string& name) {
    return name.empty() ? 0 : 1 + std::count(name.begin(), name.end(), '/');
  }
  bool operator()(const std::string& a, const std::string& b) const {
    const auto depth_a = Depth(a);
    const auto depth_b = Depth(b);
    return depth_a != depth_b ? depth_a > depth_b : a < b;
  }
};

template <typename Container, typename NameOf>
void EraseAtOrBelow(Container* container, std::string_view prefix, NameOf name_of) {
  std::erase_if(*container, [&](const auto& item) { return IsAtOrBelow(name_of(item), prefix); });
}

}  // namespace

void DirtyDirectories::MarkLocked(std::string_view directory) {
  ++changes_;
  dirty_[std::string(directory)].change = changes_;
  for (std::string_view d = directory; !d.empty(); d = ParentOf(d)) {
    if (durable_.contains(d)) continue;
    Mark& above = dirty_[std::string(ParentOf(d))];
    above.change = changes_;
    above.children.emplace(d);
  }
}

void DirtyDirectories::NamesChanged(std::string_view directory) {
  MutexLock lock(&mu_);
  MarkLocked(directory);
}

void DirtyDirectories::Made(std::string_view directory) {
  MutexLock lock(&mu_);
  EraseAtOrBelow(&durable_, directory, [](const auto& item) -> const auto& { return item; });
  MarkLocked(directory);
}

void DirtyDirectories::Removed(std::string_view directory) {
  MutexLock lock(&mu_);
  EraseAtOrBelow(&durable_, directory, [](const auto& item) -> const auto& { return item; });
  EraseAtOrBelow(&dirty_, directory, [](const auto& item) -> const auto& { return item.first; });
  const auto parent = ParentOf(directory);
  MarkLocked(parent);
  dirty_[std::string(parent)].children.erase(std::string(directory));
}

Status DirtyDirectories::SyncOne(const std::string& directory, std::string_view why) {
  Mark before;
  {
    MutexLock lock(&mu_);
    const auto it = dirty_.find(directory);
    if (it == dirty_.end()) return Status::Ok();
    before = it->second;
  }
  RETURN_IF_ERROR(fs_->SyncDirectory(JoinPath(root_, directory), why));
  MutexLock lock(&mu_);
  SyncedLocked(directory, before);
  return Status::Ok();
}

void DirtyDirectories::SyncedLocked(const std::string& directory, const Mark& before) {
  const auto it = dirty_.find(directory);
  if (it == dirty_.end() || it->second.change != before.change) return;
  dirty_.erase(it);
  durable_.insert(before.children.begin(), before.children.end());
}

std::vector<DirtyDirectories::Marked> DirtyDirectories::MarkedIn(std::string_view prefix) {
  MutexLock lock(&mu_);
  std::vector<Marked> marked;
  for (const auto& [name, mark] : dirty_) {
    if (IsAtOrBelow(name, prefix) || IsAtOrBelow(prefix, name)) marked.push_back({name, mark});
  }
  std::sort(marked.begin(), marked.end(), [](const Marked& a, const Marked& b) {
    return DeeperFirst()(a.directory, b.directory);
  });
  return marked;
}

void DirtyDirectories::Synced(const Marked& marked) {
  MutexLock lock(&mu_);
  SyncedLocked(marked.directory, marked.mark);
}

Status DirtyDirectories::SyncTree(std::string_view prefix, std::string_view why) {
  MutexLock flush(&flush_mu_);
  std::set<std::string, DeeperFirst> directories;
  {
    MutexLock lock(&mu_);
    for (const auto& [name, mark] : dirty_) {
      if (IsAtOrBelow(name, prefix) || IsAtOrBelow(prefix, name)) directories.insert(name);
    }
  }
  while (!directories.empty()) {
    const std::string directory = std::move(directories.extract(directories.begin()).value());
    Status synced = SyncOne(directory, why);
    if (synced.Is(Code::kNotFound) && !directory.empty()) {
      // Somebody else removed it, with all its names; now that removal is what must last.
      Removed(directory);
      directories.insert(std::string(ParentOf(directory)));
      continue;
    }
    RETURN_IF_ERROR(synced);
  }
  return Status::Ok();
}

Status DirtyDirectories::SyncPath(std::string_view directory, std::string_view why,
                                  std::string_view path_why) {
  MutexLock flush(&flush_mu_);
  RETURN_IF_ERROR(SyncOne(std::string(directory), why));
  for (; !directory.empty(); directory = ParentOf(directory)) {
    {
      MutexLock lock(&mu_);
      if (durable_.contains(directory)) continue;
    }
    RETURN_IF_ERROR(SyncOne(std::string(ParentOf(directory)), path_why));
  }
  return Status::Ok();
}

Status DirtyDirectories::SyncAlone(std::string_view directory, std::string_view why) {
  NamesChanged(directory);  // as far as we know
  MutexLock flush(&flush_mu_);
  return SyncOne(std::string(directory), why);
}

}  // namespace cairn
