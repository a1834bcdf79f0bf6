// A record that decodes is encoded to bytes that decode to the same, and is of one kind only. The
// input is tried as it is, and as the members of a record that is sealed here.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.h"
#include "format/records.h"
#include "format/sealed_json.h"
#include "fuzz/require.h"

namespace cairn {
namespace {

template <typename Record>
bool CheckAs(std::string_view bytes) {
  const Result<Record> record = Decode<Record>(bytes);
  if (!record.ok()) return false;
  const std::string encoded = Encode(*record);
  const Result<Record> again = Decode<Record>(encoded);
  Require(again.ok(), "what is encoded decodes");
  // By bytes: NaN, in a late score, is not equal to itself.
  Require(Encode(*again) == encoded, "encode(decode(bytes)) == bytes");
  return true;
}

template <typename... Record>
void CheckAll(std::string_view bytes) {
  const int kinds = (0 + ... + static_cast<int>(CheckAs<Record>(bytes)));
  Require(kinds <= 1, "a record is of one kind");
  Require(kinds == 0 || !DecodeManifest(bytes).ok(), "a record is no manifest");
}

void Check(std::string_view bytes) {
  CheckAll<RepositoryRecord, FenceRecord, SealRecord, ClosedRecord, EndRecord, StartRecord,
           JoinRecord, AttemptRecord, PartRecord, AbandonedRecord, NoteRecord, MarkerRecord,
           ShelfRecord>(bytes);
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Check(input);
  const Result<Value> value = DecodeJson(input);
  if (value.ok() && value->is_object()) Check(EncodeSealedJson(*value->if_object()));
  return 0;
}
