#include "bench/state.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cairn::bench {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kOffsetInPage = 64;

std::uint64_t BytesOf(const State::Shape& shape) {
  std::uint64_t bytes = 4;
  for (const std::uint64_t dim : shape.dims) bytes *= dim;
  return bytes;
}

}  // namespace

State::State(const std::vector<Shape>& shapes) {
  constexpr std::uint64_t kHuge = 2u << 20;
  std::uint64_t room = 0;
  for (const Shape& shape : shapes) {
    bytes_ += BytesOf(shape);
    room += (kOffsetInPage + BytesOf(shape) + kPage - 1) / kPage * kPage;
  }
  mapped_bytes_ = (room + kHuge - 1) / kHuge * kHuge + kHuge;
  void* mapped =
      mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    std::perror("no memory for the state");
    std::exit(1);
  }
  madvise(mapped, mapped_bytes_, MADV_HUGEPAGE);
  mapped_ = static_cast<std::byte*>(mapped);
  // Incompressible, in case a layer below compresses.
  std::uint64_t x = 88172645463325252u;
  auto* words = reinterpret_cast<std::uint64_t*>(mapped_);
  for (std::uint64_t i = 0; i < mapped_bytes_ / 8; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    words[i] = x;
  }
  std::byte* next = mapped_;
  for (const Shape& shape : shapes) {
    Tensor tensor;
    tensor.name = shape.name;
    tensor.dtype = DType::kF32;
    tensor.shape = shape.dims;
    tensor.data = next + kOffsetInPage;
    tensors_.push_back(std::move(tensor));
    next += (kOffsetInPage + BytesOf(shape) + kPage - 1) / kPage * kPage;
  }
}

State::~State() { munmap(mapped_, mapped_bytes_); }

std::span<std::byte> State::memory(std::size_t tensor) const {
  const Tensor& t = tensors_[tensor];
  auto* data = static_cast<std::byte*>(const_cast<void*>(t.data));
  return {data, BytesOf({t.name, t.shape})};
}

std::vector<MutableTensor> State::Targets() {
  std::vector<MutableTensor> targets;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    MutableTensor target;
    target.name = tensors_[i].name;
    target.dtype = tensors_[i].dtype;
    target.shape = tensors_[i].shape;
    target.data = memory(i).data();
    targets.push_back(std::move(target));
  }
  return targets;
}

std::span<const std::byte> State::Contiguous() const {
  return {mapped_, (bytes_ + kPage - 1) / kPage * kPage};
}

void State::Change(std::size_t first, std::size_t count) {
  ++changes_;
  for (std::size_t i = first; i < first + count && i < tensors_.size(); ++i) {
    const std::span<std::byte> bytes = memory(i);
    std::memcpy(bytes.data() + bytes.size() / 2 / 8 * 8, &changes_,
                std::min<std::size_t>(bytes.size(), sizeof changes_));
  }
}

std::vector<State::Shape> UniformShapes(std::uint64_t bytes) {
  std::vector<State::Shape> shapes;
  for (int i = 0; i < 64; ++i) {
    shapes.push_back({"layer." + std::to_string(i) + ".weight", {bytes / 64 / 4096, 1024}});
  }
  return shapes;
}

std::vector<State::Shape> MixedShapes(std::uint64_t bytes) {
  constexpr std::uint64_t kSmall = 64u << 10;
  std::vector<State::Shape> shapes;
  std::uint64_t left = bytes;
  for (int i = 0; i < 1000 && left > bytes / 2; ++i) {
    shapes.push_back({"small." + std::to_string(i), {16, kSmall / 4 / 16}});
    left -= kSmall;
  }
  int number = 0;
  while (left > 0) {
    for (const std::uint64_t mib : {1, 4, 16, 64, 128}) {
      const std::uint64_t n = std::min(left, mib << 20);
      if (n < 4096) return shapes;
      shapes.push_back({"large." + std::to_string(number++), {n / 4}});
      left -= n;
    }
  }
  return shapes;
}

std::vector<State::Shape> Gpt2Shapes(std::uint64_t bytes) {
  constexpr std::uint64_t kWidth = 768;
  std::vector<State::Shape> shapes;
  std::uint64_t total = 0;
  for (const char* copy : {"model", "exp_avg", "exp_avg_sq", "ema"}) {
    const std::string prefix = std::string(copy) + ".transformer.";
    const auto add = [&](const std::string& name, std::vector<std::uint64_t> dims) {
      State::Shape shape{prefix + name, std::move(dims)};
      if (total + BytesOf(shape) > bytes) return;
      total += BytesOf(shape);
      shapes.push_back(std::move(shape));
    };
    add("wte.weight", {50257, kWidth});
    add("wpe.weight", {1024, kWidth});
    for (int layer = 0; layer < 12; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      add(h + "ln_1.weight", {kWidth});
      add(h + "ln_1.bias", {kWidth});
      add(h + "attn.c_attn.weight", {kWidth, 3 * kWidth});
      add(h + "attn.c_attn.bias", {3 * kWidth});
      add(h + "attn.c_proj.weight", {kWidth, kWidth});
      add(h + "attn.c_proj.bias", {kWidth});
      add(h + "ln_2.weight", {kWidth});
      add(h + "ln_2.bias", {kWidth});
      add(h + "mlp.c_fc.weight", {kWidth, 4 * kWidth});
      add(h + "mlp.c_fc.bias", {4 * kWidth});
      add(h + "mlp.c_proj.weight", {4 * kWidth, kWidth});
      add(h + "mlp.c_proj.bias", {kWidth});
    }
    add("ln_f.weight", {kWidth});
    add("ln_f.bias", {kWidth});
  }
  return shapes;
}

std::vector<State::Shape> SmallShapes(std::size_t count, std::uint64_t bytes_each) {
  std::vector<State::Shape> shapes;
  for (std::size_t i = 0; i < count; ++i) {
    shapes.push_back({"block." + std::to_string(i) + ".weight", {bytes_each / 4}});
  }
  return shapes;
}

std::vector<State::Shape> ShapesOf(const std::string& name, std::uint64_t bytes) {
  if (name == "mix") return MixedShapes(bytes);
  if (name == "gpt2") return Gpt2Shapes(bytes);
  return UniformShapes(bytes);
}

}  // namespace cairn::bench
