// What a power loss leaves of a simulated disk.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "storage/memory/seeded_random.h"
#include "storage/sim/sim_image.h"

namespace cairn {
namespace {

/// Which of the pending changes of one file or directory reached the disk. A coin for each alone
/// would almost never keep all or lose all of a long list, which is what real disks mostly do, so
/// the way of choosing is drawn first.
std::vector<bool> ChooseKept(std::size_t count, CrashMode mode, SeededRandom* random) {
  if (mode == CrashMode::kForget) return std::vector<bool>(count, false);
  if (mode == CrashMode::kKeep) return std::vector<bool>(count, true);
  std::vector<bool> kept(count, false);
  if (count == 0) return kept;
  switch (random->Below(4)) {
    case 0:
      break;
    case 1:
      kept.assign(count, true);
      break;
    case 2: {
      const auto first = static_cast<std::ptrdiff_t>(random->Below(count + 1));
      std::fill(kept.begin(), kept.begin() + first, true);
      break;
    }
    default:
      for (std::size_t i = 0; i < count; ++i) kept[i] = random->Coin();
  }
  return kept;
}

/// Writes those sectors of `write` that `survives(index)` names. Sectors are counted on the disk,
/// so that the first and the last may be partly covered.
template <typename Survives>
void WriteSectors(const SimPendingWrite& write, std::uint64_t sector, PagedBytes* content,
                  const Survives& survives) {
  const std::span<const std::byte> bytes(*write.bytes);
  const std::uint64_t end = write.offset + bytes.size();
  std::uint64_t at = write.offset;
  for (std::size_t index = 0; at < end; ++index) {
    const std::uint64_t next = std::min(end, (at / sector + 1) * sector);
    if (survives(index)) content->Write(at, bytes.subspan(at - write.offset, next - at));
    at = next;
  }
}

void ApplyTorn(const SimPendingWrite& write, PagedBytes* content, SeededRandom* random) {
  if (write.truncate) {
    write.ApplyTo(content);
    return;
  }
  const std::uint64_t sector = random->Coin() ? 512 : 4096;
  const std::uint64_t end = write.offset + write.bytes->size();
  const std::uint64_t sectors = (end - 1) / sector - write.offset / sector + 1;
  switch (random->Below(4)) {
    case 0:  // whole
      write.ApplyTo(content);
      return;
    case 1: {
      const std::uint64_t first = random->Below(sectors + 1);
      WriteSectors(write, sector, content, [&](std::size_t index) { return index < first; });
      break;
    }
    case 2:
      WriteSectors(write, sector, content, [&](std::size_t) { return random->Coin(); });
      break;
    default:  // nothing but the size
      break;
  }
  // The size is metadata: it may be on the disk although the bytes are not, which read as zeros.
  if (content->size() < end && random->Coin()) content->Resize(end);
}

void CrashFile(const SimInode& before, CrashMode mode, SeededRandom* random, SimInode* after) {
  PagedBytes content = before.durable;
  const std::vector<bool> kept = ChooseKept(before.pending_writes.size(), mode, random);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) continue;
    if (mode == CrashMode::kTorn) {
      ApplyTorn(before.pending_writes[i], &content, random);
    } else {
      before.pending_writes[i].ApplyTo(&content);
    }
  }
  after->live = content.Share();
  after->durable = std::move(content);
}

void CrashDirectory(const SimInode& before, CrashMode mode, SeededRandom* random, SimInode* after) {
  after->entries = before.durable_entries;
  const std::vector<bool> kept = ChooseKept(before.pending_entries.size(), mode, random);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i]) before.pending_entries[i].ApplyTo(&after->entries);
  }
}

/// Drops inodes that no name reaches, and counts links anew. A directory that two names reach (a
/// rename between directories of which only the arrival was kept) stays under the first: file
/// systems know no hard links of directories.
void Repair(SimImage* image) {
  std::unordered_set<std::uint64_t> directories = {kSimRootInode};
  std::unordered_set<std::uint64_t> reached = {kSimRootInode};
  std::vector<std::uint64_t> todo = {kSimRootInode};
  image->inodes.at(kSimRootInode)->links = 1;
  for (std::size_t i = 0; i < todo.size(); ++i) {
    SimInode& directory = *image->inodes.at(todo[i]);
    for (auto entry = directory.entries.begin(); entry != directory.entries.end();) {
      SimInode& child = *image->inodes.at(entry->second);
      if (child.is_directory && !directories.insert(child.number).second) {
        entry = directory.entries.erase(entry);
        continue;
      }
      reached.insert(child.number);
      ++child.links;
      if (child.is_directory) todo.push_back(child.number);
      ++entry;
    }
    directory.durable_entries = directory.entries;
  }
  std::erase_if(image->inodes, [&](const auto& entry) { return !reached.contains(entry.first); });
}

}  // namespace

SimImage ImageAfterCrash(const SimImage& image, CrashMode mode, std::uint64_t seed) {
  SeededRandom random(seed);
  SimImage after;
  after.options = image.options;
  after.next_inode = image.next_inode;
  for (const auto& [number, before] : image.inodes) {
    auto inode = std::make_shared<SimInode>();
    inode->number = number;
    inode->is_directory = before->is_directory;
    if (before->is_directory) {
      CrashDirectory(*before, mode, &random, inode.get());
    } else {
      CrashFile(*before, mode, &random, inode.get());
    }
    after.inodes.emplace(number, std::move(inode));
  }
  Repair(&after);
  return after;
}

}  // namespace cairn
