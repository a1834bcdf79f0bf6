#include "launch/slurm_rest.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <span>
#include <utility>

#include <cairn/value.h>

#include "base/status_macros.h"
#include "format/json.h"
#include "net/http_client.h"
#include "net/url.h"

namespace cairn {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr char kTokenFile[] = "CAIRN_SLURM_JWT_FILE";
constexpr char kToken[] = "SLURM_JWT";
/// slurmrestd waits for the controller by itself; this is for when it hangs.
constexpr std::chrono::seconds kPatience{30};
/// 4 KB for each job of the site.
constexpr std::uint64_t kLargestAnswer = std::uint64_t{256} << 20;
constexpr int kBadRequest = 400;
constexpr int kNotFound = 404;
/// Elements that an array of the launcher may have at most, and more.
constexpr int kLargestIndex = 1000;

/// Names that slurmrestd has for sbatch's, where they differ by more than '-' and '_'.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kNames = {{
    {"constraint", "constraints"},
    {"job-name", "name"},
    {"mem", "memory_per_node"},
    {"ntasks", "tasks"},
    {"ntasks-per-node", "tasks_per_node"},
    {"output", "standard_output"},
    {"time", "time_limit"},
    {"mem-per-cpu", "memory_per_cpu"},
    {"chdir", "current_working_directory"},
}};

// Slurm's error numbers. From 2000 to 2999 the controller says no.
constexpr std::int64_t kFirstRefusal = 2000;
constexpr std::int64_t kLastRefusal = 2999;
constexpr std::int64_t kInvalidJob = 2017;
constexpr std::int64_t kWritingState = 2019;
constexpr std::int64_t kAlreadyDone = 2021;
constexpr std::int64_t kStandby = 2027;

/// What an answer says went wrong.
struct Complaint {
  std::int64_t code = 0;
  std::string text;
};

std::string TextOf(const Value& entry, std::string_view member) {
  const Value* found = entry.Find(member);
  const auto* text = found == nullptr ? nullptr : found->if_string();
  return text == nullptr ? "" : *text;
}

std::int64_t NumberOf(const Value& entry, std::string_view member) {
  const Value* found = entry.Find(member);
  return found == nullptr ? 0 : found->AsInt();
}

Complaint ComplaintOf(const HttpResponse& response) {
  Complaint complaint;
  const auto answer = DecodeJson(response.body);
  const Value* errors = answer.ok() ? answer->Find("errors") : nullptr;
  const auto* list = errors == nullptr ? nullptr : errors->if_list();
  for (const Value& error : list == nullptr ? Value::List() : *list) {
    const std::int64_t code =
        std::max(NumberOf(error, "error_code"), NumberOf(error, "error_number"));
    if (complaint.code == 0) complaint.code = code;
    for (const char* member : {"description", "error"}) {
      const std::string text = TextOf(error, member);
      if (text.empty() || complaint.text.find(text) != std::string::npos) continue;
      if (!complaint.text.empty()) complaint.text += "; ";
      complaint.text += text;
    }
  }
  if (complaint.text.empty()) complaint.text = fmt::format("answered {}", response.status);
  return complaint;
}

/// "2-4,9", "0-30%5", "0-30:2": the elements of an array that wait. A long list is cut off
/// ("0,2,...") by slurmrestd: then `cut` is true.
std::vector<int> Elements(std::string_view text, bool* cut) {
  std::vector<int> elements;
  text = text.substr(0, text.find('%'));
  while (!text.empty()) {
    std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(range.size() + 1, text.size()));
    int first = 0;
    auto read = std::from_chars(range.data(), range.data() + range.size(), first);
    if (read.ec != std::errc()) {
      *cut = true;
      continue;
    }
    int last = first;
    int step = 1;
    const char* const end = range.data() + range.size();
    if (read.ptr != end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ptr != end && *read.ptr == ':') read = std::from_chars(read.ptr + 1, end, step);
    if (read.ptr != end) *cut = true;
    last = std::min(last, kLargestIndex);
    for (int element = first; element <= last; element += std::max(1, step)) {
      elements.push_back(element);
    }
  }
  return elements;
}

