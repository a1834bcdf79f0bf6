// What a load must refuse, as a table: whatever does not fit, no variable in memory may change.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <cairn/io.h>
#include <cairn/scope.h>

#include "model/test_model.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

/// The file of the save that holds the most bytes.
std::string LargestFile(const SavedVars& saved) {
  std::string largest;
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(saved.info.path + "/__model__")) {
    if (entry.path().extension() != ".safetensors" || entry.file_size() <= bytes) continue;
    largest = entry.path();
    bytes = entry.file_size();
  }
  return largest;
}

/// Saves are read-only files; damage comes from below.
void Damage(const std::string& path, const std::function<void()>& how) {
  fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
  how();
}

struct MismatchCase {
  std::string name;
  std::function<void(Scope*)> build;  // the program that loads
  std::function<void(const SavedVars&)> damage;
  Code code = Code::kFailedPrecondition;
  std::string says;  // in the message
};

void PrintTo(const MismatchCase& c, std::ostream* out) { *out << c.name; }

/// The program of the save, with one variable declared otherwise (dtype and shape), or left out.
std::function<void(Scope*)> With(std::string name, std::string as, DType dtype,
                                 std::vector<std::uint64_t> shape) {
  return [=](Scope* scope) {
    Scope saved;
    BuildProgram(&saved);
    for (const Variable& v : saved.Vars()) {
      const bool changed = v.name == name;
      if (changed && as.empty()) continue;
      const std::string& declared = changed ? as : v.name;
      const auto declare = v.role == Role::kParameter     ? &Scope::Parameter
                           : v.role == Role::kPersistable ? &Scope::Persistable
                                                          : &Scope::Temporary;
      ASSERT_TRUE((scope->*declare)(declared, changed ? dtype : v.dtype, changed ? shape : v.shape,
                                    VariableOptions{})
                      .ok());
    }
  };
}

const std::function<void(Scope*)> kSame = [](Scope* scope) { BuildProgram(scope); };

const MismatchCase kCases[] = {
    {.name = "missing",
     .build =
         [](Scope* scope) {
           BuildProgram(scope);
           ASSERT_TRUE(scope->Parameter("extra.w", DType::kF32, {4}).ok());
         },
     .says = "extra.w"},
    {.name = "extra", .build = With("fc/b_velocity", "", DType::kF32, {}), .says = "fc/b_velocity"},
    {.name = "renamed_with_equal_shape",
     .build = With("fc/b", "fc/bias", DType::kF32, {4}),
     .says = "fc/bias"},
    {.name = "transposed_shape",
     .build = With("fc/w", "fc/w", DType::kF32, {4, 3}),
     .says = "fc/w: stored F32 [3,4], wanted F32 [4,3]"},
    {.name = "wider_layer",
     .build = With("out.w", "out.w", DType::kF32, {4, 3}),
     .says = "out.w: stored F32 [4,2], wanted F32 [4,3]"},
    {.name = "other_dtype",
     .build = With("fc/w", "fc/w", DType::kI32, {3, 4}),
     .says = "fc/w: stored F32 [3,4], wanted I32 [3,4]"},
    {.name = "half_precision",
     .build = With("fc/w", "fc/w", DType::kF16, {3, 4}),
     .says = "wanted F16 [3,4]"},
    {.name = "file_cut_by_40_bytes",
     .build = kSame,
     .damage =
         [](const SavedVars& saved) {
           const std::string file = LargestFile(saved);
           Damage(file, [&] { fs::resize_file(file, fs::file_size(file) - 40); });
         },
     .code = Code::kCorruption,
     .says = ".safetensors"},
    {.name = "flipped_byte",
     .build = kSame,
     .damage =
         [](const SavedVars& saved) {
           const std::string file = LargestFile(saved);
           Damage(file, [&] {
             std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
             stream.seekg(-1, std::ios::end);
             const char byte = static_cast<char>(stream.get());
             stream.seekp(-1, std::ios::end);
             stream.put(static_cast<char>(byte ^ 0x10));
           });
         },
     .code = Code::kCorruption,
     .says = ".safetensors"},
    {.name = "flipped_byte_in_the_manifest",
     .build = kSame,
     .damage =
         [](const SavedVars& saved) {
           const std::string file = saved.info.path + "/manifest.json";
           Damage(file, [&] {
             std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
             stream.seekp(100);
             stream.put('~');
           });
         },
     .code = Code::kCorruption},
    {.name = "file_gone",
     .build = kSame,
     .damage = [](const SavedVars& saved) { fs::remove(LargestFile(saved)); },
     .code = Code::kCorruption,
     .says = ".safetensors"},
    {.name = "weights_of_another_network_with_the_same_shapes",
     .build = [](Scope* scope) { BuildProgram(scope, "conv/"); },
     .says = "conv/w"},
    {.name = "another_optimizers_slots",
     .build =
         [](Scope* scope) { With("fc/w_velocity", "fc/w_moment1", DType::kF32, {3, 4})(scope); },
     .says = "fc/w_moment1"},
};

class MismatchMatrixTest : public ::testing::TestWithParam<std::tuple<MismatchCase, std::string>> {
};

TEST_P(MismatchMatrixTest, IsRefusedAndChangesNothing) {
  const auto& [c, filename] = GetParam();
  TempDirectory directory;
  Scope saved_scope;
  BuildProgram(&saved_scope);
  FillProgram(&saved_scope, 1);
  const SavedVars saved =
      SavePersistables(directory / "save", saved_scope, {.filename = filename}).value();
  if (c.damage) c.damage(saved);
  Scope scope;
  c.build(&scope);
  FillProgram(&scope, 200);
  const auto before = Memory(scope);
  MismatchReport mismatch;
  const Status refused =
      LoadPersistables(directory / "save", &scope, {.mismatch = &mismatch}).status();
  EXPECT_EQ(Memory(scope), before);
  EXPECT_EQ(refused.code(), c.code) << refused.ToString();
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(c.says));
  if (c.code == Code::kFailedPrecondition) {
    EXPECT_EQ(refused.reason(), Reason::kMismatch);
    EXPECT_FALSE(mismatch.missing.empty() && mismatch.unexpected.empty() &&
                 mismatch.mismatched.empty());
  }
  const std::vector<Variable> all = scope.Vars();
  for (const Variable& variable : all) EXPECT_FALSE(variable.loaded) << variable.name;
}

INSTANTIATE_TEST_SUITE_P(Matrix, MismatchMatrixTest,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values("", "one_file")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + (std::get<1>(info.param).empty()
                                                                      ? "_file_per_variable"
                                                                      : "_single_file");
                         });

}  // namespace
}  // namespace cairn
