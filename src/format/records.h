#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "format/manifest.h"

namespace cairn {

/// The small records of the commit protocol (docs/protocol.md, format/records.md). Each is sealed
/// JSON with a member "record" that names its kind, so that one record can never be read as
/// another. Encode and Decode exist for each; Decode gives Corruption for anything damaged, of
/// another kind, or with members of the wrong type; unknown members are ignored.

/// cairn.json: makes a directory a repository.
struct RepositoryRecord {
  std::int64_t version = kFormatVersion;  // Unimplemented on decode when newer
  std::vector<std::string> features;
  std::string job;

  friend bool operator==(const RepositoryRecord&, const RepositoryRecord&) = default;
};

/// generations/000007.json
struct FenceRecord {
  std::uint64_t generation = 0;
  std::string uuid;
  std::string job;
  std::uint64_t run = 0;
  std::string host;
  std::int64_t pid = 0;
  std::string process;  // tells that process from others with its pid (base/living_process.h)

  friend bool operator==(const FenceRecord&, const FenceRecord&) = default;
};

/// generations/000007.seal.json
struct SealRecord {
  std::uint64_t generation = 0;
  std::string uuid;
  std::vector<std::string> commits;
  /// Directory names that no later save may use: an older writer that was stopped half-way through
  /// deleting them may go on at any time, by these names.
  std::vector<std::string> retired;
  /// Those of them that bore a mark of the engine when this opener looked, or an earlier one did.
  /// What lies there without a manifest is the engine's, though its mark was swept: an overtaken
  /// writer went on.
  std::vector<std::string> ours;

  friend bool operator==(const SealRecord&, const SealRecord&) = default;
};

/// Stands where the seal of a generation would: a newer opener found it not sealed and closed it.
/// That generation never seals, so it never saves.
struct ClosedRecord {
  std::uint64_t generation = 0;
  std::string uuid;  // of the fence of who closed it

  friend bool operator==(const ClosedRecord&, const ClosedRecord&) = default;
};

/// generations/000007.end.json: the process of that fence closed the repository. Only where there
/// are no locks, and only tools ask for it: whoever opens to train does not.
struct EndRecord {
  std::uint64_t generation = 0;
  std::string uuid;  // of the fence that ended

  friend bool operator==(const EndRecord&, const EndRecord&) = default;
};

/// generations/000007.start.json, 000007.start-2.json …
struct StartRecord {
  std::uint64_t generation = 0;
  std::string uuid;     // of the committer's fence
  std::string restore;  // the checkpoint's id, or "" for a fresh start
  std::map<std::string, std::string, std::less<>> participants;  // name → uuid of its join

  friend bool operator==(const StartRecord&, const StartRecord&) = default;
};

/// generations/joins/<participant>-<uuid>.json
struct JoinRecord {
  std::string participant;
  std::string uuid;
  std::uint64_t generation = 0;  // the newest fence that the participant has seen
  std::string host;
  std::int64_t pid = 0;

  friend bool operator==(const JoinRecord&, const JoinRecord&) = default;
};

/// generations/000007/attempts/1.json …
struct AttemptRecord {
  std::uint64_t number = 0;
  std::string fence;  // uuid of the committer's
  std::string directory;
  std::string attempt;  // uuid
  std::int64_t step = 0;
  CheckpointKind kind = CheckpointKind::kFull;
  std::string base;
  std::string chain;
  std::string parent;  // of a consecutive increment
  std::vector<std::string> participants;
  bool skipped = false;

  friend bool operator==(const AttemptRecord&, const AttemptRecord&) = default;
};

/// <checkpoint>/parts/<participant>.json
struct PartRecord {
  std::string attempt;
  std::string participant;
  std::string uuid;
  std::vector<ManifestFile> files;
  std::vector<ManifestTable> tables;
  Value metadata = Value::Object{};

  friend bool operator==(const PartRecord&, const PartRecord&) = default;
};

/// <checkpoint>/abandoned.json
struct AbandonedRecord {
  std::string attempt;
  std::vector<std::string> missing;

  friend bool operator==(const AbandonedRecord&, const AbandonedRecord&) = default;
};

/// <checkpoint>/notes/000001.json …
enum class NoteKind : std::uint8_t { kPin, kUnpin, kScore, kLabel, kRemove, kDamaged };
struct NoteRecord {
  std::uint64_t number = 0;
  NoteKind kind = NoteKind::kPin;
  std::string uuid;
  std::string checkpoint;        // id of the one it is about; "": whichever lies there
  std::uint64_t generation = 0;  // of the owner that removes; 0 otherwise
  Value values =
      Value::Object{};  // late metrics of a score, text of a label, who found which damage
  std::int64_t time = 0;

  friend bool operator==(const NoteRecord&, const NoteRecord&) = default;
};

/// <checkpoint>/.cairn-attempt: the unsynced marker of a single participant's attempt.
struct MarkerRecord {
  std::uint64_t generation = 0;
  std::string attempt;
  std::string copies;                     // id of the checkpoint that is copied here; "": a save
  std::vector<std::string> participants;  // who write below it, in directories of their names

  friend bool operator==(const MarkerRecord&, const MarkerRecord&) = default;
};

/// generations/shelves/<uuid>.json: manifests of many checkpoints of a bucket in one object, so
/// that a listing need not fetch each. Only a copy: `tag` tells whether the manifest is still that
/// one.
struct ShelfRecord {
  struct Entry {
    std::string directory;
    std::string tag;       // the store's, of the manifest
    std::string manifest;  // its bytes

    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> entries;

  friend bool operator==(const ShelfRecord&, const ShelfRecord&) = default;
};

std::string Encode(const RepositoryRecord& record);
std::string Encode(const FenceRecord& record);
std::string Encode(const SealRecord& record);
std::string Encode(const ClosedRecord& record);
std::string Encode(const EndRecord& record);
std::string Encode(const StartRecord& record);
std::string Encode(const JoinRecord& record);
std::string Encode(const AttemptRecord& record);
std::string Encode(const PartRecord& record);
std::string Encode(const AbandonedRecord& record);
std::string Encode(const NoteRecord& record);
std::string Encode(const MarkerRecord& record);
std::string Encode(const ShelfRecord& record);

/// Decode<FenceRecord>(bytes); instantiated for every record above.
template <typename Record>
Result<Record> Decode(std::string_view bytes);

std::string_view NoteKindName(NoteKind kind);

}  // namespace cairn
