// The engine on a real HDFS, when nothing goes wrong in between.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "storage/webhdfs/test_hdfs_server.h"
#include "storage/webhdfs/webhdfs_store.h"
#include "tests/remote/take_turns.h"

namespace cairn::remote {
namespace {

TEST(HdfsEngine, WritersTakeTurnsWhileAReaderReads) {
  auto server = TestHdfsServer::Shared();
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const std::string url = (*server)->FreshUrl();
  const auto open_store = [&] { return WebHdfsStore::Open({.url = url}); };
  TakeTurnsWhileAReaderReads(url, 2, [&]() -> Result<std::shared_ptr<Store>> {
    auto store = open_store();
    if (!store.ok()) return store.status();
    return std::shared_ptr<Store>(*std::move(store));
  });
  EXPECT_THAT(*(*open_store())->ListUnfinished(""), ::testing::IsEmpty());
}

}  // namespace
}  // namespace cairn::remote
