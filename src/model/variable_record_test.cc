#include "model/variable_record.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace cairn {
namespace {

TEST(VariableRecordTest, RolesComeBack) {
  const VariableRoles roles = {{"fc/w", Role::kParameter}, {"a \"b\"\n", Role::kPersistable}};
  EXPECT_EQ(DecodeVariableRoles(EncodeVariableRoles(roles)).value(), roles);
  EXPECT_EQ(DecodeVariableRoles(EncodeVariableRoles({})).value(), VariableRoles{});
}

TEST(VariableRecordTest, MeaningsComeBackForEveryVariable) {
  const VariableRoles roles = {{"at", Role::kPersistable}, {"w", Role::kParameter}};
  const VariableMeanings given = {{"at", "datetime64[D]"}};
  const std::string bytes = EncodeVariableRoles(roles, &given);
  EXPECT_EQ(DecodeVariableRoles(bytes).value(), roles);
  const VariableMeanings all = {{"at", "datetime64[D]"}, {"w", ""}};
  EXPECT_EQ(DecodeVariableMeanings(bytes).value(), std::optional(all));
  const VariableMeanings none;
  const VariableMeanings plain = {{"at", ""}, {"w", ""}};
  EXPECT_EQ(DecodeVariableMeanings(EncodeVariableRoles(roles, &none)).value(),
            std::optional(plain));
  EXPECT_EQ(DecodeVariableMeanings(EncodeVariableRoles(roles)).value(), std::nullopt);
}

TEST(VariableRecordTest, DamagedMeaningsAreCorruption) {
  for (const char* text :
       {R"({"version": 1, "variables": {"w": "parameter"}, "meanings": []})",
        R"({"version": 1, "variables": {"w": "parameter"}, "meanings": {"w": 1}})",
        R"({"version": 1, "variables": {}, "meanings": {"w": "complex64"}})"}) {
    EXPECT_EQ(DecodeVariableMeanings(text).status().code(), Code::kCorruption) << text;
  }
}

TEST(VariableRecordTest, DamageIsCorruption) {
  for (const char* text :
       {"", "[]", "{}", R"({"version": 1})", R"({"version": 0, "variables": {}})",
        R"({"version": 1, "variables": {"w": "temporary"}})",
        R"({"version": 1, "variables": {"w": 1}})",
        R"({"version": 1, "variables": {"": "parameter"}})",
        R"({"version": "1", "variables": {}})"}) {
    EXPECT_EQ(DecodeVariableRoles(text).status().code(), Code::kCorruption) << text;
  }
  EXPECT_EQ(DecodeVariableRoles(R"({"version": 2, "variables": {}})").status().code(),
            Code::kUnimplemented);
}

TEST(VariableRecordTest, EveryVariableHasAFileOfItsOwn) {
  std::set<std::string> files;
  const std::string long_name(300, 'x');
  int count = 0;
  for (const std::string& name :
       {std::string("a/b"), std::string("a%2Fb"), std::string("a%2fb"), std::string("."),
        std::string(".."), std::string("a.safetensors"), std::string("a"), std::string("A"),
        long_name, long_name + "y", std::string(200, 'x') + "/"}) {
    const std::string file = VariableFileName(name);
    EXPECT_LE(file.size(), 255u);
    EXPECT_EQ(file.find('/'), file.npos);
    EXPECT_NE(file[0], '.');
    files.insert(file);
    ++count;
  }
  EXPECT_EQ(files.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(VariableFileName("fc_0.w_0"), "fc_0.w_0.safetensors");
}

}  // namespace
}  // namespace cairn
