#include <cstdlib>
#include <iostream>
#include <map>

#include "tests/interleaving/rules.h"
#include "tests/interleaving/scenarios.h"

using namespace cairn::interleaving;

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "saves";
  const Disk disk = argc > 2 && std::string(argv[2]) == "plain" ? Disk::kPlain : Disk::kObjects;
  const int bound = argc > 3 ? std::atoi(argv[3]) : -1;
  const int seconds = argc > 4 ? std::atoi(argv[4]) : 60;
  const std::string off = argc > 5 ? argv[5] : "";
  std::map<std::string, Scenario> all = {
      {"saves1", TakeoverDuringSaves(disk, 1)},
      {"saves2", TakeoverDuringSaves(disk, 2)},
      {"open", TwoOpenAtOnce(disk)},
      {"removal", TakeoverDuringRemoval(disk)},
      {"remover", TakeoverByARemover(disk)},
      {"pin", PinAgainstRetention(disk)},
      {"pintake", PinRemovalTakeover(disk)},
      {"reader", ReaderBesideRetention(disk)},
      {"ranks1", TwoRanks(disk, 1, 0)},
      {"ranks2", TwoRanks(disk, 2, 1)},
      {"replaced", ReplacedRank(disk, 0)},
      {"restart", RestartedRank(disk)},
      {"back", GoingBack(disk)},
      {"crowd", Crowd(disk)},
  };
  Scenario scenario = all.at(what);
  scenario.share_files = std::getenv("SHARE") != nullptr;
  for (const Rule& rule : kRules) {
    if (rule.name == off) scenario.rules.*rule.on = false;
  }
  Limits limits;
  limits.time = std::chrono::seconds(seconds);
  Exploration result;
  if (bound == -2) {
    result = ExploreRandomly(scenario, 1, limits);
  } else if (bound == -3) {
    result = ExploreDeepening(scenario, limits);
  } else {
    if (bound >= 0) limits.preemptions = bound;
    result = ExploreAll(scenario, limits);
  }
  std::cout << result.Summary(scenario.name) << "\n" << result.schedule;
}
