#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "master/config_node.h"

namespace cairn::master {

/// The word of `words` that `word` was probably meant to be, or "": at most two letters (a third of
/// a longer word) are wrong, missing, too many or swapped.
std::string_view Suggest(std::string_view word, std::span<const std::string_view> words);

/// Takes the members of a map one by one and refuses what nobody asked for. Errors are collected:
/// the first one counts, and calls after it do nothing, so that a reader needs to look only once,
/// at Finish. One caller at a time; the node is borrowed.
class ConfigReader {
 public:
  /// `path`: how the map is called in messages ("searcher"); "" for the whole file.
  ConfigReader(const ConfigNode& node, std::string path);

  /// The member, or null when it is missing or null.
  const ConfigNode* Take(std::string_view key);
  // Leave `out` alone when the member is missing or null.
  void Text(std::string_view key, std::string* out);
  void Bool(std::string_view key, bool* out);
  void Int(std::string_view key, std::int64_t* out, std::int64_t least, std::int64_t most);
  void Double(std::string_view key, double* out);
  void Texts(std::string_view key, std::vector<std::string>* out);
  /// Seconds as a number, or "90s", "10m", "2h", "7d".
  void Seconds(std::string_view key, double* out);
  /// Bytes as a number, or "512MB", "20GiB".
  void Bytes(std::string_view key, std::uint64_t* out);

  void Fail(const ConfigNode& where, std::string_view key, std::string_view why);
  void Fail(Status status);
  bool failed() const { return !status_.ok(); }
  /// The first error, or InvalidArgument for the first member that was not taken.
  Status Finish();

 private:
  std::string Name(std::string_view key) const;

  const ConfigNode& node_;
  const std::string path_;
  std::vector<std::string_view> known_;  // what was asked for: string literals
  Status status_;
};

}  // namespace cairn::master
