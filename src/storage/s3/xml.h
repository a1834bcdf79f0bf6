#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// An element of an S3 reply: children or text, never both worth having. Attributes are dropped,
/// names lose their namespace prefix.
struct XmlElement {
  std::string name;
  std::string text;  // entities decoded
  std::vector<XmlElement> children;

  /// The first child of that name, or null.
  const XmlElement* Child(std::string_view child) const;
  /// The text of that child, or "".
  std::string_view Text(std::string_view child) const;
};

/// Parses a reply of a server, which may be anything. Corruption unless it is one well-formed
/// element, with nothing that replies do not have: no document type (hence no entities of its own),
/// at most 16 levels.
Result<XmlElement> ParseXml(std::string_view text);

/// & < > " as entities.
std::string XmlEscape(std::string_view text);

}  // namespace cairn
