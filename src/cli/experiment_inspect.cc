// cairn experiment and trial: what looks and changes nothing.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "cli/experiment_commands.h"
#include "cli/experiment_tables.h"
#include "cli/output.h"
#include "format/json.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};
constexpr std::uint64_t kPage = 1000;

void SleepUnlessInterrupted(double seconds, Console* console) {
  const Clock::Duration until =
      console->clock()->Now() + Clock::Duration(static_cast<std::int64_t>(seconds * 1e9));
  while (!Console::interrupted() && console->clock()->Now() < until) {
    console->clock()->Sleep(std::min<Clock::Duration>(kLook, until - console->clock()->Now()));
  }
}

void Put(MasterClient::Query* query, const char* name, const std::string& value) {
  if (!value.empty()) query->emplace_back(name, value);
}

/// The pages that were asked for, and a line that tells of the rest.
Result<Output> ListPage(const ListOptions& options, const std::string& path, const char* key,
                        MasterClient::Query query,
                        const std::function<std::string(const Value::List&)>& table,
                        Console* console) {
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Put(&query, "state", options.state);
  const std::string none =
      fmt::format("no {}{}\n", key,
                  query.empty() && options.offset == 0
                      ? " yet: begin an experiment with `cairn e create config.yaml DIR -f`"
                      : " there; without filters there may be some");
  Put(&query, "sort", options.sort);
  if (options.ascending) query.emplace_back("order", "asc");
  query.emplace_back("limit", std::to_string(options.limit));
  query.emplace_back("offset", std::to_string(options.offset));
  return Watched(options.watch, console, [&]() -> Result<Output> {
    ASSIGN_OR_RETURN(const Value page, master->Get(path, query));
    const Value::List& list = ListIn(page, key);
    Output output;
    output.json = page;
    output.text = list.empty() ? none : table(list);
    const auto total = static_cast<std::uint64_t>(IntIn(page, "total"));
    if (const std::uint64_t shown = options.offset + list.size(); !list.empty() && total > shown) {
      output.text += fmt::format("{} of {}: more with --offset {}\n", list.size(), total, shown);
    }
    return output;
  });
}

}  // namespace

double UnixNow(Console* console) {
  return static_cast<double>(console->clock()->WallNanos()) * 1e-9;
}

Result<Value::List> AllPages(MasterClient* master, const std::string& path, std::string_view key,
                             MasterClient::Query query) {
  Value::List all;
  query.emplace_back("limit", std::to_string(kPage));
  query.emplace_back("offset", "0");
  for (;;) {
    query.back().second = std::to_string(all.size());
    ASSIGN_OR_RETURN(const Value page, master->Get(path, query));
    const Value::List& list = ListIn(page, key);
    all.insert(all.end(), list.begin(), list.end());
    if (list.empty() || all.size() >= static_cast<std::uint64_t>(IntIn(page, "total"))) return all;
  }
}

Result<Output> Watched(double seconds, Console* console,
                       const std::function<Result<Output>()>& look) {
  if (seconds <= 0) return look();
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  while (!Console::interrupted()) {
    const auto output = look();
    if (!output.ok() && output.status().Is(Code::kCancelled)) break;
    if (!output.ok() && !output.status().Is(Code::kUnavailable)) return output.status();
    const std::string text = !output.ok()      ? fmt::format("{}\n", output.status().message())
                             : console->json() ? EncodeJson(output->json) + "\n"
                                               : output->text;
    std::fputs(((terminal && !console->json() ? "\033[H\033[2J" : "") + text).c_str(), stdout);
    if (std::fflush(stdout) != 0) break;  // the reader left
    SleepUnlessInterrupted(seconds, console);
  }
  return Output{};
}

Result<Output> ListExperiments(const ListOptions& options, Console* console) {
  MasterClient::Query query;
  Put(&query, "owner", options.owner);
  Put(&query, "label", options.label);
  Put(&query, "search", options.search);
  if (options.archived) query.emplace_back("archived", "true");
  return ListPage(
      options, "/api/v1/experiments", "experiments", std::move(query),
      [console](const Value::List& list) { return ExperimentTable(list, UnixNow(console)); },
      console);
}

