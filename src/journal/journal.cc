// How a journal stays whole:
//
// 1. A segment is published by one create-only put of its header (and of records, when some wait),
//    so it is there with a whole header or not at all, and of two openers one wins the number.
// 2. Records are appended behind it. Each frame says up to which record the journal was durable
// when
//    it was written.
// 3. Opening reads the last segment. Frames up to the highest such mark are durable. The whole
// frames
//    behind them may be on the disk or only in the kernel's memory, and after a failed sync a
//    second one proves nothing: they are written again, into the new segment, whose header cuts
//    them off the old one. So whatever a replay has shown once is durable before anybody acts on
//    it.
// 4. A failed write or sync condemns the segment: the same is done from memory.
// 5. Without a lock nobody may append: an owner that was replaced would not notice, and its bytes
//    would lie behind what the new header cut off. Each group is then a segment, and of two that
//    create the same number one learns that it lost. An opener that lost to the old owner's last
//    group begins again, and counts it.
// 6. A sync beside appends covers what was written when it began, so only that leaves memory when
//    it has succeeded; a failed one condemns the segment as any other does.
// 7. What was only written may stand in the tail alone. Opening puts it into its segment before it
//    reads that, whatever the level now; a replay beside appends syncs first.
#include "journal/journal.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".journal";
/// An old owner that writes without end is overtaken within a few rounds: each costs it one, too.
constexpr int kTakeOverTries = 100;
constexpr std::size_t kMinDigits = 6;
/// Larger records are written by themselves, without another copy, and their memory is used again:
/// that of a whole group of them goes back to the system each time otherwise.
constexpr std::size_t kLargeRecord = 16 << 10;

/// Of what may be unsynced, so much is when the thread that syncs beside appends begins: a
/// sixteenth. What is used again sooner is still in a cache; the rest is room for what comes
/// meanwhile.
constexpr std::uint64_t kBesideShare = 16;

/// A write is over sooner than a core that went to sleep is awake again.
constexpr std::chrono::microseconds kSoon{200};

std::uint64_t NumberOf(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return 0;
  name.remove_suffix(suffix.size());
  name.remove_prefix(std::min(name.size(), name.rfind('/') + 1));
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && name.size() >= kMinDigits ? number : 0;
}

/// Segments are as large as their limit and one group more.
constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{1} << 34;

std::array<std::byte, 16> WriterId(IdSource* ids) {
  const std::string uuid = ids->NewUuid();
  const Hash128 hash = Xxh3Wide(std::as_bytes(std::span(uuid.data(), uuid.size())));
  std::array<std::byte, 16> id{};
  std::memcpy(id.data(), &hash.high, 8);
  std::memcpy(id.data() + 8, &hash.low, 8);
  return id;
}

}  // namespace

Status JournalOptions::Validate() const {
  if (store == nullptr || ids == nullptr) {
    return InvalidArgumentError("journal: store and ids must be given");
  }
  if (segment_bytes == 0 || segment_bytes > kMaxSegmentBytes / 2) {
    return InvalidArgumentError(
        fmt::format("journal: segment_bytes {} must be from 1 to 8 GiB", segment_bytes));
  }
  return prefix.empty() ? InvalidArgumentError("journal: the prefix is empty")
                        : ValidateObjectName(prefix).WithContext("journal");
}

Journal::Journal(Options options)
    : options_(std::move(options)), appending_(FindAppending(options_.store)) {
  header_.writer = WriterId(options_.ids);
}

Journal::~Journal() {
  {
    MutexLock hold(&mu_);
    closing_ = true;
    beside_changed_.NotifyAll();
  }
  beside_ = {};  // joins
}

Result<std::unique_ptr<Journal>> Journal::Open(Options options) {
  RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Journal> journal(new Journal(std::move(options)));
  RETURN_IF_ERROR(journal->Recover().WithContext(
      fmt::format("journal {}/{}", journal->options_.store->Describe(), journal->options_.prefix)));
  if (journal->options_.sync_beside && journal->appending_ != nullptr) {
    journal->beside_ = std::jthread([self = journal.get()] { self->SyncBeside(); });
  }
  return journal;
}

std::string Journal::NameOf(std::uint64_t number) const {
  return fmt::format("{}/{:06}{}", options_.prefix, number, kSuffix);
}

