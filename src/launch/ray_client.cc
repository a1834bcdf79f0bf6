#include "launch/ray_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "launch/launcher.h"
#include "net/url.h"

namespace cairn {
namespace {

/// A head that starts a hundred jobs takes its time.
constexpr std::chrono::seconds kPatience{30};
constexpr std::chrono::seconds kConnectPatience{5};
constexpr std::size_t kLongestWords = 500;
constexpr char kDefaultUrl[] = "http://127.0.0.1:8265";
constexpr double kMost = 1e12;

constexpr char kKnown[] = "nodes, num_cpus, num_gpus, memory, custom";

std::string Trimmed(std::string text) {
  const auto space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && space(static_cast<unsigned char>(text.back()))) text.pop_back();
  const auto begin = std::ranges::find_if_not(text, space);
  return {begin, text.end()};
}

Result<double> ReadAmount(const std::string& name, const std::string& text) {
  double amount = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, amount);
  if (error != std::errc() || stopped != end || !std::isfinite(amount) || amount < 0 ||
      amount > kMost) {
    return InvalidArgumentError(fmt::format("ray: {} must be a number that is not negative, not {}",
                                            name, QuoteForMessage(text)));
  }
  return amount;
}

Result<int> ReadNodes(const std::string& text, int processes) {
  int nodes = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, nodes);
  if (error != std::errc() || stopped != end || nodes < 1 || nodes > kMaxLaunchProcesses) {
    return InvalidArgumentError(
        fmt::format("ray: nodes must be a whole number from 1 to {}, not {}", kMaxLaunchProcesses,
                    QuoteForMessage(text)));
  }
  if (processes % nodes != 0) {
    return InvalidArgumentError(
        fmt::format("ray: {} processes cannot be shared evenly by {} nodes", processes, nodes));
  }
  return nodes;
}

Result<std::map<std::string, double>> ReadCustom(const std::string& text) {
  std::map<std::string, double> custom;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(",\n", begin), text.size());
    const std::string word = Trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgumentError(
          fmt::format("ray: custom must be NAME=AMOUNT[,…], not {}", QuoteForMessage(word)));
    }
    const std::string name = word.substr(0, equals);
    ASSIGN_OR_RETURN(custom[name],
                     ReadAmount("the resource " + QuoteForMessage(name), word.substr(equals + 1)));
  }
  return custom;
}

Result<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFoundError("ray: the token's file " + path + " cannot be read");
  std::string token = Trimmed(std::string(std::istreambuf_iterator<char>(file), {}));
  if (token.empty()) return InvalidArgumentError("ray: the token's file " + path + " is empty");
  return token;
}

Result<std::string> FindToken(const std::string& token_file, const Variables& variables) {
  if (!token_file.empty()) return ReadToken(token_file);
  if (auto token = variables("RAY_AUTH_TOKEN")) return Trimmed(*std::move(token));
  if (const auto path = variables("RAY_AUTH_TOKEN_PATH")) return ReadToken(*path);
  const auto home = variables("HOME");
  if (!home.has_value()) return std::string();
  auto token = ReadToken(*home + "/.ray/auth_token");
  return token.ok() ? *std::move(token) : std::string();
}

std::string TextOf(const Value& object, std::string_view name) {
  const auto* members = object.if_object();
  if (members == nullptr) return "";
  const auto found = members->find(name);
  const std::string* text = found == members->end() ? nullptr : found->second.if_string();
  return text == nullptr ? "" : *text;
}

/// The end of what Ray said, which is often a traceback, on one line.
std::string Words(std::string_view text) {
  std::string words = Trimmed(std::string(text));
  if (words.size() > kLongestWords) words.erase(0, words.size() - kLongestWords);
  std::ranges::replace(words, '\n', ' ');
  return words;
}

bool Holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Value::Object TextsOf(const std::map<std::string, std::string>& texts) {
  Value::Object object;
  for (const auto& [name, text] : texts) object[name] = text;
  return object;
}

std::string Encode(const RayJobRequest& request) {
  Value::Object custom;
  for (const auto& [name, amount] : request.resources.custom) custom[name] = amount;
  Value::Object body{
      {"entrypoint", request.entrypoint},
      {"submission_id", request.id},
      {"metadata", TextsOf(request.metadata)},
      {"runtime_env", Value::Object{{"env_vars", TextsOf(request.environment)}}},
      {"entrypoint_num_cpus", request.resources.num_cpus},
      {"entrypoint_num_gpus", request.resources.num_gpus},
  };
  // Of no amount at all Ray thinks that something was asked for.
  if (request.resources.memory > 0) body["entrypoint_memory"] = request.resources.memory;
  if (!custom.empty()) body["entrypoint_resources"] = std::move(custom);
  return EncodeJson(body);
}

}  // namespace

