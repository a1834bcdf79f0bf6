#include "net/http_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
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

namespace {

/// A segment of a path that was asked for; none when it is not well encoded.
using Asked = std::optional<std::string>;

std::vector<Asked> DecodedSegments(std::string_view path) {
  std::vector<Asked> out;
  for (const std::string& segment : SplitPath(path)) {
    std::string decoded;
    const bool well = DecodePercent(segment, false, &decoded);
    out.push_back(well ? Asked(std::move(decoded)) : std::nullopt);
  }
  return out;
}

/// Whether the pattern covers the path; nothing is copied, for most do not.
bool Fits(const std::vector<std::string>& pattern, const std::vector<Asked>& path) {
  const bool rest = IsRest(pattern.back());
  if (rest ? path.size() < pattern.size() : path.size() != pattern.size()) return false;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (!path[i].has_value()) return false;
    if (i + 1 >= pattern.size() && rest) continue;
    const std::string& want = pattern[i];
    if (IsName(want) ? path[i]->empty() : *path[i] != want) return false;
  }
  return !rest || path.size() > pattern.size() || !path.back()->empty();
}

std::size_t FixedSegments(const std::vector<std::string>& pattern) {
  return static_cast<std::size_t>(
      std::ranges::count_if(pattern, [](const std::string& segment) { return !IsName(segment); }));
}

std::map<std::string, std::string, std::less<>> ParamsOf(const std::vector<std::string>& pattern,
                                                         const std::vector<Asked>& path) {
  std::map<std::string, std::string, std::less<>> params;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (!IsName(pattern[i])) continue;
    std::string& text = params[NameIn(pattern[i])] = *path[i];
    if (!IsRest(pattern[i])) continue;
    for (std::size_t k = i + 1; k < path.size(); ++k) text += "/" + *path[k];
  }
  return params;
}

}  // namespace

HttpRoutes::Match HttpRoutes::Find(std::string_view method, std::string_view path) const {
  Match match;
  if (!path.starts_with('/')) return match;
  const std::vector<Asked> asked = DecodedSegments(path);
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (!Fits(entry.segments, asked)) continue;
    match.known_path = true;
    if (entry.route.method != method) continue;
    if (best == nullptr || FixedSegments(entry.segments) > FixedSegments(best->segments)) {
      best = &entry;
    }
  }
  if (best == nullptr) return match;
  match.route = &best->route;
  match.params = ParamsOf(best->segments, asked);
  return match;
}

}  // namespace cairn
