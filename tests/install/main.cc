// What a user of the installed package writes: public headers, one library.

#include <cstdio>
#include <string>

#include <cairn/status.h>
#include <cairn/trainer.h>

int main() {
  const cairn::Status missing = cairn::NotFoundError("no checkpoint");
  if (missing.ok() || missing.ToString().find("no checkpoint") == std::string::npos) {
    std::fprintf(stderr, "unexpected status: %s\n", missing.ToString().c_str());
    return 1;
  }
  double sum = 0;
  auto trainer = cairn::Trainer::Open(
      {.model = {{.name = "sum", .dtype = cairn::DType::kF64, .shape = {}, .data = &sum}},
       .checkpoint_config = cairn::CheckpointConfig{.checkpoint_dir = "runs/a"}});
  cairn::ShuffledIndices reader({.size = 100, .batch_size = 10});
  auto result = trainer.value()->Train(2, reader, [&](const std::vector<std::uint64_t>& batch) {
    for (const std::uint64_t index : batch) sum += static_cast<double>(index);
  });
  if (!result.ok() || sum != 9900) {
    std::fprintf(stderr, "training: %s, sum %f\n", result.status().ToString().c_str(), sum);
    return 1;
  }
  std::puts("ok");
  return 0;
}
