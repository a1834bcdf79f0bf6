// Nothing that is served is a mixture. All rows of two tables and one dense weight of a checkpoint
// carry one number; a model follows, threads ask it all the time, and meanwhile the job is killed
// and started again, goes back to older checkpoints, is overtaken by another writer, has files
// damaged, gets increments of another job, loses its directory; versions are rolled back, pinned
// and resumed; the job's clock jumps by years and its disk is full for a while; servers are started
// in the middle of it. Every answer carries one number: that of its version. CAIRN_TORTURE_SECONDS
// makes it run that long with new seeds. Another process asks too, by gRPC.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cairn/serving.h>

#include "base/log.h"
#include "serving/lookup/lookup_server.h"
#include "serving/model/test_graph.h"
#include "tests/crash/torture.h"
#include "tests/kill/harness.h"
#include "tests/serving/numbered_job.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;

struct Counts {
  std::atomic<std::uint64_t> lookups{0};
  std::atomic<std::uint64_t> lookups_by_grpc{0};
  std::atomic<std::uint64_t> predictions{0};
  std::atomic<std::uint64_t> mixtures{0};
  std::atomic<std::uint64_t> failures{0};
  std::atomic<std::uint64_t> full_disks{0};
  std::atomic<std::uint64_t> servers{0};  // that were started in the middle of it
};

