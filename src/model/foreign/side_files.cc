#include "model/foreign/side_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

// Of a request to a store: one that is lost does not cost the whole file.
constexpr std::size_t kReadBytes = 32u << 20;

}  // namespace

Result<std::span<const std::byte>> PlacedFiles::Open(const std::string& name) {
  if (place_ == nullptr) {
    return InvalidArgumentError("it refers to files beside it; give the model by its path");
  }
  const Status beside = place_->CheckBeside(name, read_);
  if (!beside.ok()) return beside.WithContext("\"" + name + "\"");
  auto bytes = Bytes(name);
  if (!bytes.ok()) return bytes.status().WithContext("\"" + name + "\"");
  return bytes;
}

Result<std::span<const std::byte>> PlacedFiles::Read(const std::string& name) {
  read_ = name;
  return Bytes(name);
}

Result<std::span<const std::byte>> PlacedFiles::Bytes(const std::string& name) {
  const auto it = files_.find(name);
  if (it != files_.end()) return std::span<const std::byte>(it->second);
  ASSIGN_OR_RETURN(const std::unique_ptr<ObjectReader> file, place_->Open(name));
  std::vector<std::byte> bytes;
  try {
    bytes.resize(file->bytes());
  } catch (const std::exception&) {
    return ResourceExhaustedError(fmt::format("no memory for its {} bytes", file->bytes()));
  }
  for (std::size_t at = 0; at < bytes.size(); at += kReadBytes) {
    const std::size_t next = std::min(kReadBytes, bytes.size() - at);
    RETURN_IF_ERROR(file->Read(at, std::span(bytes).subspan(at, next)));
  }
  return std::span<const std::byte>(files_.emplace(name, std::move(bytes)).first->second);
}

std::uint64_t PlacedFiles::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : files_) sum += bytes.size();
  return sum;
}

}  // namespace cairn
