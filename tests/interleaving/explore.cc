// Explores one scenario, for whoever looks for a schedule or follows one up:
//
//   explore SCENARIO plain|objects|shelves [preemptions=N] [deepen=1] [seed=N] [runs=N] [seconds=N]
//   [off=RULE]
//
// Every schedule, unless `preemptions` bounds them (`deepen`: with 0, 1, … up to that bound) or
// `seed` asks for random ones.

#include <charconv>
#include <iostream>
#include <map>
#include <string>

#include "tests/interleaving/rules.h"
#include "tests/interleaving/scenarios.h"

namespace cairn::interleaving {
namespace {

int Usage() {
  std::cerr << "usage: explore SCENARIO plain|objects|shelves [preemptions=N] [deepen=1] [seed=N] "
               "[runs=N] "
               "[seconds=N] [off=RULE]\nscenarios:\n";
  for (const auto& [name, make] : AllScenarios()) std::cerr << "  " << name << "\n";
  std::cerr << "rules:\n";
  for (const Rule& rule : kRules) std::cerr << "  " << rule.name << "\n";
  return 2;
}

struct Arguments {
  std::map<std::string, std::uint64_t> numbers;
  std::string off;
  bool ok = true;

  Arguments(int argc, char** argv) {
    for (int i = 3; i < argc; ++i) {
      const std::string argument = argv[i];
      const auto equals = argument.find('=');
      if (equals == argument.npos) {
        ok = false;
        return;
      }
      const std::string value = argument.substr(equals + 1);
      if (argument.starts_with("off=")) {
        off = value;
        continue;
      }
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(),
                                          numbers[argument.substr(0, equals)]);
      ok = ok && parsed.ec == std::errc() && parsed.ptr == value.data() + value.size();
    }
  }
  std::optional<std::uint64_t> Get(const std::string& name) const {
    const auto it = numbers.find(name);
    return it == numbers.end() ? std::nullopt : std::optional(it->second);
  }
};

int Main(int argc, char** argv) {
  if (argc < 3) return Usage();
  const auto named = AllScenarios().find(argv[1]);
  const std::string disk = argv[2];
  const Arguments arguments(argc, argv);
  if (named == AllScenarios().end() ||
      (disk != "plain" && disk != "objects" && disk != "shelves") || !arguments.ok) {
    return Usage();
  }
  Scenario scenario = named->second(disk == "plain"     ? Disk::kPlain
                                    : disk == "objects" ? Disk::kObjects
                                                        : Disk::kShelves);
  bool found = arguments.off.empty();
  const auto switch_off = [&](const Rule& rule) {
    if (rule.name != arguments.off) return;
    scenario.rules.*rule.on = false;
    found = true;
  };
  for (const Rule& rule : kRules) switch_off(rule);
  for (const Rule& rule : kShelfRules) switch_off(rule);
  if (!found) return Usage();
  Limits limits;
  limits.runs = arguments.Get("runs");
  if (const auto bound = arguments.Get("preemptions")) {
    limits.preemptions = static_cast<int>(*bound);
  }
  if (const auto seconds = arguments.Get("seconds")) limits.time = std::chrono::seconds(*seconds);
  const auto seed = arguments.Get("seed");
  const Exploration result = seed                      ? ExploreRandomly(scenario, *seed, limits)
                             : arguments.Get("deepen") ? ExploreDeepening(scenario, limits)
                                                       : ExploreAll(scenario, limits);
  std::cout << result.Summary(scenario.name) << "\n" << result.schedule;
  return result.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cairn::interleaving

int main(int argc, char** argv) { return cairn::interleaving::Main(argc, argv); }
