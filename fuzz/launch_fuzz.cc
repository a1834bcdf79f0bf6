// Records of launches that decode are encoded to bytes that decode to the same; any line of a log
// and any command is read without trouble, and what was read as a line is written back as it was.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.h"
#include "format/sealed_json.h"
#include "fuzz/require.h"
#include "launch/launch_directory.h"
#include "launch/launch_records.h"
#include "launch/log_line.h"

namespace cairn {
namespace {

template <typename Decode>
void CheckRecord(std::string_view bytes, const Decode& decode) {
  const auto record = decode(bytes);
  if (!record.ok()) return;
  const std::string encoded = Encode(*record);
  const auto again = decode(encoded);
  Require(again.ok(), "what is encoded decodes");
  Require(Encode(*again) == encoded, "encode(decode(bytes)) == bytes");
}

void CheckRecords(std::string_view bytes) {
  CheckRecord(bytes, DecodeLaunch);
  CheckRecord(bytes, DecodeKeeper);
  CheckRecord(bytes, DecodeRunning);
  CheckRecord(bytes, DecodeExit);
}

void CheckLine(std::string_view text) {
  if (text.find('\n') != std::string_view::npos) return;
  const LaunchLogLine line = ParseLogLine(text);
  if (line.time == 0) return;
  std::string written;
  AppendLogLine(line, &written);
  const LaunchLogLine again = ParseLogLine(std::string_view(written).substr(0, written.size() - 1));
  Require(again.text == line.text && again.time == line.time && again.rank == line.rank,
          "a line is read back as it was");
  (void)GuessLevel(text);
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  CheckRecords(input);
  const Result<Value> value = DecodeJson(input);
  if (value.ok() && value->is_object()) CheckRecords(EncodeSealedJson(*value->if_object()));
  CheckLine(input);
  if (const auto command = ParseCommand(input)) {
    const std::string written = EncodeCommand(*command);
    Require(ParseCommand(std::string_view(written).substr(0, written.size() - 1)).has_value(),
            "a command is understood again");
  }
  return 0;
}
