#include "master/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "format/json.h"

namespace cairn::master {
namespace {

/// Damerau's distance with adjacent swaps.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string_view KindOf(const ConfigNode& node) {
  if (node.kind == ConfigNode::Kind::kList) return "a list";
  if (node.kind == ConfigNode::Kind::kMap) return "a map";
  if (node.scalar.is_bool()) return "true or false";
  if (node.scalar.is_number()) return "a number";
  return node.scalar.is_null() ? "nothing" : "a text";
}

struct Unit {
  std::string_view name;
  double factor;
};

/// "10m" by the table of units; a bare number has the factor 1.
bool ParseWithUnit(std::string_view text, std::span<const Unit> units, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc() || !std::isfinite(*out) || *out < 0) return false;
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  if (rest.empty()) return true;
  for (const Unit& unit : units) {
    if (rest != unit.name) continue;
    *out *= unit.factor;
    return true;
  }
  return false;
}

constexpr Unit kTimes[] = {{"ms", 1e-3}, {"s", 1},    {"m", 60},
                           {"min", 60},  {"h", 3600}, {"d", 86400}};
constexpr Unit kSizes[] = {{"B", 1},
                           {"kB", 1e3},
                           {"KB", 1e3},
                           {"MB", 1e6},
                           {"GB", 1e9},
                           {"TB", 1e12},
                           {"KiB", 1024.0},
                           {"MiB", 1024.0 * 1024},
                           {"GiB", 1024.0 * 1024 * 1024},
                           {"TiB", 1024.0 * 1024 * 1024 * 1024}};

}  // namespace

std::string_view Suggest(std::string_view word, std::span<const std::string_view> words) {
  if (word.size() > 100) return "";
  std::string_view best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : words) {
    const std::size_t distance = Distance(word, candidate);
    // "a" is not a misspelt "id".
    if (distance < least && distance < std::max(word.size(), candidate.size())) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

ConfigReader::ConfigReader(const ConfigNode& node, std::string path)
    : node_(node), path_(std::move(path)) {
  if (node.kind != ConfigNode::Kind::kMap) {
    problems_.Add(fmt::format("{}{} must be a map of names and values, not {}", node.Where(),
                              path_.empty() ? "the file" : path_, KindOf(node)));
  }
}

std::string ConfigReader::Name(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

bool ConfigReader::Lacks(std::string_view key) const {
  const ConfigNode* found = node_.Find(key);
  return found == nullptr || (found->kind == ConfigNode::Kind::kScalar && found->scalar.is_null());
}

void ConfigReader::Require(std::string_view key, std::string_view why) {
  required_.emplace_back(key, why);
}

void ConfigReader::Fail(std::string_view key, std::string_view why) {
  const ConfigNode* member = node_.Find(key);
  Fail(member == nullptr ? node_ : *member, key, why);
}

void ConfigReader::Fail(const ConfigNode& where, std::string_view key, std::string_view why) {
  problems_.Add(fmt::format("{}{} {}", where.Where(), Name(key), why));
}

const ConfigNode* ConfigReader::Take(std::string_view key) {
  known_.push_back(key);
  return Lacks(key) ? nullptr : node_.Find(key);
}

void ConfigReader::Text(std::string_view key, std::string* out) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  if (!node->scalar.is_string()) {
    return Fail(*node, key, fmt::format("must be a text, not {}", KindOf(*node)));
  }
  *out = *node->scalar.if_string();
}

void ConfigReader::Bool(std::string_view key, bool* out) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  if (!node->scalar.is_bool()) {
    return Fail(*node, key, fmt::format("must be true or false, not {}", KindOf(*node)));
  }
  *out = *node->scalar.if_bool();
}

void ConfigReader::Int(std::string_view key, std::int64_t* out, std::int64_t least,
                       std::int64_t most) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  const auto* number = node->scalar.if_int64();
  // One that is too large for an integer was read as another number.
  const bool large = node->scalar.is_number() && std::abs(node->scalar.AsDouble()) >= 0x1p63;
  if (!node->scalar.is_int() && !large) {
    return Fail(*node, key, fmt::format("must be a whole number, not {}", KindOf(*node)));
  }
  if (number == nullptr || *number < least || *number > most) {
    return Fail(*node, key, fmt::format("must be from {} to {}", least, most));
  }
  *out = *number;
}

void ConfigReader::Double(std::string_view key, double* out) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  if (!node->scalar.is_number() || !std::isfinite(node->scalar.AsDouble())) {
    return Fail(*node, key, fmt::format("must be a number, not {}", KindOf(*node)));
  }
  *out = node->scalar.AsDouble();
}

void ConfigReader::Texts(std::string_view key, std::vector<std::string>* out) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  if (node->kind != ConfigNode::Kind::kList) {
    return Fail(*node, key, fmt::format("must be a list of texts, not {}", KindOf(*node)));
  }
  out->clear();
  for (const ConfigNode& item : node->items) {
    if (!item.scalar.is_string()) {
      return Fail(item, key, fmt::format("must hold texts, not {}", KindOf(item)));
    }
    out->push_back(*item.scalar.if_string());
  }
}

void ConfigReader::Seconds(std::string_view key, double* out) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  const auto* text = node->scalar.if_string();
  double seconds = node->scalar.AsDouble(-1);
  if (text != nullptr && !ParseWithUnit(*text, kTimes, &seconds)) seconds = -1;
  if (!(seconds >= 0 && seconds <= 1e9)) {
    return Fail(*node, key, "must be a time: a number of seconds, or 90s, 10m, 2h, 7d");
  }
  *out = seconds;
}

void ConfigReader::Bytes(std::string_view key, std::uint64_t* out) {
  const ConfigNode* node = Take(key);
  if (node == nullptr) return;
  const auto* text = node->scalar.if_string();
  double bytes = node->scalar.AsDouble(-1);
  if (text != nullptr && !ParseWithUnit(*text, kSizes, &bytes)) bytes = -1;
  // There are no parts of a byte; of 1.1GiB it is clear what is meant.
  const bool part = text == nullptr && bytes != std::floor(bytes);
  if (part || !(bytes >= 0 && bytes <= 9e18)) {
    return Fail(*node, key, "must be a size: a whole number of bytes, or 512MB, 20GiB");
  }
  *out = static_cast<std::uint64_t>(bytes);
}

Status ConfigReader::Finish() {
  std::set<std::string_view> misspelt;
  for (const ConfigNode& member : node_.members) {
    const std::string& key = member.key;
    if (rest_taken_ || std::ranges::find(known_, key) != known_.end()) continue;
    const std::string_view meant = Suggest(key, known_);
    misspelt.insert(meant);
    std::string hint;
    if (!meant.empty()) {
      hint = fmt::format("; did you mean \"{}\"?", meant);
    } else {
      std::vector<std::string_view> sorted = known_;
      std::ranges::sort(sorted);
      hint = fmt::format("; known here: {}", fmt::join(sorted, ", "));
    }
    problems_.Add(fmt::format("{}{}{}is not known{}", member.Where(), QuoteForMessage(key),
                              path_.empty() ? " " : fmt::format(" in {} ", path_), hint));
  }
  if (node_.kind == ConfigNode::Kind::kMap) {
    for (const auto& [key, why] : required_) {
      if ((!Lacks(key) && node_.Find(key)->scalar != Value("")) || misspelt.contains(key)) continue;
      problems_.Add(fmt::format("{}{} {}", path_.empty() ? "" : node_.Where(), Name(key), why));
    }
  }
  return problems_.ToStatus();
}

}  // namespace cairn::master
