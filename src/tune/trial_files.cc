#include "tune/trial_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/open_store.h"
#include "tune/result_text.h"
#include "tune/tensorboard_events.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;

/// Names the trials whose files are complete: a restart need not look at thousands of them.
constexpr char kCompleteName[] = ".logged";
/// In a store that list is put again when it has grown by so many.
constexpr std::size_t kCompleteAtOnce = 64;
constexpr std::uint64_t kMaxReadBytes = std::uint64_t{1} << 30;

std::int64_t IterationOf(const Value& report) { return IntOf(report, "training_iteration"); }

double WallSeconds() { return static_cast<double>(Clock::System()->WallNanos()) * 1e-9; }

std::string LocalRoot(const std::string& directory) {
  const auto path = LocalPath(directory);
  return path.ok() ? *path : directory;
}

/// The lines of each file of a scheduler's log.
std::map<std::string, std::string> PolicyLines(const Value::List& entries) {
  std::map<std::string, std::string> files;
  for (const Value& entry : entries) {
    const std::string line = ResultLine(entry);
    files["pbt_global.txt"] += line;
    files[fmt::format("pbt_policy_{}.txt", TextOf(entry, "trial"))] += line;
  }
  return files;
}

}  // namespace

TrialFiles::TrialFiles(std::string directory, Reports reports)
    : directory_(IsRemote(directory) ? directory : LocalRoot(directory)),
      remote_(IsRemote(directory)),
      reports_(std::move(reports)) {}

// --- what happens ---

void TrialFiles::Meet(const Value& trials) {
  if (!trials.is_list() || trials.if_list()->empty()) return;
  complete_ = ReadComplete();
  listed_complete_ = complete_.size();
  for (const Value& one : *trials.if_list()) {
    const std::string id = TextOf(one, "trial");
    const std::string status = TextOf(one, "status");
    Known& trial = trials_[id];
    if (const Value* config = one.Find("config")) trial.config = *config;
    trial.error = TextOf(one, "error");
    trial.failed = status == "ERROR";
    trial.ended = trial.failed || status == "TERMINATED";
    if (trial.ended && complete_.contains(id)) {
      // Should it go on all the same, its files are made anew up to where it does.
      trial.begun = trial.written = true;
      trial.last = std::numeric_limits<std::int64_t>::max();
      continue;
    }
    const Value* last = one.Find("last_result");
    trial.last = last == nullptr ? 0 : IterationOf(*last);
    std::error_code error;
    const bool there = remote_ ? trial.ended : fs::is_directory(directory_ + "/" + id, error);
    trial.begun = trial.last > 0 || there;
    if (!trial.begun) continue;
    if (Took(id, WriteAll(id, &trial)) && trial.ended) AddComplete(id);
  }
}

void TrialFiles::Tell(const TuneNews& news) {
  for (const Value& item : news) {
    const std::string id = TextOf(item, "trial");
    const std::string what = TextOf(item, "what");
    Known& trial = trials_[id];
    if (what == "result") {
      if (const Value* report = item.Find("result")) OnResult(id, *report);
    } else if (what == "run") {
      OnRun(id, IntOf(item, "iteration"));
    } else if (what == "started") {
      OnStarted(id);
    } else if (what == "added" || what == "exploit") {
      Flush(id);  // with the config that they were made with
      if (const Value* config = item.Find("config")) trial.config = *config;
    } else if (what == "failure") {
      trial.error = TextOf(item, "error");
    } else if (what == "ended") {
      OnEnded(id, BoolOf(item, "failed"));
    }
  }
  for (const std::string& id : std::exchange(unflushed_, {})) Flush(id);
}

void TrialFiles::OnResult(const std::string& id, const Value& report) {
  Known& trial = trials_[id];
  const std::int64_t at = IterationOf(report);
  if (at <= trial.last) OnRun(id, at - 1);
  trial.last = at;
  trial.begun = true;
  if (remote_) return;
  trial.unwritten.push_back(FillResult(report, id, trial.config));
  unflushed_.insert(id);
}

/// It goes on after this iteration: what it reported later is void.
void TrialFiles::OnRun(const std::string& id, std::int64_t iteration) {
  Known& trial = trials_[id];
  if (trial.last <= iteration) return;
  trial.last = iteration;
  trial.unwritten.clear();
  if (!remote_ && trial.begun) Took(id, WriteWhole(id, &trial));
}