bool RayJob::gave_up_waiting() const {
  return status == "FAILED" && (error == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT" ||
                                Holds(message, "actor failed to start within"));
}

bool RayJob::taken_away() const {
  return status == "STOPPED" || (status == "FAILED" && Holds(message, "its node has died"));
}

Result<RayResources> ReadRayResources(const std::map<std::string, std::string>& resources,
                                      int processes) {
  RayResources read;
  if (const auto nodes = resources.find("nodes"); nodes != resources.end()) {
    ASSIGN_OR_RETURN(read.nodes, ReadNodes(nodes->second, processes));
  }
  read.num_cpus = processes / read.nodes;
  for (const auto& [key, value] : resources) {
    if (key == "nodes") continue;
    if (key == "num_cpus") {
      ASSIGN_OR_RETURN(read.num_cpus, ReadAmount(key, value));
    } else if (key == "num_gpus") {
      ASSIGN_OR_RETURN(read.num_gpus, ReadAmount(key, value));
    } else if (key == "memory") {
      auto bytes = ParseByteCount(value);
      if (!bytes.ok()) {
        return InvalidArgumentError("ray: memory: " + std::string(bytes.status().message()));
      }
      read.memory = *bytes;
    } else if (key == "custom") {
      ASSIGN_OR_RETURN(read.custom, ReadCustom(value));
    } else {
      return InvalidArgumentError(
          fmt::format("ray: {} is not known; known: {}", QuoteForMessage(key), kKnown));
    }
  }
  const auto positive = [](const auto& amount) { return amount.second > 0; };
  if (read.nodes > 1 && read.num_cpus + read.num_gpus <= 0 && read.memory == 0 &&
      std::ranges::none_of(read.custom, positive)) {
    return InvalidArgumentError(
        "ray: of several nodes something must be asked for: num_cpus, or what is kept free there");
  }
  return read;
}

Result<RayAddress> FindRay(const std::string& url, const std::string& token_file,
                           const Variables& variables) {
  RayAddress address;
  address.url = url;
  if (address.url.empty()) address.url = variables("RAY_API_SERVER_ADDRESS").value_or("");
  if (address.url.empty()) {
    // RAY_ADDRESS also names what programs inside of the cluster join, host:port, or "auto".
    std::string other = variables("RAY_ADDRESS").value_or("");
    if (other.starts_with("http://") || other.starts_with("https://")) address.url = other;
  }
  if (address.url.empty()) address.url = kDefaultUrl;
  const auto parsed = ParseUrl(address.url);
  if (!parsed.ok() || (parsed->scheme != "http" && parsed->scheme != "https") ||
      !parsed->query.empty()) {
    return InvalidArgumentError(
        fmt::format("ray: the address must be the URL of Ray's dashboard, http://HOST:8265, not {}",
                    QuoteForMessage(address.url)));
  }
  while (address.url.ends_with('/')) address.url.pop_back();
  ASSIGN_OR_RETURN(address.token, FindToken(token_file, variables));
  const auto bad = [](unsigned char c) { return c <= ' ' || c == 0x7f; };
  if (std::ranges::any_of(address.token, bad)) {
    return InvalidArgumentError("ray: the token must be one word");
  }
  return address;
}

