#include "format/journal_frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::string_view kSegmentMagic = "cairnjnl";
constexpr std::string_view kFrameMagic = "cjf1";
constexpr std::string_view kSummaryMagic = "cairnjns";
constexpr std::uint32_t kVersion = 1;

template <typename Int>
void Put(Int value, std::string* out) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    out->push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
}

template <typename Int>
Int Take(std::string_view bytes, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Int); ++i) {
    value |= std::uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return static_cast<Int>(value);
}

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint64_t FrameChecksum(const SegmentHeader& header, std::string_view head,
                            std::string_view payload) {
  Xxh3Stream stream;
  stream.Update(Bytes(EncodeSegmentHeader(header)));
  stream.Update(Bytes(head));
  stream.Update(Bytes(payload));
  return stream.Finish();
}

/// The frame at `offset` whatever its index; Corruption when there is none.
Result<Frame> AnyFrameAt(const SegmentHeader& header, std::string_view segment,
                         std::uint64_t offset) {
  if (offset > segment.size() || segment.size() - offset < kFrameHeaderBytes) {
    return CorruptionError(fmt::format("journal: no whole frame at byte {}", offset));
  }
  const std::string_view head = segment.substr(offset, kFrameHeaderBytes);
  if (!head.starts_with(kFrameMagic)) {
    return CorruptionError(fmt::format("journal: no frame at byte {}", offset));
  }
  const std::uint64_t length = Take<std::uint32_t>(head, 4);
  if (length > kMaxFramePayload || length > segment.size() - offset - kFrameHeaderBytes) {
    return CorruptionError(fmt::format("journal: the frame at byte {} is cut", offset));
  }
  const std::string_view payload = segment.substr(offset + kFrameHeaderBytes, length);
  if (FrameChecksum(header, head.substr(0, 24), payload) != Take<std::uint64_t>(head, 24)) {
    return CorruptionError(
        fmt::format("journal: the frame at byte {} has a wrong checksum", offset));
  }
  return Frame{.index = Take<std::uint64_t>(head, 8),
               .durable = Take<std::uint64_t>(head, 16),
               .payload = payload};
}

}  // namespace

std::string EncodeSegmentHeader(const SegmentHeader& header) {
  std::string out(kSegmentMagic);
  Put(kVersion, &out);
  Put(std::uint32_t{0}, &out);
  out.append(reinterpret_cast<const char*>(header.writer.data()), header.writer.size());
  Put(header.number, &out);
  Put(header.first_index, &out);
  Put(header.previous_bytes, &out);
  Put(Xxh3(out), &out);
  return out;
}

Result<SegmentHeader> DecodeSegmentHeader(std::string_view segment) {
  if (segment.size() < kSegmentHeaderBytes) {
    return CorruptionError(
        fmt::format("journal: a segment of {} bytes has no header", segment.size()));
  }
  if (!segment.starts_with(kSegmentMagic)) return CorruptionError("journal: not a segment");
  if (const auto version = Take<std::uint32_t>(segment, 8); version > kVersion) {
    return UnimplementedError(fmt::format(
        "journal: the segment has version {}, this program reads up to {}", version, kVersion));
  }
  if (Xxh3(segment.substr(0, 56)) != Take<std::uint64_t>(segment, 56)) {
    return CorruptionError("journal: a segment's header has a wrong checksum");
  }
  SegmentHeader header;
  std::memcpy(header.writer.data(), segment.data() + 16, header.writer.size());
  header.number = Take<std::uint64_t>(segment, 32);
  header.first_index = Take<std::uint64_t>(segment, 40);
  header.previous_bytes = Take<std::uint64_t>(segment, 48);
  // Version 0 never was, and the flags have no meaning yet: a header says one thing in one way.
  if (EncodeSegmentHeader(header) != segment.substr(0, kSegmentHeaderBytes) || header.number == 0 ||
      header.first_index == 0) {
    return CorruptionError("journal: a segment's header makes no sense");
  }
  return header;
}

void EncodeFrameHead(const SegmentHeader& header, const Frame& frame,
                     std::span<char, kFrameHeaderBytes> out) {
  std::string head(kFrameMagic);
  Put(static_cast<std::uint32_t>(frame.payload.size()), &head);
  Put(frame.index, &head);
  Put(frame.durable, &head);
  Put(FrameChecksum(header, head, frame.payload), &head);
  std::memcpy(out.data(), head.data(), kFrameHeaderBytes);
}

