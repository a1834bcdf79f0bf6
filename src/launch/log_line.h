#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "launch/launcher.h"

namespace cairn {

/// The longest text of a line in a log; longer ones go on in the next line (`unfinished`).
inline constexpr std::size_t kMaxLogText = 16u << 10;

/// A line of a launch's log (docs/format/launches.md), with its newline:
///   2026-11-16T09:04:11.123456789Z 0 out I . the text
void AppendLogLine(const LaunchLogLine& line, std::string* out);

/// The line without its newline. Never fails: bytes that are no such line (a log cut by a power
/// failure) come back as the text of a line of rank -1 and time 0.
LaunchLogLine ParseLogLine(std::string_view text);

/// What a line says about its own importance: words such as ERROR or WARNING near its beginning,
/// the letters of glog, Python's tracebacks. Info when it says nothing.
LineLevel GuessLevel(std::string_view text);

/// As the trial protocol and the master's answers have it: DEBUG, INFO, WARNING, ERROR.
std::string_view LevelName(LineLevel level);

/// Cuts the bytes of one stream into lines. One caller at a time.
class LineCutter {
 public:
  /// Called with each line (without newline) and whether it is cut off.
  using Sink = std::function<void(std::string_view text, bool unfinished)>;

  void Feed(std::string_view bytes, const Sink& sink);
  /// The stream is over: what is left is a line without newline.
  void Finish(const Sink& sink);

 private:
  std::string rest_;  // at most kMaxLogText bytes
};

}  // namespace cairn
