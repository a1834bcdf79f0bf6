// Experiments, their code and their policies.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/api.h"
#include "master/api_json.h"

namespace cairn::master {
namespace {

constexpr std::uint64_t kMostFileBytes = 1u << 20;

Result<std::int64_t> IdOf(const ApiCall& call) { return ExperimentId(call.Param("experiment")); }

/// 400 invalid_config, with all mistakes and their lines apart.
void RefuseConfig(const Status& status, const HttpReply& reply) {
  const std::vector<ConfigProblem> problems = ProblemsIn(status);
  Value::List listed;
  for (const ConfigProblem& problem : problems) {
    Value::Object one{{"message", problem.message}};
    if (problem.line > 0) one["line"] = problem.line;
    listed.emplace_back(std::move(one));
  }
  std::string message = "the config";
  if (problems.size() == 1) {
    message += fmt::format(": {}", status.message());
  } else {
    message += " has several mistakes:\n";
    message += status.message();
  }
  const Value body = Value::Object{{"code", "invalid_config"},
                                   {"message", std::move(message)},
                                   {"details", Value::Object{{"problems", std::move(listed)}}}};
  reply.Send({.status = 400, .body = EncodeJson(body)});
}

Status RequestId(const std::string& id) {
  const bool good = id.size() >= 8 && id.size() <= 64 && std::ranges::all_of(id, [](char c) {
                      return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                             (c >= '0' && c <= '9') || c == '-';
                    });
  return good || id.empty() ? Status::Ok()
                            : InvalidArgumentError("request_id: 8 to 64 letters, digits, dashes");
}

Result<Value> ObjectIn(const ApiCall& call, std::string_view key) {
  const Value* found = call.body.Find(key);
  if (found == nullptr || found->is_null()) return Value();
  if (!found->is_object()) return InvalidArgumentError(fmt::format("{} must be an object", key));
  return *found;
}

Status Create(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  Experiments::Request request{.owner = call.who.name};
  bool validate_only = false;
  BodyReader body(call);
  body->Text("config", &request.config);
  body->Text("code", &request.code);
  body->Take("overrides");
  body->Bool("paused", &request.paused);
  body->Bool("validate_only", &validate_only);
  body->Text("request_id", &request.request_id);
  RETURN_IF_ERROR(body->Finish());
  RETURN_IF_ERROR(RequestId(request.request_id));
  ASSIGN_OR_RETURN(request.overrides, ObjectIn(call, "overrides"));
  if (request.config.empty()) return InvalidArgumentError("config is missing: the YAML text");
  if (request.config.size() > (256u << 10)) {
    return InvalidArgumentError("config: at most 256 KiB");
  }
  if (!request.code.empty()) RETURN_IF_ERROR(parts.code->Get(request.code).status());
  const auto checked = parts.experiments->Check(request);
  if (checked.status().Is(Code::kInvalidArgument)) {
    RefuseConfig(checked.status(), reply);
    return Status::Ok();
  }
  RETURN_IF_ERROR(checked.status());
  if (validate_only) {
    reply.Send({.body = EncodeJson(ToJson(parts, *checked, true))});
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(const std::int64_t id, parts.experiments->Create(request));
  ASSIGN_OR_RETURN(const ApiAnswer answer, ExperimentAnswer(parts, id, 201));
  reply.Send({.status = answer.status, .body = EncodeJson(answer.body)});
  return Status::Ok();
}

Result<ApiAnswer> List(const ApiParts& parts, const ApiCall& call) {
  QueryReader reader(call);
  ExperimentQuery query{.now = parts.clock->WallNanos()};
  query.states = reader.TrialStates();
  if (const std::string owner = reader.Text("owner", 64); !owner.empty()) query.owners = {owner};
  if (const std::string label = reader.Text("label", 64); !label.empty()) query.labels = {label};
  query.search = reader.Text("search", 256);
  if (!reader.Bool("archived")) query.archived = false;
  constexpr std::pair<std::string_view, ExperimentSort> kSorts[] = {
      {"id", ExperimentSort::kId},
      {"name", ExperimentSort::kName},
      {"state", ExperimentSort::kState},
      {"progress", ExperimentSort::kProgress},
      {"trials", ExperimentSort::kTrials},
      {"best", ExperimentSort::kBestMetric},
      {"checkpoint_bytes", ExperimentSort::kCheckpointBytes},
      {"owner", ExperimentSort::kOwner},
      {"created", ExperimentSort::kId},
      {"started", ExperimentSort::kStarted},
      {"duration", ExperimentSort::kDuration}};
  std::vector<std::string_view> words;
  for (const auto& [word, sort] : kSorts) words.push_back(word);
  const std::string sort = reader.Word("sort", words, "id");
  for (const auto& [word, by] : kSorts) query.sort = word == sort ? by : query.sort;
  // Without an order the best comes first, whether that is the smallest or the largest.
  if (sort == "best" && !call.query.contains("order")) query.sort = ExperimentSort::kBest;
  query.descending = reader.Word("order", {"asc", "desc"}, "desc") == "desc";
  reader.Page(&query.offset, &query.limit);
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(const Page<Experiment> page, parts.catalog->experiments().List(query));
  Value::List items;
  for (const Experiment& one : page.items) items.push_back(ToJson(parts, one, false));
  return ApiAnswer{.body = Value::Object{{"experiments", std::move(items)},
                                         {"total", page.total},
                                         {"limit", query.limit},
                                         {"offset", query.offset}}};
}

Result<ApiAnswer> Patch(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
  ASSIGN_OR_RETURN(const Experiment record, parts.catalog->experiments().Get(id));
  ExperimentChange change;
  std::string name;
  std::string description;
  std::string notes;
  std::vector<std::string> labels;
  bool archived = false;
  BodyReader body(call);
  body->Text("name", &name);
  body->Text("description", &description);
  body->Texts("labels", &labels);
  body->Text("notes", &notes);
  body->Bool("archived", &archived);
  RETURN_IF_ERROR(body->Finish());
  const auto given = [&](std::string_view key) {
    const Value* found = call.body.Find(key);
    return found != nullptr && !found->is_null();
  };
  if (given("name") && (name.empty() || name.size() > 256)) {
    return InvalidArgumentError("name: 1 to 256 bytes");
  }
  if (description.size() > 4096 || notes.size() > 65536 || labels.size() > 64 ||
      std::ranges::any_of(labels, [](const auto& l) { return l.empty() || l.size() > 64; })) {
    return InvalidArgumentError(
        "description: at most 4096 bytes; notes: 65536; labels: 64 of 1 to 64 bytes");
  }
  if (given("name")) change.name = name;
  if (given("description")) change.description = description;
  if (given("notes")) change.notes = notes;
  if (given("labels")) change.labels = labels;
  if (given("archived")) {
    if (archived && !IsEndedState(record.state)) {
      return FailedPreconditionError(
          fmt::format("experiment {} is {}: only ended ones are archived", id, record.state));
    }
    change.archived = archived;
  }
  RETURN_IF_ERROR(parts.catalog->experiments().Update(id, change));
  parts.feed->OnExperiment(id, Value::Object{{"state", record.state}});
  return ExperimentAnswer(parts, id);
}

/// pause, activate, cancel, kill.
ApiRoute::Answer Act(const ApiParts& parts, Status (Experiments::*act)(std::int64_t)) {
  return [parts, act](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
    RETURN_IF_ERROR((parts.experiments->*act)(id));
    return ExperimentAnswer(parts, id);
  };
}

Result<std::string> CodeOf(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
  ASSIGN_OR_RETURN(const Experiment record, parts.catalog->experiments().Get(id));
  if (record.code_digest.empty()) {
    return NotFoundError(fmt::format("experiment {} has no code", id));
  }
  return parts.code->Get(record.code_digest);
}

Result<ApiAnswer> ListCode(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const std::string archive, CodeOf(parts, call));
  std::vector<std::pair<std::string, std::uint64_t>> files;
  std::uint64_t bytes = 0;
  RETURN_IF_ERROR(VisitCode(archive, parts.code->limits(),
                            {.entry =
                                 [&](const CodeEntry& entry) {
                                   if (entry.kind != CodeEntry::Kind::kDirectory) {
                                     files.emplace_back(entry.path, 0);
                                   }
                                   return Status::Ok();
                                 },
                             .data =
                                 [&](std::string_view piece) {
                                   files.back().second += piece.size();
                                   bytes += piece.size();
                                   return Status::Ok();
                                 }}));
  std::ranges::sort(files);
  Value::List list;
  for (const auto& [path, size] : files) {
    list.emplace_back(Value::Object{{"path", path}, {"bytes", size}});
  }
  return ApiAnswer{
      .body = Value::Object{{"total", files.size()}, {"files", std::move(list)}, {"bytes", bytes}}};
}

Status ReadCode(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  const std::string_view path = call.Query("path");
  if (path.empty()) return InvalidArgumentError("path is missing");
  ASSIGN_OR_RETURN(const std::string archive, CodeOf(parts, call));
  std::string bytes;
  bool wanted = false;
  bool found = false;
  RETURN_IF_ERROR(VisitCode(archive, parts.code->limits(),
                            {.entry =
                                 [&](const CodeEntry& entry) {
                                   wanted =
                                       entry.kind == CodeEntry::Kind::kFile && entry.path == path;
                                   found = found || wanted;
                                   return Status::Ok();
                                 },
                             .data =
                                 [&](std::string_view piece) {
                                   if (wanted && bytes.size() < kMostFileBytes) {
                                     bytes += piece.substr(0, kMostFileBytes - bytes.size());
                                   }
                                   return Status::Ok();
                                 }}));
  if (!found) return NotFoundError(fmt::format("the code has no file {}", QuoteForMessage(path)));
  reply.Send({.body = std::move(bytes),
              .content_type = "text/plain; charset=utf-8",
              .headers = {{"X-Content-Type-Options", "nosniff"},
                          {"Content-Security-Policy", "sandbox; default-src 'none'"}}});
  return Status::Ok();
}

Status UploadCode(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  const auto stored = parts.code->Put(call.raw);
  if (stored.status().Is(Code::kResourceExhausted) &&
      stored.status().message().starts_with("the archive")) {
    reply.Send(ErrorResponse(413, "too_large", stored.status().message()));
    return Status::Ok();
  }
  RETURN_IF_ERROR(stored.status());
  reply.Send({.status = 201,
              .body = EncodeJson(Value::Object{
                  {"code", stored->digest}, {"bytes", stored->bytes}, {"files", stored->files}})});
  return Status::Ok();
}

Result<SearcherConfig> SearcherOf(const ApiParts& parts, std::int64_t id) {
  ASSIGN_OR_RETURN(const Experiment record, parts.catalog->experiments().Get(id));
  SearcherConfig searcher;
  searcher.metric = record.metric;
  searcher.smaller_is_better = record.smaller_is_better;
  return searcher;
}

Result<ApiAnswer> PreviewPolicy(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
  ASSIGN_OR_RETURN(const SearcherConfig searcher, SearcherOf(parts, id));
  ASSIGN_OR_RETURN(const RetentionPolicy policy, PolicyFromBody(call, searcher));
  Value::List removals;
  std::uint64_t bytes = 0;
  std::uint64_t completed = 0;
  TrialQuery query{.experiment = std::to_string(id), .limit = kMaxPage};
  for (;; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(const Page<TrialRow> page, parts.catalog->trials().List(query));
    for (const TrialRow& trial : page.items) {
      completed += trial.checkpoints;
      ASSIGN_OR_RETURN(const auto gone, parts.engine->PreviewRetention(trial.id, policy));
      if (gone.empty()) continue;
      ASSIGN_OR_RETURN(const TrialView view, parts.engine->Summary(trial.id));
      for (const Removal& removal : gone) {
        const CheckpointRecord* record = view.record.Find(removal.id);
        if (record == nullptr) continue;
        bytes += record->bytes;
        removals.emplace_back(Value::Object{{"trial", removal.trial},
                                            {"id", removal.id},
                                            {"steps_completed", record->steps},
                                            {"bytes", record->bytes},
                                            {"reason", removal.reason}});
      }
    }
    if (page.items.size() < kMaxPage) break;
  }
  const std::uint64_t kept = completed - std::min<std::uint64_t>(completed, removals.size());
  return ApiAnswer{
      .body = Value::Object{{"removals", std::move(removals)}, {"bytes", bytes}, {"kept", kept}}};
}

Result<ApiAnswer> SetPolicy(const ApiParts& parts, const ApiCall& call) {
  ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
  ASSIGN_OR_RETURN(const SearcherConfig searcher, SearcherOf(parts, id));
  ASSIGN_OR_RETURN(const RetentionPolicy policy, PolicyFromBody(call, searcher));
  RETURN_IF_ERROR(parts.experiments->SetPolicy(id, policy));
  return ApiAnswer{.body = ToJson(policy)};
}

Result<Experiments::ContinueRequest> ContinueFrom(const ApiParts& parts, const ApiCall& call) {
  Experiments::ContinueRequest request{.owner = call.who.name};
  BodyReader body(call);
  body->Bool("new", &request.new_experiment);
  body->Text("from", &request.from);
  body->Take("config");
  body->Text("request_id", &request.request_id);
  RETURN_IF_ERROR(body->Finish());
  RETURN_IF_ERROR(RequestId(request.request_id));
  ASSIGN_OR_RETURN(request.overrides, ObjectIn(call, "config"));
  if (!request.from.empty()) {
    ASSIGN_OR_RETURN(const CheckpointRow from,
                     parts.catalog->trials().FindCheckpoint(request.from));
    if (!from.record.id.empty()) request.from = from.record.id;
  }
  return request;
}

Status Continue(const ApiParts& parts, const ApiCall& call, const std::string& trial,
                const Experiments::ContinueRequest& request, const HttpReply& reply) {
  RETURN_IF_ERROR(CheckTrial(parts, trial));
  const auto id = parts.experiments->Continue(trial, request);
  if (id.status().Is(Code::kInvalidArgument) && request.new_experiment) {
    RefuseConfig(id.status(), reply);
    return Status::Ok();
  }
  RETURN_IF_ERROR(id.status());
  ASSIGN_OR_RETURN(const ApiAnswer answer,
                   ExperimentAnswer(parts, *id, request.new_experiment ? 201 : 200));
  reply.Send({.status = answer.status, .body = EncodeJson(answer.body)});
  (void)call;
  return Status::Ok();
}

}  // namespace

void AddExperimentRoutes(const ApiParts& parts, std::vector<ApiRoute>* out) {
  const RoutesUnder root("/api/v1", out);
  const RoutesUnder add("/api/v1/experiments", out);
  ApiRoute& upload =
      root("POST", "/code", Access::kUser, [parts](const ApiCall& call, const HttpReply& reply) {
        return UploadCode(parts, call, reply);
      });
  upload.max_body_bytes = CodeLimits{}.archive_bytes;
  upload.raw = true;
  add("GET", "", Access::kViewer, [parts](const ApiCall& call) { return List(parts, call); });
  add("POST", "", Access::kUser,
      [parts](const ApiCall& call, const HttpReply& reply) { return Create(parts, call, reply); });
  add("GET", "/{experiment}", Access::kViewer, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
    return ExperimentAnswer(parts, id);
  });
  add("PATCH", "/{experiment}", Access::kUser,
      [parts](const ApiCall& call) { return Patch(parts, call); });
  add("DELETE", "/{experiment}", Access::kUser, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
    QueryReader reader(call);
    const bool force = reader.Bool("force");
    const bool keep = reader.Bool("keep_checkpoints");
    RETURN_IF_ERROR(reader.status());
    RETURN_IF_ERROR(parts.experiments->Delete(id, force, keep));
    return ApiAnswer{};
  });
  add("POST", "/{experiment}/pause", Access::kUser, Act(parts, &Experiments::Pause));
  add("POST", "/{experiment}/activate", Access::kUser, Act(parts, &Experiments::Activate));
  add("POST", "/{experiment}/cancel", Access::kUser, Act(parts, &Experiments::Cancel));
  add("POST", "/{experiment}/kill", Access::kUser, Act(parts, &Experiments::Kill));
  add("POST", "/{experiment}/continue", Access::kUser,
      [parts](const ApiCall& call, const HttpReply& reply) -> Status {
        ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
        ASSIGN_OR_RETURN(const auto request, ContinueFrom(parts, call));
        ASSIGN_OR_RETURN(const std::string trial, parts.experiments->TrialOf(id, request.from));
        return Continue(parts, call, trial, request, reply);
      });
  root("POST", "/trials/{trial}/continue", Access::kUser,
       [parts](const ApiCall& call, const HttpReply& reply) -> Status {
         ASSIGN_OR_RETURN(const auto request, ContinueFrom(parts, call));
         return Continue(parts, call, call.Param("trial"), request, reply);
       });
  add("GET", "/{experiment}/trials", Access::kViewer,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
        RETURN_IF_ERROR(parts.catalog->experiments().Get(id).status());
        return TrialPage(parts, call, std::to_string(id), false);
      });
  add("GET", "/{experiment}/checkpoints", Access::kViewer,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
        RETURN_IF_ERROR(parts.catalog->experiments().Get(id).status());
        return CheckpointPage(parts, call, {.experiment = std::to_string(id)});
      });
  add("GET", "/{experiment}/config", Access::kViewer,
      [parts](const ApiCall& call, const HttpReply& reply) -> Status {
        ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
        ASSIGN_OR_RETURN(const Experiment record, parts.catalog->experiments().Get(id));
        reply.Send({.body = record.config_text,
                    .content_type = "application/yaml",
                    .headers = {{"X-Content-Type-Options", "nosniff"}}});
        return Status::Ok();
      });
  add("GET", "/{experiment}/code", Access::kViewer,
      [parts](const ApiCall& call, const HttpReply& reply) -> Status {
        ASSIGN_OR_RETURN(std::string archive, CodeOf(parts, call));
        reply.Send({.body = std::move(archive),
                    .content_type = "application/gzip",
                    .headers = {{"Content-Disposition",
                                 fmt::format("attachment; filename=\"experiment-{}.tar.gz\"",
                                             call.Param("experiment"))}}});
        return Status::Ok();
      });
  add("GET", "/{experiment}/code/files", Access::kViewer,
      [parts](const ApiCall& call) { return ListCode(parts, call); });
  add("GET", "/{experiment}/code/file", Access::kViewer,
      [parts](const ApiCall& call, const HttpReply& reply) {
        return ReadCode(parts, call, reply);
      });
  add("GET", "/{experiment}/policy", Access::kViewer,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        ASSIGN_OR_RETURN(const std::int64_t id, IdOf(call));
        ASSIGN_OR_RETURN(const RetentionPolicy policy, parts.experiments->Policy(id));
        return ApiAnswer{.body = ToJson(policy)};
      });
  add("PUT", "/{experiment}/policy", Access::kUser,
      [parts](const ApiCall& call) { return SetPolicy(parts, call); });
  add("POST", "/{experiment}/policy/preview", Access::kViewer,
      [parts](const ApiCall& call) { return PreviewPolicy(parts, call); });
}

}  // namespace cairn::master
