#include "master/experiment_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "launch/ray_client.h"
#include "launch/slurm_client.h"
#include "master/config_reader.h"
#include "net/url.h"
#include "tune/rng.h"

namespace cairn::master {
namespace {

using Kind = SearcherConfig::Kind;

constexpr std::int64_t kMostTrials = 100'000;
constexpr std::string_view kSearchers[] = {"single", "random", "grid", "adaptive_asha"};
constexpr std::string_view kModes[] = {"aggressive", "standard", "conservative"};
constexpr std::string_view kSchemes[] = {"s3", "hdfs", "webhdfs", "file"};

std::chrono::milliseconds Millis(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1e3));
}

/// `max_length: 100`, or {batches: 100} as Determined's users write it. Of a search that stops
/// nothing it says nothing: the script knows how long it trains.
void ReadLength(const ConfigNode& node, SearcherConfig* out, ConfigReader* reader) {
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;
  if (const ConfigNode* length = node.Find("max_length");
      length != nullptr && length->kind == ConfigNode::Kind::kMap) {
    reader->Take("max_length");
    ConfigReader inner(*length, "searcher.max_length");
    const bool batches = out->kind == Kind::kAdaptiveAsha || length->Find("batches") != nullptr;
    const char* const unit = batches                             ? "batches"
                             : length->Find("epochs") != nullptr ? "epochs"
                                                                 : "records";
    inner.Int(unit, &out->max_length, 1, kMostSteps);
    inner.Require(unit, "is missing: how many steps a trial trains at most");
    reader->Fail(inner.Finish());
  } else {
    reader->Int("max_length", &out->max_length, 1, kMostSteps);
  }
}

void ReadAdaptive(SearcherConfig* out, ConfigReader* reader) {
  reader->Require("max_length", "is missing: how many steps a trial trains at most");
  std::int64_t rungs = out->max_rungs;
  reader->Int("max_rungs", &rungs, 1, 60);
  out->max_rungs = static_cast<int>(rungs);
  reader->Double("divisor", &out->divisor);
  if (!(out->divisor > 1) || out->divisor > 1e6) {
    reader->Fail("divisor", "must be above 1");
  }
  std::string mode = "standard";
  reader->Text("mode", &mode);
  const auto* known = std::ranges::find(kModes, mode);
  if (known == std::end(kModes)) {
    reader->Fail("mode", "must be aggressive, standard or conservative");
  } else {
    out->mode = static_cast<SearcherConfig::Mode>(known - std::begin(kModes));
  }
  reader->Require("metric", "is missing: what the trials are compared by");
}

Status ReadSearcher(const ConfigNode& node, SearcherConfig* out) {
  ConfigReader reader(node, "searcher");
  std::string name = "single";
  reader.Text("name", &name);
  const auto* known = std::ranges::find(kSearchers, name);
  if (known == std::end(kSearchers)) {
    const std::string_view meant = Suggest(name, kSearchers);
    reader.Fail("name",
                fmt::format("{} is not known{}", QuoteForMessage(name),
                            meant.empty() ? fmt::format("; known: {}", fmt::join(kSearchers, ", "))
                                          : fmt::format("; did you mean \"{}\"?", meant)));
    // The rest is judged by what was probably meant.
    known = std::ranges::find(kSearchers, meant);
    if (known == std::end(kSearchers)) reader.TakeRest();
  }
  if (known != std::end(kSearchers)) out->kind = static_cast<Kind>(known - std::begin(kSearchers));
  reader.Text("metric", &out->metric);
  reader.Bool("smaller_is_better", &out->smaller_is_better);
  std::int64_t seed = 0;
  reader.Int("seed", &seed, 0, std::int64_t{1} << 62);
  out->seed = static_cast<std::uint64_t>(seed);
  if (out->kind != Kind::kSingle) {
    std::int64_t concurrent = static_cast<std::int64_t>(out->max_concurrent_trials);
    reader.Int("max_concurrent_trials", &concurrent, 1, kMostTrials);
    out->max_concurrent_trials = static_cast<std::uint64_t>(concurrent);
  }
  ReadLength(node, out, &reader);
  if (out->kind == Kind::kAdaptiveAsha) ReadAdaptive(out, &reader);
  if (out->kind == Kind::kRandom || out->kind == Kind::kAdaptiveAsha) {
    std::int64_t trials = 0;
    reader.Int("max_trials", &trials, 1, kMostTrials);
    reader.Require("max_trials", "is missing: how many trials to try");
    out->max_trials = static_cast<std::uint64_t>(trials);
  }
  return reader.Finish();
}

