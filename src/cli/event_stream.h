#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace cairn::cli {

/// One server-sent event.
struct StreamEvent {
  std::string id;  // "": it has none
  std::string kind = "message";
  std::string data;
};

/// Takes a stream of server-sent events apart, however it was cut into pieces. Lines end with LF or
/// CRLF; comments and unknown fields are passed over. For one thread.
class EventStreamParser {
 public:
  /// `each` returns false when it wants no more.
  explicit EventStreamParser(std::function<bool(const StreamEvent&)> each)
      : each_(std::move(each)) {}
  /// False when `each` was, or when a line or an event is longer than 8 MiB.
  bool Feed(std::string_view piece);

 private:
  bool Line(std::string_view line);

  const std::function<bool(const StreamEvent&)> each_;
  std::string partial_;
  StreamEvent event_;
  bool has_data_ = false;
};

}  // namespace cairn::cli
