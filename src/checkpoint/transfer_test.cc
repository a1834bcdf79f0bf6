#include "checkpoint/transfer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/ids.h"
#include "checkpoint/test_transfer.h"
#include "format/records.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// The hidden directory of an export of that machine.
std::string OfExport(const std::string& host) {
  return ".cairn-tmp-export-" + host + "-" + IdSource::System()->NewUuid();
}

TEST_F(TransferTest, ExportGivesAPlainDirectory) {
  const CheckpointInfo info = Save("a", 40);
  auto report = ExportCheckpoint(info.path, Path("out"));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Names(Path("out")), UnorderedElementsAre("model.safetensors", "config.json",
                                                       "model.safetensors.index.json"));
  EXPECT_THAT(report->left_out,
              UnorderedElementsAre("rank_0/state.json", "rank_0/state.safetensors"));
  EXPECT_EQ(report->tensors, 2u);
  const auto tensors = ReadSafetensors(Path("out/model.safetensors"));
  EXPECT_EQ(tensors.at("weights"), SavedState(40).weights);
  EXPECT_EQ(tensors.at("frozen"), SavedState(40).frozen);
  EXPECT_EQ(Read(Path("out/config.json")), "{\"step\": 40}");
  const auto index = DecodeSafetensorsIndex(Read(Path("out/model.safetensors.index.json"))).value();
  EXPECT_EQ(index.files.at("weights"), "model.safetensors");
  EXPECT_THAT(Names(directory_.path()), UnorderedElementsAre("a", "out"));
}

