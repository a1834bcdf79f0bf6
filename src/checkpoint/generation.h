#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/environment.h"
#include "checkpoint/repository.h"
#include "format/records.h"

namespace cairn {

struct DoomedDirectory;

struct GenerationOptions {
  std::string job;  // "" adopts or makes one
  std::uint64_t run = 0;
  bool takeover = false;
  std::vector<std::string> participants;  // all of them; the first is the committer
  std::size_t self = 0;                   // which of them we are
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(30);
  std::function<bool()> cancelled;  // asked while waiting for others
  /// Attempts of older generations that the sweep spares, what is unfinished of them too: the
  /// caller goes on with what they left (Generation::spared), and then calls SweepSpared.
  std::function<bool(const MarkerRecord&)> spare;
  bool ends_with_object = false;  // Release is called at its destruction
};

/// An attempt that the sweep spared.
struct SparedAttempt {
  std::string directory;
  MarkerRecord marker;
};

/// One opening of a repository (docs/protocol.md, "Opening for writing"), by the committer or by
/// one of the others that joined it. Methods may be called from several threads.
class Generation {
 public:
  /// Takes ownership: lock, fence, seal, (with several participants) joins and start record; then
  /// sweeps what older generations left. Errors: Unavailable (a living writer holds the lock),
  /// FailedPrecondition (another job's directory, or a higher run was here), DeadlineExceeded
  /// (participants missing), Aborted (overtaken meanwhile). A failure leaves at most a fence.
  static Result<std::unique_ptr<Generation>> Open(Environment env, GenerationOptions options);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  std::uint64_t number() const { return number_; }
  const std::string& job() const { return job_; }
  const std::string& uuid() const { return uuid_; }
  /// Of the committer's fence.
  const std::string& fence_uuid() const { return options_.self == 0 ? uuid_ : start_.uuid; }
  /// The checkpoints that count, as of the seal; the committer's. Oldest first.
  const std::vector<Checkpoint>& sealed() const { return sealed_; }
  /// Directory names that must not be used again; the committer's.
  const std::set<std::string>& retired() const { return retired_; }
  /// Directories of ours whose manifests are damaged; the opening has warned of them.
  const std::set<std::string>& damaged() const { return damaged_; }
  /// With several participants: what all of them restore ("": nothing).
  const std::string& restore_id() const { return start_.restore; }

  /// True for a participant that was restarted alone and admitted to a running generation.
  bool readmitted() const { return readmitted_; }

  /// OK, or Aborted when a higher fence exists, or what CheckOwn says.
  Status CheckFence() const;
  /// OK, or Aborted when the fence of our number is another's: the directory was deleted and made
  /// again. Unavailable when there is none. One request.
  Status CheckOwn() const;
  /// CheckFence for who looks again and again while it waits: where each look is a request it does
  /// not ask for the own fence, so that it must not acknowledge by it.
  Status CheckOvertaken() const;
  /// A participant's: Aborted, naming it, when another process takes part under our name. For
  /// messages: what it does is not done for us.
  Status CheckPlace() const;

  /// What GenerationOptions::spare said; the committer's. Others may still be deleting there, by
  /// name: nothing may refer to it.
  const std::vector<SparedAttempt>& spared() const { return spared_; }
  /// Sweeps those too. Not while the caller writes.
  Status SweepSpared();

  /// Gives up the lock or, where there are none, says that this opening has ended; that this cannot
  /// be said is logged. The fence stays: only a later opening moves it.
  void Release();

  /// Committer: the uuid of each participant as last admitted. Looks for participants that were
  /// restarted alone and admits them with a further start record restoring `restore_id`.
  Status AdmitRestarted(const std::string& restore_id);
  const std::map<std::string, std::string, std::less<>>& admitted() const {
    return start_.participants;
  }

 private:
  Generation(Environment env, GenerationOptions options)
      : env_(std::move(env)), options_(std::move(options)) {}

  Status JudgeNext(const Result<ObjectInfo>& next) const;
  Status JudgeOwn(const Result<std::string>& own) const;
  /// Whether a record that names that fence is of the generation as it is now.
  Result<bool> IsOfFence(std::uint64_t generation, const std::string& uuid) const;
  /// Unavailable, naming the writer.
  Status HeldByAnother() const;
  /// Unavailable, naming it, unless the process of the newest fence has ended for sure.
  Status CheckEnded(std::uint64_t newest) const;
  void End();

