#include "net/url.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace cairn {
namespace {

bool IsSchemeCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
}

bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

}  // namespace

std::string_view UrlScheme(std::string_view text) {
  const std::size_t colon = text.find("://");
  if (colon == text.npos || colon == 0) return {};
  const std::string_view scheme = text.substr(0, colon);
  if (std::isalpha(static_cast<unsigned char>(scheme.front())) == 0) return {};
  return std::all_of(scheme.begin(), scheme.end(), IsSchemeCharacter) ? scheme : std::string_view();
}

Result<Url> ParseUrl(std::string_view text) {
  const std::string_view scheme = UrlScheme(text);
  const std::string shown = "\"" + std::string(text.substr(0, 200)) + "\"";
  if (scheme.empty()) return InvalidArgumentError(shown + " is not a URL (scheme://host/path)");
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      return InvalidArgumentError("a URL contains a control character");
    }
  }
  Url url;
  url.scheme = scheme;
  std::transform(url.scheme.begin(), url.scheme.end(), url.scheme.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string_view rest = text.substr(scheme.size() + 3);
  const std::size_t slash = std::min(rest.find_first_of("/?"), rest.size());
  url.authority = rest.substr(0, slash);
  const std::size_t query = std::min(rest.find('?'), rest.size());
  url.path = rest.substr(slash, query - slash);
  if (query < rest.size()) url.query = rest.substr(query + 1);
  if (url.authority.empty()) return InvalidArgumentError(shown + " names no host");
  return url;
}

std::string Url::Host() const {
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end != authority.npos) return authority.substr(1, end - 1);
  }
  return authority.substr(0, authority.rfind(':'));
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (IsUnreserved(c) || (c == '/' && keep_slash)) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

Result<std::string> PercentDecode(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 <= text.size() - 1 ? digit(text[i + 1]) : -1;
    const int low = i + 2 <= text.size() - 1 ? digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return InvalidArgumentError("\"" + std::string(text.substr(0, 200)) +
                                  "\" has a '%' that two hex digits do not follow");
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& parameters) {
  std::string out;
  for (const auto& [name, value] : parameters) {
    if (!out.empty()) out += '&';
    out += PercentEncode(name) + "=" + PercentEncode(value);
  }
  return out;
}

std::string ShownUrl(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme == url.npos) return std::string(url.substr(0, url.find('?')));
  std::string shown(url);
  const std::size_t host = scheme + 3;
  const std::string authority = shown.substr(host, url.find_first_of("/?#", host) - host);
  // What should be a port and is none is the beginning of a password that was not encoded.
  const std::size_t port = authority.rfind(':');
  const bool cut = port != authority.npos && !authority.ends_with(']') &&
                   authority.find_first_not_of("0123456789", port + 1) != authority.npos;
  const std::string_view before = cut ? url.substr(host) : std::string_view(authority);
  if (const std::size_t at = before.rfind('@'); at != before.npos) shown.erase(host, at + 1);
  return shown.substr(0, shown.find('?'));
}

Result<ListenAddress> ParseListenAddress(std::string_view listen) {
  ListenAddress at;
  const std::size_t colon = listen.rfind(':');
  const std::string_view digits =
      colon == listen.npos ? std::string_view() : listen.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), at.port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return InvalidArgumentError("a server listens at host:port: \"" + std::string(listen) +
                                "\" has no port number");
  }
  std::string_view host = listen.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  at.host = host;
  at.v6 = host.find(':') != host.npos;
  return at;
}

}  // namespace cairn