/// A text, or a map as Determined's users write it.
void ReadStorage(const ConfigNode& node, std::string* out, ConfigReader* above) {
  if (node.kind == ConfigNode::Kind::kScalar) {
    if (node.scalar.is_string()) {
      *out = *node.scalar.if_string();
    } else {
      return above->Fail(node, "checkpoint_storage", "must be a directory or URL");
    }
  } else {
    ConfigReader reader(node, "checkpoint_storage");
    std::string type;
    reader.Text("type", &type);
    if (type == "s3") {
      std::string bucket;
      std::string prefix;
      reader.Text("bucket", &bucket);
      reader.Text("prefix", &prefix);
      reader.Require("bucket", "is missing");
      *out = prefix.empty() ? "s3://" + bucket : fmt::format("s3://{}/{}", bucket, prefix);
    } else if (type == "shared_fs") {
      std::string inner;
      reader.Text("host_path", out);
      reader.Text("storage_path", &inner);
      reader.Require("host_path", "is missing");
      if (!inner.empty()) *out += "/" + inner;
    } else if (type == "directory") {
      reader.Text("path", out);
      reader.Require("path", "is missing");
    } else {
      reader.Fail("type", "must be directory (path), shared_fs (host_path) or s3 (bucket)");
      reader.TakeRest();
    }
    const Status status = reader.Finish();
    if (!status.ok()) return above->Fail(status);
  }
  const std::string_view scheme = UrlScheme(*out);
  if (!scheme.empty() && std::ranges::find(kSchemes, scheme) == std::end(kSchemes)) {
    above->Fail(
        node, "checkpoint_storage",
        fmt::format("\"{}\" is not a storage that is known: s3://, hdfs:// or a directory", *out));
  }
  if (scheme.empty() && !out->starts_with('/')) {
    above->Fail(node, "checkpoint_storage", "must be an absolute path or a URL");
  }
}

std::string TextOf(const Value& scalar) {
  const auto* text = scalar.if_string();
  return text != nullptr ? *text : EncodeJson(scalar);
}

/// What Ray is asked for: texts or numbers; `custom` may be a map of names to numbers.
void ReadRay(int processes, std::map<std::string, std::string>* out, ConfigReader* reader) {
  constexpr std::string_view kKeys[] = {"nodes", "num_cpus", "num_gpus", "memory", "custom"};
  for (const std::string_view key : kKeys) {
    const ConfigNode* value = reader->Take(key);
    if (value == nullptr) continue;
    std::string text;
    if (value->kind == ConfigNode::Kind::kMap && key == "custom") {
      for (const ConfigNode& amount : value->members) {
        text += fmt::format("{}={}\n", amount.key, TextOf(amount.scalar));
      }
    } else if (value->kind == ConfigNode::Kind::kScalar) {
      text = TextOf(value->scalar);
    } else {
      reader->Fail(*value, key, "must be a text or a number");
      continue;
    }
    (*out)[std::string(key)] = std::move(text);
  }
  if (const auto read = ReadRayResources(*out, processes); !read.ok()) {
    reader->Fail("launcher", read.status().message());
  }
}

/// What Slurm is asked for: texts or numbers; `extra` may be a list of words.
void ReadSlurm(std::map<std::string, std::string>* out, ConfigReader* reader) {
  constexpr std::string_view kKeys[] = {"partition",     "account", "qos",        "time",
                                        "gres",          "mem",     "constraint", "reservation",
                                        "cpus_per_task", "nodes",   "warning",    "extra"};
  for (const std::string_view key : kKeys) {
    const ConfigNode* value = reader->Take(key);
    if (value == nullptr) continue;
    std::string text;
    if (value->kind == ConfigNode::Kind::kList && key == "extra") {
      for (const ConfigNode& item : value->items) text += TextOf(item.scalar) + "\n";
    } else if (value->kind == ConfigNode::Kind::kScalar) {
      text = TextOf(value->scalar);
    } else {
      reader->Fail(*value, key, "must be a text");
      continue;
    }
    (*out)[std::string(key)] = std::move(text);
  }
  if (const auto flags = SlurmFlags(*out); !flags.ok()) {
    reader->Fail("launcher", flags.status().message());
  }
}

