#include "master/hyperparameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/config_reader.h"
#include "tune/rng.h"

namespace cairn::master {
namespace {

using Kind = HyperparameterRange::Kind;

constexpr std::uint64_t kLargestGrid = 100'000;
constexpr std::string_view kTypes[] = {"const", "int", "double", "log", "categorical"};

/// `at` from 0 to 1 within the range.
Value Between(const HyperparameterRange& range, double at) {
  const double x = range.minval + (range.maxval - range.minval) * at;
  if (range.kind == Kind::kLog) return std::pow(range.base, x);
  if (range.kind == Kind::kInt) return static_cast<std::int64_t>(std::llround(x));
  return x;
}

Value Draw(const HyperparameterRange& range, tune::Rng rng) {
  switch (range.kind) {
    case Kind::kConst:
      return range.val;
    case Kind::kCategorical:
      return range.vals[rng.Below(range.vals.size())];
    case Kind::kInt: {
      const auto count = static_cast<std::uint64_t>(range.maxval - range.minval) + 1;
      return static_cast<std::int64_t>(range.minval) + static_cast<std::int64_t>(rng.Below(count));
    }
    default:
      return Between(range, rng.Unit());
  }
}

std::uint64_t PointsOf(const HyperparameterRange& range) {
  if (range.kind == Kind::kConst) return 1;
  if (range.kind == Kind::kCategorical) return range.vals.size();
  if (range.kind == Kind::kInt) {
    const auto all = static_cast<std::uint64_t>(range.maxval - range.minval) + 1;
    return range.count == 0 ? 0 : std::min(range.count, all);
  }
  return range.count;
}

Value PointOf(const HyperparameterRange& range, std::uint64_t index) {
  if (range.kind == Kind::kConst) return range.val;
  if (range.kind == Kind::kCategorical) return range.vals[index];
  const std::uint64_t points = PointsOf(range);
  return Between(range,
                 points == 1 ? 0.0 : static_cast<double>(index) / static_cast<double>(points - 1));
}

void Put(const std::vector<std::string>& path, Value value, Value* out) {
  for (const std::string& name : path) {
    if (!out->is_object()) *out = Value::Object{};
    out = &(*out->if_object())[name];
  }
  *out = std::move(value);
}

}  // namespace

/// Walks the map. A class, for the entries it fills.
class HyperparameterReader {
 public:
  explicit HyperparameterReader(Hyperparameters* out) : out_(out) {}

  Status Read(const ConfigNode& node) {
    Walk(node, {});
    return problems_.ToStatus();
  }

 private:
  void Walk(const ConfigNode& node, std::vector<std::string> path) {
    for (const ConfigNode& member : node.members) {
      const std::string& name = member.key;
      path.push_back(name);
      if (name.empty()) {
        problems_.Add(fmt::format("{}hyperparameters: an empty name", member.Where()));
      }
      const ConfigNode* type = member.Find("type");
      const bool range = type != nullptr && type->scalar.is_string();
      if (member.kind == ConfigNode::Kind::kMap && !range) {
        if (member.members.empty()) Add(path, {.val = Value::Object{}});
        Walk(member, path);
      } else if (range) {
        auto parsed = Range(member, path);
        problems_.Add(parsed.status());
        if (parsed.ok()) Add(path, *std::move(parsed));
      } else {
        Add(path, {.val = member.ToValue()});
      }
      path.pop_back();
    }
  }

  void Add(const std::vector<std::string>& path, HyperparameterRange range) {
    out_->entries_.push_back({path, std::move(range)});
  }

  static Result<HyperparameterRange> Range(const ConfigNode& node,
                                           const std::vector<std::string>& path) {
    const std::string name = fmt::format("hyperparameters.{}", fmt::join(path, "."));
    ConfigReader reader(node, name);
    HyperparameterRange range;
    std::string type;
    reader.Text("type", &type);
    const auto* known = std::ranges::find(kTypes, type);
    if (known == std::end(kTypes)) {
      const std::string_view meant = Suggest(type, kTypes);
      return InvalidArgumentError(fmt::format(
          "{}{}: there is no type {}{}", node.Find("type")->Where(), name, QuoteForMessage(type),
          meant.empty() ? fmt::format("; known: {}", fmt::join(kTypes, ", "))
                        : fmt::format("; did you mean \"{}\"?", meant)));
    }
    range.kind = static_cast<Kind>(known - std::begin(kTypes));
    if (range.kind == Kind::kConst) {
      const ConfigNode* val = reader.Take("val");
      if (val == nullptr && node.Find("val") == nullptr) reader.Require("val", "is missing");
      if (val != nullptr) range.val = val->ToValue();
    } else if (range.kind == Kind::kCategorical) {
      const ConfigNode* vals = reader.Take("vals");
      reader.Require("vals", "is missing: the values to choose from");
      if (vals != nullptr && (vals->kind != ConfigNode::Kind::kList || vals->items.empty())) {
        reader.Fail("vals", "must be a list with at least one value");
      } else if (vals != nullptr) {
        for (const ConfigNode& item : vals->items) range.vals.push_back(item.ToValue());
      }
    } else {
      Bounds(&reader, &range);
    }
    RETURN_IF_ERROR(reader.Finish());
    return range;
  }

