// Full checkpoints and increments of a sparse model in C++; see examples/incremental_session.py.
//
//   incremental_session DIR [STEPS] [KILL_AT]
//
// An embedding of 30 x 4 numbers in 4 partitions, ids i % 10, Adagrad with a rate of 0.1 and
// accumulators that begin with 1. Started again after it was killed (KILL_AT lets it kill itself
// before that step) it goes on and ends with the values of an undisturbed run, which it prints.

#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <cairn/session.h>

namespace {

constexpr int kRows = 30;
constexpr int kPartitions = 4;
constexpr std::uint32_t kDim = 4;

struct Model {
  Model() {
    for (int i = 0; i < kPartitions; ++i) {
      cairn::TableOptions options;
      options.name = "a/part_" + std::to_string(i);
      options.dim = kDim;
      options.initializer = cairn::MakeConstant(1).value();
      options.optimizer =
          cairn::MakeAdagrad({.learning_rate = 0.1F, .initial_accumulator_value = 1}).value();
      parts.push_back(cairn::Table::Make(std::move(options)).value());
    }
  }

  /// The partition of a row, and its number there: the first ones have a row more.
  static std::pair<int, std::int64_t> Place(int row) {
    constexpr int kSize = kRows / kPartitions;
    constexpr int kLonger = kRows % kPartitions;
    if (row < kLonger * (kSize + 1)) return {row / (kSize + 1), row % (kSize + 1)};
    row -= kLonger * (kSize + 1);
    return {kLonger + row / kSize, row % kSize};
  }

  // loss = sum(2 * embedding(id)): the gradient is 2 for each number of the id's row.
  cairn::Status Train(int row) {
    const auto [part, inside] = Place(row);
    const std::array<std::int64_t, 1> ids = {inside};
    std::array<float, kDim> weights{};
    cairn::Status status = parts[part]->Lookup(ids, weights);
    if (!status.ok()) return status;
    loss = 0;
    for (const float w : weights) loss += 2 * w;
    return parts[part]->ApplyGradients(ids, std::array<float, kDim>{2, 2, 2, 2});
  }

  /// The first number of a row.
  cairn::Result<float> Value(int row) {
    const auto [part, inside] = Place(row);
    const std::array<std::int64_t, 1> ids = {inside};
    std::array<float, kDim> weights{};
    const cairn::Status status = parts[part]->Lookup(ids, weights);
    if (!status.ok()) return status;
    return weights[0];
  }

  std::vector<std::unique_ptr<cairn::Table>> parts;
  float loss = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: incremental_session DIR [STEPS] [KILL_AT]\n");
    return 2;
  }
  const int steps = argc > 2 ? std::atoi(argv[2]) : 60;
  const int kill_at = argc > 3 ? std::atoi(argv[3]) : -1;
  Model model;
  cairn::SessionOptions options{.checkpoint_dir = argv[1],
                                .save_checkpoint_secs = 1,
                                .save_incremental_checkpoint_secs = 0.2};
  for (const auto& part : model.parts) options.tables.push_back(part.get());
  auto session = cairn::TrainingSession::Open(std::move(options));
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().ToString().c_str());
    return 1;
  }
  if (const auto& restored = (*session)->restored()) {
    std::printf("goes on at step %lld, from the newest checkpoint (%s)\n",
                static_cast<long long>(restored->step), restored->info.kind.c_str());
  }
  while ((*session)->global_step() < steps) {
    const cairn::Status status = (*session)->Run([&](std::int64_t step) {
      if (step == kill_at) kill(getpid(), SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a step that takes its time
      return model.Train(static_cast<int>(step % 10));
    });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  const cairn::Status closed = (*session)->Close();
  if (!closed.ok()) {
    std::fprintf(stderr, "%s\n", closed.ToString().c_str());
    return 1;
  }
  std::printf("step %lld loss %.6f\n", static_cast<long long>((*session)->global_step()),
              model.loss);
  std::printf("values");
  for (int row = 0; row < 10; ++row) {
    const auto value = model.Value(row);
    if (!value.ok()) {
      std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
      return 1;
    }
    std::printf(" %.6f", *value);
  }
  std::printf("\n");
  return 0;
}
