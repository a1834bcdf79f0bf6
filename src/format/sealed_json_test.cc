#include "format/sealed_json.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn {
namespace {

const Value::Object kMembers = {
    {"record", "example"}, {"number", 42}, {"nested", Value::Object{{"a", Value::List{1, "two"}}}}};

TEST(SealedJson, MembersComeBackWithoutTheChecksum) {
  const auto back = DecodeSealedJson(EncodeSealedJson(kMembers));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, kMembers);
}

TEST(SealedJson, AnObjectWithoutMembersComesBack) {
  const auto back = DecodeSealedJson(EncodeSealedJson({}));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(back->empty());
}

TEST(SealedJson, EveryFlippedBitIsSeen) {
  const std::string good = EncodeSealedJson(kMembers);
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      EXPECT_TRUE(DecodeSealedJson(bad).status().Is(Code::kCorruption)) << i << " " << bit;
    }
  }
}

TEST(SealedJson, EveryCutIsSeen) {
  const std::string good = EncodeSealedJson(kMembers);
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(DecodeSealedJson(good.substr(0, n)).ok()) << n;
    EXPECT_FALSE(DecodeSealedJson(good.substr(n + 1)).ok()) << n;
  }
}

TEST(SealedJson, AddedBytesAreSeen) {
  const std::string good = EncodeSealedJson(kMembers);
  for (const std::string_view extra : {"\n", " ", "x"}) {
    EXPECT_FALSE(DecodeSealedJson(good + std::string(extra)).ok());
    EXPECT_FALSE(DecodeSealedJson(std::string(extra) + good).ok());
  }
  EXPECT_FALSE(DecodeSealedJson(good + good).ok());
  EXPECT_FALSE(DecodeSealedJson(good + std::string(100, '\0')).ok());
}

TEST(SealedJson, WriterKeepsTheOrderOfTheCalls) {
  SealedJsonWriter writer;
  writer.Text("z", "last letter first");
  writer.TextOrNull("none", "");
  writer.Int("i", -1);
  writer.Lines("lines", std::vector<std::string>{"{\"a\":1}", "2"});
  writer.Texts("texts", std::vector<std::string>{"x", "y"});
  const std::string text = writer.Seal();
  EXPECT_TRUE(
      text.starts_with("{\n  \"z\": \"last letter first\",\n  \"none\": null,\n  \"i\": -1,\n"
                       "  \"lines\": [\n    {\"a\":1},\n    2\n  ],\n"
                       "  \"texts\": [\"x\", \"y\"],\n  \"checksum\": \""))
      << text;
  EXPECT_TRUE(DecodeSealedJson(text).ok());
}

}  // namespace
}  // namespace cairn
