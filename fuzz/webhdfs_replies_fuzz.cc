// Whatever a server answers is decoded or refused; names never reach out of their directory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "storage/webhdfs/webhdfs_config.h"
#include "storage/webhdfs/webhdfs_replies.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto page = DecodeHdfsListPage(text); page.ok()) {
    for (const HdfsFileStatus& file : page->files) {
      Require(file.name.find('/') == std::string::npos, "a name is one component");
    }
  }
  DecodeHdfsFileStatus(text).status().IgnoreError("either way");
  DecodeHdfsLocation(text).status().IgnoreError("either way");
  DecodeHdfsBoolean(text).status().IgnoreError("either way");
  DecodeHdfsException(text);

  // What a name becomes in HDFS comes back as that name.
  const std::string name(text);
  if (name.find('/') == std::string::npos) {
    const std::string path = WebHdfsConfig{}.PathOf(name);
    if (!name.empty()) Require(NameOfComponent(path.substr(1)) == name, "names come back");
    Require(path.find(':') == std::string::npos, "HDFS has no ':'");
  }
  return 0;
}
