#include "format/manifest.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"
#include "format/relative_path.h"
#include "format/sealed_json.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::uint64_t>::max();

// A user's values stand one level below the record itself.
constexpr int kUserDepth = kMaxJsonDepth - 1;

// What is wrong with bytes that were read is damage; the same in a value to be written is the
// caller's mistake.
Status AsCorruption(const Status& status) {
  return status.ok() ? Status() : CorruptionError(std::string(status.message()));
}

std::uint64_t ChunkCount(std::uint64_t bytes) {
  return bytes / kChunkBytes + (bytes % kChunkBytes != 0 ? 1 : 0);
}

Status CheckText(std::string_view what, std::string_view text) {
  if (IsValidUtf8(text)) return {};
  return InvalidArgumentError(std::string(what) + " " + QuoteForMessage(text) + " is not UTF-8");
}

Status CheckObject(std::string_view what, const Value& value) {
  if (!value.is_object()) return InvalidArgumentError(std::string(what) + " is not an object");
  return ValidateJsonValue(value, kUserDepth).WithContext(what);
}

// The first text that stands there twice, or null.
const std::string* FindTwice(std::vector<const std::string*> texts) {
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  const auto same = [](const std::string* a, const std::string* b) { return *a == *b; };
  std::ranges::sort(texts, less);
  const auto it = std::ranges::adjacent_find(texts, same);
  return it == texts.end() ? nullptr : *it;
}

Status CheckParticipants(const Manifest& manifest) {
  std::vector<const std::string*> names;
  for (const std::string& name : manifest.participants) {
    RETURN_IF_ERROR(ValidateParticipant(name));
    names.push_back(&name);
  }
  if (const std::string* twice = FindTwice(names)) {
    return InvalidArgumentError("participant " + QuoteForMessage(*twice) + " stands there twice");
  }
  std::ranges::sort(names, {}, [](const std::string* name) -> const std::string& { return *name; });
  for (const ManifestFile& file : manifest.files) {
    if (file.part.empty()) continue;
    if (!std::ranges::binary_search(names, file.part, {}, [](auto* name) { return *name; })) {
      return InvalidArgumentError("file " + QuoteForMessage(file.path) + " is of participant " +
                                  QuoteForMessage(file.part) + ", whom the manifest does not name");
    }
  }
  return {};
}

Status CheckTables(const std::vector<ManifestTable>& tables) {
  std::vector<const std::string*> names;
  for (const ManifestTable& table : tables) {
    if (table.name.empty()) return InvalidArgumentError("a table has no name");
    RETURN_IF_ERROR(CheckText("table", table.name));
    names.push_back(&table.name);
  }
  if (const std::string* twice = FindTwice(std::move(names))) {
    return InvalidArgumentError("table " + QuoteForMessage(*twice) + " stands there twice");
  }
  return {};
}

Status CheckChain(const Manifest& manifest) {
  const std::string& chain = manifest.chain;
  if (!chain.empty() && chain != "cumulative" && chain != "consecutive") {
    return InvalidArgumentError("chain " + QuoteForMessage(chain) +
                                " is neither cumulative nor consecutive");
  }
  if (manifest.kind == CheckpointKind::kFull) {
    return manifest.base.empty() ? Status() : InvalidArgumentError("a full checkpoint has no base");
  }
  if (manifest.base.empty()) return InvalidArgumentError("an increment without a base");
  if (chain.empty()) return InvalidArgumentError("an increment without a kind of chain");
  return {};
}

}  // namespace

std::string_view KindName(CheckpointKind kind) {
  return kind == CheckpointKind::kFull ? "full" : "increment";
}

