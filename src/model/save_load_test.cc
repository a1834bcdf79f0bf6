#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <cairn/io.h>
#include <cairn/scope.h>

#include "model/test_model.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class SaveLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BuildProgram(&scope_);
    FillProgram(&scope_, 1);
    BuildProgram(&other_);
    FillProgram(&other_, 100);
  }
  std::vector<std::string> DataFiles(const std::string& checkpoint) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoint + "/__model__")) {
      if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempDirectory directory_;
  const std::string path_ = directory_ / "save";
  Scope scope_;
  Scope other_;
};

TEST_F(SaveLoadTest, PersistablesComeBackWithoutTemporaries) {
  const SavedVars saved = SavePersistables(path_, scope_).value();
  EXPECT_THAT(saved.names,
              ElementsAre("fc/b", "fc/b_velocity", "fc/w", "fc/w_velocity", "out.w", "step"));
  EXPECT_EQ(saved.bytes, 48 + 16 + 32 + 48 + 16 + 8u);
  const auto hidden = Memory(other_)["hidden"];
  const LoadedVars loaded = LoadPersistables(path_, &other_).value();
  EXPECT_EQ(loaded.bytes, saved.bytes);
  EXPECT_THAT(loaded.skipped, IsEmpty());
  auto expected = Memory(scope_);
  expected["hidden"] = hidden;
  EXPECT_EQ(Memory(other_), expected);
}

TEST_F(SaveLoadTest, AFilePerVariableIsCalledAsTheVariable) {
  const SavedVars saved = SaveParams(path_, scope_).value();
  EXPECT_THAT(DataFiles(saved.info.path),
              ElementsAre("fc%2Fb.safetensors", "fc%2Fw.safetensors", "out.w.safetensors"));
  EXPECT_TRUE(Verify(path_, /*deep=*/true).value().ok());
}

TEST_F(SaveLoadTest, ASingleFileHoldsAllVariables) {
  const SavedVars saved = SavePersistables(path_, scope_, {.filename = "all"}).value();
  EXPECT_THAT(DataFiles(saved.info.path), ElementsAre("all.safetensors"));
  ASSERT_TRUE(LoadPersistables(path_, &other_).ok());
  EXPECT_EQ(Memory(other_)["fc/w"], Memory(scope_)["fc/w"]);
  EXPECT_TRUE(Verify(path_, /*deep=*/true).value().ok());
}

