#include "serving/export_record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>

#include "format/sealed_json.h"

namespace cairn::serving {
namespace {

/// That of docs/format/export.md and tests/compat/export_v1/serving.json.
ExportRecord Example() {
  ExportRecord record;
  record.increments = true;
  record.inputs = {
      {"item", {.name = "items", .dim = 8, .dtype = DType::kBF16, .default_value = 0}},
      {"user", {.name = "users", .dim = 16, .dtype = DType::kF32, .default_value = 0.5}}};
  record.variables = {{"fc.weight", "tower/fc/w"}};
  return record;
}

TEST(ExportRecordTest, ComesBack) {
  EXPECT_EQ(DecodeExportRecord(Encode(Example())).value(), Example());
  EXPECT_EQ(DecodeExportRecord(Encode(ExportRecord{})).value(), ExportRecord{});
}

TEST(ExportRecordTest, IsAsTheGoldenFileHasIt) {
  std::ifstream in("tests/compat/export_v1/serving.json", std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  ASSERT_FALSE(golden.empty());
  EXPECT_EQ(Encode(Example()), golden);
  EXPECT_EQ(DecodeExportRecord(golden).value(), Example());
  std::ifstream page_in("docs/format/export.md");
  const std::string page((std::istreambuf_iterator<char>(page_in)), {});
  EXPECT_NE(page.find(golden), page.npos) << "the page shows this file";
}

TEST(ExportRecordTest, DamageIsCorruption) {
  const std::string good = Encode(Example());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    EXPECT_EQ(DecodeExportRecord(bad).status().code(), Code::kCorruption) << i;
  }
  const auto sealed = [](const Value::Object& members) {
    return DecodeExportRecord(EncodeSealedJson(members)).status().code();
  };
  const Value::Object table{
      {"input", "i"}, {"table", "t"}, {"dim", 4}, {"dtype", "F32"}, {"default", 0.0}};
  const auto with = [&](const char* member, Value value) {
    Value::Object changed = table;
    changed.insert_or_assign(member, std::move(value));
    return sealed({{"version", 1}, {"tables", Value::List{changed}}});
  };
  EXPECT_EQ(with("dim", 4), Code::kOk);
  EXPECT_EQ(with("dim", 0), Code::kCorruption);
  EXPECT_EQ(with("dim", 70'000), Code::kCorruption);
  EXPECT_EQ(with("dtype", "I64"), Code::kCorruption);
  EXPECT_EQ(with("dtype", "F99"), Code::kCorruption);
  EXPECT_EQ(with("table", ""), Code::kCorruption);
  EXPECT_EQ(with("default", "x"), Code::kCorruption);
  EXPECT_EQ(with("default", 1e300), Code::kCorruption) << "no float";
  EXPECT_EQ(sealed({{"version", 1}, {"tables", Value::List{table, table}}}), Code::kCorruption);
  EXPECT_EQ(sealed({{"version", 1}, {"variables", Value::Object{{"w", 3}}}}), Code::kCorruption);
  EXPECT_EQ(sealed({{"version", 0}}), Code::kCorruption);
  EXPECT_EQ(sealed({{"version", 2}}), Code::kUnimplemented);
}

}  // namespace
}  // namespace cairn::serving
