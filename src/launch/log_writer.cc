#include "launch/log_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launch/log_line.h"

namespace cairn {

void LogWriter::Add(int rank, bool from_stderr, std::string_view text, bool unfinished) {
  LaunchLogLine line;
  line.time = clock_->WallNanos();
  line.rank = rank;
  line.from_stderr = from_stderr;
  line.level = GuessLevel(text);
  line.unfinished = unfinished;
  line.text = text;
  const std::size_t before = buffer_.size();
  AppendLogLine(line, &buffer_);
  Limit(before);
}

void LogWriter::AddWhole(std::string_view line) {
  const std::size_t before = buffer_.size();
  buffer_ += line;
  buffer_ += '\n';
  Limit(before);
}

void LogWriter::AddMessage(std::string_view line) {
  buffer_ += line;
  buffer_ += '\n';
}

void LogWriter::Limit(std::size_t before) {
  if (written_ + buffer_.size() <= limit_) return;
  buffer_.resize(before);
  ++dropped_;
}

void LogWriter::Flush() {
  std::string_view rest(buffer_);
  while (!rest.empty()) {
    const ssize_t wrote = write(fd_.get(), rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      dropped_ += std::count(rest.begin(), rest.end(), '\n');
      break;
    }
    written_ += static_cast<std::uint64_t>(wrote);
    rest.remove_prefix(static_cast<std::size_t>(wrote));
  }
  buffer_.clear();
}

void LogWriter::Finish() {
  if (dropped_ > 0) {
    limit_ = ~std::uint64_t{0};
    Add(-1, true, fmt::format("WARNING {} lines were dropped: the log is full", dropped_), false);
  }
  Flush();
  fdatasync(fd_.get());
}

}  // namespace cairn