Result<Output> ListTrials(const ListOptions& options, Console* console) {
  MasterClient::Query query;
  Put(&query, "experiment", options.experiment);
  return ListPage(
      options, "/api/v1/trials", "trials", std::move(query),
      [](const Value::List& list) { return TrialTable(list); }, console);
}

Result<Output> ShowExperiment(const ShowOneOptions& options, Console* console) {
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  if (options.config) {
    Output output;
    ASSIGN_OR_RETURN(output.text, master->GetText(ExperimentPath(options.id, "/config")));
    output.json = Value::Object{{"config", output.text}};
    return output;
  }
  return Watched(options.watch, console, [&]() -> Result<Output> {
    Output output;
    ASSIGN_OR_RETURN(output.json, master->Get(ExperimentPath(options.id)));
    output.text = ExperimentText(output.json);
    ASSIGN_OR_RETURN(const Value page,
                     master->Get(ExperimentPath(options.id, "/trials"), {{"limit", "20"}}));
    const Value::List& trials = ListIn(page, "trials");
    if (trials.size() == 1) {
      output.text += "\n" + TrialText(trials.front(), UnixNow(console));
    } else if (!trials.empty()) {
      output.text += "\n" + TrialTable(trials);
      if (static_cast<std::uint64_t>(IntIn(page, "total")) > trials.size()) {
        output.text += fmt::format("all of them: `cairn t ls --experiment {}`\n", options.id);
      }
    }
    return output;
  });
}

Result<Output> ShowTrial(const ShowOneOptions& options, Console* console) {
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  return Watched(options.watch, console, [&]() -> Result<Output> {
    Output output;
    ASSIGN_OR_RETURN(output.json, master->Get(TrialPath(options.id)));
    output.text = TrialText(output.json, UnixNow(console));
    return output;
  });
}

Result<Output> Logs(const LogsOptions& options, bool trial, Console* console) {
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  if (!trial && options.follow) {
    return FollowExperiment(master.get(), options.id, options.selection, console);
  }
  Value of;
  if (trial) {
    ASSIGN_OR_RETURN(of, master->Get(TrialPath(options.id)));
  } else {
    ASSIGN_OR_RETURN(const Value page,
                     master->Get(ExperimentPath(options.id, "/trials"), {{"limit", "1"}}));
    if (ListIn(page, "trials").empty()) {
      return NotFoundError(fmt::format("experiment {} has no trial yet", options.id));
    }
    of = ListIn(page, "trials").front();
    if (IntIn(page, "total") > 1) {
      console->Note(
          fmt::format("of trial {}; `cairn t logs ID` shows those of another", TextIn(of, "id")));
    }
  }
  Output output;
  if (options.follow) {
    std::int64_t position = -1;
    const auto state = FollowLogs(master.get(), of, options.selection, &position, console);
    if (!state.ok() && state.status().Is(Code::kCancelled)) {
      console->Note(fmt::format("detached: trial {0} goes on. Re-attach with `cairn t logs -f {0}`",
                                options.id));
      output.exit_code = 130;
      return output;
    }
    if (!state.ok()) return state.status();
    console->Note(fmt::format("trial {} is {}", options.id, *state));
    output.json = Value::Object{{"id", options.id}, {"state", *state}};
    output.exit_code = *state == "ERROR" || *state == "CANCELED" ? 1 : 0;
    return output;
  }
  RETURN_IF_ERROR(PrintLogs(master.get(), of, options.selection, console));
  return output;
}

