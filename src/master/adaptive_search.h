#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <cairn/status.h>
#include <cairn/value.h>

#include "master/experiment_config.h"
#include "tune/scheduler.h"

namespace cairn::master {

/// Which trials of an experiment with the searcher adaptive_asha are not worth going on: at each
/// rung a trial is compared with those that came there before it (tune/scheduler.h). What it is
/// told are validations in the order of their events; the same ones again change nothing, so that
/// one that was saved and loaded goes on from the event it had come to. One caller at a time.
class AdaptiveSearch {
 public:
  /// `saved`: what Save gave, or null.
  static Result<std::unique_ptr<AdaptiveSearch>> Make(const SearcherConfig& config,
                                                      const Value& saved);

  /// In the order in which trials are made: their brackets are drawn by it. Known ones are ignored.
  Status AddTrial(const std::string& trial);
  /// A validation; `seq` is its event's number. What came before is ignored, and so is a step that
  /// the trial had come to already: a run that went back reports it again.
  Status OnValidation(std::uint64_t seq, const std::string& trial, std::int64_t steps,
                      Value metrics);
  /// All events up to this one were told.
  std::uint64_t seq() const { return seq_; }

  /// Trials that are to be stopped, until each is said to be.
  const std::set<std::string>& to_stop() const { return to_stop_; }
  void OnStopped(const std::string& trial);

  /// A decision or a trial came since Saved: write Save down before anything follows from it.
  bool changed() const { return changed_; }
  void Saved() { changed_ = false; }
  Value Save() const;

 private:
  explicit AdaptiveSearch(std::unique_ptr<tune::Scheduler> scheduler)
      : scheduler_(std::move(scheduler)) {}
  Status Load(const Value& saved);

  const std::unique_ptr<tune::Scheduler> scheduler_;
  std::uint64_t seq_ = 0;
  std::set<std::string> trials_;
  std::set<std::string> to_stop_;
  std::map<std::string, std::int64_t> steps_;  // how far each trial has come
  bool changed_ = false;
};

}  // namespace cairn::master
