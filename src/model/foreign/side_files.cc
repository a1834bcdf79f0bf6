#include "model/foreign/side_files.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "storage/local/posix_fs.h"

namespace cairn {

Result<std::span<const std::byte>> LocalSideFiles::Open(const std::string& name) {
  if (directory_.empty()) {
    return InvalidArgumentError("it refers to files beside it; give the model by its path");
  }
  auto bytes = Read((std::filesystem::path(directory_) / name).string());
  if (!bytes.ok()) return bytes.status().WithContext("\"" + name + "\"");
  return bytes;
}

Result<std::span<const std::byte>> LocalSideFiles::Read(const std::string& path) {
  const auto it = files_.find(path);
  if (it != files_.end()) return std::span<const std::byte>(it->second);
  ASSIGN_OR_RETURN(const std::unique_ptr<FsFile> file, PosixFs()->Open(path, {}));
  ASSIGN_OR_RETURN(const FsStat stat, file->Stat());
  std::vector<std::byte> bytes;
  try {
    bytes.resize(stat.bytes);
  } catch (const std::exception&) {
    return ResourceExhaustedError(fmt::format("no memory for its {} bytes", stat.bytes));
  }
  ASSIGN_OR_RETURN(const std::size_t read, file->ReadAt(0, bytes));
  if (read != bytes.size()) return CorruptionError("it became shorter while it was being read");
  return std::span<const std::byte>(files_.emplace(path, std::move(bytes)).first->second);
}

}  // namespace cairn