Result<std::vector<std::uint64_t>> Journal::ListNumbers(std::string_view suffix) const {
  ASSIGN_OR_RETURN(const Listing listing, options_.store->List(options_.prefix));
  std::vector<std::uint64_t> numbers;
  for (const ObjectInfo& object : listing.objects) {
    const std::uint64_t number = NumberOf(object.name, suffix);
    if (number != 0) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<std::vector<std::uint64_t>> Journal::ListSegments() const {
  ASSIGN_OR_RETURN(std::vector<std::uint64_t> numbers, ListNumbers(kSuffix));
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (numbers[i] != numbers[i - 1] + 1) {
      return CorruptionError(fmt::format("segment {} is missing", numbers[i - 1] + 1));
    }
  }
  return numbers;
}

Status Journal::Recover() {
  auto lock = options_.store->TryLock(options_.prefix + "/lock");
  if (!lock.ok() && !lock.status().Is(Code::kUnimplemented)) {
    if (!lock.status().Is(Code::kUnavailable)) return lock.status();
    return lock.status().WithContext(
        "it has a writer, and there may be one at a time: wait until that has ended, or end it");
  }
  if (lock.ok()) {
    lock_ = *std::move(lock);
  } else {
    appending_ = nullptr;
  }
  for (int tries = 1;; ++tries) {
    const Status taken = TakeOver();
    const bool raced = taken.Is(Code::kAborted) || taken.Is(Code::kNotFound);
    if (lock_ != nullptr || !raced || tries == kTakeOverTries) return taken;
  }
}

Status Journal::TakeOver() {
  header_ = {.writer = header_.writer};
  synced_bytes_ = 0;
  RETURN_IF_ERROR(options_.store->Refresh(options_.prefix));
  if (appending_ != nullptr) RETURN_IF_ERROR(appending_->RecoverTail(TailName()));
  ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, ListSegments());
  std::vector<Record> doubtful;
  std::uint64_t durable = 0;
  if (!numbers.empty()) {
    ASSIGN_OR_RETURN(const std::string bytes,
                     options_.store->Get(NameOf(numbers.back()), kMaxSegmentBytes));
    ASSIGN_OR_RETURN(const SegmentContents last, ReadSegment(bytes, bytes.size(), true));
    if (last.header.number != numbers.back()) {
      return CorruptionError(fmt::format("segment {} lies under the name of segment {}",
                                         last.header.number, numbers.back()));
    }
    torn_bytes_ = bytes.size() - last.valid_bytes;
    durable = last.header.first_index - 1;
    synced_bytes_ = kSegmentHeaderBytes;
    for (std::size_t i = 0; i < last.frames.size(); ++i) {
      const Frame& frame = last.frames[i];
      if (frame.index <= last.durable) {
        durable = frame.index;
        synced_bytes_ = last.ends[i];
      } else {
        RecordBuffer buffer(frame.payload.size());
        buffer.Fill(std::span(&frame.payload, 1));
        doubtful.push_back({.index = frame.index, .bytes = std::move(buffer)});
      }
    }
    header_.number = numbers.back();
  }
  RETURN_IF_ERROR(BeginSegment(doubtful, durable + 1));
  MutexLock hold(&mu_);
  last_ = written_ = synced_ = durable + doubtful.size();
  return Status::Ok();
}

