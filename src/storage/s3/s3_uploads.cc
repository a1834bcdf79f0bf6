#include "storage/s3/s3_uploads.h"

#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "storage/s3/s3_errors.h"

namespace cairn {

Result<std::vector<S3UploadPage::Upload>> ListUploads(S3Client* client, const std::string& prefix) {
  std::vector<S3UploadPage::Upload> uploads;
  std::string key_marker;
  std::string id_marker;
  while (true) {
    S3Request request{.what = "list unfinished uploads in", .key = ""};
    request.query = {{"uploads", ""}, {"encoding-type", "url"}};
    if (!prefix.empty()) request.query.emplace_back("prefix", prefix);
    if (!key_marker.empty()) {
      request.query.emplace_back("key-marker", key_marker);
      request.query.emplace_back("upload-id-marker", id_marker);
    }
    ASSIGN_OR_RETURN(const HttpResponse response, client->Expect(std::move(request)));
    ASSIGN_OR_RETURN(S3UploadPage page, DecodeUploadPage(response.body));
    for (S3UploadPage::Upload& upload : page.uploads) {
      if (upload.key.starts_with(prefix)) uploads.push_back(std::move(upload));
    }
    if (!page.truncated) return uploads;
    if (page.next_key == key_marker && page.next_id == id_marker) {
      return CorruptionError("list unfinished uploads: the list does not end");
    }
    key_marker = std::move(page.next_key);
    id_marker = std::move(page.next_id);
  }
}

Result<std::vector<S3PartPage::Part>> ListParts(S3Client* client,
                                                const S3UploadPage::Upload& upload) {
  std::vector<S3PartPage::Part> parts;
  std::string marker;
  while (true) {
    S3Request request{.what = "list the parts of", .key = upload.key};
    request.query = {{"uploadId", upload.id}};
    if (!marker.empty()) request.query.emplace_back("part-number-marker", marker);
    ASSIGN_OR_RETURN(const HttpResponse response, client->Expect(std::move(request)));
    ASSIGN_OR_RETURN(S3PartPage page, DecodePartPage(response.body));
    std::move(page.parts.begin(), page.parts.end(), std::back_inserter(parts));
    if (page.next.empty()) return parts;
    if (page.next == marker) return CorruptionError("list parts: the list does not end");
    marker = std::move(page.next);
  }
}

Status GiveUpUpload(S3Client* client, const S3UploadPage::Upload& upload, int max_attempts) {
  const std::string what = "give up the upload of";
  const S3Outcome outcome = client->Fetch({.what = what,
                                           .method = "DELETE",
                                           .key = upload.key,
                                           .query = {{"uploadId", upload.id}},
                                           .max_attempts = max_attempts});
  if (IsUploadGone(outcome.response)) return Status::Ok();
  return client->StatusOf(what, upload.key, outcome.response);
}

}  // namespace cairn
