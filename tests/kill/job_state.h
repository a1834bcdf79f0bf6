#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <cairn/checkpoint_manager.h>

namespace cairn::kill {

/// The state of a pretended training job: a pure function of (seed, step), so that a checker needs
/// no record of the values. One tensor changes at every step, one now and then (its file is
/// shared), one never; they are large enough for files to be recycled.
struct JobState {
  std::vector<std::uint64_t> hot = std::vector<std::uint64_t>(180'000);
  std::vector<std::uint64_t> warm = std::vector<std::uint64_t>(40'000);
  std::vector<std::uint64_t> cold = std::vector<std::uint64_t>(20'000);

  static std::uint64_t Mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  static void Fill(std::vector<std::uint64_t>* values, std::uint64_t key) {
    std::uint64_t x = Mix(key);
    for (std::uint64_t& value : *values) value = x += 0x9e3779b97f4a7c15ULL;
  }
  void Compute(std::uint64_t seed, std::int64_t step, int rank) {
    const auto s = static_cast<std::uint64_t>(step);
    const auto r = static_cast<std::uint64_t>(rank) << 56;
    Fill(&hot, seed ^ r ^ (s << 8));
    Fill(&warm, seed ^ r ^ ((s / 6) << 8) ^ 1);
    Fill(&cold, seed ^ r ^ 2);
  }
  std::vector<Tensor> Views(int rank, int ranks) const {
    return {View("hot", hot, rank, ranks), View("warm", warm, rank, ranks),
            View("cold", cold, rank, ranks)};
  }
  std::vector<MutableTensor> Targets(int rank, int ranks) {
    return {Target("hot", &hot, rank, ranks), Target("warm", &warm, rank, ranks),
            Target("cold", &cold, rank, ranks)};
  }
  friend bool operator==(const JobState&, const JobState&) = default;

 private:
  static ShardSpec Place(std::uint64_t size, int rank, int ranks) {
    return {{size * static_cast<std::uint64_t>(ranks)}, {size * static_cast<std::uint64_t>(rank)}};
  }
  static Tensor View(const char* name, const std::vector<std::uint64_t>& v, int rank, int ranks) {
    return {.name = name,
            .dtype = DType::kU64,
            .shape = {v.size()},
            .data = v.data(),
            .shard = Place(v.size(), rank, ranks)};
  }
  static MutableTensor Target(const char* name, std::vector<std::uint64_t>* v, int rank,
                              int ranks) {
    return {.name = name,
            .dtype = DType::kU64,
            .shape = {v->size()},
            .data = v->data(),
            .shard = Place(v->size(), rank, ranks)};
  }
};

/// What the writer tells the outside while it lives, in a mapped file: it survives the kill, and
/// needs no operation that the kill could tear.
struct Blackboard {
  static constexpr std::size_t kNameBytes = 56;
  std::int64_t acknowledged;  // the newest acknowledged step, -1 before the first
  std::int64_t resumed;       // the step that it resumed from, -1 for a fresh start
  char step[kNameBytes];      // the protocol step under way
  bool bereft;                // the test's word: another rank has died, do not wait long for it

  void SetStep(std::string_view name) {
    char text[kNameBytes] = {};
    std::memcpy(text, name.data(), std::min(name.size(), kNameBytes - 1));
    std::memcpy(step, text, kNameBytes);
  }
};

}  // namespace cairn::kill
