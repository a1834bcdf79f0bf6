#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "net/http_client.h"
#include "storage/s3/aws_profile.h"
#include "storage/s3/sigv4.h"

namespace cairn {

/// The keys of this process, as AWS's own tools look for them: AWS_ACCESS_KEY_ID and
/// AWS_SECRET_ACCESS_KEY (with AWS_SESSION_TOKEN); the profile's; those of the container's endpoint
/// (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI).
///
/// Keys that expire are fetched anew five minutes before; Invalidate() makes the next Get look
/// again, also into the files. While the container's endpoint does not answer, keys that have not
/// expired yet are used on. May be called from several threads; Get waits for a fetch under way.
class S3CredentialSource {
 public:
  static Result<std::unique_ptr<S3CredentialSource>> Open(Variables variables, Clock* clock);

  /// PermissionDenied, saying where it looked, when there are none.
  Result<S3Credentials> Get() EXCLUDES(mu_);
  /// The server has refused `access_key` as expired.
  void Invalidate(std::string_view access_key) EXCLUDES(mu_);

 private:
  S3CredentialSource(Variables variables, Clock* clock)
      : variables_(std::move(variables)), clock_(clock) {}

  Result<S3Credentials> Look() REQUIRES(mu_);
  Result<S3Credentials> FromContainer(const std::string& url) REQUIRES(mu_);

  const Variables variables_;
  Clock* const clock_;
  Mutex mu_;
  bool known_ GUARDED_BY(mu_) = false;
  bool stale_ GUARDED_BY(mu_) = false;
  S3Credentials credentials_ GUARDED_BY(mu_);
  std::unique_ptr<HttpClient> client_ GUARDED_BY(mu_);  // of the container's endpoint
};

/// The reply of a container's endpoint.
Result<S3Credentials> DecodeContainerCredentials(std::string_view body);

/// Nanoseconds since 1970 of "2026-11-16T03:00:00Z" (fractions are dropped); Corruption for other
/// forms.
Result<std::int64_t> ParseIsoTime(std::string_view text);

}  // namespace cairn
