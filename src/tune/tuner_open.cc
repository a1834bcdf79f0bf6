// Whether a directory holds an experiment, and what its record says: from the summary and the
// events after it. The loop that goes on from there: tuner.cc.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/journal_frames.h"
#include "storage/open_store.h"
#include "trial/event.h"
#include "tune/tuner.h"
#include "tune/tuner_summary.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

constexpr char kJournal[] = "events";
constexpr std::uint64_t kMaxSummaryBytes = std::uint64_t{4} << 30;
/// A segment that is larger holds more than what a tuner writes before an experiment is described.
constexpr std::uint64_t kMaxDoubtBytes = 1u << 20;

/// The journal, whose events were read and folded already.
class FoldedLog final : public EventLog {
 public:
  FoldedLog(JournalEventLog* journal, TrialRecords* folded) : journal_(journal), folded_(folded) {}
  Status Append(std::span<const Event> events) override { return journal_->Append(events); }
  Result<TrialRecords> Restore() override { return std::move(*folded_); }
  Status Replay(std::uint64_t, const Visitor&) override { return Status::Ok(); }

 private:
  JournalEventLog* const journal_;
  TrialRecords* const folded_;
};

/// Repositories of trials by their recorded, relative names.
class RelativeRepositories final : public RepositoryAccess {
 public:
  explicit RelativeRepositories(std::string directory) : directory_(std::move(directory)) {}
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    auto found = real_->List(PathOf(repository));
    RETURN_IF_ERROR(found.status());
    // Of what goes on record: an experiment may be moved.
    for (FoundCheckpoint& one : *found) one.path.erase(0, one.path.rfind('/') + 1);
    return found;
  }
  Result<std::string> Job(const std::string& repository) override {
    return real_->Job(PathOf(repository));
  }
  Result<std::uint64_t> NewestRun(const std::string& repository) override {
    return real_->NewestRun(PathOf(repository));
  }
  Result<std::string> Claim(const std::string& repository, const std::string& job) override {
    return real_->Claim(PathOf(repository), job);
  }
  Result<std::vector<std::string>> Remove(const std::string& repository, const Owner& owner,
                                          const std::vector<std::string>& ids) override {
    return real_->Remove(PathOf(repository), owner, ids);
  }
  Status Tidy(const std::string& repository, const Owner& owner) override {
    return real_->Tidy(PathOf(repository), owner);
  }
  Status Pin(const std::string& repository, const std::string& id, bool pinned) override {
    return real_->Pin(PathOf(repository), id, pinned);
  }

 private:
  std::string PathOf(std::string_view repository) const {
    return fmt::format("{}/{}", directory_, repository.substr(repository.rfind('/') + 1));
  }

  const std::string directory_;
  const std::unique_ptr<RepositoryAccess> real_ = RepositoryAccess::Real();
};

/// Whether anything was noted in a journal. Reads and takes nothing from its writer: on a bucket to
/// open it is to take it over. What cannot be read counts: whoever opens it is told.
Result<bool> AnythingNoted(Store* store, const Listing& journal) {
  for (const ObjectInfo& object : journal.objects) {
    if (!object.name.ends_with(".journal")) {
      if (object.name.ends_with("/lock")) continue;
      return true;
    }
    if (object.bytes > kMaxDoubtBytes) return true;
    if (object.bytes == kSegmentHeaderBytes) continue;
    const auto bytes = store->Get(object.name, kMaxDoubtBytes);
    if (bytes.status().Is(Code::kNotFound)) return true;  // its writer is at work
    RETURN_IF_ERROR(bytes.status());
    const auto segment = ReadSegment(*bytes, bytes->size(), true);
    if (!segment.ok()) return true;
    for (const Frame& frame : segment->frames) {
      const auto event = DecodeEvent(frame.payload);
      const bool opening =
          event.ok() && event->kind == EventKind::kNote && TextOf(event->body, "what") == "opened";
      if (!opening) return true;
    }
  }
  return false;
}

/// As trials are named: `<prefix>_00000`.
bool IsTrialName(std::string_view name) {
  constexpr std::size_t kDigits = 5;
  if (name.size() < kDigits + 2 || name[name.size() - kDigits - 1] != '_') return false;
  return std::ranges::all_of(name.substr(name.size() - kDigits),
                             [](char c) { return c >= '0' && c <= '9'; });
}

Status CheckThere(const std::string& directory) {
  ASSIGN_OR_RETURN(const bool there, Tuner::Exists(directory));
  if (there) return Status::Ok();
  return NotFoundError(directory +
                       " holds no experiment: there is no record of its trials. Give the "
                       "directory that has \"events\" in it");
}

Status CheckDescribed(const std::string& directory, const Value& description) {
  if (!description.is_null()) return Status::Ok();
  return CorruptionError(directory +
                         ": the record of the experiment is empty or damaged: it does "
                         "not say what the experiment is");
}

}  // namespace

