// How records give way to a summary:
//
// 1. The summary is created under the number of its last record, durable and checksummed. From now
//    on a reader takes it and the records behind it.
// 2. Segments that hold nothing else than what it stands for are removed, oldest first.
// 3. Older summaries are removed. Only now: when the new one turns out to be unreadable before 2,
//    the old one and the records are still there.
//
// An owner that was replaced without noticing does no harm: its summary says what the records say.
#include <fmt/format.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "journal/journal.h"

namespace cairn {
namespace {

constexpr std::string_view kSummarySuffix = ".summary";
constexpr std::uint64_t kMaxSummaryBytes = std::uint64_t{1} << 34;

}  // namespace

std::string Journal::SummaryName(std::uint64_t index) const {
  return fmt::format("{}/{:06}{}", options_.prefix, index, kSummarySuffix);
}

Status Journal::Summarize(std::uint64_t index, std::string_view payload) {
  if (index == 0 || index > durable_index()) {
    return InvalidArgumentError(fmt::format(
        "journal: a summary up to record {}, of which {} are durable", index, durable_index()));
  }
  const Status created = options_.store->Create(
      SummaryName(index), EncodeSummary({.index = index, .payload = payload}));
  if (created.Is(Code::kAlreadyExists)) {
    // Ours, from before a lost answer, or that of another owner: it says the same.
    RETURN_IF_ERROR(options_.store->SyncDirectory(options_.prefix, "journal summary"));
  } else {
    RETURN_IF_ERROR(created);
  }
  ASSIGN_OR_RETURN(const Summary there, ReadSummary());
  if (there.index < index) {
    return CorruptionError(fmt::format("journal: {} cannot be read back", SummaryName(index)));
  }
  RETURN_IF_ERROR(DropBefore(index + 1));
  ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, ListNumbers(kSummarySuffix));
  for (const std::uint64_t number : numbers) {
    if (number >= index) break;
    RETURN_IF_ERROR(options_.store->Delete(SummaryName(number)));
  }
  return Status::Ok();
}

Result<Journal::Summary> Journal::ReadSummary() {
  ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, ListNumbers(kSummarySuffix));
  Status damage;
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    ASSIGN_OR_RETURN(const std::string bytes,
                     options_.store->Get(SummaryName(*number), kMaxSummaryBytes));
    const Result<JournalSummary> summary = DecodeSummary(bytes);
    if (summary.ok() && summary->index == *number) {
      if (!damage.ok())
        LogWarning(fmt::format("journal: {}; an older one is taken", damage.message()));
      return Summary{.index = summary->index, .payload = std::string(summary->payload)};
    }
    if (damage.ok()) {
      damage = (summary.ok() ? CorruptionError("journal: a summary lies under another's name")
                             : summary.status())
                   .WithContext(SummaryName(*number));
    }
  }
  RETURN_IF_ERROR(damage);
  return Summary{};
}

}  // namespace cairn
