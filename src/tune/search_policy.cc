#include "tune/search_policy.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/score.h"

namespace cairn::tune {
namespace {

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
            fmt::format("the result has no metric {}, by which trials are compared",
                        QuoteForMessage(parts_.metric)));
      }
    }
    if (parts_.stopper != nullptr) {
      ASSIGN_OR_RETURN(const bool stop, parts_.stopper->ShouldStop(trial, result));
      if (stop) {
        RETURN_IF_ERROR(parts_.searcher->OnResult(trial, result));
        return Decision{.action = TrialAction::kStop};
      }
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

  Result<Choice> Choose(const Candidates& candidates) override {
    return parts_.scheduler->ChooseTrialToRun(candidates);
  }
  Status SetConfig(const std::string& trial, const Value& config) override {
    return parts_.scheduler->SetConfig(trial, config);
  }
  std::size_t PendingAhead() override { return parts_.pending_ahead; }
  bool StopAll() override { return parts_.stopper != nullptr && parts_.stopper->StopAll(); }

 private:
  const SearchPolicyParts parts_;
};

}  // namespace

Result<std::unique_ptr<TunePolicy>> MakeSearchPolicy(SearchPolicyParts parts) {
  if (parts.searcher == nullptr) return InvalidArgumentError("a policy needs a searcher");
  if (parts.scheduler == nullptr) parts.scheduler = MakeFifoScheduler();
  return std::unique_ptr<TunePolicy>(std::make_unique<SearchPolicy>(std::move(parts)));
}

}  // namespace cairn::tune