/// What each process of a trial may take, and how long a run may take in all.
void ReadLimits(const ConfigNode& node, LaunchLimits* out, ConfigReader* above) {
  ConfigReader reader(node, "resources.limits");
  std::int64_t files = 0;
  std::int64_t nice = 0;
  double wall_time = -1;
  std::uint64_t memory = ~std::uint64_t{0};
  reader.Bytes("memory", &memory);
  if (memory < (1u << 20)) reader.Fail("memory", "must be at least 1MiB: less holds no program");
  if (memory != ~std::uint64_t{0}) out->address_space_bytes = memory;
  reader.Int("open_files", &files, 16, std::int64_t{1} << 30);
  reader.Int("nice", &nice, 0, 19);
  reader.Seconds("wall_time", &wall_time);
  if (wall_time == 0) reader.Fail("wall_time", "must be above 0");
  out->open_files = static_cast<std::uint64_t>(files);
  out->nice = static_cast<int>(nice);
  if (wall_time > 0) out->wall_time = Millis(wall_time);
  above->Fail(reader.Finish());
}

void ReadResources(const ConfigNode& node, ExperimentConfig* out, ConfigReader* above) {
  ConfigReader reader(node, "resources");
  std::int64_t slots = 1;
  std::int64_t priority = 0;
  reader.Int("slots", &slots, 0, 4096);
  reader.Int("slots_per_trial", &slots, 0, 4096);
  if (node.Find("slots") != nullptr && node.Find("slots_per_trial") != nullptr) {
    reader.Fail("slots", "and slots_per_trial are the same thing: name one");
  }
  reader.Int("priority", &priority, -1000, 1000);
  if (const ConfigNode* limits = reader.Take("limits"); limits != nullptr) {
    ReadLimits(*limits, &out->limits, &reader);
  }
  std::string launcher = "local";
  reader.Text("launcher", &launcher);
  if (launcher == kSlurmLauncher) {
    out->launcher = launcher;
    ReadSlurm(&out->resources, &reader);
    if (const auto nodes = SlurmNodes(out->resources);
        nodes.ok() && std::max<std::int64_t>(1, slots) % *nodes != 0) {
      reader.Fail("nodes", fmt::format("slots_per_trial is {}, which {} nodes cannot share evenly",
                                       slots, *nodes));
    }
  } else if (launcher == kRayLauncher) {
    out->launcher = launcher;
    ReadRay(static_cast<int>(std::max<std::int64_t>(1, slots)), &out->resources, &reader);
  } else if (launcher != "local") {
    reader.Fail("launcher",
                fmt::format("{} is not known: local, slurm or ray", QuoteForMessage(launcher)));
    reader.TakeRest();
  }
  out->slots = static_cast<int>(slots);
  out->priority = static_cast<int>(priority);
  above->Fail(reader.Finish());
}

bool IsVariableName(std::string_view name) {
  return !name.empty() && !(name.front() >= '0' && name.front() <= '9') &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '_';
         });
}

void AddVariable(const ConfigNode& where, std::string_view name, std::string value,
                 ExperimentConfig* out, ConfigReader* reader) {
  if (!IsVariableName(name)) {
    return reader->Fail(where, "variables",
                        fmt::format("{} is no name of a variable", QuoteForMessage(name)));
  }
  if (name.starts_with("CAIRN_")) {
    return reader->Fail(where, "variables", fmt::format("{} is the master's own", name));
  }
  out->environment[std::string(name)] = std::move(value);
}

