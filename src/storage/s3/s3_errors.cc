#include "storage/s3/s3_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "storage/s3/s3_limits.h"

namespace cairn {
namespace {

std::string CodeOfStatus(int status) {
  switch (status) {
    case 200:  // an error that came after it, without saying which
      return "InternalError";
    case 400:
      return "BadRequest";
    case 403:
      return "AccessDenied";
    case 404:
      return "NoSuchKey";
    case 412:
      return "PreconditionFailed";
    case 501:
      return "NotImplemented";
    case 503:
      return "SlowDown";
    default:
      return fmt::format("HTTP {}", status);
  }
}

bool IsOneOf(std::string_view code, std::initializer_list<std::string_view> codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

/// What the user can do about it.
std::string Remedy(const S3Config& config, std::string_view code, const S3Error& error) {
  if (IsOneOf(code, {"InvalidAccessKeyId", "InvalidTokenId", "XAdminUserNotFound"})) {
    return "the server does not know the access key; check AWS_ACCESS_KEY_ID, the profile, and "
           "that the endpoint " +
           config.endpoint + " is the one the key is for";
  }
  if (code == "SignatureDoesNotMatch") {
    return "the secret key does not belong to the access key; check AWS_SECRET_ACCESS_KEY or the "
           "profile";
  }
  if (IsOneOf(code, {"ExpiredToken", "TokenRefreshRequired", "InvalidToken"})) {
    return "the session token is not valid any more; renew the keys (AWS_SESSION_TOKEN, the "
           "profile, or the container's role)";
  }
  if (code == "NoSuchUpload") {
    return "the upload was given up, by a newer writer of the repository or by a rule of the "
           "bucket's";
  }
  if (code == "RequestTimeTooSkewed") return "this machine's clock is wrong; set it";
  if (code == "NoSuchBucket") {
    return fmt::format(
        "there is no bucket \"{}\" at {}; make it, or check its name and the endpoint",
        config.bucket, config.endpoint);
  }
  if (IsOneOf(code, {"PermanentRedirect", "AuthorizationHeaderMalformed",
                     "IllegalLocationConstraintException", "TemporaryRedirect"})) {
    return fmt::format("the bucket \"{}\" is not in the region {}; set AWS_REGION{}", config.bucket,
                       config.region, error.region.empty() ? "" : "=" + error.region);
  }
  if (code == "EntityTooLarge") return kS3ObjectLimit;
  if (IsOneOf(code, {"AccessDenied", "AllAccessDisabled", "AccountProblem"})) {
    return "the key has no permission for this; see the list of permissions in "
           "docs/guides/object_stores.md";
  }
  return "";
}

Code CodeFor(std::string_view code, int status) {
  if (IsOneOf(code,
              {"InvalidAccessKeyId", "InvalidTokenId", "XAdminUserNotFound",
               "SignatureDoesNotMatch", "ExpiredToken", "TokenRefreshRequired", "InvalidToken",
               "AccessDenied", "AllAccessDisabled", "AccountProblem", "RequestTimeTooSkewed"})) {
    return Code::kPermissionDenied;
  }
  if (IsOneOf(code, {"NoSuchKey", "NotFound", "NoSuchVersion"})) return Code::kNotFound;
  if (IsOneOf(code,
              {"NoSuchUpload", "NoSuchBucket", "PermanentRedirect", "AuthorizationHeaderMalformed",
               "IllegalLocationConstraintException", "TemporaryRedirect"})) {
    return Code::kFailedPrecondition;
  }
  if (code == "PreconditionFailed") return Code::kAlreadyExists;
  if (IsOneOf(code,
              {"QuotaExceeded", "EntityTooLarge", "XMinioStorageFull", "InsufficientStorage"})) {
    return Code::kResourceExhausted;
  }
  if (IsOneOf(code, {"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch",
                     "XAmzContentChecksumMismatch"})) {
    return Code::kCorruption;
  }
  if (code == "NotImplemented") return Code::kUnimplemented;
  if (code == "RequestTimeout") return Code::kDeadlineExceeded;
  if (status == 507) return Code::kResourceExhausted;
  if (status == 403) return Code::kPermissionDenied;
  if (status >= 500 || status == 429 || status == 409) return Code::kUnavailable;
  return Code::kInvalidArgument;
}

}  // namespace

S3Error ErrorOfAnswer(const HttpResponse& response) {
  S3Error error;
  if (auto decoded = DecodeS3Error(response.body); decoded.ok()) error = *std::move(decoded);
  if (error.code.empty()) error.code = CodeOfStatus(response.status);
  if (error.region.empty()) error.region = response.Header("x-amz-bucket-region");
  return error;
}

bool IsTransientS3Error(const S3Error& error) {
  return IsOneOf(error.code, {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout",
                              "Busy", "OperationAborted", "ConditionalRequestConflict",
                              "RequestThrottled", "Throttling", "ThrottlingException", "BadDigest",
                              "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"});
}

bool IsUploadGone(const Result<HttpResponse>& response) {
  return response.ok() && !response->Succeeded() && ErrorOfAnswer(*response).code == "NoSuchUpload";
}

Status StatusOfS3Error(const S3Config& config, std::string_view what, const std::string& key,
                       int http_status, const S3Error& error) {
  const std::string remedy = Remedy(config, error.code, error);
  std::string message = fmt::format("{} \"s3://{}{}{}\": {}", what, config.bucket,
                                    key.empty() ? "" : "/", key, error.code);
  if (!error.message.empty()) message += fmt::format(" ({})", error.message.substr(0, 300));
  if (!remedy.empty()) message += ": " + remedy;
  return Status(CodeFor(error.code, http_status), std::move(message));
}

}  // namespace cairn
