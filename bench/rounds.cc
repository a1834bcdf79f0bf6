#include "bench/rounds.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/status_macros.h"
#include "bench/machine.h"

namespace cairn::bench {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Stopwatch::Start() {
  others_began_ = OthersCpuSeconds();
  own_began_ = OwnCpuSeconds();
  began_ = Now();
}

void Stopwatch::Stop() {
  seconds_ = Now() - began_;
  own_ = OwnCpuSeconds() - own_began_;
  // Ticks are 10 ms: over a shorter window the share of others is noise.
  const double window = seconds_ < 0.02 ? 0.02 : seconds_;
  others_ = (OthersCpuSeconds() - others_began_) / window;
}

Status RunRounds(const Options& options, const std::string& what,
                 const std::function<Status()>& prepare, const std::vector<Contender>& contenders) {
  int undisturbed = 0;
  for (int round = 0; round < options.max_rounds && undisturbed < options.rounds; ++round) {
    bool disturbed = false;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Contender& contender =
          contenders[(i + static_cast<std::size_t>(round)) % contenders.size()];
      RETURN_IF_ERROR(prepare());
      Stopwatch watch;
      const Status status = contender.run(&watch);
      if (!status.ok()) return status.WithContext(what + ", " + contender.name);
      disturbed = disturbed || watch.others() > options.max_others;
      std::string notes;
      for (const auto& [name, value] : watch.notes()) {
        notes += fmt::format(", \"{}\": {:.6g}", name, value);
      }
      fmt::print(
          "{{\"what\": \"{}\", \"round\": {}, \"contender\": \"{}\", \"seconds\": {:.9f}, "
          "\"bytes\": {}, \"others\": {:.3f}, \"load\": {:.2f}, \"cpu\": {:.3f}{}}}\n",
          what, round, contender.name, watch.seconds(), contender.bytes, watch.others(),
          LoadAverage(), watch.own(), notes);
      std::fflush(stdout);
    }
    if (!disturbed) ++undisturbed;
  }
  return Status::Ok();
}

void PrintFact(const std::string& what, const std::string& name, double value) {
  fmt::print("{{\"what\": \"{}\", \"fact\": \"{}\", \"value\": {:.6g}, \"load\": {:.2f}}}\n", what,
             name, value, LoadAverage());
  std::fflush(stdout);
}

}  // namespace cairn::bench
