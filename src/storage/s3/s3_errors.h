#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>

#include "net/http.h"
#include "storage/s3/s3_config.h"
#include "storage/s3/s3_replies.h"

namespace cairn {

/// The error that an answer tells of: what its body says, or what its status alone does (answers to
/// HEAD have no body).
S3Error ErrorOfAnswer(const HttpResponse& response);

/// Worth another attempt, by the server's own words (beside those that any HTTP client would try
/// again).
bool IsTransientS3Error(const S3Error& error);

/// The upload that was asked about is not there: ended, or given up by somebody.
bool IsUploadGone(const Result<HttpResponse>& response);

/// The status of an answer that is not a success. NotFound and AlreadyExists are about the object;
/// a missing bucket is FailedPrecondition, so that nobody takes it for an empty one. Each message
/// names the thing and the remedy. `what` is "put", "read" and the like.
Status StatusOfS3Error(const S3Config& config, std::string_view what, const std::string& key,
                       int http_status, const S3Error& error);

}  // namespace cairn
