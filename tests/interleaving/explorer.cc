#include "tests/interleaving/explorer.h"

#include <random>
#include <set>
#include <unordered_map>

#include "base/log.h"

namespace cairn::interleaving {
namespace {

using Schedule = std::vector<Choice>;

constexpr int kUnlimited = 1 << 20;

struct Option {
  Choice choice;
  int preemptions = 0;  // that it costs
  int expiries = 0;
};

/// What can happen next: going on with the current actor first, leaps in time last.
std::vector<Option> OptionsOf(const std::vector<Parked>& parked, int current, int expiries_left) {
  std::vector<Option> options;
  auto at = [&](int actor) -> const Parked& { return parked[static_cast<std::size_t>(actor)]; };
  const int actors = static_cast<int>(parked.size());
  const bool could_go_on = current >= 0 && at(current).kind == Parked::Kind::kAtOperation;
  if (could_go_on) options.push_back({{current, false}, 0, 0});
  const int cost = could_go_on ? 1 : 0;
  for (int actor = 0; actor < actors; ++actor) {
    if (actor == current && could_go_on) continue;
    const bool ready = at(actor).kind == Parked::Kind::kAtOperation ||
                       (at(actor).kind == Parked::Kind::kAsleep && at(actor).changed);
    if (ready) options.push_back({{actor, false}, cost, 0});
  }
  const bool forced = options.empty();
  if (!forced && expiries_left == 0) return options;
  for (int actor = 0; actor < actors; ++actor) {
    if (at(actor).kind != Parked::Kind::kAsleep) continue;
    options.push_back({{actor, true}, forced ? 0 : 1, forced ? 0 : 1});
  }
  return options;
}

/// One run of a scenario under some way of deciding.
class Run {
 public:
  /// Called in each state. nullopt: enough of this run.
  using Decide = std::function<std::optional<Choice>(Run*, int current)>;

  Run(const Scenario& scenario, const WorldStart& start, Decide decide)
      : world_(start, scenario.rules),
        scheduler_(static_cast<int>(scenario.scripts.size()),
                   [this, decide = std::move(decide)](int current) -> std::optional<Choice> {
                     auto choice = decide(this, current);
                     if (choice) Trace(*choice);
                     return choice;
                   }) {
    world_.set_scheduler(&scheduler_);
    world_.set_share_files(scenario.share_files);
    world_.set_failing_writer(scenario.failing_writer);
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < scenario.scripts.size(); ++i) {
      Actor* actor = world_.AddActor(static_cast<int>(i));
      bodies.emplace_back([actor, &script = scenario.scripts[i]] { script(actor); });
    }
    scheduler_.Run(bodies);
  }

  World& world() { return world_; }
  const std::vector<Parked>& parked() const { return scheduler_.parked(); }

  std::uint64_t Hash() const {
    std::uint64_t hash = world_.Hash();
    for (const Parked& parked : scheduler_.parked()) {
      hash = MixHash(hash, static_cast<std::uint64_t>(parked.kind) * 2 + (parked.changed ? 1 : 0));
    }
    return hash;
  }
  const std::vector<std::pair<Choice, StoreOp>>& trace() const { return trace_; }

 private:
  void Trace(const Choice& choice) {
    const Parked& parked = scheduler_.parked()[static_cast<std::size_t>(choice.actor)];
    trace_.emplace_back(choice,
                        parked.kind == Parked::Kind::kAtOperation ? parked.next : StoreOp{});
    if (parked.kind != Parked::Kind::kAtOperation) trace_.back().second.why = "wakes up";
  }

  World world_;
  Scheduler scheduler_;
  std::vector<std::pair<Choice, StoreOp>> trace_;
};

std::string Describe(const std::vector<std::pair<Choice, StoreOp>>& trace) {
  std::string text;
  int last = -1;
  for (const auto& [choice, op] : trace) {
    if (choice.actor != last) text += "  actor " + std::to_string(choice.actor) + ":\n";
    last = choice.actor;
    text += "    ";
    if (op.why == "wakes up") {
      text += choice.expire ? "wakes up, its deadlines over" : "wakes up";
    } else {
      text += DescribeStoreOp(op);
    }
    text += "\n";
  }
  return text;
}

WorldStart Prepare(const Scenario& scenario) {
  World world(scenario.store, ProtocolRules{});
  world.set_share_files(scenario.share_files);
  if (scenario.setup) scenario.setup(&world);
  return world.Take();
}

/// What the engine logs while actors are fenced and stopped is no news.
class Silence {
 public:
  Silence() {
    SetLogSink([](LogLevel, std::string_view) {});
  }
  ~Silence() { SetLogSink(nullptr); }
};

/// What is left of the limits.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits), begun_(Clock::System()->Now()) {}
  bool Spent(std::uint64_t runs) const {
    if (limits_.runs && runs >= *limits_.runs) return true;
    return limits_.time && Clock::System()->Now() >= begun_ + *limits_.time;
  }

