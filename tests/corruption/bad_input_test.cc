// Input that users really give: the error is clear, and nothing is lost or left behind.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <cairn/checkpoint_manager.h>

namespace cairn {
namespace {

namespace fs = std::filesystem;

class BadInputTest : public testing::Test {
 protected:
  BadInputTest() {
    std::string name = (fs::temp_directory_path() / "cairn-input-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~BadInputTest() override { fs::remove_all(root_); }

  std::unique_ptr<CheckpointManager> Open() {
    auto manager = CheckpointManager::Open({.directory = (root_ / "repository").string()});
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return *std::move(manager);
  }
  Tensor Good(std::string name = "w") const {
    return {.name = std::move(name), .dtype = DType::kF32, .shape = {4}, .data = values_};
  }
  void ExpectRefused(CheckpointManager* manager, SaveRequest request, Code code,
                     const std::string& mentions) {
    request.blocking = true;
    auto saved = manager->Save(std::move(request));
    EXPECT_EQ(saved.status().code(), code) << saved.status().ToString();
    EXPECT_NE(saved.status().message().find(mentions), std::string_view::npos)
        << saved.status().ToString();
    auto infos = manager->List();
    ASSERT_TRUE(infos.ok());
    EXPECT_TRUE(infos->empty());
    for (const auto& entry : fs::directory_iterator(root_ / "repository")) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("checkpoint")) << entry.path();
    }
  }

