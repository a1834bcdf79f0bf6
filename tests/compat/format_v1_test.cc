// Format version 1, as it was written once and for ever: tests/compat/format_v1/ is a small
// repository with a file of every kind. Each file must decode to what it held, and, as long as this
// program writes version 1, be encoded again to the same bytes; the pages of docs/format/ show
// these very bytes. The files are never changed: a new version gets a folder of its own.
//
// CAIRN_WRITE_GOLDEN=1 writes the files that do not exist yet.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "format/manifest.h"
#include "format/records.h"
#include "format/safetensors.h"
#include "storage/memory/memory_store.h"
#include "train/stop_agreement.h"

namespace cairn {
namespace {

const std::filesystem::path kRoot = "tests/compat/format_v1";

constexpr char kJob[] = "2b6f0cc9-04b8-4d8e-9a3e-1f6f4c1d7a10";
constexpr char kId20[] = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
constexpr char kId40[] = "16fd2706-8baf-433b-82eb-8c7fada847da";
constexpr char kId60[] = "886313e1-3b8a-4372-9b90-0c9aee199e5d";
constexpr char kFence[] = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";
constexpr char kJoin0[] = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
constexpr char kJoin1[] = "9a1de644-815e-46d1-bb8f-aa1837f8a88b";
constexpr char kAttempt1[] = "0f8fad5b-d9cb-469f-a165-70867728950e";
constexpr char kAttempt2[] = "3d813cbb-47fb-42ba-91df-831e1593ac29";
constexpr char kAttempt3[] = "c9bf9e57-1685-4c89-bafb-ff5af830be8a";
constexpr char kNote[] = "5f0cb4b1-3a9e-4f0e-9a57-2f4c8b3f6d11";
constexpr std::int64_t kTime = 1'750'000'000'123'456'789;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

FileHash HashOf(std::string_view bytes) {
  FileHasher hasher;
  hasher.Update(std::as_bytes(std::span(bytes)));
  return hasher.Finish();
}

/// What a data file of the example holds: header fields and the bytes of all tensors.
struct DataFile {
  std::vector<TensorEntry> tensors;
  SafetensorsMetadata metadata;
  std::string data;

