#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn::cli {

/// A command as a shell has to know it.
struct CommandWords {
  std::string path;                   // "experiment create"; "": the program itself
  std::vector<std::string> commands;  // the words that may follow, with other names for them
  std::vector<std::string> options;   // "--json", "-f"
  bool takes_files = false;           // something else may follow that is a file
};

/// The script that teaches a shell (bash, zsh, fish) the words of `program`. InvalidArgument for
/// another shell.
Result<std::string> CompletionScript(std::string_view shell, std::string_view program,
                                     const std::vector<CommandWords>& commands);

}  // namespace cairn::cli
