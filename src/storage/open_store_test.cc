#include "storage/open_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(OpenStore, TakesPathsAndFileUrls) {
  const TempDirectory dir;
  const std::string path = dir / "a b";
  auto store = OpenStore(path);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_TRUE((*store)->Put("x", "1").ok());
  auto same = OpenStore("file://" + (dir / "a%20b"), {.create = false});
  ASSERT_TRUE(same.ok()) << same.status().ToString();
  EXPECT_EQ(*(*same)->Get("x", 10), "1");
}

TEST(OpenStore, MakesNothingUnlessTold) {
  const TempDirectory dir;
  EXPECT_TRUE(OpenStore(dir / "missing", {.create = false}).status().Is(Code::kNotFound));
}

TEST(OpenStore, RefusesUnknownSchemesAndSaysWhatThereIs) {
  const auto store = OpenStore("gs://bucket/a");
  EXPECT_TRUE(store.status().Is(Code::kInvalidArgument));
  EXPECT_THAT(store.status().ToString(), HasSubstr("gs://"));
  EXPECT_THAT(store.status().ToString(), HasSubstr("s3://bucket/prefix"));
  EXPECT_TRUE(OpenStore("file://host/a").status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(OpenStore("file:///a%zz").status().Is(Code::kInvalidArgument));
}

TEST(OpenStore, AUrlThatLostASlashIsNoDirectory) {
  for (const char* where : {"s3:/bucket/runs", "hdfs:/host:9870/runs", "file:/runs"}) {
    const auto store = OpenStore(where);
    EXPECT_TRUE(store.status().Is(Code::kInvalidArgument)) << where;
    EXPECT_THAT(store.status().ToString(), HasSubstr("one slash too few")) << where;
  }
}

TEST(OpenStore, TellsUrlsFromPaths) {
  for (const char* path : {"runs/a", "/abs", "a:b", "./s3:/x", ""}) EXPECT_FALSE(IsUrl(path));
  EXPECT_TRUE(IsUrl("file:///a"));
  EXPECT_FALSE(IsRemote("file:///a"));
  EXPECT_TRUE(IsRemote("s3://b"));
  EXPECT_TRUE(IsRemote("hdfs://h:1/a"));
  EXPECT_EQ(*LocalPath("runs/a%20b"), "runs/a%20b") << "a path is taken as it stands";
  EXPECT_FALSE(LocalPath("s3://b/a").ok());
}

TEST(OpenStore, SplitsTheLastComponentOff) {
  for (const char* where : {"s3://b/runs/a/checkpoint_1", "s3://b/runs/a/checkpoint_1//"}) {
    const auto place = SplitRemote(where);
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(place->where, "s3://b/runs/a");
    EXPECT_EQ(place->name, "checkpoint_1");
  }
  EXPECT_EQ(SplitRemote("s3://b/checkpoint_1")->where, "s3://b");
  for (const char* where : {"s3://b", "s3://b/", "/a/b", "file:///a/b"}) {
    EXPECT_TRUE(SplitRemote(where).status().Is(Code::kInvalidArgument)) << where;
  }
}

}  // namespace
}  // namespace cairn
