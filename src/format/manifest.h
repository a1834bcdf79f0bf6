#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>
#include <cairn/table_rows.h>
#include <cairn/value.h>

#include "base/checksum.h"

namespace cairn {

/// The version of the on-disk format that this program writes, and the newest it reads.
inline constexpr std::int64_t kFormatVersion = 1;

enum class CheckpointKind : std::uint8_t { kFull, kIncrement };
std::string_view KindName(CheckpointKind kind);  // "full", "increment"
std::optional<CheckpointKind> KindFromName(std::string_view name);

/// A file of a checkpoint. `path` is relative to the checkpoint's directory. `ref`, where not
/// empty, is the path inside the repository that holds the bytes instead (stores without links).
struct ManifestFile {
  std::string path;
  FileHash hash;
  std::string part;  // the participant that contributed it; "" = the committer's own (index files)
  std::string ref;

  friend bool operator==(const ManifestFile&, const ManifestFile&) = default;
};

struct ManifestTable {
  std::string name;
  std::uint64_t dim = 0;
  DType dtype = DType::kF32;
  std::uint64_t rows = 0;
  std::uint64_t deleted = 0;
  std::vector<NumberRange> held;  // of parts, and private ones: see TableFacts

  friend bool operator==(const ManifestTable&, const ManifestTable&) = default;
};

/// manifest.json: the record that commits a checkpoint (docs/format/manifest.md).
struct Manifest {
  std::vector<std::string> features;  // required ones; a reader refuses what it does not know
  std::string id;
  std::string job;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::string attempt;
  CheckpointKind kind = CheckpointKind::kFull;
  std::string chain;  // "", "cumulative" or "consecutive"
  std::int64_t step = 0;
  std::string base;             // of an increment: the full checkpoint it builds on
  std::string parent;           // the checkpoint before it on its branch
  std::string replaces;         // written by compact: the checkpoint whose place it takes
  std::uint64_t compacted = 0;  // of such a one: the generation that committed it
  std::vector<std::string> participants;
  std::vector<ManifestFile> files;
  std::vector<ManifestTable> tables;
  Value counters = Value::Object{};
  Value metrics = Value::Object{};
  Value metadata = Value::Object{};
  Value lineage = Value::Object{};
  std::int64_t time = 0;  // nanoseconds since 1970, for people

  friend bool operator==(const Manifest&, const Manifest&) = default;

  std::uint64_t Bytes() const;
  /// The generation whose writer committed it, which decides whether it counts. What compact writes
  /// keeps the place (generation, sequence) of what it replaces.
  std::uint64_t CommitGeneration() const { return compacted != 0 ? compacted : generation; }
};

/// InvalidArgument, naming the thing, for a manifest that DecodeManifest would refuse or that would
/// come back changed. A committer checks before it publishes: afterwards is too late.
Status ValidateManifest(const Manifest& manifest);

/// Members in the order of docs/format/manifest.md, checksum last (sealed_json.h's rule); a member
/// a line, a file a line. Non-finite numbers are the strings "NaN", "Infinity", "-Infinity".
std::string EncodeManifest(const Manifest& manifest);

/// Corruption for damaged bytes, Unimplemented for a newer version or an unknown required feature
/// (the message names it). Unknown members are ignored. Paths that leave the directory, duplicate
/// paths, wrong chunk counts are Corruption. In counters and metrics the three strings for
/// non-finite numbers become doubles again; in metadata and lineage they stay strings, because
/// there a text may say "NaN".
Result<Manifest> DecodeManifest(std::string_view bytes);

/// Of bytes that DecodeManifest finds damaged: whether they ever were a manifest. Other programs
/// have files of that name too, and theirs are no damage. What is so short, or so thoroughly
/// overwritten, that no member can be recognised is none.
bool MayHaveBeenManifest(std::string_view bytes);

/// Unimplemented, saying what to do, for a version or a required feature that this program cannot
/// read.
Status CheckReadable(std::int64_t version, const std::vector<std::string>& features);

/// Files and tables are shared with part records.
std::string ManifestFileJson(const ManifestFile& file);  // on one line, the path first
Value EncodeManifestFile(const ManifestFile& file);
Result<ManifestFile> DecodeManifestFile(const Value& value);
Status ValidateManifestFile(const ManifestFile& file);
/// Checks each file and that no path stands there twice.
Status ValidateManifestFiles(const std::vector<ManifestFile>& files);
std::string ManifestTableJson(const ManifestTable& table);
Value EncodeManifestTable(const ManifestTable& table);
Result<ManifestTable> DecodeManifestTable(const Value& value);
/// Adds what one participant has of each table to the sums. FailedPrecondition when two of them
/// have a table of one name and different kinds of rows.
Status AddManifestTables(const std::vector<ManifestTable>& part, std::vector<ManifestTable>* sums);

}  // namespace cairn
