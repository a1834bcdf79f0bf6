// Checkpoints: what they hold, keeping and removing them, taking them home.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <cairn/checkpoint_manager.h>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_path.h"
#include "format/json.h"
#include "master/api.h"
#include "master/api_json.h"
#include "master/checkpoint_archive.h"
#include "master/glob.h"

namespace cairn::master {
namespace {

constexpr std::uint64_t kEnoughWaits = 2u << 20;
constexpr auto kSlowest = std::chrono::seconds(60);  // a client that takes nothing for so long
constexpr std::uint64_t kMostListed = 10'000;

bool IsCheckpointId(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::ranges::all_of(id, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

Result<CheckpointRow> Find(const ApiParts& parts, const std::string& id) {
  if (!IsCheckpointId(id)) return NotFoundError("no such checkpoint");
  ASSIGN_OR_RETURN(CheckpointRow row, parts.catalog->trials().FindCheckpoint(id));
  RETURN_IF_ERROR(CheckTrial(parts, row.trial));
  return row;
}

/// Its directory. What a run said of it is used for the name alone: the place is the repository.
Result<std::string> PlaceOf(const ApiParts& parts, const CheckpointRow& row) {
  if (row.record.state != CheckpointState::kCompleted) {
    return FailedPreconditionError(fmt::format("checkpoint {} is {}: it has no files",
                                               row.record.id,
                                               CheckpointStateName(row.record.state)));
  }
  ASSIGN_OR_RETURN(const TrialView view, parts.engine->Summary(row.trial));
  std::string name = row.record.path.substr(row.record.path.rfind('/') + 1);
  if (name.empty() || name == "." || name == "..") {
    ASSIGN_OR_RETURN(const auto found, RepositoryAccess::Real()->List(view.repository));
    for (const FoundCheckpoint& one : found) {
      if (one.id == row.record.id) name = one.path.substr(one.path.rfind('/') + 1);
    }
  }
  const std::string place = view.repository + "/" + name;
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(place));
  if (placed.checkpoint.manifest->id != row.record.id) {
    return NotFoundError(fmt::format("checkpoint {} is not in {}", row.record.id, place));
  }
  return place;
}

Result<ApiAnswer> Get(const ApiParts& parts, const std::string& id) {
  ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, id));
  LookUpNewBytes(parts, std::span(&row, 1));
  return ApiAnswer{.body = ToJson(parts, row)};
}

Result<ApiAnswer> Patch(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
  bool pinned = false;
  BodyReader body(call);
  body->Bool("pinned", &pinned);
  body->Take("metadata");
  RETURN_IF_ERROR(body->Finish());
  const Value* metadata = call.body.Find("metadata");
  if (metadata != nullptr && !metadata->is_null()) {
    if (!metadata->is_object()) return InvalidArgumentError("metadata must be an object");
    ASSIGN_OR_RETURN(Value laid, MetadataOf(parts, row.record));
    for (const auto& [key, value] : *metadata->if_object()) {
      if (value.is_null()) {
        laid.if_object()->erase(key);
      } else {
        (*laid.if_object())[key] = value;
      }
    }
    RETURN_IF_ERROR(SetMetadata(parts, row.record, laid));
  }
  if (const Value* pin = call.body.Find("pinned"); pin != nullptr && !pin->is_null()) {
    RETURN_IF_ERROR(parts.engine->Pin(row.trial, row.record.id, pinned));
  }
  return Get(parts, row.record.id);
}

/// Why a checkpoint stays although a user wants it gone; "": it may go.
std::string WhyKept(const ApiParts& parts, const TrialView& view, const CheckpointRow& row,
                    const std::set<std::string>& bases,
                    const std::multimap<std::string, std::string>& begun) {
  if (row.record.state != CheckpointState::kCompleted) {
    return fmt::format("it is {}", CheckpointStateName(row.record.state));
  }
  if (row.record.pinned) return "it is pinned";
  if (bases.contains(row.record.id)) return "an increment builds on it";
  const auto start = view.record.NextStart(view.repository);
  if (!IsEnded(view.record.core.state) && start && start->id == row.record.id) {
    return "its trial goes on from it";
  }
  if (const auto other = begun.find(row.record.id); other != begun.end()) {
    return fmt::format("experiment {} begins with it",
                       parts.experiments->ExperimentOfTrial(other->second));
  }
  return "";
}

struct RemovalPlan {
  std::map<std::string, std::vector<CheckpointRow>> by_trial;
  std::vector<std::pair<std::string, std::string>> kept;  // id, reason
};

Result<std::vector<CheckpointRow>> AllOf(const ApiParts& parts, CheckpointQuery query) {
  std::vector<CheckpointRow> out;
  query.states = {std::string(CheckpointStateName(CheckpointState::kCompleted))};
  query.limit = kMaxPage;
  for (;; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(Page<CheckpointRow> page, parts.catalog->trials().Checkpoints(query));
    const std::size_t count = page.items.size();
    for (CheckpointRow& row : page.items) out.push_back(std::move(row));
    if (count < kMaxPage || out.size() >= kMostListed) return out;
  }
}

Result<RemovalPlan> Plan(const ApiParts& parts, const std::vector<CheckpointRow>& wanted) {
  RemovalPlan plan;
  std::map<std::string, std::vector<CheckpointRow>> by_trial;
  for (const CheckpointRow& row : wanted) by_trial[row.trial].push_back(row);
  for (const auto& [trial, rows] : by_trial) {
    ASSIGN_OR_RETURN(const TrialView view, parts.engine->Summary(trial));
    ASSIGN_OR_RETURN(const std::vector<CheckpointRow> all, AllOf(parts, {.trial = trial}));
    std::set<std::string> going;
    for (const CheckpointRow& row : rows) going.insert(row.record.id);
    std::set<std::string> bases;
    for (const CheckpointRow& one : all) {
      if (!one.base.empty() && !going.contains(one.record.id)) bases.insert(one.base);
    }
    const auto begun = parts.engine->BegunWith(trial);
    for (const CheckpointRow& row : rows) {
      const std::string why = WhyKept(parts, view, row, bases, begun);
      if (why.empty()) {
        plan.by_trial[trial].push_back(row);
      } else {
        plan.kept.emplace_back(row.record.id, why);
      }
    }
  }
  return plan;
}

Result<ApiAnswer> Remove(const ApiParts& parts, const ApiCall& call) {
  std::vector<std::string> ids;
  std::vector<std::string> globs;
  std::string trial;
  std::string experiment;
  bool dry_run = false;
  BodyReader body(call);
  body->Texts("ids", &ids);
  body->Texts("globs", &globs);
  body->Text("trial", &trial);
  body->Text("experiment", &experiment);
  body->Bool("dry_run", &dry_run);
  RETURN_IF_ERROR(body->Finish());
  if (ids.empty() && globs.empty()) return InvalidArgumentError("name ids or globs");
  if (ids.size() > kMostListed || globs.size() > 100) {
    return InvalidArgumentError("at most 10000 ids and 100 globs");
  }
  if (!globs.empty() && trial.empty() && experiment.empty()) {
    return InvalidArgumentError("globs need a trial or an experiment");
  }
  std::vector<CheckpointRow> wanted;
  RemovalPlan plan;
  for (const std::string& id : ids) {
    auto row = Find(parts, id);
    if (row.ok()) {
      wanted.push_back(*std::move(row));
    } else {
      plan.kept.emplace_back(id, std::string(row.status().message()));
    }
  }
  if (!globs.empty()) {
    if (!trial.empty()) RETURN_IF_ERROR(CheckTrial(parts, trial));
    if (!experiment.empty()) {
      ASSIGN_OR_RETURN(const std::int64_t id, ExperimentId(experiment));
      RETURN_IF_ERROR(parts.catalog->experiments().Get(id).status());
    }
    ASSIGN_OR_RETURN(const std::vector<CheckpointRow> all,
                     AllOf(parts, {.trial = trial, .experiment = experiment}));
    std::set<std::string> listed;
    std::map<std::string, std::string> paths;
    for (const CheckpointRow& row : all) {
      // Runs do not have to say where a checkpoint lies; its repository knows.
      if (row.record.path.empty() && listed.insert(row.trial).second) {
        ASSIGN_OR_RETURN(const TrialView view, parts.engine->Summary(row.trial));
        if (const auto found = RepositoryAccess::Real()->List(view.repository); found.ok()) {
          for (const FoundCheckpoint& one : *found) paths[one.id] = one.path;
        }
      }
      const std::string path = row.record.path.empty() ? paths[row.record.id] : row.record.path;
      const std::string name = path.substr(path.rfind('/') + 1);
      const bool hit = std::ranges::any_of(globs, [&](const std::string& glob) {
        return glob.size() <= 256 && (GlobMatch(glob, row.record.id) || GlobMatch(glob, name));
      });
      const bool known = std::ranges::any_of(
          wanted, [&](const CheckpointRow& one) { return one.record.id == row.record.id; });
      if (hit && !known) wanted.push_back(row);
    }
  }
  ASSIGN_OR_RETURN(RemovalPlan planned, Plan(parts, wanted));
  for (auto& one : plan.kept) planned.kept.push_back(std::move(one));
  Value::List removed;
  Value::List later;
  std::uint64_t bytes = 0;
  for (const auto& [of, rows] : planned.by_trial) {
    std::vector<std::string> going;
    for (const CheckpointRow& row : rows) going.push_back(row.record.id);
    TrialEngine::Removed done;
    if (dry_run) {
      ASSIGN_OR_RETURN(const TrialView view, parts.engine->Summary(of));
      (view.record.core.live ? done.left_to_run : done.gone) = going;
    } else {
      auto did = parts.engine->RemoveCheckpoints(of, going, "removed by " + call.who.name);
      if (!did.ok()) {
        for (const std::string& id : going) {
          planned.kept.emplace_back(id, std::string(did.status().message()));
        }
        continue;
      }
      done = *std::move(did);
    }
    for (const CheckpointRow& row : rows) {
      const std::string& id = row.record.id;
      if (std::ranges::find(done.gone, id) != done.gone.end()) {
        removed.emplace_back(id);
      } else if (std::ranges::find(done.left_to_run, id) != done.left_to_run.end()) {
        later.emplace_back(id);
      } else {
        planned.kept.emplace_back(id, "the repository did not let it go");
        continue;
      }
      bytes += row.record.bytes;
    }
  }
  Value::List kept;
  for (const auto& [id, reason] : planned.kept) {
    kept.emplace_back(Value::Object{{"id", id}, {"reason", reason}});
  }
  return ApiAnswer{.body = Value::Object{{"removed", std::move(removed)},
                                         {"left_to_run", std::move(later)},
                                         {"kept", std::move(kept)},
                                         {"bytes", bytes}}};
}

Result<ApiAnswer> Delete(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
  if (row.record.state == CheckpointState::kDeleted) return ApiAnswer{};
  ASSIGN_OR_RETURN(const RemovalPlan plan, Plan(parts, {row}));
  if (!plan.kept.empty()) return FailedPreconditionError(plan.kept.front().second);
  ASSIGN_OR_RETURN(
      const TrialEngine::Removed done,
      parts.engine->RemoveCheckpoints(row.trial, {row.record.id}, "removed by " + call.who.name));
  if (!done.left_to_run.empty()) return ApiAnswer{.status = 202};
  if (done.gone.empty()) return FailedPreconditionError("the repository did not let it go");
  return ApiAnswer{};
}

Status Download(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  QueryReader reader(call);
  const std::string format = reader.Word("format", {"tar", "tar.gz", "zip"}, "tar");
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
  ASSIGN_OR_RETURN(const std::string place, PlaceOf(parts, row));
  const ArchiveFormat kind = format == "zip"      ? ArchiveFormat::kZip
                             : format == "tar.gz" ? ArchiveFormat::kTarGz
                                                  : ArchiveFormat::kTar;
  std::optional<HttpStream> stream;
  Clock* const clock = parts.clock;
  const Status done = ArchiveCheckpoint(
      place, kind,
      [&] {
        stream = reply.Stream(
            200,
            kind == ArchiveFormat::kZip     ? "application/zip"
            : kind == ArchiveFormat::kTarGz ? "application/gzip"
                                            : "application/x-tar",
            {{"Content-Disposition",
              fmt::format("attachment; filename=\"checkpoint-{}.{}\"", row.record.id, format)}});
        return Status::Ok();
      },
      [&](std::string_view bytes) -> Status {
        // Nobody tells when the client has taken something: looked at now and then.
        const Clock::Duration since = clock->Now();
        while (stream->open() && stream->backlog() > kEnoughWaits) {
          if (clock->Now() - since > kSlowest)
            return DeadlineExceededError("the client is too slow");
          clock->Sleep(std::chrono::milliseconds(2));
        }
        return stream->Write(std::string(bytes)) ? Status::Ok() : CancelledError("the client left");
      });
  if (!stream) return done;
  if (done.ok()) {
    stream->End();
  } else {
    stream->Abort();
  }
  return Status::Ok();
}

Result<ApiAnswer> Files(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
  ASSIGN_OR_RETURN(const std::string place, PlaceOf(parts, row));
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(place));
  Value::List files;
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : placed.checkpoint.manifest->files) {
    files.emplace_back(Value::Object{{"path", file.path}, {"bytes", file.hash.bytes}});
    bytes += file.hash.bytes;
  }
  const std::uint64_t total = files.size();
  return ApiAnswer{
      .body = Value::Object{{"files", std::move(files)}, {"total", total}, {"bytes", bytes}}};
}

