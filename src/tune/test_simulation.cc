#include "tune/test_simulation.h"

#include <algorithm>
#include <utility>

#include "format/json.h"
#include "tune/rng.h"

namespace cairn::tune {
namespace {

std::string Describe(const Choice& choice) {
  return std::to_string(static_cast<int>(choice.kind)) + " " + choice.trial +
         (choice.donor.empty() ? "" : " from " + choice.donor + " " + EncodeJson(choice.config));
}

}  // namespace

Simulation::Outcome Simulation::Run() const {
  Outcome out;
  std::unique_ptr<Scheduler> scheduler = make();
  auto tell = [&]() -> Scheduler& {
    if (restart_always) {
      std::unique_ptr<Scheduler> next = make();
      const Status loaded = next->Load(DecodeJson(EncodeJson(scheduler->Save())).value());
      if (!loaded.ok()) out.transcript.push_back(loaded.ToString());
      scheduler = std::move(next);
    }
    return *scheduler;
  };
  std::map<std::string, std::size_t> number;
  std::vector<std::string> pending;
  std::vector<std::string> paused;
  std::vector<std::string> running;
  for (int i = 0; i < trials; ++i) {
    Trial trial{.name = "t" + std::to_string(i), .config = config(i)};
    trial.config = tell().CompleteConfig(trial.name, trial.config);
    const Status added = tell().OnTrialAdd(trial.name, trial.config);
    if (!added.ok()) out.transcript.push_back(added.ToString());
    number[trial.name] = out.trials.size();
    pending.push_back(trial.name);
    out.trials.push_back(std::move(trial));
  }
  Rng rng(seed, 0, "order of reports");
  for (int step = 0; step < 100000; ++step) {
    while (running.size() < static_cast<std::size_t>(places)) {
      const Choice choice = tell().ChooseTrialToRun({pending, paused, !running.empty()}).value();
      if (choice.kind == Choice::Kind::kNone) break;
      out.transcript.push_back(Describe(choice));
      std::erase(pending, choice.trial);
      std::erase(paused, choice.trial);
      Trial& trial = out.trials[number.at(choice.trial)];
      if (choice.kind == Choice::Kind::kStop) {
        trial.ended = true;
        tell().OnComplete(choice.trial, {}).IgnoreError("the transcript shows what came of it");
        continue;
      }
      if (!choice.donor.empty()) {
        trial.iteration = out.trials[number.at(choice.donor)].iteration;
        trial.config = choice.config;
      }
      running.push_back(choice.trial);
    }
    if (running.empty()) break;
    const std::string name = running[rng.Below(running.size())];
    Trial& trial = out.trials[number.at(name)];
    ++trial.iteration;
    trial.last_score = score(static_cast<int>(number.at(name)), trial.iteration, trial.config);
    const Value result =
        Value::Object{{"score", trial.last_score}, {"training_iteration", trial.iteration}};
    const Decision decision = tell().OnResult(name, result).value();
    out.transcript.push_back(name + "@" + std::to_string(trial.iteration) + " " +
                             std::to_string(static_cast<int>(decision.action)) +
                             (decision.checkpoint ? " save" : ""));
    for (Value& line : tell().TakeLog()) out.log.push_back(std::move(line));
    const bool ends = trial.iteration >= iterations && decision.action == TrialAction::kContinue;
    if (ends || decision.action == TrialAction::kStop) {
      trial.ended = true;
      tell().OnComplete(name, result).IgnoreError("the transcript shows what came of it");
      std::erase(running, name);
    } else if (decision.action == TrialAction::kPause) {
      std::erase(running, name);
      paused.push_back(name);
    }
  }
  out.final_state = scheduler->Save();
  return out;
}

}  // namespace cairn::tune