void TrialFiles::OnStarted(const std::string& id) {
  Known& trial = trials_[id];
  trial.begun = true;
  trial.ended = trial.failed = false;
  // Killed before it ends again, whoever comes next must not believe the list.
  if (complete_.erase(id) > 0) WriteComplete();
  Took(id, WriteParams(id, trial));
}

void TrialFiles::OnEnded(const std::string& id, bool failed) {
  Flush(id);
  Known& trial = trials_[id];
  trial.ended = true;
  trial.failed = failed;
  if (!failed) trial.error.clear();
  if (!trial.begun || behind_.contains(id)) return;
  if (Took(id, remote_ ? WriteAll(id, &trial) : WriteError(id, trial))) AddComplete(id);
}

void TrialFiles::Flush(const std::string& id) {
  const auto found = trials_.find(id);
  if (found == trials_.end() || found->second.unwritten.empty()) return;
  if (!behind_.contains(id)) Took(id, Append(id, &found->second));
  found->second.unwritten.clear();
}

void TrialFiles::Finish() {
  for (auto& [id, trial] : trials_) {
    if (!behind_.contains(id) && (!remote_ || !trial.begun || trial.ended)) continue;
    behind_.erase(id);
    if (Took(id, WriteAll(id, &trial)) && trial.ended) AddComplete(id);
  }
  if (remote_) {
    if (complete_.size() != listed_complete_) WriteComplete();
    for (const auto& [name, lines] : PolicyLines(policy_)) {
      Put(name, lines).IgnoreError("it is made anew at each start");
    }
  }
  if (behind_.empty()) return;
  LogWarning(fmt::format(
      "tune: the files of {} trials are not complete; what they lack is in the record, and the "
      "next start writes it",
      behind_.size()));
}

void TrialFiles::MeetPolicy(const Value::List& entries) {
  if (remote_) return TellPolicy(entries);
  for (const auto& [name, lines] : PolicyLines(entries)) {
    Put(name, lines).IgnoreError("of a full disk; the next start makes it anew");
  }
}

void TrialFiles::TellPolicy(const Value::List& entries) {
  if (remote_) {
    policy_.insert(policy_.end(), entries.begin(), entries.end());
    return;
  }
  for (const auto& [name, lines] : PolicyLines(entries)) {
    AppendTo(name, lines).IgnoreError("of a full disk; the next start makes it anew");
  }
}

// --- a trial's files ---

Status TrialFiles::Append(const std::string& id, Known* trial) {
  if (!trial->written) return WriteWhole(id, trial);
  std::string lines;
  std::string rows;
  std::string events;
  bool known = true;
  for (const Value& result : trial->unwritten) {
    const FlatResult row = Flatten(result);
    known = known && std::ranges::all_of(row, [&](const auto& cell) {
              return std::ranges::find(trial->columns, cell.first) != trial->columns.end();
            });
    lines += ResultLine(result);
    events += TensorboardRecord(result, row);
    if (known) rows += CsvRow(trial->columns, row);
  }
  RETURN_IF_ERROR(AppendTo(fmt::format("{}/{}", id, kResultsName), lines));
  RETURN_IF_ERROR(AppendTo(fmt::format("{}/{}", id, kTensorboardName), events));
  if (known) return AppendTo(fmt::format("{}/{}", id, kProgressName), rows);
  return WriteProgress(id, trial, Results(id, *trial));  // a metric that comes late has a column
}

Status TrialFiles::WriteParams(const std::string& id, const Known& trial) {
  return Put(fmt::format("{}/{}", id, kParamsName), ParamsText(trial.config));
}

Status TrialFiles::WriteError(const std::string& id, const Known& trial) {
  const std::string name = fmt::format("{}/{}", id, kErrorName);
  if (!trial.failed) return Remove(name);  // of a life that it was resumed after
  return Put(name, (trial.error.empty() ? "the trial failed" : trial.error) + "\n");
}

std::vector<Value> TrialFiles::Results(const std::string& id, const Known& trial) {
  std::vector<Value> results;
  for (const Value& report : reports_(id)) {
    if (IterationOf(report) > trial.last) break;
    results.push_back(FillResult(report, id, trial.config));
  }
  return results;
}

