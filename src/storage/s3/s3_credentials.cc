#include "storage/s3/s3_credentials.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "net/url.h"

namespace cairn {
namespace {

constexpr std::int64_t kRefreshBeforeNanos = 300ll * 1'000'000'000;
constexpr std::string_view kContainerHost = "http://169.254.170.2";

/// Keys must not be fetched over plain HTTP from just anywhere.
bool IsTrusted(const Url& url) {
  const std::string host = url.Host();
  return url.scheme == "https" || host == "localhost" || host.starts_with("127.") ||
         host == "::1" || host == "169.254.170.2" || host == "169.254.170.23" ||
         host == "fd00:ec2::23";
}

Result<std::string> ContainerUrl(const Variables& variables) {
  if (const auto relative = variables("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")) {
    return std::string(kContainerHost) + *relative;
  }
  const auto full = variables("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!full) return std::string();
  ASSIGN_OR_RETURN(const Url url, ParseUrl(*full));
  if (!IsTrusted(url)) {
    return InvalidArgumentError(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI is \"" + *full +
        "\": keys are fetched over https, or from this machine and the container's own host only");
  }
  return *full;
}

/// What AWS's own tools would take keys from that this does not know; "": nothing is set up.
std::string UnsupportedSource(const AwsProfile& profile, const Variables& variables) {
  struct Source {
    const char* setting;
    const char* what;
  };
  static constexpr Source kSources[] = {
      {"role_arn", "assumes a role"},
      {"sso_session", "takes them from single sign-on"},
      {"sso_start_url", "takes them from single sign-on"},
      {"login_session", "takes them from a login"},
      {"web_identity_token_file", "takes them for a web identity"},
      {"credential_process", "takes them from a program"},
  };
  for (const Source& source : kSources) {
    if (profile.Get(source.setting).empty()) continue;
    return fmt::format("the profile \"{}\" of {} {} ({})", profile.name, profile.files, source.what,
                       source.setting);
  }
  if (variables("AWS_WEB_IDENTITY_TOKEN_FILE")) {
    return "AWS_WEB_IDENTITY_TOKEN_FILE asks for those of a web identity";
  }
  return "";
}

Result<std::string> ContainerToken(const Variables& variables) {
  if (const auto file = variables("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    std::ifstream stream(*file, std::ios::binary);
    if (!stream) {
      return PermissionDeniedError("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE: \"" + *file +
                                   "\" cannot be read");
    }
    std::string token{std::istreambuf_iterator<char>(stream), {}};
    while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
    return token;
  }
  return variables("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
}

}  // namespace

Result<std::int64_t> ParseIsoTime(std::string_view text) {
  std::tm utc{};
  const std::string copy(text.substr(0, 40));
  const char* rest = strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  if (rest == nullptr) return CorruptionError("\"" + copy + "\" is not a time");
  if (*rest == '.') {
    ++rest;
    while (*rest >= '0' && *rest <= '9') ++rest;
  }
  if (std::string_view(rest) != "Z") return CorruptionError("\"" + copy + "\" is not a UTC time");
  const std::int64_t seconds = timegm(&utc);
  constexpr std::int64_t kLatest = 9'000'000'000;  // in nanoseconds it fits 64 bits
  if (seconds < 0 || seconds > kLatest) {
    return CorruptionError("\"" + copy + "\" is no time between 1970 and 2255");
  }
  return seconds * 1'000'000'000;
}

Result<S3Credentials> DecodeContainerCredentials(std::string_view body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) -> std::string {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (!json.is_object()) {
    return CorruptionError("the container's endpoint for keys did not answer with a JSON object");
  }
  S3Credentials credentials{.access_key = text("AccessKeyId"),
                            .secret_key = text("SecretAccessKey"),
                            .session_token = text("Token")};
  if (credentials.access_key.empty() || credentials.secret_key.empty()) {
    return CorruptionError(
        "the container's endpoint for keys gave no AccessKeyId and SecretAccessKey");
  }
  if (const std::string expires = text("Expiration"); !expires.empty()) {
    ASSIGN_OR_RETURN(credentials.expires_nanos, ParseIsoTime(expires));
  }
  return credentials;
}

Result<std::unique_ptr<S3CredentialSource>> S3CredentialSource::Open(Variables variables,
                                                                     Clock* clock) {
  return std::unique_ptr<S3CredentialSource>(new S3CredentialSource(std::move(variables), clock));
}

Result<S3Credentials> S3CredentialSource::Get() {
  MutexLock lock(&mu_);
  const std::int64_t now = clock_->WallNanos();
  const bool expiring =
      credentials_.expires_nanos != 0 && credentials_.expires_nanos - now < kRefreshBeforeNanos;
  if (known_ && !stale_ && !expiring) return credentials_;
  auto found = Look();
  if (!found.ok()) {
    // The endpoint may be down for a moment; what is still valid serves on.
    if (known_ && !stale_ && credentials_.expires_nanos > now) {
      LogWarning("the S3 keys could not be renewed, the old ones are used on: " +
                 found.status().ToString());
      return credentials_;
    }
    return found.status();
  }
  credentials_ = *std::move(found);
  known_ = true;
  stale_ = false;
  return credentials_;
}

void S3CredentialSource::Invalidate(std::string_view access_key) {
  MutexLock lock(&mu_);
  if (credentials_.access_key == access_key) stale_ = true;  // else: renewed already
}

Result<S3Credentials> S3CredentialSource::Look() {
  const auto access = variables_("AWS_ACCESS_KEY_ID");
  const auto secret = variables_("AWS_SECRET_ACCESS_KEY");
  if (access.has_value() != secret.has_value()) {
    return PermissionDeniedError(
        std::string(access ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY") + " is set without " +
        (access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID") + "; set both");
  }
  if (access) {
    return S3Credentials{.access_key = *access,
                         .secret_key = *secret,
                         .session_token = variables_("AWS_SESSION_TOKEN").value_or("")};
  }
  ASSIGN_OR_RETURN(const AwsProfile profile, ReadAwsProfile(variables_));
  if (!profile.Get("aws_access_key_id").empty() && !profile.Get("aws_secret_access_key").empty()) {
    return S3Credentials{.access_key = profile.Get("aws_access_key_id"),
                         .secret_key = profile.Get("aws_secret_access_key"),
                         .session_token = profile.Get("aws_session_token")};
  }
  ASSIGN_OR_RETURN(const std::string container, ContainerUrl(variables_));
  if (!container.empty()) return FromContainer(container);
  if (const std::string wanted = UnsupportedSource(profile, variables_); !wanted.empty()) {
    return PermissionDeniedError(
        "no S3 keys: " + wanted +
        ", which is not supported here; export keys, for example with `eval \"$(aws configure "
        "export-credentials --profile " +
        profile.name +
        " --format env)\"`, or put them into the profile, and renew them before they expire");
  }
  return PermissionDeniedError(
      "no S3 keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the profile \"" +
      profile.name + "\" aws_access_key_id and aws_secret_access_key in " + profile.files +
      ", or run where AWS_CONTAINER_CREDENTIALS_FULL_URI is set");
}

Result<S3Credentials> S3CredentialSource::FromContainer(const std::string& url) {
  if (client_ == nullptr) {
    // A client of its own: keys may be asked for on the thread of the store's client.
    HttpClientOptions options;
    options.connections = 1;
    options.proxies = false;  // the endpoint is beside this process, and proxies are not
    options.connect_timeout = std::chrono::seconds(2);
    options.stall_timeout = std::chrono::seconds(5);
    options.retry = {.max_attempts = 3,
                     .first_wait = std::chrono::milliseconds(100),
                     .longest_wait = std::chrono::seconds(1)};
    ASSIGN_OR_RETURN(client_, HttpClient::Open(std::move(options)));
  }
  ASSIGN_OR_RETURN(const std::string token, ContainerToken(variables_));
  HttpRequest request{.url = url, .max_body_bytes = 64u << 10};
  request.headers.push_back({"Accept", "application/json"});
  if (!token.empty()) request.headers.push_back({"Authorization", token});
  auto response = client_->Fetch(std::move(request));
  if (!response.ok()) return response.status().WithContext("fetch S3 keys");
  if (response->status != 200) {
    return PermissionDeniedError("fetch S3 keys: " + url + " answered " +
                                 std::to_string(response->status) +
                                 "; check the container's role and its authorization token");
  }
  return DecodeContainerCredentials(response->body);
}

}  // namespace cairn
