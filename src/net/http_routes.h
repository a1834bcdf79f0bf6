#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "net/http_server.h"

namespace cairn {

/// Finds the route of a path. Immutable after Make; may be asked from several threads.
class HttpRoutes {
 public:
  /// InvalidArgument for a pattern that makes no sense.
  static Result<HttpRoutes> Make(std::vector<HttpRoute> routes);

  struct Match {
    const HttpRoute* route = nullptr;  // null: see `known_path`
    bool known_path = false;           // another method has it
    std::map<std::string, std::string, std::less<>> params;
  };
  /// `path` as sent, percent-encoded. A path with a broken escape or a NUL
  /// matches nothing. A fixed segment wins over a {name}.
  Match Find(std::string_view method, std::string_view path) const;

 private:
  struct Entry {
    std::vector<std::string> segments;
    HttpRoute route;
  };
  std::vector<Entry> entries_;
};

/// "%41%20b" → "A b"; `plus`: '+' is a space. False, and `out` untouched, when an escape is broken
/// or a NUL comes out.
bool DecodePercent(std::string_view text, bool plus, std::string* out);
/// "a=1&b=%20" → map; broken pairs are left out.
std::map<std::string, std::string, std::less<>> DecodeQuery(std::string_view query);

}  // namespace cairn
