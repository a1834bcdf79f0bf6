// Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter
// Tuning").
//
// A bracket has rungs at growing milestones of a trial's time. A trial's score is written down at
// each rung it comes to. Stopping: it is compared, there and then, with those that came before it.
// Promoting: it pauses, and goes on when it is among the best 1/reduction_factor of its rung.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"
#include "tune/rng.h"
#include "tune/roster.h"
#include "tune/scheduler.h"
#include "tune/score.h"

namespace cairn::tune {
namespace {

constexpr int kMaxRungs = 1000;

struct Rung {
  double milestone;
  SortedScores sorted;
  struct Entry {
    std::string trial;
    Value score;
    bool promoted = false;
  };
  std::vector<Entry> entries;  // in the order they came
  std::map<std::string, std::size_t, std::less<>> index;

  bool Has(const std::string& trial) const { return index.contains(trial); }
  void Add(const std::string& trial, const Value& score, bool promoted = false) {
    index.emplace(trial, entries.size());
    entries.push_back({trial, score, promoted});
    sorted.Add(score);
  }
};

using Bracket = std::vector<Rung>;  // milestones going up

class AshaScheduler : public Scheduler {
 public:
  explicit AshaScheduler(AshaOptions options) : options_(std::move(options)) {
    for (int s = 0; s < options_.brackets; ++s) brackets_.push_back(MakeBracket(s));
  }

  Status OnTrialAdd(const std::string& trial, const Value& config) override {
    (void)config;
    const std::size_t bracket = DrawBracket();
    RETURN_IF_ERROR(roster_.Add(trial));
    bracket_of_[trial] = bracket;
    return Status::Ok();
  }

  Result<Decision> OnResult(const std::string& trial, const Value& result) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    ASSIGN_OR_RETURN(const double time, TimeOf(result, options_.score.time_attr));
    ASSIGN_OR_RETURN(const Value score, MetricOf(result, options_.score.metric));
    Decision decision;
    if (time >= options_.max_t && options_.stop_last_trials) {
      decision.action = TrialAction::kStop;
    } else if (!score.is_null()) {
      decision.action = options_.promote ? AtPromotingRung(trial, time, score)
                                         : AtStoppingRung(trial, time, score);
    }
    roster_.Set(trial, decision.action == TrialAction::kContinue ? Roster::State::kRunning
                       : decision.action == TrialAction::kStop   ? Roster::State::kEnded
                                                                 : Roster::State::kWaiting);
    return decision;
  }

  Status Check(const Value& result) const override {
    RETURN_IF_ERROR(TimeOf(result, options_.score.time_attr).status());
    return MetricOf(result, options_.score.metric).status();
  }

  Status OnRestart(const std::string& trial) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    for (Rung& rung : brackets_[bracket_of_.at(trial)]) {
      if (rung.Has(trial)) rung = Without(trial, rung);
    }
    roster_.Set(trial, Roster::State::kRunning);
    return Status::Ok();
  }

