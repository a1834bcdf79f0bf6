// The only file that knows yaml-cpp. Its events are taken rather than its tree, so that depth, size
// and aliases are bounded while the text is read.
#include "master/config_node.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/yaml_scalar.h"

namespace cairn::master {
namespace {

/// A plain key that takes the members of another map in.
constexpr std::string_view kMerge = "<<";

using YAML::anchor_t;
using YAML::Mark;

/// Thrown by the builder through the parser, and caught below: yaml-cpp has no other way to stop.
struct Refusal : std::exception {
  explicit Refusal(Status why) : status(std::move(why)) {}
  const char* what() const noexcept override { return "refused"; }
  Status status;
};

[[noreturn]] void Refuse(const Mark& mark, std::string_view why) {
  throw Refusal(InvalidArgumentError(fmt::format("line {}: {}", mark.line + 1, why)));
}

/// Whether that line, from 0, begins with a tab, after spaces perhaps.
bool IndentedByTab(std::string_view text, int line) {
  for (; line > 0; --line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return false;
    text.remove_prefix(end + 1);
  }
  const std::size_t first = text.find_first_not_of(' ');
  return first != std::string_view::npos && text[first] == '\t';
}

/// Builds the tree from the events. Open collections are on a stack, never the program's own.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const ConfigLimits& limits) : limits_(limits) {}

  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark& mark, anchor_t anchor) override {
    Add(mark, anchor, ConfigNode{.line = mark.line + 1});
  }
  void OnAlias(const Mark& mark, anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) Refuse(mark, "an alias inside of what it names");
    Add(mark, 0, found->second.first, found->second.second);
  }
  void OnScalar(const Mark& mark, const std::string& tag, anchor_t anchor,
                const std::string& text) override {
    if (!tag.empty() && tag != "?" && tag != "!") Refuse(mark, "tags are not understood");
    if (!IsValidUtf8(text)) Refuse(mark, "not UTF-8");
    const bool quoted = tag == "!";
    Add(mark, anchor,
        ConfigNode{.scalar = quoted ? Value(text) : YamlScalar(text), .line = mark.line + 1}, 1,
        &text, !quoted && text == kMerge);
  }
  void OnSequenceStart(const Mark& mark, const std::string& tag, anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, ConfigNode::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const Mark& mark, const std::string& tag, anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, ConfigNode::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

  ConfigNode root;

 private:
  struct Level {
    ConfigNode node;
    anchor_t anchor = 0;
    std::string key;
    bool has_key = false;
    bool merges = false;             // the key is "<<"
    std::vector<ConfigNode> merged;  // what stood behind it
    std::size_t before = 0;          // nodes counted when it was opened
  };

  void Open(const Mark& mark, const std::string& tag, anchor_t anchor, ConfigNode::Kind kind) {
    if (!tag.empty() && tag != "?" && tag != "!") Refuse(mark, "tags are not understood");
    if (std::cmp_greater_equal(levels_.size(), limits_.depth)) {
      Refuse(mark, fmt::format("nested deeper than {} levels", limits_.depth));
    }
    if (!levels_.empty() && levels_.back().node.kind == ConfigNode::Kind::kMap &&
        !levels_.back().has_key) {
      Refuse(mark, "a key must be a text");
    }
    levels_.push_back(
        {.node = {.kind = kind, .line = mark.line + 1}, .anchor = anchor, .before = nodes_});
  }

  void Close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    for (ConfigNode& from : level.merged) Merge(std::move(from), &level.node);
    const Mark mark = MarkOf(level.node);
    const std::size_t size = nodes_ - level.before + 1;
    nodes_ = level.before;
    Add(mark, level.anchor, std::move(level.node), size);
  }

  /// As YAML 1.1 and Determined's files have it: what the map says itself goes before what is
  /// merged into it, and of several what comes first.
  static void Merge(ConfigNode from, ConfigNode* into) {
    if (from.kind == ConfigNode::Kind::kList) {
      for (ConfigNode& item : from.items) Merge(std::move(item), into);
      return;
    }
    for (ConfigNode& member : from.members) {
      if (into->Find(member.key) == nullptr) into->members.push_back(std::move(member));
    }
  }

  /// A map, or a list of maps.
  static void CheckMerged(const Mark& mark, const ConfigNode& node) {
    const auto is_map = [](const ConfigNode& one) { return one.kind == ConfigNode::Kind::kMap; };
    const bool maps = node.kind == ConfigNode::Kind::kList ? std::ranges::all_of(node.items, is_map)
                                                           : is_map(node);
    if (!maps) Refuse(mark, "\"<<\" takes in a map, or a list of maps");
  }

  static Mark MarkOf(const ConfigNode& node) {
    Mark mark;
    mark.line = node.line - 1;
    return mark;
  }

  void Add(const Mark& mark, anchor_t anchor, ConfigNode node, std::size_t size = 1,
           const std::string* key = nullptr, bool merge = false) {
    nodes_ += size;
    if (nodes_ > limits_.nodes) {
      Refuse(mark, fmt::format("more than {} values, aliases counted", limits_.nodes));
    }
    if (anchor != 0) anchors_[anchor] = {node, size};
    if (levels_.empty()) {
      root = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == ConfigNode::Kind::kList) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      if (key == nullptr) Refuse(mark, "a key must be a text");
      if (level.node.Find(*key) != nullptr) {
        Refuse(mark, fmt::format("{} is there twice", QuoteForMessage(*key)));
      }
      if (merge && !level.merged.empty()) Refuse(mark, "\"<<\" is there twice: give it a list");
      level.key = *key;
      level.has_key = true;
      level.merges = merge;
    } else if (std::exchange(level.merges, false)) {
      CheckMerged(mark, node);
      level.merged.push_back(std::move(node));
      level.has_key = false;
    } else {
      node.key = std::move(level.key);
      level.node.members.push_back(std::move(node));
      level.has_key = false;
    }
  }

  const ConfigLimits limits_;
  std::vector<Level> levels_;
  std::map<anchor_t, std::pair<ConfigNode, std::size_t>> anchors_;
  std::size_t nodes_ = 0;
};

}  // namespace

