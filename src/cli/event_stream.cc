#include "cli/event_stream.h"

#include <utility>

namespace cairn::cli {
namespace {

constexpr std::size_t kLongest = 8u << 20;

}  // namespace

bool EventStreamParser::Feed(std::string_view piece) {
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    if (partial_.size() + std::min(end, piece.size()) > kLongest) return false;
    partial_ += piece.substr(0, end);
    if (end == piece.npos) return true;
    piece.remove_prefix(end + 1);
    if (partial_.ends_with('\r')) partial_.pop_back();
    const std::string line = std::exchange(partial_, {});
    if (!Line(line)) return false;
  }
  return true;
}

bool EventStreamParser::Line(std::string_view line) {
  if (line.empty()) {
    const StreamEvent event = std::exchange(event_, {});
    return !std::exchange(has_data_, false) || each_(event);
  }
  const std::size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "id") {
    event_.id = value;
  } else if (field == "event") {
    event_.kind = value;
  } else if (field == "data") {
    if (event_.data.size() + value.size() > kLongest) return false;
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  }
  return true;
}

}  // namespace cairn::cli
