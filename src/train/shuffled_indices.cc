#include <algorithm>
#include <string>
#include <utility>

#include <cairn/reader.h>

#include "base/status_macros.h"

namespace cairn {
namespace {

// The order of a data set must be the same with every standard library, so neither std::shuffle nor
// its distributions: splitmix64 and a Fisher–Yates pass.
std::uint64_t NextRandom(std::uint64_t* state) {
  std::uint64_t x = *state += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Uniform below `bound`: values from the incomplete last span of the generator are drawn again.
std::uint64_t Below(std::uint64_t bound, std::uint64_t* state) {
  const std::uint64_t first_unbiased = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t drawn = NextRandom(state);
    if (drawn >= first_unbiased) return drawn % bound;
  }
}

}  // namespace

ShuffledIndices::ShuffledIndices(ShuffledIndicesOptions options) : options_(options) {}

Status ShuffledIndices::Validate() const {
  if (options_.batch_size < 1) return InvalidArgumentError("batch_size must be at least 1");
  if (options_.num_trainers < 1 || options_.trainer_id < 0 ||
      options_.trainer_id >= options_.num_trainers) {
    return InvalidArgumentError("trainer_id " + std::to_string(options_.trainer_id) +
                                " is not one of num_trainers " +
                                std::to_string(options_.num_trainers));
  }
  return Status::Ok();
}

Status ShuffledIndices::Begin(std::int64_t epoch) {
  RETURN_IF_ERROR(Validate());
  std::vector<std::uint64_t> all(options_.size);
  for (std::uint64_t i = 0; i < options_.size; ++i) all[i] = i;
  if (options_.shuffle) {
    std::uint64_t seed = options_.seed;
    std::uint64_t random = NextRandom(&seed) ^ static_cast<std::uint64_t>(epoch);
    for (std::uint64_t i = options_.size; i > 1; --i) std::swap(all[i - 1], all[Below(i, &random)]);
  }
  const auto trainers = static_cast<std::uint64_t>(options_.num_trainers);
  const std::uint64_t share = options_.size / trainers;
  own_.clear();
  own_.reserve(share);
  for (std::uint64_t i = 0; i < share; ++i) {
    own_.push_back(all[i * trainers + static_cast<std::uint64_t>(options_.trainer_id)]);
  }
  if (options_.drop_last) own_.resize(share - share % options_.batch_size);
  epoch_ = epoch;
  position_ = 0;
  return Status::Ok();
}

Result<std::optional<std::vector<std::uint64_t>>> ShuffledIndices::Next() {
  if (epoch_ < 0) return FailedPreconditionError("Begin comes before Next");
  if (position_ >= own_.size()) return std::optional<std::vector<std::uint64_t>>();
  const std::uint64_t end = std::min<std::uint64_t>(own_.size(), position_ + options_.batch_size);
  std::vector<std::uint64_t> batch(own_.begin() + static_cast<std::ptrdiff_t>(position_),
                                   own_.begin() + static_cast<std::ptrdiff_t>(end));
  position_ = end;
  return std::optional(std::move(batch));
}

Result<Value> ShuffledIndices::SaveState() {
  // All that decides the order is in it, so that a changed program is noticed.
  return Value(Value::Object{{"epoch", epoch_},
                             {"position", position_},
                             {"size", options_.size},
                             {"seed", options_.seed},
                             {"shuffle", options_.shuffle},
                             {"trainer_id", options_.trainer_id},
                             {"num_trainers", options_.num_trainers}});
}

Status ShuffledIndices::LoadState(const Value& state) {
  const Value* epoch = state.Find("epoch");
  const Value* position = state.Find("position");
  if (epoch == nullptr || position == nullptr || !epoch->is_int() || !position->is_int()) {
    return FailedPreconditionError("not the state of such a reader");
  }
  const std::pair<const char*, Value> fixed[] = {{"size", options_.size},
                                                 {"seed", options_.seed},
                                                 {"shuffle", options_.shuffle},
                                                 {"trainer_id", options_.trainer_id},
                                                 {"num_trainers", options_.num_trainers}};
  for (const auto& [name, value] : fixed) {
    const Value* stored = state.Find(name);
    if (stored == nullptr || !(*stored == value)) {
      return FailedPreconditionError(std::string("the reader had another ") + name +
                                     " when the checkpoint was made");
    }
  }
  if (epoch->AsInt(-1) < 0) return FailedPreconditionError("the reader had not begun");
  RETURN_IF_ERROR(Begin(epoch->AsInt()));
  const std::int64_t at = position->AsInt(-1);
  if (at < 0 || static_cast<std::uint64_t>(at) > own_.size()) {
    return FailedPreconditionError("the reader's position " + std::to_string(at) +
                                   " is outside of the epoch's " + std::to_string(own_.size()) +
                                   " indices");
  }
  position_ = static_cast<std::uint64_t>(at);
  return Status::Ok();
}

}  // namespace cairn
