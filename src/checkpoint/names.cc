#include "checkpoint/names.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/ids.h"

namespace cairn::names {
namespace {

std::string Padded(std::uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "%06llu", static_cast<unsigned long long>(number));
  return text;
}

// No repository is opened so often; a name with a greater number is somebody else's, and the one
// after it could not be taken.
constexpr std::uint64_t kMaxNumber = 1'000'000'000'000'000;

std::optional<std::uint64_t> NumberBefore(std::string_view name, std::string_view suffix) {
  if (name.size() <= suffix.size() || !name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  if (value > kMaxNumber || Padded(value) != name) return std::nullopt;  // one spelling per number
  return value;
}

}  // namespace

std::string Path(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  std::string path(directory);
  path += '/';
  path += name;
  return path;
}

std::string Fence(std::uint64_t generation) {
  return Path(kGenerations, Padded(generation) + ".json");
}
std::string Seal(std::uint64_t generation) {
  return Path(kGenerations, Padded(generation) + ".seal.json");
}
std::string End(std::uint64_t generation) {
  return Path(kGenerations, Padded(generation) + ".end.json");
}
std::string Start(std::uint64_t generation, std::uint64_t number) {
  const std::string which = number == 1 ? ".start" : ".start-" + std::to_string(number);
  return Path(kGenerations, Padded(generation) + which + ".json");
}
std::string AttemptsOf(std::uint64_t generation) {
  return Path(kGenerations, Padded(generation) + "/attempts");
}
std::string Attempt(std::uint64_t generation, std::uint64_t number) {
  return Path(AttemptsOf(generation), std::to_string(number) + ".json");
}
std::string LastStep(std::uint64_t generation) {
  return Path(kGenerations, Padded(generation) + "/last_step.json");
}
std::string Join(std::string_view participant, std::string_view uuid) {
  return Path(kJoins, std::string(participant) + "-" + std::string(uuid) + ".json");
}
std::string Part(std::string_view directory, std::string_view participant) {
  return Path(Path(directory, "parts"), std::string(participant) + ".json");
}
std::string Note(std::string_view directory, std::uint64_t number) {
  return Path(Path(directory, "notes"), Padded(number) + ".json");
}
std::string Participant(std::string_view kind, int rank) {
  return std::string(kind) + "_" + std::to_string(rank);
}

bool IsUsualParticipant(std::string_view name) {
  for (const std::string_view kind : {"rank_", "trainer_", "ps_"}) {
    if (name.starts_with(kind) && name.size() > kind.size() &&
        name.find_first_not_of("0123456789", kind.size()) == name.npos) {
      return true;
    }
  }
  return false;
}

bool IsPool(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (slash == name.npos || name.substr(0, slash) != kPool) return false;
  name.remove_prefix(slash + 1);
  return !name.empty() && name.find_first_not_of("0123456789") == name.npos;
}

bool IsRecycled(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return slash != name.npos && IsPool(name.substr(0, slash)) && IsUuid(name.substr(slash + 1));
}

std::optional<std::uint64_t> GenerationOfFence(std::string_view file_name) {
  return NumberBefore(file_name, ".json");
}
std::optional<std::uint64_t> GenerationOfSeal(std::string_view file_name) {
  return NumberBefore(file_name, ".seal.json");
}
std::optional<std::uint64_t> GenerationOfEnd(std::string_view file_name) {
  return NumberBefore(file_name, ".end.json");
}
std::optional<std::uint64_t> GenerationOfStart(std::string_view file_name) {
  constexpr std::string_view kStart = ".start";
  const std::size_t at = file_name.find(kStart);
  if (at == file_name.npos || !file_name.ends_with(".json")) return std::nullopt;
  std::string_view which = file_name.substr(at + kStart.size());
  which.remove_suffix(std::string_view(".json").size());
  if (!which.empty() && (which.size() < 2 || which.front() != '-' ||
                         which.find_first_not_of("0123456789", 1) != which.npos)) {
    return std::nullopt;
  }
  return NumberBefore(file_name.substr(0, at), "");
}
std::optional<std::uint64_t> GenerationOfDirectory(std::string_view name) {
  return NumberBefore(name, "");
}
std::optional<std::uint64_t> NumberOfNote(std::string_view file_name) {
  return NumberBefore(file_name, ".json");
}
std::optional<std::uint64_t> NumberOfAttempt(std::string_view file_name) {
  constexpr std::string_view kSuffix = ".json";
  if (!file_name.ends_with(kSuffix)) return std::nullopt;
  file_name.remove_suffix(kSuffix.size());
  std::uint64_t number = 0;
  const char* const past = file_name.data() + file_name.size();
  const auto [end, error] = std::from_chars(file_name.data(), past, number);
  if (error != std::errc() || end != past) return std::nullopt;
  return number;
}

std::string CheckpointDirectory(bool increment, bool serial, std::int64_t number, int copy) {
  std::string name = increment ? "increment_" : "checkpoint_";
  if (serial) {
    name += std::to_string(number);
  } else if (number < 0) {
    name += "-" + Padded(static_cast<std::uint64_t>(-(number + 1)) + 1);
  } else {
    name += Padded(static_cast<std::uint64_t>(number));
  }
  if (copy > 1) name += "-" + std::to_string(copy);
  return name;
}

bool IsCheckpointDirectory(std::string_view name) {
  const std::size_t start = name.find('_') + 1;
  const std::string_view prefix = name.substr(0, start);
  if (prefix != "checkpoint_" && prefix != "increment_") return false;
  name.remove_prefix(start);
  if (name.starts_with('-')) name.remove_prefix(1);  // of a negative number
  const auto take_digits = [&name] {
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    name.remove_prefix(digits);
    return digits > 0;
  };
  if (!take_digits()) return false;
  if (name.empty()) return true;
  if (!name.starts_with('-')) return false;
  name.remove_prefix(1);
  return take_digits() && name.empty();
}

}  // namespace cairn::names
