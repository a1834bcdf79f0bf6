#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// The bytes of a journal's segments (docs/format/journal.md): a header of 64 bytes, then frames.
/// Everything little-endian. Pure functions.

inline constexpr std::size_t kSegmentHeaderBytes = 64;
inline constexpr std::size_t kFrameHeaderBytes = 32;
inline constexpr std::size_t kMaxFramePayload = 64u << 20;

struct SegmentHeader {
  std::array<std::byte, 16> writer{};  // one opening of the journal
  std::uint64_t number = 0;            // 1, 2, 3 …
  std::uint64_t first_index = 1;       // of the first record here
  /// How many bytes of the segment before this one count: what follows there was cut off.
  std::uint64_t previous_bytes = 0;
  friend bool operator==(const SegmentHeader&, const SegmentHeader&) = default;
};

std::string EncodeSegmentHeader(const SegmentHeader& header);
/// Corruption when it is cut, damaged or no journal; Unimplemented when its version is newer.
Result<SegmentHeader> DecodeSegmentHeader(std::string_view segment);

struct Frame {
  std::uint64_t index = 0;
  /// All records up to this index were durable when the frame was written; also its own index or a
  /// later one, for frames that became durable as a whole or not at all.
  std::uint64_t durable = 0;
  std::string_view payload;  // borrowed from the segment
};

/// Writes what stands before the payload of a frame. The checksum covers the segment's header, so
/// that a frame of another segment, left where a file was reused, is none of this one.
void EncodeFrameHead(const SegmentHeader& header, const Frame& frame,
                     std::span<char, kFrameHeaderBytes> out);
/// Appends head and payload to `out`.
void AppendFrame(const SegmentHeader& header, const Frame& frame, std::string* out);

/// The frame at `offset`; NotFound at the end of the segment, Corruption for anything else that is
/// no whole frame with the given index.
Result<Frame> FrameAt(const SegmentHeader& header, std::string_view segment, std::uint64_t offset,
                      std::uint64_t index);

struct SegmentContents {
  SegmentHeader header;
  std::vector<Frame> frames;  // consecutive from header.first_index; borrowed from the segment
  std::vector<std::uint64_t> ends;  // ends[i]: where frames[i] ends
  std::uint64_t valid_bytes = 0;    // header and whole frames
  std::uint64_t durable = 0;        // the highest index that any frame says was durable
};

/// What a segment holds up to `limit` bytes of it. With `torn_tail` bytes behind the last whole
/// frame are allowed, as a crash leaves them; but Corruption when a later frame tells that what
/// should stand there had been durable. Without it, or within a limit, every byte must belong to a
/// frame.
Result<SegmentContents> ReadSegment(std::string_view segment, std::uint64_t limit, bool torn_tail);

/// A summary that stands for all records of a journal up to `index`.
struct JournalSummary {
  std::uint64_t index = 0;
  std::string_view payload;  // borrowed
};

inline constexpr std::size_t kSummaryHeaderBytes = 40;

std::string EncodeSummary(const JournalSummary& summary);
/// Corruption when it is cut, damaged or no summary; Unimplemented when its version is newer.
Result<JournalSummary> DecodeSummary(std::string_view bytes);

}  // namespace cairn
