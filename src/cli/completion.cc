#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cairn::cli {
namespace {

/// Lines `<path>) words="…" ;;` that bash and zsh both read. All words are ours: letters, digits
/// and dashes.
std::string Cases(const std::vector<CommandWords>& commands) {
  std::string cases;
  for (const CommandWords& command : commands) {
    std::vector<std::string> words = command.commands;
    words.insert(words.end(), command.options.begin(), command.options.end());
    cases += fmt::format("    \"{}\") words=\"{}\"; files={} ;;\n", command.path,
                         fmt::join(words, " "), command.takes_files ? 1 : 0);
  }
  return cases;
}

/// The path of the command that is being typed: the words so far that are commands, one below the
/// other. In bash and in zsh (with arrays that count from 0 and 1).
constexpr std::string_view kBash = R"(# Put into ~/.bashrc:  source <({0} completion bash)
_{0}_words() {{
  case "$1" in
{1}    *) words=""; files=1 ;;
  esac
}}
_{0}() {{
  local path="" words files i word
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    [[ "$word" == -* ]] && continue
    _{0}_words "$path"
    [[ " $words " == *" $word "* ]] || break
    path="${{path:+$path }}$word"
  done
  _{0}_words "$path"
  word="${{COMP_WORDS[COMP_CWORD]}}"
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if ((files)) && [[ "$word" != -* ]]; then
    COMPREPLY+=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _{0} {0}
)";

constexpr std::string_view kZsh = R"(#compdef {0}
# Put into ~/.zshrc, after compinit:  source <({0} completion zsh)
_{0}_words() {{
  case "$1" in
{1}    *) words=""; files=1 ;;
  esac
}}
_{0}() {{
  local typed=("${{words[@]}}") current=$CURRENT
  local path_so_far="" words files i word
  for ((i = 2; i < current; i++)); do
    word="${{typed[i]}}"
    [[ "$word" == -* ]] && continue
    _{0}_words "$path_so_far"
    [[ " $words " == *" $word "* ]] || break
    path_so_far="${{path_so_far:+$path_so_far }}$word"
  done
  _{0}_words "$path_so_far"
  compadd -- ${{=words}}
  ((files)) && _files
  return 0
}}
compdef _{0} {0}
)";

std::string Fish(std::string_view program, const std::vector<CommandWords>& commands) {
  std::string script =
      fmt::format(R"(# Put into ~/.config/fish/config.fish:  {0} completion fish | source
function __{0}_path
  set -l tokens (commandline -opc)
  set -l path
  for token in $tokens[2..-1]
    string match -q -- '-*' $token; and continue
    contains -- (string join ' ' $path $token) $__{0}_paths; or break
    set path $path $token
  end
  string join ' ' $path
end
function __{0}_at
  set -l path (__{0}_path)
  test "$path" = "$argv[1]"
end
complete -c {0} -f
)",
                  program);
  std::string paths;
  std::string lines;
  for (const CommandWords& command : commands) {
    if (!command.path.empty()) paths += fmt::format(" '{}'", command.path);
    const std::string condition = fmt::format("-n \"__{}_at '{}'\"", program, command.path);
    if (!command.commands.empty()) {
      lines += fmt::format("complete -c {} {} -a '{}'\n", program, condition,
                           fmt::join(command.commands, " "));
    }
    for (const std::string& option : command.options) {
      const bool is_long = option.starts_with("--");
      lines += fmt::format("complete -c {} {} {} '{}'\n", program, condition, is_long ? "-l" : "-s",
                           option.substr(is_long ? 2 : 1));
    }
    if (command.takes_files) lines += fmt::format("complete -c {} {} -F\n", program, condition);
  }
  return script + fmt::format("set -g __{}_paths{}\n", program, paths) + lines;
}

}  // namespace

Result<std::string> CompletionScript(std::string_view shell, std::string_view program,
                                     const std::vector<CommandWords>& commands) {
  if (shell == "bash") return fmt::format(fmt::runtime(kBash), program, Cases(commands));
  if (shell == "zsh") return fmt::format(fmt::runtime(kZsh), program, Cases(commands));
  if (shell == "fish") return Fish(program, commands);
  return InvalidArgumentError(
      fmt::format("there is no completion for \"{}\": only for bash, zsh and fish", shell));
}

}  // namespace cairn::cli
