#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/transfer.h>

#include "checkpoint/environment.h"
#include "checkpoint/file_writer.h"
#include "checkpoint/generation.h"
#include "checkpoint/layout.h"
#include "checkpoint/repository.h"
#include "checkpoint/stored_bytes.h"

namespace cairn {

struct BriefOptions {
  std::string job;        // recorded when the repository is fresh; of an existing one the job stays
  bool takeover = false;  // fence a living writer out
  std::function<bool(const MarkerRecord&)> spare = nullptr;  // see GenerationOptions
};
/// Opens the repository for writing, alone and as long as the object lives.
Result<std::unique_ptr<Generation>> OpenBriefly(const Environment& env, BriefOptions options);
/// The same as a tool does: Unavailable, naming it, where a writer lives or may live.
Result<std::unique_ptr<Generation>> OpenForTool(const Environment& env, BriefOptions options);

/// The run that owned the repository last; 0 when there was none. A tool acts for that run, and so
/// is not refused as an older one.
Result<std::uint64_t> NewestRun(const Environment& env);

/// Files of a checkpoint in the making, and where their bytes come from. Built by one thread, used
/// once.
class IncomingFiles {
 public:
  /// A stored file as it is. `hash` must be what arrives. `left`: names in the target under which
  /// copies that were cut short may have left it already.
  void AddCopy(std::string path, std::string part, const FileHash& hash,
               std::unique_ptr<TensorSource> source, std::vector<std::string> left = {});
  /// A small file.
  void AddBytes(std::string path, std::string part, std::string bytes);
  /// A safetensors file: `head`, then the entries' bytes, each from the source of the same number.
  void AddTensors(std::string path, std::string part, std::string head,
                  const std::vector<TensorEntry>& entries,
                  std::vector<std::unique_ptr<TensorSource>> sources);
  /// A file that the target has already under another name.
  void AddShared(ManifestFile file) { shared_.push_back(std::move(file)); }

  std::uint64_t bytes() const { return plan_.total_bytes; }
  /// Takes over what earlier copies left, so that it need not be written: in object stores what is
  /// there (MarkerRecord::copies says why that is enough), on disks after a look at every byte. The
  /// manifest entries of what was taken.
  Result<std::vector<ManifestFile>> Adopt(const Environment& env, const std::string& directory,
                                          const TransferControl& control,
                                          std::vector<std::string>* created);
  /// Goes on with files that earlier copies left unfinished, where they left them, and then takes
  /// those over as well: on disks and HDFS after a look at every byte that is there, in buckets
  /// where the server's checksum of a part is that of the bytes read from the source.
  /// `bytes_kept`: what did not have to be written. What cannot be resumed is left to Write.
  Result<std::vector<ManifestFile>> Resume(const Environment& env, const std::string& directory,
                                           const TransferControl& control,
                                           std::vector<std::string>* created,
                                           std::uint64_t* bytes_kept);
  /// What writing them takes; with `links` what earlier copies left takes none.
  std::uint64_t RoomNeeded(bool links) const;
  const SavePlan& plan() const { return plan_; }

  /// Writes the files into `directory` of the store, durably, and gives their manifest entries
  /// (without the shared ones). Corruption when a copied file's bytes are not those of its hash.
  /// `created`: every name made, also on failure.
  Result<std::vector<ManifestFile>> Write(const Environment& env, const std::string& directory,
                                          const TransferControl& control,
                                          std::vector<std::string>* created);
  const std::vector<ManifestFile>& shared() const { return shared_; }

  /// The id of the checkpoint of which all these files are copies; "": they are not.
  std::string copies;
  /// For progress over several checkpoints: how many bytes came before, and how many there are.
  std::uint64_t progress_before = 0;
  std::uint64_t progress_total = 0;

 private:
  PlannedFile* Add(std::string path, std::string part, std::uint64_t bytes,
                   const FileHash* expected);
  /// Files that were left unfinished, by the directory they were left in.
  Result<std::map<std::string, std::vector<std::size_t>>> FindUnfinished(const Environment& env);
  /// Writes the files of `plan`, which is this one's or a part of it.
  Status WriteSome(const Environment& env, const SavePlan& plan,
                   const std::vector<std::optional<FileHash>>& expected,
                   const std::string& directory, bool resume, const TransferControl& control,
                   WriteProgress* progress, WrittenFiles* written);
  /// Takes files out of the plan, as manifest entries. `numbers` ascend.
  std::vector<ManifestFile> TakeOut(const std::vector<std::size_t>& numbers);

