#include "net/http_intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace cairn {

ServerResponse HttpIntake::TooLarge(std::uint64_t limit) const {
  return error_(413, "too_large", fmt::format("at most {} bytes are taken here", limit));
}

HttpIntake::Verdict HttpIntake::Judge(ServerRequest head, std::string_view path,
                                      std::optional<std::uint64_t> length) const {
  HttpRoutes::Match match = routes_->Find(head.method, path);
  if (match.route == nullptr) {
    return {.refusal = match.known_path
                           ? error_(405, "method_not_allowed",
                                    fmt::format("{} is not possible here", head.method))
                           : error_(404, "not_found", "there is no such path"),
            .max_body_bytes = 0};
  }
  Verdict verdict{.refusal = std::nullopt,
                  .max_body_bytes = std::min(match.route->max_body_bytes, max_body_bytes_)};
  if (match.route->authorize) {
    DecodePercent(path, false, &head.path);
    head.params = std::move(match.params);
    verdict.refusal = match.route->authorize(head);
  }
  // Who may not come here is not told what would fit either.
  if (!verdict.refusal && length.value_or(0) > verdict.max_body_bytes) {
    verdict.refusal = TooLarge(verdict.max_body_bytes);
  }
  return verdict;
}

std::string HttpIntake::Encode(const ServerResponse& refusal, bool hang_up) {
  nlohmann::json headers = nlohmann::json::array();
  for (const HttpHeader& header : refusal.headers) headers.push_back({header.name, header.value});
  const nlohmann::json all = {{"status", refusal.status},
                              {"body", refusal.body},
                              {"type", refusal.content_type},
                              {"headers", headers},
                              {"hang_up", hang_up}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ServerResponse HttpIntake::Decode(std::string_view text, bool* hang_up) {
  const nlohmann::json all = nlohmann::json::parse(text);
  ServerResponse refusal{.status = all.at("status"),
                         .body = all.at("body"),
                         .content_type = all.at("type"),
                         .headers = {}};
  for (const auto& header : all.at("headers")) {
    refusal.headers.push_back({header.at(0), header.at(1)});
  }
  *hang_up = all.at("hang_up");
  return refusal;
}

}  // namespace cairn