/// ASCII letters alone: names of tensors have few others.
bool ContainsIgnoringCase(std::string_view text, std::string_view part) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto found =
      std::ranges::search(text, part, [&](char a, char b) { return lower(a) == lower(b); });
  return !found.empty() || part.empty();
}

struct HeldTensors {
  TensorMap tensors;
  std::vector<std::string> files;

  /// Where it begins; "" for one without elements.
  std::string FileOf(const StoredTensor& tensor) const {
    return tensor.pieces.empty() ? "" : files[tensor.pieces.front().file];
  }
};

Result<HeldTensors> TensorsOf(const ApiParts& parts, const std::string& id) {
  ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, id));
  ASSIGN_OR_RETURN(const std::string place, PlaceOf(parts, row));
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(place));
  ASSIGN_OR_RETURN(const auto open,
                   OpenCheckpoint::Open(placed.env.store.get(), placed.checkpoint.directory,
                                        placed.checkpoint.manifest));
  ASSIGN_OR_RETURN(TensorMap tensors, open->ReadCatalog(TensorGroup::kModel, ""));
  HeldTensors held{.tensors = std::move(tensors)};
  for (const OpenFile& file : open->files()) held.files.push_back(file.entry->path);
  return held;
}

std::uint64_t ElementsOf(const StoredTensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::uint64_t n : tensor.shape) elements *= n;
  return elements;
}

