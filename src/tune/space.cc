#include "tune/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/rng.h"

namespace cairn::tune {
namespace {

constexpr int kMaxDepth = 32;
constexpr std::uint64_t kMaxGrid = std::uint64_t{1} << 62;

struct Kind {
  std::string_view name;
  bool log;
  bool integer;
  bool normal;
  bool quantized;
};
constexpr std::array kKinds = {
    Kind{"uniform", false, false, false, false},   Kind{"quniform", false, false, false, true},
    Kind{"loguniform", true, false, false, false}, Kind{"qloguniform", true, false, false, true},
    Kind{"randint", false, true, false, false},    Kind{"qrandint", false, true, false, true},
    Kind{"lograndint", true, true, false, false},  Kind{"qlograndint", true, true, false, true},
    Kind{"randn", false, false, true, false},      Kind{"qrandn", false, false, true, true},
};

std::string Join(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}/{}", path, key);
}

Status Wrong(std::string_view path, std::string_view what) {
  return InvalidArgumentError(
      fmt::format("search space: {}: {}", path.empty() ? "the top" : QuoteForMessage(path), what));
}

/// The name of the domain that `value` describes; null for what is no domain.
const std::string* DomainName(const Value& value) {
  const Value::Object* object = value.if_object();
  if (object == nullptr) return nullptr;
  const auto it = object->find(kDomain);
  return it == object->end() ? nullptr : it->second.if_string();
}

const Value::List* GridOf(const Value& value) {
  const Value::Object* object = value.if_object();
  if (object == nullptr || object->size() != 1) return nullptr;
  const auto it = object->find("grid_search");
  return it == object->end() ? nullptr : it->second.if_list();
}

const Kind* KindOf(std::string_view name) {
  const auto* it = std::ranges::find(kKinds, name, &Kind::name);
  return it == kKinds.end() ? nullptr : it;
}

double Number(const Value& domain, std::string_view key, double fallback = 0) {
  const Value* found = domain.Find(key);
  return found == nullptr ? fallback : found->AsDouble(fallback);
}
std::int64_t Integer(const Value& domain, std::string_view key, std::int64_t fallback = 0) {
  const Value* found = domain.Find(key);
  return found == nullptr ? fallback : found->AsInt(fallback);
}

Status NeedNumber(const Value& domain, std::string_view path, std::string_view key, bool integer) {
  const Value* found = domain.Find(key);
  if (found == nullptr) return Wrong(path, fmt::format("no {}", key));
  const bool fits = integer ? found->if_int64() != nullptr
                            : found->is_number() && std::isfinite(found->AsDouble());
  if (fits) return Status::Ok();
  return Wrong(path, fmt::format("{} must be {}, not {}", key,
                                 integer ? "an integer" : "a finite number", EncodeJson(*found)));
}

bool IsMultiple(double x, double q) {
  const double n = x / q;
  return std::abs(n - std::round(n)) <= 1e-9 * std::max(1.0, std::abs(n));
}

/// The first and the last multiple of q that an integer domain reaches; nullopt: there is none.
std::optional<std::pair<std::int64_t, std::int64_t>> MultiplesIn(const Value& domain) {
  const std::int64_t lower = Integer(domain, "lower");
  const std::int64_t upper = Integer(domain, "upper");
  const std::int64_t q = Integer(domain, "q");
  // How far the next multiple is, without leaving the integers.
  const std::int64_t above = lower % q <= 0 ? -(lower % q) : q - lower % q;
  const std::int64_t below = upper % q >= 0 ? upper % q : q + upper % q;
  if (above > 0 && lower > std::numeric_limits<std::int64_t>::max() - above) return std::nullopt;
  if (below > 0 && upper < std::numeric_limits<std::int64_t>::min() + below) return std::nullopt;
  if (lower + above > upper - below) return std::nullopt;
  return std::pair(lower + above, upper - below);
}

Status CheckNumeric(const Value& domain, const Kind& kind, std::string_view path) {
  for (const auto& [key, value] : *domain.if_object()) {
    const bool known =
        key == kDomain ||
        (kind.normal ? key == "mean" || key == "sd" : key == "lower" || key == "upper") ||
        (kind.quantized && key == "q");
    if (!known) return Wrong(path, fmt::format("{} has no {}", kind.name, QuoteForMessage(key)));
  }
  if (kind.quantized) {
    RETURN_IF_ERROR(NeedNumber(domain, path, "q", kind.integer));
    if (Number(domain, "q") <= 0) return Wrong(path, "q must be above 0");
  }
  if (kind.normal) {
    RETURN_IF_ERROR(NeedNumber(domain, path, "mean", false));
    RETURN_IF_ERROR(NeedNumber(domain, path, "sd", false));
    if (Number(domain, "sd") < 0) return Wrong(path, "sd must not be negative");
    return Status::Ok();
  }
  RETURN_IF_ERROR(NeedNumber(domain, path, "lower", kind.integer));
  RETURN_IF_ERROR(NeedNumber(domain, path, "upper", kind.integer));
  const int order = CompareNumbers(*domain.Find("lower"), *domain.Find("upper"));
  // Rounding to multiples includes both ends, so that they may be equal.
  if (order > 0 || (order == 0 && !kind.quantized)) {
    return Wrong(path,
                 fmt::format("lower {} must be below upper {}", EncodeJson(*domain.Find("lower")),
                             EncodeJson(*domain.Find("upper"))));
  }
  if (kind.log && Number(domain, "lower") <= 0) {
    return Wrong(path, fmt::format("lower must be above 0 for {}", kind.name));
  }
  if (kind.quantized && kind.integer) {
    if (!MultiplesIn(domain)) return Wrong(path, "no multiple of q lies between lower and upper");
  } else if (kind.quantized) {
    for (const std::string_view key : {"lower", "upper"}) {
      if (!IsMultiple(Number(domain, key), Number(domain, "q"))) {
        return Wrong(path, fmt::format("{} is not a multiple of q", key));
      }
    }
  }
  return Status::Ok();
}

/// Walks a description and collects what is to be chosen.
class Walk {
 public:
  std::vector<std::pair<std::string, Value::List>> grids;
  std::vector<std::pair<std::string, Value>> domains;

