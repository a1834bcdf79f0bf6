#include "tune/search_policy.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/description_reader.h"
#include "tune/score.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

std::string NamesOf(const Value& result) {
  std::string names;
  if (!result.is_object()) return names;
  for (const auto& [name, value] : *result.if_object()) {
    names += (names.empty() ? "" : ", ") + QuoteForMessage(name);
  }
  return names;
}

class SearchPolicy final : public TunePolicy {
 public:
  explicit SearchPolicy(SearchPolicyParts parts) : parts_(std::move(parts)) {}

  Result<Suggestion> Suggest(const std::string& trial) override {
    ASSIGN_OR_RETURN(Suggestion suggestion, parts_.searcher->Suggest(trial));
    if (suggestion.kind != Suggestion::Kind::kConfig) return suggestion;
    suggestion.config = parts_.scheduler->CompleteConfig(trial, suggestion.config);
    if (const auto open = UnresolvedPaths(suggestion.config); !open.empty()) {
      return InvalidArgumentError(
          fmt::format("search space: {} is a sample_from, and there is no function for it",
                      QuoteForMessage(open.front())));
    }
    RETURN_IF_ERROR(parts_.scheduler->OnTrialAdd(trial, suggestion.config));
    return suggestion;
  }

  Status OnTrialAdd(const std::string& trial, const Value& config) override {
    // The searcher goes on by one; what it said then counts.
    RETURN_IF_ERROR(parts_.searcher->Suggest(trial).status());
    return parts_.scheduler->OnTrialAdd(trial, config);
  }

  Result<Decision> OnResult(const std::string& trial, const Value& result) override {
    if (!parts_.metric.empty()) {
      ASSIGN_OR_RETURN(const Value number, MetricOf(result, parts_.metric));
      if (number.is_null()) {
        return InvalidArgumentError(
            fmt::format("the result has no metric {}, by which trials are compared; it has {}",
                        QuoteForMessage(parts_.metric), NamesOf(result)));
      }
    }
    // A report that anybody refuses counts for nobody.
    RETURN_IF_ERROR(parts_.scheduler->Check(result));
    // A trial that says so has ended, whatever the scheduler would do with one that goes on: it
    // hears of the end.
    bool stop = BoolOf(result, "done");
    if (parts_.stopper != nullptr) {
      RETURN_IF_ERROR(parts_.stopper->Check(result));
      ASSIGN_OR_RETURN(const bool enough, parts_.stopper->ShouldStop(trial, result));
      stop = stop || enough;
    }
    if (stop) {
      RETURN_IF_ERROR(parts_.searcher->OnResult(trial, result));
      return Decision{.action = TrialAction::kStop};
    }
    ASSIGN_OR_RETURN(const Decision decision, parts_.scheduler->OnResult(trial, result));
    RETURN_IF_ERROR(parts_.searcher->OnResult(trial, result));
    return decision;
  }

  Status OnEnd(const std::string& trial, const Value& last_result, bool error) override {
    RETURN_IF_ERROR(parts_.searcher->OnComplete(trial, last_result, error));
    return error ? parts_.scheduler->OnError(trial)
                 : parts_.scheduler->OnComplete(trial, last_result);
  }

  Status OnRestart(const std::string& trial) override {
    if (parts_.stopper != nullptr) parts_.stopper->OnRestart(trial);
    return parts_.scheduler->OnRestart(trial);
  }

  Result<Choice> Choose(const Candidates& candidates) override {
    return parts_.scheduler->ChooseTrialToRun(candidates);
  }
  Status SetConfig(const std::string& trial, const Value& config) override {
    return parts_.scheduler->SetConfig(trial, config);
  }
  std::size_t PendingAhead() override { return parts_.pending_ahead; }
  bool StopAll() override { return parts_.stopper != nullptr && parts_.stopper->StopAll(); }
  Status OnElapsed(std::chrono::nanoseconds before) override {
    if (parts_.stopper != nullptr) parts_.stopper->OnElapsed(before);
    return Status::Ok();
  }
  Value::List TakeLog() override { return parts_.scheduler->TakeLog(); }

  Value Save() const override {
    if (parts_.scheduler->keeps_log()) return {};
    return Value::Object{{"searcher", parts_.searcher->Save()},
                         {"scheduler", parts_.scheduler->Save()},
                         {"stopper", parts_.stopper == nullptr ? Value() : parts_.stopper->Save()}};
  }
  Status Load(const Value& state) override {
    const Value* searcher = state.Find("searcher");
    const Value* scheduler = state.Find("scheduler");
    const Value* stopper = state.Find("stopper");
    if (searcher == nullptr || scheduler == nullptr || stopper == nullptr) {
      return CorruptionError("state of a search policy: damaged");
    }
    RETURN_IF_ERROR(parts_.searcher->Load(*searcher));
    RETURN_IF_ERROR(parts_.scheduler->Load(*scheduler));
    return parts_.stopper == nullptr ? Status::Ok() : parts_.stopper->Load(*stopper);
  }

 private:
  const SearchPolicyParts parts_;
};

}  // namespace

Result<std::unique_ptr<TunePolicy>> MakeSearchPolicy(SearchPolicyParts parts) {
  if (parts.searcher == nullptr) return InvalidArgumentError("a policy needs a searcher");
  if (parts.scheduler == nullptr) parts.scheduler = MakeFifoScheduler();
  return std::unique_ptr<TunePolicy>(std::make_unique<SearchPolicy>(std::move(parts)));
}

Result<std::unique_ptr<TunePolicy>> MakeSearchPolicy(const Value& description, Clock* clock) {
  DescriptionReader reader("policy", description);
  Value space = Value::Object{};
  Value points = Value::List{};
  Value scheduler;
  Value stop;
  VariantOptions variants;
  std::int64_t max_concurrent = 0;
  std::uint64_t ahead = 0;
  SearchPolicyParts parts;
  reader.Any("space", &space);
  reader.Int64("num_samples", &variants.num_samples);
  reader.Uint64("seed", &variants.seed);
  reader.Any("points_to_evaluate", &points);
  reader.Bool("constant_grid_search", &variants.constant_grid_search);
  reader.Int64("max_concurrent", &max_concurrent);
  reader.Any("scheduler", &scheduler);
  reader.Any("stop", &stop);
  reader.Text("metric", &parts.metric);
  reader.Uint64("pending_ahead", &ahead);
  RETURN_IF_ERROR(reader.Finish());
  ASSIGN_OR_RETURN(variants.space, SearchSpace::Parse(space));
  if (!points.is_list()) return InvalidArgumentError("points_to_evaluate must be a list");
  variants.points_to_evaluate = *points.if_list();
  ASSIGN_OR_RETURN(parts.searcher, MakeVariantSearcher(std::move(variants)));
  if (max_concurrent > 0) {
    ASSIGN_OR_RETURN(parts.searcher,
                     MakeConcurrencyLimiter(std::move(parts.searcher), max_concurrent, false));
  }
  if (!scheduler.is_null()) {
    ASSIGN_OR_RETURN(parts.scheduler, MakeScheduler(scheduler));
  }
  if (!stop.is_null()) {
    ASSIGN_OR_RETURN(parts.stopper, MakeStopper(stop, clock));
  }
  parts.pending_ahead = ahead;
  return MakeSearchPolicy(std::move(parts));
}

}  // namespace cairn::tune