  static void Bounds(ConfigReader* reader, HyperparameterRange* range) {
    constexpr double kMissing = std::numeric_limits<double>::infinity();
    range->minval = range->maxval = kMissing;
    if (range->kind == Kind::kInt) {
      constexpr std::int64_t kMost = std::int64_t{1} << 53;  // beyond it doubles have gaps
      std::int64_t least = kMost + 1;
      std::int64_t most = kMost + 1;
      reader->Int("minval", &least, -kMost, kMost);
      reader->Int("maxval", &most, -kMost, kMost);
      if (least <= kMost) range->minval = static_cast<double>(least);
      if (most <= kMost) range->maxval = static_cast<double>(most);
    } else {
      reader->Double("minval", &range->minval);
      reader->Double("maxval", &range->maxval);
    }
    if (range->kind == Kind::kLog) {
      reader->Double("base", &range->base);
      if (!(range->base > 0) || range->base == 1) {
        reader->Fail("base", "must be positive and not 1");
      }
    }
    std::int64_t count = 0;
    reader->Int("count", &count, 1, static_cast<std::int64_t>(kLargestGrid));
    range->count = static_cast<std::uint64_t>(count);
    reader->Require("minval", "is missing");
    reader->Require("maxval", "is missing");
    if (range->minval == kMissing || range->maxval == kMissing) return;
    if (range->minval > range->maxval) reader->Fail("minval", "is greater than maxval");
    if (range->kind == Kind::kLog && (!std::isfinite(std::pow(range->base, range->minval)) ||
                                      !std::isfinite(std::pow(range->base, range->maxval)))) {
      reader->Fail("minval", "and maxval are exponents of base: too large");
    }
  }

  Hyperparameters* const out_;
  ConfigProblems problems_;
};

Result<Hyperparameters> Hyperparameters::Parse(const ConfigNode& node) {
  if (node.kind != ConfigNode::Kind::kMap) {
    return InvalidArgumentError(
        fmt::format("{}hyperparameters must be a map of names and values", node.Where()));
  }
  Hyperparameters out;
  RETURN_IF_ERROR(HyperparameterReader(&out).Read(node));
  // The order of the file does not matter to what is drawn.
  std::ranges::sort(out.entries_, {}, &Entry::path);
  return out;
}

bool Hyperparameters::HasRanges() const {
  return std::ranges::any_of(entries_, [](const Entry& e) { return e.range.kind != Kind::kConst; });
}

Value Hyperparameters::Sample(std::uint64_t seed, std::uint64_t index) const {
  Value values = Value::Object{};
  for (const Entry& entry : entries_) {
    // A stream of its own: adding a hyperparameter does not move the others.
    tune::Rng rng(seed, index, fmt::format("{}", fmt::join(entry.path, "/")));
    Put(entry.path, Draw(entry.range, rng), &values);
  }
  return values;
}

Result<std::uint64_t> Hyperparameters::GridSize() const {
  std::uint64_t size = 1;
  for (const Entry& entry : entries_) {
    const std::uint64_t points = PointsOf(entry.range);
    if (points == 0) {
      return InvalidArgumentError(
          fmt::format("hyperparameters.{}: a grid needs to know into how many points the range is "
                      "cut: add count",
                      fmt::join(entry.path, ".")));
    }
    size *= points;
    if (size > kLargestGrid) {
      return InvalidArgumentError(
          fmt::format("hyperparameters: the grid has more than {} points", kLargestGrid));
    }
  }
  return size;
}

Value Hyperparameters::GridPoint(std::uint64_t index) const {
  Value values = Value::Object{};
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const std::uint64_t points = PointsOf(entry->range);
    Put(entry->path, PointOf(entry->range, index % points), &values);
    index /= points;
  }
  return values;
}

}  // namespace cairn::master