  Status Visit(const Value& value, const std::string& path, bool in_choice, int depth) {
    if (depth > kMaxDepth) return Wrong(path, "nested too deeply");
    if (const Value::List* grid = GridOf(value)) return VisitGrid(*grid, path, in_choice, depth);
    if (value.is_object() && value.if_object()->contains(kDomain)) {
      RETURN_IF_ERROR(VisitDomain(value, path, depth));
      if (!in_choice) domains.emplace_back(path, value);
      return Status::Ok();
    }
    if (const Value::Object* object = value.if_object()) {
      for (const auto& [key, member] : *object) {
        RETURN_IF_ERROR(Visit(member, Join(path, key), in_choice, depth + 1));
      }
    } else if (const Value::List* list = value.if_list()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        RETURN_IF_ERROR(Visit((*list)[i], Join(path, std::to_string(i)), in_choice, depth + 1));
      }
    }
    return Status::Ok();
  }

 private:
  Status VisitGrid(const Value::List& grid, const std::string& path, bool in_choice, int depth) {
    if (in_choice) return Wrong(path, "a grid_search cannot stand inside of a choice or a grid");
    if (grid.empty()) return Wrong(path, "grid_search needs at least one value");
    for (std::size_t i = 0; i < grid.size(); ++i) {
      RETURN_IF_ERROR(Visit(grid[i], Join(path, std::to_string(i)), true, depth + 1));
    }
    grids.emplace_back(path, grid);
    return Status::Ok();
  }

  Status VisitDomain(const Value& value, const std::string& path, int depth) {
    const std::string* name = DomainName(value);
    if (name == nullptr) return Wrong(path, "the name of a domain must be a text");
    if (*name == "sample_from") return Status::Ok();
    if (*name == "choice") {
      const Value* categories = value.Find("categories");
      const Value::List* list = categories == nullptr ? nullptr : categories->if_list();
      if (list == nullptr || list->empty()) return Wrong(path, "choice needs at least one value");
      for (std::size_t i = 0; i < list->size(); ++i) {
        RETURN_IF_ERROR(Visit((*list)[i], Join(path, std::to_string(i)), true, depth + 1));
      }
      return Status::Ok();
    }
    const Kind* kind = KindOf(*name);
    if (kind == nullptr)
      return Wrong(path, fmt::format("no domain is called {}", QuoteForMessage(*name)));
    return CheckNumeric(value, *kind, path);
  }
};

double Clamp(double x, double lower, double upper) { return std::min(std::max(x, lower), upper); }

/// Between `lower` and `upper`, on a logarithmic scale or a plain one.
double Between(double lower, double upper, bool log, Rng& rng) {
  const double unit = rng.Unit();
  if (!log) return lower * (1 - unit) + upper * unit;  // no overflow of upper - lower
  return std::exp(std::log(lower) + unit * (std::log(upper) - std::log(lower)));
}