Status TrialFiles::WriteWhole(const std::string& id, Known* trial) {
  const std::vector<Value> results = Results(id, *trial);
  std::string lines;
  std::string events = TensorboardHeader(WallSeconds());
  for (const Value& result : results) {
    lines += ResultLine(result);
    events += TensorboardRecord(result, Flatten(result));
  }
  trial->written = false;
  RETURN_IF_ERROR(Put(fmt::format("{}/{}", id, kResultsName), lines));
  RETURN_IF_ERROR(Put(fmt::format("{}/{}", id, kTensorboardName), events));
  RETURN_IF_ERROR(WriteProgress(id, trial, results));
  trial->written = true;
  return Status::Ok();
}

Status TrialFiles::WriteProgress(const std::string& id, Known* trial,
                                 const std::vector<Value>& results) {
  std::vector<FlatResult> rows;
  trial->columns.clear();
  std::set<std::string, std::less<>> names;
  for (const Value& result : results) {
    rows.push_back(Flatten(result));
    for (const auto& [name, value] : rows.back()) {
      if (names.insert(name).second) trial->columns.push_back(name);
    }
  }
  std::string text = trial->columns.empty() ? "" : CsvHeader(trial->columns);
  for (const FlatResult& row : rows) text += CsvRow(trial->columns, row);
  return Put(fmt::format("{}/{}", id, kProgressName), text);
}

Status TrialFiles::WriteAll(const std::string& id, Known* trial) {
  RETURN_IF_ERROR(WriteParams(id, *trial));
  RETURN_IF_ERROR(WriteWhole(id, trial));
  return trial->ended ? WriteError(id, *trial) : Status::Ok();
}

bool TrialFiles::Took(const std::string& id, const Status& status) {
  if (status.ok()) return true;
  behind_.insert(id);
  if (!std::exchange(warned_, true)) {
    LogWarning(
        fmt::format("tune: files of trial {} cannot be written ({}); the experiment goes on, and "
                    "they are made anew from its record",
                    id, status.ToString()));
  }
  return false;
}

// --- which are complete ---

std::set<std::string> TrialFiles::ReadComplete() {
  std::set<std::string> complete;
  std::istringstream lines(Read(kCompleteName));
  // A last line without an end is one that was not written whole.
  for (std::string line; std::getline(lines, line) && !lines.eof();) complete.insert(line);
  return complete;
}

void TrialFiles::AddComplete(const std::string& id) {
  if (!complete_.insert(id).second) return;
  if (remote_) {
    if (complete_.size() >= listed_complete_ + kCompleteAtOnce) WriteComplete();
    return;
  }
  AppendTo(kCompleteName, id + "\n").IgnoreError("the next start writes its files again");
}

void TrialFiles::WriteComplete() {
  std::string text;
  for (const std::string& id : complete_) text += id + "\n";
  listed_complete_ = complete_.size();
  if (Put(kCompleteName, text).ok()) return;
  // Nobody may believe it.
  Remove(kCompleteName).IgnoreError("nor can it be written");
}

// --- where they are ---

Result<Store*> TrialFiles::store() {
  if (store_ == nullptr) {
    ASSIGN_OR_RETURN(store_, OpenStore(directory_));
  }
  return store_.get();
}

Status TrialFiles::Put(const std::string& name, std::string_view bytes) {
  if (remote_) {
    ASSIGN_OR_RETURN(Store* const store, this->store());
    return store->Put(name, bytes);
  }
  // At once: nobody sees half of it.
  const fs::path path = fs::path(directory_) / name;
  const fs::path fresh = path.string() + ".new";
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return UnavailableError(fresh.string() + ": cannot be written");
  fs::rename(fresh, path, error);
  return error ? UnavailableError(path.string() + ": " + error.message()) : Status::Ok();
}

Status TrialFiles::AppendTo(const std::string& name, std::string_view bytes) {
  const fs::path path = fs::path(directory_) / name;
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? Status::Ok() : UnavailableError(path.string() + ": cannot be written");
}

Status TrialFiles::Remove(const std::string& name) {
  if (remote_) {
    ASSIGN_OR_RETURN(Store* const store, this->store());
    const Status gone = store->Delete(name);
    return gone.Is(Code::kNotFound) ? Status::Ok() : gone;
  }
  std::error_code error;
  fs::remove(fs::path(directory_) / name, error);
  return error ? UnavailableError(name + ": " + error.message()) : Status::Ok();
}

std::string TrialFiles::Read(const std::string& name) {
  if (remote_) {
    const Result<Store*> opened = store();
    if (!opened.ok()) return "";
    const auto bytes = (*opened)->Get(name, kMaxReadBytes);
    return bytes.ok() ? *bytes : "";
  }
  std::ifstream file(fs::path(directory_) / name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace cairn::tune
