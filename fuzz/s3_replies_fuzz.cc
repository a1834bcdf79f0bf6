// Whatever a server answers, the decoders give a struct or Corruption; and XML that was read is,
// escaped and read again, the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "storage/s3/s3_credentials.h"
#include "storage/s3/s3_replies.h"
#include "storage/s3/xml.h"

namespace {

template <typename T>
void RequireDecodedOrCorrupt(const cairn::Result<T>& result) {
  cairn::Require(result.ok() || result.status().Is(cairn::Code::kCorruption),
                 "an answer decodes or is Corruption");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RequireDecodedOrCorrupt(DecodeListPage(text));
  RequireDecodedOrCorrupt(DecodeUploadPage(text));
  RequireDecodedOrCorrupt(DecodePartPage(text));
  RequireDecodedOrCorrupt(DecodeCopiedPart(text));
  RequireDecodedOrCorrupt(DecodeCreatedUpload(text));
  RequireDecodedOrCorrupt(DecodeCompleted(text));
  RequireDecodedOrCorrupt(DecodeS3Error(text));
  RequireDecodedOrCorrupt(DecodeContainerCredentials(text));
  const Result<XmlElement> xml = ParseXml(text);
  RequireDecodedOrCorrupt(xml);
  if (!xml.ok()) return 0;
  const Result<XmlElement> again = ParseXml("<a>" + XmlEscape(xml->text) + "</a>");
  Require(again.ok() && again->text == xml->text, "escaped text is read as it was");
  return 0;
}
