// The roles and meanings of a save's variables that decode are encoded to bytes that decode to the
// same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/require.h"
#include "model/variable_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string file = VariableFileName(bytes);
  Require(size == 0 || (file.size() <= 255 && file.find('/') == file.npos && file[0] != '.'),
          "a name of a variable gives the name of a file");
  const auto roles = DecodeVariableRoles(bytes);
  if (!roles.ok()) return 0;
  Require(DecodeVariableRoles(EncodeVariableRoles(*roles)).value() == *roles,
          "decode(encode(roles)) == roles");
  const auto meanings = DecodeVariableMeanings(bytes);
  if (!meanings.ok() || !*meanings) return 0;
  Require(DecodeVariableMeanings(EncodeVariableRoles(*roles, &**meanings)).value() == *meanings,
          "decode(encode(meanings)) == meanings");
  return 0;
}