Status Journal::BeginSegment(std::span<const Record> records, std::uint64_t first_index) {
  file_.reset();
  SegmentHeader next{.writer = header_.writer,
                     .number = header_.number + 1,
                     .first_index = first_index,
                     .previous_bytes = synced_bytes_};
  std::string bytes = EncodeSegmentHeader(next);
  for (const Record& record : records) {
    AppendFrame(next, {record.index, records.back().index, record.bytes.payload()}, &bytes);
  }
  const std::string name = NameOf(next.number);
  Status created = options_.store->Create(name, bytes);
  if (created.Is(Code::kAlreadyExists)) {
    // Ours, when the answer to an earlier try was lost. A segment of ours with other records holds
    // the beginning of these, because they stay in order until they are durable.
    ASSIGN_OR_RETURN(const std::string there, options_.store->Get(name, kMaxSegmentBytes));
    ASSIGN_OR_RETURN(const SegmentContents found, ReadSegment(there, there.size(), true));
    if (found.header.writer != next.writer) {
      return AbortedError(fmt::format("another process has opened the journal {}/{}",
                                      options_.store->Describe(), options_.prefix));
    }
    if (there != bytes) {
      header_ = found.header;
      synced_bytes_ = kSegmentHeaderBytes;
      return BeginSegment(records, first_index);
    }
    created = options_.store->SyncDirectory(options_.prefix, "journal segment");
  }
  RETURN_IF_ERROR(created);
  header_ = next;
  segment_bytes_ = synced_bytes_ = bytes.size();
  if (appending_ == nullptr) return Status::Ok();
  auto file = options_.sync_beside ? appending_->OpenTailed(name, TailName())
                                   : appending_->OpenAppend(name);
  if (!file.ok()) {
    synced_bytes_ = kSegmentHeaderBytes;  // the records stay in doubt and go into the next one
    return file.status();
  }
  file_ = *std::move(file);
  return Status::Ok();
}

Result<std::uint64_t> Journal::Append(std::string_view record, Durability level) {
  return Append(std::span(&record, 1), level);
}

Result<std::uint64_t> Journal::Append(std::span<const std::string_view> records, Durability level) {
  if (records.empty()) return InvalidArgumentError("journal: no record to append");
  std::vector<RecordBuffer> buffers;
  buffers.reserve(records.size());
  for (const std::string_view& record : records) {
    ASSIGN_OR_RETURN(RecordBuffer buffer, MakeBuffer(std::span(&record, 1)));
    buffers.push_back(std::move(buffer));
  }
  return Queue(std::move(buffers), level);
}

Result<std::uint64_t> Journal::AppendJoined(std::span<const std::string_view> pieces,
                                            Durability level) {
  std::vector<RecordBuffer> buffers(1);
  ASSIGN_OR_RETURN(buffers[0], MakeBuffer(pieces));
  return Queue(std::move(buffers), level);
}