TEST_F(TransferTest, ExportRefusesWhatIsThereAndTakesAnEmptyDirectory) {
  const CheckpointInfo info = Save("a", 40);
  Write(Path("full/file"), "mine");
  auto refused = ExportCheckpoint(info.path, Path("full"));
  EXPECT_EQ(refused.status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Read(Path("full/file")), "mine");
  Write(Path("file"), "mine");
  EXPECT_EQ(ExportCheckpoint(info.path, Path("file")).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(ExportCheckpoint(info.path, Path("no/parent")).status().code(), Code::kNotFound);
  fs::create_directory(Path("empty"));
  EXPECT_TRUE(ExportCheckpoint(info.path, Path("empty/")).ok());
  EXPECT_THAT(Names(directory_.path()), UnorderedElementsAre("a", "empty", "file", "full"));
}

TEST_F(TransferTest, AnExportRemovesWhatAKilledOneLeftBesideIt) {
  const CheckpointInfo info = Save("a", 40);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const std::string killed = OfExport(host);
  const std::string living = OfExport(host);
  Write(Path(killed + "/model.safetensors"), "half");
  Write(Path(living + "/model.safetensors"), "half");
  const int lock = open(Path(living).c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);  // as an export does until its end
  ASSERT_TRUE(ExportCheckpoint(info.path, Path("out")).ok());
  EXPECT_THAT(Names(directory_.path()), UnorderedElementsAre("a", "out", living));
  close(lock);
  ASSERT_TRUE(ExportCheckpoint(info.path, Path("again")).ok());
  EXPECT_THAT(Names(directory_.path()), UnorderedElementsAre("a", "out", "again"));
}

TEST_F(TransferTest, AnExportLeavesWhatIsNotOfAnExportOfThisMachine) {
  const CheckpointInfo info = Save("a", 40);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  // On a disk of several machines another one's lock may not be seen.
  const std::string of_another = OfExport("another-machine");
  const std::string of_longer = OfExport(std::string(host) + "-2");
  const std::string link = OfExport(host);
  const std::string file = OfExport(host);
  for (const std::string& name :
       {of_another, of_longer, std::string(".cairn-tmp-export-mine"), std::string("elsewhere")}) {
    Write(Path(name + "/file"), "mine");
  }
  fs::create_directory_symlink(Path("elsewhere"), Path(link));
  Write(Path(file), "mine");
  ASSERT_TRUE(ExportCheckpoint(info.path, Path("out")).ok());
  EXPECT_THAT(Names(directory_.path()),
              UnorderedElementsAre("a", "out", "elsewhere", of_another, of_longer, link, file,
                                   ".cairn-tmp-export-mine"));
  EXPECT_EQ(Read(Path("elsewhere/file")), "mine");
}

TEST_F(TransferTest, AFailedExportLeavesNothing) {
  const CheckpointInfo info = Save("a", 40);
  auto cancelled = ExportCheckpoint(info.path, Path("out"), {.cancelled = [] { return true; }});
  EXPECT_EQ(cancelled.status().code(), Code::kCancelled);
  const std::string data = info.path + "/__model__/rank_0-00001.safetensors";
  std::string bytes = Read(data);
  bytes[9000] ^= 4;
  Write(data, bytes);
  EXPECT_EQ(ExportCheckpoint(info.path, Path("out")).status().code(), Code::kCorruption);
  EXPECT_THAT(Names(directory_.path()), ElementsAre("a"));
}

TEST_F(TransferTest, ImportOfAnExportRestoresTheSame) {
  const CheckpointInfo info = Save("a", 40);
  ASSERT_TRUE(ExportCheckpoint(info.path, Path("out")).ok());
  Write(Path("out/sub/vocab.txt"), "words");
  Write(Path("out/.hidden"), "no");
  std::uint64_t done = 0;
  std::uint64_t total = 1;
  auto report = ImportCheckpoint(
      {.source = Path("out"), .directory = Path("b"), .step = 7},
      {.progress = [&](std::uint64_t now, std::uint64_t all) { done = now, total = all; }});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(done, total);
  EXPECT_EQ(report->info.step, 7);
  EXPECT_THAT(report->files, ElementsAre("config.json", "sub/vocab.txt"));
  auto manager = Reader("b");
  const auto tensors = RestoreAll(manager.get());
  EXPECT_EQ(tensors.at("weights"), SavedState(40).weights);
  EXPECT_EQ(Read(report->info.path + "/files/sub/vocab.txt"), "words");
}

TEST_F(TransferTest, ImportFollowsTheIndexAndSaysWhatItSkipped) {
  WriteSafetensors(Path("hf/model-00001-of-00002.safetensors"), {{"a", Numbers(10, 1)}});
  WriteSafetensors(Path("hf/model-00002-of-00002.safetensors"), {{"b", Numbers(20, 2)}});
  WriteSafetensors(Path("hf/consolidated.safetensors"),
                   {{"a", Numbers(10, 1)}, {"b", Numbers(20, 2)}});
  SafetensorsIndex index;
  index.files = {{"a", "model-00001-of-00002.safetensors"},
                 {"b", "model-00002-of-00002.safetensors"}};
  Write(Path("hf/model.safetensors.index.json"), EncodeSafetensorsIndex(index));
  Write(Path("hf/config.json"), "{}");
  auto report =
      ImportCheckpoint({.source = Path("hf"), .directory = Path("b"), .step = 0, .files = false});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->tensors, 2u);
  EXPECT_THAT(report->files, IsEmpty());
  EXPECT_THAT(report->skipped, testing::Contains(testing::Key("consolidated.safetensors")));
  auto manager = Reader("b");
  EXPECT_EQ(RestoreAll(manager.get()).at("b"), Numbers(20, 2));

  fs::remove(Path("hf/model-00002-of-00002.safetensors"));
  auto broken = ImportCheckpoint({.source = Path("hf"), .directory = Path("c"), .step = 0});
  EXPECT_EQ(broken.status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(Path("c")));
  fs::remove(Path("hf/model.safetensors.index.json"));
  auto doubled = ImportCheckpoint({.source = Path("hf"), .directory = Path("c"), .step = 0});
  EXPECT_EQ(doubled.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(std::string(doubled.status().message()), HasSubstr("\"a\""));
  EXPECT_FALSE(fs::exists(Path("c")));
}

TEST_F(TransferTest, ImportRefusesWhatIsNotSafetensorsAndMakesNothing) {
  Write(Path("short.safetensors"), "abc");
  Write(Path("text.safetensors"), "this is no safetensors file at all, is it?");
  const auto refuse = [&](const std::string& source) {
    auto report = ImportCheckpoint({.source = source, .directory = Path("new"), .step = 0});
    EXPECT_FALSE(fs::exists(Path("new"))) << source;
    return report.status();
  };
  EXPECT_EQ(refuse(Path("short.safetensors")).code(), Code::kCorruption);
  EXPECT_EQ(refuse(Path("text.safetensors")).code(), Code::kCorruption);
  EXPECT_EQ(refuse(Path("missing")).code(), Code::kNotFound);
  fs::create_directory(Path("empty"));
  EXPECT_EQ(refuse(Path("empty")).code(), Code::kNotFound);
  EXPECT_EQ(refuse("").code(), Code::kInvalidArgument);
  const CheckpointInfo info = Save("a", 40);
  EXPECT_THAT(std::string(refuse(Path("a")).message()), HasSubstr("copy"));
  EXPECT_THAT(std::string(refuse(info.path).message()), HasSubstr("copy"));
  WriteSafetensors(Path("good.safetensors"), {{"a", Numbers(1, 1)}});
  EXPECT_EQ(
      ImportCheckpoint({.source = Path("good.safetensors"), .directory = Path("new"), .step = -1})
          .status()
          .code(),
      Code::kInvalidArgument);
}

TEST_F(TransferTest, ToolsThatWriteRefuseWhileAWriterLives) {
  Save("a", 10);
  WriteSafetensors(Path("m.safetensors"), {{"a", Numbers(1, 1)}});
  auto writer = CheckpointManager::Open({.directory = Path("b")});
  ASSERT_TRUE(writer.ok());
  const Status imported =
      ImportCheckpoint({.source = Path("m.safetensors"), .directory = Path("b"), .step = 0})
          .status();
  EXPECT_EQ(imported.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(imported.message()), HasSubstr(std::to_string(getpid())));
  EXPECT_EQ(
      CopyCheckpoints({.source = Path("a"), .target = Path("b"), .adopt = true}).status().code(),
      Code::kUnavailable);
  EXPECT_EQ(CollectGarbage(Path("b")).status().code(), Code::kUnavailable);
  // The tools took nothing from the writer.
  EXPECT_TRUE((*writer)->Save({.step = 1, .blocking = true}).ok());
}

TEST_F(TransferTest, CopyRefusesItselfAndMakesNothingWithoutASource) {
  Save("a", 10);
  EXPECT_EQ(CopyCheckpoints({.source = Path("a"), .target = Path("./a")}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(CopyCheckpoints({.source = Path("x"), .target = Path("b")}).status().code(),
            Code::kNotFound);
  EXPECT_EQ(CopyCheckpoints({.source = Path("a"), .target = Path("b"), .choices = {{.step = 5}}})
                .status()
                .code(),
            Code::kNotFound);
  EXPECT_FALSE(fs::exists(Path("b")));
}

TEST_F(TransferTest, GcSweepsLeftoversAndSaysWhatWent) {
  Save("a", 10);
  auto nothing = CollectGarbage(Path("a"));
  ASSERT_TRUE(nothing.ok()) << nothing.status().ToString();
  EXPECT_THAT(nothing->removed, IsEmpty());
  // What a killed save leaves: a marker of an older generation, and some data.
  Write(Path("a/checkpoint_000020/.cairn-attempt"),
        Encode(MarkerRecord{.generation = 1, .attempt = "b7bbd0a3-4b1c-4d5e-8a9b-0123456789ab"}));
  Write(Path("a/checkpoint_000020/__model__/rank_0-00001.safetensors"), std::string(1000, 'x'));
  Write(Path("a/checkpoint_notes/mine.txt"), "not the engine's");
  auto swept = CollectGarbage(Path("a"));
  ASSERT_TRUE(swept.ok()) << swept.status().ToString();
  ASSERT_EQ(swept->removed.size(), 1u);
  EXPECT_EQ(swept->removed[0].name, "checkpoint_000020");
  EXPECT_EQ(swept->removed[0].what, "unfinished save");
  EXPECT_GE(swept->bytes, 1000u);
  EXPECT_FALSE(fs::exists(Path("a/checkpoint_000020")));
  EXPECT_TRUE(fs::exists(Path("a/checkpoint_notes/mine.txt")));
  EXPECT_EQ(Reader("a")->Latest().value()->step, 10);
  EXPECT_EQ(CollectGarbage(Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(CollectGarbage(directory_.path()).status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(Path("cairn.json")));
}

}  // namespace
}  // namespace cairn
