// Damages every kind of byte of a repository on a real disk and checks that the damage is noticed
// and that a restore falls back to a whole checkpoint, or refuses, but never hands out wrong
// values.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>

#include <cairn/checkpoint_manager.h>

namespace cairn {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "cairn-damage-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct State {
  std::vector<std::uint32_t> hot = std::vector<std::uint32_t>(3001);  // no multiple of 4 KiB
  std::vector<std::uint32_t> cold = std::vector<std::uint32_t>(2048, 9);

  static State At(std::int64_t step) {
    State state;
    std::mt19937 random(static_cast<std::uint32_t>(step));
    for (auto& value : state.hot) value = static_cast<std::uint32_t>(random());
    return state;
  }
  std::vector<Tensor> Views() const {
    return {{.name = "hot", .dtype = DType::kU32, .shape = {3001}, .data = hot.data()},
            {.name = "cold", .dtype = DType::kU32, .shape = {2048}, .data = cold.data()}};
  }
  std::vector<MutableTensor> Targets() {
    return {{.name = "hot", .dtype = DType::kU32, .shape = {3001}, .data = hot.data()},
            {.name = "cold", .dtype = DType::kU32, .shape = {2048}, .data = cold.data()}};
  }
  friend bool operator==(const State&, const State&) = default;
};

/// Copies as a user would: hard links become files of their own.
void CopyRepository(const fs::path& from, const fs::path& to) {
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive);
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// A repository with steps 1 … 5, the later ones sharing the file of the unchanged tensor.
class CorruptionTest : public testing::Test {
 protected:
  CorruptionTest() : pristine_(temp_.path() / "pristine"), copy_(temp_.path() / "copy") {
    auto manager = CheckpointManager::Open(
        {.directory = pristine_.string(), .retention = {.keep_last = std::nullopt}});
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const State state = State::At(step);
      auto saved = (*manager)->Save({.step = step,
                                     .tensors = state.Views(),
                                     .state_files = {{"state.json", "{\"epoch\":1}"}},
                                     .blocking = true});
      EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    }
    EXPECT_TRUE((*manager)->Close().ok());
  }

  /// What a job that starts on the damaged copy gets. `newest`: the newest step that can be whole.
  void CheckRestore(std::int64_t newest, const std::string& what) {
    for (const bool read_only : {true, false}) {
      auto manager = CheckpointManager::Open({.directory = copy_.string(), .read_only = read_only});
      ASSERT_TRUE(manager.ok()) << what << ": " << manager.status().ToString();
      State state;
      auto restored = (*manager)->Restore({.into = state.Targets()});
      ASSERT_TRUE(restored.ok()) << what << ": " << restored.status().ToString();
      ASSERT_TRUE(restored->has_value()) << what;
      EXPECT_LE((*restored)->step, kSteps) << what;
      EXPECT_GE((*restored)->step, newest) << what;
      EXPECT_EQ(state, State::At((*restored)->step)) << what << ": wrong values were restored";
      if (!read_only) {  // life goes on
        const State next = State::At(99);
        auto saved = (*manager)->Save({.step = 99,
                                       .tensors = next.Views(),
                                       .state_files = {{"state.json", "{\"epoch\":1}"}},
                                       .blocking = true});
        ASSERT_TRUE(saved.ok()) << what << ": " << saved.status().ToString();
        ASSERT_TRUE((*manager)->Close().ok()) << what;
        CheckLatest(99, what);
      }
    }
  }

  /// What was acknowledged is what the next start gets, with nothing passed over: it shares no file
  /// with what was damaged.
  void CheckLatest(std::int64_t step, const std::string& what) {
    auto manager = CheckpointManager::Open({.directory = copy_.string(), .read_only = true});
    ASSERT_TRUE(manager.ok()) << what << ": " << manager.status().ToString();
    State state;
    auto restored = (*manager)->Restore({.into = state.Targets()});
    ASSERT_TRUE(restored.ok()) << what << ": " << restored.status().ToString();
    EXPECT_EQ((*restored)->step, step) << what;
    EXPECT_EQ(state, State::At(step)) << what;
  }

  bool NoticedByVerify() {
    auto report = Verify(copy_.string(), /*deep=*/true);
    return !report.ok() || !report->ok();
  }

  static constexpr std::int64_t kSteps = 5;
  TempDir temp_;
  const fs::path pristine_;
  const fs::path copy_;
};