/// One repository, one model, one job at a time (two when one is overtaken).
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    const auto a = MakeNumberedTable("a", kDimA);
    const auto b = MakeNumberedTable("b", kDimB);
    ExportRequest request;
    request.directory = export_;
    request.model = SumGraph({{"rows_a", "sum_a", kDimA}, {"rows_b", "sum_b", kDimB}});
    request.feed_names = {"rows_a", "rows_b"};
    request.target_names = {"sum_a", "sum_b"};
    request.tables = {{"rows_a", ExportTable::Of(*a)}, {"rows_b", ExportTable::Of(*b)}};
    request.increments = true;
    EXPECT_TRUE(Export(request).ok());
  }
  ~World() {
    stop_ = true;
    for (std::thread& reader : readers_) reader.join();
    if (asker_ > 0) End(asker_);
    lookups_ = nullptr;
    model_ = nullptr;
    Kill();
  }

  void Start() {
    StartJob(false);
    auto model = Model::Open(Options());
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
    ASSERT_TRUE(WaitForProgress()) << "the first version: " << model_->stats().last_problem;
    for (int i = 0; i < 2; ++i) {
      readers_.emplace_back([this, seed = random_()] { Ask(seed); });
    }
    auto lookups = LookupServer::Start({}, model_.get());
    ASSERT_TRUE(lookups.ok()) << lookups.status().ToString();
    lookups_ = *std::move(lookups);
    asker_ = kill::StartProcess("serving_asker", {std::to_string(lookups_->port()),
                                                  std::to_string(random_() % 1000), asked_});
  }

  /// What the other process saw; it ends.
  void EndAsker() {
    ::kill(asker_, SIGTERM);
    int status = 0;
    ASSERT_EQ(waitpid(asker_, &status, 0), asker_);
    asker_ = -1;
    ASSERT_EQ(status, 0) << "the asking process";
    std::uint64_t mixtures = 0;
    std::uint64_t failures = 0;
    std::uint64_t lookups = 0;
    ASSERT_TRUE(std::ifstream(asked_) >> lookups >> mixtures >> failures);
    counts_.lookups_by_grpc += lookups;
    counts_.mixtures += mixtures;
    counts_.failures += failures;
  }

  /// Something goes wrong, or somebody goes back.
  void Disturb() {
    switch (random_() % 11) {
      case 0:
        Kill();
        StartJob(false);
        break;
      case 1: {
        const pid_t old = job_;  // goes on, and is overtaken
        StartJob(true);
        Pause(100);
        End(old);
        break;
      }
      case 2:
        Damage();
        break;
      case 3:
        Kill();
        fs::rename(run_, run_ + ".away");
        Pause(250);
        fs::rename(run_ + ".away", run_);
        StartJob(false);
        break;
      case 4:
        CopyForeign();
        break;
      case 5:
      case 6:
        FillDisk();
        break;
      case 7:
        StartServer();
        break;
      default:
        GoBack();
        break;
    }
  }

  /// A version is shown that was committed after this call.
  bool WaitForProgress() {
    model_->Resume();
    const std::int64_t number = numbers_.Last();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < end) {
      const auto version = model_->Version();
      if (version.ok() && version->step > number) return true;
      int status = 0;
      if (waitpid(job_, &status, WNOHANG) == job_) StartJob(false);
      Pause(2);
    }
    return false;
  }

  void Pause(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
  std::uint64_t Random() { return random_(); }
  const Counts& counts() const { return counts_; }
  ModelStats stats() const { return model_->stats(); }

 private:
  ModelOptions Options() const {
    ModelOptions options;
    options.export_dir = export_;
    options.repository = run_;
    options.require_version = false;
    options.poll = std::chrono::milliseconds(200);
    return options;
  }
  void StartJob(bool takeover) {
    job_ = kill::StartProcess("serving_job", {run_, numbers_path_, std::to_string(random_() % 1000),
                                              takeover ? "1" : "0"});
  }
  static void End(pid_t pid) {
    ::kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  void Kill() {
    if (job_ > 0) End(job_);
    job_ = -1;
  }

  /// Flips a byte of a file of rows of the newest increments.
  void Damage() {
    std::optional<fs::directory_entry> newest;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(run_, gone)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("increment_") || name.starts_with("increment_99")) continue;
      if (!newest || newest->path().filename() < entry.path().filename()) newest = entry;
    }
    if (!newest) return;
    const std::string file = newest->path().string() + "/__lookup_table__/rank_0.safetensors";
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    if (!stream) return;
    stream.seekg(-3, std::ios::end);
    const int byte = stream.get();
    stream.seekp(-3, std::ios::end);
    stream.put(static_cast<char>(byte ^ 0x10));
  }

  /// For a while the job can write no byte more; what it was writing is cut. It goes on afterwards.
  void FillDisk() {
    const auto allow = [this](rlim_t bytes) {
      const rlimit limit{bytes, RLIM_INFINITY};
      return prlimit(job_, RLIMIT_FSIZE, &limit, nullptr) == 0;
    };
    if (!allow(random_() % 20'000)) return;  // it ended by itself
    Pause(static_cast<int>(100 + random_() % 200));
    allow(RLIM_INFINITY);
    ++counts_.full_disks;
  }

  /// An increment of another job, with numbers that no version has.
  void CopyForeign() {
    if (foreign_.empty()) {
      const auto a = MakeNumberedTable("a", kDimA);
      const auto b = MakeNumberedTable("b", kDimB);
      auto manager = CheckpointManager::Open({.directory = directory_.path() / "other"}).value();
      TableCheckpoints checkpoints(manager.get(), {a.get(), b.get()});
      for (const SaveKind kind : {SaveKind::kFull, SaveKind::kCumulative}) {
        const float weight = -5;
        ASSERT_TRUE(SetAllRows(a.get(), -7).ok());
        SaveRequest request;
        request.step = 999'999;
        request.kind = kind;
        request.tensors = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &weight}};
        foreign_ = checkpoints.Save(std::move(request)).value().Wait().value().path;
      }
    }
    std::error_code ignored;
    fs::copy(foreign_, run_ + "/increment_999999", fs::copy_options::recursive, ignored);
  }

  void GoBack() {
    const auto before = model_->Version();
    if (!before.ok()) return;
    if (random_() % 2 == 0) {
      if (!model_->Rollback(1 + random_() % 2).ok()) return;
    } else {
      const std::vector<VersionInfo> kept = model_->Versions();
      if (!model_->Pin(kept[random_() % kept.size()].id).ok()) return;
    }
    const std::int64_t held = model_->Version().value().step;
    Pause(static_cast<int>(random_() % 150));
    EXPECT_EQ(model_->Version().value().step, held) << "held until resumed";
    model_->Resume();
  }

  bool All(const std::vector<float>& values, std::int64_t number) {
    for (const float value : values) {
      if (value != static_cast<float>(number)) return false;
    }
    return true;
  }

  void Ask(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!stop_) {
      AskOnce(*model_, &random);
      // Some time is left for the follower and the job, on machines of few cores.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }

  void AskOnce(const Model& model, std::mt19937_64* random) {
    std::vector<std::int64_t> ids(64);
    std::vector<float> a(64 * kDimA);
    std::vector<float> b(64 * kDimB);
    for (std::int64_t& id : ids) id = NumberedKey((*random)());
    const auto view = model.Take();
    if (!view.ok()) {
      ++counts_.failures;
      return;
    }
    const std::int64_t number = (*view)->version().step;
    bool same = (*view)->Lookup("a", ids, a).ok() && All(a, number);
    same = same && (*view)->Lookup("b", ids, b).ok() && All(b, number);
    counts_.lookups += 2 * ids.size();
    // Alone: of whatever version, but of one.
    same = same && model.Lookup("b", ids, b).ok() && All(b, static_cast<std::int64_t>(b.front()));
    counts_.lookups += ids.size();
    const FeedTensor feed{DType::kI64, {ids.size()}, ids.data()};
    const std::map<std::string, FeedTensor> feeds = {{"rows_a", feed}, {"rows_b", feed}};
    for (const bool alone : {false, true}) {
      const auto outputs = alone ? model.Predict(feeds) : (*view)->Predict(feeds);
      if (!outputs.ok()) {
        ++counts_.failures;
        continue;
      }
      ++counts_.predictions;
      const float first = *reinterpret_cast<const float*>((*outputs)[0].data.get());
      for (const OwnedTensor& output : *outputs) {
        const auto* values = reinterpret_cast<const float*>(output.data.get());
        const float wanted = alone ? first : 2 * static_cast<float>(number);
        for (std::uint64_t i = 0; i < output.bytes / sizeof(float); ++i) {
          same = same && values[i] == wanted;
        }
      }
      // Twice one number: an odd sum would be of two.
      same = same && static_cast<std::int64_t>(first) % 2 == 0;
    }
    counts_.mixtures += same ? 0 : 1;
  }

  /// As one that was killed and is started again in the middle of all this: it holds nothing that
  /// is not in the repository, where the newest may be damaged, strange or half written.
  void StartServer() {
    auto model = Model::Open(Options());
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!(*model)->Version().ok()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << (*model)->stats().last_problem;
      Pause(1);
    }
    for (int i = 0; i < 20; ++i) AskOnce(**model, &random_);
    ++counts_.servers;
  }

  std::mt19937_64 random_;
  kill::TempDir directory_;
  const std::string run_ = directory_.path() / "run";
  const std::string export_ = directory_.path() / "export";
  const std::string numbers_path_ = directory_.path() / "numbers";
  Numbers numbers_{numbers_path_};
  std::string foreign_;
  pid_t job_ = -1;
  pid_t asker_ = -1;
  const std::string asked_ = directory_.path() / "asked";
  std::unique_ptr<Model> model_;
  std::unique_ptr<LookupServer> lookups_;
  Counts counts_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> readers_;
};

