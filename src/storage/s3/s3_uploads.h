#pragma once

#include <string>
#include <vector>

#include <cairn/status.h>

#include "storage/s3/s3_client.h"
#include "storage/s3/s3_replies.h"

namespace cairn {

// Multipart uploads that are begun and not ended, of any process.

/// Those of keys that begin with `prefix`.
Result<std::vector<S3UploadPage::Upload>> ListUploads(S3Client* client, const std::string& prefix);

/// The parts that have arrived, by number. FailedPrecondition when the upload is gone.
Result<std::vector<S3PartPage::Part>> ListParts(S3Client* client,
                                                const S3UploadPage::Upload& upload);

/// OK also when it is gone already: another gave it up, or ended it. `max_attempts`: instead of the
/// client's, when positive.
Status GiveUpUpload(S3Client* client, const S3UploadPage::Upload& upload, int max_attempts = 0);

}  // namespace cairn