TEST_F(CorruptionTest, AFlippedByteAnywhereIsNoticedAndPassedOver) {
  std::mt19937_64 random(1);
  std::map<std::string, int> kinds;
  for (const auto& entry : fs::recursive_directory_iterator(pristine_)) {
    if (!entry.is_regular_file()) continue;
    const fs::path relative = fs::relative(entry.path(), pristine_);
    const std::string name = relative.string();
    // These hold nothing; of the reserve only the room counts.
    if (name.ends_with("lock") || name.ends_with(".cairn-attempt") ||
        name == "generations/reserve") {
      continue;
    }
    const std::string bytes = ReadFile(entry.path());
    ASSERT_FALSE(bytes.empty()) << name;
    // First and last byte, header, padding and payload, and random places.
    std::vector<std::size_t> places = {0, bytes.size() - 1, bytes.size() / 2};
    if (name.ends_with(".safetensors")) places.insert(places.end(), {7, 8, 40, 3000, 4095, 4096});
    for (int i = 0; i < 3; ++i) places.push_back(random() % bytes.size());
    for (const std::size_t place : places) {
      if (place >= bytes.size()) continue;
      CopyRepository(pristine_, copy_);
      std::string damaged = bytes;
      damaged[place] = static_cast<char>(damaged[place] ^ (1 << (random() % 8)));
      WriteFile(copy_ / relative, damaged);
      const std::string what = name + " byte " + std::to_string(place);
      EXPECT_TRUE(NoticedByVerify()) << what;
      // Damage in the newest checkpoint costs that one; elsewhere nothing newer is touched.
      const bool newest = name.starts_with("checkpoint_000005");
      ASSERT_NO_FATAL_FAILURE(CheckRestore(newest ? kSteps - 1 : kSteps, what));
      ++kinds[relative.filename().string()];
    }
  }
  for (const auto& [kind, count] : kinds)
    std::cout << "  " << count << " flips in " << kind << "\n";
}

TEST_F(CorruptionTest, LostRecordsAreNoticedAndBridged) {
  // Two more openings, the last of which saves.
  for (std::int64_t step = 0; step <= 1; ++step) {
    auto manager = CheckpointManager::Open(
        {.directory = pristine_.string(), .retention = {.keep_last = std::nullopt}});
    ASSERT_TRUE(manager.ok());
    if (step == 0) continue;
    const State state = State::At(kSteps);
    ASSERT_TRUE(
        (*manager)->Save({.step = kSteps, .tensors = state.Views(), .blocking = true}).ok());
  }
  std::vector<std::string> records = {"cairn.json"};
  for (const auto& entry : fs::directory_iterator(pristine_ / "generations")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".json")) records.push_back("generations/" + name);
  }
  ASSERT_EQ(records.size(), 7u) << "a fence and a seal for each opening";
  const std::uint32_t all = (1u << records.size()) - 1;
  for (std::uint32_t lost = 1; lost < all; ++lost) {
    CopyRepository(pristine_, copy_);
    std::string what = "lost:";
    bool last = false;  // a record of the last generation, which is the one that decides
    for (std::size_t i = 0; i < records.size(); ++i) {
      if ((lost >> i & 1) == 0) continue;
      fs::remove(copy_ / records[i]);
      what += " " + records[i];
      last = last || i == 0 || records[i].find("000003") != std::string::npos;
    }
    if (last) {
      EXPECT_TRUE(NoticedByVerify()) << what;
    }
    ASSERT_NO_FATAL_FAILURE(CheckRestore(kSteps, what));
  }
}

TEST_F(CorruptionTest, CutFilesAreNoticedAndPassedOver) {
  for (const auto& entry : fs::recursive_directory_iterator(pristine_ / "checkpoint_000005")) {
    if (!entry.is_regular_file() || entry.path().filename() == ".cairn-attempt") continue;
    const fs::path relative = fs::relative(entry.path(), pristine_);
    const std::string bytes = ReadFile(entry.path());
    for (const std::size_t keep : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      CopyRepository(pristine_, copy_);
      fs::resize_file(copy_ / relative, keep);
      const std::string what = relative.string() + " cut to " + std::to_string(keep);
      EXPECT_TRUE(NoticedByVerify()) << what;
      ASSERT_NO_FATAL_FAILURE(CheckRestore(kSteps - 1, what));
    }
    CopyRepository(pristine_, copy_);
    fs::remove(copy_ / relative);
    if (relative.filename() != "manifest.json") {
      EXPECT_TRUE(NoticedByVerify()) << relative;
    }
    ASSERT_NO_FATAL_FAILURE(CheckRestore(kSteps - 1, relative.string() + " deleted"));
  }
}

