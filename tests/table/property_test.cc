// Random sequences of everything that can happen to a table, one after the other, beside a model
// that is a map and knows no tricks: updates, removals, cuts of all kinds, failures, crashes with a
// restore into other partitions.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "table/test_table.h"
#include "tests/crash/torture.h"

namespace cairn::table {
namespace {

/// SGD of rate 1 on one weight that begins with 0: the weight is minus the sum of the gradients.
struct ModelRow {
  double weight = 0;
  std::uint64_t frequency = 0;
  std::int64_t version = 0;
  friend bool operator==(const ModelRow&, const ModelRow&) = default;
};
struct Model {
  std::map<std::int64_t, ModelRow> rows;
  std::map<std::int64_t, std::uint32_t> pending;
};

class Sequence {
 public:
  Sequence(std::uint64_t seed, std::uint32_t admission) : random_(seed), admission_(admission) {
    SetPartitions(1 + random_() % 4);
  }

  void Run(int actions) {
    for (int i = 0; i < actions && !testing::Test::HasFailure(); ++i) {
      step_ = i;
      for (auto& part : parts_) part->set_step(step_);
      Act();
      if (i % 10 == 0) ExpectSame();
    }
    ExpectSame();
  }

 private:
  void SetPartitions(std::uint64_t count) {
    parts_.clear();
    std::vector<std::uint32_t> borders = {0, kTableShards};
    while (borders.size() < count + 1) {
      borders.push_back(static_cast<std::uint32_t>(1 + random_() % (kTableShards - 1)));
      std::sort(borders.begin(), borders.end());
      borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    }
    auto options = SmallOptions(1);
    options.optimizer = MakeSgd({.learning_rate = 1}).value();
    options.initializer = MakeConstant(0).value();
    options.eviction = EvictionOptions{.steps_to_live = 20};
    if (admission_ > 0) options.admission = AdmissionOptions{admission_};
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      options.shards = {borders[i], borders[i + 1]};
      parts_.push_back(SmallTable(options));
    }
  }

  Table* PartOf(std::int64_t key) {
    for (auto& part : parts_) {
      if (part->options().shards.Contains(TableShardOf(key))) return part.get();
    }
    return nullptr;
  }

  std::int64_t RandomKey() { return static_cast<std::int64_t>(random_() % 60) - 30; }

  void Act() {
    const std::uint64_t dice = random_() % 100;
    if (dice < 40) return Push();
    if (dice < 60) return Look();
    if (dice < 72) return Erase();
    if (dice < 75) return Evict();
    if (dice < 80) return Cut(CutKind::kFull);
    if (dice < 94) return Cut(random_() % 2 == 0 ? CutKind::kCumulative : CutKind::kConsecutive);
    Crash();
  }

  void Push() {
    const std::int64_t key = RandomKey();
    const auto times = 1 + random_() % 3;
    const std::vector<std::int64_t> ids(times, key);
    const std::vector<float> gradients(times, -1.0F);
    ASSERT_TRUE(PartOf(key)->ApplyGradients(ids, gradients).ok());
    if (admission_ > 0 && !model_.rows.contains(key)) return;
    ModelRow& row = model_.rows[key];
    row.weight += static_cast<double>(times);
    row.frequency += times;
    row.version = step_;
  }

  void Look() {
    const std::int64_t key = RandomKey();
    float weight = -1;
    ASSERT_TRUE(PartOf(key)->Lookup({&key, 1}, {&weight, 1}).ok());
    if (!model_.rows.contains(key)) {
      const bool admitted = admission_ == 0 || ++model_.pending[key] >= admission_;
      if (admitted) {
        model_.pending.erase(key);
        model_.rows[key].version = step_;
      } else {
        pending_version_[key] = step_;
      }
    }
    const auto it = model_.rows.find(key);
    ASSERT_EQ(static_cast<double>(weight), it == model_.rows.end() ? 0 : it->second.weight);
  }

  void Erase() {
    const std::int64_t key = RandomKey();
    ASSERT_EQ(PartOf(key)->Erase({&key, 1}).value(), model_.rows.erase(key));
    model_.pending.erase(key);
  }

  void Evict() {
    for (auto& part : parts_) ASSERT_TRUE(part->Evict(step_).ok());
    std::erase_if(model_.rows, [&](const auto& row) { return step_ - row.second.version > 20; });
    std::erase_if(model_.pending,
                  [&](const auto& row) { return step_ - pending_version_[row.first] > 20; });
  }

  void Cut(CutKind kind) {
    if (kind != CutKind::kFull && chain_.empty()) return;
    std::vector<std::unique_ptr<TableCut>> cuts;
    for (auto& part : parts_) cuts.push_back(CutOf(part.get(), kind));
    const Model at_cut = model_;
    const auto versions = pending_version_;
    for (std::uint64_t n = random_() % 4; n > 0; --n) Push();
    std::vector<StoredTable> stored;
    for (auto& cut : cuts) {
      stored.push_back(ReadCut(cut.get(), random_()));
      if (random_() % 2 == 0) Erase();
    }
    if (random_() % 4 == 0) {
      for (auto& cut : cuts) {
        if (random_() % 2 == 0) cut->Failed();
      }
      return;
    }
    for (auto& cut : cuts) cut->Committed();
    if (kind == CutKind::kFull) chain_.clear();
    if (kind == CutKind::kCumulative) chain_.resize(1);
    chain_.push_back(std::move(stored));
    durable_ = at_cut;
    durable_pending_version_ = versions;
  }

  void Crash() {
    if (chain_.empty()) return;
    SetPartitions(1 + random_() % 4);
    for (auto& part : parts_) {
      const Status loaded = LoadChain(part.get(), chain_);
      ASSERT_TRUE(loaded.ok()) << loaded.ToString();
    }
    model_ = durable_;
    pending_version_ = durable_pending_version_;
    ExpectSame();
  }

  void ExpectSame() {
    Model found;
    std::uint64_t pending = 0;
    for (auto& part : parts_) {
      for (const auto& [key, row] : RowsOf(part.get())) {
        found.rows[key] = {static_cast<double>(row.weights[0]), row.frequency, row.version};
      }
      pending += part->pending_size();
    }
    ASSERT_EQ(found.rows, model_.rows) << "step " << step_;
    ASSERT_EQ(pending, model_.pending.size()) << "step " << step_;
  }

  std::mt19937_64 random_;
  const std::uint32_t admission_;
  std::int64_t step_ = 0;
  std::vector<std::unique_ptr<Table>> parts_;
  Model model_;
  std::map<std::int64_t, std::int64_t> pending_version_;
  // What a restore gives: a full and increments, each with a part for each partition of its time.
  std::vector<std::vector<StoredTable>> chain_;
  Model durable_;
  std::map<std::int64_t, std::int64_t> durable_pending_version_;
};

TEST(Property, TheTableIsItsModel) {
  crash::Torture torture("table_property", 60);
  torture.Run([&](std::uint64_t seed) {
    SCOPED_TRACE(seed);
    Sequence(seed, seed % 2 == 0 ? 0 : 2 + seed % 3).Run(300);
    torture.Count("sequences", 1);
    return !HasFailure();
  });
}

}  // namespace
}  // namespace cairn::table
