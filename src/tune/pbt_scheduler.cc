// Population based training (Jaderberg et al.). At every perturbation interval of its own time a
// trial is compared with the newest scores of the others. One of the worst pauses and is taken up
// again from a checkpoint of one of the best, with hyperparameters near its; one of the best saves
// a checkpoint.
//
// Async: each when it comes there. When other trials wait for a place it pauses for them, so that
// the population shares the places evenly. Synch: all pause, and when the last has come they are
// compared.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"
#include "tune/explore.h"
#include "tune/rng.h"
#include "tune/roster.h"
#include "tune/scheduler.h"
#include "tune/score.h"

namespace cairn::tune {
namespace {

struct Member {
  Value config;
  Value score;  // null before the first interval and while it is to become a copy
  double time = 0;
  double last_perturbation = 0;
  bool arrived = false;  // synch: waits for the others
  std::string donor;     // not empty: it starts from a copy of this one's checkpoint
  Value new_config;
};

class PbtScheduler : public Scheduler {
 public:
  explicit PbtScheduler(PbtOptions options)
      : options_(std::move(options)),
        next_sync_(std::max(options_.perturbation_interval, options_.burn_in_period)) {}

  Value CompleteConfig(const std::string& trial, const Value& config) const override {
    (void)trial;  // what is drawn does not depend on names
    return FillIn(config, options_.hyperparam_mutations, options_.seed, roster_.order().size(),
                  "first");
  }

  Status OnTrialAdd(const std::string& trial, const Value& config) override {
    RETURN_IF_ERROR(roster_.Add(trial));
    members_[trial].config = config;
    return Status::Ok();
  }

  Status Check(const Value& result) const override {
    RETURN_IF_ERROR(TimeOf(result, options_.score.time_attr).status());
    ASSIGN_OR_RETURN(const Value score, MetricOf(result, options_.score.metric));
    if (!score.is_null() || !options_.require_metrics) return Status::Ok();
    return InvalidArgumentError(
        fmt::format("the result has no metric {}, by which the population is compared",
                    QuoteForMessage(options_.score.metric)));
  }

  Status OnRestart(const std::string& trial) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    Member& member = members_.at(trial);
    member = Member{.config = member.config};
    roster_.Set(trial, Roster::State::kRunning);
    return Status::Ok();
  }

  Result<Decision> OnResult(const std::string& trial, const Value& result) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    RETURN_IF_ERROR(Check(result));
    ASSIGN_OR_RETURN(const double time, TimeOf(result, options_.score.time_attr));
    ASSIGN_OR_RETURN(Value score, MetricOf(result, options_.score.metric));
    if (score.is_null()) score = std::nan("");
    Member& member = members_.at(trial);
    roster_.Set(trial, Roster::State::kRunning);
    member.time = time;
    const bool due = options_.synch
                         ? time >= next_sync_
                         : time >= options_.burn_in_period &&
                               time - member.last_perturbation >= options_.perturbation_interval;
    if (!due) return Decision{};
    member.score = std::move(score);
    return options_.synch ? Arrive(trial, &member) : Perturb(trial, &member);
  }

  Status OnComplete(const std::string& trial, const Value& result) override {
    (void)result;
    return OnError(trial);
  }