SlurmJob JobOf(const Value& entry) {
  SlurmJob job;
  job.name = TextOf(entry, "name");
  job.state = TextOf(entry, "job_state");
  job.reason = TextOf(entry, "state_reason");
  job.node = TextOf(entry, "batch_host");
  job.ends = NumberOf(entry, "end_time");
  job.preempted = job.state == "RUNNING" && NumberOf(entry, "preempt_time") > 0;
  return job;
}

/// The elements of one array that have an entry of their own, and what is said of the others.
struct Array {
  std::set<int> known;
  SlurmJob rest;
  std::vector<int> waiting;
  bool cut = false;
};

void AddWaiting(const std::string& id, const Array& array, std::vector<SlurmJob>* jobs) {
  std::set<int> waiting(array.waiting.begin(), array.waiting.end());
  if (array.cut) {
    // Behind the last that is named, whatever has no entry may still wait: better thought to wait
    // than thought lost.
    const int last = waiting.empty() ? -1 : *waiting.rbegin();
    for (int index = last + 1; index <= kLargestIndex; ++index) {
      if (!array.known.contains(index)) waiting.insert(index);
    }
  }
  for (const int index : waiting) {
    SlurmJob job = array.rest;
    job.index = index;
    job.id = fmt::format("{}_{}", id, index);
    jobs->push_back(std::move(job));
  }
}

/// Ids by the job that they are elements of ("17_3" → "17": 3), in slurmrestd's writing:
/// "17_[3,5]" is one call.
std::vector<std::string> Together(const std::vector<std::string>& ids) {
  std::map<std::string, std::vector<std::string>> arrays;
  std::vector<std::string> names;
  for (const std::string& id : ids) {
    const std::size_t bar = id.find('_');
    if (bar == std::string::npos) {
      names.push_back(id);
    } else {
      arrays[id.substr(0, bar)].push_back(id.substr(bar + 1));
    }
  }
  for (const auto& [job, elements] : arrays) {
    names.push_back(fmt::format("{}_[{}]", job, fmt::join(elements, ",")));
  }
  return names;
}

/// What a slurmrestd that listens on the network wants to be shown.
Result<std::vector<HttpHeader>> TokenHeaders() {
  std::string token;
  const char* file = std::getenv(kTokenFile);
  if (file != nullptr) {
    std::ifstream stream(file);
    stream >> token;
  } else if (const char* given = std::getenv(kToken); given != nullptr) {
    token = given;
  }
  // As `scontrol token` prints it.
  constexpr std::string_view kPrinted = "SLURM_JWT=";
  if (token.starts_with(kPrinted)) token.erase(0, kPrinted.size());
  if (token.empty()) {
    return InvalidArgumentError(
        file != nullptr
            ? fmt::format("{} holds no token: `scontrol token` makes one", QuoteForMessage(file))
            : fmt::format("slurmrestd wants a token: name a file with one in {}, or set {} "
                          "(`scontrol token` makes one)",
                          kTokenFile, kToken));
  }
  const passwd* user = getpwuid(getuid());
  if (user == nullptr) return NotFoundError("this user has no name, which slurmrestd asks for");
  return std::vector<HttpHeader>{{"X-SLURM-USER-NAME", user->pw_name},
                                 {"X-SLURM-USER-TOKEN", std::move(token)}};
}

class SlurmRest final : public SlurmClient {
 public:
  SlurmRest(std::string base, bool wants_token, std::unique_ptr<HttpClient> http)
      : base_(std::move(base)),
        wants_token_(wants_token),
        http_(std::move(http)),
        environment_(SlurmEnvironment()) {}