Result<ApiAnswer> Tensors(const ApiParts& parts, const ApiCall& call) {
  QueryReader reader(call);
  const std::string search = reader.Text("search", 256);
  std::uint64_t offset = 0;
  std::uint64_t limit = 0;
  reader.Page(&offset, &limit);
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const HeldTensors held, TensorsOf(parts, call.Param("checkpoint")));
  Value::List list;
  std::uint64_t total = 0;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : held.tensors) {
    if (!search.empty() && !ContainsIgnoringCase(name, search)) continue;
    std::uint64_t size = 0;
    for (const StoredPiece& piece : tensor.pieces) size += piece.bytes;
    bytes += size;
    if (total++ < offset || list.size() >= limit) continue;
    Value::List shape;
    for (const std::uint64_t n : tensor.shape) shape.emplace_back(n);
    list.emplace_back(Value::Object{{"name", name},
                                    {"dtype", DTypeName(tensor.dtype)},
                                    {"shape", std::move(shape)},
                                    {"bytes", size},
                                    {"file", held.FileOf(tensor)}});
  }
  return ApiAnswer{
      .body = Value::Object{{"tensors", std::move(list)}, {"total", total}, {"bytes", bytes}}};
}

Result<ApiAnswer> Compare(const ApiParts& parts, const ApiCall& call) {
  const std::string other(call.Query("with"));
  if (other.empty()) return InvalidArgumentError("with is missing: the other checkpoint's id");
  ASSIGN_OR_RETURN(const CheckpointRow a, Find(parts, call.Param("checkpoint")));
  ASSIGN_OR_RETURN(const CheckpointRow b, Find(parts, other));
  ASSIGN_OR_RETURN(const std::string place_a, PlaceOf(parts, a));
  ASSIGN_OR_RETURN(const std::string place_b, PlaceOf(parts, b));
  ASSIGN_OR_RETURN(const HeldTensors held, TensorsOf(parts, a.record.id));
  ASSIGN_OR_RETURN(const std::vector<TensorDifference> differences, Diff(place_a, place_b));
  std::map<std::string, std::uint64_t> counts;
  Value::List list;
  std::uint64_t of_a = 0;
  for (const TensorDifference& one : differences) {
    const std::string kind = one.what == "rows" ? "changed" : one.what;
    ++counts[kind == "added" || kind == "removed" ? kind : "changed"];
    const auto before = held.tensors.find(one.name);
    if (kind != "added" && before != held.tensors.end()) ++of_a;
    if (list.size() >= kMostListed) continue;
    Value::Object out{{"name", one.name}, {"kind", kind}};
    if (kind == "changed") {
      out["max_difference"] = one.max_abs;
      out["changed_elements"] = one.elements;
      if (one.what != "rows" && before != held.tensors.end()) {
        out["elements"] = ElementsOf(before->second);
      }
    }
    if (one.what == "rows") {
      out["rows_added"] = one.rows_added;
      out["rows_removed"] = one.rows_removed;
      out["rows_changed"] = one.rows_changed;
    }
    list.emplace_back(std::move(out));
  }
  return ApiAnswer{.body = Value::Object{{"equal", held.tensors.size() - of_a},
                                         {"changed", counts["changed"]},
                                         {"added", counts["added"]},
                                         {"removed", counts["removed"]},
                                         {"tensors", std::move(list)}}};
}

