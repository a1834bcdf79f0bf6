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
  kUnknown,  // of another boot, another container, or another machine of the same name
};

/// Whether a process of this machine that had `pid` and `identity` then still lives. An identity of
/// "" is not known: whichever process has the pid now is taken for it.
ProcessLife LifeOf(std::int64_t pid, std::string_view identity);

}  // namespace cairn