TEST_F(SaveLoadTest, ABadFileNameIsRefusedBeforeADirectoryIsMade) {
  using std::string_literals::operator""s;
  for (const std::string& name : {"a/b"s, "../x"s, ".hidden"s, "\xff"s, "a\0b"s, "a\nb"s}) {
    EXPECT_EQ(SaveParams(path_, scope_, {.filename = name}).status().code(),
              Code::kInvalidArgument);
  }
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(SaveLoadTest, NamesThatFilesCannotHaveAreKept) {
  Scope odd;
  const std::string long_name(500, 'x');
  for (const std::string& name :
       {std::string(".."), std::string("/"), std::string("a\nb"), std::string("ü%2F"), long_name,
        long_name + "y", std::string("a.safetensors"), std::string("__metadata")}) {
    ASSERT_TRUE(odd.Parameter(name, DType::kU8, {3}).ok());
  }
  FillProgram(&odd, 9);
  const auto before = Memory(odd);
  ASSERT_TRUE(SaveParams(path_, odd).ok());
  FillProgram(&odd, 77);
  const auto loaded = LoadParams(path_, &odd);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(Memory(odd), before);
}

TEST_F(SaveLoadTest, ParametersComeOutOfASaveOfPersistables) {
  ASSERT_TRUE(SavePersistables(path_, scope_).ok());
  const auto before = Memory(other_);
  const LoadedVars loaded = LoadParams(path_, &other_).value();
  EXPECT_THAT(loaded.names, ::testing::UnorderedElementsAre("fc/b", "fc/w", "out.w"));
  EXPECT_THAT(loaded.skipped, Contains(Pair("step", "not a parameter")));
  EXPECT_EQ(Memory(other_)["fc/w"], Memory(scope_)["fc/w"]);
  EXPECT_EQ(Memory(other_)["fc/w_velocity"], before.at("fc/w_velocity"));
}

TEST_F(SaveLoadTest, PersistablesDoNotComeOutOfASaveOfParameters) {
  ASSERT_TRUE(SaveParams(path_, scope_).ok());
  const auto before = Memory(other_);
  MismatchReport mismatch;
  const Status refused = LoadPersistables(path_, &other_, {.mismatch = &mismatch}).status();
  EXPECT_EQ(refused.reason(), Reason::kMismatch);
  EXPECT_THAT(mismatch.missing, ElementsAre("fc/b_velocity", "fc/w_velocity", "step"));
  EXPECT_EQ(Memory(other_), before);
}

TEST_F(SaveLoadTest, ASelectionIsLoadedOutOfALargerSave) {
  ASSERT_TRUE(SavePersistables(path_, scope_).ok());
  const LoadedVars loaded =
      LoadVars(path_, &other_, [](const Variable& v) { return v.name == "step"; },
               {.stored = StoredVars::kAsked})
          .value();
  EXPECT_THAT(loaded.names, ElementsAre("step"));
}

TEST_F(SaveLoadTest, AnEmptySelectionIsAnError) {
  const auto nothing = [](const Variable&) { return false; };
  EXPECT_EQ(SaveVars(path_, scope_, nothing).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(fs::exists(path_));
  ASSERT_TRUE(SaveParams(path_, scope_).ok());
  EXPECT_EQ(LoadVars(path_, &scope_, nothing).status().code(), Code::kInvalidArgument);
  Scope empty;
  EXPECT_EQ(SaveParams(directory_ / "none", empty).status().code(), Code::kInvalidArgument);
}

TEST_F(SaveLoadTest, ATemporaryIsNotSaved) {
  const Status refused = SaveVars(path_, SelectVars(scope_)).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("hidden"));
}

TEST_F(SaveLoadTest, TheOrderOfVariablesDoesNotMatter) {
  ASSERT_TRUE(SaveParams(path_, scope_, {.filename = "one"}).ok());
  Scope reordered;
  ASSERT_TRUE(reordered.Parameter("out.w", DType::kF32, {4, 2}).ok());
  ASSERT_TRUE(reordered.Parameter("fc/w", DType::kF32, {3, 4}).ok());
  ASSERT_TRUE(reordered.Parameter("fc/b", DType::kF32, {4}).ok());
  ASSERT_TRUE(LoadParams(path_, &reordered).ok());
  EXPECT_EQ(Memory(reordered)["fc/b"], Memory(scope_)["fc/b"]);
}

TEST_F(SaveLoadTest, RenameSkipAndLenientLoadsAreReported) {
  ASSERT_TRUE(SaveParams(path_, scope_).ok());
  Scope changed;
  ASSERT_TRUE(changed.Parameter("layer/w", DType::kF32, {3, 4}).ok());
  ASSERT_TRUE(changed.Parameter("fc/b", DType::kF32, {4}).ok());
  ASSERT_TRUE(changed.Parameter("out.w", DType::kF32, {4, 10}).ok());  // a new head
  const auto before = Memory(changed);
  EXPECT_EQ(LoadParams(path_, &changed).status().reason(), Reason::kMismatch);
  const LoadedVars loaded =
      LoadParams(path_, &changed, {.rename = {{"fc/w", "layer/w"}}, .skip = {"out.w"}}).value();
  EXPECT_THAT(loaded.names, ::testing::UnorderedElementsAre("fc/b", "layer/w"));
  EXPECT_THAT(loaded.skipped, Contains(Pair("out.w", "left alone, as asked for")));
  EXPECT_EQ(Memory(changed)["layer/w"], Memory(scope_)["fc/w"]);
  EXPECT_EQ(Memory(changed)["out.w"], before.at("out.w"));

  const LoadedVars lenient = LoadParams(path_, &changed, {.strict = false}).value();
  EXPECT_THAT(lenient.names, ElementsAre("fc/b"));
  EXPECT_THAT(lenient.skipped, Contains(Pair("layer/w", "not in the checkpoint")));
  EXPECT_THAT(lenient.skipped, Contains(Pair("out.w", HasSubstr("wanted F32 [4,10]"))));

  EXPECT_EQ(LoadParams(path_, &changed, {.rename = {{"fc/w", "typo"}}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(LoadParams(path_, &changed, {.rename = {{"typo", "layer/w"}}}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(LoadParams(path_, &scope_, {.skip = {"fc/W"}}).status().code(), Code::kInvalidArgument);
}

TEST_F(SaveLoadTest, ALenientLoadOfNothingIsAnError) {
  ASSERT_TRUE(SaveParams(path_, scope_).ok());
  Scope strange;
  ASSERT_TRUE(strange.Parameter("strange", DType::kF32, {1}).ok());
  EXPECT_EQ(LoadParams(path_, &strange, {.strict = false}).status().reason(), Reason::kMismatch);
}

TEST_F(SaveLoadTest, ASaveReplacesTheOneBefore) {
  const SavedVars first = SaveParams(path_, scope_).value();
  FillProgram(&scope_, 50);
  const SavedVars second = SavePersistables(path_, scope_).value();
  EXPECT_FALSE(fs::exists(first.info.path + "/manifest.json"));
  EXPECT_EQ(second.info.parent, first.info.id);
  ASSERT_TRUE(LoadPersistables(path_, &other_).ok());
  EXPECT_EQ(Memory(other_)["fc/w"], Memory(scope_)["fc/w"]);
}

TEST_F(SaveLoadTest, ASaveThatIsReplacedWhileItIsReadIsLoadedAsItIsThen) {
  ASSERT_TRUE(SavePersistables(path_, scope_).ok());
  const std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const auto saved = SavePersistables(path_, scope_);
      ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    }
  });
  for (int i = 0; i < 40; ++i) {
    const auto loaded = LoadPersistables(path_, &other_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  }
}

TEST_F(SaveLoadTest, AJobsCheckpointsAreNotReplaced) {
  auto manager = CheckpointManager::Open({.directory = path_}).value();
  const double one = 1;
  const auto save = [&](std::int64_t step) {
    return manager
        ->Save({.step = step,
                .tensors = {{.name = "x", .dtype = DType::kF64, .shape = {}, .data = &one}},
                .blocking = true})
        .status();
  };
  ASSERT_TRUE(save(3).ok());
  const Status beside = SaveParams(path_, scope_).status();
  EXPECT_EQ(beside.code(), Code::kInvalidArgument) << beside.ToString();
  ASSERT_TRUE(save(4).ok()) << "it was not fenced out";
  ASSERT_TRUE(manager->Close().ok());
  const Status refused = SaveParams(path_, scope_).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("step 3"));
  // Its variables can be loaded.
  Scope reader;
  ASSERT_TRUE(reader.Parameter("x", DType::kF64, {}).ok());
  ASSERT_TRUE(LoadParams(path_, &reader).ok());
  EXPECT_EQ(reader.Values<double>("x").value()[0], 1);
}

TEST_F(SaveLoadTest, OneCheckpointsDirectoryCanBeNamed) {
  const SavedVars saved = SaveParams(path_, scope_).value();
  ASSERT_TRUE(LoadParams(saved.info.path, &other_).ok());
  EXPECT_EQ(Memory(other_)["fc/w"], Memory(scope_)["fc/w"]);
}

TEST_F(SaveLoadTest, AFrozenScopeIsNotLoadedInto) {
  ASSERT_TRUE(SaveParams(path_, scope_).ok());
  const std::unique_ptr<Scope> frozen = other_.Clone(true).value();
  EXPECT_EQ(LoadParams(path_, frozen.get()).status().code(), Code::kFailedPrecondition);
  const auto before = Memory(other_);
  const auto parameters = [](const Variable& v) { return v.role == Role::kParameter; };
  const Status views = LoadVars(path_, SelectVars(*frozen, parameters)).status();
  EXPECT_EQ(views.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(views.message()), HasSubstr("frozen"));
  EXPECT_EQ(Memory(other_), before) << "what it was cloned from is as it was";
  EXPECT_TRUE(LoadVars(path_, SelectVars(other_, parameters)).ok());
  EXPECT_TRUE(SaveParams(directory_ / "from_frozen", *frozen).ok()) << "saving one is fine";
}

TEST_F(SaveLoadTest, LoadedVariablesAreNotInitialisedAfterwards) {
  Scope fresh;
  const VariableOptions zero{.initializer = VariableInitializer::Constant(0)};
  ASSERT_TRUE(fresh.Parameter("w", DType::kF32, {1}, zero).ok());
  ASSERT_TRUE(SaveParams(path_, fresh).ok());
  ASSERT_TRUE(fresh.Initialize(1).ok());
  ASSERT_TRUE(LoadParams(path_, &fresh).ok());
  EXPECT_EQ(fresh.Initialize(1).code(), Code::kFailedPrecondition);
}

TEST_F(SaveLoadTest, ADirectoryThatIsNotThereIsNamed) {
  const Status missing = LoadParams(directory_ / "nowhere", &scope_).status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace cairn
