// docs/openapi.yaml and the router's table say the same: every route, and who may use it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <regex>
#include <string>

#include "master/api.h"
#include "trial/trial_service.h"

namespace cairn::master {
namespace {

using Routes = std::map<std::string, std::string>;  // "GET /a/{}": who may

std::string Key(std::string method, const std::string& pattern) {
  for (char& c : method) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return method + " " + std::regex_replace(pattern, std::regex(R"(\{[^}]*\})"), "{}");
}

Routes Contract() {
  Routes routes;
  const YAML::Node root = YAML::LoadFile("docs/openapi.yaml");
  for (const auto& path : root["paths"]) {
    for (const auto& operation : path.second) {
      const auto method = operation.first.as<std::string>();
      if (method == "parameters") continue;
      routes[Key(method, path.first.as<std::string>())] =
          operation.second["x-cairn-role"].as<std::string>();
    }
  }
  return routes;
}

std::string RoleOf(Access access) {
  switch (access) {
    case Access::kNone:
      return "none";
    case Access::kViewer:
      return "viewer";
    case Access::kUser:
      return "user";
    case Access::kAdmin:
      return "admin";
    case Access::kRun:
      return "run";
  }
  return "";
}

TEST(OpenApi, SaysWhatTheRouterHas) {
  Routes served;
  for (const ApiRoute& route : ApiRoutes(ApiParts{})) {
    served[Key(route.method, route.pattern)] = RoleOf(route.access);
  }
  // Authorised by the trial engine, by the token of the run.
  for (const HttpRoute& route : TrialRoutes(nullptr)) {
    if (route.pattern.ends_with("/join")) continue;  // the master judges who joins
    const bool open = route.pattern.ends_with("/healthz");
    served[Key(route.method, route.pattern)] = open ? "none" : "run";
  }
  EXPECT_THAT(served, testing::ContainerEq(Contract()));
}

}  // namespace
}  // namespace cairn::master