Value DrawInteger(const Value& domain, const Kind& kind, Rng& rng) {
  const std::int64_t q = kind.quantized ? Integer(domain, "q") : 1;
  const auto [lower, upper] =  // both inclusive
      kind.quantized ? *MultiplesIn(domain)
                     : std::pair(Integer(domain, "lower"), Integer(domain, "upper") - 1);
  if (kind.log) {
    const double drawn = Between(static_cast<double>(lower),
                                 static_cast<double>(upper) + (kind.quantized ? 0 : 1), true, rng);
    const double steps =
        kind.quantized ? std::round(drawn / static_cast<double>(q)) : std::floor(drawn);
    const double bounded = Clamp(steps * static_cast<double>(q), static_cast<double>(lower),
                                 static_cast<double>(upper));
    if (bounded >= 0x1p63) return upper;
    return std::clamp(static_cast<std::int64_t>(bounded), lower, upper);
  }
  const std::uint64_t span = static_cast<std::uint64_t>(upper) - static_cast<std::uint64_t>(lower);
  const std::uint64_t steps = span / static_cast<std::uint64_t>(q);
  const std::uint64_t step =
      steps == std::numeric_limits<std::uint64_t>::max() ? rng.Next() : rng.Below(steps + 1);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(lower) +
                                   step * static_cast<std::uint64_t>(q));
}

Value DrawReal(const Value& domain, const Kind& kind, Rng& rng) {
  const double q = Number(domain, "q", 1);
  if (kind.normal) {
    const double drawn = Number(domain, "mean") + Number(domain, "sd") * rng.Normal();
    return kind.quantized ? std::round(drawn / q) * q : drawn;
  }
  const double lower = Number(domain, "lower");
  const double upper = Number(domain, "upper");
  const double drawn = Between(lower, upper, kind.log, rng);
  if (kind.quantized) return Clamp(std::round(drawn / q) * q, lower, upper);
  // Rounding in the logarithm must not lead out.
  return Clamp(drawn, lower, std::nextafter(upper, lower));
}

/// What `value` stands for, everything drawn from streams named by the place.
Value DrawAt(const Value& value, const std::string& path,
             const std::function<const Value*(const std::string&)>& grid_value, std::uint64_t seed,
             std::uint64_t sample) {
  if (GridOf(value) != nullptr) {
    if (const Value* chosen = grid_value(path))
      return DrawAt(*chosen, path, grid_value, seed, sample);
    return value;
  }
  if (const std::string* name = DomainName(value)) {
    Rng rng(seed, sample, path);
    if (*name != "choice") return DrawFrom(value, rng);
    const Value::List& categories = *value.Find("categories")->if_list();
    const std::uint64_t index = rng.Below(categories.size());
    return DrawAt(categories[index], Join(path, std::to_string(index)), grid_value, seed, sample);
  }
  if (const Value::Object* object = value.if_object()) {
    Value::Object out;
    for (const auto& [key, member] : *object) {
      out.emplace(key, DrawAt(member, Join(path, key), grid_value, seed, sample));
    }
    return out;
  }
  if (const Value::List* list = value.if_list()) {
    Value::List out;
    out.reserve(list->size());
    for (std::size_t i = 0; i < list->size(); ++i) {
      out.push_back(DrawAt((*list)[i], Join(path, std::to_string(i)), grid_value, seed, sample));
    }
    return out;
  }
  return value;
}

/// The member at a path, or null. Domains and grids are leaves.
Value* At(Value* value, std::string_view path) {
  while (!path.empty()) {
    if (GridOf(*value) != nullptr || DomainName(*value) != nullptr) return nullptr;
    if (Value::List* list = value->if_list()) {
      const auto slash = path.find('/');
      const std::string_view digits = path.substr(0, slash);
      std::size_t index = 0;
      for (const char c : digits) {
        if (c < '0' || c > '9' || index > list->size()) return nullptr;
        index = index * 10 + static_cast<std::size_t>(c - '0');
      }
      if (digits.empty() || index >= list->size()) return nullptr;
      value = &(*list)[index];
      path = slash == path.npos ? std::string_view() : path.substr(slash + 1);
      continue;
    }
    Value::Object* object = value->if_object();
    if (object == nullptr) return nullptr;
    // A key may hold slashes itself: the longest that fits.
    auto found = object->find(path);
    std::string_view rest;
    for (auto slash = path.rfind('/'); found == object->end() && slash != path.npos && slash > 0;
         slash = path.rfind('/', slash - 1)) {
      found = object->find(path.substr(0, slash));
      rest = path.substr(slash + 1);
    }
    if (found == object->end()) return nullptr;
    value = &found->second;
    path = rest;
  }
  return value;
}

