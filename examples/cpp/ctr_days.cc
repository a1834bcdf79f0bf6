// Incremental training on one machine: today's training goes on where yesterday's ended.
//
//   python3 examples/data/make_ctr_days.py data/ctr
//   build/dev/bin/ctr_days data/ctr models/ctr
//
// A click model learns day 1 and saves its persistables. Next day the same program is built and
// initialised, loads them, and learns day 2: bit for bit what learning both days without a break
// gives. Then a warm start with a changed head, which is left out of the load by name, and one with
// another optimizer, which takes the parameters alone.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <cairn/io.h>
#include <cairn/scope.h>

namespace {

constexpr std::size_t kFields = 4;
constexpr std::size_t kIds = 1000;
constexpr std::size_t kWidth = 4;
constexpr std::size_t kBatch = 64;

struct Row {
  float label = 0;
  std::array<std::size_t, kFields> ids = {};
};

template <typename T>
T OrExit(cairn::Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}
void OrExit(const cairn::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

std::vector<Row> ReadDay(const std::string& data, int day) {
  const std::string path = data + "/day_" + std::to_string(day) + ".txt";
  std::ifstream file(path);
  std::vector<Row> rows;
  for (Row row; file >> row.label;) {
    for (std::size_t f = 0; f < kFields; ++f) {
      file >> row.ids[f];
      row.ids[f] = f * kIds + std::min(row.ids[f], kIds - 1);
    }
    rows.push_back(row);
  }
  if (rows.empty()) {
    std::fprintf(stderr, "%s: no rows; make them with examples/data/make_ctr_days.py\n",
                 path.c_str());
    std::exit(1);
  }
  return rows;
}

/// The click model: an embedding for each id, and a head over the embeddings of a row. The head has
/// `columns` columns whose mean counts.
class Program {
 public:
  explicit Program(std::uint64_t columns = 1, bool adagrad = true) : adagrad_(adagrad) {
    using cairn::DType;
    using cairn::VariableInitializer;
    const auto declare = [&](const std::string& name, std::vector<std::uint64_t> shape,
                             VariableInitializer initializer) {
      OrExit(scope_.Parameter(name, DType::kF32, shape, {.initializer = initializer}));
      if (!adagrad_) return;
      OrExit(scope_.Persistable(name + "_accumulator", DType::kF32, shape,
                                {.initializer = VariableInitializer::Constant(0.1)}));
    };
    declare("embedding", {kFields * kIds, kWidth}, VariableInitializer::Normal(0, 0.1));
    declare("head/w", {kFields * kWidth, columns}, VariableInitializer::Normal(0, 0.3));
    declare("head/b", {1}, VariableInitializer::Constant(0));
    OrExit(scope_.Persistable("step", DType::kI64, {}));
    OrExit(scope_.Persistable("learning_rate", DType::kF32, {},
                              {.initializer = VariableInitializer::Constant(0.1)}));
    OrExit(scope_.Initialize(/*seed=*/7));
  }

  cairn::Scope& scope() { return scope_; }

  float Predict(const Row& row) {
    const auto embedding = OrExit(scope_.Values<const float>("embedding"));
    const auto head = OrExit(scope_.Values<const float>("head/w"));
    const std::size_t columns = head.size() / (kFields * kWidth);
    float sum = 0;
    for (std::size_t f = 0; f < kFields; ++f) {
      for (std::size_t d = 0; d < kWidth; ++d) {
        for (std::size_t c = 0; c < columns; ++c) {
          sum += embedding[row.ids[f] * kWidth + d] * head[(f * kWidth + d) * columns + c];
        }
      }
    }
    const float bias = OrExit(scope_.Values<const float>("head/b"))[0];
    return 1 / (1 + std::exp(-(sum / static_cast<float>(columns) + bias)));
  }

  void Train(const std::vector<Row>& rows) {
    for (std::size_t at = 0; at < rows.size(); at += kBatch) {
      Learn({rows.data() + at, std::min(kBatch, rows.size() - at)});
    }
  }

  /// The chance that a click is ranked above a row without one.
  double Auc(const std::vector<Row>& rows) {
    std::vector<std::pair<float, float>> scored;
    for (const Row& row : rows) scored.emplace_back(Predict(row), row.label);
    std::stable_sort(scored.begin(), scored.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    double ranks = 0;
    double clicks = 0;
    for (std::size_t i = 0; i < scored.size(); ++i) {
      if (scored[i].second == 0) continue;
      ranks += static_cast<double>(i + 1);
      clicks += 1;
    }
    const double others = static_cast<double>(scored.size()) - clicks;
    return (ranks - clicks * (clicks + 1) / 2) / (clicks * others);
  }

 private:
  void Learn(std::span<const Row> batch) {
    const auto embedding = OrExit(scope_.Values<float>("embedding"));
    const auto head = OrExit(scope_.Values<float>("head/w"));
    const std::size_t columns = head.size() / (kFields * kWidth);
    std::vector<float> embedding_gradient(embedding.size());
    std::vector<float> head_gradient(head.size());
    std::vector<float> bias_gradient(1);
    for (const Row& row : batch) {
      const float error = (Predict(row) - row.label) / static_cast<float>(batch.size());
      bias_gradient[0] += error;
      for (std::size_t f = 0; f < kFields; ++f) {
        for (std::size_t d = 0; d < kWidth; ++d) {
          const std::size_t e = row.ids[f] * kWidth + d;
          for (std::size_t c = 0; c < columns; ++c) {
            const std::size_t h = (f * kWidth + d) * columns + c;
            const float part = error / static_cast<float>(columns);
            embedding_gradient[e] += part * head[h];
            head_gradient[h] += part * embedding[e];
          }
        }
      }
    }
    Update("embedding", embedding_gradient);
    Update("head/w", head_gradient);
    Update("head/b", bias_gradient);
    OrExit(scope_.Values<std::int64_t>("step"))[0] += 1;
    scope_.EndIteration();
  }

  void Update(const std::string& name, const std::vector<float>& gradient) {
    const float rate = OrExit(scope_.Values<float>("learning_rate"))[0];
    const auto values = OrExit(scope_.Values<float>(name));
    if (!adagrad_) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 10 * rate * gradient[i];
      return;
    }
    const auto sums = OrExit(scope_.Values<float>(name + "_accumulator"));
    for (std::size_t i = 0; i < values.size(); ++i) {
      sums[i] += gradient[i] * gradient[i];
      values[i] -= rate * gradient[i] / std::sqrt(sums[i]);
    }
  }

  const bool adagrad_;
  cairn::Scope scope_;
};

bool Same(Program& a, Program& b) {
  for (const cairn::Variable& variable : a.scope().Vars(cairn::Role::kPersistable)) {
    const auto other = OrExit(b.scope().Bytes(variable.name));
    if (std::memcmp(variable.data.get(), other.data(), variable.bytes) != 0) return false;
  }
  return true;
}

void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

void WarmStarts(const std::string& saved, std::size_t variables, const std::vector<Row>& day_2,
                const std::vector<Row>& day_3) {
  // A changed head: refused as it stands, loaded when it is left out by name.
  Program wider(/*columns=*/3);
  cairn::MismatchReport mismatch;
  if (cairn::LoadPersistables(saved, &wider.scope(), {.mismatch = &mismatch}).ok()) {
    Fail("another head was accepted");
  }
  std::printf("changed head: %s\n", mismatch.mismatched.at(0).c_str());
  const cairn::LoadedVars loaded = OrExit(
      cairn::LoadPersistables(saved, &wider.scope(), {.skip = {"head/w", "head/w_accumulator"}}));
  wider.Train(day_2);
  Program cold_wider(/*columns=*/3);
  cold_wider.Train(day_2);
  std::printf(
      "changed head, left out by name: %zu of %zu variables loaded; AUC %.4f, without them %.4f\n",
      loaded.names.size(), variables, wider.Auc(day_3), cold_wider.Auc(day_3));

  // Another optimizer has no use for the slots: the parameters alone, on purpose.
  Program plain(/*columns=*/1, /*adagrad=*/false);
  OrExit(cairn::LoadParams(saved, &plain.scope()));
  plain.Train(day_2);
  Program cold_plain(/*columns=*/1, /*adagrad=*/false);
  cold_plain.Train(day_2);
  std::printf("another optimizer, parameters alone: AUC %.4f, without them %.4f\n",
              plain.Auc(day_3), cold_plain.Auc(day_3));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Fail("usage: ctr_days DATA MODELS");
  const std::vector<Row> day_1 = ReadDay(argv[1], 1);
  const std::vector<Row> day_2 = ReadDay(argv[1], 2);
  const std::vector<Row> day_3 = ReadDay(argv[1], 3);
  const std::string saved = std::string(argv[2]) + "/day_1";

  Program unbroken;
  unbroken.Train(day_1);
  unbroken.Train(day_2);

  Program first;
  first.Train(day_1);
  const cairn::SavedVars report = OrExit(cairn::SavePersistables(saved, first.scope()));
  std::printf("day 1: saved %zu variables, %llu bytes\n", report.names.size(),
              static_cast<unsigned long long>(report.bytes));
  Program second;
  OrExit(cairn::LoadPersistables(saved, &second.scope()));
  second.Train(day_2);
  if (!Same(unbroken, second)) Fail("day 1, save, load, day 2 is not the unbroken training");
  std::printf("day 1, save, load, day 2: bit for bit the unbroken training\n");

  Program alone;
  alone.Train(day_2);
  std::printf("AUC on day 3: both days %.4f, day 2 alone %.4f\n", second.Auc(day_3),
              alone.Auc(day_3));
  if (second.Auc(day_3) <= alone.Auc(day_3)) Fail("two days are no better than one");
  WarmStarts(saved, report.names.size(), day_2, day_3);
  return 0;
}
