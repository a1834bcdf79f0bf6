// cairn experiment and trial: what changes something, and what is fetched.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "cli/experiment_commands.h"
#include "cli/experiment_tables.h"
#include "cli/output.h"
#include "format/json.h"
#ifdef CAIRN_WITH_MASTER
#include "master/code_archive.h"
#endif

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

Status Errno(const std::string& what) {
  return PermissionDeniedError(fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string What(bool trial) { return trial ? "trial" : "experiment"; }

/// Whether the master cannot start it: a trial says so itself, an experiment in its config.
bool StartedByHand(const Value& one) {
  const Value* config = one.Find("config");
  const Value* said = config == nullptr ? one.Find("detached") : config->Find("detached");
  return said != nullptr && *said == Value(true);
}

/// What follows for people from a state that an action led to.
std::string Follows(const Value& one, const std::string& id, bool trial) {
  const std::string state = TextIn(one, "state");
  const std::string e = trial ? "t" : "e";
  if (state == "PAUSING") {
    return fmt::format(" (it saves and exits; `cairn {} wait {} --or-paused`)", e, id);
  }
  if (state == "PAUSED" && StartedByHand(one)) {
    return " (it was started by hand: start its command again, and it goes on)";
  }
  if (state == "PAUSED") return fmt::format(" (go on with `cairn {} activate {}`)", e, id);
  return "";
}

/// A file that appears under its name when it is whole.
class NewFile {
 public:
  static Result<NewFile> Open(const std::string& path) {
    NewFile file;
    file.path_ = path;
    file.temporary_ = path + ".partial-XXXXXX";
    file.file_ = mkostemp(file.temporary_.data(), O_CLOEXEC);
    if (file.file_ < 0) return Errno("cannot write " + path);
    return file;
  }
  NewFile(NewFile&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, "")),
        file_(std::exchange(other.file_, -1)),
        bytes_(other.bytes_) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (file_ >= 0) close(file_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }

  bool Write(std::string_view piece) {
    bytes_ += piece.size();
    while (!piece.empty()) {
      const ssize_t n = write(file_, piece.data(), piece.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        error_ = Errno("cannot write " + path_);
        return false;
      }
      piece.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// What stopped Write.
  const std::optional<Status>& error() const { return error_; }
  std::uint64_t bytes() const { return bytes_; }
  int descriptor() const { return file_; }
  /// Where it is until it is published; nobody else has that name.
  const std::string& temporary() const { return temporary_; }

  Status Publish() {
    if (fsync(file_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
      return Errno("cannot write " + path_);
    }
    temporary_.clear();
    return Status::Ok();
  }

 private:
  NewFile() = default;
  std::string path_;
  std::string temporary_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
  std::optional<Status> error_;
};

/// The archive, into a new file that has no name of its own yet.
Result<NewFile> Fetch(MasterClient* master, const std::string& path,
                      const MasterClient::Query& query, const std::string& out,
                      std::uint64_t expected, Console* console) {
  ASSIGN_OR_RETURN(NewFile file, NewFile::Open(out));
  ProgressBar bar("download", console->clock(), console->progress_enabled());
  const Status status = master->GetPieces(path, query, [&](std::string_view piece) {
    bar.Update(file.bytes(), expected);
    return file.Write(piece);
  });
  if (file.error().has_value()) return *file.error();
  RETURN_IF_ERROR(status);
  return file;
}

/// Unpacks what was fetched, code or a checkpoint, into a directory that is not there yet.
Status Unpack(const NewFile& file, const std::string& directory, bool code) {
#ifdef CAIRN_WITH_MASTER
  if (file.bytes() == 0) return CorruptionError("the archive that came is empty");
  void* const bytes = mmap(nullptr, file.bytes(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (bytes == MAP_FAILED) return Errno("cannot read what was downloaded");
  master::CodeLimits limits;
  limits.archive_bytes = file.bytes();
  if (!code) {
    limits.bytes = file.bytes() * 2;  // not compressed: what is more is no checkpoint
    limits.entries = 10'000'000;
    limits.path_bytes = 4096;
  }
  // Under a name of its own: what stands beside it may be anybody's.
  const std::string unpacked = file.temporary() + "-unpacked";
  const Status status = master::ExtractCode(
      std::string_view(static_cast<const char*>(bytes), file.bytes()), unpacked, limits);
  munmap(bytes, file.bytes());
  RETURN_IF_ERROR(status);
  if (rename(unpacked.c_str(), directory.c_str()) == 0) return Status::Ok();
  const Status failed = Errno("cannot write " + directory);
  std::error_code error;
  fs::remove_all(unpacked, error);
  return failed;
#else
  (void)file;
  (void)directory;
  (void)code;
  return UnimplementedError(
      "this build of Cairn cannot unpack archives: name a file, --output x.tar");
#endif
}

/// "tar", "tar.gz", "zip" of a name that ends so; "" for a directory.
std::string FormatOf(const std::string& out) {
  if (out.ends_with(".tar")) return "tar";
  if (out.ends_with(".tar.gz") || out.ends_with(".tgz")) return "tar.gz";
  if (out.ends_with(".zip")) return "zip";
  return "";
}

Result<Value> ChosenCheckpoint(MasterClient* master, const DownloadOptions& options, bool trial) {
  if (!options.checkpoint.empty()) return master->Get(CheckpointPath(options.checkpoint));
  MasterClient::Query query{{"limit", "1"}};
  if (options.best) query.emplace_back("sort", "score");
  ASSIGN_OR_RETURN(const Value page, master->Get(trial ? TrialPath(options.id, "/checkpoints")
                                                       : ExperimentPath(options.id, "/checkpoints"),
                                                 query));
  if (ListIn(page, "checkpoints").empty()) {
    return NotFoundError(fmt::format("{} {} has no checkpoints", What(trial), options.id));
  }
  return ListIn(page, "checkpoints").front();
}

/// "12", "7d", "10GiB" by the units that are allowed; nullopt for nonsense.
std::optional<double> WithUnit(const std::string& text,
                               const std::vector<std::pair<std::string, double>>& units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || !std::isfinite(number)) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  while (unit.starts_with(' ')) unit.erase(0, 1);
  if (unit.empty()) return number;
  for (const auto& [name, factor] : units) {
    if (unit == name) return number * factor;
  }
  return std::nullopt;
}

const std::vector<std::pair<std::string, double>> kTimes = {
    {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 604800}};
const std::vector<std::pair<std::string, double>> kSizes = {{"B", 1},
                                                            {"kB", 1e3},
                                                            {"KB", 1e3},
                                                            {"MB", 1e6},
                                                            {"GB", 1e9},
                                                            {"TB", 1e12},
                                                            {"KiB", 1024.0},
                                                            {"MiB", 1048576.0},
                                                            {"GiB", 1073741824.0},
                                                            {"K", 1024.0},
                                                            {"M", 1048576.0},
                                                            {"G", 1073741824.0},
                                                            {"T", 1099511627776.0},
                                                            {"TiB", 1099511627776.0}};

/// Lays one rule over the policy.
Status SetRule(Value::Object* policy, const char* name, const std::string& text,
               const std::vector<std::pair<std::string, double>>& units, bool whole) {
  if (text.empty()) return Status::Ok();
  if (text == "none") {
    policy->erase(name);
    return Status::Ok();
  }
  const auto number = WithUnit(text, units);
  if (!number.has_value() || (whole && (std::floor(*number) != *number || *number > 9e15))) {
    return InvalidArgumentError(
        fmt::format("{}: \"{}\" is no number that makes sense here (\"none\" takes the rule away)",
                    name, text));
  }
  (*policy)[name] = whole ? Value(static_cast<std::int64_t>(*number)) : Value(*number);
  return Status::Ok();
}

}  // namespace

Result<Output> Act(const ActOptions& options, const std::string& action, bool trial,
                   Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  Value::List all;
  for (const std::string& id : options.ids) {
    auto one = master->Send("POST",
                            trial ? TrialPath(id, "/" + action) : ExperimentPath(id, "/" + action));
    if (!one.ok()) {
      if (options.ids.size() == 1 || one.status().Is(Code::kUnavailable)) return one.status();
      // One that cannot is no reason to leave the others as they are.
      console->Note(fmt::format("{} {}: {}", What(trial), id, one.status().message()));
      output.exit_code = 1;
      continue;
    }
    output.text += fmt::format("{} {} is {}{}\n", What(trial), Printable(id),
                               Printable(TextIn(*one, "state")), Follows(*one, id, trial));
    all.push_back(*std::move(one));
  }
  output.json = Value::Object{{trial ? "trials" : "experiments", std::move(all)}};
  return output;
}

Result<Output> DeleteExperiments(const DeleteOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  Value::List deleted;
  for (const std::string& id : options.ids) {
    ASSIGN_OR_RETURN(const Value one, master->Get(ExperimentPath(id)));
    if (!options.yes) {
      const std::string question = fmt::format(
          "Delete experiment {} ({}) with {}{}?", id, TextIn(one, "name"),
          Counted(static_cast<std::uint64_t>(IntIn(one, "trials")), "trial"),
          options.keep_checkpoints
              ? ", and keep its checkpoints"
              : fmt::format(" and {} of checkpoints", HumanBytes(static_cast<std::uint64_t>(
                                                          IntIn(one, "checkpoint_bytes")))));
      ASSIGN_OR_RETURN(const bool sure,
                       console->Ask(question,
                                    "deleting asks first, and there is no terminal: --yes "
                                    "says that you are sure"));
      if (!sure) continue;
    }
    MasterClient::Query query;
    if (options.force) query.emplace_back("force", "true");
    if (options.keep_checkpoints) query.emplace_back("keep_checkpoints", "true");
    ASSIGN_OR_RETURN(const Value answer, master->Send("DELETE", ExperimentPath(id), {}, query));
    output.text += fmt::format("deleted experiment {}\n", Printable(id));
    deleted.emplace_back(id);
  }
  output.json = Value::Object{{"deleted", std::move(deleted)}};
  return output;
}

Result<Output> Download(const DownloadOptions& asked, bool trial, Console* console) {
  DownloadOptions options = asked;
  while (options.out.size() > 1 && options.out.ends_with('/')) options.out.pop_back();
  const std::string format = options.out == asked.out ? FormatOf(options.out) : "";
  if (options.out.empty() || fs::exists(options.out)) {
    return AlreadyExistsError(fmt::format(
        "\"{}\" is there already: name a new directory, or a file .tar, .tar.gz or .zip",
        options.out));
  }
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  std::string path;
  MasterClient::Query query;
  std::uint64_t expected = 0;
  std::string what;
  std::string beside;  // of an increment: what else came, and which one it is
  if (options.code) {
    if (format == "zip" || format == "tar") {
      return InvalidArgumentError("code comes as .tar.gz, or into a directory");
    }
    path = ExperimentPath(options.id, "/code");
    what = "the code of experiment " + options.id;
    output.json = Value::Object{{"path", options.out}};
  } else {
    ASSIGN_OR_RETURN(const Value chosen, ChosenCheckpoint(master.get(), options, trial));
    path = CheckpointPath(TextIn(chosen, "id"), "/download");
    query.emplace_back("format", format.empty() ? "tar" : format);
    expected = static_cast<std::uint64_t>(IntIn(chosen, "bytes"));
    what = fmt::format("checkpoint {} (step {})", TextIn(chosen, "id"),
                       IntIn(chosen, "steps_completed"));
    output.json = Value::Object{{"path", options.out}, {"checkpoint", chosen}};
    const std::string name = TextIn(chosen, "path");
    if (TextIn(chosen, "kind") == "increment") {
      beside =
          fmt::format(": {}, beside those that it builds on", name.substr(name.rfind('/') + 1));
    }
  }
  ASSIGN_OR_RETURN(NewFile file, Fetch(master.get(), path, query, options.out, expected, console));
  RETURN_IF_ERROR(format.empty() ? Unpack(file, options.out, options.code) : file.Publish());
  output.text = Printable(fmt::format("{} is in {}{}", what, options.out, beside)) + "\n";
  return output;
}

Result<Output> SetPolicy(const PolicyOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  const std::string path = ExperimentPath(options.id, "/policy");
  ASSIGN_OR_RETURN(const Value before, master->Get(path));
  Value::Object policy;
  if (const Value::Object* rules = before.if_object()) {
    for (const auto& [name, rule] : *rules) {
      if (!rule.is_null()) policy.emplace(name, rule);
    }
  }
  const Value as_it_is(policy);
  RETURN_IF_ERROR(SetRule(&policy, "keep_last", options.keep_last, {}, true));
  RETURN_IF_ERROR(SetRule(&policy, "keep_best", options.keep_best, {}, true));
  RETURN_IF_ERROR(SetRule(&policy, "experiment_best", options.experiment_best, {}, true));
  RETURN_IF_ERROR(SetRule(&policy, "keep_every", options.keep_every, {}, true));
  RETURN_IF_ERROR(SetRule(&policy, "max_age_seconds", options.max_age, kTimes, false));
  RETURN_IF_ERROR(SetRule(&policy, "max_bytes", options.max_bytes, kSizes, true));
  RETURN_IF_ERROR(SetRule(&policy, "experiment_bytes", options.experiment_bytes, kSizes, true));
  if (!options.score.empty()) policy["score"] = options.score;
  if (!options.order.empty()) policy["order"] = options.order;
  Output output;
  if (options.preview) {
    ASSIGN_OR_RETURN(output.json, master->Send("POST", path + "/preview", Value(policy)));
    const Value::List& removals = ListIn(output.json, "removals");
    TextTable table({{"ID"},
                     {"TRIAL", TextTable::Align::kRight},
                     {"STEP", TextTable::Align::kRight},
                     {"BYTES", TextTable::Align::kRight},
                     {"WHY"}});
    for (const Value& removal : removals) {
      table.AddRow({Printable(TextIn(removal, "id")), Printable(TextIn(removal, "trial")),
                    std::to_string(IntIn(removal, "steps_completed")),
                    HumanBytes(static_cast<std::uint64_t>(IntIn(removal, "bytes"))),
                    Printable(TextIn(removal, "reason"))});
    }
    output.text = (table.empty() ? "" : table.Render()) +
                  fmt::format("{} would go ({}), {} stay; nothing was done\n",
                              Counted(removals.size(), "checkpoint"),
                              HumanBytes(static_cast<std::uint64_t>(IntIn(output.json, "bytes"))),
                              IntIn(output.json, "kept"));
    return output;
  }
  output.json = before;
  if (!(Value(policy) == as_it_is)) {
    ASSIGN_OR_RETURN(output.json, master->Send("PUT", path, Value(policy)));
  }
  output.text = PolicyText(output.json);
  return output;
}

Result<Output> EditExperiment(const EditOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Value::Object body;
  if (!options.name.empty()) body["name"] = options.name;
  if (!options.description.empty()) body["description"] = options.description;
  if (!options.notes.empty()) body["notes"] = options.notes;
  if (!options.archived.empty()) body["archived"] = options.archived == "true";
  if (!options.add_labels.empty() || !options.remove_labels.empty()) {
    ASSIGN_OR_RETURN(const Value before, master->Get(ExperimentPath(options.id)));
    std::set<std::string> labels(options.add_labels.begin(), options.add_labels.end());
    for (const Value& label : ListIn(before, "labels")) {
      if (label.is_string()) labels.insert(*label.if_string());
    }
    for (const std::string& label : options.remove_labels) labels.erase(label);
    body["labels"] = Value::List(labels.begin(), labels.end());
  }
  Output output;
  ASSIGN_OR_RETURN(output.json,
                   master->Send("PATCH", ExperimentPath(options.id), Value(std::move(body))));
  output.text = ExperimentText(output.json);
  return output;
}

}  // namespace cairn::cli
