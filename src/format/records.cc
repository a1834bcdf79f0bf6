#include "format/records.h"

#include <array>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"
#include "format/relative_path.h"
#include "format/sealed_json.h"

namespace cairn {
namespace {

constexpr std::array kNoteKinds = {NoteKind::kPin,   NoteKind::kUnpin,  NoteKind::kScore,
                                   NoteKind::kLabel, NoteKind::kRemove, NoteKind::kDamaged};

SealedJsonWriter Begin(std::string_view kind) {
  SealedJsonWriter out;
  out.Text("record", kind);
  return out;
}

Status AsCorruption(const Status& status) {
  return status.ok() ? Status() : CorruptionError(std::string(status.message()));
}

Status CheckParticipants(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    RETURN_IF_ERROR(AsCorruption(ValidateParticipant(name)));
  }
  return {};
}

// One Read for each record: the members into the struct, everything checked.

Status Read(const MemberReader& in, RepositoryRecord* out) {
  RETURN_IF_ERROR(in.Int("cairn", &out->version));
  RETURN_IF_ERROR(in.OptionalTexts("features", &out->features));
  RETURN_IF_ERROR(CheckReadable(out->version, out->features));
  return in.Text("job", &out->job);
}

Status Read(const MemberReader& in, FenceRecord* out) {
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  RETURN_IF_ERROR(in.Text("uuid", &out->uuid));
  RETURN_IF_ERROR(in.Text("job", &out->job));
  RETURN_IF_ERROR(in.OptionalUint("run", &out->run));
  RETURN_IF_ERROR(in.OptionalText("host", &out->host));
  RETURN_IF_ERROR(in.OptionalInt("pid", &out->pid));
  return in.OptionalText("process", &out->process);
}

Status Read(const MemberReader& in, SealRecord* out) {
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  RETURN_IF_ERROR(in.Text("uuid", &out->uuid));
  RETURN_IF_ERROR(in.Texts("commits", &out->commits));
  RETURN_IF_ERROR(in.OptionalTexts("retired", &out->retired));
  return in.OptionalTexts("ours", &out->ours);
}

Status Read(const MemberReader& in, ClosedRecord* out) {
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  return in.Text("uuid", &out->uuid);
}

Status Read(const MemberReader& in, EndRecord* out) {
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  return in.Text("uuid", &out->uuid);
}

Status Read(const MemberReader& in, StartRecord* out) {
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  RETURN_IF_ERROR(in.Text("uuid", &out->uuid));
  RETURN_IF_ERROR(in.OptionalText("restore", &out->restore));
  Value participants;
  RETURN_IF_ERROR(in.OptionalObject("participants", &participants));
  if (participants.is_null()) return CorruptionError("member \"participants\" is missing");
  for (const auto& [name, uuid] : *participants.if_object()) {
    RETURN_IF_ERROR(AsCorruption(ValidateParticipant(name)));
    if (!uuid.is_string()) return CorruptionError("the uuid of a participant is not a text");
    out->participants.emplace(name, *uuid.if_string());
  }
  return {};
}

Status Read(const MemberReader& in, JoinRecord* out) {
  RETURN_IF_ERROR(in.Text("participant", &out->participant));
  RETURN_IF_ERROR(AsCorruption(ValidateParticipant(out->participant)));
  RETURN_IF_ERROR(in.Text("uuid", &out->uuid));
  RETURN_IF_ERROR(in.OptionalUint("generation", &out->generation));
  RETURN_IF_ERROR(in.OptionalText("host", &out->host));
  return in.OptionalInt("pid", &out->pid);
}

Status Read(const MemberReader& in, AttemptRecord* out) {
  RETURN_IF_ERROR(in.Uint("n", &out->number));
  RETURN_IF_ERROR(in.OptionalText("fence", &out->fence));
  RETURN_IF_ERROR(in.Int("step", &out->step));
  RETURN_IF_ERROR(in.Text("attempt", &out->attempt));
  RETURN_IF_ERROR(in.OptionalBool("skipped", &out->skipped));
  RETURN_IF_ERROR(in.OptionalText("dir", &out->directory));
  // Only a step that is not saved has no directory.
  if (!out->skipped || !out->directory.empty()) {
    RETURN_IF_ERROR(AsCorruption(ValidateRelativePath(out->directory)));
  }
  std::string kind;
  RETURN_IF_ERROR(in.Text("kind", &kind));
  const auto known = KindFromName(kind);
  if (!known) return CorruptionError("unknown kind " + QuoteForMessage(kind));
  out->kind = *known;
  RETURN_IF_ERROR(in.OptionalText("base", &out->base));
  RETURN_IF_ERROR(in.OptionalText("chain", &out->chain));
  RETURN_IF_ERROR(in.OptionalText("parent", &out->parent));
  RETURN_IF_ERROR(in.Texts("participants", &out->participants));
  return CheckParticipants(out->participants);
}

Status Read(const MemberReader& in, PartRecord* out) {
  RETURN_IF_ERROR(in.Text("attempt", &out->attempt));
  RETURN_IF_ERROR(in.Text("participant", &out->participant));
  RETURN_IF_ERROR(AsCorruption(ValidateParticipant(out->participant)));
  RETURN_IF_ERROR(in.Text("uuid", &out->uuid));
  const Value::List* files = nullptr;
  RETURN_IF_ERROR(in.OptionalList("files", &files));
  if (files == nullptr) return CorruptionError("member \"files\" is missing");
  for (const Value& value : *files) {
    ASSIGN_OR_RETURN(ManifestFile file, DecodeManifestFile(value));
    out->files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(AsCorruption(ValidateManifestFiles(out->files)));
  const Value::List* tables = nullptr;
  RETURN_IF_ERROR(in.OptionalList("tables", &tables));
  for (std::size_t i = 0; tables != nullptr && i < tables->size(); ++i) {
    ASSIGN_OR_RETURN(ManifestTable table, DecodeManifestTable((*tables)[i]));
    out->tables.push_back(std::move(table));
  }
  return in.OptionalObject("metadata", &out->metadata);
}

Status Read(const MemberReader& in, AbandonedRecord* out) {
  RETURN_IF_ERROR(in.Text("attempt", &out->attempt));
  RETURN_IF_ERROR(in.Texts("missing", &out->missing));
  return CheckParticipants(out->missing);
}

Status Read(const MemberReader& in, NoteRecord* out) {
  RETURN_IF_ERROR(in.Uint("number", &out->number));
  std::string kind;
  RETURN_IF_ERROR(in.Text("kind", &kind));
  bool known = false;
  for (const NoteKind candidate : kNoteKinds) {
    if (NoteKindName(candidate) != kind) continue;
    out->kind = candidate;
    known = true;
  }
  if (!known) return CorruptionError("unknown kind of note " + QuoteForMessage(kind));
  RETURN_IF_ERROR(in.Text("uuid", &out->uuid));
  RETURN_IF_ERROR(in.OptionalText("checkpoint", &out->checkpoint));
  RETURN_IF_ERROR(in.OptionalUint("generation", &out->generation));
  RETURN_IF_ERROR(in.OptionalObject("values", &out->values));
  if (out->kind == NoteKind::kScore) RestoreNonFinite(&out->values);
  return in.OptionalInt("time", &out->time);
}

Status Read(const MemberReader& in, MarkerRecord* out) {
  RETURN_IF_ERROR(in.Uint("generation", &out->generation));
  RETURN_IF_ERROR(in.Text("attempt", &out->attempt));
  RETURN_IF_ERROR(in.OptionalText("copies", &out->copies));
  RETURN_IF_ERROR(in.OptionalTexts("participants", &out->participants));
  return CheckParticipants(out->participants);
}

Status Read(const MemberReader& in, ShelfRecord* out) {
  const Value::List* entries = nullptr;
  RETURN_IF_ERROR(in.OptionalList("checkpoints", &entries));
  if (entries == nullptr) return CorruptionError("member \"checkpoints\" is missing");
  for (const Value& value : *entries) {
    if (!value.is_object()) return CorruptionError("a checkpoint of a shelf is not an object");
    const MemberReader entry(*value.if_object());
    ShelfRecord::Entry& to = out->entries.emplace_back();
    RETURN_IF_ERROR(entry.Text("dir", &to.directory));
    RETURN_IF_ERROR(AsCorruption(ValidateRelativePath(to.directory)));
    RETURN_IF_ERROR(entry.Text("tag", &to.tag));
    RETURN_IF_ERROR(entry.Text("manifest", &to.manifest));
  }
  return {};
}

template <typename Record>
constexpr std::string_view kKind;
template <>
constexpr std::string_view kKind<RepositoryRecord> = "repository";
template <>
constexpr std::string_view kKind<FenceRecord> = "fence";
template <>
constexpr std::string_view kKind<SealRecord> = "seal";
template <>
constexpr std::string_view kKind<ClosedRecord> = "closed";
template <>
constexpr std::string_view kKind<EndRecord> = "end";
template <>
constexpr std::string_view kKind<StartRecord> = "start";
template <>
constexpr std::string_view kKind<JoinRecord> = "join";
template <>
constexpr std::string_view kKind<AttemptRecord> = "attempt";
template <>
constexpr std::string_view kKind<PartRecord> = "part";
template <>
constexpr std::string_view kKind<AbandonedRecord> = "abandoned";
template <>
constexpr std::string_view kKind<NoteRecord> = "note";
template <>
constexpr std::string_view kKind<MarkerRecord> = "marker";
template <>
constexpr std::string_view kKind<ShelfRecord> = "shelf";

}  // namespace

std::string_view NoteKindName(NoteKind kind) {
  switch (kind) {
    case NoteKind::kPin:
      return "pin";
    case NoteKind::kUnpin:
      return "unpin";
    case NoteKind::kScore:
      return "score";
    case NoteKind::kLabel:
      return "label";
    case NoteKind::kRemove:
      return "remove";
    case NoteKind::kDamaged:
      return "damaged";
  }
  return "";
}

std::string Encode(const RepositoryRecord& record) {
  SealedJsonWriter out = Begin(kKind<RepositoryRecord>);
  out.Int("cairn", record.version);
  out.Texts("features", record.features);
  out.Text("job", record.job);
  return out.Seal();
}

std::string Encode(const FenceRecord& record) {
  SealedJsonWriter out = Begin(kKind<FenceRecord>);
  out.Uint("generation", record.generation);
  out.Text("uuid", record.uuid);
  out.Text("job", record.job);
  out.Uint("run", record.run);
  out.Text("host", record.host);
  out.Int("pid", record.pid);
  if (!record.process.empty()) out.Text("process", record.process);
  return out.Seal();
}

std::string Encode(const SealRecord& record) {
  SealedJsonWriter out = Begin(kKind<SealRecord>);
  out.Uint("generation", record.generation);
  out.Text("uuid", record.uuid);
  out.Texts("commits", record.commits);
  if (!record.retired.empty()) out.Texts("retired", record.retired);
  if (!record.ours.empty()) out.Texts("ours", record.ours);
  return out.Seal();
}

std::string Encode(const ClosedRecord& record) {
  SealedJsonWriter out = Begin(kKind<ClosedRecord>);
  out.Uint("generation", record.generation);
  out.Text("uuid", record.uuid);
  return out.Seal();
}

std::string Encode(const EndRecord& record) {
  SealedJsonWriter out = Begin(kKind<EndRecord>);
  out.Uint("generation", record.generation);
  out.Text("uuid", record.uuid);
  return out.Seal();
}

std::string Encode(const StartRecord& record) {
  SealedJsonWriter out = Begin(kKind<StartRecord>);
  out.Uint("generation", record.generation);
  out.Text("uuid", record.uuid);
  out.TextOrNull("restore", record.restore);
  Value::Object participants;
  for (const auto& [name, uuid] : record.participants) participants.emplace(name, uuid);
  out.Json("participants", participants);
  return out.Seal();
}

std::string Encode(const JoinRecord& record) {
  SealedJsonWriter out = Begin(kKind<JoinRecord>);
  out.Text("participant", record.participant);
  out.Text("uuid", record.uuid);
  if (record.generation != 0) out.Uint("generation", record.generation);
  out.Text("host", record.host);
  out.Int("pid", record.pid);
  return out.Seal();
}

std::string Encode(const AttemptRecord& record) {
  SealedJsonWriter out = Begin(kKind<AttemptRecord>);
  out.Uint("n", record.number);
  if (!record.fence.empty()) out.Text("fence", record.fence);
  out.Int("step", record.step);
  out.Text("attempt", record.attempt);
  if (record.skipped) out.Json("skipped", true);
  out.TextOrNull("dir", record.directory);
  out.Text("kind", KindName(record.kind));
  out.TextOrNull("base", record.base);
  out.TextOrNull("chain", record.chain);
  if (!record.parent.empty()) out.Text("parent", record.parent);
  out.Texts("participants", record.participants);
  return out.Seal();
}

std::string Encode(const PartRecord& record) {
  std::vector<std::string> files;
  files.reserve(record.files.size());
  for (const ManifestFile& file : record.files) files.push_back(ManifestFileJson(file));
  std::vector<std::string> tables;
  for (const ManifestTable& table : record.tables) tables.push_back(ManifestTableJson(table));
  SealedJsonWriter out = Begin(kKind<PartRecord>);
  out.Text("attempt", record.attempt);
  out.Text("participant", record.participant);
  out.Text("uuid", record.uuid);
  out.Lines("files", files);
  out.Lines("tables", tables);
  out.Json("metadata", record.metadata);
  return out.Seal();
}

std::string Encode(const AbandonedRecord& record) {
  SealedJsonWriter out = Begin(kKind<AbandonedRecord>);
  out.Text("attempt", record.attempt);
  out.Texts("missing", record.missing);
  return out.Seal();
}

std::string Encode(const NoteRecord& record) {
  SealedJsonWriter out = Begin(kKind<NoteRecord>);
  out.Uint("number", record.number);
  out.Text("kind", NoteKindName(record.kind));
  out.Text("uuid", record.uuid);
  if (!record.checkpoint.empty()) out.Text("checkpoint", record.checkpoint);
  out.Uint("generation", record.generation);
  out.Json("values", record.values);
  out.Int("time", record.time);
  return out.Seal();
}

std::string Encode(const MarkerRecord& record) {
  SealedJsonWriter out = Begin(kKind<MarkerRecord>);
  out.Uint("generation", record.generation);
  out.Text("attempt", record.attempt);
  if (!record.copies.empty()) out.Text("copies", record.copies);
  if (!record.participants.empty()) out.Texts("participants", record.participants);
  return out.Seal();
}

std::string Encode(const ShelfRecord& record) {
  std::vector<std::string> entries;
  entries.reserve(record.entries.size());
  for (const ShelfRecord::Entry& entry : record.entries) {
    entries.push_back(EncodeJson(
        Value::Object{{"dir", entry.directory}, {"tag", entry.tag}, {"manifest", entry.manifest}}));
  }
  SealedJsonWriter out = Begin(kKind<ShelfRecord>);
  out.Lines("checkpoints", entries);
  return out.Seal();
}

template <typename Record>
Result<Record> Decode(std::string_view bytes) {
  const std::string context(kKind<Record>);
  Result<Value::Object> members = DecodeSealedJson(bytes);
  if (!members.ok()) return members.status().WithContext(context);
  const MemberReader in(*members);
  std::string kind;
  RETURN_IF_ERROR(in.Text("record", &kind).WithContext(context));
  if (kind != kKind<Record>) {
    return CorruptionError(context + ": it is a record of kind " + QuoteForMessage(kind));
  }
  Result<Record> record = Record{};
  RETURN_IF_ERROR(Read(in, &*record).WithContext(context));
  return record;
}

template Result<RepositoryRecord> Decode(std::string_view);
template Result<FenceRecord> Decode(std::string_view);
template Result<SealRecord> Decode(std::string_view);
template Result<ClosedRecord> Decode(std::string_view);
template Result<EndRecord> Decode(std::string_view);
template Result<StartRecord> Decode(std::string_view);
template Result<JoinRecord> Decode(std::string_view);
template Result<AttemptRecord> Decode(std::string_view);
template Result<PartRecord> Decode(std::string_view);
template Result<AbandonedRecord> Decode(std::string_view);
template Result<ShelfRecord> Decode(std::string_view);
template Result<NoteRecord> Decode(std::string_view);
template Result<MarkerRecord> Decode(std::string_view);

}  // namespace cairn
