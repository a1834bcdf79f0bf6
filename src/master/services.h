#pragma once

#include <map>
#include <string>
#include <vector>

#include <cairn/value.h>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairn::master {

/// Processes that say by themselves how they are: parameter servers, serving. In memory alone; one
/// that was silent for a minute is forgotten. May be called from any thread.
class Services {
 public:
  explicit Services(Clock* clock) : clock_(clock) {}
  /// False when there are too many.
  bool Report(const std::string& name, Value::Object facts);
  /// As Service of the contract, by name.
  Value::List List();

 private:
  struct Entry {
    Value::Object facts;
    Clock::Duration heard{};
  };
  Clock* const clock_;
  Mutex mu_;
  std::map<std::string, Entry, std::less<>> entries_ GUARDED_BY(mu_);
};

}  // namespace cairn::master
