#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/status.h>

namespace cairn {

/// Connections through files, for machines that share a directory and nothing else. Whoever cannot
/// reach a server connects to a Unix socket of its own machine (TunnelEntry); what it sends is
/// appended to a file, which the server's machine reads and passes on (TunnelExit), and the other
/// way round. Both sides look every few hundredths of a second: an answer takes a tenth.
///
/// A connection is four files in the directory (docs/format/launches.md): <id>.up and <id>.down,
/// each with one writer, and <id>.up.end and <id>.down.end when nothing more will come.
///
/// Each end has one thread. Destroying it closes its connections.

/// Where processes of this machine enter.
class TunnelEntry {
 public:
  /// `directory` exists.
  static Result<std::unique_ptr<TunnelEntry>> Open(const std::string& directory);
  ~TunnelEntry();
  TunnelEntry(const TunnelEntry&) = delete;
  TunnelEntry& operator=(const TunnelEntry&) = delete;

  const std::string& socket() const;  // its path

 private:
  class Impl;
  explicit TunnelEntry(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Where they come out: at a server on this machine's loopback. One for a directory; connections of
/// an earlier one are ended.
class TunnelExit {
 public:
  /// Makes the directory when it is missing, for this user alone.
  static Result<std::unique_ptr<TunnelExit>> Open(const std::string& directory, std::uint16_t port);
  ~TunnelExit();
  TunnelExit(const TunnelExit&) = delete;
  TunnelExit& operator=(const TunnelExit&) = delete;

 private:
  class Impl;
  explicit TunnelExit(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
