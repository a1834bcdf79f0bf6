#include "storage/webhdfs/webhdfs_client.h"

#include <fmt/format.h>

#include <array>
#include <random>
#include <string_view>

#include "base/status_macros.h"
#include "net/url.h"

namespace cairn {
namespace {

// What a NameNode that cannot serve now says, or one whose file another has open (a writer that was
// killed, for a minute): nothing was done, and another attempt may find it well.
bool IsPassing(std::string_view exception) {
  return exception == "RetriableException" || exception == "StandbyException" ||
         exception == "SafeModeException" || exception == "AlreadyBeingCreatedException" ||
         exception == "RecoveryInProgressException";
}

bool SaysThatNothingWasDone(const Result<HttpResponse>& outcome) {
  return outcome.ok() && IsPassing(DecodeHdfsException(outcome->body).exception);
}

bool WorthAnotherTry(const Result<HttpResponse>& outcome) {
  if (!outcome.ok()) return IsTransient(outcome);
  if (outcome->Succeeded()) return false;
  const std::string exception = DecodeHdfsException(outcome->body).exception;
  // An error with a name is an answer, even with status 500, unless it will pass.
  return exception.empty() ? IsTransient(outcome) : IsPassing(exception);
}

// The request may have been carried out although we do not know.
bool IsUncertain(const Result<HttpResponse>& outcome) {
  return !outcome.ok() || outcome->status >= 500;
}

Code CodeOf(const HdfsRemoteException& error, int http) {
  struct Known {
    std::string_view exception;
    Code code;
  };
  static constexpr std::array kKnown = {
      Known{"FileNotFoundException", Code::kNotFound},
      Known{"FileAlreadyExistsException", Code::kAlreadyExists},
      Known{"AccessControlException", Code::kPermissionDenied},
      Known{"AuthorizationException", Code::kPermissionDenied},
      Known{"SecurityException", Code::kPermissionDenied},
      Known{"InvalidToken", Code::kPermissionDenied},
      Known{"DSQuotaExceededException", Code::kResourceExhausted},
      Known{"NSQuotaExceededException", Code::kResourceExhausted},
      Known{"QuotaExceededException", Code::kResourceExhausted},
      Known{"PathIsNotEmptyDirectoryException", Code::kFailedPrecondition},
      Known{"ParentNotDirectoryException", Code::kFailedPrecondition},
      Known{"IllegalArgumentException", Code::kInvalidArgument},
      Known{"HadoopIllegalArgumentException", Code::kInvalidArgument},
      Known{"InvalidPathException", Code::kInvalidArgument},
      Known{"UnsupportedOperationException", Code::kUnimplemented},
  };
  // Also said as a lack of permission, to look into what is no directory.
  if (error.message.find("is not a directory") != std::string::npos) {
    return Code::kFailedPrecondition;
  }
  for (const Known& known : kKnown) {
    if (error.exception == known.exception) return known.code;
  }
  if (IsPassing(error.exception)) return Code::kUnavailable;
  // A DataNode without room, and a cluster without DataNodes, say the same.
  if (error.message.find("could only be written to 0 of") != std::string::npos) {
    return Code::kResourceExhausted;
  }
  if (http == 401 || http == 403) return Code::kPermissionDenied;
  if (http == 404) return Code::kNotFound;
  return http >= 500 ? Code::kUnavailable : Code::kInternal;
}

// Waits need no good randomness, only different ones in different processes.
double Jitter(const std::function<double()>& random) {
  if (random) return random();
  thread_local std::mt19937 draw(std::random_device{}());
  return std::uniform_real_distribution<double>(0, 1)(draw);
}

std::string FirstLine(std::string_view text) {
  return std::string(text.substr(0, std::min<std::size_t>(text.find('\n'), 300)));
}

}  // namespace

Result<std::shared_ptr<WebHdfsClient>> WebHdfsClient::Open(WebHdfsConfig config,
                                                           WebHdfsEnvironment environment) {
  std::shared_ptr<WebHdfsClient> client(
      new WebHdfsClient(std::move(config), std::move(environment)));
  HttpClientOptions options{.connections = client->config_.connections,
                            .connect_timeout = client->environment_.connect_timeout,
                            .stall_timeout = client->environment_.stall_timeout,
                            .ca_bundle = client->config_.ca_bundle,
                            .send_bytes_per_second = client->config_.upload_bytes_per_second,
                            .retry = client->environment_.retry,
                            .clock = client->environment_.clock,
                            .random = client->environment_.random};
  ASSIGN_OR_RETURN(client->http_, HttpClient::Open(std::move(options)));
  return client;
}

std::string WebHdfsClient::UrlOf(const std::string& path, const std::string& operation,
                                 Query query) const {
  query.insert(query.begin(), {"op", operation});
  if (!config_.token.empty()) {
    query.emplace_back("delegation", config_.token);
  } else {
    query.emplace_back("user.name", config_.user);
  }
  return config_.api + PercentEncode(path, /*keep_slash=*/true) + "?" + EncodeQuery(query);
}

Status WebHdfsClient::StatusOf(const std::string& what, const std::string& path,
                               const Result<HttpResponse>& response) const {
  const std::string where = what + " \"" + path + "\" on " + config_.where;
  if (response.ok() && response->Succeeded()) return Status::Ok();
  // Its RPC port answers a request with a sentence, and no header.
  if (!response.ok() && response.status().message().find("HTTP/0.9") != std::string_view::npos) {
    return FailedPreconditionError(
        where +
        ": this port does not speak HTTP; give the port of WebHDFS, usually 9870, not the "
        "NameNode's RPC port");
  }
  if (!response.ok()) return response.status().WithContext(where);
  const HdfsRemoteException error = DecodeHdfsException(response->body);
  if (error.exception.empty() && response->status == 404) {
    return FailedPreconditionError(where +
                                   ": the server has no WebHDFS (dfs.webhdfs.enabled, and the "
                                   "port of the NameNode's web page, usually 9870)");
  }
  std::string said = error.exception.empty()
                         ? fmt::format("HTTP {}: {}", response->status, FirstLine(response->body))
                         : error.exception + ": " + FirstLine(error.message);
  const Code code = CodeOf(error, response->status);
  if (code == Code::kPermissionDenied) {
    said += config_.token.empty() ? "; as user \"" + config_.user + "\" (CAIRN_HDFS_USER)"
                                  : "; with the token of CAIRN_HDFS_TOKEN";
  }
  return Status(code, where + ": " + said);
}

WebHdfsClient::Answer WebHdfsClient::Ask(const std::string& method, const std::string& path,
                                         const std::string& operation, Query query) {
  Answer answer;
  const HttpRequest request{.method = method, .url = UrlOf(path, operation, std::move(query))};
  answer.response = http_->Fetch({.prepare = [&](int) -> Result<HttpRequest> { return request; },
                                  .retry =
                                      [&](int, const Result<HttpResponse>& outcome) {
                                        if (!WorthAnotherTry(outcome)) return false;
                                        answer.uncertain = answer.uncertain || IsUncertain(outcome);
                                        return true;
                                      },
                                  .done = {}});
  return answer;
}

Result<HttpResponse> WebHdfsClient::Expect(const std::string& what, const std::string& method,
                                           const std::string& path, const std::string& operation,
                                           Query query) {
  Answer answer = Ask(method, path, operation, std::move(query));
  RETURN_IF_ERROR(StatusOf(what, path, answer.response));
  return std::move(answer.response);
}

Result<HttpResponse> WebHdfsClient::AtDataNode(
    const std::string& what, const std::string& path, const std::string& operation,
    const Query& query, HttpRequest request,
    bool (*worth_another_try)(const Result<HttpResponse>& outcome)) {
  const RetryPolicy& retry = environment_.retry;
  for (int attempt = 1;; ++attempt) {
    Query first = query;
    first.emplace_back("noredirect", "true");
    ASSIGN_OR_RETURN(const HttpResponse told,
                     Expect(what, request.method, path, operation, std::move(first)));
    ASSIGN_OR_RETURN(request.url, DecodeHdfsLocation(told.body));
    const auto response =
        http_->Fetch({.prepare = [&](int) -> Result<HttpRequest> { return request; },
                      .retry = {},
                      .done = {},
                      .max_attempts = 1});
    Status status = StatusOf(what, path, response);
    const bool cut = status.ok() && response->into_bytes != request.into.size();
    if (cut) {
      status =
          UnavailableError(fmt::format("{} \"{}\" on {}: short read: {} of {} bytes", what, path,
                                       config_.where, response->into_bytes, request.into.size()));
    }
    if (status.ok()) return response;
    if (attempt >= retry.max_attempts || !(cut || worth_another_try(response))) return status;
    environment_.clock->Sleep(
        retry.Wait(attempt, Jitter(environment_.random), std::chrono::nanoseconds(0)));
  }
}

Status WebHdfsClient::Write(const std::string& path, std::span<const std::byte> bytes) {
  Query query{{"createflag", "create,overwrite,sync_block"}};
  if (config_.replication > 0) {
    query.emplace_back("replication", std::to_string(config_.replication));
  }
  if (config_.block_bytes > 0) {
    query.emplace_back("blocksize", std::to_string(config_.block_bytes));
  }
  HttpRequest request{.method = "PUT"};
  request.headers.push_back({"Content-Type", "application/octet-stream"});
  request.body = bytes;
  return AtDataNode("write", path, "CREATE", query, std::move(request), WorthAnotherTry).status();
}

Status WebHdfsClient::Append(const std::string& path, std::span<const std::byte> bytes) {
  HttpRequest request{.method = "POST"};
  request.headers.push_back({"Content-Type", "application/octet-stream"});
  request.body = bytes;
  return AtDataNode("append to", path, "APPEND", {}, std::move(request), SaysThatNothingWasDone)
      .status();
}

Status WebHdfsClient::Read(const std::string& path, std::uint64_t offset,
                           std::span<std::byte> into) {
  if (into.empty()) return Status::Ok();
  const Query query{{"offset", std::to_string(offset)}, {"length", std::to_string(into.size())}};
  HttpRequest request{.method = "GET"};
  request.into = into;
  const Status read =
      AtDataNode("read", path, "OPEN", query, std::move(request), WorthAnotherTry).status();
  if (!read.Is(Code::kUnavailable)) return read;
  // The answers may end too soon, or the file: that does not pass.
  const auto file = Stat(path);
  if (!file.ok() || (offset <= file->bytes && into.size() <= file->bytes - offset)) return read;
  return CorruptionError(fmt::format("read \"{}\" on {}: short read: {} bytes at {}, it has {}",
                                     path, config_.where, into.size(), offset, file->bytes));
}

Result<HdfsFileStatus> WebHdfsClient::Stat(const std::string& path) {
  ASSIGN_OR_RETURN(const HttpResponse response,
                   Expect("look up", "GET", path, "GETFILESTATUS", {}));
  return DecodeHdfsFileStatus(response.body);
}

Result<HdfsListPage> WebHdfsClient::List(const std::string& path, const std::string& after) {
  Query query;
  if (!after.empty()) query.emplace_back("startAfter", after);
  ASSIGN_OR_RETURN(const HttpResponse response,
                   Expect("list", "GET", path, "LISTSTATUS_BATCH", std::move(query)));
  return DecodeHdfsListPage(response.body);
}

Status WebHdfsClient::MakeDirectories(const std::string& path) {
  ASSIGN_OR_RETURN(const HttpResponse response,
                   Expect("make the directory", "PUT", path, "MKDIRS", {}));
  ASSIGN_OR_RETURN(const bool made, DecodeHdfsBoolean(response.body));
  if (!made) {
    return FailedPreconditionError("make the directory \"" + path + "\" on " + config_.where +
                                   ": refused");
  }
  return Status::Ok();
}

Result<bool> WebHdfsClient::Delete(const std::string& path, bool recursive) {
  const Answer answer =
      Ask("DELETE", path, "DELETE", {{"recursive", recursive ? "true" : "false"}});
  RETURN_IF_ERROR(StatusOf("delete", path, answer.response));
  ASSIGN_OR_RETURN(const bool deleted, DecodeHdfsBoolean(answer.response->body));
  return deleted || answer.uncertain;  // gone after a lost answer: it was us, as far as we know
}

Status WebHdfsClient::Rename(const std::string& from, const std::string& to, bool replace) {
  const Answer answer =
      Ask("PUT", from, "RENAME",
          {{"destination", to}, {"renameoptions", replace ? "OVERWRITE" : "NONE"}});
  Status status = StatusOf("rename to \"" + to + "\":", from, answer.response);
  const bool gone = status.Is(Code::kNotFound) || status.Is(Code::kAlreadyExists);
  if (!gone || !answer.uncertain) return status;
  const auto source = Stat(from);
  if (source.status().Is(Code::kNotFound)) return Status::Ok();
  return source.ok() ? status : source.status();
}

Status WebHdfsClient::Concat(const std::string& path, const std::vector<std::string>& sources) {
  std::string list;
  for (const std::string& source : sources) list += (list.empty() ? "" : ",") + source;
  const Answer answer = Ask("POST", path, "CONCAT", {{"sources", list}});
  Status status = StatusOf("join the parts of", path, answer.response);
  if (status.message().find("encryption zone") != std::string_view::npos) {
    return FailedPreconditionError(
        std::string(status.message()) +
        "; HDFS joins no files in an encryption zone, so a file must be one part there: set "
        "CAIRN_HDFS_PART_SIZE to more than the largest file has (such as 1G), or save elsewhere");
  }
  if (status.ok() || !answer.uncertain || sources.empty()) return status;
  const auto source = Stat(sources.front());
  if (source.status().Is(Code::kNotFound)) return Status::Ok();
  return status;
}

}  // namespace cairn