Tuner::Tuner(OpenOptions options) : open_(std::move(options)) {}

Result<bool> Tuner::Exists(const std::string& directory) {
  const auto store = OpenStore(directory, {.create = false});
  if (store.status().Is(Code::kNotFound)) return false;
  RETURN_IF_ERROR(store.status());
  const auto listed = (*store)->List(kJournal);
  if (listed.status().Is(Code::kNotFound)) return false;
  RETURN_IF_ERROR(listed.status());
  if (listed->objects.empty() && listed->prefixes.empty()) return false;
  ASSIGN_OR_RETURN(const bool noted, AnythingNoted(store->get(), *listed));
  if (noted) return true;
  // A tuner that was killed between opening and its first note left nothing to go on with. But
  // where trials are, there was a record of them.
  ASSIGN_OR_RETURN(const Listing beside, (*store)->List(""));
  return std::ranges::any_of(beside.prefixes, IsTrialName) ||
         std::ranges::any_of(beside.objects,
                             [](const ObjectInfo& one) { return one.name == kSummaryName; });
}

Result<Value> Tuner::ReadDescription(const std::string& directory) {
  RETURN_IF_ERROR(CheckThere(directory));
  ASSIGN_OR_RETURN(const auto store, OpenStore(directory, {.create = false}));
  ASSIGN_OR_RETURN(const auto journal,
                   JournalEventLog::Open({.store = store.get(), .prefix = kJournal}));
  std::pair<EventPosition, Value> head;
  if (const auto bytes = store->Get(kSummaryName, kMaxSummaryBytes); bytes.ok()) {
    if (auto read = DecodeSummaryHead(*bytes); read.ok()) head = *std::move(read);
  }
  const auto take = [&](const Event& event) {
    if (event.kind == EventKind::kNote && TextOf(event.body, "what") == "experiment") {
      if (const Value* description = event.body.Find("description")) head.second = *description;
    }
    return Status::Ok();
  };
  Status read = journal->ReplayAfter(head.first, take);
  if (read.Is(Code::kFailedPrecondition)) read = journal->Replay(1, take);
  RETURN_IF_ERROR(read.WithContext(directory));
  RETURN_IF_ERROR(CheckDescribed(directory, head.second));
  return head.second;
}

Result<std::unique_ptr<Tuner>> Tuner::Open(OpenOptions options) {
  std::unique_ptr<Tuner> tuner(new Tuner(std::move(options)));
  const std::string& directory = tuner->open_.directory;
  if (!tuner->open_.create) RETURN_IF_ERROR(CheckThere(directory));
  ASSIGN_OR_RETURN(tuner->store_, OpenStore(directory, {.create = tuner->open_.create}));
  ASSIGN_OR_RETURN(tuner->journal_,
                   JournalEventLog::Open({.store = tuner->store_.get(), .prefix = kJournal}));
  RETURN_IF_ERROR(tuner->Read().WithContext(directory));
  if (!tuner->open_.create) RETURN_IF_ERROR(CheckDescribed(directory, tuner->description()));
  tuner->log_ = std::make_unique<FoldedLog>(tuner->journal_.get(), &tuner->trials_);
  tuner->repositories_ = std::make_unique<RelativeRepositories>(directory);
  return tuner;
}

Status Tuner::Read() {
  const auto apply = [&](const Event& event) -> Status {
    const auto context = [&] { return fmt::format("event {}", event.seq); };
    RETURN_IF_ERROR(trials_.Apply(event).WithContext(context()));
    RETURN_IF_ERROR(record_.Apply(event).WithContext(context()));
    history_.push_back(event);
    return Status::Ok();
  };
  const auto bytes = store_->Get(kSummaryName, kMaxSummaryBytes);
  if (bytes.ok()) {
    auto summary = DecodeSummary(*bytes);
    Status read = summary.status();
    if (read.ok()) {
      record_ = before_history_ = std::move(summary->tuner);
      trials_ = std::move(summary->trials);
      policy_ = std::move(summary->policy);
      policy_state_ = std::move(summary->policy_state);
      summarized_ = summary->position.seq;
      read = journal_->ReplayAfter(summary->position, apply);
      if (read.ok()) return read;
    }
    LogWarning(fmt::format("tuner: every event is read again: {}", read.ToString()));
    record_ = before_history_ = TunerRecord();
    trials_ = TrialRecords();
    policy_ = policy_state_ = Value();
    summarized_ = 0;
    history_.clear();
  } else if (!bytes.status().Is(Code::kNotFound)) {
    LogWarning(fmt::format("tuner: every event is read again: {}", bytes.status().ToString()));
  }
  return journal_->Replay(1, apply);
}

}  // namespace cairn::tune