  std::string Encode() const { return *EncodeSafetensorsHeader(tensors, metadata) + data; }
};

std::string FloatBytes(std::initializer_list<float> numbers) {
  std::string out(numbers.size() * sizeof(float), '\0');
  std::memcpy(out.data(), std::data(numbers), out.size());
  return out;
}

DataFile Rank0Data() {
  return {.tensors = {{"layer/weight@0,0", DType::kF32, {2, 2}, 0, 16},
                      {"layer/bias", DType::kBF16, {2}, 16, 20},
                      {"step \"count\"", DType::kI64, {}, 20, 28},
                      {"unused", DType::kF8E4M3, {0, 4}, 28, 28}},
          .metadata = {{"cairn.shape/layer/weight", "4,2"}},
          .data = FloatBytes({1, 2, 3, 4}) + std::string("\x80\x3f\x00\x40", 4) +
                  std::string("\x28\0\0\0\0\0\0\0", 8)};
}

DataFile Rank1Data() {
  return {.tensors = {{"layer/weight@2,0", DType::kF32, {2, 2}, 0, 16}},
          .metadata = {{"cairn.shape/layer/weight", "4,2"}},
          .data = FloatBytes({5, 6, 7, 8})};
}

SafetensorsIndex Index() {
  SafetensorsIndex index;
  index.total_bytes = 44;
  for (const TensorEntry& tensor : Rank0Data().tensors) {
    index.files.emplace(tensor.name, "rank_0-00001.safetensors");
  }
  for (const TensorEntry& tensor : Rank1Data().tensors) {
    index.files.emplace(tensor.name, "rank_1-00001.safetensors");
  }
  return index;
}

ManifestFile Rank0File() {
  return {"__model__/rank_0-00001.safetensors", HashOf(Rank0Data().Encode()), "rank_0", ""};
}

ManifestFile Rank1File() {
  return {"__model__/rank_1-00001.safetensors", HashOf(Rank1Data().Encode()), "rank_1",
          "checkpoint_000020/__model__/rank_1-00001.safetensors"};
}

PartRecord Part0() {
  return {.attempt = kAttempt1,
          .participant = "rank_0",
          .uuid = kJoin0,
          .files = {Rank0File()},
          .metadata = Value::Object{{"host", "node-a"}}};
}

PartRecord Part1() {
  return {.attempt = kAttempt1,
          .participant = "rank_1",
          .uuid = kJoin1,
          .files = {Rank1File()},
          .tables = {{"users", 16, DType::kF32, 0, 0}}};
}

Manifest FullManifest() {
  Manifest m;
  m.id = kId40;
  m.job = kJob;
  m.generation = 7;
  m.sequence = 2;
  m.attempt = kAttempt1;
  m.step = 40;
  m.parent = kId20;
  m.participants = {"rank_0", "rank_1"};
  m.files = {
      Rank0File(),
      Rank1File(),
      {"__model__/model.safetensors.index.json", HashOf(EncodeSafetensorsIndex(Index())), "", ""}};
  m.tables = {{"users", 16, DType::kF32, 0, 0}};
  m.counters = Value::Object{{"epoch", 3}, {"seed", 18446744073709551615u}};
  m.metrics = Value::Object{{"loss", 0.25}, {"eval", Value::Object{{"top1", 1.0}, {"ppl", 1e300}}}};
  m.metadata =
      Value::Object{{"note", "first try with ö"}, {"tags", Value::List{"a", nullptr, true}}};
  m.lineage = Value::Object{{"code", "v1"}};
  m.time = kTime;
  return m;
}

Manifest IncrementManifest() {
  Manifest m;
  m.id = kId60;
  m.job = kJob;
  m.generation = 7;
  m.sequence = 3;
  m.attempt = kAttempt3;
  m.kind = CheckpointKind::kIncrement;
  m.chain = "consecutive";
  m.step = 60;
  m.base = kId40;
  m.parent = kId40;
  m.replaces = kId20;
  m.participants = {"rank_0"};
  m.time = kTime + 1;
  return m;
}

/// What compact puts in the place of an increment.
Manifest CompactedManifest() {
  Manifest m;
  m.id = kNote;
  m.job = kJob;
  m.generation = 7;
  m.sequence = 3;
  m.attempt = kAttempt2;
  m.step = 60;
  m.parent = kId40;
  m.replaces = kId60;
  m.compacted = 9;
  m.participants = {"rank_0"};
  m.tables = {{"users", 16, DType::kF32, 1200, 0}};
  m.lineage = Value::Object{{"compacted_from", Value::List{kId40, kId60}}};
  m.time = kTime + 1;
  return m;
}

/// One golden file: its path, what is written into it, and what reading it must give.
struct Golden {
  std::string path;
  std::string bytes;                              // encoded from the example above, now
  std::function<void(const std::string&)> check;  // decodes a file's bytes, compares, re-encodes
  std::string page;                               // under docs/format/, which shows the bytes
};

template <typename Record>
Golden RecordFile(std::string path, Record record) {
  return {std::move(path), Encode(record),
          [record](const std::string& bytes) {
            const auto back = Decode<Record>(bytes);
            ASSERT_TRUE(back.ok()) << back.status().ToString();
            EXPECT_EQ(*back, record);
            EXPECT_EQ(Encode(*back), bytes);
          },
          "records.md"};
}

Golden ManifestGolden(std::string path, Manifest manifest) {
  return {std::move(path), EncodeManifest(manifest),
          [manifest](const std::string& bytes) {
            const auto back = DecodeManifest(bytes);
            ASSERT_TRUE(back.ok()) << back.status().ToString();
            EXPECT_EQ(*back, manifest);
            EXPECT_EQ(EncodeManifest(*back), bytes);
          },
          "manifest.md"};
}

Golden DataGolden(std::string path, DataFile file) {
  return {std::move(path), file.Encode(),
          [file](const std::string& bytes) {
            const auto header_bytes = SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size());
            ASSERT_TRUE(header_bytes.ok()) << header_bytes.status().ToString();
            const std::string header_text = bytes.substr(0, *header_bytes);
            const auto header = DecodeSafetensorsHeader(header_text, bytes.size());
            ASSERT_TRUE(header.ok()) << header.status().ToString();
            EXPECT_EQ(header->tensors, file.tensors);
            EXPECT_EQ(header->metadata, file.metadata);
            EXPECT_EQ(bytes.substr(header->data_offset), file.data);
            EXPECT_EQ(*EncodeSafetensorsHeader(header->tensors, header->metadata), header_text);
            for (const TensorEntry& tensor : file.tensors) {
              EXPECT_EQ(*FindTensorInHeader(header_text, bytes.size(), tensor.name), tensor);
            }
          },
          ""};
}

Golden IndexGolden(std::string path) {
  return {std::move(path), EncodeSafetensorsIndex(Index()),
          [](const std::string& bytes) {
            const auto back = DecodeSafetensorsIndex(bytes);
            ASSERT_TRUE(back.ok()) << back.status().ToString();
            EXPECT_EQ(back->files, Index().files);
            EXPECT_EQ(back->total_bytes, Index().total_bytes);
            EXPECT_EQ(EncodeSafetensorsIndex(*back), bytes);
          },
          "index.md"};
}

/// After which step trainers end: what trainer 0 writes, and where the others end who read it.
Golden LastStepGolden(std::string path) {
  const auto agreement = [](std::shared_ptr<Store> store, bool chooses) {
    Environment env;
    env.store = std::move(store);
    return StopAgreement(env, /*generation=*/7, chooses, std::chrono::seconds(30));
  };
  const std::shared_ptr<Store> store = MemoryStore::Open({.object_store = false}).value();
  EXPECT_FALSE(agreement(store, true).LastStep(/*global_step=*/99, /*seconds_per_step=*/1).value());
  return {path, *store->Get(path, 4096),
          [path, agreement](const std::string& bytes) {
            const std::shared_ptr<Store> other = MemoryStore::Open({.object_store = false}).value();
            ASSERT_TRUE(other->Put(path, bytes).ok());
            EXPECT_FALSE(*agreement(other, false).LastStep(99, 1));
            EXPECT_TRUE(*agreement(other, false).LastStep(100, 1));
          },
          "records.md"};
}

std::vector<Golden> AllGolden() {
  return {
      RecordFile("cairn.json", RepositoryRecord{.version = 1, .job = kJob}),
      RecordFile("generations/000007.json", FenceRecord{.generation = 7,
                                                        .uuid = kFence,
                                                        .job = kJob,
                                                        .run = 2,
                                                        .host = "node-a",
                                                        .pid = 4711}),
      RecordFile("generations/000007.seal.json",
                 SealRecord{.generation = 7, .uuid = kFence, .commits = {kId20}}),
      RecordFile("generations/000006.seal.json", ClosedRecord{.generation = 6, .uuid = kFence}),
      RecordFile("generations/000007.end.json", EndRecord{.generation = 7, .uuid = kFence}),
      RecordFile("generations/000007.start.json",
                 StartRecord{.generation = 7,
                             .uuid = kFence,
                             .restore = kId20,
                             .participants = {{"rank_0", kJoin0}, {"rank_1", kJoin1}}}),
      RecordFile(std::string("generations/joins/rank_1-") + kJoin1 + ".json",
                 JoinRecord{.participant = "rank_1", .uuid = kJoin1, .host = "node-b", .pid = 815}),
      RecordFile("generations/000007/attempts/1.json",
                 AttemptRecord{.number = 1,
                               .directory = "checkpoint_000040",
                               .attempt = kAttempt1,
                               .step = 40,
                               .participants = {"rank_0", "rank_1"}}),
      RecordFile("generations/000007/attempts/2.json",
                 AttemptRecord{.number = 2, .attempt = kAttempt2, .step = 50, .skipped = true}),
      RecordFile("generations/000007/attempts/3.json",
                 AttemptRecord{.number = 3,
                               .directory = "increment_000060",
                               .attempt = kAttempt3,
                               .step = 60,
                               .kind = CheckpointKind::kIncrement,
                               .base = kId40,
                               .chain = "consecutive",
                               .participants = {"rank_0"}}),
      LastStepGolden("generations/000007/last_step.json"),
      RecordFile("checkpoint_000040/parts/rank_0.json", Part0()),
      RecordFile("checkpoint_000040/parts/rank_1.json", Part1()),
      DataGolden("checkpoint_000040/__model__/rank_0-00001.safetensors", Rank0Data()),
      DataGolden("checkpoint_000040/__model__/rank_1-00001.safetensors", Rank1Data()),
      IndexGolden("checkpoint_000040/__model__/model.safetensors.index.json"),
      ManifestGolden("checkpoint_000040/manifest.json", FullManifest()),
      RecordFile("checkpoint_000040/notes/000001.json",
                 NoteRecord{.number = 1, .kind = NoteKind::kPin, .uuid = kNote, .time = kTime}),
      RecordFile("checkpoint_000040/notes/000002.json",
                 NoteRecord{.number = 2,
                            .kind = NoteKind::kScore,
                            .uuid = kNote,
                            .values = Value::Object{{"accuracy", 0.5}},
                            .time = kTime}),
      RecordFile("checkpoint_000040/notes/000003.json", NoteRecord{.number = 3,
                                                                   .kind = NoteKind::kRemove,
                                                                   .uuid = kNote,
                                                                   .generation = 7,
                                                                   .time = kTime}),
      RecordFile("checkpoint_000055/abandoned.json",
                 AbandonedRecord{.attempt = kAttempt2, .missing = {"rank_1"}}),
      ManifestGolden("checkpoint_000060/manifest.json", CompactedManifest()),
      ManifestGolden("increment_000060/manifest.json", IncrementManifest()),
      RecordFile("increment_000060/.cairn-attempt",
                 MarkerRecord{.generation = 7, .attempt = kAttempt3}),
      RecordFile(
          "generations/shelves/0c8e5d42-6c0f-4b0b-8f5e-3a7d1c2b9e60.json",
          ShelfRecord{.entries = {{"checkpoint_000060", "\"5d41402abc4b2a76b9719d911017c592\"",
                                   EncodeManifest(CompactedManifest())}}}),
  };
}

void WriteMissing() {
  if (std::getenv("CAIRN_WRITE_GOLDEN") == nullptr) return;
  for (const Golden& golden : AllGolden()) {
    const std::filesystem::path path = kRoot / golden.path;
    if (std::filesystem::exists(path)) continue;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << golden.bytes;
  }
}

TEST(FormatV1, EveryGoldenFileDecodesToWhatItHeldAndBackToItsBytes) {
  WriteMissing();
  for (const Golden& golden : AllGolden()) {
    SCOPED_TRACE(golden.path);
    const std::string bytes = ReadFile(kRoot / golden.path);
    ASSERT_FALSE(bytes.empty());
    golden.check(bytes);
    EXPECT_EQ(golden.bytes, bytes);
  }
}

TEST(FormatV1, NoGoldenFileIsWithoutATest) {
  WriteMissing();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kRoot)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, AllGolden().size());
}

