#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "checkpoint/attempt.h"
#include "checkpoint/chain.h"
#include "checkpoint/environment.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/generation.h"
#include "checkpoint/publish_manifest.h"
#include "checkpoint/retention.h"
#include "checkpoint/save_task.h"

namespace cairn {

struct CommitterOptions {
  std::vector<std::string> participants;  // the first commits
  std::size_t self = 0;
  int rank = 0;
  int world_size = 1;
  bool private_parts = false;
  bool serial_names = false;
  Retention retention;
  std::chrono::nanoseconds deadline = std::chrono::seconds(600);
  std::uint64_t pool_bytes = 0;
  std::uint64_t recycle_from_bytes = 1u << 20;
  WriteMode mode = WriteMode::kAuto;
};

/// Turns planned and copied saves into committed checkpoints, and removes those that retention no
/// longer wants. For one thread at a time. A failed commit leaves the repository as it was.
class Committer {
 public:
  static Result<std::unique_ptr<Committer>> Open(const Environment& env, Generation* generation,
                                                 CommitterOptions options);

  /// Writes this participant's files and takes part in the commit; returns when the checkpoint is
  /// durable and may be acknowledged. `arena` holds the snapshot (null: everything is streamed).
  Result<CheckpointInfo> Commit(const SaveTask& task, const std::byte* arena);
  /// With several participants: this one has nothing for the attempt, and tells the others. The one
  /// that commits may call it beside Commit.
  Status Decline(const SaveTask& task);
  /// The others: whether the one that commits has said that it skips the attempt, or that it makes
  /// it; nothing while it has said neither. One look, which may be made beside Commit.
  Result<std::optional<bool>> IsSkipped(std::uint64_t number) const;

  /// Goes on when one of them cannot be removed; the error is then that one's.
  Status ApplyRetention();
  /// Reads the notes again: late scores and pins.
  Status Reload();
  Status Delete(const std::string& id);

  /// The number of the newest attempt that is decided; 0 at the start of a generation.
  Result<std::uint64_t> LastDecidedAttempt();

  /// That checkpoint was restored: the branch goes on from it.
  void GoOnFrom(const Manifest& manifest);
  /// That checkpoint could not be read: retention does not count it among those that are kept,
  /// until it is restored after all.
  void Distrust(const std::string& id) { distrusted_.insert(id); }
  /// A state from elsewhere was restored: the branch has no base until the next full save.
  void LeaveBranch() { base_.clear(); }
  /// FailedPrecondition, saying what to do, when an increment has nothing to build on.
  Status CheckIncrement(const SaveRequest& request) const;
  /// Fenced when a newer writer may be the reason of a failed save; otherwise the failure.
  Status WhyFailed(const Status& failure);
  const SaveHistory& history() const { return history_; }
  /// Another one whenever history() marks other tensors as changed.
  std::uint64_t history_version() const { return history_version_; }
  std::uint64_t pooled_bytes() const;
  /// Of all checkpoints that count; what they share is counted once for each.
  std::uint64_t kept_bytes() const;

  /// Whether the other participants wait for a word that could not be written: on a disk that is
  /// full, what became of a save.
  bool owes_word() const EXCLUDES(owed_mu_) {
    MutexLock lock(&owed_mu_);
    return !owed_.empty();
  }
  /// Tries to write it once more.
  void SayOwed() EXCLUDES(owed_mu_);

 private:
  Committer(const Environment& env, Generation* generation, CommitterOptions options)
      : env_(env), generation_(generation), options_(std::move(options)) {}

  bool collective() const { return options_.participants.size() > 1; }
  bool committing() const { return options_.self == 0; }
  const std::string& self() const { return options_.participants[options_.self]; }

