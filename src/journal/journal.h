#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "base/ids.h"
#include "base/thread_annotations.h"
#include "format/journal_frames.h"
#include "journal/record_buffer.h"
#include "storage/append_object.h"
#include "storage/store.h"

namespace cairn {

/// What holds of a record when Append returned.
enum class Durability : std::uint8_t {
  kWritten,  // survives the death of the process
  kSynced,   // survives the death of the machine
};

struct JournalOptions {
  /// Where the segments are. Borrowed.
  Store* store = nullptr;
  /// The journal's directory in the store, as "log/ps_0"; its own, nothing else lies there.
  std::string prefix;
  /// A segment that has grown beyond this is followed by a new one. Smaller ones free space sooner
  /// (DropBefore removes whole segments), larger ones cost fewer files.
  std::uint64_t segment_bytes = 16u << 20;
  /// So many bytes may be written and not synced, whatever level callers ask for; they are kept in
  /// memory too. Reached: the next append syncs.
  std::uint64_t max_unsynced_bytes = 8u << 20;
  /// A thread of the journal syncs what was only written, long before that limit is reached, while
  /// appends go on. For journals that get much at the level written: nobody waits for the disk
  /// unless it is slower than what comes. Where the store can, what was only written stands in the
  /// file `tail` of the journal's directory, which costs less than to write it to the segment.
  bool sync_beside = false;
  /// Names one opening of the journal. Borrowed.
  IdSource* ids = IdSource::System();

  Status Validate() const;
};

/// An append-only list of records, numbered 1, 2, 3 …, in checksummed segments on a store
/// (docs/format/journal.md).
///
/// One process owns a journal: a second Open is Unavailable where the store has locks; elsewhere it
/// takes over, and the next append of the one before fails with Aborted. Every opening begins a new
/// segment, whose header says how much of the one before counts: a torn tail is cut off for good,
/// and no file is ever changed but at its end. On stores that cannot append, or have no locks, each
/// group of records is one object: only a create-only put can tell an owner that it was replaced.
///
/// May be called from several threads. Records of callers that wait at the same time are written
/// and synced together (group commit): the first of them does the work for all.
///
/// An error of Append or Sync leaves the records in doubt: they keep their numbers, stay in memory
/// and are written again, elsewhere, by the next Append or Sync; after a restart they may be there
/// or not. Aborted is final.
class Journal {
 public:
  using Options = JournalOptions;
  using Visitor = std::function<Status(std::uint64_t index, std::string_view record)>;

  static Result<std::unique_ptr<Journal>> Open(Options options);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Appends the records as neighbours and returns the number of the last. InvalidArgument, with
  /// nothing done, for none or for one of more than kMaxFramePayload bytes.
  Result<std::uint64_t> Append(std::span<const std::string_view> records, Durability level);
  Result<std::uint64_t> Append(std::string_view record, Durability level);
  /// One record of several pieces that follow each other: copied once, into memory that the journal
  /// keeps for records that are not synced yet, and uses again.
  Result<std::uint64_t> AppendJoined(std::span<const std::string_view> pieces, Durability level);
  /// Makes all that was appended before the call durable.
  Status Sync();

  /// Calls `visit` for each written record from number `from` on, in order. An error of the visitor
  /// ends it. Meant for after Open; beside appends it shows what was written when it came there.
  Status Replay(std::uint64_t from, const Visitor& visit);

  /// Records below `index` are no longer needed: removes segments that hold nothing else.
  Status DropBefore(std::uint64_t index);

  /// What stands for the records up to `index`; 0 and "" for nothing.
  struct Summary {
    std::uint64_t index = 0;
    std::string payload;
  };
  /// Puts `payload` in the place of all records up to `index`, which must be durable: it is made
  /// durable before segments are removed. Beside appends; one at a time. A failure, or a crash at
  /// any moment, leaves the old summary, or the new one and records that it stands for too.
  Status Summarize(std::uint64_t index, std::string_view payload);
  /// The newest summary that can be read. Corruption when there are some and none can.
  Result<Summary> ReadSummary();

