#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::master {

/// A piece of a configuration file that remembers where it stood, so that an error can say so. A
/// value.
struct ConfigNode {
  enum class Kind : std::uint8_t { kScalar, kList, kMap };

  Kind kind = Kind::kScalar;
  Value scalar;  // null, bool, integer, double or text
  std::vector<ConfigNode> items;
  std::vector<ConfigNode> members;  // in the order of the file
  std::string key;                  // of a member
  int line = 0;                     // from 1; 0: not from a file

  const ConfigNode* Find(std::string_view name) const;
  /// "line 3: ", or "" for what is not from a file.
  std::string Where() const;
  /// Without the lines.
  Value ToValue() const;
  static ConfigNode FromValue(const Value& value);
};

/// What a file may be at most; whoever uploads one is not trusted.
struct ConfigLimits {
  std::size_t bytes = 1u << 20;
  int depth = 32;
  std::size_t nodes = 100'000;  // aliases count as often as they are used
};

/// Reads one YAML document (JSON is one too). Plain scalars have the types of YAML's core schema;
/// quoted ones are texts. InvalidArgument names the line: malformed text, a key twice, a key that
/// is no plain text, a tag, a second document, over a limit.
Result<ConfigNode> ParseYaml(std::string_view text, const ConfigLimits& limits = {});

}  // namespace cairn::master
