// The click-through model of examples/ctr in C++: one trainer of a job with parameter servers.
//
//   cairn ps run --servers 2 --trainers 2 --dir runs/ctr --incremental-secs 5 -- ctr_servers 240
//   [OUTPUT]
//
// A factorization machine. The data of a step is a pure function of (step, trainer), so that a step
// that has to be repeated after a loss is the same step.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <cairn/ps.h>

namespace {

constexpr std::size_t kFields = 8;
constexpr std::size_t kFactors = 8;
constexpr std::size_t kWidth = 1 + kFactors;  // a weight, then factors
constexpr std::size_t kBatch = 256;

struct Clicks {
  std::vector<std::int64_t> ids;  // kFields for each impression
  std::vector<float> labels;
};

Clicks Draw(std::int64_t step, int trainer, std::size_t count) {
  std::mt19937_64 random(static_cast<std::uint64_t>(step) * 1000 +
                         static_cast<std::uint64_t>(trainer));
  std::uniform_real_distribution<double> uniform(0, 1);
  Clicks clicks;
  for (std::size_t i = 0; i < count; ++i) {
    double taste = 0;
    for (std::size_t field = 0; field < kFields; ++field) {
      // Skewed: few ids are seen all the time, most hardly ever.
      const auto rank = static_cast<std::int64_t>(std::pow(uniform(random), -1.0 / 0.3)) % 20000;
      clicks.ids.push_back(static_cast<std::int64_t>(field) * 1'000'000 + rank);
      taste += std::sin(static_cast<double>(rank) * 0.7);
    }
    clicks.labels.push_back(uniform(random) < 1 / (1 + std::exp(-taste)) ? 1.0F : 0.0F);
  }
  return clicks;
}

/// The probability of a click; `total` gets the sums of the factors.
float Predict(const float* rows, float bias, float* total) {
  float score = bias;
  std::fill_n(total, kFactors, 0.0F);
  float squares = 0;
  for (std::size_t field = 0; field < kFields; ++field) {
    const float* row = rows + field * kWidth;
    score += row[0];
    for (std::size_t k = 0; k < kFactors; ++k) {
      total[k] += row[1 + k];
      squares += row[1 + k] * row[1 + k];
    }
  }
  float pairs = -squares;
  for (std::size_t k = 0; k < kFactors; ++k) pairs += total[k] * total[k];
  return 1 / (1 + std::exp(-(score + 0.5F * pairs)));
}

cairn::Status TrainStep(const Clicks& clicks, cairn::ps::RemoteTable* table,
                        cairn::ps::RemoteDense* bias) {
  std::vector<float> rows(clicks.ids.size() * kWidth);
  std::vector<float> b(1);
  if (auto status = table->Lookup(clicks.ids, rows); !status.ok()) return status;
  if (auto status = bias->Pull(b); !status.ok()) return status;
  std::vector<float> gradient(rows.size());
  std::vector<float> bias_gradient(1, 0.0F);
  for (std::size_t i = 0; i < clicks.labels.size(); ++i) {
    float total[kFactors];
    const std::size_t at = i * kFields * kWidth;
    const float error = (Predict(&rows[at], b[0], total) - clicks.labels[i]) / float{kBatch};
    bias_gradient[0] += error;
    for (std::size_t field = 0; field < kFields; ++field) {
      const std::size_t row = at + field * kWidth;
      gradient[row] = error;
      for (std::size_t k = 0; k < kFactors; ++k) {
        gradient[row + 1 + k] = error * (total[k] - rows[row + 1 + k]);
      }
    }
  }
  if (auto status = table->ApplyGradients(clicks.ids, gradient); !status.ok()) return status;
  return bias->Push(bias_gradient);
}

cairn::Result<double> Auc(cairn::ps::RemoteTable* table, cairn::ps::RemoteDense* bias) {
  const Clicks clicks = Draw(1'000'000, 0, 20'000);
  std::vector<float> rows(clicks.ids.size() * kWidth);
  std::vector<float> b(1);
  if (auto s = table->Lookup(clicks.ids, rows, cairn::Missing::kInitial); !s.ok()) return s;
  if (auto s = bias->Pull(b); !s.ok()) return s;
  std::vector<float> scores;
  for (std::size_t i = 0; i < clicks.labels.size(); ++i) {
    float total[kFactors];
    scores.push_back(Predict(&rows[i * kFields * kWidth], b[0], total));
  }
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return scores[x] < scores[y]; });
  double ranks = 0;
  double positive = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    if (clicks.labels[order[rank]] < 0.5F) continue;
    ranks += static_cast<double>(rank + 1);
    ++positive;
  }
  return (ranks - positive * (positive + 1) / 2) /
         (positive * (static_cast<double>(scores.size()) - positive));
}

cairn::Status Run(std::int64_t steps, const std::string& output) {
  auto options = cairn::ps::ClientOptions::FromEnvironment();
  if (!options.ok()) return options.status();
  auto connected = cairn::ps::Client::Connect(*options);
  if (!connected.ok()) return connected.status();
  cairn::ps::Client* client = connected->get();
  auto table = client->Table({.name = "features",
                              .dim = kWidth,
                              .optimizer = {"adagrad", {{"learning_rate", 0.05}}},
                              .initializer = {"normal", 0, 0.05}});
  if (!table.ok()) return table.status();
  auto bias =
      client->Dense({.name = "bias", .shape = {1}, .optimizer = {"sgd", {{"learning_rate", 0.1}}}},
                    std::vector<float>(1));
  if (!bias.ok()) return bias.status();
  for (;;) {
    cairn::Status status;
    double auc = 0;
    if (client->step() < steps) {
      const std::int64_t step = client->step();
      status = TrainStep(Draw(step, client->trainer(), kBatch), *table, *bias);
      if (status.ok()) status = client->EndStep("{}");
    } else {
      status = client->Barrier();
      auto measured = status.ok() ? Auc(*table, *bias) : cairn::Result<double>(status);
      status = measured.ok() ? client->Barrier() : measured.status();
      if (measured.ok()) auc = *measured;
      if (status.ok()) {
        if (client->trainer() == 0) {
          std::printf("AUC %.6f after %lld steps\n", auc, static_cast<long long>(steps));
          if (!output.empty()) std::ofstream(output) << auc << "\n";
        }
        return client->Close();
      }
    }
    // A process of the job was lost: go on from where the servers are.
    if (status.Is(cairn::Code::kAborted)) {
      std::printf("went back to step %lld\n", static_cast<long long>(client->step()));
      continue;
    }
    if (!status.ok()) return status;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("ctr_servers STEPS [OUTPUT]\n", stderr);
    return 2;
  }
  const cairn::Status status = Run(std::atoll(argv[1]), argc > 2 ? argv[2] : "");
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
