#include "tune/tuner_summary.h"

#include <fmt/format.h>

#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "format/compact_value.h"
#include "trial/records_codec.h"

namespace cairn::tune {
namespace {

constexpr std::string_view kMagic = "cairn tuner summary 1\n";
constexpr std::size_t kChecksumBytes = 16;
constexpr char kWhat[] = "summary of an experiment";

constexpr std::uint64_t kCreated = 1;
constexpr std::uint64_t kFailed = 2;
constexpr std::uint64_t kRestarting = 4;
constexpr std::uint64_t kExtending = 8;

void WriteTrial(const TuneTrial& trial, CompactWriter* out) {
  out->Text(trial.id);
  out->Any(trial.config);
  out->Number(static_cast<std::uint64_t>(trial.phase));
  out->Number((trial.created ? kCreated : 0) | (trial.failed ? kFailed : 0) |
              (trial.restarting ? kRestarting : 0) | (trial.extending ? kExtending : 0));
  out->Text(trial.error);
  out->Any(trial.last_result);
  out->Signed(trial.iteration);
  out->Number(trial.decided.size());
  for (const auto& [at, decision] : trial.decided) {
    out->Signed(at);
    out->Number(static_cast<std::uint64_t>(decision.action) * 2 + (decision.checkpoint ? 1 : 0));
  }
  out->Text(trial.donor);
  out->Text(trial.donor_checkpoint);
  out->Number(trial.donor_after_run);
  out->Number(trial.run);
}

Status ReadTrial(CompactReader* in, TuneTrial* trial) {
  std::uint64_t phase = 0;
  std::uint64_t flags = 0;
  std::uint64_t count = 0;
  RETURN_IF_ERROR(in->Text(&trial->id));
  RETURN_IF_ERROR(in->Any(&trial->config));
  RETURN_IF_ERROR(in->Number(&phase));
  RETURN_IF_ERROR(in->Number(&flags));
  if (phase > static_cast<std::uint64_t>(TunePhase::kEnded)) return in->Wrong("no such phase");
  if (flags > (kCreated | kFailed | kRestarting | kExtending)) return in->Wrong("no such flag");
  trial->phase = static_cast<TunePhase>(phase);
  trial->created = (flags & kCreated) != 0;
  trial->failed = (flags & kFailed) != 0;
  trial->restarting = (flags & kRestarting) != 0;
  trial->extending = (flags & kExtending) != 0;
  RETURN_IF_ERROR(in->Text(&trial->error));
  RETURN_IF_ERROR(in->Any(&trial->last_result));
  RETURN_IF_ERROR(in->Signed(&trial->iteration));
  RETURN_IF_ERROR(in->Count(&count));
  for (; count > 0; --count) {
    std::int64_t at = 0;
    std::uint64_t decision = 0;
    RETURN_IF_ERROR(in->Signed(&at));
    RETURN_IF_ERROR(in->Number(&decision));
    if (decision / 2 > static_cast<std::uint64_t>(TrialAction::kPause)) {
      return in->Wrong("no such decision");
    }
    if (!trial->decided.empty() && at <= trial->decided.rbegin()->first) {
      return in->Wrong("decisions out of order");
    }
    trial->decided[at] = {.action = static_cast<TrialAction>(decision / 2),
                          .checkpoint = decision % 2 == 1};
  }
  RETURN_IF_ERROR(in->Text(&trial->donor));
  RETURN_IF_ERROR(in->Text(&trial->donor_checkpoint));
  RETURN_IF_ERROR(in->Number(&trial->donor_after_run));
  return in->Number(&trial->run);
}

}  // namespace

void TunerRecord::EncodeTo(CompactWriter* out) const {
  out->Any(description_);
  out->Number(stopped_ ? 1 : 0);
  out->Signed(worked_ns_);
  out->Signed(last_time_);
  out->Number(order_.size());
  for (const std::string& id : order_) WriteTrial(trials_.find(id)->second, out);
  for (const std::vector<std::string>* list : {&pending_, &paused_}) {
    out->Number(list->size());
    for (const std::string& id : *list) out->Text(id);
  }
}

Status TunerRecord::DecodeFrom(CompactReader* in) {
  std::uint64_t number = 0;
  RETURN_IF_ERROR(in->Any(&description_));
  RETURN_IF_ERROR(in->Number(&number));
  if (number > 1) return in->Wrong("neither stopped nor not");
  stopped_ = number == 1;
  RETURN_IF_ERROR(in->Signed(&worked_ns_));
  RETURN_IF_ERROR(in->Signed(&last_time_));
  RETURN_IF_ERROR(in->Count(&number));
  for (std::uint64_t i = 0; i < number; ++i) {
    TuneTrial trial{.number = i};
    RETURN_IF_ERROR(ReadTrial(in, &trial));
    order_.push_back(trial.id);
    std::string id = trial.id;
    if (!trials_.emplace(std::move(id), std::move(trial)).second) {
      return in->Wrong("a trial is there twice");
    }
  }
  for (std::vector<std::string>* list : {&pending_, &paused_}) {
    RETURN_IF_ERROR(in->Count(&number));
    for (; number > 0; --number) {
      RETURN_IF_ERROR(in->Text(&list->emplace_back()));
      if (!trials_.contains(list->back())) return in->Wrong("a trial that is not there");
    }
  }
  return Status::Ok();
}

std::string EncodeSummary(const TunerSummary& summary) {
  CompactWriter out;
  out.Number(summary.position.record);
  out.Number(summary.position.seq);
  out.Signed(summary.position.time);
  summary.tuner.EncodeTo(&out);
  out.Any(summary.policy);
  out.Any(summary.policy_state);
  out.Text(EncodeRecords(summary.trials));
  const std::string body = out.Take();
  return fmt::format("{}{}{}", kMagic, ToHex(Xxh3(body)), body);
}

namespace {

/// What stands behind the checksum.
Result<std::string_view> BodyOf(std::string_view bytes) {
  if (!bytes.starts_with(kMagic.substr(0, kMagic.size() - 2))) {
    return CorruptionError(fmt::format("{}: it is none", kWhat));
  }
  if (!bytes.starts_with(kMagic)) {
    return UnimplementedError(fmt::format("{}: a newer program wrote it", kWhat));
  }
  bytes.remove_prefix(kMagic.size());
  if (bytes.size() < kChecksumBytes ||
      bytes.substr(0, kChecksumBytes) != ToHex(Xxh3(bytes.substr(kChecksumBytes)))) {
    return CorruptionError(fmt::format("{}: its checksum is another", kWhat));
  }
  return bytes.substr(kChecksumBytes);
}

Status ReadPosition(CompactReader* in, EventPosition* position) {
  RETURN_IF_ERROR(in->Number(&position->record));
  RETURN_IF_ERROR(in->Number(&position->seq));
  return in->Signed(&position->time);
}

}  // namespace

Result<std::pair<EventPosition, Value>> DecodeSummaryHead(std::string_view bytes) {
  ASSIGN_OR_RETURN(const std::string_view body, BodyOf(bytes));
  CompactReader in(body, kWhat);
  std::pair<EventPosition, Value> head;
  RETURN_IF_ERROR(ReadPosition(&in, &head.first));
  RETURN_IF_ERROR(in.Any(&head.second));
  return head;
}

Result<TunerSummary> DecodeSummary(std::string_view bytes) {
  ASSIGN_OR_RETURN(const std::string_view body, BodyOf(bytes));
  CompactReader in(body, kWhat);
  TunerSummary summary;
  std::string_view records;
  RETURN_IF_ERROR(ReadPosition(&in, &summary.position));
  RETURN_IF_ERROR(summary.tuner.DecodeFrom(&in));
  RETURN_IF_ERROR(in.Any(&summary.policy));
  RETURN_IF_ERROR(in.Any(&summary.policy_state));
  RETURN_IF_ERROR(in.View(&records));
  if (!in.empty()) return in.Wrong("more than was announced");
  ASSIGN_OR_RETURN(summary.trials, DecodeRecords(records));
  if (summary.trials.last_seq() != summary.position.seq) {
    return in.Wrong("its parts are of different events");
  }
  return summary;
}

}  // namespace cairn::tune