  Status Ping() {
    if (wants_token_) RETURN_IF_ERROR(TokenHeaders().status());
    ASSIGN_OR_RETURN(const HttpResponse response, Ask("GET", "/ping", ""));
    if (response.status == kNotFound) {
      return FailedPreconditionError(fmt::format(
          "slurmrestd does not speak {}: start it with -s openapi/{}, or leave CAIRN_SLURMRESTD "
          "away to use Slurm's programs",
          kSlurmRestVersion, kSlurmRestVersion));
    }
    if (!response.Succeeded()) return Failed(ComplaintOf(response).text);
    return Status::Ok();
  }

  Status Submit(const std::vector<std::string>& flags, std::string_view script) override {
    ASSIGN_OR_RETURN(const std::string body, SlurmSubmission(flags, script, environment_));
    ASSIGN_OR_RETURN(const HttpResponse response, Ask("POST", "/job/submit", body));
    if (response.Succeeded()) return Status::Ok();  // also with warnings: "held"
    const Complaint complaint = ComplaintOf(response);
    const bool refused = response.status == kBadRequest ||
                         (complaint.code >= kFirstRefusal && complaint.code <= kLastRefusal &&
                          complaint.code != kWritingState && complaint.code != kStandby);
    return refused ? InvalidArgumentError("Slurm refuses the job: " + complaint.text)
                   : Failed(complaint.text);
  }

  Result<std::vector<SlurmJob>> Jobs() override {
    ASSIGN_OR_RETURN(const HttpResponse response, Ask("GET", "/jobs", ""));
    if (!response.Succeeded()) return Failed(ComplaintOf(response).text);
    auto jobs = ParseSlurmJobs(response.body, static_cast<std::int64_t>(getuid()));
    if (!jobs.ok()) return Failed(jobs.status().message());
    return jobs;
  }

  Status Cancel(const std::vector<std::string>& ids, bool pending_only) override {
    std::vector<std::string> wanted = ids;
    if (pending_only) {
      ASSIGN_OR_RETURN(const std::vector<SlurmJob> jobs, Jobs());
      std::set<std::string> pending;
      for (const SlurmJob& job : jobs) {
        if (job.pending()) pending.insert(job.id);
      }
      std::erase_if(wanted, [&](const std::string& id) { return !pending.contains(id); });
    }
    for (const std::string& name : Together(wanted)) {
      ASSIGN_OR_RETURN(const HttpResponse response,
                       Ask("DELETE", "/job/" + PercentEncode(name), ""));
      if (response.Succeeded()) continue;
      const Complaint complaint = ComplaintOf(response);
      if (complaint.code == kInvalidJob || complaint.code == kAlreadyDone) continue;
      return Failed(complaint.text);
    }
    return Status::Ok();
  }

  /// slurmrestd of that version refuses "B:" in front of a signal.
  bool warns() const override { return false; }

 private:
  Status Failed(std::string_view why) const {
    // What the controller says of a token that has run out does not tell.
    return UnavailableError(fmt::format(
        "slurmrestd: {}{}", why, wants_token_ ? " (is the token good? see `scontrol token`)" : ""));
  }

  /// Once: whoever asks knows whether it may be asked again.
  Result<HttpResponse> Ask(const char* method, const std::string& path, const std::string& body) {
    HttpRequest request{.method = method,
                        .url = base_ + path,
                        .body = std::as_bytes(std::span(body)),
                        .max_body_bytes = kLargestAnswer};
    if (wants_token_) {
      auto headers = TokenHeaders();
      if (!headers.ok()) return Failed(headers.status().message());
      request.headers = *std::move(headers);
    }
    if (!body.empty()) request.headers.push_back({"Content-Type", "application/json"});
    auto response = http_->Fetch(
        {.prepare = [&](int) -> Result<HttpRequest> { return request; }, .max_attempts = 1});
    if (!response.ok()) return Failed(response.status().message());
    return response;
  }

  const std::string base_;
  const bool wants_token_;
  const std::unique_ptr<HttpClient> http_;
  const std::map<std::string, std::string> environment_;
};

}  // namespace

