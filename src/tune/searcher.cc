#include "tune/searcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/member_reader.h"

namespace cairn::tune {
namespace {

/// How far it has come is all it has to remember: every config is drawn from its own streams.
class VariantSearcher : public Searcher {
 public:
  VariantSearcher(VariantOptions options, std::vector<SearchSpace> points)
      : options_(std::move(options)), points_(std::move(points)) {}

  Result<Suggestion> Suggest(const std::string& trial) override {
    (void)trial;
    if (options_.num_samples >= 0 && sample_ >= samples()) return Suggestion{};
    const SearchSpace& space = sample_ < points_.size() ? points_[sample_] : options_.space;
    // Streams are named by the place in the sequence, so that each combination draws anew.
    const std::uint64_t stream = options_.constant_grid_search ? sample_ : made_;
    Suggestion suggestion{Suggestion::Kind::kConfig, space.Draw(options_.seed, stream, grid_)};
    ++made_;
    if (++grid_ >= space.grid_size()) {
      grid_ = 0;
      ++sample_;
    }
    return suggestion;
  }

  Status OnResult(const std::string&, const Value&) override { return Status::Ok(); }
  Status OnComplete(const std::string&, const Value&, bool) override { return Status::Ok(); }

  std::optional<std::uint64_t> total() const override {
    if (options_.num_samples < 0) return std::nullopt;
    std::uint64_t sum = 0;
    for (const SearchSpace& point : points_) sum += point.grid_size();
    return sum + (samples() - points_.size()) * options_.space.grid_size();
  }

  Status Extend(std::int64_t num_samples) override {
    if (num_samples < 0) return InvalidArgumentError("extend: num_samples must not be negative");
    if (options_.num_samples < 0) return Status::Ok();
    options_.num_samples = static_cast<std::int64_t>(samples()) + num_samples;
    return Status::Ok();
  }

  Value Save() const override {
    return Value::Object{{"sample", sample_},
                         {"grid", grid_},
                         {"made", made_},
                         {"num_samples", options_.num_samples}};
  }

  Status Load(const Value& state) override {
    const Value::Object* object = state.if_object();
    if (object == nullptr) return CorruptionError("state of a searcher: not an object");
    const MemberReader members(*object);
    std::uint64_t sample = 0;
    std::uint64_t grid = 0;
    std::uint64_t made = 0;
    std::int64_t num_samples = 0;
    RETURN_IF_ERROR(members.Uint("sample", &sample).WithContext("state of a searcher"));
    RETURN_IF_ERROR(members.Uint("grid", &grid).WithContext("state of a searcher"));
    RETURN_IF_ERROR(members.Uint("made", &made).WithContext("state of a searcher"));
    RETURN_IF_ERROR(members.Int("num_samples", &num_samples).WithContext("state of a searcher"));
    const SearchSpace& space = sample < points_.size() ? points_[sample] : options_.space;
    if (grid >= space.grid_size()) {
      return CorruptionError("state of a searcher: of another search space");
    }
    sample_ = sample;
    grid_ = grid;
    made_ = made;
    options_.num_samples = num_samples;
    return Status::Ok();
  }

 private:
  /// Every point is evaluated, also where there are more of them than samples.
  std::uint64_t samples() const {
    return std::max(static_cast<std::uint64_t>(std::max<std::int64_t>(options_.num_samples, 0)),
                    static_cast<std::uint64_t>(points_.size()));
  }

  VariantOptions options_;
  const std::vector<SearchSpace> points_;  // the space with each of the points set
  std::uint64_t sample_ = 0;               // of the next config
  std::uint64_t grid_ = 0;                 // its combination
  std::uint64_t made_ = 0;
};

class ConcurrencyLimiter : public Searcher {
 public:
  ConcurrencyLimiter(std::unique_ptr<Searcher> inner, std::size_t max_concurrent, bool batch)
      : inner_(std::move(inner)), max_concurrent_(max_concurrent), batch_(batch) {}

  Result<Suggestion> Suggest(const std::string& trial) override {
    if (live_.size() + ended_.size() >= max_concurrent_)
      return Suggestion{Suggestion::Kind::kWait, {}};
    ASSIGN_OR_RETURN(Suggestion suggestion, inner_->Suggest(trial));
    if (suggestion.kind == Suggestion::Kind::kConfig) live_.insert(trial);
    return suggestion;
  }

