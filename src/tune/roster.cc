#include "tune/roster.h"

#include <fmt/format.h>

#include <utility>

#include "format/json.h"

namespace cairn::tune {

Status Roster::Add(const std::string& trial) {
  if (!states_.emplace(trial, State::kWaiting).second) {
    return AlreadyExistsError(fmt::format("trial {} was added before", QuoteForMessage(trial)));
  }
  order_.push_back(trial);
  ++waiting_;
  return Status::Ok();
}

Status Roster::Check(const std::string& trial) const {
  if (Has(trial)) return Status::Ok();
  return NotFoundError(
      fmt::format("trial {} was never added to the scheduler", QuoteForMessage(trial)));
}

Roster::State Roster::StateOf(const std::string& trial) const {
  const auto it = states_.find(trial);
  return it == states_.end() ? State::kEnded : it->second;
}

void Roster::Set(const std::string& trial, State state) {
  const auto it = states_.find(trial);
  if (it == states_.end()) return;
  if (it->second == State::kWaiting) --waiting_;
  if (state == State::kWaiting) ++waiting_;
  it->second = state;
}

Value Roster::Save() const {
  // One letter each: experiments have thousands of trials.
  Value::List trials;
  std::string states;
  trials.reserve(order_.size());
  for (const std::string& trial : order_) {
    trials.emplace_back(trial);
    states += "WRE"[static_cast<int>(StateOf(trial))];
  }
  return Value::Object{{"trials", std::move(trials)}, {"states", std::move(states)}};
}

Status Roster::Load(const Value& state) {
  const Value* trials = state.Find("trials");
  const Value* states = state.Find("states");
  const Value::List* names = trials == nullptr ? nullptr : trials->if_list();
  const std::string* letters = states == nullptr ? nullptr : states->if_string();
  if (names == nullptr || letters == nullptr || names->size() != letters->size()) {
    return CorruptionError("state of a scheduler: its list of trials is damaged");
  }
  Roster loaded;
  for (std::size_t i = 0; i < names->size(); ++i) {
    const std::string* name = (*names)[i].if_string();
    const auto letter = std::string_view("WRE").find((*letters)[i]);
    if (name == nullptr || letter == std::string_view::npos || !loaded.Add(*name).ok()) {
      return CorruptionError("state of a scheduler: its list of trials is damaged");
    }
    loaded.Set(*name, static_cast<State>(letter));
  }
  *this = std::move(loaded);
  return Status::Ok();
}

}  // namespace cairn::tune