Result<RecordBuffer> Journal::MakeBuffer(std::span<const std::string_view> pieces) {
  std::size_t size = 0;
  for (const std::string_view piece : pieces) size += piece.size();
  if (size > kMaxFramePayload) {
    return InvalidArgumentError(
        fmt::format("journal: a record of {} bytes; at most {} are taken", size, kMaxFramePayload));
  }
  RecordBuffer buffer;
  if (size >= kLargeRecord) {
    MutexLock hold(&mu_);
    if (!spare_.empty()) {
      spare_bytes_ -= spare_.back().capacity();
      buffer = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (!buffer.Resize(size) || size == 0) buffer = RecordBuffer(size);
  buffer.Fill(pieces);
  return buffer;
}

Result<std::uint64_t> Journal::Queue(std::vector<RecordBuffer> records, Durability level) {
  MutexLock hold(&mu_);
  RETURN_IF_ERROR(fenced_);
  for (RecordBuffer& record : records) {
    queued_.push_back({.index = ++last_, .bytes = std::move(record)});
  }
  const std::uint64_t index = last_;
  RETURN_IF_ERROR(Wait(index, level));
  return index;
}

Status Journal::Sync() {
  MutexLock hold(&mu_);
  RETURN_IF_ERROR(fenced_);
  return Wait(last_, Durability::kSynced);
}

Status Journal::Wait(std::uint64_t index, Durability level) {
  const bool sync = level == Durability::kSynced;
  bool tried = false;
  while ((sync ? synced_ : written_) < index) {
    if (tried && !outcome_.ok()) return outcome_;
    if (!leading_) {
      Lead(sync || sync_wanted_);
      tried = true;
      continue;
    }
    // Somebody is at it. What was queued before he began is in his round, the rest in the next.
    sync_wanted_ = sync_wanted_ || sync;
    const std::uint64_t round = rounds_;
    const auto soon = std::chrono::steady_clock::now() + kSoon;
    while (leading_ && rounds_ == round) {
      if (!sync && std::chrono::steady_clock::now() < soon) {
        mu_.unlock();
        sched_yield();
        mu_.lock();
      } else {
        changed_.Wait(&mu_);
      }
    }
    if (!outcome_.ok()) return outcome_;
  }
  return Status::Ok();
}

Status Journal::WriteRecords(std::span<Record> records, std::uint64_t durable) {
  std::string small;  // those that are written together
  const auto flush = [&] {
    Status written;
    if (!small.empty()) written = file_->Append(small);
    small.clear();
    return written;
  };
  for (Record& record : records) {
    const Frame frame{record.index, durable, record.bytes.payload()};
    if (frame.payload.size() < kLargeRecord) {
      AppendFrame(header_, frame, &small);
      continue;
    }
    RETURN_IF_ERROR(flush());
    EncodeFrameHead(header_, frame, record.bytes.head());
    RETURN_IF_ERROR(file_->Append(record.bytes.frame()));
  }
  return flush();
}

bool Journal::SegmentIsFull() const {
  if (file_ == nullptr || segment_bytes_ < options_.segment_bytes) return false;
  // What is not synced yet is synced before the next segment begins, and all wait for that: better
  // right after the other thread did the most of it.
  return !beside_.joinable() || unsynced_bytes_ < options_.max_unsynced_bytes / kBesideShare / 2 ||
         segment_bytes_ >= 2 * options_.segment_bytes;
}

std::vector<Journal::Record> Journal::TakeSynced(std::uint64_t index, std::uint64_t bytes) {
  const auto end =
      std::ranges::find_if(unsynced_, [&](const Record& record) { return record.index > index; });
  std::vector<Record> done(std::make_move_iterator(unsynced_.begin()),
                           std::make_move_iterator(end));
  unsynced_.erase(unsynced_.begin(), end);
  for (const Record& record : done) unsynced_bytes_ -= record.bytes.size();
  synced_bytes_ = std::max(synced_bytes_, bytes);
  return done;
}

void Journal::Recycle(std::vector<Record> records) {
  for (Record& record : records) {
    const std::size_t capacity = record.bytes.capacity();
    if (capacity < kLargeRecord || spare_bytes_ + capacity > options_.max_unsynced_bytes) continue;
    spare_bytes_ += capacity;
    spare_.push_back(std::move(record.bytes));
  }
}

void Journal::Lead(bool sync) {
  leading_ = true;
  sync_wanted_ = false;
  std::vector<Record> group(std::make_move_iterator(queued_.begin()),
                            std::make_move_iterator(queued_.end()));
  queued_.clear();
  const std::uint64_t durable = synced_;
  const std::uint64_t written = written_;
  mu_.unlock();

  Status status;
  std::vector<Record> done;  // durable now
  const bool full = SegmentIsFull();
  if (full && !unsynced_.empty()) {
    // Where it is: a new segment would have to take over everything that is in doubt.
    status = file_->Sync("full journal segment");
    if (status.ok()) {
      done = TakeSynced(written, segment_bytes_);
    } else {
      file_.reset();
    }
  }
  for (const Record& record : group) unsynced_bytes_ += record.bytes.size();
  sync = sync || unsynced_bytes_ >= options_.max_unsynced_bytes;
  const std::size_t before = unsynced_.size();
  unsynced_.insert(unsynced_.end(), std::make_move_iterator(group.begin()),
                   std::make_move_iterator(group.end()));
  const std::uint64_t end = !unsynced_.empty() ? unsynced_.back().index
                            : !done.empty()    ? done.back().index
                                               : durable;
  if (status.ok() && (file_ == nullptr || full)) {
    // Also the way on after an error: everything in doubt goes into a new segment.
    if (!unsynced_.empty()) status = BeginSegment(unsynced_, unsynced_.front().index);
    sync = true;
  } else if (status.ok()) {
    status = WriteRecords(std::span(unsynced_).subspan(before), durable);
    if (status.ok() && sync) status = file_->Sync("journal records");
    if (status.ok()) {
      segment_bytes_ = file_->bytes();
    } else {
      file_.reset();
    }
  }
  if (status.ok() && sync) {
    std::vector<Record> rest = TakeSynced(end, segment_bytes_);
    done.insert(done.end(), std::make_move_iterator(rest.begin()),
                std::make_move_iterator(rest.end()));
  }

  mu_.lock();
  if (status.ok()) {
    written_ = std::max(written_, end);
    if (sync) synced_ = std::max(synced_, end);
  }
  if (status.Is(Code::kAborted)) fenced_ = status;
  if (!done.empty()) synced_ = std::max(synced_, done.back().index);
  Recycle(std::move(done));
  if (beside_.joinable() && unsynced_bytes_ >= options_.max_unsynced_bytes / kBesideShare) {
    beside_due_ = true;
    beside_changed_.NotifyAll();
  }
  outcome_ = status;
  leading_ = false;
  ++rounds_;
  changed_.NotifyAll();
}

void Journal::SyncBeside() {
  MutexLock hold(&mu_);
  for (;;) {
    while (!closing_ && !beside_due_) beside_changed_.Wait(&mu_);
    if (closing_) return;
    beside_due_ = false;
    SyncOnceBeside();
  }
}

void Journal::SyncOnceBeside() {
  while (leading_) changed_.Wait(&mu_);
  const std::shared_ptr<AppendObject> file = file_;
  const std::uint64_t index = written_;
  const std::uint64_t bytes = segment_bytes_;
  if (file == nullptr || unsynced_.empty()) return;
  mu_.unlock();
  const Status synced = file->Sync("journal records");
  mu_.lock();
  while (leading_) changed_.Wait(&mu_);
  // Condemned, or full and synced, meanwhile: whoever did it has seen to its records.
  if (file_ != file) return;
  if (!synced.ok()) {
    file_.reset();  // everything in doubt goes into a new segment
    return;
  }
  synced_ = std::max(synced_, index);
  Recycle(TakeSynced(index, bytes));
}

Status Journal::Replay(std::uint64_t from, const Visitor& visit) {
  ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, ListSegments());
  std::uint64_t newest = 0;
  {
    MutexLock hold(&mu_);
    newest = written_;
  }
  if (options_.sync_beside) RETURN_IF_ERROR(Sync());
  std::string current;
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool last = i + 1 == numbers.size();
    if (i == 0) {
      ASSIGN_OR_RETURN(current, options_.store->Get(NameOf(numbers[i]), kMaxSegmentBytes));
    }
    std::string next;
    std::uint64_t limit = current.size();
    if (!last) {
      ASSIGN_OR_RETURN(next, options_.store->Get(NameOf(numbers[i + 1]), kMaxSegmentBytes));
      ASSIGN_OR_RETURN(const SegmentHeader header, DecodeSegmentHeader(next));
      limit = header.previous_bytes;
    }
    ASSIGN_OR_RETURN(const SegmentContents contents, ReadSegment(current, limit, last));
    if (expected != 0 && contents.header.first_index != expected) {
      return CorruptionError(fmt::format("journal: segment {} begins with record {} instead of {}",
                                         numbers[i], contents.header.first_index, expected));
    }
    for (const Frame& frame : contents.frames) {
      if (frame.index < from || frame.index > newest) continue;
      RETURN_IF_ERROR(visit(frame.index, frame.payload));
    }
    expected = contents.header.first_index + contents.frames.size();
    current = std::move(next);
  }
  return Status::Ok();
}

Status Journal::DropBefore(std::uint64_t index) {
  ASSIGN_OR_RETURN(const std::vector<std::uint64_t> numbers, ListSegments());
  // A segment may go when the next one begins at or below `index`; oldest first, so that a crash
  // leaves no gap.
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    ASSIGN_OR_RETURN(auto reader, options_.store->OpenReader(NameOf(numbers[i + 1])));
    std::string head(kSegmentHeaderBytes, '\0');
    RETURN_IF_ERROR(reader->Read(0, std::as_writable_bytes(std::span(head))));
    ASSIGN_OR_RETURN(const SegmentHeader header, DecodeSegmentHeader(head));
    if (header.first_index > index) break;
    RETURN_IF_ERROR(options_.store->Delete(NameOf(numbers[i])));
    RETURN_IF_ERROR(options_.store->SyncNames(options_.prefix, "dropped segment"));
  }
  return Status::Ok();
}

std::uint64_t Journal::last_index() const {
  MutexLock hold(&mu_);
  return last_;
}

std::uint64_t Journal::durable_index() const {
  MutexLock hold(&mu_);
  return synced_;
}

}  // namespace cairn
