// Descriptions of search spaces, schedulers and stoppers, and their states, as the record of an
// experiment has them. Nothing in them ends the program; what was drawn from a space has no domain
// left; a state that was refused has changed nothing.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "format/json.h"
#include "fuzz/require.h"
#include "tune/scheduler.h"
#include "tune/searcher.h"
#include "tune/space.h"
#include "tune/stopper.h"

namespace {

using namespace cairn;
using namespace cairn::tune;

void TrySpace(const Value& description) {
  Result<SearchSpace> space = SearchSpace::Parse(description);
  if (!space.ok()) return;
  for (std::uint64_t sample = 0; sample < 3; ++sample) {
    const Value config = space->Draw(7, sample, sample % space->grid_size());
    Require(config == space->Draw(7, sample, sample % space->grid_size()), "draws are repeatable");
    const Result<SearchSpace> again = SearchSpace::Parse(config);
    Require(!again.ok() || again->grid_size() == 1 || space->grid_size() > 1,
            "grids were resolved");
  }
}

void TryScheduler(const Value& description, const Value& state) {
  Result<std::unique_ptr<Scheduler>> scheduler = MakeScheduler(description);
  if (!scheduler.ok()) return;
  const Value config = (*scheduler)->CompleteConfig("a", Value::Object{});
  Require((*scheduler)->OnTrialAdd("a", config).ok(), "a first trial is taken");
  const std::string before = EncodeJson((*scheduler)->Save());
  if (!(*scheduler)->Load(state).ok()) {
    Require(EncodeJson((*scheduler)->Save()) == before, "a refused state changes nothing");
  }
  const std::string saved = EncodeJson((*scheduler)->Save());
  const Value back = DecodeJson(saved).value();
  Require((*scheduler)->Load(back).ok() && EncodeJson((*scheduler)->Save()) == saved,
          "load(save) is the same");
  const Value result = Value::Object{{"m", 1}, {"training_iteration", 5}, {"time_total_s", 100}};
  (void)(*scheduler)->OnResult("a", result);
  const std::string paused[] = {"a"};
  (void)(*scheduler)->ChooseTrialToRun({{}, paused, false});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view first = input.substr(0, input.find('\n'));
  const std::string_view rest =
      first.size() < input.size() ? input.substr(first.size() + 1) : std::string_view();
  const Result<Value> description = DecodeJson(first);
  if (!description.ok()) return 0;
  const Value state = DecodeJson(rest).ok() ? DecodeJson(rest).value() : Value();
  TrySpace(*description);
  TryScheduler(*description, state);
  if (auto stopper = MakeStopper(*description, Clock::System()); stopper.ok()) {
    (void)(*stopper)->Load(state);
    (void)(*stopper)->ShouldStop("a", Value::Object{{"m", 1}});
  }
  return 0;
}