TEST(FormatV1, ChecksumsInTheManifestAreThoseOfTheFiles) {
  const auto manifest = DecodeManifest(ReadFile(kRoot / "checkpoint_000040/manifest.json"));
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  for (const ManifestFile& file : manifest->files) {
    EXPECT_EQ(HashOf(ReadFile(kRoot / "checkpoint_000040" / file.path)), file.hash) << file.path;
  }
}

/// As `xxd` prints it.
std::string HexDump(std::string_view bytes, std::size_t address) {
  std::string out;
  char buffer[16];
  for (std::size_t row = 0; row < bytes.size(); row += 16) {
    const std::string_view line = bytes.substr(row, 16);
    std::snprintf(buffer, sizeof(buffer), "%08zx: ", address + row);
    out += buffer;
    std::string text;
    for (std::size_t i = 0; i < 16; ++i) {
      if (i < line.size()) {
        std::snprintf(buffer, sizeof(buffer), "%02x", static_cast<unsigned char>(line[i]));
        text += line[i] >= 0x20 && line[i] < 0x7F ? line[i] : '.';
      }
      out += i < line.size() ? buffer : "  ";
      if (i % 2 == 1) out += ' ';
    }
    out += ' ' + text + '\n';
  }
  return out;
}

TEST(FormatV1, TheDocumentationShowsADataFile) {
  const std::string bytes =
      ReadFile(kRoot / "checkpoint_000040/__model__/rank_0-00001.safetensors");
  const std::string page = ReadFile("docs/format/safetensors.md");
  const std::size_t json_end = bytes.find("}}  ") + 2;
  EXPECT_NE(page.find(HexDump(bytes.substr(0, (json_end + 15) / 16 * 16), 0)), page.npos);
  EXPECT_NE(page.find(HexDump(bytes.substr(4096), 4096)), page.npos);
}

TEST(FormatV1, TheDocumentationShowsTheseBytes) {
  for (const Golden& golden : AllGolden()) {
    if (golden.page.empty()) continue;
    const std::string page = ReadFile("docs/format/" + golden.page);
    ASSERT_FALSE(page.empty()) << golden.page;
    const std::string bytes = ReadFile(kRoot / golden.path);
    EXPECT_NE(page.find("```json\n" + bytes + "```"), page.npos)
        << golden.page << " does not show " << golden.path;
  }
}

}  // namespace
}  // namespace cairn