Result<Output> ListCheckpoints(const CheckpointListOptions& options, bool trial, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  MasterClient::Query query;
  Put(&query, "state", options.state);
  if (options.best) query.emplace_back("sort", "score");
  const std::string path =
      trial ? TrialPath(options.id, "/checkpoints") : ExperimentPath(options.id, "/checkpoints");
  Value::List checkpoints;
  if (options.limit > 0 && options.limit <= kPage) {
    query.emplace_back("limit", std::to_string(options.limit));
    ASSIGN_OR_RETURN(const Value page, master->Get(path, query));
    checkpoints = ListIn(page, "checkpoints");
  } else {
    ASSIGN_OR_RETURN(checkpoints, AllPages(master.get(), path, "checkpoints", query));
  }
  Output output;
  output.text =
      checkpoints.empty() ? "no checkpoints\n" : CheckpointTable(checkpoints, UnixNow(console));
  output.json = Value::Object{{"checkpoints", std::move(checkpoints)}};
  return output;
}

Result<Output> ShowMetrics(const MetricsOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  MasterClient::Query query;
  Put(&query, "group", options.group);
  Put(&query, "name", options.name);
  if (options.points > 0) query.emplace_back("points", std::to_string(options.points));
  if (options.archived) query.emplace_back("archived", "true");
  Output output;
  query.emplace_back("after", "0");
  Value::List all;
  for (;;) {
    ASSIGN_OR_RETURN(output.json, master->Get(TrialPath(options.id, "/metrics"), query));
    const Value::List& page = ListIn(output.json, "metrics");
    all.insert(all.end(), page.begin(), page.end());
    if (!BoolIn(output.json, "more")) break;
    query.back().second = std::to_string(IntIn(output.json, "next"));
  }
  // All of them in one answer, as if it had been one.
  output.json.if_object()->erase("more");
  output.json.if_object()->erase("next");
  (*output.json.if_object())["metrics"] = std::move(all);
  const Value::List& reports = ListIn(output.json, "metrics");
  if (!reports.empty()) {
    output.text = MetricTable(reports);
    return output;
  }
  std::set<std::string> names;
  for (const Value& one : ListIn(output.json, "names")) {
    names.insert(Printable(TextIn(one, "group") + "/" + TextIn(one, "name")));
  }
  output.text = names.empty() ? fmt::format("trial {} has reported no metrics\n", options.id)
                              : fmt::format("no such metrics; trial {} has reported {}\n",
                                            options.id, fmt::join(names, ", "));
  return output;
}

Result<Output> Wait(const WaitOptions& options, bool trial, Console* console) {
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  const std::string path = trial ? TrialPath(options.id) : ExperimentPath(options.id);
  const Clock::Duration begun = console->clock()->Now();
  bool answered = false;
  bool paused = false;  // and said so
  while (!Console::interrupted()) {
    auto one = master->Get(path);
    // A master that answered once is waited for; one that never did is a mistake.
    if (!one.ok() && (!answered || !one.status().Is(Code::kUnavailable))) return one.status();
    answered = true;
    const std::string state = one.ok() ? TextIn(*one, "state") : "";
    if (HasEnded(state) || (state == "PAUSED" && options.or_paused)) {
      Output output;
      output.text = fmt::format("{} {}\n", options.id, state);
      output.json = *std::move(one);
      output.exit_code = state == "PAUSED" ? kStillPaused : state == "COMPLETED" ? 0 : 1;
      return output;
    }
    if (state == "PAUSED" && !std::exchange(paused, true)) {
      console->Note(
          fmt::format("{0} {1} is paused; waiting until it goes on and ends (`cairn {2} activate "
                      "{1}`; --or-paused waits no longer)",
                      trial ? "trial" : "experiment", options.id, trial ? "t" : "e"));
    }
    if (one.ok() && state != "PAUSED") paused = false;
    const double waited = std::chrono::duration<double>(console->clock()->Now() - begun).count();
    if (options.timeout > 0 && waited >= options.timeout) {
      return DeadlineExceededError(
          fmt::format("{} is still {} after {:g} s", options.id, state, options.timeout));
    }
    SleepUnlessInterrupted(0.3, console);
  }
  return CancelledError("not waited to the end");
}

}  // namespace cairn::cli