void AppendFrame(const SegmentHeader& header, const Frame& frame, std::string* out) {
  std::array<char, kFrameHeaderBytes> head;
  EncodeFrameHead(header, frame, head);
  out->append(head.data(), head.size());
  out->append(frame.payload);
}

Result<Frame> FrameAt(const SegmentHeader& header, std::string_view segment, std::uint64_t offset,
                      std::uint64_t index) {
  if (offset == segment.size()) return NotFoundError("journal: the end of the segment");
  ASSIGN_OR_RETURN(const Frame frame, AnyFrameAt(header, segment, offset));
  if (frame.index != index) {
    return CorruptionError(fmt::format("journal: record {} stands at byte {}, where {} belongs",
                                       frame.index, offset, index));
  }
  return frame;
}

Result<SegmentContents> ReadSegment(std::string_view segment, std::uint64_t limit, bool torn_tail) {
  SegmentContents contents;
  ASSIGN_OR_RETURN(contents.header, DecodeSegmentHeader(segment));
  if (limit < kSegmentHeaderBytes || limit > segment.size()) {
    if (!torn_tail) {
      return CorruptionError(fmt::format("journal: segment {} has {} bytes, but {} of it count",
                                         contents.header.number, segment.size(), limit));
    }
    limit = segment.size();
  }
  const std::string_view counted = segment.substr(0, limit);
  contents.valid_bytes = kSegmentHeaderBytes;
  std::uint64_t index = contents.header.first_index;
  Status stopped;
  for (;; ++index) {
    const Result<Frame> frame = FrameAt(contents.header, counted, contents.valid_bytes, index);
    if (!frame.ok()) {
      stopped = frame.status();
      break;
    }
    contents.valid_bytes += kFrameHeaderBytes + frame->payload.size();
    contents.frames.push_back(*frame);
    contents.ends.push_back(contents.valid_bytes);
    contents.durable = std::max(contents.durable, frame->durable);
  }
  if (stopped.Is(Code::kNotFound)) return contents;
  if (!torn_tail) return stopped;
  // Bytes that were never synced may be missing in any order, so whole frames behind the torn ones
  // prove nothing by themselves; what they say about durability does.
  for (std::size_t at = counted.find(kFrameMagic, contents.valid_bytes);
       at != std::string_view::npos; at = counted.find(kFrameMagic, at + 1)) {
    const Result<Frame> later = AnyFrameAt(contents.header, counted, at);
    if (later.ok() && later->durable >= index) {
      return CorruptionError(
          fmt::format("journal: segment {}: record {} was durable and is damaged ({})",
                      contents.header.number, index, stopped.message()));
    }
  }
  return contents;
}

std::string EncodeSummary(const JournalSummary& summary) {
  std::string bytes(kSummaryMagic);
  Put<std::uint32_t>(kVersion, &bytes);
  Put<std::uint32_t>(0, &bytes);
  Put<std::uint64_t>(summary.index, &bytes);
  Put<std::uint64_t>(summary.payload.size(), &bytes);
  Xxh3Stream stream;
  stream.Update(Bytes(bytes));
  stream.Update(Bytes(summary.payload));
  Put<std::uint64_t>(stream.Finish(), &bytes);
  bytes += summary.payload;
  return bytes;
}

Result<JournalSummary> DecodeSummary(std::string_view bytes) {
  if (bytes.size() < kSummaryHeaderBytes || !bytes.starts_with(kSummaryMagic)) {
    return CorruptionError("journal: no summary");
  }
  if (const auto version = Take<std::uint32_t>(bytes, 8); version != kVersion) {
    return UnimplementedError(
        fmt::format("journal: a summary of version {}; this program reads {}", version, kVersion));
  }
  const JournalSummary summary{.index = Take<std::uint64_t>(bytes, 16),
                               .payload = bytes.substr(kSummaryHeaderBytes)};
  Xxh3Stream stream;
  stream.Update(Bytes(bytes.substr(0, kSummaryHeaderBytes - 8)));
  stream.Update(Bytes(summary.payload));
  if (Take<std::uint64_t>(bytes, 24) != summary.payload.size() ||
      Take<std::uint32_t>(bytes, 12) != 0 ||
      Take<std::uint64_t>(bytes, kSummaryHeaderBytes - 8) != stream.Finish()) {
    return CorruptionError("journal: a summary is cut or damaged");
  }
  return summary;
}

}  // namespace cairn
