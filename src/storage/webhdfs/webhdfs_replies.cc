#include "storage/webhdfs/webhdfs_replies.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

Status Bad(std::string_view what, std::string_view text) {
  return CorruptionError("WebHDFS answered no " + std::string(what) + ": " +
                         std::string(text.substr(0, 200)));
}

Json Parse(std::string_view text) { return Json::parse(text, nullptr, /*allow_exceptions=*/false); }

/// The member, or a discarded value.
const Json& Member(const Json& object, const char* name) {
  static const Json none(Json::value_t::discarded);
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

bool Read(const Json& object, const char* name, std::uint64_t* out) {
  const Json& value = Member(object, name);
  if (!value.is_number_unsigned()) return false;
  *out = value.get<std::uint64_t>();
  return true;
}

bool Read(const Json& object, const char* name, std::string* out) {
  const Json& value = Member(object, name);
  if (!value.is_string()) return false;
  *out = value.get<std::string>();
  return true;
}

bool Read(const Json& json, HdfsFileStatus* out) {
  std::string type;
  std::uint64_t modified = 0;
  const bool whole = Read(json, "pathSuffix", &out->name) && Read(json, "type", &type) &&
                     Read(json, "length", &out->bytes) && Read(json, "fileId", &out->file_id) &&
                     Read(json, "modificationTime", &modified);
  out->directory = type == "DIRECTORY";
  out->modified_millis = static_cast<std::int64_t>(modified);
  return whole && out->name.find('/') == std::string::npos;
}

}  // namespace

Result<HdfsFileStatus> DecodeHdfsFileStatus(std::string_view json) {
  HdfsFileStatus status;
  if (!Read(Member(Parse(json), "FileStatus"), &status)) return Bad("file status", json);
  return status;
}

Result<HdfsListPage> DecodeHdfsListPage(std::string_view json) {
  const Json whole = Parse(json);
  const Json& listing = Member(whole, "DirectoryListing");
  const Json& files =
      Member(Member(Member(listing, "partialListing"), "FileStatuses"), "FileStatus");
  HdfsListPage page;
  if (!files.is_array() || !Read(listing, "remainingEntries", &page.remaining)) {
    return Bad("listing", json);
  }
  for (const Json& file : files) {
    if (!Read(file, &page.files.emplace_back())) return Bad("listing", json);
  }
  return page;
}

Result<std::string> DecodeHdfsLocation(std::string_view json) {
  std::string location;
  if (!Read(Parse(json), "Location", &location)) return Bad("location", json);
  return location;
}

Result<bool> DecodeHdfsBoolean(std::string_view json) {
  const Json whole = Parse(json);
  const Json& value = Member(whole, "boolean");
  if (!value.is_boolean()) return Bad("boolean", json);
  return value.get<bool>();
}

HdfsRemoteException DecodeHdfsException(std::string_view json) {
  HdfsRemoteException found;
  const Json whole = Parse(json);
  const Json& error = Member(whole, "RemoteException");
  if (!Read(error, "exception", &found.exception)) return {};
  if (!Read(error, "message", &found.message)) found.message.clear();
  return found;
}

}  // namespace cairn