Result<std::vector<RayJob>> ParseRayJobs(std::string_view text) {
  const auto decoded = DecodeJson(text);
  const Value::List* list = decoded.ok() ? decoded->if_list() : nullptr;
  if (list == nullptr) return CorruptionError("no list of jobs: " + Words(text));
  std::vector<RayJob> jobs;
  for (const Value& each : *list) {
    RayJob job;
    job.id = TextOf(each, "submission_id");
    job.status = TextOf(each, "status");
    if (job.id.empty() || job.status.empty()) continue;
    job.message = TextOf(each, "message");
    job.error = TextOf(each, "error_type");
    job.node = TextOf(each, "driver_node_id");
    const auto* members = each.if_object();
    const auto code = members->find("driver_exit_code");
    job.exited = code != members->end() && code->second.is_int();
    const auto end = members->find("end_time");
    if (end != members->end()) job.end_time = end->second.AsInt();
    const auto metadata = members->find("metadata");
    const auto* said = metadata == members->end() ? nullptr : metadata->second.if_object();
    if (said != nullptr) {
      for (const auto& [name, value] : *said) {
        if (const std::string* word = value.if_string()) job.metadata[name] = *word;
      }
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<std::unique_ptr<RayClient>> RayClient::Open(RayAddress address) {
  std::unique_ptr<RayClient> client(new RayClient(std::move(address)));
  HttpClientOptions options;
  options.connections = 2;
  options.connect_timeout = kConnectPatience;
  options.stall_timeout = kPatience;
  options.retry.max_attempts = 1;  // the launcher's budget decides about every call
  ASSIGN_OR_RETURN(client->http_, HttpClient::Open(std::move(options)));
  return client;
}

Result<HttpResponse> RayClient::Call(std::string method, const std::string& path,
                                     std::string_view body) {
  HttpRequest request;
  request.method = std::move(method);
  request.url = address_.url + path;
  if (!address_.token.empty()) {
    request.headers.push_back({"Authorization", "Bearer " + address_.token});
  }
  if (!body.empty()) request.headers.push_back({"Content-Type", "application/json"});
  request.body = std::as_bytes(std::span(body.data(), body.size()));
  auto response = http_->Fetch(std::move(request));
  if (!response.ok()) {
    return response.status().WithContext(fmt::format(
        "no answer of Ray at {} (does the head run, is the address right?)", address_.url));
  }
  if (response->status == 401 || response->status == 403) {
    return PermissionDeniedError(fmt::format(
        "Ray at {} refuses {}: {}; name the file of its token, or set RAY_AUTH_TOKEN", address_.url,
        address_.token.empty() ? "calls without a token" : "the token", Words(response->body)));
  }
  return response;
}

Result<std::string> RayClient::Version() {
  ASSIGN_OR_RETURN(const HttpResponse response, Call("GET", "/api/version", ""));
  const auto answer = DecodeJson(response.body);
  const std::string version = answer.ok() ? TextOf(*answer, "ray_version") : "";
  if (!response.Succeeded() || version.empty()) {
    return FailedPreconditionError(fmt::format("what answers at {} is no Ray: {} {}", address_.url,
                                               response.status, Words(response.body)));
  }
  return version;
}

Status RayClient::Submit(const RayJobRequest& request) {
  const std::string body = Encode(request);
  ASSIGN_OR_RETURN(const HttpResponse response, Call("POST", "/api/jobs/", body));
  if (response.Succeeded()) {
    const auto answer = DecodeJson(response.body);
    if (answer.ok() && TextOf(*answer, "submission_id") == request.id) return Status::Ok();
    return FailedPreconditionError(
        fmt::format("what answers at {} is no Ray: {}", address_.url, Words(response.body)));
  }
  if (Holds(response.body, request.id) && Holds(response.body, "already exists")) {
    return Status::Ok();
  }
  if (response.status == 404 || response.status == 405) {
    return FailedPreconditionError(fmt::format("what answers at {} is no Ray: {} {}", address_.url,
                                               response.status, Words(response.body)));
  }
  // Ray's head passes on, as 500, what the agent of a node refused.
  const bool refused = response.status < 500 || Holds(response.body, "ValueError") ||
                       Holds(response.body, "TypeError") || Holds(response.body, "status code 400");
  const std::string said = fmt::format("{} {}", response.status, Words(response.body));
  return refused ? InvalidArgumentError("Ray refuses the job: " + said)
                 : UnavailableError("Ray could not take the job: " + said);
}

Result<std::vector<RayJob>> RayClient::Jobs() {
  ASSIGN_OR_RETURN(const HttpResponse response, Call("GET", "/api/jobs/", ""));
  if (!response.Succeeded()) {
    return UnavailableError(fmt::format("Ray at {} does not list its jobs: {} {}", address_.url,
                                        response.status, Words(response.body)));
  }
  auto jobs = ParseRayJobs(response.body);
  if (!jobs.ok()) {
    return FailedPreconditionError(
        fmt::format("what answers at {} is no Ray: {}", address_.url, jobs.status().message()));
  }
  return jobs;
}

Status RayClient::Stop(const std::string& id) {
  ASSIGN_OR_RETURN(const HttpResponse response,
                   Call("POST", "/api/jobs/" + PercentEncode(id) + "/stop", ""));
  if (response.Succeeded() || response.status == 404) return Status::Ok();
  return UnavailableError(
      fmt::format("Ray does not stop job {}: {} {}", id, response.status, Words(response.body)));
}

Status RayClient::Forget(const std::string& id) {
  ASSIGN_OR_RETURN(const HttpResponse response,
                   Call("DELETE", "/api/jobs/" + PercentEncode(id), ""));
  if (response.Succeeded() || response.status == 404) return Status::Ok();
  return UnavailableError(
      fmt::format("Ray does not forget job {}: {} {}", id, response.status, Words(response.body)));
}

}  // namespace cairn
