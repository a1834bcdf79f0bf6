#include "checkpoint/unfinished.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace cairn {

std::vector<std::string> UnfinishedDirectories(const RepositoryView& view) {
  std::set<std::string> referred;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts && !checkpoint.foreign) continue;
    for (const ManifestFile& file : checkpoint.manifest->files) {
      if (!file.ref.empty()) referred.insert(file.ref.substr(0, file.ref.find('/')));
    }
  }
  std::vector<std::string> unfinished;
  std::copy_if(view.unfinished.begin(), view.unfinished.end(), std::back_inserter(unfinished),
               [&](const std::string& directory) { return !referred.contains(directory); });
  return unfinished;
}

}  // namespace cairn
