// Trials: what they are, what can be done with them, their logs and metrics.
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "master/api.h"
#include "master/api_json.h"
#include "trial/report_limits.h"
#include "trial/trial_service.h"

namespace cairn::master {
namespace {

constexpr std::int64_t kMostReports = 100'000;  // in one answer

ApiRoute::Answer Act(const ApiParts& parts, Status (Experiments::*act)(const std::string&)) {
  return [parts, act](const ApiCall& call) -> Result<ApiAnswer> {
    const std::string& trial = call.Param("trial");
    RETURN_IF_ERROR(CheckTrial(parts, trial));
    RETURN_IF_ERROR((parts.experiments->*act)(trial));
    return TrialAnswer(parts, trial);
  };
}

/// What the query says of levels: that one and above.
std::vector<LineLevel> LevelsFrom(const std::string& level) {
  if (level.empty() || level == "TRACE" || level == "DEBUG") return {};
  if (level == "INFO") return {LineLevel::kInfo, LineLevel::kWarning, LineLevel::kError};
  if (level == "WARNING") return {LineLevel::kWarning, LineLevel::kError};
  return {LineLevel::kError};
}

Status ReadLogs(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  const std::string& trial = call.Param("trial");
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  QueryReader reader(call);
  LogQuery query{.trial = trial};
  const bool follow = reader.Bool("follow");
  std::optional<std::int64_t> after = reader.Int("after", 0, kMost);
  if (follow && !call.last_event_id.empty() && call.last_event_id.size() < 19 &&
      call.last_event_id.find_first_not_of("0123456789") == std::string::npos) {
    after = std::stoll(call.last_event_id);
  }
  const auto before = reader.Int("before", 1, kMost);
  const auto tail = reader.Int("tail", 0, 10'000);
  query.limit = static_cast<std::uint64_t>(reader.Int("limit", 1, 10'000).value_or(1000));
  query.levels = LevelsFrom(
      reader.Word("level", {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}, ""));
  if (const auto rank = reader.Int("rank", 0, 1'000'000)) query.ranks = {static_cast<int>(*rank)};
  if (const auto run = reader.Int("run", 1, kMost)) query.run = static_cast<std::uint64_t>(*run);
  const std::string stream = reader.Word("stream", {"stdout", "stderr"}, "");
  if (!stream.empty()) query.from_stderr = stream == "stderr";
  query.text = reader.Text("search", 256);
  if (const auto since = reader.Double("since")) {
    query.from_time = static_cast<std::int64_t>(*since * 1e9);
  }
  if (const auto until = reader.Double("until")) {
    query.to_time = static_cast<std::int64_t>(*until * 1e9);
  }
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(CheckTrial(parts, trial));
  if (after) query.from_id = static_cast<std::uint64_t>(*after) + 1;
  if (before) {
    query.before_id = static_cast<std::uint64_t>(*before);
    query.tail = true;
  }
  if (tail && !after) {
    query.tail = true;
    query.limit = static_cast<std::uint64_t>(*tail);
  }
  if (follow) {
    if (tail == 0 && !after) {
      // Only what comes from now on.
      query.limit = 1;
      ASSIGN_OR_RETURN(const LogPage last, parts.catalog->logs().Read(query));
      query.tail = false;
      query.limit = 1000;
      query.from_id = last.next_id;
    }
    parts.followers->Follow(reply, std::move(query),
                            [parts, who = call.who] { return parts.accounts->StillValid(who); });
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(const LogPage page, parts.catalog->logs().Read(query));
  Value::List lines;
  for (const LogLine& line : page.lines) lines.push_back(ToValue(line));
  reply.Send({.body = EncodeJson(Value::Object{{"lines", std::move(lines)},
                                               {"more", page.more},
                                               {"next", page.next_id - 1},
                                               {"previous", page.previous_id}})});
  return Status::Ok();
}

Result<ApiAnswer> ReadMetrics(const ApiParts& parts, const ApiCall& call) {
  const std::string& trial = call.Param("trial");
  QueryReader reader(call);
  MetricQuery query{.trial = trial};
  query.group = reader.Text("group", kMaxGroupBytes);
  query.names = reader.List("name");
  const auto points = reader.Int("points", 2, 100'000);
  const std::int64_t limit = reader.Int("limit", 1, kMostReports).value_or(kMostReports);
  const std::int64_t after = reader.Int("after", 0, std::int64_t{1} << 60).value_or(0);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  query.from_steps = reader.Int("from", -kMost, kMost).value_or(query.from_steps);
  query.to_steps = reader.Int("to", -kMost, kMost).value_or(query.to_steps);
  query.archived = reader.Bool("archived");
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(CheckTrial(parts, trial));
  Value::List metrics;
  bool more = false;
  std::uint64_t next = 0;
  if (points) {
    ASSIGN_OR_RETURN(const std::vector<MetricSeries> all,
                     parts.catalog->metrics().Series(
                         query, std::max<std::uint64_t>(4, static_cast<std::uint64_t>(*points))));
    for (const MetricSeries& series : all) {
      for (const SeriesPoint& point : series.points) {
        metrics.emplace_back(Value::Object{{"group", series.group},
                                           {"steps_completed", point.steps},
                                           {"run_id", point.run},
                                           {"time", static_cast<double>(point.time) / 1e9},
                                           {"values", Value::Object{{series.name, point.value}}},
                                           {"archived", point.archived}});
      }
    }
  } else {
    const auto most = static_cast<std::uint64_t>(limit);
    ASSIGN_OR_RETURN(
        std::vector<ReportRow> rows,
        parts.catalog->metrics().Reports(query, static_cast<std::uint64_t>(after) + 1, most + 1));
    more = rows.size() > most;
    if (more) rows.pop_back();
    next = rows.empty() ? static_cast<std::uint64_t>(after) : rows.back().seq;
    for (const ReportRow& row : rows) {
      metrics.emplace_back(Value::Object{{"group", row.group},
                                         {"steps_completed", row.steps},
                                         {"run_id", row.run},
                                         {"time", static_cast<double>(row.time) / 1e9},
                                         {"values", row.values},
                                         {"archived", row.archived}});
    }
  }
  ASSIGN_OR_RETURN(const std::vector<MetricName> names, parts.catalog->metrics().Names(trial));
  Value::List listed;
  for (const MetricName& name : names) {
    listed.emplace_back(Value::Object{{"group", name.group}, {"name", name.name}});
  }
  Value::Object body{{"metrics", std::move(metrics)}, {"names", std::move(listed)}};
  if (!points) {
    body["more"] = more;
    body["next"] = next;
  }
  return ApiAnswer{.body = std::move(body)};
}

/// What a run says through this API: its own trial alone.
Status FromRun(const ApiParts& parts, const ApiCall& call, TrialEngine::RunKey* key) {
  const Value* run = call.body.Find("run_id");
  if (run == nullptr || run->AsInt() < 1) return InvalidArgumentError("run_id must be a number");
  *key = {.trial = call.Param("trial"), .run = static_cast<std::uint64_t>(run->AsInt())};
  return parts.engine->Authenticate(*key, call.bearer);
}

TrialEngine::Done<Value> Into(const HttpReply& reply) {
  return [reply](const Result<Value>& answer) {
    reply.Send(answer.ok() ? ServerResponse{.body = EncodeJson(*answer)}
                           : ApiError(answer.status()));
  };
}

Status Report(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  TrialEngine::RunKey key;
  RETURN_IF_ERROR(FromRun(parts, call, &key));
  std::int64_t number = 0;
  std::string group;
  BodyReader body(call);
  body->Int("run_id", &number, 1, std::numeric_limits<std::int64_t>::max());
  body->Int("sequence", &number, 1, std::numeric_limits<std::int64_t>::max());
  body->Text("group", &group);
  body->Int("steps_completed", &number, 0, std::numeric_limits<std::int64_t>::max());
  body->Take("metrics");
  RETURN_IF_ERROR(body->Finish());
  Value report = call.body;
  report.if_object()->erase("run_id");
  parts.engine->Report(key, report, Into(reply));
  return Status::Ok();
}

Status Progress(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  TrialEngine::RunKey key;
  RETURN_IF_ERROR(FromRun(parts, call, &key));
  std::int64_t number = 0;
  double progress = -1;
  BodyReader body(call);
  body->Int("run_id", &number, 1, std::numeric_limits<std::int64_t>::max());
  body->Double("progress", &progress);
  RETURN_IF_ERROR(body->Finish());
  if (!(progress >= 0 && progress <= 1))
    return InvalidArgumentError("progress must be from 0 to 1");
  parts.engine->Progress(key, Value::Object{{"progress", progress}}, Into(reply));
  return Status::Ok();
}

constexpr std::size_t kLongestMetric = 256;

/// A process that was started by hand becomes a run: of its own trial in an experiment of its own,
/// which is the same one when it comes again.
Status Join(const ApiParts& parts, const ApiCall& call, const HttpReply& reply) {
  const auto text = [&](std::string_view name) {
    const Value* found = call.body.Find(name);
    return found != nullptr && found->if_string() != nullptr ? *found->if_string() : std::string();
  };
  Experiments::JoinRequest request{.owner = call.who.name,
                                   .external_id = text("external_id"),
                                   .name = text("experiment"),
                                   .storage = text("storage")};
  if (request.external_id.empty() || request.external_id.size() > 200) {
    return InvalidArgumentError("\"external_id\" must be a text of 1 to 200 bytes");
  }
  if (request.name.empty()) request.name = request.external_id;
  if (const Value* hparams = call.body.Find("hparams"); hparams != nullptr) {
    if (!hparams->is_object()) return InvalidArgumentError("\"hparams\" must be an object");
    request.hparams = *hparams;
  }
  // What it is compared by; the engine, which takes only what it knows, reads the rest.
  for (const auto& [name, to] :
       {std::pair{"metric", &request.metric}, std::pair{"metric_group", &request.metric_group}}) {
    const Value* given = call.body.Find(name);
    if (given == nullptr) continue;
    if (given->if_string() == nullptr || given->if_string()->size() > kLongestMetric) {
      return InvalidArgumentError(
          fmt::format("\"{}\" must be a text of at most {} bytes", name, kLongestMetric));
    }
    *to = *given->if_string();
  }
  if (const Value* smaller = call.body.Find("smaller_is_better"); smaller != nullptr) {
    if (!smaller->is_bool()) return InvalidArgumentError("\"smaller_is_better\" must be a bool");
    request.smaller_is_better = *smaller->if_bool();
  }
  ASSIGN_OR_RETURN(const std::int64_t experiment, parts.experiments->OfDetached(request));
  Value body = call.body;
  // Names of different users do not meet.
  (*body.if_object())["external_id"] = fmt::format("{}:{}", request.owner, request.external_id);
  (*body.if_object())["experiment"] = std::to_string(experiment);
  parts.engine->Join(parts.join_token, body, Into(reply));
  return Status::Ok();
}

}  // namespace

void AddTrialRoutes(const ApiParts& parts, std::vector<ApiRoute>* out) {
  const RoutesUnder add("/api/v1/trials", out);
  add("GET", "", Access::kViewer, [parts](const ApiCall& call) {
    return TrialPage(parts, call, std::string(call.Query("experiment")), true);
  });
  add("GET", "/{trial}", Access::kViewer, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    RETURN_IF_ERROR(CheckTrial(parts, call.Param("trial")));
    return TrialAnswer(parts, call.Param("trial"));
  });
  add("POST", "/{trial}/pause", Access::kUser, Act(parts, &Experiments::PauseTrial));
  add("POST", "/{trial}/activate", Access::kUser,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        const std::string& trial = call.Param("trial");
        RETURN_IF_ERROR(CheckTrial(parts, trial));
        RETURN_IF_ERROR(parts.experiments->ActivateTrial(trial, ""));
        return TrialAnswer(parts, trial);
      });
  add("POST", "/{trial}/cancel", Access::kUser, Act(parts, &Experiments::CancelTrial));
  add("POST", "/{trial}/kill", Access::kUser, Act(parts, &Experiments::KillTrial));
  add("GET", "/{trial}/runs", Access::kViewer, [parts](const ApiCall& call) -> Result<ApiAnswer> {
    RETURN_IF_ERROR(CheckTrial(parts, call.Param("trial")));
    ASSIGN_OR_RETURN(const std::vector<RunRow> runs,
                     parts.catalog->trials().Runs(call.Param("trial")));
    Value::List list;
    for (const RunRow& run : runs) list.push_back(ToJson(run));
    return ApiAnswer{.body = Value::Object{{"runs", std::move(list)}}};
  });
  add("GET", "/{trial}/checkpoints", Access::kViewer,
      [parts](const ApiCall& call) -> Result<ApiAnswer> {
        RETURN_IF_ERROR(CheckTrial(parts, call.Param("trial")));
        return CheckpointPage(parts, call, {.trial = call.Param("trial")});
      });
  add("GET", "/{trial}/logs", Access::kViewer,
      [parts](const ApiCall& call, const HttpReply& reply) {
        return ReadLogs(parts, call, reply);
      });
  add("GET", "/{trial}/metrics", Access::kViewer,
      [parts](const ApiCall& call) { return ReadMetrics(parts, call); });
  add("POST", "/{trial}/metrics", Access::kRun,
      [parts](const ApiCall& call, const HttpReply& reply) { return Report(parts, call, reply); });
  add("POST", "/{trial}/progress", Access::kRun,
      [parts](const ApiCall& call, const HttpReply& reply) {
        return Progress(parts, call, reply);
      });
  RoutesUnder("", out)(
      "POST", "/trial/v1/join", Access::kUser,
      [parts](const ApiCall& call, const HttpReply& reply) { return Join(parts, call, reply); });
}

}  // namespace cairn::master