TEST_F(CorruptionTest, FilesOfAnotherCheckpointAreNoticed) {
  for (const auto& entry : fs::directory_iterator(pristine_ / "checkpoint_000005" / "__model__")) {
    const fs::path name = entry.path().filename();
    const fs::path other = pristine_ / "checkpoint_000004" / "__model__" / name;
    if (!fs::exists(other) || ReadFile(other) == ReadFile(entry.path())) continue;
    CopyRepository(pristine_, copy_);
    fs::copy_file(other, copy_ / "checkpoint_000005" / "__model__" / name,
                  fs::copy_options::overwrite_existing);
    EXPECT_TRUE(NoticedByVerify()) << name;
    ASSERT_NO_FATAL_FAILURE(CheckRestore(kSteps - 1, "swapped " + name.string()));
  }
}

TEST_F(CorruptionTest, AManifestOfAnotherCheckpointIsNoticed) {
  CopyRepository(pristine_, copy_);
  fs::copy_file(copy_ / "checkpoint_000003" / "manifest.json",
                copy_ / "checkpoint_000005" / "manifest.json",
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(NoticedByVerify());
  ASSERT_NO_FATAL_FAILURE(CheckRestore(kSteps - 2, "manifest of step 3 in the directory of 5"));
}

TEST_F(CorruptionTest, SavesAfterAFallbackShareNothingDamagedAndKeepWhatIsWhole) {
  CopyRepository(pristine_, copy_);
  // The newest two: a flipped byte, and a file that was cut.
  const fs::path state = copy_ / "checkpoint_000005" / "rank_0" / "state.json";
  std::string bytes = ReadFile(state);
  bytes[5] = static_cast<char>(bytes[5] ^ 1);
  WriteFile(state, bytes);
  const fs::path cut = copy_ / "checkpoint_000004" / "rank_0" / "state.json";
  WriteFile(cut, ReadFile(cut).substr(0, 4));
  auto manager =
      CheckpointManager::Open({.directory = copy_.string(), .retention = {.keep_last = 2}});
  ASSERT_TRUE(manager.ok()) << manager.status().ToString();
  State restored_state;
  auto restored = (*manager)->Restore({.into = restored_state.Targets()});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->step, 3);
  EXPECT_EQ((*restored)->fallbacks.size(), 2u);
  for (std::int64_t step = 6; step <= 9; ++step) {
    const State next = State::At(step);
    auto saved = (*manager)->Save({.step = step,
                                   .tensors = next.Views(),
                                   .state_files = {{"state.json", "{\"epoch\":1}"}},
                                   .blocking = true});
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
    if (step == 6) {
      auto there = (*manager)->List();
      ASSERT_TRUE(there.ok());
      EXPECT_TRUE(std::any_of(there->begin(), there->end(), [](const CheckpointInfo& one) {
        return one.step == 3;
      })) << "a damaged one takes no place among those that are kept";
    }
    CheckLatest(step, "after a fallback");
  }
  ASSERT_TRUE((*manager)->Close().ok());
}

TEST_F(CorruptionTest, WhenNothingIsWholeEachIsListed) {
  CopyRepository(pristine_, copy_);
  for (const auto& entry : fs::recursive_directory_iterator(copy_)) {
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 10);
  }
  auto manager = CheckpointManager::Open({.directory = copy_.string(), .read_only = true});
  ASSERT_TRUE(manager.ok());
  State state;
  const State before = state;
  auto restored = (*manager)->Restore({.into = state.Targets()});
  EXPECT_EQ(restored.status().code(), Code::kCorruption);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    EXPECT_NE(restored.status().message().find("checkpoint_00000" + std::to_string(step)),
              std::string_view::npos);
  }
  EXPECT_EQ(state, before);
}