std::optional<CheckpointKind> KindFromName(std::string_view name) {
  for (const CheckpointKind kind : {CheckpointKind::kFull, CheckpointKind::kIncrement}) {
    if (KindName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::uint64_t Manifest::Bytes() const {
  std::uint64_t sum = 0;
  for (const ManifestFile& file : files) sum += std::min(file.hash.bytes, kMaxBytes - sum);
  return sum;
}

Status CheckReadable(std::int64_t version, const std::vector<std::string>& features) {
  if (version < 1) return CorruptionError("format version " + std::to_string(version));
  if (version > kFormatVersion) {
    return UnimplementedError("written in format version " + std::to_string(version) +
                              "; this program reads up to version " +
                              std::to_string(kFormatVersion) + ": use a newer one");
  }
  // Version 1 knows no features yet.
  if (!features.empty()) {
    return UnimplementedError("needs the feature " + QuoteForMessage(features.front()) +
                              ", which this program does not know: use a newer one");
  }
  return {};
}

Status ValidateManifestFile(const ManifestFile& file) {
  RETURN_IF_ERROR(ValidateRelativePath(file.path));
  if (!file.ref.empty()) {
    RETURN_IF_ERROR(
        ValidateRelativePath(file.ref).WithContext("ref of " + QuoteForMessage(file.path)));
  }
  if (!file.part.empty()) RETURN_IF_ERROR(ValidateParticipant(file.part));
  if (file.hash.chunks.size() != ChunkCount(file.hash.bytes)) {
    return InvalidArgumentError("file " + QuoteForMessage(file.path) + " of " +
                                std::to_string(file.hash.bytes) + " bytes has " +
                                std::to_string(file.hash.chunks.size()) + " chunk checksums, not " +
                                std::to_string(ChunkCount(file.hash.bytes)));
  }
  return {};
}

Status ValidateManifestFiles(const std::vector<ManifestFile>& files) {
  std::vector<const std::string*> paths;
  std::uint64_t sum = 0;
  for (const ManifestFile& file : files) {
    RETURN_IF_ERROR(ValidateManifestFile(file));
    if (file.hash.bytes > kMaxBytes - sum) return InvalidArgumentError("over 2^64 bytes in all");
    sum += file.hash.bytes;
    paths.push_back(&file.path);
  }
  if (const std::string* twice = FindTwice(std::move(paths))) {
    return InvalidArgumentError("file " + QuoteForMessage(*twice) + " stands there twice");
  }
  return {};
}

Status ValidateManifest(const Manifest& manifest) {
  for (const auto& [what, text] :
       {std::pair<std::string_view, const std::string&>{"id", manifest.id},
        {"job", manifest.job},
        {"attempt", manifest.attempt}}) {
    if (text.empty()) return InvalidArgumentError(std::string(what) + " is empty");
    RETURN_IF_ERROR(CheckText(what, text));
  }
  RETURN_IF_ERROR(CheckText("base", manifest.base));
  RETURN_IF_ERROR(CheckText("parent", manifest.parent));
  RETURN_IF_ERROR(CheckText("replaces", manifest.replaces));
  RETURN_IF_ERROR(CheckChain(manifest));
  RETURN_IF_ERROR(ValidateManifestFiles(manifest.files));
  RETURN_IF_ERROR(CheckParticipants(manifest));
  RETURN_IF_ERROR(CheckTables(manifest.tables));
  RETURN_IF_ERROR(CheckObject("counters", manifest.counters));
  RETURN_IF_ERROR(CheckObject("metrics", manifest.metrics));
  RETURN_IF_ERROR(CheckObject("metadata", manifest.metadata));
  return CheckObject("lineage", manifest.lineage);
}

std::string ManifestFileJson(const ManifestFile& file) {
  std::string out = R"({"path":)";
  AppendJsonString(file.path, &out);
  out += R"(,"bytes":)" + std::to_string(file.hash.bytes);
  out += R"(,"xxh3_128":")" + ToHex(file.hash.whole) + R"(","chunks":[)";
  for (std::size_t i = 0; i < file.hash.chunks.size(); ++i) {
    if (i != 0) out += ',';
    out += '"' + ToHex(file.hash.chunks[i]) + '"';
  }
  out += ']';
  if (!file.part.empty()) {
    out += R"(,"part":)";
    AppendJsonString(file.part, &out);
  }
  if (!file.ref.empty()) {
    out += R"(,"ref":)";
    AppendJsonString(file.ref, &out);
  }
  out += '}';
  return out;
}

std::string ManifestTableJson(const ManifestTable& table) {
  std::string out = R"({"name":)";
  AppendJsonString(table.name, &out);
  out += R"(,"dim":)" + std::to_string(table.dim);
  out += R"(,"dtype":")" + std::string(DTypeName(table.dtype));
  out += R"(","rows":)" + std::to_string(table.rows);
  out += R"(,"deleted":)" + std::to_string(table.deleted);
  for (std::size_t i = 0; i < table.held.size(); ++i) {
    out += i == 0 ? R"(,"held":[)" : ",";
    out +=
        '[' + std::to_string(table.held[i].begin) + ',' + std::to_string(table.held[i].end) + ']';
  }
  out += table.held.empty() ? "}" : "]}";
  return out;
}

Value EncodeManifestFile(const ManifestFile& file) {
  Value::List chunks;
  for (const std::uint64_t chunk : file.hash.chunks) chunks.emplace_back(ToHex(chunk));
  Value::Object members{{"path", file.path},
                        {"bytes", file.hash.bytes},
                        {"xxh3_128", ToHex(file.hash.whole)},
                        {"chunks", std::move(chunks)}};
  if (!file.part.empty()) members.emplace("part", file.part);
  if (!file.ref.empty()) members.emplace("ref", file.ref);
  return members;
}

Value EncodeManifestTable(const ManifestTable& table) {
  Value::Object members{{"name", table.name},
                        {"dim", table.dim},
                        {"dtype", DTypeName(table.dtype)},
                        {"rows", table.rows},
                        {"deleted", table.deleted}};
  Value::List held;
  for (const NumberRange& range : table.held) held.push_back(Value::List{range.begin, range.end});
  if (!held.empty()) members.emplace("held", std::move(held));
  return members;
}

Result<ManifestFile> DecodeManifestFile(const Value& value) {
  if (!value.is_object()) return CorruptionError("a file is not an object");
  const MemberReader in(*value.if_object());
  ManifestFile file;
  RETURN_IF_ERROR(in.Text("path", &file.path));
  const std::string context = "file " + QuoteForMessage(file.path);
  const auto read = [&]() -> Status {
    RETURN_IF_ERROR(in.Uint("bytes", &file.hash.bytes));
    std::string whole;
    RETURN_IF_ERROR(in.Text("xxh3_128", &whole));
    const auto hash = Hash128FromHex(whole);
    if (!hash) return CorruptionError("its checksum is not 32 hex digits");
    file.hash.whole = *hash;
    const Value::List* chunks = nullptr;
    RETURN_IF_ERROR(in.OptionalList("chunks", &chunks));
    if (chunks != nullptr) file.hash.chunks.reserve(chunks->size());
    for (std::size_t i = 0; chunks != nullptr && i < chunks->size(); ++i) {
      const std::string* text = (*chunks)[i].if_string();
      const auto chunk = text == nullptr ? std::nullopt : Hash64FromHex(*text);
      if (!chunk) return CorruptionError("a chunk's checksum is not 16 hex digits");
      file.hash.chunks.push_back(*chunk);
    }
    RETURN_IF_ERROR(in.OptionalText("part", &file.part));
    return in.OptionalText("ref", &file.ref);
  };
  RETURN_IF_ERROR(read().WithContext(context));
  RETURN_IF_ERROR(AsCorruption(ValidateManifestFile(file)));
  return file;
}

namespace {

std::optional<std::uint64_t> AsUint(const Value& value) {
  if (const auto* number = value.if_uint64()) return *number;
  if (const auto* number = value.if_int64(); number != nullptr && *number >= 0) {
    return static_cast<std::uint64_t>(*number);
  }
  return std::nullopt;
}

}  // namespace

Result<ManifestTable> DecodeManifestTable(const Value& value) {
  if (!value.is_object()) return CorruptionError("a table is not an object");
  const MemberReader in(*value.if_object());
  ManifestTable table;
  RETURN_IF_ERROR(in.Text("name", &table.name));
  RETURN_IF_ERROR(in.Uint("dim", &table.dim));
  std::string dtype;
  RETURN_IF_ERROR(in.Text("dtype", &dtype));
  const auto known = DTypeFromName(dtype);
  if (!known) {
    return CorruptionError("table " + QuoteForMessage(table.name) + " has the unknown dtype " +
                           QuoteForMessage(dtype));
  }
  table.dtype = *known;
  RETURN_IF_ERROR(in.Uint("rows", &table.rows));
  RETURN_IF_ERROR(in.OptionalUint("deleted", &table.deleted));
  const Value::List* held = nullptr;
  RETURN_IF_ERROR(in.OptionalList("held", &held));
  for (std::size_t i = 0; held != nullptr && i < held->size(); ++i) {
    const Value::List* pair = (*held)[i].if_list();
    const auto begin = pair == nullptr || pair->size() != 2 ? std::nullopt : AsUint((*pair)[0]);
    const auto end = begin ? AsUint((*pair)[1]) : std::nullopt;
    if (!end || *end < *begin) {
      return CorruptionError("table " + QuoteForMessage(table.name) +
                             " holds something that is no range");
    }
    table.held.push_back({*begin, *end});
  }
  return table;
}

Status AddManifestTables(const std::vector<ManifestTable>& part, std::vector<ManifestTable>* sums) {
  for (const ManifestTable& table : part) {
    const auto it = std::ranges::find(*sums, table.name, &ManifestTable::name);
    if (it == sums->end()) {
      sums->push_back(table);
      continue;
    }
    if (it->dim != table.dim || it->dtype != table.dtype) {
      return FailedPreconditionError(
          "table " + QuoteForMessage(table.name) + " has rows of " + std::to_string(it->dim) + " " +
          std::string(DTypeName(it->dtype)) + " on one participant and of " +
          std::to_string(table.dim) + " " + std::string(DTypeName(table.dtype)) +
          " on another; give one of them another name");
    }
    for (const NumberRange& range : table.held) {
      const auto same = std::ranges::find_if(it->held, [&](const NumberRange& other) {
        return std::max(range.begin, other.begin) < std::min(range.end, other.end);
      });
      if (same != it->held.end()) {
        return FailedPreconditionError(
            "table " + QuoteForMessage(table.name) +
            ": two participants hold its shards (or rows) " +
            std::to_string(std::max(range.begin, same->begin)) + " to " +
            std::to_string(std::min(range.end, same->end)) +
            ", and what they say of a key could not be told apart; give each its own part "
            "(TableOptions::shards, in Python shards=; of tracked arrays its own piece), or each a "
            "table of another name");
      }
    }
    it->held.insert(it->held.end(), table.held.begin(), table.held.end());
    it->rows += std::min(table.rows, kMaxBytes - it->rows);
    it->deleted += std::min(table.deleted, kMaxBytes - it->deleted);
  }
  return {};
}

std::string EncodeManifest(const Manifest& manifest) {
  std::vector<std::string> files;
  files.reserve(manifest.files.size());
  for (const ManifestFile& file : manifest.files) files.push_back(ManifestFileJson(file));
  std::vector<std::string> tables;
  for (const ManifestTable& table : manifest.tables) tables.push_back(ManifestTableJson(table));

  SealedJsonWriter out;
  out.Int("cairn", kFormatVersion);
  out.Texts("features", manifest.features);
  out.Text("id", manifest.id);
  out.Text("job", manifest.job);
  out.Uint("generation", manifest.generation);
  out.Uint("sequence", manifest.sequence);
  out.Text("attempt", manifest.attempt);
  out.Text("kind", KindName(manifest.kind));
  out.TextOrNull("chain", manifest.chain);
  out.Int("step", manifest.step);
  out.TextOrNull("base", manifest.base);
  out.TextOrNull("parent", manifest.parent);
  if (!manifest.replaces.empty()) out.Text("replaces", manifest.replaces);
  if (manifest.compacted != 0) out.Uint("compacted", manifest.compacted);
  out.Texts("participants", manifest.participants);
  out.Lines("files", files);
  out.Lines("tables", tables);
  out.Json("counters", manifest.counters);
  out.Json("metrics", manifest.metrics);
  out.Json("metadata", manifest.metadata);
  out.Json("lineage", manifest.lineage);
  out.Int("time", manifest.time);
  return out.Seal();
}

namespace {

Status ReadManifest(const MemberReader& in, Manifest* out) {
  // Version and features first: what follows may mean something else in a newer version.
  if (in.Has("record")) return CorruptionError("another kind of record, not a manifest");
  std::int64_t version = 0;
  RETURN_IF_ERROR(in.Int("cairn", &version));
  RETURN_IF_ERROR(in.OptionalTexts("features", &out->features));
  RETURN_IF_ERROR(CheckReadable(version, out->features));

  RETURN_IF_ERROR(in.Text("id", &out->id));
  RETURN_IF_ERROR(in.Text("job", &out->job));
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  RETURN_IF_ERROR(in.Uint("sequence", &out->sequence));
  RETURN_IF_ERROR(in.Text("attempt", &out->attempt));
  std::string kind;
  RETURN_IF_ERROR(in.Text("kind", &kind));
  const auto known = KindFromName(kind);
  if (!known) return CorruptionError("unknown kind " + QuoteForMessage(kind));
  out->kind = *known;
  RETURN_IF_ERROR(in.OptionalText("chain", &out->chain));
  RETURN_IF_ERROR(in.Int("step", &out->step));
  RETURN_IF_ERROR(in.OptionalText("base", &out->base));
  RETURN_IF_ERROR(in.OptionalText("parent", &out->parent));
  RETURN_IF_ERROR(in.OptionalText("replaces", &out->replaces));
  RETURN_IF_ERROR(in.OptionalUint("compacted", &out->compacted));
  RETURN_IF_ERROR(in.Texts("participants", &out->participants));
  const Value::List* files = nullptr;
  RETURN_IF_ERROR(in.OptionalList("files", &files));
  if (files == nullptr) return CorruptionError("member \"files\" is missing");
  out->files.reserve(files->size());
  for (const Value& value : *files) {
    ASSIGN_OR_RETURN(ManifestFile file, DecodeManifestFile(value));
    out->files.push_back(std::move(file));
  }
  const Value::List* tables = nullptr;
  RETURN_IF_ERROR(in.OptionalList("tables", &tables));
  for (std::size_t i = 0; tables != nullptr && i < tables->size(); ++i) {
    ASSIGN_OR_RETURN(ManifestTable table, DecodeManifestTable((*tables)[i]));
    out->tables.push_back(std::move(table));
  }
  RETURN_IF_ERROR(in.OptionalObject("counters", &out->counters));
  RETURN_IF_ERROR(in.OptionalObject("metrics", &out->metrics));
  RETURN_IF_ERROR(in.OptionalObject("metadata", &out->metadata));
  RETURN_IF_ERROR(in.OptionalObject("lineage", &out->lineage));
  return in.OptionalInt("time", &out->time);
}

}  // namespace

Result<Manifest> DecodeManifest(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Value::Object members, DecodeSealedJson(bytes));
  Manifest manifest;
  RETURN_IF_ERROR(ReadManifest(MemberReader(members), &manifest));
  RestoreNonFinite(&manifest.metadata);
  RestoreNonFinite(&manifest.counters);
  RestoreNonFinite(&manifest.metrics);
  RETURN_IF_ERROR(AsCorruption(ValidateManifest(manifest)));
  return manifest;
}

bool MayHaveBeenManifest(std::string_view bytes) {
  // As EncodeManifest writes them, some at the beginning and some at the end: one is enough, for
  // the others may be in what is damaged. Words that every format has ("id", "files", "step") tell
  // nothing.
  static constexpr std::string_view kOurs[] = {
      "\"cairn\"",         "\"xxh3_128\"",           "\n  \"generation\": ", "\n  \"sequence\": ",
      "\n  \"attempt\": ", "\n  \"participants\": ", "\n  \"lineage\": ",    "\n  \"checksum\": "};
  return std::ranges::any_of(
      kOurs, [&](std::string_view member) { return bytes.find(member) != bytes.npos; });
}

}  // namespace cairn
