#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::core {

/// What ranks of a trial say to each other, in C++ and in Python (docs/format/rank_protocol.md):
/// JSON, with objects {"__cairn__": kind, …} for what JSON does not know. Nothing is unpickled.

/// The bytes of a value; text that is not UTF-8 is sent as bytes. InvalidArgument: nested too deep,
/// or a key that is not UTF-8.
Result<std::string> EncodeRankValue(const Value& value);

/// Corruption: no such message. Unimplemented: a kind that a Value cannot hold. Tuples and sets
/// become lists, bytes text, arrays lists of lists.
Result<Value> DecodeRankValue(std::string_view bytes);

/// How bytes stand in a message, whatever they happen to spell: a rank in Python tells bytes from
/// text. Not for EncodeRankValue.
Value BytesForRanks(std::string_view bytes);

}  // namespace cairn::core