 private:
  const Limits limits_;
  const Clock::Duration begun_;
};

}  // namespace

std::string Exploration::Summary(const std::string& name) const {
  std::string text =
      name + ": " + std::to_string(runs) + " runs, " + std::to_string(states) + " states, ";
  if (seed) {
    text += "random from seed " + std::to_string(*seed);
  } else if (exhaustive) {
    text += "every schedule";
  } else {
    text += complete ? "every schedule" : "not all schedules";
    if (preemptions) text += " with at most " + std::to_string(*preemptions) + " preemptions";
  }
  if (!violation.empty()) text += "; VIOLATION: " + violation;
  return text;
}

Exploration ExploreAll(const Scenario& scenario, const Limits& limits) {
  const Silence silence;
  const Budget budget(limits);
  const WorldStart start = Prepare(scenario);
  struct Frame {
    std::uint64_t hash = 0;
    std::vector<Option> options;
    std::size_t next = 0;
    int preemptions_left = 0;
    int expiries_left = 0;
  };
  std::vector<Frame> path;
  std::unordered_map<std::uint64_t, int> seen;  // state → the most preemptions left in it
  Judged judged;
  Exploration result;
  result.preemptions = limits.preemptions;
  const int preemptions = limits.preemptions.value_or(kUnlimited);
  bool left_out = false;

  for (;;) {
    std::size_t depth = 0;
    Run run(scenario, start, [&](Run* self, int current) -> std::optional<Choice> {
      if (depth < path.size()) {
        Frame& frame = path[depth++];
        if (self->Hash() != frame.hash) {
          result.violation = "the explorer's fault: an actor behaved differently in a replay";
          return std::nullopt;
        }
        return frame.options[frame.next].choice;
      }
      int preemptions_left = preemptions;
      int expiries_left = scenario.expiries;
      if (!path.empty()) {
        const Option& taken = path.back().options[path.back().next];
        preemptions_left = path.back().preemptions_left - taken.preemptions;
        expiries_left = path.back().expiries_left - taken.expiries;
      }
      const std::uint64_t hash = self->Hash();
      const std::uint64_t key =
          MixHash(MixHash(hash, static_cast<std::uint64_t>(expiries_left)),
                  // Which switch is free depends on who is running.
                  limits.preemptions ? static_cast<std::uint64_t>(current + 1) : 0);
      const auto [it, fresh] = seen.emplace(key, preemptions_left);
      if (fresh) {
        result.violation = self->world().Judge(&judged);
        if (!result.violation.empty()) return std::nullopt;
      } else {
        if (it->second >= preemptions_left) return std::nullopt;
        it->second = preemptions_left;
      }
      Frame frame;
      frame.hash = hash;
      frame.preemptions_left = preemptions_left;
      frame.expiries_left = expiries_left;
      for (const Option& option : OptionsOf(self->parked(), current, expiries_left)) {
        if (option.preemptions <= preemptions_left) {
          frame.options.push_back(option);
        } else {
          left_out = true;
        }
      }
      if (frame.options.empty()) return std::nullopt;
      path.push_back(std::move(frame));
      ++depth;
      return path.back().options[0].choice;
    });
    ++result.runs;
    result.states = seen.size();
    if (result.violation.empty()) result.violation = run.world().Judge(&judged);
    if (!result.violation.empty()) {
      result.schedule = Describe(run.trace());
      return result;
    }
    while (!path.empty() && path.back().next + 1 == path.back().options.size()) path.pop_back();
    if (path.empty()) {
      result.complete = true;
      result.exhaustive = !left_out;
      return result;
    }
    ++path.back().next;
    if (budget.Spent(result.runs)) return result;
  }
}

