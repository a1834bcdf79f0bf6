// Lines are read as events and folded, with the seq that belongs there. Nothing that a log holds
// ends the program; an event that was refused has changed nothing that can be seen.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "trial/event.h"
#include "trial/records_codec.h"
#include "trial/trial_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (const auto stored = DecodeRecords(input); stored.ok()) {
    const std::string encoded = EncodeRecords(*stored);
    const auto again = DecodeRecords(encoded);
    Require(again.ok() && EncodeRecords(*again) == encoded, "records come back");
  }
  TrialRecords records;
  while (!input.empty()) {
    const std::string_view line = input.substr(0, input.find('\n'));
    input.remove_prefix(line.size() < input.size() ? line.size() + 1 : line.size());
    Result<Event> event = DecodeEvent(line);
    if (!event.ok()) continue;
    const std::string encoded = EncodeEvent(*event);
    const Result<Event> again = DecodeEvent(encoded);
    Require(again.ok() && EncodeEvent(*again) == encoded, "encode(decode(bytes)) == bytes");
    event->seq = records.last_seq() + 1;
    const bool applied = records.Apply(*event).ok();
    Require(records.last_seq() == event->seq - (applied ? 0 : 1), "a refused event is not counted");
    for (const auto& [id, trial] : records.trials()) {
      Require(trial.core.live ? !IsEnded(trial.core.state) : true,
              "an ended trial has no live run");
      (void)records.Removals(id, trial.config.retention, event->time);
    }
  }
  const std::string folded = EncodeRecords(records);
  const auto read = DecodeRecords(folded);
  Require(read.ok() && EncodeRecords(*read) == folded, "a fold comes back from its bytes");
  return 0;
}
