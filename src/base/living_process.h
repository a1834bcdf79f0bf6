#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn {

/// Tells a process from all others that have or had its pid: the boot of its machine, its pid
/// namespace and when it began. One line of text; "" when there is no such process or /proc cannot
/// be read.
std::string ProcessIdentity(std::int64_t pid);

enum class ProcessLife : std::uint8_t {
  kLives,
  kEnded,
  kUnknown,  // of another boot, another container, another machine of the same name, or hidden
};

/// Whether a process of this machine that had `pid` and `identity` then still lives. An identity of
/// "" is not known: whichever process has the pid now is taken for it. `proc`: where processes are
/// looked up.
ProcessLife LifeOf(std::int64_t pid, std::string_view identity, const std::string& proc = "/proc");

}  // namespace cairn
