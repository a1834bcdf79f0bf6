#include "storage/store.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn {
namespace {

TEST(ObjectName, OrdinaryNamesAreAccepted) {
  for (const char* name : {"a", "a/b", "checkpoint_000040/__model__/rank_3-00001.safetensors",
                           "..a", "a..", ".hidden", "käse/日本", "a b", "-"}) {
    EXPECT_TRUE(ValidateObjectName(name).ok()) << name;
  }
}

TEST(ObjectName, NamesThatLeaveTheStoreOrCannotBeStoredAreRefused) {
  for (const std::string& name :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string(".."), std::string("a/../b"), std::string("./a"), std::string("a/."),
        std::string("a\nb"), std::string("a\0b", 3), std::string("\x7f"), std::string("/")}) {
    EXPECT_EQ(ValidateObjectName(name).code(), Code::kInvalidArgument) << name;
  }
}

TEST(ObjectName, NamesOfTemporaryFilesAreReserved) {
  EXPECT_FALSE(ValidateObjectName(".cairn-tmp-1").ok());
  EXPECT_FALSE(ValidateObjectName("a/.cairn-tmp").ok());
  EXPECT_FALSE(ValidateObjectName(".cairn-tmpx/b").ok());
  EXPECT_TRUE(ValidateObjectName("a.cairn-tmp").ok());
}

TEST(ObjectName, LengthsAreLimited) {
  EXPECT_TRUE(ValidateObjectName(std::string(255, 'a')).ok());
  EXPECT_FALSE(ValidateObjectName(std::string(256, 'a')).ok());
  std::string longest;
  while (longest.size() < 1024) longest += std::string(127, 'a') + "/";
  longest.back() = 'a';
  EXPECT_EQ(longest.size(), 1024u);
  EXPECT_TRUE(ValidateObjectName(longest).ok());
  EXPECT_FALSE(ValidateObjectName(longest + "a").ok());
}

TEST(ObjectName, TheMessageOfAHugeNameIsShortAndPrintable) {
  const Status status = ValidateObjectName(std::string(10000, '\n'));
  EXPECT_LT(status.message().size(), 500u);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace cairn
