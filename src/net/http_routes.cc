#include "net/http_routes.h"

#include <fmt/format.h>

#include <utility>

namespace cairn {
namespace {

std::vector<std::string> SplitPath(std::string_view path) {
  std::vector<std::string> out;
  std::size_t begin = 1;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    out.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

bool IsName(std::string_view segment) { return segment.starts_with('{'); }
bool IsRest(std::string_view segment) { return segment.ends_with("...}"); }
std::string NameIn(std::string_view segment) {
  segment.remove_prefix(1);
  segment.remove_suffix(IsRest(segment) ? 4 : 1);
  return std::string(segment);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool DecodePercent(std::string_view text, bool plus, std::string* out) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (plus && c == '+') {
      c = ' ';
    }
    if (c == '\0') return false;
    decoded += c;
  }
  *out = std::move(decoded);
  return true;
}

std::map<std::string, std::string, std::less<>> DecodeQuery(std::string_view query) {
  std::map<std::string, std::string, std::less<>> out;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    std::string name;
    std::string value;
    if (!DecodePercent(pair.substr(0, equals), true, &name) || name.empty()) continue;
    if (equals < pair.size() && !DecodePercent(pair.substr(equals + 1), true, &value)) continue;
    out[name] = value;
  }
  return out;
}

Result<HttpRoutes> HttpRoutes::Make(std::vector<HttpRoute> routes) {
  HttpRoutes out;
  for (HttpRoute& route : routes) {
    if (!route.pattern.starts_with('/') || route.handler == nullptr || route.method.empty()) {
      return InvalidArgumentError(fmt::format("http route {} \"{}\": no method, path or handler",
                                              route.method, route.pattern));
    }
    Entry entry{.segments = SplitPath(route.pattern), .route = std::move(route)};
    for (std::size_t i = 0; i < entry.segments.size(); ++i) {
      const std::string& segment = entry.segments[i];
      const bool closed = IsName(segment) == segment.ends_with('}') && segment != "{}";
      if (!closed || (IsRest(segment) && i + 1 != entry.segments.size())) {
        return InvalidArgumentError(
            fmt::format("http route \"{}\": segment \"{}\"", entry.route.pattern, segment));
      }
    }
    out.entries_.push_back(std::move(entry));
  }
  return out;
}

HttpRoutes::Match HttpRoutes::Find(std::string_view method, std::string_view path) const {
  Match best;
  std::size_t best_fixed = 0;
  if (!path.starts_with('/')) return best;
  const std::vector<std::string> segments = SplitPath(path);
  for (const Entry& entry : entries_) {
    const bool rest = IsRest(entry.segments.back());
    if (rest ? segments.size() < entry.segments.size() : segments.size() != entry.segments.size()) {
      continue;
    }
    Match match{.route = &entry.route, .known_path = true, .params = {}};
    std::size_t fixed = 1;
    bool fits = true;
    for (std::size_t i = 0; fits && i < entry.segments.size(); ++i) {
      const std::string& want = entry.segments[i];
      if (!IsName(want)) {
        std::string decoded;
        fits = DecodePercent(segments[i], false, &decoded) && decoded == want;
        ++fixed;
        continue;
      }
      std::string text = segments[i];
      if (IsRest(want)) {
        for (std::size_t k = i + 1; k < segments.size(); ++k) text += "/" + segments[k];
      }
      std::string decoded;
      fits = DecodePercent(text, false, &decoded) && !decoded.empty();
      match.params[NameIn(want)] = decoded;
    }
    if (!fits) continue;
    best.known_path = true;
    if (entry.route.method != method || fixed <= best_fixed) continue;
    best_fixed = fixed;
    best = std::move(match);
  }
  return best;
}

}  // namespace cairn