  Status OnError(const std::string& trial) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    roster_.Set(trial, Roster::State::kEnded);
    members_.at(trial).arrived = false;
    if (options_.synch) PerturbAllWhenComplete();
    return Status::Ok();
  }

  Result<Choice> ChooseTrialToRun(const Candidates& candidates) override {
    // The one that is behind most: all get a fair share of time. Of equal ones the one that waits
    // longest.
    const std::set<std::string_view> held =
        options_.synch ? Held(candidates) : std::set<std::string_view>{};
    const std::string* best = nullptr;
    double least = 0;
    for (const auto& list : {candidates.pending, candidates.paused}) {
      for (const std::string& trial : list) {
        const auto it = members_.find(trial);
        if (it == members_.end() || it->second.arrived || held.contains(trial)) continue;
        if (best == nullptr || it->second.time < least) {
          best = &trial;
          least = it->second.time;
        }
      }
    }
    if (best == nullptr) return Choice{};
    Member& member = members_.at(*best);
    Choice choice{Choice::Kind::kRun, *best, std::exchange(member.donor, {}), {}};
    if (!choice.donor.empty()) {
      member.config = std::exchange(member.new_config, {});
      choice.config = member.config;
    }
    roster_.Set(*best, Roster::State::kRunning);
    return choice;
  }

  Status SetConfig(const std::string& trial, const Value& config) override {
    RETURN_IF_ERROR(roster_.Check(trial));
    members_.at(trial).config = config;
    return Status::Ok();
  }

  bool keeps_log() const override { return true; }
  Value::List TakeLog() override { return std::exchange(log_, {}); }

  Value Save() const override;
  Status Load(const Value& state) override;

 private:
  struct Quantiles {
    std::vector<std::string> lower;
    std::vector<std::string> upper;
  };

  /// Synch: who does not start now, so that the outcome does not depend on who comes to rest first.
  /// A donor does not go on before it was copied, and a copy waits until its donor rests, with the
  /// checkpoint that is meant. (Async a donor that waited for its copies would starve: they come
  /// back to copy it again.)
  std::set<std::string_view> Held(const Candidates& candidates) const {
    const std::set<std::string_view> rests(candidates.paused.begin(), candidates.paused.end());
    std::set<std::string_view> held;
    for (const auto& [trial, member] : members_) {
      if (member.donor.empty() || roster_.StateOf(trial) == Roster::State::kEnded) continue;
      if (roster_.StateOf(member.donor) == Roster::State::kEnded) continue;
      held.insert(member.donor);
      if (!rests.contains(member.donor)) held.insert(trial);
    }
    return held;
  }

  Quantiles Compare() const {
    std::vector<std::string> order;
    for (const std::string& trial : roster_.order()) {
      if (roster_.StateOf(trial) != Roster::State::kEnded && !members_.at(trial).score.is_null())
        order.push_back(trial);
    }
    std::ranges::stable_sort(order, [&](const std::string& a, const std::string& b) {
      return CompareScores(members_.at(a).score, members_.at(b).score, options_.score.maximize) < 0;
    });
    const std::size_t half = order.size() / 2;
    const auto wanted = static_cast<std::size_t>(
        std::ceil(static_cast<double>(order.size()) * options_.quantile_fraction));
    const auto count = static_cast<std::ptrdiff_t>(std::min(wanted, half));
    Quantiles quantiles;
    quantiles.lower.assign(order.begin(), order.begin() + count);
    quantiles.upper.assign(order.end() - count, order.end());
    // Nothing is learned from a trial that has no number itself.
    std::erase_if(quantiles.upper,
                  [&](const std::string& trial) { return IsNan(members_.at(trial).score); });
    return quantiles;
  }

  Decision Perturb(const std::string& trial, Member* member) {
    member->last_perturbation = member->time;
    const Quantiles quantiles = Compare();
    Decision decision;
    if (roster_.waiting() > 0) decision.action = TrialAction::kPause;
    if (std::ranges::find(quantiles.upper, trial) != quantiles.upper.end())
      decision.checkpoint = true;
    if (std::ranges::find(quantiles.lower, trial) != quantiles.lower.end() &&
        !quantiles.upper.empty()) {
      Exploit(trial, member, quantiles.upper);
      decision.action = TrialAction::kPause;
    }
    if (decision.action == TrialAction::kPause) roster_.Set(trial, Roster::State::kWaiting);
    return decision;
  }

  /// A copy of one of the best, at its next start.
  void Exploit(const std::string& trial, Member* member, const std::vector<std::string>& upper) {
    const std::uint64_t number = exploits_++;
    const std::string& donor = upper[Rng(options_.seed, number, "donor").Below(upper.size())];
    const Member& from = members_.at(donor);
    member->donor = donor;
    member->new_config = Explore(from.config, options_.hyperparam_mutations,
                                 {options_.resample_probability, options_.perturbation_factors},
                                 options_.seed, number, "explore");
    log_.push_back(Value::Object{{"trial", trial},
                                 {"donor", donor},
                                 {"time", member->time},
                                 {"donor_time", from.time},
                                 {"score", member->score},
                                 {"donor_score", from.score},
                                 {"old_config", member->config},
                                 {"new_config", member->new_config}});
    member->score = Value();  // not compared until it has one of its own
    member->time = from.time;
    member->last_perturbation = from.time;
  }

  Decision Arrive(const std::string& trial, Member* member) {
    member->arrived = true;
    roster_.Set(trial, Roster::State::kWaiting);
    PerturbAllWhenComplete();
    return Decision{TrialAction::kPause, true};
  }

  void PerturbAllWhenComplete() {
    double latest = 0;
    bool any = false;
    for (const std::string& trial : roster_.order()) {
      if (roster_.StateOf(trial) == Roster::State::kEnded) continue;
      const Member& member = members_.at(trial);
      if (!member.arrived) return;
      latest = std::max(latest, member.time);
      any = true;
    }
    if (!any) return;
    const Quantiles quantiles = Compare();
    for (auto& [trial, member] : members_) {
      member.arrived = false;
      member.last_perturbation = member.time;
    }
    if (!quantiles.upper.empty()) {
      for (const std::string& trial : quantiles.lower)
        Exploit(trial, &members_.at(trial), quantiles.upper);
    }
    // The next multiple that nobody has passed.
    const double interval = options_.perturbation_interval;
    next_sync_ += interval * (1 + std::floor(std::max(0.0, latest - next_sync_) / interval));
  }

  const PbtOptions options_;
  Roster roster_;
  std::map<std::string, Member, std::less<>> members_;
  double next_sync_;            // synch: the time at which all meet
  std::uint64_t exploits_ = 0;  // names the streams
  Value::List log_;
};

