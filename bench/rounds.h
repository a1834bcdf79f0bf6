#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cairn/status.h>

namespace cairn::bench {

struct Options {
  std::string directory;             // on the disk that is measured; emptied by the benchmarks
  std::uint64_t bytes = 2ull << 30;  // of the state
  int rounds = 5;                    // undisturbed ones that are wanted
  int max_rounds = 15;               // given up after so many
  double max_others = 0.5;           // cores that others may use in an undisturbed round
  int threads = 0;                   // 0: all cores
  std::string variant;               // of benchmarks that have several
};

/// Times the part of a contender between Start and Stop, and what else the machine did meanwhile.
class Stopwatch {
 public:
  void Start();
  void Stop();
  /// A further figure of the round.
  void Note(std::string name, double value) { notes_.emplace_back(std::move(name), value); }
  /// Instead of the time between Start and Stop.
  void SetSeconds(double seconds) { seconds_ = seconds; }

  double seconds() const { return seconds_; }
  double others() const { return others_; }  // cores
  double own() const { return own_; }        // CPU seconds
  const std::vector<std::pair<std::string, double>>& notes() const { return notes_; }

 private:
  double began_ = 0;
  double others_began_ = 0;
  double own_began_ = 0;
  double seconds_ = 0;
  double others_ = 0;
  double own_ = 0;
  std::vector<std::pair<std::string, double>> notes_;
};

double Now();

struct Contender {
  std::string name;
  std::uint64_t bytes = 0;
  /// Untimed part before, Start, timed part, Stop, untimed part after.
  std::function<Status(Stopwatch*)> run;
};

/// Runs the contenders round robin, each after the same preparation, until `rounds` rounds were
/// undisturbed, and prints a line of JSON for each measurement. The order turns from round to
/// round: nobody always comes after the same neighbour.
Status RunRounds(const Options& options, const std::string& what,
                 const std::function<Status()>& prepare, const std::vector<Contender>& contenders);

/// Prints one figure as a line of JSON.
void PrintFact(const std::string& what, const std::string& name, double value);

}  // namespace cairn::bench
