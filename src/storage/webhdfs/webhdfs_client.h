#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "net/http_client.h"
#include "storage/webhdfs/webhdfs_config.h"
#include "storage/webhdfs/webhdfs_replies.h"

namespace cairn {

/// What a store on HDFS stands on; tests replace each piece.
struct WebHdfsEnvironment {
  Variables variables = ProcessVariables();
  Clock* clock = Clock::System();
  std::function<double()> random;  // for the jitter of retries; empty: the system's
  RetryPolicy retry;
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::nanoseconds stall_timeout = std::chrono::seconds(60);
};

/// The operations of WebHDFS on paths, tried again where that helps. Writing and reading take two
/// steps: the NameNode says which DataNode, and the bytes go there; a DataNode that fails is asked
/// for anew. Knows paths, not objects. All calls wait for their answer; they may be made from
/// several threads.
///
/// Statuses: NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (a quota, or no space),
/// Unavailable (not reached, in safe mode, standby), FailedPrecondition (a directory that is not
/// empty; not a WebHDFS server), InvalidArgument.
class WebHdfsClient {
 public:
  static Result<std::shared_ptr<WebHdfsClient>> Open(WebHdfsConfig config,
                                                     WebHdfsEnvironment environment);

  const WebHdfsConfig& config() const { return config_; }
  Clock* clock() const { return environment_.clock; }
  void CancelAll() { http_->CancelAll(); }

  /// Writes the file whole, with the directories above it; replaces one of that name. On return
  /// every DataNode that holds a copy has synced it to its disk (the block's sync flag), and the
  /// NameNode's log has the name.
  Status Write(const std::string& path, std::span<const std::byte> bytes);
  /// Writes the bytes behind the file's last. On return the DataNodes have them, in memory: WebHDFS
  /// has no way to have them synced. Sent once: after an error any number of them may be there,
  /// unless it is Unavailable and says that another is writing the file.
  Status Append(const std::string& path, std::span<const std::byte> bytes);
  /// Fills `into` from `offset` of the file; Corruption when the file ends before, Unavailable when
  /// only the answers do.
  Status Read(const std::string& path, std::uint64_t offset, std::span<std::byte> into);

  Result<HdfsFileStatus> Stat(const std::string& path);
  /// A page of a directory, beginning after the entry `after` ("": at the start).
  Result<HdfsListPage> List(const std::string& path, const std::string& after);
  Status MakeDirectories(const std::string& path);
  /// Deletes a file or directory; false when it was not there. A directory with something in it is
  /// FailedPrecondition unless `recursive`.
  Result<bool> Delete(const std::string& path, bool recursive);
  /// Gives a file its name, which must be free unless `replace`. For a source whose name nobody
  /// else knows: then a source that is gone after a lost answer was renamed.
  Status Rename(const std::string& from, const std::string& to, bool replace);
  /// Moves the blocks of the sources, in this order, to the end of `path`; the sources are gone
  /// then. A source that is not there after a lost answer was moved.
  Status Concat(const std::string& path, const std::vector<std::string>& sources);

 private:
  using Query = std::vector<std::pair<std::string, std::string>>;
  struct Answer {
    Result<HttpResponse> response = InternalError("no answer");
    bool uncertain = false;  // an earlier attempt may have been carried out
  };

  WebHdfsClient(WebHdfsConfig config, WebHdfsEnvironment environment)
      : config_(std::move(config)), environment_(std::move(environment)) {}

  std::string UrlOf(const std::string& path, const std::string& operation, Query query) const;
  /// A request to the NameNode; `what` for messages.
  Answer Ask(const std::string& method, const std::string& path, const std::string& operation,
             Query query);
  Result<HttpResponse> Expect(const std::string& what, const std::string& method,
                              const std::string& path, const std::string& operation, Query query);
  /// Asks the NameNode where, sends `request` there, and again after an outcome that is worth it.
  Result<HttpResponse> AtDataNode(const std::string& what, const std::string& path,
                                  const std::string& operation, const Query& query,
                                  HttpRequest request,
                                  bool (*worth_another_try)(const Result<HttpResponse>& outcome));
  /// OK of an answer that is a success.
  Status StatusOf(const std::string& what, const std::string& path,
                  const Result<HttpResponse>& response) const;

  const WebHdfsConfig config_;
  const WebHdfsEnvironment environment_;
  std::unique_ptr<HttpClient> http_;  // last: its thread uses the rest
};

}  // namespace cairn