  fs::path root_;
  float values_[4] = {1, 2, 3, 4};
};

TEST_F(BadInputTest, AFileWhereTheDirectoryShouldBe) {
  std::ofstream(root_ / "file") << "x";
  auto manager = CheckpointManager::Open({.directory = (root_ / "file").string()});
  EXPECT_EQ(manager.status().code(), Code::kInvalidArgument) << manager.status().ToString();
  EXPECT_NE(manager.status().message().find("file"), std::string_view::npos);
}

TEST_F(BadInputTest, AMissingDirectoryIsNotMadeByAReader) {
  auto manager =
      CheckpointManager::Open({.directory = (root_ / "nothing").string(), .read_only = true});
  EXPECT_EQ(manager.status().code(), Code::kNotFound) << manager.status().ToString();
  EXPECT_FALSE(fs::exists(root_ / "nothing"));
}

TEST_F(BadInputTest, AnEmptyNameAndADirectoryWithoutRepository) {
  EXPECT_EQ(CheckpointManager::Open({.directory = ""}).status().code(), Code::kInvalidArgument);
  auto reader = CheckpointManager::Open({.directory = root_.string(), .read_only = true});
  EXPECT_EQ(reader.status().code(), Code::kNotFound) << reader.status().ToString();
}

TEST_F(BadInputTest, OptionsThatContradictThemselves) {
  const std::string directory = (root_ / "r").string();
  EXPECT_FALSE(CheckpointManager::Open({.directory = directory, .rank = 2}).ok());
  EXPECT_FALSE(CheckpointManager::Open({.directory = directory, .world_size = 0}).ok());
  EXPECT_FALSE(
      CheckpointManager::Open({.directory = directory, .retention = {.keep_last = 0}}).ok());
  EXPECT_FALSE(
      CheckpointManager::Open({.directory = directory, .retention = {.keep_best = 2}}).ok());
  EXPECT_FALSE(
      CheckpointManager::Open({.directory = directory, .retention = {.keep_every = -1}}).ok());
  EXPECT_FALSE(fs::exists(directory)) << "refused options must leave nothing";
}

TEST_F(BadInputTest, BadTensorsAreRefusedByName) {
  auto manager = Open();
  Tensor no_data = Good("no_data");
  no_data.data = nullptr;
  ExpectRefused(manager.get(), {.step = 1, .tensors = {no_data}}, Code::kInvalidArgument,
                "no_data");
  ExpectRefused(manager.get(), {.step = 1, .tensors = {Good("twice"), Good("twice")}},
                Code::kInvalidArgument, "twice");
  ExpectRefused(manager.get(), {.step = 1, .tensors = {Good("")}}, Code::kInvalidArgument, "");
  ExpectRefused(manager.get(), {.step = 1, .tensors = {Good("bad \xff utf8")}},
                Code::kInvalidArgument, "UTF-8");
  Tensor huge = Good("huge");
  huge.shape = {~std::uint64_t{0}, 16};
  ExpectRefused(manager.get(), {.step = 1, .tensors = {huge}}, Code::kInvalidArgument, "huge");
  Tensor outside = Good("outside");
  outside.shard = ShardSpec{{5}, {3}};
  ExpectRefused(manager.get(), {.step = 1, .tensors = {outside}}, Code::kInvalidArgument,
                "outside");
  Tensor piece = Good("piece");
  piece.shard = ShardSpec{{piece.shape[0] + 2}, {0}};
  ExpectRefused(manager.get(), {.step = 1, .tensors = {piece}}, Code::kInvalidArgument,
                "array piece: its pieces hold");
  Tensor other = piece;
  other.shard = ShardSpec{{piece.shape[0] + 2}, {1}};
  ExpectRefused(manager.get(), {.step = 1, .tensors = {piece, other}}, Code::kInvalidArgument,
                "array piece");
  ExpectRefused(manager.get(), {.step = -1, .tensors = {Good()}}, Code::kInvalidArgument, "step");
}

TEST_F(BadInputTest, FileNamesThatLeaveTheDirectory) {
  auto manager = Open();
  for (const std::string name : {"../x", "/etc/x", "a//b", "", ".", "a/..", "new\nline"}) {
    ExpectRefused(manager.get(), {.step = 1, .files = {{.name = name, .bytes = "x"}}},
                  Code::kInvalidArgument, "");
  }
  ExpectRefused(manager.get(),
                {.step = 1, .files = {{.name = "x", .path = (root_ / "missing").string()}}},
                Code::kNotFound, "missing");
}

TEST_F(BadInputTest, OddNamesThatAreFineComeBack) {
  auto manager = Open();
  const std::vector<std::string> names = {std::string(10'000, 'n'),
                                          "später/層.weight",
                                          "a b\tc",
                                          "../dots",
                                          "quote\"back\\slash",
                                          "x@0"};
  SaveRequest request{.step = 1, .blocking = true};
  for (const std::string& name : names) request.tensors.push_back(Good(name));
  request.files = {{.name = "ünï/ço dé.txt", .bytes = "x"}};
  ASSERT_TRUE(manager->Save(request).ok());
  for (const std::string& name : names) {
    float out[4] = {};
    auto restored =
        manager->Restore({.into = {{.name = name, .dtype = DType::kF32, .shape = {4}, .data = out}},
                          .strict = false});
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ(out[3], 4.0f) << name.substr(0, 40);
  }
}

TEST_F(BadInputTest, EmptyScalarAndZeroSizeTensorsComeBack) {
  auto manager = Open();
  const double scalar = 2.5;
  ASSERT_TRUE(manager
                  ->Save({.step = 0,
                          .tensors = {{.name = "scalar", .dtype = DType::kF64, .data = &scalar},
                                      {.name = "none", .dtype = DType::kF32, .shape = {3, 0}}},
                          .blocking = true})
                  .ok());
  auto restored = manager->Restore({.allocate = true});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  ASSERT_EQ((*restored)->tensors.size(), 2u);
  ASSERT_TRUE(manager->Save({.step = 1, .blocking = true}).ok()) << "an empty state is a state";
}

TEST_F(BadInputTest, NonFiniteMetricsComeBack) {
  auto manager = Open();
  ASSERT_TRUE(manager
                  ->Save({.step = 1,
                          .tensors = {Good()},
                          .metrics = Value::Object{{"loss", std::nan("")}, {"x", -INFINITY}},
                          .metadata = Value::Object{{"lr", Value::List{INFINITY, "text"}}},
                          .blocking = true})
                  .ok());
  auto restored = manager->Restore({});
  ASSERT_TRUE(restored.ok());
  EXPECT_TRUE(std::isnan((*restored)->metrics.Find("loss")->AsDouble()));
  EXPECT_EQ((*restored)->metrics.Find("x")->AsDouble(), -INFINITY);
  EXPECT_EQ((*restored)->metadata, Value(Value::Object{{"lr", Value::List{INFINITY, "text"}}}));
}

TEST_F(BadInputTest, RestoreOfWhatIsNotThereSaysWhatIs) {
  auto manager = Open();
  ASSERT_TRUE(manager->Save({.step = 12, .tensors = {Good()}, .blocking = true}).ok());
  auto missing = manager->Restore({.step = 13});
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("12"), std::string_view::npos);
  EXPECT_EQ(manager->Restore({.id = "nonsense"}).status().code(), Code::kNotFound);
  EXPECT_EQ(manager->Restore({.path = root_.string()}).status().code(), Code::kNotFound);
  EXPECT_EQ(manager->Pin("nonsense").code(), Code::kNotFound);
  EXPECT_EQ(manager->Delete("nonsense").code(), Code::kNotFound);
}

TEST_F(BadInputTest, ASecondWriterIsToldWhoHoldsTheDirectory) {
  auto first = Open();
  auto second = CheckpointManager::Open({.directory = (root_ / "repository").string()});
  EXPECT_EQ(second.status().code(), Code::kUnavailable) << second.status().ToString();
  EXPECT_NE(second.status().message().find(std::to_string(getpid())), std::string_view::npos);
  ASSERT_TRUE(first->Close().ok());
  EXPECT_TRUE(CheckpointManager::Open({.directory = (root_ / "repository").string()}).ok());
}

TEST_F(BadInputTest, AForkedChildIsToldToOpenItsOwn) {
  auto manager = Open();
  const pid_t pid = fork();
  if (pid == 0) {
    const bool refused =
        manager->Save({.step = 1, .tensors = {Good()}}).status().Is(Code::kFailedPrecondition);
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(manager->Save({.step = 1, .tensors = {Good()}, .blocking = true}).ok());
}

TEST_F(BadInputTest, ADirectoryWithoutPermissionIsNamed) {
  if (geteuid() == 0) {
    // Root may do everything: try as nobody in a child.
    const pid_t pid = fork();
    if (pid == 0) {
      chmod(root_.c_str(), 0755);
      if (setuid(65534) != 0) _exit(2);
      auto manager = CheckpointManager::Open({.directory = (root_ / "repository").string()});
      _exit(manager.status().Is(Code::kPermissionDenied) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
    return;
  }
  chmod(root_.c_str(), 0555);
  auto manager = CheckpointManager::Open({.directory = (root_ / "repository").string()});
  chmod(root_.c_str(), 0755);
  EXPECT_EQ(manager.status().code(), Code::kPermissionDenied) << manager.status().ToString();
}

}  // namespace
}  // namespace cairn