/// {variables: {A: b}} or {variables: ["A=b"]}.
void ReadEnvironment(const ConfigNode& node, ExperimentConfig* out, ConfigReader* above) {
  ConfigReader reader(node, "environment");
  if (const ConfigNode* variables = reader.Take("variables"); variables != nullptr) {
    for (const ConfigNode& value : variables->members) {
      const std::string& name = value.key;
      if (value.kind != ConfigNode::Kind::kScalar) {
        reader.Fail(value, "variables", fmt::format("{} must be a text", QuoteForMessage(name)));
        continue;
      }
      const auto* text = value.scalar.if_string();
      AddVariable(value, name, text != nullptr ? *text : EncodeJson(value.scalar), out, &reader);
    }
    for (const ConfigNode& item : variables->items) {
      const auto* text = item.scalar.if_string();
      const std::size_t equals = text == nullptr ? std::string::npos : text->find('=');
      if (equals == std::string::npos) {
        reader.Fail(item, "variables", "must hold NAME=value");
        continue;
      }
      AddVariable(item, text->substr(0, equals), text->substr(equals + 1), out, &reader);
    }
    if (variables->kind == ConfigNode::Kind::kScalar) {
      reader.Fail(*variables, "variables", "must be a map of names and values");
    }
  }
  above->Fail(reader.Finish());
}

