#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "master/config_node.h"
#include "master/config_problems.h"

namespace cairn::master {

/// The word of `words` that `word` was probably meant to be, or "": at most two letters (a third of
/// a longer word) are wrong, missing, too many or swapped.
std::string_view Suggest(std::string_view word, std::span<const std::string_view> words);

/// Takes the members of a map one by one and refuses what nobody asked for. Mistakes are collected,
/// so that a reader needs to look only once, at Finish, and whoever wrote the map is told all of
/// them. One caller at a time; the node is borrowed.
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

  /// The member must be there and no empty text; one that was misspelt is told as that alone.
  void Require(std::string_view key, std::string_view why);
  /// Members that were not asked for are no mistakes of their own: what they belong to is unknown.
  void TakeRest() { rest_taken_ = true; }

  /// At the member's place, or the map's.
  void Fail(std::string_view key, std::string_view why);
  void Fail(const ConfigNode& where, std::string_view key, std::string_view why);
  void Fail(const Status& status) { problems_.Add(status); }
  bool failed() const { return !problems_.empty(); }
  /// InvalidArgument with all mistakes (ConfigProblems), members that were not taken among them.
  Status Finish();

 private:
  std::string Name(std::string_view key) const;
  /// Not there, or null.
  bool Lacks(std::string_view key) const;

  const ConfigNode& node_;
  const std::string path_;
  std::vector<std::string_view> known_;  // what was asked for: string literals
  std::vector<std::pair<std::string_view, std::string>> required_;  // and why
  bool rest_taken_ = false;
  ConfigProblems problems_;
};

}  // namespace cairn::master
