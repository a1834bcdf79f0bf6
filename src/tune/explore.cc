#include "tune/explore.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/rng.h"
#include "tune/space.h"

namespace cairn::tune {
namespace {

bool IsDomain(const Value& value) {
  const Value::Object* object = value.if_object();
  return object != nullptr && object->contains(kDomain);
}

Value Scaled(const Value& number, double factor) {
  if (const double* real = number.if_double()) return *real * factor;
  // As a double wherever it is one: 10 · 1.2 is 12 there, and a little less in a wider format.
  const auto* small = number.if_int64();
  constexpr std::int64_t kExact = std::int64_t{1} << 53;
  if (small != nullptr && *small <= kExact && *small >= -kExact) {
    const double scaled = std::trunc(static_cast<double>(*small) * factor);
    return std::abs(scaled) < 0x1p63 ? Value(static_cast<std::int64_t>(scaled)) : number;
  }
  const long double exact = small != nullptr ? static_cast<long double>(*small)
                                             : static_cast<long double>(*number.if_uint64());
  const long double scaled = std::trunc(exact * static_cast<long double>(factor));
  // Beyond the integers nothing is near any more: the number stays.
  if (scaled < -0x1p63L || scaled >= 0x1p63L) return number;
  return static_cast<std::int64_t>(scaled);
}

Value NearInList(const Value& old, const Value::List& list, const ExploreOptions& options,
                 Rng& rng) {
  const auto found = std::ranges::find(list, old);
  if (rng.Unit() < options.resample_probability || found == list.end()) return DrawFrom(list, rng);
  const bool up = rng.Below(2) == 1;
  if (up) return found + 1 == list.end() ? old : *(found + 1);
  return found == list.begin() ? old : *(found - 1);
}

Value NearInDomain(const Value& old, const Value& domain, const ExploreOptions& options, Rng& rng) {
  const bool resample = rng.Unit() < options.resample_probability;
  const Value* categories = domain.Find("categories");
  if (categories != nullptr && categories->is_list()) {
    return resample ? DrawFrom(domain, rng)
                    : NearInList(old, *categories->if_list(),
                                 {.resample_probability = 0, .perturbation_factors = {}}, rng);
  }
  if (resample || !old.is_number()) return DrawFrom(domain, rng);
  return Scaled(old, options.perturbation_factors[rng.Below(options.perturbation_factors.size())]);
}

template <typename Fn>
Value Change(const Value& config, const Value& mutations, const std::string& path, const Fn& fn) {
  Value::Object out = config.is_object() ? *config.if_object() : Value::Object{};
  for (const auto& [key, mutation] : *mutations.if_object()) {
    const auto it = out.find(key);
    const Value old = it == out.end() ? Value() : it->second;
    const std::string place = path + "/" + key;
    out[key] = mutation.is_object() && !IsDomain(mutation) ? Change(old, mutation, place, fn)
                                                           : fn(old, mutation, place);
  }
  return out;
}

}  // namespace

Status ValidateMutations(const Value& mutations) {
  if (!mutations.is_object() || IsDomain(mutations))
    return InvalidArgumentError("hyperparam_mutations must be an object");
  for (const auto& [key, mutation] : *mutations.if_object()) {
    const std::string place = fmt::format("hyperparam_mutations: {}", QuoteForMessage(key));
    if (const Value::List* list = mutation.if_list()) {
      if (list->empty()) return InvalidArgumentError(place + ": the list is empty");
    } else if (IsDomain(mutation)) {
      RETURN_IF_ERROR(
          SearchSpace::Parse(Value::Object{{key, mutation}}).status().WithContext(place));
    } else if (mutation.is_object()) {
      RETURN_IF_ERROR(ValidateMutations(mutation).WithContext(place));
    } else {
      return InvalidArgumentError(place + ": must be a list, a domain, or an object of these");
    }
  }
  return Status::Ok();
}

Value Explore(const Value& config, const Value& mutations, const ExploreOptions& options,
              std::uint64_t seed, std::uint64_t number, const std::string& name) {
  return Change(config, mutations, name,
                [&](const Value& old, const Value& mutation, const std::string& place) {
                  Rng rng(seed, number, place);
                  if (const Value::List* list = mutation.if_list())
                    return NearInList(old, *list, options, rng);
                  return NearInDomain(old, mutation, options, rng);
                });
}

Value FillIn(const Value& config, const Value& mutations, std::uint64_t seed, std::uint64_t number,
             const std::string& name) {
  return Change(config, mutations, name,
                [&](const Value& old, const Value& mutation, const std::string& place) {
                  if (!old.is_null()) return old;
                  Rng rng(seed, number, place);
                  return DrawFrom(mutation, rng);
                });
}

}  // namespace cairn::tune
