#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "storage/conformance.h"
#include "storage/s3/test_s3_server.h"

namespace cairn {
namespace {

/// The store under a prefix of a bucket of its own, on a real server.
StoreUnderTest OnServer(const std::string& prefix) {
  TestS3Server* server = TestS3Server::Get();
  if (server == nullptr) {
    return {.open = [] { return Result<std::unique_ptr<Store>>(UnavailableError("no server")); }};
  }
  const std::string bucket = server->NewBucket();
  const std::string url = "s3://" + bucket + prefix;
  StoreUnderTest under_test;
  under_test.ground =
      std::shared_ptr<void>(nullptr, [server, bucket](void*) { server->DeleteBucket(bucket); });
  under_test.open = [server, url]() -> Result<std::unique_ptr<Store>> {
    auto store = S3Store::Open(server->Options(url));
    if (!store.ok()) return store.status();
    return std::unique_ptr<Store>(*std::move(store));
  };
  under_test.plant = [server, url](const std::string& name) {
    const auto store = server->Open(url);
    const std::string key = store->client()->config().KeyOf(name);
    EXPECT_TRUE(store->client()->Expect({.what = "put", .method = "PUT", .key = key}).ok());
  };
  under_test.long_listing = 1100;      // more than a page
  under_test.longest_component = 220;  // versitygw replaces no file of a longer name
  return under_test;
}

INSTANTIATE_TEST_SUITE_P(
    S3, StoreConformance,
    ::testing::Values(StoreFactory{.name = "Prefix", .make = [] { return OnServer("/runs/a b"); }},
                      StoreFactory{.name = "WholeBucket", .make = [] { return OnServer(""); }}),
    StoreConformance::Name);

}  // namespace
}  // namespace cairn
