#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

#include "tune/scheduler.h"
#include "tune/searcher.h"

namespace cairn::tune {

/// All that decides about the trials of an experiment, as the tuner asks it: a searcher, a
/// scheduler and stoppers in one. Called by one thread, in the order in which the log has it; after
/// a restart the same calls are made again from the log, and what was answered then counts.
class TunePolicy {
 public:
  virtual ~TunePolicy() = default;

  /// Another trial, which is added when there is one.
  virtual Result<Suggestion> Suggest(const std::string& trial) = 0;
  /// A trial was suggested in an earlier life of the experiment, with this config.
  virtual Status OnTrialAdd(const std::string& trial, const Value& config) = 0;
  /// InvalidArgument: the report is refused.
  virtual Result<Decision> OnResult(const std::string& trial, const Value& result) = 0;
  virtual Status OnEnd(const std::string& trial, const Value& last_result, bool error) = 0;
  /// A trial that had failed begins anew: nothing that it reported counts any more.
  virtual Status OnRestart(const std::string& /*trial*/) { return Status::Ok(); }
  virtual Result<Choice> Choose(const Candidates& candidates) = 0;
  virtual Status SetConfig(const std::string& trial, const Value& config) = 0;
  /// So many trials are made before there are places for them.
  virtual std::size_t PendingAhead() { return 0; }
  /// Ends all trials well, and no more are made.
  virtual bool StopAll() = 0;
  /// How long the experiment was at work in earlier lives. Told once, before anything new.
  virtual Status OnElapsed(std::chrono::nanoseconds /*before*/) { return Status::Ok(); }
  /// What was decided since the last call and is worth a line of a log.
  virtual Value::List TakeLog() { return {}; }

  /// All that its answers depend on; null for a policy whose state comes by replay alone.
  virtual Value Save() const { return {}; }
  /// Into a policy that was made in the same way and has not been asked anything. Corruption for
  /// what Save never gave.
  virtual Status Load(const Value& /*state*/) {
    return UnimplementedError("the policy's state comes by replay");
  }
};

}  // namespace cairn::tune
