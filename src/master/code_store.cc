#include "master/code_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/status_macros.h"
#include "master/files.h"
#include "net/token.h"

namespace cairn::master {

namespace fs = std::filesystem;

bool IsDigest(std::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string CodeStore::PathOf(std::string_view digest) const {
  return fmt::format("{}/{}.tar.gz", directory_, digest);
}

Result<CodeStore::Stored> CodeStore::Put(std::string_view archive) const {
  Stored stored{.digest = HashToken(archive), .bytes = archive.size()};
  RETURN_IF_ERROR(VisitCode(archive, limits_,
                            {.entry =
                                 [&](const CodeEntry& entry) {
                                   if (entry.kind == CodeEntry::Kind::kFile) ++stored.files;
                                   return Status::Ok();
                                 },
                             .data = [](std::string_view) { return Status::Ok(); }}));
  const std::string path = PathOf(stored.digest);
  std::error_code error;
  if (fs::exists(path, error)) {
    // It counts as new, so that it is not swept before it is used.
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);
    return stored;
  }
  RETURN_IF_ERROR(WriteWhole(path, archive, 0600));
  return stored;
}

Result<std::string> CodeStore::Get(std::string_view digest) const {
  if (!IsDigest(digest)) return NotFoundError("code: not a digest");
  auto bytes = ReadWhole(PathOf(digest));
  if (bytes.status().Is(Code::kNotFound)) {
    return NotFoundError(
        fmt::format("no code {} was uploaded (or it was removed, unused)", digest));
  }
  return bytes;
}

Status CodeStore::Extract(std::string_view digest, const std::string& directory) const {
  std::error_code error;
  if (fs::is_directory(directory, error)) return Status::Ok();
  ASSIGN_OR_RETURN(const std::string archive, Get(digest));
  const Status extracted = ExtractCode(archive, directory, limits_);
  return extracted.Is(Code::kAlreadyExists) ? Status::Ok() : extracted;
}

Status CodeStore::Sweep(const std::set<std::string>& used, std::chrono::nanoseconds age,
                        Clock* clock) const {
  std::error_code error;
  const auto now = std::chrono::nanoseconds(clock->WallNanos());
  for (fs::directory_iterator at(directory_, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (used.contains(name.substr(0, 64))) continue;
    std::error_code gone;
    const auto written = fs::file_time_type::clock::to_sys(at->last_write_time(gone));
    if (gone || now - written.time_since_epoch() < age) continue;
    fs::remove(at->path(), gone);
  }
  return error ? UnavailableError(fmt::format("{}: {}", directory_, error.message()))
               : Status::Ok();
}

}  // namespace cairn::master