Value PbtScheduler::Save() const {
  Value::Object members;
  for (const auto& [trial, member] : members_) {
    members[trial] = Value::Object{{"config", member.config},
                                   {"score", member.score},
                                   {"time", member.time},
                                   {"last_perturbation", member.last_perturbation},
                                   {"arrived", member.arrived},
                                   {"donor", member.donor},
                                   {"new_config", member.new_config}};
  }
  return Value::Object{{"roster", roster_.Save()},
                       {"members", std::move(members)},
                       {"next_sync", next_sync_},
                       {"exploits", exploits_},
                       {"log", log_}};
}

Status PbtScheduler::Load(const Value& state) {
  const Status damaged = CorruptionError("state of PBT: damaged");
  for (const std::string_view key : {"roster", "members", "next_sync", "exploits", "log"}) {
    if (state.Find(key) == nullptr) return damaged;
  }
  Roster roster;
  RETURN_IF_ERROR(roster.Load(*state.Find("roster")));
  const Value::Object* all = state.Find("members")->if_object();
  const Value::List* log = state.Find("log")->if_list();
  const std::int64_t exploits = state.Find("exploits")->AsInt(-1);
  if (all == nullptr || all->size() != roster.order().size() || log == nullptr || exploits < 0 ||
      !state.Find("next_sync")->is_number()) {
    return damaged;
  }
  std::map<std::string, Member, std::less<>> members;
  for (const auto& [trial, value] : *all) {
    for (const std::string_view key :
         {"config", "score", "time", "last_perturbation", "arrived", "donor", "new_config"}) {
      if (value.Find(key) == nullptr) return damaged;
    }
    Member member;
    member.config = *value.Find("config");
    member.score = NumberFrom(*value.Find("score"));
    member.time = value.Find("time")->AsDouble();
    member.last_perturbation = value.Find("last_perturbation")->AsDouble();
    member.new_config = *value.Find("new_config");
    const bool* arrived = value.Find("arrived")->if_bool();
    const std::string* donor = value.Find("donor")->if_string();
    if (!roster.Has(trial) || arrived == nullptr || donor == nullptr) return damaged;
    member.arrived = *arrived;
    member.donor = *donor;
    members.emplace(trial, std::move(member));
  }
  roster_ = std::move(roster);
  members_ = std::move(members);
  next_sync_ = state.Find("next_sync")->AsDouble();
  exploits_ = static_cast<std::uint64_t>(exploits);
  log_ = *log;
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Scheduler>> MakePbtScheduler(PbtOptions options) {
  RETURN_IF_ERROR(Validate(options.score));
  RETURN_IF_ERROR(ValidateMutations(options.hyperparam_mutations));
  if (!(options.perturbation_interval > 0))
    return InvalidArgumentError("perturbation_interval must be above 0");
  if (!(options.burn_in_period >= 0))
    return InvalidArgumentError("burn_in_period must not be negative");
  if (!(options.quantile_fraction >= 0 && options.quantile_fraction <= 0.5)) {
    return InvalidArgumentError(fmt::format("quantile_fraction must be between 0 and 0.5, not {}",
                                            options.quantile_fraction));
  }
  if (!(options.resample_probability >= 0 && options.resample_probability <= 1)) {
    return InvalidArgumentError("resample_probability must be between 0 and 1");
  }
  const auto& factors = options.perturbation_factors;
  if (factors.empty() || !std::ranges::all_of(factors, [](double f) { return std::isfinite(f); })) {
    return InvalidArgumentError("perturbation_factors must be finite numbers, at least one");
  }
  return std::unique_ptr<Scheduler>(std::make_unique<PbtScheduler>(std::move(options)));
}

}  // namespace cairn::tune