Exploration ExploreDeepening(const Scenario& scenario, const Limits& limits) {
  const Budget budget(limits);
  const Clock::Duration begun = Clock::System()->Now();
  Exploration last;
  std::uint64_t runs = 0;
  for (int bound = 0; bound <= limits.preemptions.value_or(kUnlimited); ++bound) {
    Limits left = limits;
    left.preemptions = bound;
    if (left.runs) *left.runs -= runs;
    if (left.time) {
      *left.time -=
          std::chrono::duration_cast<std::chrono::seconds>(Clock::System()->Now() - begun);
    }
    last = ExploreAll(scenario, left);
    runs += last.runs;
    last.runs = runs;
    if (!last.violation.empty() || last.exhaustive || budget.Spent(runs)) break;
  }
  return last;
}

Exploration ExploreRandomly(const Scenario& scenario, std::uint64_t seed, const Limits& limits) {
  const Silence silence;
  const Budget budget(limits);
  const WorldStart start = Prepare(scenario);
  std::set<std::uint64_t> seen;
  Judged judged;
  Exploration result;
  result.seed = seed;
  for (; !budget.Spent(result.runs); ++result.runs) {
    std::mt19937_64 random(seed + result.runs);
    // Few switches find other things than many.
    const int stay = std::vector<int>{500, 800, 950, 990}[random() % 4];
    int expiries_left = scenario.expiries;
    Run run(scenario, start, [&](Run* self, int current) -> std::optional<Choice> {
      if (seen.insert(self->Hash()).second) {
        result.violation = self->world().Judge(&judged);
        if (!result.violation.empty()) return std::nullopt;
      }
      const std::vector<Option> options = OptionsOf(self->parked(), current, expiries_left);
      if (options.empty()) return std::nullopt;
      std::size_t pick = 0;
      if (static_cast<int>(random() % 1000) >= stay || options[0].choice.actor != current) {
        pick = random() % options.size();
      }
      // A leap in time is rare, or there would be none left for later.
      if (options[pick].expiries > 0 && random() % 8 != 0) pick = 0;
      expiries_left -= options[pick].expiries;
      return options[pick].choice;
    });
    result.states = seen.size();
    if (result.violation.empty()) result.violation = run.world().Judge(&judged);
    if (!result.violation.empty()) {
      result.violation += " (seed " + std::to_string(seed + result.runs) + ")";
      result.schedule = Describe(run.trace());
      return result;
    }
  }
  return result;
}

Exploration Replay(const Scenario& scenario, const std::vector<Turn>& turns) {
  const Silence silence;
  const WorldStart start = Prepare(scenario);
  Judged judged;
  Exploration result;
  std::vector<Turn> left(turns.rbegin(), turns.rend());
  auto misfit = [&](const Turn& turn, const std::string& what) {
    result.violation = "the schedule does not fit: actor " + std::to_string(turn.actor) + " " +
                       what + " before \"" + turn.operation + "\"";
    return std::nullopt;
  };
  Run run(scenario, start, [&](Run* self, int) -> std::optional<Choice> {
    ++result.states;
    result.violation = self->world().Judge(&judged);
    if (!result.violation.empty()) return std::nullopt;
    while (!left.empty()) {
      Turn& turn = left.back();
      const Parked& parked = self->parked()[static_cast<std::size_t>(turn.actor)];
      if (parked.kind == Parked::Kind::kEnded) {
        if (!turn.operation.empty()) return misfit(turn, "ends");
        left.pop_back();
        continue;
      }
      if (parked.kind == Parked::Kind::kAsleep) {
        if (turn.expire) return Choice{turn.actor, true};
        if (parked.changed) return Choice{turn.actor, false};
        return misfit(turn, "waits for others");
      }
      if (!turn.operation.empty() &&
          DescribeStoreOp(parked.next).find(turn.operation) != std::string::npos &&
          turn.skip-- == 0) {
        const Choice through{turn.actor, false};
        const bool past = turn.past;
        left.pop_back();
        if (past) return through;
        continue;
      }
      return Choice{turn.actor, false};
    }
    return std::nullopt;
  });
  result.runs = 1;
  if (result.violation.empty()) result.violation = run.world().Judge(&judged);
  result.schedule = Describe(run.trace());
  return result;
}

}  // namespace cairn::interleaving