TEST_F(CorruptionTest, ADamagedOneAskedForByStepIsAnErrorAndAtomicChangesNothing) {
  CopyRepository(pristine_, copy_);
  for (const auto& entry : fs::directory_iterator(copy_ / "checkpoint_000005" / "__model__")) {
    if (entry.path().extension() != ".safetensors") continue;
    std::string bytes = ReadFile(entry.path());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    WriteFile(entry.path(), bytes);
  }
  auto manager = CheckpointManager::Open({.directory = copy_.string(), .read_only = true});
  ASSERT_TRUE(manager.ok());
  State state;
  const State before = state;
  auto restored = (*manager)->Restore({.into = state.Targets(), .step = 5, .atomic = true});
  EXPECT_EQ(restored.status().code(), Code::kCorruption);
  EXPECT_EQ(state, before);
}

TEST_F(CorruptionTest, ForeignFilesAndDirectoriesAreIgnoredAndNeverDeleted) {
  CopyRepository(pristine_, copy_);
  fs::create_directories(copy_ / "my notes" / "deep");
  WriteFile(copy_ / "my notes" / "deep" / "manifest.json", "{}");
  fs::create_directories(copy_ / "other");
  WriteFile(copy_ / "other" / "manifest.json", "{\"not\": \"ours\"}");
  WriteFile(copy_ / "README.txt", "mine");
  fs::create_directories(copy_ / "checkpoint_mine");
  WriteFile(copy_ / "checkpoint_mine" / "weights.bin", "mine");
  WriteFile(copy_ / "checkpoint_000001" / "comment.txt", "mine");
  ASSERT_NO_FATAL_FAILURE(CheckRestore(kSteps, "foreign files"));
  {
    auto manager =
        CheckpointManager::Open({.directory = copy_.string(), .retention = {.keep_last = 1}});
    ASSERT_TRUE(manager.ok());
    const State state = State::At(7);
    ASSERT_TRUE((*manager)->Save({.step = 7, .tensors = state.Views(), .blocking = true}).ok());
  }
  EXPECT_TRUE(fs::exists(copy_ / "my notes" / "deep" / "manifest.json"));
  EXPECT_TRUE(fs::exists(copy_ / "other" / "manifest.json"));
  EXPECT_TRUE(fs::exists(copy_ / "README.txt"));
  EXPECT_TRUE(fs::exists(copy_ / "checkpoint_mine" / "weights.bin"));
  EXPECT_TRUE(fs::exists(copy_ / "checkpoint_000001" / "comment.txt"));
}

TEST_F(CorruptionTest, AMovedAndRenamedRepositoryGoesOn) {
  fs::rename(pristine_, temp_.path() / "elsewhere");
  auto manager = CheckpointManager::Open({.directory = (temp_.path() / "elsewhere").string()});
  ASSERT_TRUE(manager.ok());
  fs::rename(temp_.path() / "elsewhere" / "checkpoint_000005",
             temp_.path() / "elsewhere" / "checkpoint_000001-7");
  State state;
  auto restored = (*manager)->Restore({.into = state.Targets()});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ((*restored)->step, kSteps) << "a directory's name is not its identity";
}

TEST_F(CorruptionTest, ACheckpointOfAnotherJobIsListedAsForeignAndNeverChosen) {
  CopyRepository(pristine_, copy_);
  const fs::path other = temp_.path() / "other";
  {
    auto manager = CheckpointManager::Open({.directory = other.string(), .job = "another"});
    ASSERT_TRUE(manager.ok());
    const State state = State::At(50);
    ASSERT_TRUE((*manager)->Save({.step = 50, .tensors = state.Views(), .blocking = true}).ok());
  }
  fs::copy(other / "checkpoint_000050", copy_ / "checkpoint_000050", fs::copy_options::recursive);
  auto manager = CheckpointManager::Open({.directory = copy_.string()});
  ASSERT_TRUE(manager.ok());
  State state;
  auto restored = (*manager)->Restore({.into = state.Targets()});
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ((*restored)->step, kSteps);
  auto infos = (*manager)->List();
  ASSERT_TRUE(infos.ok());
  EXPECT_EQ(std::count_if(infos->begin(), infos->end(),
                          [](const CheckpointInfo& info) { return info.foreign; }),
            1);
  auto by_path = (*manager)->Restore(
      {.into = state.Targets(), .path = (copy_ / "checkpoint_000050").string()});
  ASSERT_TRUE(by_path.ok()) << by_path.status().ToString();
  EXPECT_EQ(state, State::At(50));
}

}  // namespace
}  // namespace cairn
