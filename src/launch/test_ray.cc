#include "launch/test_ray.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "launch/process_identity.h"

namespace cairn {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    std::fprintf(stderr, "%s is not set: run this by tests/services/ray/in-ray\n", name);
    std::exit(1);
  }
  return value;
}

}  // namespace

TestRay& TestRay::Get() {
  static TestRay* ray = new TestRay;  // as long as the process
  return *ray;
}

TestRay::TestRay()
    : url_(Variable("RAY_API_SERVER_ADDRESS")),
      directory_(Variable("CAIRN_RAY_DIRECTORY")),
      programs_(Variable("CAIRN_RAY_BIN")) {}

void TestRay::KillNode(const std::string& node) {
  const Status killed = KillByEnvironment("CAIRN_RAY_NODE", node);
  ASSERT_TRUE(killed.ok()) << killed.ToString();
}

void TestRay::StartNode(const std::string& node, const std::string& environment) {
  ASSERT_EQ(std::system((environment + " " + directory_ + "/start " + node).c_str()), 0) << node;
}

std::string TestRay::Shell(const std::string& command) {
  std::FILE* pipe = popen(("PATH=" + programs_ + ":$PATH; " + command + " 2>&1").c_str(), "r");
  std::string said;
  char block[512];
  while (std::fgets(block, sizeof(block), pipe) != nullptr) said += block;
  pclose(pipe);
  return said;
}

}  // namespace cairn
