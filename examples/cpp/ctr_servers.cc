// The click-through model of examples/ctr in C++: one trainer of a job with parameter servers.
//
//   cairn ps run --servers 2 --trainers 2 --dir runs/ctr --incremental-secs 5 -- ctr_servers
//   [--steps 240] [--pause SECONDS] [--output FILE]
//
// `python examples/ctr/run.py --trainer ctr_servers` runs it twice, kills servers in the second
// run, and compares. A factorization machine on days of data whose ids are skewed. The data of a
// step is a pure function of (step, trainer), so that a step that has to be repeated after a loss
// is the same step.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cairn/ps.h>

namespace {

constexpr std::size_t kFields = 8;
constexpr std::size_t kFactors = 8;
constexpr std::size_t kWidth = 1 + kFactors;  // a weight, then factors
constexpr std::size_t kBatch = 256;
constexpr std::int64_t kStepsOfADay = 60;

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
      // What is popular shifts from day to day.
      const std::int64_t id = rank + step / kStepsOfADay * 37;
      clicks.ids.push_back(static_cast<std::int64_t>(field) * 1'000'000 + id);
      taste += std::sin(static_cast<double>(id) * 0.7);
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

/// On data that nobody trained on.
cairn::Result<double> Auc(cairn::ps::RemoteTable* table, cairn::ps::RemoteDense* bias,
                          std::int64_t steps) {
  const Clicks clicks = Draw(steps - 1, 999, 20'000);  // of the last day
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

/// FNV-1a of everything that was learned: the same bits give the same text.
class Digest {
 public:
  template <typename T>
  void Add(const T* values, std::size_t count) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    for (std::size_t i = 0; i < count * sizeof(T); ++i) {
      hash_ = (hash_ ^ bytes[i]) * 0x100000001b3;
    }
  }
  std::string Text() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

cairn::Result<std::string> Learned(cairn::ps::RemoteTable* table, cairn::ps::RemoteDense* bias) {
  std::vector<float> b(1);
  if (auto s = bias->Pull(b); !s.ok()) return s;
  const auto content = table->Content();
  if (!content.ok()) return content.status();
  std::vector<std::size_t> order(content->keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t x, std::size_t y) { return content->keys[x] < content->keys[y]; });
  const std::size_t slots = order.empty() ? 0 : content->slots.size() / order.size();
  Digest digest;
  digest.Add(b.data(), 1);
  for (const std::size_t i : order) {
    digest.Add(&content->keys[i], 1);
    digest.Add(&content->weights[i * kWidth], kWidth);
    digest.Add(content->slots.data() + i * slots, slots);
    digest.Add(&content->frequency[i], 1);
    digest.Add(&content->version[i], 1);
  }
  return digest.Text();
}

struct Result {
  double auc = 0;
  std::string learned;
};

/// When all trainers are done; none leaves before all have looked.
cairn::Result<Result> Evaluate(cairn::ps::Client* client, cairn::ps::RemoteTable* table,
                               cairn::ps::RemoteDense* bias, std::int64_t steps) {
  if (auto status = client->Barrier(); !status.ok()) return status;
  const auto auc = Auc(table, bias, steps);
  if (!auc.ok()) return auc.status();
  const auto learned = Learned(table, bias);
  if (!learned.ok()) return learned.status();
  if (auto status = client->Barrier(); !status.ok()) return status;
  return Result{*auc, *learned};
}

/// Tells what trainer 0 sees of losses, as train.py does: run.py makes a table of it.
class Losses {
 public:
  void WentBack(std::int64_t from, std::int64_t to) {
    std::printf("went back from step %lld to %lld\n", static_cast<long long>(from),
                static_cast<long long>(to));
    lost_ = true;
    from_ = from;
    to_ = to;
    since_ = completed_;
  }
  void Completed(std::int64_t step) {
    completed_ = std::chrono::steady_clock::now();
    std::printf("step %lld\n", static_cast<long long>(step));
    if (lost_ && step >= from_) {
      lost_ = false;
      std::printf(
          "recovered {\"killed_at\": %lld, \"restored\": %lld, \"repeated\": %lld, "
          "\"seconds\": %.3f}\n",
          static_cast<long long>(from_), static_cast<long long>(to_),
          static_cast<long long>(from_ - to_),
          std::chrono::duration<double>(completed_ - since_).count());
    }
    std::fflush(stdout);
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  Time completed_ = std::chrono::steady_clock::now();
  Time since_;
  bool lost_ = false;
  std::int64_t from_ = 0;
  std::int64_t to_ = 0;
};

cairn::Status Tell(const Result& result, const std::string& output) {
  std::printf("AUC %.6f, learned %s\n", result.auc, result.learned.c_str());
  if (output.empty()) return cairn::Status::Ok();
  std::FILE* file = std::fopen(output.c_str(), "w");
  if (file == nullptr) return cairn::UnavailableError("cannot write " + output);
  std::fprintf(file, "{\"auc\": %.17g, \"learned\": \"%s\"}\n", result.auc, result.learned.c_str());
  return std::fclose(file) == 0 ? cairn::Status::Ok()
                                : cairn::UnavailableError("cannot write " + output);
}

cairn::Status Run(std::int64_t steps, double pause, const std::string& output) {
  auto options = cairn::ps::ClientOptions::FromEnvironment();
  if (!options.ok()) return options.status();
  auto connected = cairn::ps::Client::Connect(*options);
  if (!connected.ok()) return connected.status();
  cairn::ps::Client* client = connected->get();
  const bool chief = client->trainer() == 0;
  auto table = client->Table({.name = "features",
                              .dim = kWidth,
                              .optimizer = {"adagrad", {{"learning_rate", 0.05}}},
                              .initializer = {"normal", 0, 0.05}});
  if (!table.ok()) return table.status();
  auto bias =
      client->Dense({.name = "bias", .shape = {1}, .optimizer = {"sgd", {{"learning_rate", 0.1}}}},
                    std::vector<float>(1));
  if (!bias.ok()) return bias.status();
  if (client->step() > 0 && chief) {
    std::printf("goes on from step %lld\n", static_cast<long long>(client->step()));
    std::fflush(stdout);
  }
  Losses losses;
  for (;;) {
    const std::int64_t step = client->step();
    cairn::Status status;
    if (step < steps) {
      status = TrainStep(Draw(step, client->trainer(), kBatch), *table, *bias);
      if (status.ok()) status = client->EndStep("{}");
      if (status.ok() && chief) losses.Completed(step);
      std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    } else {
      const auto result = Evaluate(client, *table, *bias, steps);
      if (result.ok() && chief) status = Tell(*result, output);
      if (result.ok() && status.ok()) status = client->Close();
      if (result.ok() && status.ok()) return status;
      if (!result.ok()) status = result.status();
    }
    // A process of the job was lost: go on from where the servers are.
    if (status.Is(cairn::Code::kAborted)) {
      if (chief) losses.WentBack(step, client->step());
      continue;
    }
    if (!status.ok()) return status;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t steps = 4 * kStepsOfADay;
  double pause = 0;
  std::string output;
  for (int i = 1; i < argc; i += 2) {
    const std::string word = argv[i];
    if (i + 1 == argc || (word != "--steps" && word != "--pause" && word != "--output")) {
      std::fputs("ctr_servers [--steps N] [--pause SECONDS] [--output FILE]\n", stderr);
      return 2;
    }
    if (word == "--steps") steps = std::atoll(argv[i + 1]);
    if (word == "--pause") pause = std::atof(argv[i + 1]);
    if (word == "--output") output = argv[i + 1];
  }
  const cairn::Status status = Run(steps, pause, output);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