Status FixAt(Value* value, const Value& point, const std::string& path) {
  const Value::Object* object = point.if_object();
  const bool leaf =
      GridOf(*value) != nullptr || DomainName(*value) != nullptr || !value->is_object();
  if (object == nullptr || leaf) {
    *value = point;
    return Status::Ok();
  }
  for (const auto& [key, member] : *object) {
    Value* place = At(value, key);
    if (place == nullptr)
      return Wrong(Join(path, key), "a point to evaluate sets what the space does not have");
    RETURN_IF_ERROR(FixAt(place, member, Join(path, key)));
  }
  return Status::Ok();
}

void Unresolved(const Value& value, const std::string& path, std::vector<std::string>* out) {
  if (const std::string* name = DomainName(value)) {
    if (*name == "sample_from") out->push_back(path);
  } else if (const Value::Object* object = value.if_object()) {
    for (const auto& [key, member] : *object) Unresolved(member, Join(path, key), out);
  } else if (const Value::List* list = value.if_list()) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      Unresolved((*list)[i], Join(path, std::to_string(i)), out);
    }
  }
}

}  // namespace

Result<SearchSpace> SearchSpace::Parse(Value description) {
  if (!description.is_object()) return Wrong("", "must be an object");
  RETURN_IF_ERROR(ValidateJsonValue(description).WithContext("search space"));
  Walk walk;
  RETURN_IF_ERROR(walk.Visit(description, "", false, 1));
  SearchSpace space;
  std::set<std::string_view> paths;  // {"a/b": …} beside {"a": {"b": …}}
  auto unique = [&](const auto& named) { return paths.insert(named.first).second; };
  if (!std::ranges::all_of(walk.grids, unique) || !std::ranges::all_of(walk.domains, unique)) {
    return Wrong("", "two places have the same name once their keys are joined with /");
  }
  for (const auto& [path, values] : walk.grids) {
    if (values.size() > kMaxGrid / space.grid_size_) {
      return Wrong(path, "the grids have more than 2^62 combinations");
    }
    space.grid_size_ *= values.size();
  }
  space.description_ = std::move(description);
  space.grids_ = std::move(walk.grids);
  space.domains_ = std::move(walk.domains);
  return space;
}

Value SearchSpace::Draw(std::uint64_t seed, std::uint64_t sample, std::uint64_t grid) const {
  auto grid_value = [&](const std::string& path) -> const Value* {
    std::uint64_t rest = grid;
    for (const auto& [at, values] : grids_) {
      if (at == path) return &values[rest % values.size()];
      rest /= values.size();
    }
    return nullptr;
  };
  return DrawAt(description_, "", grid_value, seed, sample);
}

Result<SearchSpace> SearchSpace::Fix(const Value& point) const {
  if (!point.is_object()) return Wrong("", "a point to evaluate must be an object");
  Value fixed = description_;
  RETURN_IF_ERROR(FixAt(&fixed, point, ""));
  return Parse(std::move(fixed));
}

Value DrawFrom(const Value& domain, Rng& rng) {
  if (const Value::List* list = domain.if_list()) return (*list)[rng.Below(list->size())];
  const std::string* name = DomainName(domain);
  if (name == nullptr) return domain;
  if (*name == "choice") {
    const Value::List& categories = *domain.Find("categories")->if_list();
    const Value& chosen = categories[rng.Below(categories.size())];
    return DomainName(chosen) == nullptr ? chosen : DrawFrom(chosen, rng);
  }
  const Kind* kind = KindOf(*name);
  if (kind == nullptr) return domain;  // sample_from: another's to fill in
  return kind->integer ? DrawInteger(domain, *kind, rng) : DrawReal(domain, *kind, rng);
}

std::vector<std::string> UnresolvedPaths(const Value& config) {
  std::vector<std::string> out;
  Unresolved(config, "", &out);
  return out;
}

Status Resolve(Value* config, std::string_view path, Value value) {
  Value* place = At(config, path);
  if (place == nullptr)
    return NotFoundError(fmt::format("config: no place {}", QuoteForMessage(path)));
  *place = std::move(value);
  return Status::Ok();
}

}  // namespace cairn::tune
