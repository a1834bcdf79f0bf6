#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "cli/console.h"
#include "cli/event_stream.h"

namespace cairn {
class HttpClient;
struct HttpRequest;
struct HttpResponse;
}  // namespace cairn

namespace cairn::cli {

/// Which master a command speaks with.
struct MasterOptions {
  std::string url;      // "": CAIRN_MASTER, then http://127.0.0.1:8080
  std::string ca_file;  // "": CAIRN_MASTER_CA, then the system's authorities
};

/// Speaks with a master (docs/openapi.yaml) for commands. What it gives back is the JSON of the
/// contract.
///
/// Errors: Unavailable when no master answers, saying how to start or name one; PermissionDenied
/// for 401 and 403, saying how to log in; otherwise by the contract's table, with the master's own
/// message. A caught signal ends a request with Cancelled. Requests are repeated for a second or so
/// where the master cannot answer now, so all of them are such that may be (what creates carries a
/// request_id). For one thread.
class MasterClient {
 public:
  using Query = std::vector<std::pair<std::string, std::string>>;

  /// Nothing is sent yet.
  static Result<std::unique_ptr<MasterClient>> Open(const MasterOptions& options, Console* console);
  ~MasterClient();
  MasterClient(const MasterClient&) = delete;
  MasterClient& operator=(const MasterClient&) = delete;

  const std::string& url() const { return url_; }
  /// From now on, instead of the token that was found.
  void SetToken(std::string token) { token_ = std::move(token); }

  Result<Value> Get(const std::string& path, const Query& query = {});
  /// POST, PATCH, PUT, DELETE with a JSON body (null: none).
  Result<Value> Send(const std::string& method, const std::string& path, const Value& body = {},
                     const Query& query = {});
  Result<Value> Upload(const std::string& path, std::string_view bytes, std::string_view type);
  Result<std::string> GetText(const std::string& path, const Query& query = {});
  /// Hands the body over piece by piece; `piece` returns false to end it with Cancelled. Sent once.
  Status GetPieces(const std::string& path, const Query& query,
                   std::function<bool(std::string_view)> piece);
  /// Server-sent events until `each` returns false (Ok), the stream ends (Ok) or breaks.
  Status Follow(const std::string& path, const Query& query,
                const std::function<bool(const StreamEvent&)>& each);

 private:
  MasterClient(std::string url, std::string token, Console* console,
               std::unique_ptr<HttpClient> http);

  HttpRequest Request(const std::string& method, const std::string& path, const Query& query) const;
  Result<HttpResponse> Ask(HttpRequest request, int attempts);
  Status ErrorOf(const HttpResponse& response);
  Status NotReached(const Status& status) const;

  const std::string url_;
  std::string token_;
  Console* const console_;
  std::unique_ptr<HttpClient> http_;
};

/// "a" → "/api/v1/experiments/a", escaped.
std::string ExperimentPath(std::string_view id, std::string_view rest = "");
std::string TrialPath(std::string_view id, std::string_view rest = "");
std::string CheckpointPath(std::string_view id, std::string_view rest = "");

// Members of answers; the fallback for what is missing or of another type.
std::string TextIn(const Value& object, std::string_view key);
std::int64_t IntIn(const Value& object, std::string_view key, std::int64_t fallback = 0);
double NumberIn(const Value& object, std::string_view key, double fallback = 0);
bool BoolIn(const Value& object, std::string_view key);
const Value::List& ListIn(const Value& object, std::string_view key);

}  // namespace cairn::cli