  Status OnComplete(const std::string& trial, const Value& result) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    // The last result of a trial that ended by itself counts for those that come after it.
    if (roster_.StateOf(trial) != Roster::State::kEnded && result.is_object()) {
      Result<double> time = TimeOf(result, options_.score.time_attr);
      Result<Value> score = MetricOf(result, options_.score.metric);
      if (time.ok() && score.ok() && !score->is_null()) {
        if (Rung* rung = RungAt(trial, *time); rung != nullptr && !rung->Has(trial))
          rung->Add(trial, *score);
      }
    }
    roster_.Set(trial, Roster::State::kEnded);
    return Status::Ok();
  }

  Status OnError(const std::string& trial) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    roster_.Set(trial, Roster::State::kEnded);
    return Status::Ok();
  }

  Result<Choice> ChooseTrialToRun(const Candidates& candidates) override {
    auto run = [&](const std::string& trial) {
      roster_.Set(trial, Roster::State::kRunning);
      return Choice{Choice::Kind::kRun, trial, {}, {}};
    };
    // A trial that nobody paused was interrupted: it goes on where it was.
    for (const std::string& trial : candidates.paused) {
      if (!options_.promote || roster_.StateOf(trial) == Roster::State::kRunning) return run(trial);
    }
    if (Rung::Entry* entry = BestToPromote(candidates)) {
      entry->promoted = true;
      return run(entry->trial);
    }
    if (!candidates.pending.empty()) return run(candidates.pending.front());
    if (!candidates.more_to_come && !candidates.paused.empty()) {
      return Choice{Choice::Kind::kStop, candidates.paused.front(), {}, {}};
    }
    return Choice{};
  }

  Value Save() const override {
    Value::List brackets;
    for (const Bracket& bracket : brackets_) {
      Value::List rungs;
      for (const Rung& rung : bracket) {
        Value::List entries;
        for (const Rung::Entry& entry : rung.entries) {
          Value::List parts;
          parts.emplace_back(entry.trial);
          parts.push_back(entry.score);
          parts.emplace_back(entry.promoted);
          entries.emplace_back(std::move(parts));
        }
        rungs.emplace_back(std::move(entries));
      }
      brackets.emplace_back(std::move(rungs));
    }
    Value::Object bracket_of;
    for (const auto& [trial, bracket] : bracket_of_)
      bracket_of[trial] = Value(static_cast<std::uint64_t>(bracket));
    return Value::Object{{"roster", roster_.Save()},
                         {"brackets", std::move(brackets)},
                         {"bracket_of", std::move(bracket_of)}};
  }

  Status Load(const Value& state) override {
    const Status damaged = CorruptionError("state of ASHA: damaged, or of other rungs");
    AshaScheduler loaded(options_);
    const Value::Object* members = state.if_object();
    if (members == nullptr || !members->contains("roster")) return damaged;
    RETURN_IF_ERROR(loaded.roster_.Load(members->at("roster")));
    const Value* brackets = state.Find("brackets");
    const Value* bracket_of = state.Find("bracket_of");
    const Value::List* list = brackets == nullptr ? nullptr : brackets->if_list();
    const Value::Object* of = bracket_of == nullptr ? nullptr : bracket_of->if_object();
    if (list == nullptr || of == nullptr || list->size() != loaded.brackets_.size() ||
        of->size() != loaded.roster_.order().size()) {
      return damaged;
    }
    for (const auto& [trial, bracket] : *of) {
      const std::int64_t number = bracket.AsInt(-1);
      if (!loaded.roster_.Has(trial) || number < 0 || number >= options_.brackets) return damaged;
      loaded.bracket_of_[trial] = static_cast<std::size_t>(number);
    }
    for (std::size_t s = 0; s < list->size(); ++s) {
      RETURN_IF_ERROR(LoadBracket((*list)[s], loaded.roster_, &loaded.brackets_[s]));
    }
    roster_ = std::move(loaded.roster_);
    brackets_ = std::move(loaded.brackets_);
    bracket_of_ = std::move(loaded.bracket_of_);
    return Status::Ok();
  }

 private:
  Bracket MakeBracket(int s) const {
    Bracket bracket;
    double milestone = options_.grace_period * std::pow(options_.reduction_factor, s);
    for (int k = 0; milestone <= options_.max_t && k < kMaxRungs; ++k) {
      bracket.push_back({milestone, SortedScores(options_.score.maximize), {}, {}});
      milestone *= options_.reduction_factor;
    }
    return bracket;
  }

  /// Brackets with one rung more are e times as likely.
  std::size_t DrawBracket() const {
    if (brackets_.size() == 1) return 0;
    double sum = 0;
    std::vector<double> weights;
    for (const Bracket& bracket : brackets_) {
      weights.push_back(
          std::exp(static_cast<double>(bracket.size()) - static_cast<double>(brackets_[0].size())));
      sum += weights.back();
    }
    double drawn = Rng(options_.seed, roster_.order().size(), "bracket").Unit() * sum;
    for (std::size_t s = 0; s + 1 < weights.size(); ++s) {
      if (drawn < weights[s]) return s;
      drawn -= weights[s];
    }
    return weights.size() - 1;
  }

  Rung Without(const std::string& trial, const Rung& rung) const {
    Rung rest{rung.milestone, SortedScores(options_.score.maximize), {}, {}};
    for (const Rung::Entry& entry : rung.entries) {
      if (entry.trial != trial) rest.Add(entry.trial, entry.score, entry.promoted);
    }
    return rest;
  }

  /// The highest rung that a trial has come to, or null.
  Rung* RungAt(const std::string& trial, double time) {
    Bracket& bracket = brackets_[bracket_of_.at(trial)];
    Rung* found = nullptr;
    for (Rung& rung : bracket) {
      if (time >= rung.milestone) found = &rung;
    }
    return found;
  }

  TrialAction AtStoppingRung(const std::string& trial, double time, const Value& score) {
    Rung* rung = RungAt(trial, time);
    if (rung == nullptr || rung->Has(trial)) return TrialAction::kContinue;
    const bool stop = rung->sorted.IsBelowQuantile(score, options_.reduction_factor);
    rung->Add(trial, score);
    return stop ? TrialAction::kStop : TrialAction::kContinue;
  }

  TrialAction AtPromotingRung(const std::string& trial, double time, const Value& score) {
    for (Rung& rung : brackets_[bracket_of_.at(trial)]) {
      if (rung.Has(trial)) continue;
      if (time < rung.milestone) break;
      rung.Add(trial, score);
      return TrialAction::kPause;
    }
    return TrialAction::kContinue;
  }

  Rung::Entry* BestToPromote(const Candidates& candidates) {
    if (!options_.promote || candidates.paused.empty()) return nullptr;
    std::map<std::string_view, bool> paused;
    for (const std::string& trial : candidates.paused) paused[trial] = true;
    std::size_t highest = 0;
    for (const Bracket& bracket : brackets_) highest = std::max(highest, bracket.size());
    for (std::size_t k = highest; k-- > 0;) {
      for (Bracket& bracket : brackets_) {
        if (k >= bracket.size()) continue;
        if (Rung::Entry* entry = BestOf(bracket[k], paused)) return entry;
      }
    }
    return nullptr;
  }

  /// The best of the best 1/reduction_factor that waits. Of equal ones the one that came first.
  Rung::Entry* BestOf(Rung& rung, const std::map<std::string_view, bool>& paused) const {
    const auto places = static_cast<std::size_t>(static_cast<double>(rung.entries.size()) /
                                                 options_.reduction_factor);
    if (places == 0) return nullptr;
    std::vector<Rung::Entry*> order;
    order.reserve(rung.entries.size());
    for (Rung::Entry& entry : rung.entries) order.push_back(&entry);
    std::ranges::stable_sort(order, [&](const auto* a, const auto* b) {
      return CompareScores(a->score, b->score, options_.score.maximize) > 0;
    });
    for (std::size_t i = 0; i < places; ++i) {
      if (IsNan(order[i]->score)) break;
      if (!order[i]->promoted && paused.contains(order[i]->trial)) return order[i];
    }
    return nullptr;
  }

  static Status LoadBracket(const Value& state, const Roster& roster, Bracket* bracket) {
    const Status damaged = CorruptionError("state of ASHA: damaged, or of other rungs");
    const Value::List* rungs = state.if_list();
    if (rungs == nullptr || rungs->size() != bracket->size()) return damaged;
    for (std::size_t k = 0; k < rungs->size(); ++k) {
      const Value::List* entries = (*rungs)[k].if_list();
      if (entries == nullptr) return damaged;
      for (const Value& entry : *entries) {
        const Value::List* parts = entry.if_list();
        if (parts == nullptr || parts->size() != 3) return damaged;
        const std::string* trial = (*parts)[0].if_string();
        const Value score = NumberFrom((*parts)[1]);
        const bool* promoted = (*parts)[2].if_bool();
        if (trial == nullptr || promoted == nullptr || score.is_null() || !roster.Has(*trial) ||
            (*bracket)[k].Has(*trial)) {
          return damaged;
        }
        (*bracket)[k].Add(*trial, score, *promoted);
      }
    }
    return Status::Ok();
  }

  const AshaOptions options_;
  Roster roster_;
  std::vector<Bracket> brackets_;
  std::map<std::string, std::size_t, std::less<>> bracket_of_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> MakeAshaScheduler(AshaOptions options) {
  RETURN_IF_ERROR(Validate(options.score));
  if (!(options.max_t > 0) || !std::isfinite(options.max_t))
    return InvalidArgumentError("max_t must be above 0");
  if (!(options.grace_period > 0)) return InvalidArgumentError("grace_period must be above 0");
  if (options.grace_period > options.max_t)
    return InvalidArgumentError("grace_period must not be above max_t");
  if (!(options.reduction_factor > 1) || !std::isfinite(options.reduction_factor)) {
    return InvalidArgumentError("reduction_factor must be above 1");
  }
  if (options.brackets < 1) return InvalidArgumentError("brackets must be at least 1");
  // Bracket 0 has the most rungs; one that would have none at all stops nothing.
  double rungs = 0;
  for (double at = options.grace_period; at <= options.max_t && rungs < kMaxRungs; ++rungs)
    at *= options.reduction_factor;
  if (options.brackets > rungs) {
    return InvalidArgumentError(
        fmt::format("brackets must be at most {} with these max_t, grace_period and "
                    "reduction_factor: there are no more rungs to leave out",
                    rungs));
  }
  return std::unique_ptr<Scheduler>(std::make_unique<AshaScheduler>(std::move(options)));
}

}  // namespace cairn::tune