Result<std::unique_ptr<SlurmClient>> OpenSlurmRest(const std::string& address) {
  const bool local = address.starts_with(kUnix) && address.size() > kUnix.size();
  const auto url = ParseUrl(address);
  if (!local && !(url.ok() && (url->scheme == "http" || url->scheme == "https"))) {
    return InvalidArgumentError("slurmrestd is reached at unix:/PATH or http://HOST:PORT, not at " +
                                QuoteForMessage(address));
  }
  const std::string host = local ? "http+unix://" + PercentEncode(address.substr(kUnix.size()))
                                 : fmt::format("{}://{}", url->scheme, url->authority);
  const std::string base = fmt::format("{}/slurm/{}", host, kSlurmRestVersion);
  ASSIGN_OR_RETURN(auto http, HttpClient::Open({.connections = 2, .stall_timeout = kPatience}));
  auto client = std::make_unique<SlurmRest>(base, !local, std::move(http));
  RETURN_IF_ERROR(client->Ping().WithContext(address));
  return std::unique_ptr<SlurmClient>(std::move(client));
}

Result<std::string> SlurmSubmission(const std::vector<std::string>& flags, std::string_view script,
                                    const std::map<std::string, std::string>& environment) {
  Value::Object variables;
  for (const auto& [name, value] : environment) variables[name] = value;
  // slurmrestd knows no directory that the job could begin in; the shim goes to the launch's own.
  Value::Object job{{"environment", std::move(variables)},
                    {"current_working_directory", "/"},
                    {"no_requeue", true}};
  for (const std::string& flag : flags) {
    const std::size_t equals = std::min(flag.find('='), flag.size());
    if (!flag.starts_with("--") || equals <= 2) {
      return InvalidArgumentError(
          fmt::format("slurm: extra: {} is not --NAME=VALUE, which is what slurmrestd takes",
                      QuoteForMessage(flag)));
    }
    const std::string_view name = std::string_view(flag).substr(2, equals - 2);
    if (name == "signal") continue;  // see warns
    const auto* known =
        std::ranges::find(kNames, name, [](const auto& entry) { return entry.first; });
    std::string key(known == kNames.end() ? name : known->second);
    std::ranges::replace(key, '-', '_');
    if (equals < flag.size()) {
      job[key] = flag.substr(equals + 1);
    } else if (key == "exclusive") {
      job[key] = "exclusive";
    } else {
      job[key] = true;
    }
  }
  return EncodeJson(Value::Object{{"script", script}, {"job", std::move(job)}});
}

Result<std::vector<SlurmJob>> ParseSlurmJobs(std::string_view text, std::int64_t user) {
  ASSIGN_OR_RETURN(const Value answer, DecodeJson(text));
  const Value* entries = answer.Find("jobs");
  const auto* list = entries == nullptr ? nullptr : entries->if_list();
  if (list == nullptr) return CorruptionError("an answer without jobs");
  std::vector<SlurmJob> jobs;
  std::map<std::string, Array> arrays;
  for (const Value& entry : *list) {
    const Value* owner = entry.Find("user_id");
    if (owner == nullptr || owner->AsInt(-1) != user) continue;
    SlurmJob job = JobOf(entry);
    const std::int64_t number = NumberOf(entry, "job_id");
    if (number <= 0 || job.state.empty()) continue;
    job.id = fmt::format("{}", number);
    const std::int64_t array = NumberOf(entry, "array_job_id");
    const Value* element = entry.Find("array_task_id");
    if (array > 0 && element != nullptr && element->is_int()) {
      job.index = static_cast<int>(element->AsInt(-1));
      job.id = fmt::format("{}_{}", array, job.index);
      arrays[fmt::format("{}", array)].known.insert(job.index);
    } else if (const std::string waiting = TextOf(entry, "array_task_string"); !waiting.empty()) {
      Array& whole = arrays[job.id];
      whole.waiting = Elements(waiting, &whole.cut);
      whole.rest = std::move(job);
      continue;
    }
    jobs.push_back(std::move(job));
  }
  for (const auto& [id, array] : arrays) AddWaiting(id, array, &jobs);
  return jobs;
}

}  // namespace cairn
