// Wherever the C++ API takes a directory it takes a URL: on a real S3 server, a real HDFS, and as
// file://. Nothing is made on this machine instead.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/core.h>
#include <cairn/io.h>
#include <cairn/session.h>
#include <cairn/trainer.h>
#include <cairn/transfer.h>

#include "storage/local/temp_directory.h"
#include "storage/s3/test_s3_server.h"
#include "storage/webhdfs/test_hdfs_server.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

namespace fs = std::filesystem;

class PlacesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    if (kind == "s3") {
      TestS3Server* server = TestS3Server::Get();
      ASSERT_NE(server, nullptr);
      for (const auto& [name, value] : server->Variables()) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      url_ = "s3://" + server->NewBucket() + "/runs";
    } else if (kind == "hdfs") {
      const auto server = TestHdfsServer::Shared();
      ASSERT_TRUE(server.ok()) << server.status().ToString();
      url_ = (*server)->FreshUrl();
    } else {
      url_ = "file://" + (outside_ / "runs%20here");
    }
    before_ = fs::current_path();
    fs::current_path(here_.path());  // where a path of that name would be made
  }
  void TearDown() override {
    fs::current_path(before_);
    EXPECT_TRUE(fs::is_empty(here_.path())) << *fs::directory_iterator(here_.path());
    EXPECT_FALSE(fs::exists(outside_ / "runs%20here"));
  }

  std::string url_;
  TempDirectory here_;
  TempDirectory outside_;
  fs::path before_;
};

TEST_P(PlacesTest, ManagersAndTools) {
  std::vector<float> w = {1, 2, 3};
  const Tensor tensor{.name = "w", .dtype = DType::kF32, .shape = {3}, .data = w.data()};
  {
    auto manager = CheckpointManager::Open({.directory = url_ + "/a"}).value();
    ASSERT_TRUE(manager->Save({.step = 1, .tensors = {tensor}, .blocking = true}).ok());
    ASSERT_TRUE(manager->Close().ok());
  }
  EXPECT_TRUE(Verify(url_ + "/a", /*deep=*/true)->problems.empty());
  ASSERT_TRUE(CopyCheckpoints({.source = url_ + "/a", .target = url_ + "/b"}).ok());
  auto copied = CheckpointManager::Open({.directory = url_ + "/b", .read_only = true}).value();
  const auto exported = ExportCheckpoint((*copied->Latest())->path, url_ + "/plain");
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  ImportRequest import{.source = url_ + "/plain", .directory = url_ + "/c"};
  import.step = 4;
  const auto imported = ImportCheckpoint(import);
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  EXPECT_TRUE(CollectGarbage(url_ + "/c").ok());

  auto reader = CheckpointManager::Open({.directory = url_ + "/c", .read_only = true}).value();
  std::vector<float> read(3);
  RestoreRequest request;
  request.into = {{.name = "w", .dtype = DType::kF32, .shape = {3}, .data = read.data()}};
  const auto restored = reader->Restore(std::move(request));
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->info.step, 4);
  EXPECT_EQ(read, w);
}

TEST_P(PlacesTest, ToolsRefuseWhileAWriterLives) {
  std::vector<float> w = {1, 2, 3};
  const Tensor tensor{.name = "w", .dtype = DType::kF32, .shape = {3}, .data = w.data()};
  const auto save = [&](CheckpointManager* manager, std::int64_t step) {
    return manager->Save({.step = step, .tensors = {tensor}, .blocking = true}).status();
  };
  auto other = CheckpointManager::Open({.directory = url_ + "/other"}).value();
  ASSERT_TRUE(save(other.get(), 1).ok());
  ASSERT_TRUE(ExportCheckpoint((*other->Latest())->path, outside_ / "plain").ok());
  auto writer = CheckpointManager::Open({.directory = url_ + "/a"}).value();
  ASSERT_TRUE(save(writer.get(), 1).ok());
  const auto import = [&](bool takeover) {
    ImportRequest request{.source = outside_ / "plain", .directory = url_ + "/a"};
    request.step = 7;
    request.takeover = takeover;
    return ImportCheckpoint(request).status();
  };
  CopyRequest copy{.source = url_ + "/other", .target = url_ + "/a"};
  copy.adopt = true;
  for (const Status& refused :
       {CollectGarbage(url_ + "/a").status(), import(false), CopyCheckpoints(copy).status()}) {
    EXPECT_EQ(refused.code(), Code::kUnavailable) << refused.ToString();
    EXPECT_THAT(refused.ToString(), HasSubstr(std::to_string(getpid())));
    EXPECT_THAT(refused.ToString(), HasSubstr("--takeover"));
  }
  EXPECT_TRUE(save(writer.get(), 2).ok()) << "the tools took nothing from it";
  EXPECT_TRUE(import(true).ok());
  EXPECT_EQ(save(writer.get(), 3).code(), Code::kAborted);
  writer.reset();
  EXPECT_TRUE(CollectGarbage(url_ + "/a").ok()) << "the import has ended";
  auto closed = CheckpointManager::Open({.directory = url_ + "/a", .takeover = true}).value();
  ASSERT_TRUE(closed->Close().ok());
  EXPECT_TRUE(CollectGarbage(url_ + "/a").ok());
}

