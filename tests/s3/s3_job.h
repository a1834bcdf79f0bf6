#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "checkpoint/manager.h"
#include "storage/s3/test_s3_server.h"
#include "tests/remote/job.h"

/// What the tests of the engine on a bucket share.
namespace cairn::s3 {

using remote::kSeed;
using remote::RestoreLatest;
using remote::SaveStep;

inline Environment EnvironmentOn(S3StoreOptions options) {
  Environment env;
  auto store = S3Store::Open(std::move(options));
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  if (store.ok()) env.store = *std::move(store);
  env.host = "test";
  env.pid = 1;
  return env;
}

}  // namespace cairn::s3
