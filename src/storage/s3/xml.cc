#include "storage/s3/xml.h"

#include <charconv>
#include <cstdint>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr int kMaxDepth = 16;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == ':';
}

void AppendUtf8(std::uint32_t point, std::string* out) {
  const auto put = [out](std::uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 63));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 63));
    put(0x80 | (point & 63));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 63));
    put(0x80 | (point >> 6 & 63));
    put(0x80 | (point & 63));
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<XmlElement> Document() {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
    RETURN_IF_ERROR(SkipAround());
    XmlElement root;
    RETURN_IF_ERROR(Element(0, &root));
    RETURN_IF_ERROR(SkipAround());
    if (!rest_.empty()) return Bad("bytes follow the document");
    return root;
  }

 private:
  static Status Bad(std::string_view why) {
    return CorruptionError("not the XML of an S3 reply: " + std::string(why));
  }

  bool Take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  void SkipSpace() {
    while (!rest_.empty() && IsSpace(rest_.front())) rest_.remove_prefix(1);
  }

  Status SkipPast(std::string_view end) {
    const std::size_t at = rest_.find(end);
    if (at == rest_.npos) return Bad("it ends early");
    rest_.remove_prefix(at + end.size());
    return Status::Ok();
  }

  /// White space, comments and processing instructions.
  Status SkipAround() {
    while (true) {
      SkipSpace();
      if (Take("<?")) {
        RETURN_IF_ERROR(SkipPast("?>"));
      } else if (Take("<!--")) {
        RETURN_IF_ERROR(SkipPast("-->"));
      } else {
        return Status::Ok();
      }
    }
  }

  Result<std::string> Name() {
    std::size_t end = 0;
    while (end < rest_.size() && IsNameCharacter(rest_[end])) ++end;
    if (end == 0) return Bad("a name is missing");
    std::string name(rest_.substr(0, end));
    rest_.remove_prefix(end);
    return name;
  }

  Status SkipAttributes() {
    while (true) {
      SkipSpace();
      if (rest_.empty()) return Bad("it ends early");
      if (rest_.front() == '>' || rest_.front() == '/') return Status::Ok();
      RETURN_IF_ERROR(Name().status());
      SkipSpace();
      if (!Take("=")) return Bad("an attribute has no value");
      SkipSpace();
      if (Take("\"")) {
        RETURN_IF_ERROR(SkipPast("\""));
      } else if (Take("'")) {
        RETURN_IF_ERROR(SkipPast("'"));
      } else {
        return Bad("an attribute has no value");
      }
    }
  }

  Status Element(int depth, XmlElement* element) {
    if (depth == kMaxDepth) return Bad("it is nested too deeply");
    if (!Take("<")) return Bad("an element is missing");
    ASSIGN_OR_RETURN(const std::string name, Name());
    element->name = name.substr(name.rfind(':') + 1);
    RETURN_IF_ERROR(SkipAttributes());
    if (Take("/>")) return Status::Ok();
    if (!Take(">")) return Bad("an element does not end");
    RETURN_IF_ERROR(Content(depth, element));
    ASSIGN_OR_RETURN(const std::string closed, Name());
    if (closed != name) return Bad("\"" + name.substr(0, 40) + "\" is not closed");
    SkipSpace();
    return Take(">") ? Status::Ok() : Bad("an element does not end");
  }

  /// Up to and with the "</" of the element's end.
  Status Content(int depth, XmlElement* element) {
    while (!rest_.empty()) {
      if (Take("</")) return Status::Ok();
      if (Take("<!--")) {
        RETURN_IF_ERROR(SkipPast("-->"));
      } else if (Take("<![CDATA[")) {
        const std::size_t end = rest_.find("]]>");
        if (end == rest_.npos) return Bad("it ends early");
        element->text += rest_.substr(0, end);
        rest_.remove_prefix(end + 3);
      } else if (rest_.front() == '<') {
        element->children.emplace_back();
        RETURN_IF_ERROR(Element(depth + 1, &element->children.back()));
      } else {
        RETURN_IF_ERROR(Characters(&element->text));
      }
    }
    return Bad("it ends early");
  }

  Status Characters(std::string* text) {
    const std::size_t end = std::min(rest_.find('<'), rest_.size());
    std::string_view raw = rest_.substr(0, end);
    rest_.remove_prefix(end);
    while (!raw.empty()) {
      const std::size_t amp = std::min(raw.find('&'), raw.size());
      *text += raw.substr(0, amp);
      raw.remove_prefix(amp);
      if (raw.empty()) return Status::Ok();
      const std::size_t semicolon = raw.find(';');
      if (semicolon == raw.npos || semicolon > 12) return Bad("an entity does not end");
      RETURN_IF_ERROR(Entity(raw.substr(1, semicolon - 1), text));
      raw.remove_prefix(semicolon + 1);
    }
    return Status::Ok();
  }

  static Status Entity(std::string_view name, std::string* text) {
    static constexpr std::pair<std::string_view, char> kKnown[] = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    for (const auto& [known, c] : kKnown) {
      if (name != known) continue;
      text->push_back(c);
      return Status::Ok();
    }
    if (!name.starts_with('#')) return Bad("an entity is not known");
    name.remove_prefix(1);
    const int base = name.starts_with('x') ? 16 : 10;
    if (base == 16) name.remove_prefix(1);
    std::uint32_t point = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), point, base);
    const bool surrogate = point >= 0xD800 && point < 0xE000;
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || point == 0 ||
        point > 0x10FFFF || surrogate) {
      return Bad("a character's number is wrong");
    }
    AppendUtf8(point, text);
    return Status::Ok();
  }

  std::string_view rest_;
};

}  // namespace

const XmlElement* XmlElement::Child(std::string_view child) const {
  for (const XmlElement& candidate : children) {
    if (candidate.name == child) return &candidate;
  }
  return nullptr;
}

std::string_view XmlElement::Text(std::string_view child) const {
  const XmlElement* found = Child(child);
  return found == nullptr ? std::string_view() : std::string_view(found->text);
}

Result<XmlElement> ParseXml(std::string_view text) { return Parser(text).Document(); }

std::string XmlEscape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace cairn