TEST_P(PlacesTest, TrainersResume) {
  const auto train = [&](std::int64_t epochs) {
    double sum = 0;
    TrainerOptions options;
    options.model = {{.name = "sum", .dtype = DType::kF64, .shape = {}, .data = &sum}};
    options.checkpoint_config = CheckpointConfig{.checkpoint_dir = url_, .step_interval = 1};
    auto trainer = Trainer::Open(std::move(options));
    EXPECT_TRUE(trainer.ok()) << trainer.status().ToString();
    ShuffledIndices reader({.size = 5});
    const auto result = (*trainer)->Train(epochs, reader, [&](const std::vector<std::uint64_t>& b) {
      sum += static_cast<double>(b[0] + 1);
    });
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return sum;
  };
  EXPECT_EQ(train(1), 15);
  EXPECT_EQ(train(2), 30);
}

TEST_P(PlacesTest, SessionsResume) {
  const auto train = [&](std::int64_t steps) {
    float count = 0;
    SessionOptions options;
    options.checkpoint_dir = url_;
    options.variables = {{.name = "count", .dtype = DType::kF32, .shape = {}, .data = &count}};
    auto session = TrainingSession::Open(std::move(options));
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    while ((*session)->global_step() < steps) {
      EXPECT_TRUE((*session)
                      ->Run([&](std::int64_t) {
                        ++count;
                        return Status::Ok();
                      })
                      .ok());
    }
    EXPECT_TRUE((*session)->Close().ok());
    return count;
  };
  EXPECT_EQ(train(3), 3);
  EXPECT_EQ(train(5), 5);
}

TEST_P(PlacesTest, VariablesByRoleAndFilesOfOthers) {
  Scope scope;
  ASSERT_TRUE(scope.Parameter("fc/w", DType::kF32, {2}).ok());
  const std::span<float> w = scope.Values<float>("fc/w").value();
  w[0] = 4, w[1] = 5;
  ASSERT_TRUE(SaveParams(url_ + "/saved", scope, {.filename = "all"}).ok());
  w[0] = w[1] = 0;
  const auto loaded = LoadParams(url_ + "/saved", &scope);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_THAT(w, ElementsAre(4, 5));

  const auto exported = ExportCheckpoint(loaded->info.path, url_ + "/plain");
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  for (const std::string& path : {url_ + "/plain", url_ + "/plain/model.safetensors"}) {
    const auto tensors = ReadForeign({.path = path});
    ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
    ASSERT_THAT(*tensors, SizeIs(1));
    EXPECT_EQ((*tensors)[0].name, "fc/w");
    w[0] = w[1] = 0;
    ASSERT_TRUE(LoadParams(path, &scope).ok());
    EXPECT_THAT(w, ElementsAre(4, 5));
  }
  w[0] = w[1] = 0;
  ASSERT_TRUE(LoadParams(url_ + "/plain", &scope, {.filename = "model.safetensors"}).ok());
  EXPECT_THAT(w, ElementsAre(4, 5));
  const Status missing = LoadParams(url_ + "/nothing", &scope).status();
  EXPECT_TRUE(missing.Is(Code::kNotFound)) << missing.ToString();
  EXPECT_THAT(missing.ToString(), HasSubstr("nothing"));
}

TEST_P(PlacesTest, TheCoreApiWithoutAMaster) {
  const Value metadata = Value::Object{{"steps_completed", 5}};
  std::string id;
  {
    auto context = core::Init({.storage = url_, .watch_signals = false});
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    const auto stored = (*context)->StorePath(metadata, [](const std::string& path) {
      std::ofstream(path + "/x") << "five";
      return Status::Ok();
    });
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    id = *stored;
    ASSERT_TRUE((*context)->Close().ok());
  }
  auto context = core::Init({.storage = url_, .watch_signals = false}).value();
  EXPECT_EQ(context->latest_checkpoint(), id);
  std::string read;
  const Status restored = context->RestorePath(id, [&](const std::string& path) {
    std::ifstream(path + "/x") >> read;
    return Status::Ok();
  });
  EXPECT_TRUE(restored.ok()) << restored.ToString();
  EXPECT_EQ(read, "five");
  EXPECT_TRUE(context->Download(id, outside_ / "fetched").ok());
  if (GetParam() != "file") {
    const Status refused = context->Download(id, url_ + "/fetched");
    EXPECT_TRUE(refused.Is(Code::kInvalidArgument)) << refused.ToString();
    EXPECT_THAT(refused.ToString(), HasSubstr("not on this machine"));
  }
  ASSERT_TRUE(context->Close().ok());
}

INSTANTIATE_TEST_SUITE_P(Stores, PlacesTest, ::testing::Values("s3", "hdfs", "file"),
                         [](const auto& info) { return info.param; });

TEST(BrokenUrl, IsRefusedAndMakesNoDirectory) {
  const TempDirectory here;
  const fs::path before = fs::current_path();
  fs::current_path(here.path());
  const std::string where = "s3:/bucket/runs";
  Scope scope;
  ASSERT_TRUE(scope.Parameter("w", DType::kF32, {2}).ok());
  const std::vector<Status> refused = {
      CheckpointManager::Open({.directory = where}).status(),
      Trainer::Open({.checkpoint_config = CheckpointConfig{.checkpoint_dir = where}}).status(),
      TrainingSession::Open({.checkpoint_dir = where}).status(),
      SaveParams(where, scope).status(),
      core::Init({.storage = where, .watch_signals = false}).status(),
  };
  for (const Status& status : refused) {
    EXPECT_TRUE(status.Is(Code::kInvalidArgument)) << status.ToString();
    EXPECT_THAT(status.ToString(), HasSubstr("one slash too few"));
  }
  fs::current_path(before);
  EXPECT_TRUE(fs::is_empty(here.path()));
}

}  // namespace
}  // namespace cairn
