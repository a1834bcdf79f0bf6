// What servers are asked and answer.
#include <nlohmann/json.hpp>

#include "net/http_server.h"

namespace cairn {

std::string_view ServerRequest::Header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

std::string_view ServerRequest::BearerToken() const {
  std::string_view value = Header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (value.size() < kBearer.size()) return {};
  for (const char expected : kBearer) {  // the scheme in any case: RFC 9110, 11.1
    const char given = value.front();
    if ((given >= 'A' && given <= 'Z' ? given - 'A' + 'a' : given) != expected) return {};
    value.remove_prefix(1);
  }
  while (value.starts_with(' ')) value.remove_prefix(1);
  return value;
}

std::string_view ServerRequest::Query(std::string_view name) const {
  const auto found = query.find(name);
  return found == query.end() ? std::string_view() : std::string_view(found->second);
}

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Payload Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

ServerResponse ErrorResponse(int status, std::string_view code, std::string_view message) {
  const nlohmann::json body = {
      {"code", code}, {"message", message}, {"details", nlohmann::json::object()}};
  return {.status = status,
          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
          .content_type = "application/json",
          .headers = {}};
}

}  // namespace cairn
