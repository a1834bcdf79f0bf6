#pragma once

#include <string>
#include <string_view>

#include <cairn/value.h>

namespace cairn::cli {

// What the master answered (docs/openapi.yaml), as text for people. Pure functions; `now` is in
// seconds since 1970. What comes from outside is made printable.

std::string ExperimentTable(const Value::List& experiments, double now);
std::string ExperimentText(const Value& experiment);
std::string TrialTable(const Value::List& trials);
std::string TrialText(const Value& trial, double now);
std::string CheckpointTable(const Value::List& checkpoints, double now);
std::string MetricTable(const Value::List& reports);
std::string PolicyText(const Value& policy);
std::string UserTable(const Value::List& users);
std::string TokenTable(const Value::List& tokens, double now);

/// "COMPLETED", "CANCELED", "ERROR": nothing follows by itself.
bool HasEnded(std::string_view state);
/// A number, or one of the three texts for what is not finite.
std::string NumberText(const Value* value);

}  // namespace cairn::cli
