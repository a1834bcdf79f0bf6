#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cairn::master {

/// Whether the whole path is meant: '*' and '?' stop at '/', "**" does not, "[a-z]" and "[!a]" are
/// sets, '\' takes the meaning away. Takes time in proportion to pattern × path, whatever they are.
bool GlobMatch(std::string_view pattern, std::string_view path);

/// What a file `.cairnignore` leaves out, by the rules of .gitignore: '#' comments, '!' takes back,
/// a trailing '/' means directories, a '/' elsewhere ties to the root. The last line that matches
/// decides. A value.
class IgnoreRules {
 public:
  IgnoreRules() = default;
  /// The rules that hold without any file come first: .git, __pycache__, *.pyc, .cairnignore's own.
  explicit IgnoreRules(std::string_view text);
  /// `path` relative to the root. What lies under an ignored directory is not asked for.
  bool Ignores(std::string_view path, bool directory) const;

 private:
  struct Rule {
    std::string pattern;
    bool negated = false;
    bool directories = false;
    bool anchored = false;
  };
  void Add(std::string_view line);
  std::vector<Rule> rules_;
};

}  // namespace cairn::master
