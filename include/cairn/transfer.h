#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

/// Moving checkpoints in and out of repositories: plain safetensors directories, other
/// repositories, and the private parts of trainers that shared no directory. What writes into a
/// repository owns it meanwhile: Unavailable, naming host and process, while a writer lives there.
/// In buckets and in HDFS, which have no locks, one lives that has not closed the repository,
/// unless it was a process of this machine and is gone. `takeover` goes on all the same: a writer
/// that does live is fenced out, and can finish nothing. A failure, a cancellation or a crash
/// leaves nothing half-done: a checkpoint is there whole or not at all.
namespace cairn {

/// How long work reports and ends early.
struct TransferControl {
  Progress progress;
  /// Asked after every few megabytes; true ends the work with Cancelled.
  std::function<bool()> cancelled;
};

/// One of a repository's checkpoints: by step (the newest of that step) or by id; else the latest.
struct CheckpointChoice {
  std::optional<std::int64_t> step;
  std::string id;
};

struct ExportReport {
  CheckpointInfo info;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;            // written
  std::vector<std::string> files;     // in the new directory
  std::vector<std::string> left_out;  // the trainers' own state, which other tools cannot use
};
/// Writes a checkpoint (its directory) as a plain directory that any safetensors tool opens:
/// model.safetensors, or model-00001-of-0000n.safetensors, with model.safetensors.index.json;
/// tables under __lookup_table__/; the user's files under their own names. Pieces of distributed
/// arrays are put together, and so are the rows of an increment and of what it builds on. `out`
/// must not exist or be an empty directory; it appears whole or not at all. It may be the URL of a
/// bucket's prefix or of a directory in HDFS: there the files appear one after the other, the index
/// last, and what a crash leaves must be removed by hand.
Result<ExportReport> ExportCheckpoint(const std::string& checkpoint, const std::string& out,
                                      const TransferControl& control = {});

struct ImportRequest {
  std::string source;  // a .safetensors file, or a directory of them: a path or URL
  std::string directory;
  std::int64_t step = 0;
  bool files = true;  // a directory's other files become the checkpoint's files
  bool takeover = false;
};
struct ImportReport {
  CheckpointInfo info;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> files;
  std::vector<std::pair<std::string, std::string>> skipped;  // (file, reason)
};
/// Commits plain safetensors files as a checkpoint. Memory stays small whatever their size.
Result<ImportReport> ImportCheckpoint(const ImportRequest& request,
                                      const TransferControl& control = {});

struct CopyRequest {
  std::string source;  // a repository
  std::string target;  // another one; made when missing, then of the same job
  std::vector<CheckpointChoice> choices = {{}};
  bool all = false;       // every one that counts, instead of `choices`
  bool adopt = false;     // the target may be another job's: the copies become that job's own
  bool takeover = false;  // of the target
};
struct CopyReport {
  std::vector<CheckpointInfo> copied;
  std::vector<CheckpointInfo> already_there;
  std::vector<std::string> vanished;  // removed from the source meanwhile
  std::uint64_t bytes = 0;            // written
  std::uint64_t bytes_shared = 0;     // linked instead: the target had the file already
  std::uint64_t bytes_resumed = 0;    // left by a copy that was cut short, and taken over
};
/// Copies checkpoints into another repository, oldest first, with the bases that they need. Id,
/// step, metrics (late ones too), metadata, time and every file's bytes stay; generation and
/// sequence are the target's, so the last copy is the latest there. Every byte is compared with its
/// checksum on the way. Those that are there already are passed over, and of one that was being
/// copied the files that had arrived, so that a copy that was cut short is simply started again.
Result<CopyReport> CopyCheckpoints(const CopyRequest& request, const TransferControl& control = {});

struct MergeRequest {
  std::vector<std::string> parts;  // one repository per rank, in any order
  std::string target;
  std::optional<std::int64_t> step;  // instead of the newest that all have
  /// User files that differ between ranks are kept as <participant>/<name>; otherwise they are
  /// refused.
  bool separate_files = false;
  bool takeover = false;  // of the target
};
struct MergeReport {
  CheckpointInfo info;
  bool already_there = false;
  std::uint64_t bytes = 0;
  std::uint64_t deduplicated = 0;          // bytes of tensors that several ranks had alike
  std::vector<std::string> renamed_files;  // by separate_files
};
/// Makes one checkpoint of what the ranks saved with private_parts into repositories of their own,
/// all at one step. NotFound, naming rank and step, when a part is missing.
Result<MergeReport> MergeCheckpoints(const MergeRequest& request,
                                     const TransferControl& control = {});

struct CompactReport {
  CheckpointInfo info;             // the new full one, or the one that was full already
  bool already_full = false;       // nothing had to be done
  std::vector<std::string> chain;  // ids that were put together, the full one first
  bool replaced_removed = false;   // the increment that it takes the place of is gone
  std::uint64_t bytes = 0;         // written
};
/// Puts an increment and all that it builds on together into one full checkpoint of the same step,
/// which takes the increment's place: it is as old, keeps its pin, and increments that were saved
/// on top of it stand on the full one from now on. Restored, it gives the same bits. The increment
/// is removed; what else the chain had is left to the retention of the next training. Memory stays
/// small: the keys of one shard at a time.
Result<CompactReport> CompactCheckpoint(const std::string& directory,
                                        const CheckpointChoice& choice = {},
                                        const TransferControl& control = {}, bool takeover = false);
/// A directory without files is kept as an empty file of this name in it.
inline constexpr char kEmptyDirectory[] = ".cairn-empty-directory";

/// The names of the user's own files in a checkpoint (its directory or URL).
Result<std::vector<std::string>> UserFilesOf(const std::string& checkpoint);
/// Fetches one of them to a local path, compared with its checksum. A failure may leave a part of
/// it there. `progress` is told how many bytes of it were read.
Status FetchUserFile(const std::string& checkpoint, const std::string& name,
                     const std::string& path, const Progress& progress = {});

enum class FetchHow : std::uint8_t {
  kCopy,
  /// Hard links to the checkpoint's own files where it is on the same disk, copies elsewhere (and
  /// of small files): no byte is written, and the files stay when the checkpoint is removed. For
  /// those who only read: a write would change the checkpoint.
  kLink,
  kCheck,  // compares with the checksums; nothing is made
};
/// Brings files of a checkpoint into a directory, which is made, compared with their checksums on
/// the way. Of an empty directory that is kept, the directory is made. A failure may leave some of
/// them there. `progress` is told how many bytes of them all were read; nothing more is written
/// when it has ended the work.
Status FetchUserFiles(const std::string& checkpoint, const std::vector<std::string>& names,
                      const std::string& directory, FetchHow how, const Progress& progress = {});

struct GarbageReport {
  struct Item {
    std::string name;  // inside the repository
    std::string what;  // "unfinished save", "superseded checkpoint", "recycled files", …
    std::uint64_t bytes = 0;
  };
  std::vector<Item> removed;
  std::uint64_t bytes = 0;
};
/// Sweeps what crashes left in a repository: unfinished saves, checkpoints that no longer count,
/// pools of recycled files. Opening it for writing does the same.
Result<GarbageReport> CollectGarbage(const std::string& directory, bool takeover = false);

}  // namespace cairn
