#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/names.h"

namespace cairn {

Result<SafetensorsIndex> OpenCheckpoint::BuildIndex() {
  const std::string prefix = std::string(names::kModel) + "/";
  std::vector<std::size_t> model;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const std::string& path = files_[i].entry->path;
    if (path.starts_with(prefix) && path.ends_with(".safetensors")) model.push_back(i);
  }
  SafetensorsIndex index;
  RETURN_IF_ERROR(ReadHeaders(model, [&](std::size_t file, std::string_view bytes) -> Status {
    const ManifestFile& entry = *files_[file].entry;
    ASSIGN_OR_RETURN(const SafetensorsHeader header,
                     DecodeSafetensorsHeader(bytes, entry.hash.bytes));
    const std::string name = entry.path.substr(prefix.size());
    for (const TensorEntry& tensor : header.tensors) {
      const auto [it, fresh] = index.files.emplace(tensor.name, name);
      if (!fresh) {
        return FailedPreconditionError("two participants wrote the tensor \"" + tensor.name +
                                       "\" (" + it->second + " and " + name +
                                       "); is it replicated, or a shard?");
      }
      index.total_bytes += tensor.end - tensor.begin;
    }
    return Status::Ok();
  }));
  return index;
}

}  // namespace cairn
