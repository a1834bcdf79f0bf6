#include "storage/s3/s3_replies.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/status_macros.h"
#include "net/url.h"
#include "storage/s3/xml.h"

namespace cairn {
namespace {

Result<XmlElement> ParseAs(std::string_view body, std::string_view root) {
  ASSIGN_OR_RETURN(XmlElement element, ParseXml(body));
  if (element.name != root) {
    return CorruptionError("an S3 reply is <" + element.name.substr(0, 40) + ">, not <" +
                           std::string(root) + ">");
  }
  return element;
}

Result<std::uint64_t> Number(std::string_view text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return CorruptionError("an S3 reply has \"" + std::string(text.substr(0, 40)) +
                           "\" where a number belongs");
  }
  return value;
}

/// Names come percent-encoded, as asked for, from servers that say so; a space may be a '+'.
Result<std::string> Name(std::string_view text, bool encoded) {
  if (!encoded) return std::string(text);
  std::string plain(text);
  std::replace(plain.begin(), plain.end(), '+', ' ');
  auto decoded = PercentDecode(plain);
  if (!decoded.ok()) return CorruptionError(std::string(decoded.status().message()));
  return decoded;
}

S3Error ErrorOf(const XmlElement& element) {
  return {.code = std::string(element.Text("Code")),
          .message = std::string(element.Text("Message")),
          .region = std::string(element.Text("Region"))};
}

}  // namespace

Result<S3Error> DecodeS3Error(std::string_view body) {
  ASSIGN_OR_RETURN(const XmlElement root, ParseAs(body, "Error"));
  return ErrorOf(root);
}

Result<S3ListPage> DecodeListPage(std::string_view body) {
  ASSIGN_OR_RETURN(const XmlElement root, ParseAs(body, "ListBucketResult"));
  const bool encoded = root.Text("EncodingType") == "url";
  S3ListPage page;
  for (const XmlElement& child : root.children) {
    if (child.name == "Contents") {
      S3ListPage::Object object;
      ASSIGN_OR_RETURN(object.key, Name(child.Text("Key"), encoded));
      ASSIGN_OR_RETURN(object.bytes, Number(child.Text("Size")));
      object.etag = child.Text("ETag");
      page.objects.push_back(std::move(object));
    } else if (child.name == "CommonPrefixes") {
      ASSIGN_OR_RETURN(std::string prefix, Name(child.Text("Prefix"), encoded));
      page.prefixes.push_back(std::move(prefix));
    }
  }
  if (root.Text("IsTruncated") == "true") {
    page.next = root.Text("NextContinuationToken");
    if (page.next.empty()) return CorruptionError("an S3 list goes on, but does not say where");
  }
  return page;
}

Result<std::string> DecodeCreatedUpload(std::string_view body) {
  ASSIGN_OR_RETURN(const XmlElement root, ParseAs(body, "InitiateMultipartUploadResult"));
  std::string id(root.Text("UploadId"));
  if (id.empty()) return CorruptionError("an S3 upload was begun without an id");
  return id;
}

namespace {

Result<std::string> DecodeEtag(std::string_view body, std::string_view root_name) {
  ASSIGN_OR_RETURN(const XmlElement root, ParseAs(body, root_name));
  return std::string(root.Text("ETag"));
}

}  // namespace

Result<std::string> DecodeCompleted(std::string_view body) {
  return DecodeEtag(body, "CompleteMultipartUploadResult");
}

Result<std::string> DecodeCopied(std::string_view body) {
  return DecodeEtag(body, "CopyObjectResult");
}

Result<std::string> DecodeCopiedPart(std::string_view body) {
  return DecodeEtag(body, "CopyPartResult");
}

Result<S3UploadPage> DecodeUploadPage(std::string_view body) {
  ASSIGN_OR_RETURN(const XmlElement root, ParseAs(body, "ListMultipartUploadsResult"));
  const bool encoded = root.Text("EncodingType") == "url";
  S3UploadPage page;
  for (const XmlElement& child : root.children) {
    if (child.name != "Upload") continue;
    S3UploadPage::Upload upload;
    ASSIGN_OR_RETURN(upload.key, Name(child.Text("Key"), encoded));
    upload.id = child.Text("UploadId");
    if (upload.id.empty()) return CorruptionError("an S3 upload in a list has no id");
    page.uploads.push_back(std::move(upload));
  }
  page.truncated = root.Text("IsTruncated") == "true";
  ASSIGN_OR_RETURN(page.next_key, Name(root.Text("NextKeyMarker"), encoded));
  page.next_id = root.Text("NextUploadIdMarker");
  if (page.truncated && page.next_key.empty()) {
    return CorruptionError("an S3 list goes on, but does not say where");
  }
  return page;
}

Result<S3PartPage> DecodePartPage(std::string_view body) {
  ASSIGN_OR_RETURN(const XmlElement root, ParseAs(body, "ListPartsResult"));
  S3PartPage page;
  for (const XmlElement& child : root.children) {
    if (child.name != "Part") continue;
    S3PartPage::Part part;
    ASSIGN_OR_RETURN(part.number, Number(child.Text("PartNumber")));
    ASSIGN_OR_RETURN(part.bytes, Number(child.Text("Size")));
    part.etag = child.Text("ETag");
    part.crc32c = child.Text("ChecksumCRC32C");
    page.parts.push_back(std::move(part));
  }
  if (root.Text("IsTruncated") == "true") {
    page.next = root.Text("NextPartNumberMarker");
    if (page.next.empty()) return CorruptionError("an S3 list goes on, but does not say where");
  }
  return page;
}

}  // namespace cairn
