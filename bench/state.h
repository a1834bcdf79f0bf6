#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>

namespace cairn::bench {

/// A training job's tensors, in memory that was written once. Each tensor starts 64 bytes behind a
/// page boundary, as allocators of arrays give them out.
class State {
 public:
  struct Shape {
    std::string name;
    std::vector<std::uint64_t> dims;  // of float32
  };
  explicit State(const std::vector<Shape>& shapes);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  std::size_t count() const { return tensors_.size(); }
  std::vector<Tensor> Views() const { return tensors_; }
  std::vector<MutableTensor> Targets();
  std::span<std::byte> memory(std::size_t tensor) const;
  /// The same number of bytes (rounded up to 4 KiB) in one piece that starts at a page boundary.
  std::span<const std::byte> Contiguous() const;

  /// Changes a few bytes of each tensor in [first, first + count), so that a save writes it again.
  void Change(std::size_t first, std::size_t count);
  void ChangeAll() { Change(0, count()); }

 private:
  std::byte* mapped_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<Tensor> tensors_;
  std::uint64_t changes_ = 0;
};

/// 64 tensors.
std::vector<State::Shape> UniformShapes(std::uint64_t bytes);
/// 1,000 tensors of 64 KiB (fewer when they would be more than half of it) among larger ones.
std::vector<State::Shape> MixedShapes(std::uint64_t bytes);
/// GPT-2 (124M) with the two moments of Adam and an average of the weights, as far as it fits.
std::vector<State::Shape> Gpt2Shapes(std::uint64_t bytes);
std::vector<State::Shape> SmallShapes(std::size_t count, std::uint64_t bytes_each);
/// By name: "uniform", "mix", "gpt2".
std::vector<State::Shape> ShapesOf(const std::string& name, std::uint64_t bytes);

}  // namespace cairn::bench
