#include "master/glob.h"

namespace cairn::master {
namespace {

/// One element of a pattern.
struct Token {
  enum class Kind { kChar, kAny, kStar, kDoubleStar, kSet } kind = Kind::kChar;
  char c = 0;
  std::string_view set;  // between the brackets
};

Token Next(std::string_view pattern, std::size_t* at) {
  const char c = pattern[*at];
  ++*at;
  if (c == '?') return {.kind = Token::Kind::kAny};
  if (c == '*') {
    if (*at >= pattern.size() || pattern[*at] != '*') return {.kind = Token::Kind::kStar};
    while (*at < pattern.size() && pattern[*at] == '*') ++*at;
    // "**/" also matches nothing at all.
    if (*at < pattern.size() && pattern[*at] == '/') {
      ++*at;
      return {.kind = Token::Kind::kDoubleStar, .c = '/'};
    }
    return {.kind = Token::Kind::kDoubleStar};
  }
  if (c == '[') {
    const std::size_t from = *at + (*at < pattern.size() && pattern[*at] == '!' ? 1 : 0);
    const std::size_t end = pattern.find(']', from + 1);
    if (end != std::string_view::npos) {
      const Token token{.kind = Token::Kind::kSet, .set = pattern.substr(*at, end - *at)};
      *at = end + 1;
      return token;
    }
  }
  if (c == '\\' && *at < pattern.size()) return {.c = pattern[(*at)++]};
  return {.c = c};
}

bool InSet(std::string_view set, char c) {
  const bool negated = set.starts_with('!');
  if (negated) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      const auto u = static_cast<unsigned char>(c);
      found = found || (static_cast<unsigned char>(set[i]) <= u &&
                        u <= static_cast<unsigned char>(set[i + 2]));
      i += 2;
    } else {
      found = found || set[i] == c;
    }
  }
  return found != negated && c != '/';
}

}  // namespace

bool GlobMatch(std::string_view pattern, std::string_view path) {
  // reached[j]: the tokens so far match the first j bytes of the path.
  std::vector<char> reached(path.size() + 1, 0);
  reached[0] = 1;
  for (std::size_t at = 0; at < pattern.size();) {
    const Token token = Next(pattern, &at);
    std::vector<char> next(path.size() + 1, 0);
    bool open = false;  // a star that began before j goes on
    for (std::size_t j = 0; j <= path.size(); ++j) {
      switch (token.kind) {
        case Token::Kind::kStar:
        case Token::Kind::kDoubleStar:
          if (token.kind == Token::Kind::kStar && j > 0 && path[j - 1] == '/') open = false;
          if (token.c == '/') {  // "**/": ends behind a slash, or where it began
            next[j] = static_cast<char>(reached[j] != 0 || (open && path[j - 1] == '/'));
            open = open || reached[j] != 0;
          } else {
            open = open || reached[j] != 0;
            next[j] = static_cast<char>(open);
          }
          break;
        case Token::Kind::kChar:
          next[j] = static_cast<char>(j > 0 && reached[j - 1] != 0 && path[j - 1] == token.c);
          break;
        case Token::Kind::kAny:
          next[j] = static_cast<char>(j > 0 && reached[j - 1] != 0 && path[j - 1] != '/');
          break;
        case Token::Kind::kSet:
          next[j] =
              static_cast<char>(j > 0 && reached[j - 1] != 0 && InSet(token.set, path[j - 1]));
          break;
      }
    }
    reached.swap(next);
  }
  return reached[path.size()] != 0;
}

IgnoreRules::IgnoreRules(std::string_view text) {
  for (const std::string_view line : {".git", "__pycache__/", "*.pyc"}) Add(line);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    Add(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

void IgnoreRules::Add(std::string_view line) {
  while (line.ends_with('\r') || (line.ends_with(' ') && !line.ends_with("\\ "))) {
    line.remove_suffix(1);
  }
  if (line.empty() || line.starts_with('#')) return;
  Rule rule;
  if (line.starts_with('!')) {
    rule.negated = true;
    line.remove_prefix(1);
  }
  if (line.ends_with('/')) {
    rule.directories = true;
    line.remove_suffix(1);
  }
  rule.anchored = line.find('/') != std::string_view::npos;
  if (line.starts_with('/')) line.remove_prefix(1);
  rule.pattern = line;
  if (!rule.pattern.empty()) rules_.push_back(std::move(rule));
}

bool IgnoreRules::Ignores(std::string_view path, bool directory) const {
  const std::size_t slash = path.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  bool ignored = false;
  for (const Rule& rule : rules_) {
    if (rule.directories && !directory) continue;
    if (GlobMatch(rule.pattern, rule.anchored ? path : name)) ignored = !rule.negated;
  }
  return ignored;
}

}  // namespace cairn::master