TEST(MixtureTest, NoAnswerMixesTwoVersions) {
  SetLogSink([](LogLevel, std::string_view) {});  // refusals are expected, hundreds of them
  crash::Torture torture("serving_mixture", 1);
  torture.Run([&](std::uint64_t seed) {
    World world(seed);
    world.Start();
    if (::testing::Test::HasFatalFailure()) return false;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(crash::Torture::Asked() ? 30 : 8);
    while (std::chrono::steady_clock::now() < end) {
      world.Disturb();
      world.Pause(static_cast<int>(world.Random() % 200));
      torture.Count("disturbances", 1);
    }
    EXPECT_TRUE(world.WaitForProgress())
        << "after all that it goes on; seed " << seed << ": " << world.stats().last_problem;
    world.EndAsker();
    EXPECT_EQ(world.counts().mixtures, 0u) << "seed " << seed;
    EXPECT_EQ(world.counts().failures, 0u) << "seed " << seed;
    torture.Count("lookups", world.counts().lookups);
    torture.Count("lookups_by_grpc", world.counts().lookups_by_grpc);
    EXPECT_GT(world.counts().lookups_by_grpc, 0u);
    torture.Count("predictions", world.counts().predictions);
    torture.Count("full_disks", world.counts().full_disks);
    torture.Count("servers_started", world.counts().servers);
    torture.Count("updates", world.stats().updates);
    torture.Count("refused", world.stats().refused);
    torture.Count("update_milliseconds",
                  static_cast<std::uint64_t>(1000 * world.stats().update_seconds));
    return !::testing::Test::HasFailure();
  });
}

}  // namespace
}  // namespace cairn::serving
