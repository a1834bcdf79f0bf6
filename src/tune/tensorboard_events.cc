#include "tune/tensorboard_events.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "storage/s3/crc32c.h"

namespace cairn::tune {
namespace {

enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void AppendVarint(std::uint64_t number, std::string* out) {
  for (; number >= 0x80; number >>= 7) out->push_back(static_cast<char>(number | 0x80));
  out->push_back(static_cast<char>(number));
}

void AppendTag(int field, WireType type, std::string* out) {
  AppendVarint(static_cast<std::uint64_t>(field) << 3 | type, out);
}

template <typename T>
void AppendLittleEndian(T number, std::string* out) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

void AppendBytes(int field, std::string_view bytes, std::string* out) {
  AppendTag(field, kBytes, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

std::uint32_t MaskedCrc(std::string_view bytes) {
  const std::uint32_t crc = Crc32c(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::string Record(const std::string& event) {
  std::string out;
  AppendLittleEndian(static_cast<std::uint64_t>(event.size()), &out);
  AppendLittleEndian(MaskedCrc(out), &out);
  out += event;
  AppendLittleEndian(MaskedCrc(event), &out);
  return out;
}

std::string EventAt(double wall_time) {
  std::string event;
  AppendTag(1, kFixed64, &event);
  AppendLittleEndian(std::bit_cast<std::uint64_t>(wall_time), &event);
  return event;
}

}  // namespace

std::string TensorboardHeader(double wall_time) {
  std::string event = EventAt(wall_time);
  AppendBytes(3, "brain.Event:2", &event);
  return Record(event);
}

std::string TensorboardScalars(double wall_time, std::int64_t step,
                               std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    AppendBytes(1, tag, &value);
    AppendTag(2, kFixed32, &value);
    AppendLittleEndian(std::bit_cast<std::uint32_t>(static_cast<float>(number)), &value);
    AppendBytes(1, value, &summary);
  }
  std::string event = EventAt(wall_time);
  AppendTag(2, kVarint, &event);
  AppendVarint(static_cast<std::uint64_t>(step), &event);
  AppendBytes(5, summary, &event);
  return Record(event);
}

}  // namespace cairn::tune
