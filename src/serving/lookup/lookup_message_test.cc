#include "serving/lookup/lookup_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

namespace cairn::serving {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Text(const rpc::Message& message) {
  return {reinterpret_cast<const char*>(message.bytes().data()), message.size()};
}
std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string Golden(const std::string& name) {
  std::ifstream in("tests/compat/lookup/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

rpc::Message ExampleRequest() {
  static const std::vector<std::int64_t> users = {-1, 1'000'000'007};
  static const std::vector<std::int64_t> items = {5};
  const LookupClient::Wanted wanted[] = {{.table = "users", .ids = users, .dim = 3},
                                         {.table = "it", .ids = items}};
  return EncodeLookup(wanted);
}

rpc::Message ExampleReply() {
  const RowsShape shapes[] = {{.dim = 3, .count = 1}, {.dim = 2, .count = 2}};
  std::vector<std::span<float>> rows;
  rpc::Message reply = NewLookupReply(40, "0f8fad5b", shapes, &rows);
  for (float i = 0; float& value : rows[0]) value = ++i;
  for (float i = 0; float& value : rows[1]) value = --i;
  return reply;
}

TEST(LookupMessage, RequestsComeBack) {
  const std::string bytes = Text(ExampleRequest());
  const auto asks = DecodeLookup(Bytes(bytes));
  ASSERT_TRUE(asks.ok()) << asks.status().ToString();
  ASSERT_EQ(asks->size(), 2u);
  EXPECT_EQ((*asks)[0].table, "users");
  EXPECT_EQ((*asks)[0].dim, 3u);
  EXPECT_EQ((*asks)[0].count(), 2u);
  EXPECT_EQ((*asks)[1].table, "it");
  EXPECT_EQ((*asks)[1].dim, 0u);
}

TEST(LookupMessage, AnswersComeBack) {
  const std::string bytes = Text(ExampleReply());
  const auto found = DecodeLookupReply(Bytes(bytes));
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->step, 40);
  EXPECT_EQ(found->id, "0f8fad5b");
  ASSERT_EQ(found->tables.size(), 2u);
  EXPECT_THAT(found->tables[0].values, ElementsAre(1, 2, 3));
  EXPECT_THAT(found->tables[1].values, ElementsAre(-1, -2, -3, -4));
  const auto refused =
      DecodeLookupReply(EncodeLookupError(NotFoundError("asks[0].table: none")).bytes());
  EXPECT_TRUE(refused.status().Is(Code::kNotFound));
  EXPECT_EQ(refused.status().message(), "asks[0].table: none");
}

TEST(LookupMessage, IsAsTheGoldenFilesHaveIt) {
  EXPECT_EQ(Text(ExampleRequest()), Golden("request_2.bin"));
  EXPECT_EQ(Text(ExampleReply()), Golden("reply_2.bin"));
}

TEST(LookupMessage, CutAnywhereIsRefused) {
  const std::string request = Text(ExampleRequest());
  for (std::size_t size = 0; size < request.size(); ++size) {
    EXPECT_FALSE(DecodeLookup(Bytes(request.substr(0, size))).ok()) << size;
  }
  EXPECT_FALSE(DecodeLookup(Bytes(request + "x")).ok());
  const std::string reply = Text(ExampleReply());
  for (std::size_t size = 0; size < reply.size(); ++size) {
    EXPECT_TRUE(DecodeLookupReply(Bytes(reply.substr(0, size))).status().Is(Code::kCorruption));
  }
}

TEST(LookupMessage, SizesThatLieTakeNoMemory) {
  std::string request = Text(ExampleRequest());
  const std::size_t count_at = 8 + 16 + 8;  // of the first ask
  for (const std::uint64_t lie :
       {std::uint64_t{1} << 61, std::uint64_t{3}, std::numeric_limits<std::uint64_t>::max()}) {
    std::memcpy(request.data() + count_at, &lie, sizeof lie);
    const auto asks = DecodeLookup(Bytes(request));
    EXPECT_FALSE(asks.ok());
    if (lie > 3) {
      EXPECT_THAT(asks.status().ToString(), HasSubstr("asks[0].ids"));
    }
  }
  std::string reply = Text(ExampleReply());
  const std::size_t rows_at = 8 + 8 + 16 + 8;
  const std::uint64_t lie = std::uint64_t{1} << 61;
  std::memcpy(reply.data() + rows_at, &lie, sizeof lie);
  EXPECT_TRUE(DecodeLookupReply(Bytes(reply)).status().Is(Code::kCorruption));
}

TEST(LookupMessage, OtherVersionsAndKindsAreNamed) {
  std::string request = Text(ExampleRequest());
  request[0] = 9;
  EXPECT_TRUE(DecodeLookup(Bytes(request)).status().Is(Code::kUnimplemented));
  request[0] = 1;
  request[1] = 7;
  EXPECT_THAT(DecodeLookup(Bytes(request)).status().ToString(), HasSubstr("kind: 7"));
}

}  // namespace
}  // namespace cairn::serving