/// Puts together where a checkpoint came from and what came from it.
class Lineage {
 public:
  /// `of` has its place in it also when it was deleted; of others that were, nothing is told.
  Lineage(const ApiParts& parts, const CheckpointRow& of) : parts_(parts), of_(of) {}

  Status AddTrial(const std::string& trial) {
    if (!trials_.insert(trial).second || trials_.size() > 100) return Status::Ok();
    ASSIGN_OR_RETURN(std::vector<CheckpointRow> rows, AllOf(parts_, {.trial = trial}));
    if (trial == of_.trial && of_.record.state != CheckpointState::kCompleted) rows.push_back(of_);
    std::ranges::sort(rows, {}, [](const CheckpointRow& row) { return row.record.order; });
    const CheckpointRow* before = nullptr;
    for (const CheckpointRow& row : rows) {
      AddNode(row);
      if (before != nullptr) {
        AddEdge(before->record.id, row.record.id,
                before->record.run == row.record.run ? "next" : "resume");
      }
      if (!row.base.empty()) AddEdge(row.base, row.record.id, "base");
      before = &row;
    }
    ASSIGN_OR_RETURN(const TrialRow record, parts_.catalog->trials().Get(trial));
    if (!record.parent_trial.empty()) {
      RETURN_IF_ERROR(AddTrial(record.parent_trial));
      if (!rows.empty() && !record.parent_checkpoint.empty()) {
        if (const auto parent = parts_.catalog->trials().GetCheckpoint(record.parent_checkpoint);
            parent.ok()) {
          AddNode(*parent);
          AddEdge(record.parent_checkpoint, rows.front().record.id, "continue");
        }
      }
    }
    ASSIGN_OR_RETURN(const Page<Experiment> children,
                     parts_.catalog->experiments().List({.parent_trial = trial, .limit = 100}));
    for (const Experiment& child : children.items) {
      ASSIGN_OR_RETURN(
          const Page<TrialRow> trials,
          parts_.catalog->trials().List({.experiment = std::to_string(child.id), .limit = 100}));
      for (const TrialRow& one : trials.items) RETURN_IF_ERROR(AddTrial(one.id));
    }
    return Status::Ok();
  }

