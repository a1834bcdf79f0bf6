#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/environment.h"
#include "format/manifest.h"
#include "format/records.h"
#include "storage/store.h"

namespace cairn {

/// A checkpoint directory as a reader sees it.
struct Checkpoint {
  std::string directory;  // inside the repository; never trusted for identity or step
  std::shared_ptr<const Manifest> manifest;  // shared: immutable, kept by plans and lists
  std::vector<NoteRecord> notes;             // by number
  bool counts = false;                       // by the newest seal (docs/protocol.md)
  bool foreign = false;                      // of another job
  bool pinned = false;
  bool removed = false;           // a valid remove note
  bool reported_damaged = false;  // one of several participants could not restore it

  /// The manifest's metrics with late scores laid over them.
  Value Metrics() const;
};

struct DamagedCheckpoint {
  std::string directory;
  Status status;
  /// The store did not give its records (EIO, a lack of rights): they may be whole, and be read
  /// again one day. Only under a name of ours; what is someone else's is passed over.
  bool unread = false;
};

/// All that one pass over a repository found.
struct RepositoryView {
  RepositoryRecord record;
  std::uint64_t newest_fence = 0;            // 0: none
  std::optional<SealRecord> newest_seal;     // of the newest sealed generation
  std::vector<std::uint64_t> unsealed;       // fences above that seal, neither sealed nor closed
  std::vector<Checkpoint> checkpoints;       // by (generation, sequence)
  std::vector<DamagedCheckpoint> damaged;    // a manifest that cannot be read
  std::vector<std::string> damaged_records;  // of generations, also lost ones
  std::vector<std::string> unfinished;       // directories with engine files but no manifest

  /// The checkpoint with the greatest (generation, sequence) that counts; null when there is none.
  const Checkpoint* Latest() const;
  /// Null when there is none. Of an original and copies of it that somebody made: the original.
  const Checkpoint* Find(std::string_view id) const;
  /// OK, or an error that names what was not read, and the remedy. For who would act on the absence
  /// of a checkpoint: a seal, or a register, must not leave one out over an error that passes.
  Status CheckAllRead() const;
};

/// What a pass over a repository is for.
enum class ReadFor : std::uint8_t {
  /// What it finds was there while it looked; some of it may be gone by the end.
  kReading,
  /// Also: of what it finds nothing was being removed when it began, as far as the remover can
  /// still go on; and it fails where a record of ours cannot be read, which readers count as
  /// damaged. For who seals or sweeps by it. Dearer where manifests are read from shelves.
  kOwning,
};

/// Reads a repository; needs no ownership, changes nothing. May be used from several threads.
class RepositoryReader {
 public:
  /// `rules`: what a test switches off.
  explicit RepositoryReader(Store* store, const ProtocolRules& rules = {})
      : store_(store), rules_(rules) {}

  /// NotFound when the directory is no repository (no cairn.json and no fence). One that is lost,
  /// damaged or (for readers) cannot be read is put together from the other records.
  Result<RepositoryRecord> ReadRecord(ReadFor purpose = ReadFor::kReading);
  /// For who makes a repository where there is none. InvalidArgument when it is the directory of a
  /// checkpoint: whoever took it for a repository would find nothing there, and begin anew.
  Status RefuseCheckpoint();
  /// One consistent pass: when a new seal appears meanwhile, or a commit beside a removal, it is
  /// read again. Whatever was acknowledged before and is not removed is in it, or something newer.
  Result<RepositoryView> Read(ReadFor purpose = ReadFor::kReading);
  Result<std::uint64_t> NewestFence();
  Result<Manifest> ReadManifest(const std::string& directory);
  /// All notes that lie in a directory, by number.
  Result<std::vector<NoteRecord>> ReadNotes(const std::string& directory);
  /// Those about the checkpoint `id`. A writer that was overtaken, or a tool that was slow, may put
  /// its note under a name that meanwhile belongs to another checkpoint.
  Result<std::vector<NoteRecord>> ReadNotes(const std::string& directory, std::string_view id);

 private:
  /// What lies in one directory.
  struct Found {
    Result<Manifest> manifest = NotFoundError("not looked for");
    bool ours = true;  // false: something else of that name, and nothing of the engine's beside it
    Result<std::vector<NoteRecord>> notes = std::vector<NoteRecord>();
  };
  Found Look(const std::string& directory, ReadFor purpose);
  /// `ours`: set for one that is damaged; may be null.
  Result<Manifest> ReadManifest(const std::string& directory, bool* ours);
  /// `unread_are_pins`: as damaged ones are.
  Result<std::vector<NoteRecord>> ReadNotes(const std::string& directory, bool unread_are_pins);
  /// Puts what lies in one directory into the view.
  Status Add(const std::string& directory, Found found, RepositoryView* view) const;
  std::vector<NoteRecord> NotesAbout(std::string_view id, std::vector<NoteRecord> notes) const;
  Result<bool> HasMoved(const Listing& root, const std::vector<std::string>& unfinished);

  Store* const store_;
  const ProtocolRules rules_;
};

CheckpointInfo MakeInfo(const Store& store, const Checkpoint& checkpoint);

inline constexpr std::uint64_t kMaxRecordBytes = 64u << 20;
inline constexpr std::uint64_t kMaxManifestBytes = 1u << 30;

}  // namespace cairn