/// A command line as a command. Signals go to the first process alone, so a shell is put in between
/// only where one is needed, and then gets out of the way if it can.
std::vector<std::string> CommandOf(const std::string& text) {
  constexpr std::string_view kSpaces = " \t";
  constexpr std::string_view kBuiltins[] = {"exit",  "cd",   "export", "if",  "for",
                                            "while", "case", "until",  "set", "exec"};
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return {};
  const std::string first = text.substr(begin, text.find_first_of(kSpaces, begin) - begin);
  const bool builtin = first == ":" || first == "." || first.find('=') != std::string::npos ||
                       std::ranges::find(kBuiltins, first) != std::end(kBuiltins);
  if (builtin || text.find_first_of(";&|<>()`{}\n") != std::string::npos) {
    return {"/bin/sh", "-c", text};
  }
  if (text.find_first_of("$\"'\\*?[]~#!") != std::string::npos) {
    return {"/bin/sh", "-c", "exec " + text};
  }
  std::vector<std::string> words;
  for (std::size_t at = begin; at != std::string::npos;) {
    const std::size_t end = text.find_first_of(kSpaces, at);
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

void ReadEntrypoint(const ConfigNode* node, ExperimentConfig* out, ConfigReader* reader) {
  if (node == nullptr) return;
  if (node->kind == ConfigNode::Kind::kList) {
    for (const ConfigNode& item : node->items) {
      if (item.kind != ConfigNode::Kind::kScalar || item.scalar.is_null()) {
        return reader->Fail(item, "entrypoint", "must hold texts");
      }
      const auto* text = item.scalar.if_string();
      out->entrypoint.push_back(text != nullptr ? *text : EncodeJson(item.scalar));
    }
  } else if (const auto* text = node->scalar.if_string(); text != nullptr) {
    if (text->empty()) return;  // as good as missing, which is told elsewhere
    out->entrypoint = CommandOf(*text);
  }
  if (out->entrypoint.empty() || out->entrypoint.front().empty()) {
    reader->Fail(*node, "entrypoint", "must be a command: a text, or a list of texts");
  }
  for (const std::string& word : out->entrypoint) {
    if (word.find('\0') != std::string::npos) reader->Fail(*node, "entrypoint", "holds a NUL");
  }
}

/// What is wrong with the parts taken together; each was read without a mistake.
Status CheckTogether(ExperimentConfig* config) {
  ConfigProblems problems;
  if (config->searcher.kind == Kind::kGrid) {
    const auto points = config->hyperparameters.GridSize();
    if (points.ok()) config->searcher.max_trials = *points;
    problems.Add(points.status());
  }
  if (config->searcher.kind == Kind::kSingle && config->hyperparameters.HasRanges()) {
    problems.Add(
        "searcher: single tries one set of hyperparameters, but there are ranges to choose from: "
        "use random, grid or adaptive_asha, or write plain values");
  }
  return problems.ToStatus();
}

Result<ExperimentConfig> FromNode(const ConfigNode& root) {
  ExperimentConfig config;
  ConfigReader reader(root, "");
  reader.Text("name", &config.name);
  reader.Text("description", &config.description);
  reader.Texts("labels", &config.labels);
  reader.Text("project", &config.project);
  ReadEntrypoint(reader.Take("entrypoint"), &config, &reader);
  bool together = true;  // hyperparameters and searcher could be read
  if (const ConfigNode* node = reader.Take("hyperparameters"); node != nullptr) {
    auto parsed = Hyperparameters::Parse(*node);
    together = parsed.ok();
    if (parsed.ok()) {
      config.hyperparameters = *std::move(parsed);
    } else {
      reader.Fail(parsed.status());
    }
  }
  if (const ConfigNode* node = reader.Take("searcher"); node != nullptr) {
    const Status read = ReadSearcher(*node, &config.searcher);
    together = together && read.ok();
    reader.Fail(read);
  }
  if (const ConfigNode* node = reader.Take("reproducibility"); node != nullptr) {
    ConfigReader inner(*node, "reproducibility");
    auto seed = static_cast<std::int64_t>(config.searcher.seed);
    inner.Int("experiment_seed", &seed, 0, std::int64_t{1} << 62);
    config.searcher.seed = static_cast<std::uint64_t>(seed);
    reader.Fail(inner.Finish());
  }
  if (together) reader.Fail(CheckTogether(&config));
  std::int64_t restarts = static_cast<std::int64_t>(config.max_restarts);
  reader.Int("max_restarts", &restarts, 0, 1'000'000);
  config.max_restarts = static_cast<std::uint64_t>(restarts);
  if (const ConfigNode* node = reader.Take("checkpoint_storage"); node != nullptr) {
    ReadStorage(*node, &config.storage, &reader);
  }
  // Also without a policy: one that is set later is told what the best is.
  config.retention.score = config.searcher.metric;
  config.retention.maximize = !config.searcher.smaller_is_better;
  if (const ConfigNode* node = reader.Take("checkpoint_policy"); node != nullptr) {
    SearcherConfig searcher = config.searcher;
    // A metric that could not be read is not one that is missing.
    if (!together && searcher.metric.empty()) searcher.metric = "unknown";
    auto policy = ParseRetention(*node, searcher);
    if (policy.ok()) {
      config.retention = *std::move(policy);
    } else {
      reader.Fail(policy.status());
    }
  }
  if (const ConfigNode* node = reader.Take("resources"); node != nullptr) {
    ReadResources(*node, &config, &reader);
  }
  if (const ConfigNode* node = reader.Take("environment"); node != nullptr) {
    ReadEnvironment(*node, &config, &reader);
  }
  reader.Bool("detached", &config.detached);
  reader.Seconds("preemption_timeout", &config.preemption_timeout);
  reader.Seconds("kill_grace", &config.kill_grace);
  if (!config.detached) {
    reader.Require("entrypoint",
                   "is missing: the command that trains, for example \"python3 train.py\"");
  }
  if (config.name.size() > 256) reader.Fail("name", "is too long: at most 256 bytes");
  if (config.labels.size() > 64) reader.Fail("labels", "are too many: at most 64");
  if (config.description.size() > 65536) {
    reader.Fail("description", "is too long: at most 64 KiB");
  }
  RETURN_IF_ERROR(reader.Finish());
  config.source = root.ToValue();
  RETURN_IF_ERROR(ValidateJsonValue(config.source));
  return config;
}

}  // namespace

std::string_view SearcherName(SearcherConfig::Kind kind) {
  return kSearchers[static_cast<std::size_t>(kind)];
}

Result<RetentionPolicy> ParseRetention(const ConfigNode& node, const SearcherConfig& searcher) {
  ConfigReader reader(node, "checkpoint_policy");
  RetentionPolicy policy;
  const auto count = [&](std::string_view key, std::optional<std::uint64_t>* out) {
    std::int64_t number = 0;
    reader.Int(key, &number, 1, std::int64_t{1} << 40);
    if (number > 0) *out = static_cast<std::uint64_t>(number);
  };
  count("keep_last", &policy.keep_last);
  count("keep_best", &policy.keep_best);
  count("experiment_best", &policy.experiment_best);
  count("keep_every", &policy.keep_every);
  policy.score = searcher.metric;
  policy.maximize = !searcher.smaller_is_better;
  reader.Text("score", &policy.score);
  std::string order = policy.maximize ? "max" : "min";
  reader.Text("order", &order);
  if (order != "min" && order != "max") reader.Fail("order", "must be min or max");
  policy.maximize = order == "max";
  double age = -1;
  reader.Seconds("max_age", &age);
  if (age >= 0) policy.max_age = Millis(age);
  const auto bytes = [&](std::string_view key, std::optional<std::uint64_t>* out) {
    std::uint64_t number = ~std::uint64_t{0};
    reader.Bytes(key, &number);
    if (number != ~std::uint64_t{0}) *out = number;
  };
  bytes("max_bytes", &policy.max_bytes);
  bytes("experiment_bytes", &policy.experiment_bytes);
  RETURN_IF_ERROR(reader.Finish());
  RETURN_IF_ERROR(policy.Validate());
  return policy;
}

Value ExperimentConfig::HparamsOf(std::uint64_t index) const {
  return searcher.kind == Kind::kGrid ? hyperparameters.GridPoint(index)
                                      : hyperparameters.Sample(searcher.seed, index);
}

TrialConfig ExperimentConfig::TrialOf(const std::string& experiment, std::uint64_t index,
                                      const std::string& default_storage) const {
  TrialConfig trial;
  trial.experiment = experiment;
  trial.hparams = HparamsOf(index);
  trial.argv = entrypoint;
  trial.env = environment;
  // What a script prints is followed line by line; Python would keep it back until it ends.
  trial.env.emplace("PYTHONUNBUFFERED", "1");
  // Of 31 bits: what every generator of random numbers takes.
  trial.env.emplace("CAIRN_TRIAL_SEED",
                    std::to_string(tune::Rng(searcher.seed, index, "trial_seed").Below(1u << 31)));
  trial.storage = storage.empty() ? default_storage : storage;
  trial.world_size = std::max(1, slots);
  trial.slots = slots;
  trial.priority = priority;
  trial.launcher = launcher;
  trial.resources = resources;
  trial.limits = limits;
  trial.max_restarts = max_restarts;
  trial.preemption_timeout = Millis(preemption_timeout);
  trial.kill_grace = Millis(kill_grace);
  trial.retention = retention;
  return trial;
}

Result<ExperimentConfig> ParseExperiment(std::string_view yaml) {
  ASSIGN_OR_RETURN(const ConfigNode root, ParseYaml(yaml));
  return FromNode(root);
}

Result<ExperimentConfig> ExperimentFromValue(const Value& source) {
  return FromNode(ConfigNode::FromValue(source));
}

Value WithDefaults(const ExperimentConfig& config) {
  const SearcherConfig& from = config.searcher;
  Value::Object searcher{{"name", SearcherName(from.kind)},
                         {"metric", from.metric},
                         {"smaller_is_better", from.smaller_is_better},
                         {"seed", from.seed}};
  if (from.kind != Kind::kSingle) searcher["max_concurrent_trials"] = from.max_concurrent_trials;
  if (from.kind == Kind::kAdaptiveAsha) {
    searcher["max_rungs"] = from.max_rungs;
    searcher["divisor"] = from.divisor;
    searcher["mode"] = kModes[static_cast<std::size_t>(from.mode)];
  }
  Value::Object out{{"description", ""},
                    {"labels", Value::List{}},
                    {"hyperparameters", Value::Object{}},
                    {"searcher", Value::Object{}},
                    {"max_restarts", config.max_restarts},
                    {"resources", Value::Object{}},
                    {"preemption_timeout", config.preemption_timeout},
                    {"kill_grace", config.kill_grace}};
  if (const auto* said = config.source.if_object()) {
    for (const auto& [key, value] : *said) out[key] = value;
  }
  const auto fill = [&out](const std::string& key, Value::Object defaults) {
    auto* members = out[key].if_object();
    if (members != nullptr) members->merge(defaults);
  };
  fill("searcher", std::move(searcher));
  fill("resources", {{"priority", config.priority}});
  if (out["resources"].Find("slots") == nullptr) {
    fill("resources", {{"slots_per_trial", config.slots}});
  }
  return out;
}

void OverrideConfig(const Value& over, Value* source) {
  const auto* members = over.if_object();
  if (members == nullptr) {
    *source = over;
    return;
  }
  if (!source->is_object()) *source = Value::Object{};
  for (const auto& [key, member] : *members) {
    Value* at = source;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t point = key.find('.', begin);
      if (!at->is_object()) *at = Value::Object{};
      at = &(*at->if_object())[key.substr(begin, point - begin)];
      if (point == std::string::npos) break;
      begin = point + 1;
    }
    OverrideConfig(member, at);
  }
}

}  // namespace cairn::master
