#include "tune/rng.h"

#include <cmath>
#include <numbers>

namespace cairn::tune {
namespace {

/// The finalizer of SplitMix64.
std::uint64_t Mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;

}  // namespace

Rng::Rng(std::uint64_t seed, std::uint64_t number, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a of the name
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  state_ = Mix(Mix(Mix(seed + kStep) + number * kStep) ^ hash);
}

std::uint64_t Rng::Next() { return Mix(state_ += kStep); }

double Rng::Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

std::uint64_t Rng::Below(std::uint64_t bound) {
  // What is below 2^64 mod bound is drawn again: the rest divides evenly.
  const std::uint64_t skip = (0 - bound) % bound;
  std::uint64_t x = Next();
  while (x < skip) x = Next();
  return x % bound;
}

double Rng::Normal() {
  const double radius = std::sqrt(-2 * std::log(1 - Unit()));
  return radius * std::cos(2 * std::numbers::pi * Unit());
}

}  // namespace cairn::tune