  /// Numbers of the last appended record, and of the last that is durable; 0 for none.
  std::uint64_t last_index() const;
  std::uint64_t durable_index() const;
  /// Bytes that a crash had left behind the last whole record, cut off by Open.
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  struct Record {
    std::uint64_t index = 0;
    RecordBuffer bytes;
  };

  explicit Journal(Options options);

  std::string NameOf(std::uint64_t number) const;
  std::string TailName() const { return options_.prefix + "/tail"; }
  Result<std::vector<std::uint64_t>> ListSegments() const;
  /// Numbers in the names of objects that end so, sorted.
  Result<std::vector<std::uint64_t>> ListNumbers(std::string_view suffix) const;
  std::string SummaryName(std::uint64_t index) const;
  Status Recover();
  Status TakeOver();
  /// Publishes the segment after the current one with the given records in it.
  Status BeginSegment(std::span<const Record> records, std::uint64_t first_index);
  /// Appends the records to the current segment.
  Status WriteRecords(std::span<Record> records, std::uint64_t durable);
  /// InvalidArgument for more than a frame takes.
  Result<RecordBuffer> MakeBuffer(std::span<const std::string_view> pieces) EXCLUDES(mu_);
  Result<std::uint64_t> Queue(std::vector<RecordBuffer> records, Durability level) EXCLUDES(mu_);
  /// Writes what is queued and, if asked, syncs; the lock is given up meanwhile.
  void Lead(bool sync) REQUIRES(mu_);
  Status Wait(std::uint64_t index, Durability level) REQUIRES(mu_);
  /// Whether the segment is followed by another one now.
  bool SegmentIsFull() const;
  /// Takes what is durable now from `unsynced_`; `bytes`: of the segment, up to there.
  std::vector<Record> TakeSynced(std::uint64_t index, std::uint64_t bytes);
  /// Their memory serves records to come.
  void Recycle(std::vector<Record> records) REQUIRES(mu_);
  /// The thread that syncs beside appends, until `closing_`.
  void SyncBeside() EXCLUDES(mu_);
  /// The lock is given up meanwhile.
  void SyncOnceBeside() REQUIRES(mu_);

  const Options options_;
  AppendingStore* appending_;  // null: each group is an object; set by Open
  std::unique_ptr<StoreLock> lock_;
  std::uint64_t torn_bytes_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool leading_ GUARDED_BY(mu_) = false;
  bool sync_wanted_ GUARDED_BY(mu_) = false;
  std::deque<Record> queued_ GUARDED_BY(mu_);  // not written yet
  std::uint64_t last_ GUARDED_BY(mu_) = 0;
  std::uint64_t written_ GUARDED_BY(mu_) = 0;
  std::uint64_t synced_ GUARDED_BY(mu_) = 0;
  std::uint64_t rounds_ GUARDED_BY(mu_) = 0;         // of Lead that ended, and …
  Status outcome_ GUARDED_BY(mu_);                   // … how the last of them did
  Status fenced_ GUARDED_BY(mu_);                    // final
  std::vector<RecordBuffer> spare_ GUARDED_BY(mu_);  // memory of large records that are durable
  std::uint64_t spare_bytes_ GUARDED_BY(mu_) = 0;
  CondVar beside_changed_;
  bool beside_due_ GUARDED_BY(mu_) = false;  // there is something for SyncBeside to do
  bool closing_ GUARDED_BY(mu_) = false;

  // Of the one thread that leads (or opens), or of who has mu_ while nobody leads.
  SegmentHeader header_;
  // Null: a new segment must be begun. Shared with the thread that syncs it meanwhile.
  std::shared_ptr<AppendObject> file_;
  std::vector<Record> unsynced_;  // written since the last sync
  std::uint64_t unsynced_bytes_ = 0;
  std::uint64_t segment_bytes_ = 0;
  std::uint64_t synced_bytes_ = 0;  // of the current segment

  std::jthread beside_;  // last: it uses the rest
};

}  // namespace cairn