  SavePlan plan_;
  SaveRequest request_;  // its tensors are the sources of the plan
  std::vector<std::unique_ptr<TensorSource>> sources_;
  std::vector<std::string> parts_;                 // by number of the plan's file
  std::vector<std::optional<FileHash>> expected_;  // likewise
  std::vector<std::vector<std::string>> left_;     // likewise
  std::vector<ManifestFile> shared_;
};

/// Whether the object has the bytes of the hash, from chunk `first` on. `cancelled` is asked after
/// every few megabytes.
Result<bool> HasBytes(Store* store, const std::string& name, const FileHash& hash,
                      std::size_t first = 0, const std::function<bool()>& cancelled = nullptr);

/// Commits checkpoints that come from elsewhere into a repository that is open for writing, as one
/// participant saves (docs/protocol.md, "Saving"). For one thread. A failed commit leaves the
/// repository as it was; one of a copy that was cut short leaves the files that have arrived, for
/// the next one or the next sweep.
class IncomingCommitter {
 public:
  /// Both outlive this object.
  static Result<std::unique_ptr<IncomingCommitter>> Open(const Environment& env,
                                                         Generation* generation);

  /// The location of a file with these bytes that a new checkpoint may share, or "". On disks every
  /// byte of it was looked at, once: a second name of a file that has rotted would be a checkpoint
  /// that was damaged from the beginning, and as a copy it would pass for a good one.
  Result<std::string> Shareable(const FileHash& hash, const TransferControl& control);

  /// Writes the files and publishes the manifest. Its generation, sequence, attempt, job and files
  /// are filled in here; `directory` is the name wished for. With `keep_place` generation and
  /// sequence stay, and the manifest says that this generation committed it.
  Result<Checkpoint> Commit(Manifest manifest, const std::string& directory, IncomingFiles files,
                            bool rebuild_index, const TransferControl& control,
                            bool keep_place = false);

  /// Of the last commit: bytes that an earlier copy had left.
  std::uint64_t bytes_adopted() const { return bytes_adopted_; }
  /// The newest checkpoint that counts, or null.
  const Checkpoint* Latest() const { return checkpoints_.empty() ? nullptr : &checkpoints_.back(); }
  /// All that count, those committed here last.
  const std::vector<Checkpoint>& checkpoints() const { return checkpoints_; }

 private:
  IncomingCommitter(const Environment& env, Generation* generation)
      : env_(env), generation_(generation) {}

  /// Whether a file is what its manifest says; says so where it is not.
  Result<bool> IsIntact(const std::string& location, const FileHash& hash,
                        const TransferControl& control);
  Result<std::string> Claim(const std::string& wish, const MarkerRecord& marker);
  Status Fill(const std::string& directory, IncomingFiles* files, bool rebuild_index,
              const TransferControl& control, Manifest* manifest,
              std::vector<std::string>* created);
  Status ShareFiles(const std::string& directory, const std::vector<ManifestFile>& files,
                    Manifest* manifest, std::vector<std::string>* created);
  Status WriteIndex(const std::string& directory, Manifest* manifest,
                    std::vector<std::string>* created);
  void CleanUp(const std::string& directory, const std::vector<std::string>& created);

  const Environment& env_;
  Generation* const generation_;
  std::vector<Checkpoint> checkpoints_;  // those that count, oldest first
  std::set<std::string> directories_;
  std::map<std::string, bool> intact_;  // by location: what was looked at, or written just now
  std::uint64_t sequence_ = 0;
  std::uint64_t bytes_adopted_ = 0;
};

/// A path for a manifest's lineage, which is for people; "" when it is not text that JSON can hold.
std::string LineagePath(const std::string& path);

/// ResourceExhausted when the store is known to have less room.
Status CheckRoom(const Environment& env, std::uint64_t bytes);

/// The checkpoint that the choice means: of a step the newest that counts; by id also a foreign
/// one. NotFound says which steps there are.
Result<const Checkpoint*> Choose(const RepositoryView& view, const std::string& where,
                                 const CheckpointChoice& choice);

// What the public functions do, over any store.
Result<ExportReport> ExportFrom(Store* store, const Checkpoint& checkpoint, const std::string& out,
                                const TransferControl& control);
Result<CopyReport> CopyInto(const Environment& source, const RepositoryView& view,
                            const std::vector<const Checkpoint*>& chosen, const Environment& target,
                            const CopyRequest& request, const TransferControl& control);
/// The checkpoints that a request means, with the bases they need, oldest first.
Result<std::vector<const Checkpoint*>> ChooseForCopy(const RepositoryView& view,
                                                     const std::string& where,
                                                     const CopyRequest& request);
/// The part of each rank for one step.
struct MergePart {
  Environment env;
  Checkpoint checkpoint;
  std::string participant;
  std::vector<Checkpoint> below;  // what an increment builds on, the full one first
};
Result<std::vector<MergePart>> ChooseForMerge(const std::vector<Environment>& parts,
                                              const MergeRequest& request);
Result<MergeReport> MergeInto(std::vector<MergePart> parts, const Environment& target,
                              const MergeRequest& request, const TransferControl& control);
Result<GarbageReport> CollectGarbageIn(const Environment& env, bool takeover = false);
Result<CompactReport> CompactIn(const Environment& env, const CheckpointChoice& choice,
                                const TransferControl& control, bool takeover = false);
/// The files of a restore point but for its tables: shared where the target has them already.
Status AddOtherFiles(const OpenCheckpoint& open, StoredBytes* bytes, IncomingCommitter* committer,
                     IncomingFiles* files, const TransferControl& control);

}  // namespace cairn