  Status OpenCommitter();
  Status OpenParticipant();
  Status AdoptJob();
  /// `above`: a generation that must stay below ours although its fence is not listed.
  Status PublishFence(std::uint64_t above);
  /// Publishes a record of the opening, on a full disk too if it serves to free room.
  Status PublishToOpen(const std::function<Status()>& publish) const;
  Status PublishSeal();
  /// Makes sure that older openings which have not sealed never do. True when there were such: then
  /// one of them may have sealed just before, and what counts is to be read again.
  Result<bool> CloseOlder(const RepositoryView& view);
  Result<RepositoryView> ReadUnlessOvertaken(RepositoryReader* reader);
  Status Overtaken(const std::string& by) const;
  Status RetireNames(RepositoryReader* reader, const RepositoryView& view);
  Status StartParticipants();
  /// Who the start of this generation names in our place; none when nobody else.
  Result<std::optional<std::string>> PlaceTaker(std::uint64_t generation) const;
  /// Publishes the wish to take part in the generation of the newest fence.
  Status Join(std::uint64_t newest);
  class OldMeetings;
  Status Sweep();
  Status SweepPools();
  Status SweepUnfinished(RepositoryReader* reader, const RepositoryView& view,
                         const std::vector<std::string>& kept, OldMeetings* old,
                         std::set<std::string>* left);
  /// The directory, which has no manifest, if it has or had a mark of the engine, and so is ours to
  /// sweep. `old`: null when it is not known what older generations announced.
  Result<std::optional<DoomedDirectory>> OldAttempt(RepositoryReader* reader,
                                                    const std::string& directory, OldMeetings* old);
  bool IsRetired(const std::string& directory) const {
    return retired_.contains(directory) || !env_.rules.retire_names;
  }
  /// The marker of the directory, when the attempt in it is one that the sweep spares.
  Result<std::optional<MarkerRecord>> ToBeSpared(const std::string& directory);
  Result<std::map<std::string, std::string, std::less<>>> ReadJoins(std::uint64_t generation);
  /// The participants but the committer whose joins are not there.
  std::vector<std::string> Missing(const std::map<std::string, std::string, std::less<>>& joins);

  const Environment env_;
  GenerationOptions options_;
  std::unique_ptr<StoreLock> lock_;
  bool lockless_ = false;  // the committer's: the store has no locks
  bool ended_ = false;
  pid_t opener_ = 0;  // really, whatever env_ says
  std::uint64_t number_ = 0;
  std::uint64_t start_number_ = 0;
  std::string uuid_;
  std::string job_;
  std::vector<Checkpoint> sealed_;
  std::set<std::string> retired_;
  std::set<std::string> ours_;  // of them: what is there is the engine's (SealRecord)
  std::set<std::string> damaged_;
  std::vector<SparedAttempt> spared_;
  StartRecord start_;
  std::optional<std::uint64_t> joined_;  // the fence that our join answers
  bool readmitted_ = false;
};

/// A directory of a checkpoint that is to go.
struct DoomedDirectory {
  std::string directory;
  std::string id;  // of the manifest that may be in it; "": of an attempt, which has none
  std::set<std::string, std::less<>> participants;  // who have a directory in it
  std::string kind;  // "worker_": of participants, should it not be known who they were
};
DoomedDirectory Doom(const Checkpoint& checkpoint);

/// Deletes what the engine wrote in a checkpoint's directory: the manifest first, then everything
/// but `kept` (paths inside the repository that other checkpoints refer to), then the marks that
/// say whose it was, then the empty directories. Files of others stay. Missing ones are no error.
/// False, and nothing done, when a manifest lies there that is not meant: names are used again.
Result<bool> DeleteCheckpointDirectory(Store* store, DoomedDirectory doomed,
                                       const std::vector<std::string>& kept);
/// One deletion failed, and the next may succeed: neither the store nor the ownership is to blame.
bool IsOfThisOneAlone(const Status& status);

}  // namespace cairn