  Status OnResult(const std::string& trial, const Value& result) override {
    return live_.contains(trial) ? inner_->OnResult(trial, result) : Status::Ok();
  }

  Status OnComplete(const std::string& trial, const Value& result, bool error) override {
    if (!live_.contains(trial)) return Status::Ok();
    if (!batch_) {
      RETURN_IF_ERROR(inner_->OnComplete(trial, result, error));
      live_.erase(trial);
      return Status::Ok();
    }
    live_.erase(trial);
    ended_.push_back({trial, result, error});
    // The last ones of a search may be fewer than a batch: nobody else lives, so nobody is waited
    // for.
    if (!live_.empty()) return Status::Ok();
    std::vector<Ended> ended = std::exchange(ended_, {});
    for (const Ended& one : ended)
      RETURN_IF_ERROR(inner_->OnComplete(one.trial, one.result, one.error));
    return Status::Ok();
  }

  std::optional<std::uint64_t> total() const override { return inner_->total(); }
  Status Extend(std::int64_t num_samples) override { return inner_->Extend(num_samples); }

  Value Save() const override {
    Value::List live(live_.begin(), live_.end());
    Value::List ended;
    for (const Ended& one : ended_) {
      ended.push_back(
          Value::Object{{"trial", one.trial}, {"result", one.result}, {"error", one.error}});
    }
    return Value::Object{
        {"live", std::move(live)}, {"ended", std::move(ended)}, {"inner", inner_->Save()}};
  }

  Status Load(const Value& state) override {
    const Value::Object* object = state.if_object();
    if (object == nullptr) return CorruptionError("state of a searcher: not an object");
    const MemberReader members(*object);
    std::vector<std::string> live;
    const Value::List* list = nullptr;
    RETURN_IF_ERROR(members.Texts("live", &live).WithContext("state of a searcher"));
    RETURN_IF_ERROR(members.OptionalList("ended", &list).WithContext("state of a searcher"));
    std::vector<Ended> ended;
    for (const Value& item : list == nullptr ? Value::List{} : *list) {
      const Value* trial = item.Find("trial");
      const Value* result = item.Find("result");
      const Value* error = item.Find("error");
      if (trial == nullptr || !trial->is_string() || result == nullptr || error == nullptr ||
          !error->is_bool()) {
        return CorruptionError("state of a searcher: an end of a trial is damaged");
      }
      ended.push_back({*trial->if_string(), *result, *error->if_bool()});
    }
    const Value* inner = state.Find("inner");
    if (inner == nullptr) return CorruptionError("state of a searcher: no state of the one within");
    RETURN_IF_ERROR(inner_->Load(*inner));
    live_ = {live.begin(), live.end()};
    ended_ = std::move(ended);
    return Status::Ok();
  }

 private:
  struct Ended {
    std::string trial;
    Value result;
    bool error;
  };

  const std::unique_ptr<Searcher> inner_;
  const std::size_t max_concurrent_;
  const bool batch_;
  std::set<std::string> live_;
  std::vector<Ended> ended_;  // of this batch, not yet told
};

}  // namespace

Status Searcher::Extend(std::int64_t num_samples) {
  (void)num_samples;
  return UnimplementedError("this searcher cannot be extended");
}

Result<std::unique_ptr<Searcher>> MakeVariantSearcher(VariantOptions options) {
  if (options.num_samples < -1) {
    return InvalidArgumentError(fmt::format(
        "num_samples must be at least 0, or -1 for no end, not {}", options.num_samples));
  }
  std::vector<SearchSpace> points;
  for (const Value& point : options.points_to_evaluate) {
    ASSIGN_OR_RETURN(SearchSpace fixed, options.space.Fix(point));
    points.push_back(std::move(fixed));
  }
  return std::unique_ptr<Searcher>(
      std::make_unique<VariantSearcher>(std::move(options), std::move(points)));
}

Result<std::unique_ptr<Searcher>> MakeConcurrencyLimiter(std::unique_ptr<Searcher> inner,
                                                         std::int64_t max_concurrent, bool batch) {
  if (max_concurrent < 1) {
    return InvalidArgumentError(
        fmt::format("max_concurrent must be at least 1, not {}", max_concurrent));
  }
  return std::unique_ptr<Searcher>(std::make_unique<ConcurrencyLimiter>(
      std::move(inner), static_cast<std::size_t>(max_concurrent), batch));
}

}  // namespace cairn::tune
