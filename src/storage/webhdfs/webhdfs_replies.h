#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// The JSON that WebHDFS answers with. Each decoder is Corruption for anything else.

struct HdfsFileStatus {
  std::string name;  // in its directory; "" when the file itself was asked for
  bool directory = false;
  std::uint64_t bytes = 0;
  std::uint64_t file_id = 0;         // of this file for ever: another of the same name has another
  std::int64_t modified_millis = 0;  // by the NameNode's clock
};
Result<HdfsFileStatus> DecodeHdfsFileStatus(std::string_view json);

struct HdfsListPage {
  std::vector<HdfsFileStatus> files;
  std::uint64_t remaining = 0;  // entries after these
};
Result<HdfsListPage> DecodeHdfsListPage(std::string_view json);

/// {"Location": "…"}: where the bytes of a file are to be sent to or read from.
Result<std::string> DecodeHdfsLocation(std::string_view json);
/// {"boolean": …}
Result<bool> DecodeHdfsBoolean(std::string_view json);

struct HdfsRemoteException {
  std::string exception;  // Java's class, without its package
  std::string message;
};
/// What an error's body says; empty strings when it is none of theirs.
HdfsRemoteException DecodeHdfsException(std::string_view json);

}  // namespace cairn