const ConfigNode* ConfigNode::Find(std::string_view name) const {
  for (const ConfigNode& member : members) {
    if (member.key == name) return &member;
  }
  return nullptr;
}

std::string ConfigNode::Where() const {
  return line > 0 ? fmt::format("line {}: ", line) : std::string();
}

Value ConfigNode::ToValue() const {
  if (kind == Kind::kScalar) return scalar;
  if (kind == Kind::kList) {
    Value::List list;
    for (const ConfigNode& item : items) list.push_back(item.ToValue());
    return list;
  }
  Value::Object object;
  for (const ConfigNode& member : members) object[member.key] = member.ToValue();
  return object;
}

ConfigNode ConfigNode::FromValue(const Value& value) {
  ConfigNode node;
  if (const auto* list = value.if_list()) {
    node.kind = Kind::kList;
    for (const Value& item : *list) node.items.push_back(FromValue(item));
  } else if (const auto* object = value.if_object()) {
    node.kind = Kind::kMap;
    for (const auto& [name, member] : *object) {
      node.members.push_back(FromValue(member));
      node.members.back().key = name;
    }
  } else {
    node.scalar = value;
  }
  return node;
}

Result<ConfigNode> ParseYaml(std::string_view text, const ConfigLimits& limits) {
  if (text.size() > limits.bytes) {
    return InvalidArgumentError(fmt::format("{} bytes: at most {}", text.size(), limits.bytes));
  }
  if (!IsValidUtf8(text) || text.find('\0') != std::string_view::npos) {
    return InvalidArgumentError("not UTF-8 text");
  }
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    Builder builder(limits);
    if (!parser.HandleNextDocument(builder)) return InvalidArgumentError("it is empty");
    Builder second(limits);
    if (parser.HandleNextDocument(second)) {
      return InvalidArgumentError("more than one document: take the \"---\" out");
    }
    return std::move(builder.root);
  } catch (const Refusal& refusal) {
    return refusal.status;
  } catch (const YAML::Exception& error) {
    // JSON writes characters beyond 16 bits as two escapes, which YAML does not know.
    if (auto json = DecodeJson(text); json.ok() && json->is_object()) {
      return ConfigNode::FromValue(*json);
    }
    return InvalidArgumentError(fmt::format(
        "line {}: {}{}", error.mark.line + 1, error.msg,
        IndentedByTab(text, error.mark.line) ? " (it begins with a tab: YAML takes spaces)" : ""));
  } catch (const std::exception& error) {
    return InvalidArgumentError(fmt::format("not YAML: {}", error.what()));
  }
}

}  // namespace cairn::master