  Result<Manifest> CommitAlone(const SaveTask& task, const std::byte* arena,
                               std::string* directory);
  Result<Manifest> CommitTogether(const SaveTask& task, const std::byte* arena,
                                  std::string* directory);
  Result<Manifest> Join(const SaveTask& task, const std::byte* arena, std::string* directory);
  Result<Manifest> TakePart(const SaveTask& task, const std::byte* arena, std::string* directory);
  using WhenHanded = decltype(FileWriterInput::when_handed);
  Status Write(const SaveTask& task, const std::byte* arena, const std::string& directory,
               WrittenFiles* written, const std::string& marker = "",
               const WhenHanded& when_handed = nullptr);
  /// The checkpoint whose files the next one may share; null: there is none.
  const Checkpoint* SharedFrom() const;
  Status AnnounceSkipped(std::uint64_t number, std::int64_t step);
  Attempt NewAttempt();
  /// To the other participants; owed to them when it cannot be written now.
  Status Say(std::function<Status()> word) EXCLUDES(owed_mu_);
  void Owe(std::function<Status()> word) EXCLUDES(owed_mu_);
  /// The committer's: the save is skipped.
  Status SaySkipped(const SaveTask& task);
  /// Another participant's: the save is given up.
  Status SayThatNothingComes(Attempt* attempt, const AttemptRecord& record);
  /// FailedPrecondition when the committer saves another kind, or builds on another checkpoint.
  Status CheckAgreed(const SaveTask& task, const AttemptRecord& record) const;
  Status WriteIndex(const std::string& directory, std::vector<ManifestFile>* files);
  /// Remembers a commit whose outcome is unknown.
  Status Publish(const std::string& directory, const Manifest& manifest, Commitment* commitment,
                 PreparedObject* prepared = nullptr);
  Manifest NewManifest(const SaveTask& task, std::string attempt);
  std::string NextDirectory(const SaveTask& task, int* copy);
  /// The last look before a commit is acknowledged.
  Status CheckFence();
  /// Takes a manifest out of a repository that is not ours any more, where it would count.
  void TakeBack(const Checkpoint& checkpoint);
  void CleanUp(const std::string& directory, const std::vector<std::string>& created);
  void DeleteDataBelow(const std::string& prefix);
  /// A participant's: whether files that it was writing are gone, and nobody but the committer, in
  /// cleaning up, can have deleted them.
  bool WasDeletedUnderWay(const WrittenFiles& written) const;
  void Learn(SaveHistory written);
  void Remember(Checkpoint checkpoint);
  /// The files that checkpoints other than `except` refer to in other directories.
  std::vector<std::string> Referenced(std::string_view except) const;
  /// `by_score`: because others have better ones; not when it has new ones.
  Status Remove(const Checkpoint& checkpoint, bool by_score, bool* removed);
  void ForgetWhatWasGivenUp();
  /// No restore point, as far as is known.
  bool Doubted(const Checkpoint& checkpoint) const;
  std::vector<RetentionItem> RetentionItems(const ChainIndex& index) const;
  std::vector<Checkpoint>::iterator FindById(std::string_view id);
  /// `again`: one of them was pinned meanwhile; choose once more.
  Status RemoveSuperfluous(bool* again);
  Status RereadNotes(Checkpoint* checkpoint);

  const Environment& env_;
  Generation* const generation_;
  const CommitterOptions options_;
  std::vector<Checkpoint> checkpoints_;  // those that count, oldest first
  std::vector<Checkpoint> uncertain_;    // newer ones that may count: their publish failed
  std::set<std::string> directories_;    // names taken, as far as we know
  std::vector<Checkpoint> leftovers_;    // removed ones with files that others refer to
  std::set<std::string> distrusted_;     // ids that a restore of this process passed over
  std::string newest_own_;               // id of the last one that this process committed
  /// A checkpoint that could not be removed.
  struct Stuck {
    Status status;
    int failures = 0;
    std::uint64_t again_at = 0;  // the pass that tries it again
  };
  std::map<std::string, Stuck> stuck_;  // by id
  std::uint64_t pass_ = 0;              // of retention
  std::size_t since_shelves_ = 0;       // passes since shelves were looked at
  std::int64_t next_serial_ = 0;
  std::uint64_t sequence_ = 0;
  std::string parent_;  // the checkpoint that the branch goes on from; "": none
  std::string base_;    // the full one below it, or itself
  SaveHistory history_;
  std::uint64_t history_version_ = 0;
  StreamRing ring_;
  std::vector<ObjectInfo> pool_;
  std::uint64_t last_bytes_ = 0;
  bool lost_ = false;      // the last look at the fences did not show that the repository is ours
  mutable Mutex owed_mu_;  // saves are declined beside the thread that commits
  /// Words that could not be written; see owes_word.
  std::vector<std::function<Status()>> owed_ GUARDED_BY(owed_mu_);
};

}  // namespace cairn
