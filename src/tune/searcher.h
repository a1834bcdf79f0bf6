#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

#include "tune/space.h"

namespace cairn::tune {

/// The answer of a searcher that is asked for another trial.
struct Suggestion {
  enum class Kind : std::uint8_t {
    kConfig,    // a trial with `config`
    kWait,      // not now: ask again when a trial has reported or ended
    kFinished,  // there will be no more
  };
  Kind kind = Kind::kFinished;
  /// Holds sample_from descriptions where a function of the caller has to fill something in.
  Value config;
};

/// Chooses the hyperparameters of the trials of an experiment.
///
/// Not thread-safe: one caller at a time. Deterministic: the same calls in the same order give the
/// same answers, so that the state comes back by replaying what was recorded, or by Load of what
/// Save gave (equal in effect, at every point between two calls). Ids of trials are the caller's;
/// each is suggested for once. A call that fails has changed nothing.
class Searcher {
 public:
  virtual ~Searcher() = default;

  virtual Result<Suggestion> Suggest(const std::string& trial) = 0;
  /// A report of a trial that was suggested: metrics, training_iteration and so on.
  virtual Status OnResult(const std::string& trial, const Value& result) = 0;
  /// The trial will not run again. `result`: its last report, null without one.
  virtual Status OnComplete(const std::string& trial, const Value& result, bool error) = 0;

  /// How many trials there will have been in all, when that is known.
  virtual std::optional<std::uint64_t> total() const { return std::nullopt; }
  /// More samples for an experiment that was finished. Unimplemented where it makes no sense.
  virtual Status Extend(std::int64_t num_samples);

  /// A value that survives JSON.
  virtual Value Save() const = 0;
  /// Into a searcher made with the same options. Corruption for what Save never gave.
  virtual Status Load(const Value& state) = 0;
};

/// Grids and random samples: num_samples × all combinations, in order.
/// InvalidArgument for num_samples < -1 and for points that do not fit the space.
Result<std::unique_ptr<Searcher>> MakeVariantSearcher(VariantOptions options);

/// Holds another searcher back while `max_concurrent` of its trials live. With `batch`, new trials
/// come only when all of the last batch have ended, and those ends are told together.
Result<std::unique_ptr<Searcher>> MakeConcurrencyLimiter(std::unique_ptr<Searcher> inner,
                                                         std::int64_t max_concurrent, bool batch);

}  // namespace cairn::tune