  ApiAnswer Answer() {
    return {.body = Value::Object{{"nodes", std::move(nodes_)}, {"edges", std::move(edges_)}}};
  }

 private:
  void AddNode(const CheckpointRow& row) {
    if (!known_.insert(row.record.id).second) return;
    nodes_.emplace_back(Value::Object{{"id", row.record.id},
                                      {"trial", row.trial},
                                      {"experiment", row.experiment},
                                      {"steps_completed", row.record.steps},
                                      {"state", CheckpointStateName(row.record.state)}});
  }
  void AddEdge(const std::string& from, const std::string& to, std::string_view kind) {
    edges_.emplace_back(Value::Object{{"from", from}, {"to", to}, {"kind", kind}});
  }

  const ApiParts& parts_;
  const CheckpointRow& of_;
  std::set<std::string> trials_;
  std::set<std::string> known_;
  Value::List nodes_;
  Value::List edges_;
};

}  // namespace

void AddCheckpointRoutes(const ApiParts& parts, std::vector<ApiRoute>* out) {
  const RoutesUnder add("/api/v1/checkpoints", out);
  add("POST", "/rm", Access::kUser, [parts](const ApiCall& call) { return Remove(parts, call); });
  add("GET", "/{checkpoint}", Access::kViewer,
      [parts](const ApiCall& call) { return Get(parts, call.Param("checkpoint")); });
  add("PATCH", "/{checkpoint}", Access::kUser,
      [parts](const ApiCall& call) { return Patch(parts, call); });
  add("DELETE", "/{checkpoint}", Access::kUser,
      [parts](const ApiCall& call) { return Delete(parts, call); });
  add("GET", "/{checkpoint}/download", Access::kViewer,
      [parts](const ApiCall& call, const HttpReply& reply) {
        // On threads of their own: downloads last.
        const bool taken = parts.downloads->Post([parts, call, reply] {
          const Status status = Download(parts, call, reply);
          if (!status.ok()) reply.Send(ApiError(status));
        });
        return taken ? Status::Ok() : UnavailableError("too many downloads wait");
      });
  add("GET", "/{checkpoint}/files", Access::kViewer,
      [parts](const ApiCall& call) { return Files(parts, call); });
  add("GET", "/{checkpoint}/tensors", Access::kViewer,
      [parts](const ApiCall& call) { return Tensors(parts, call); });
  add("GET", "/{checkpoint}/verify", Access::kViewer,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
        return ApiAnswer{.body = parts.verifications->Get(row.record.id)};
      });
  add("POST", "/{checkpoint}/verify", Access::kUser,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
        ASSIGN_OR_RETURN(const std::string place, PlaceOf(parts, row));
        RETURN_IF_ERROR(parts.verifications->Begin(row.record.id, place));
        return ApiAnswer{.status = 202, .body = parts.verifications->Get(row.record.id)};
      });
  add("GET", "/{checkpoint}/diff", Access::kViewer,
      [parts](const ApiCall& call) { return Compare(parts, call); });
  add("GET", "/{checkpoint}/lineage", Access::kViewer,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        ASSIGN_OR_RETURN(const CheckpointRow row, Find(parts, call.Param("checkpoint")));
        Lineage lineage(parts, row);
        RETURN_IF_ERROR(lineage.AddTrial(row.trial));
        return lineage.Answer();
      });
}

}  // namespace cairn::master
