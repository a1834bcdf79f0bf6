#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "cli/bench_command.h"
#include "cli/checkpoint_commands.h"
#include "cli/command_tree.h"
#include "cli/console.h"
#include "cli/doctor.h"
#include "cli/doctor_ray.h"
#include "cli/doctor_slurm.h"
#include "cli/output.h"
#include "cli/serve_command.h"
#include "format/json.h"
#include "net/http_server.h"

namespace cairn::cli {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

/// Of a word that chooses a checkpoint: an unset variable of a script must not mean the latest.
CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](const std::string& word) {
        return std::string(word.empty() ? "it is empty (an unset variable?); leave it out, or say "
                                          "\"latest\", if the latest is meant"
                                        : "");
      },
      "");
}

/// Of a step: CLI11 takes the nearest number for one that is too large.
CLI::Validator StepNumber() {
  return CLI::Validator(
      [](const std::string& word) {
        std::int64_t step = 0;
        const char* const end = word.data() + word.size();
        const auto [rest, error] = std::from_chars(word.data(), end, step);
        return std::string(
            error == std::errc() && rest == end ? "" : "\"" + word + "\" is no number of a step");
      },
      "");
}

void AddReading(CLI::App* checkpoint, Commands* commands) {
  {
    auto options = std::make_shared<LsOptions>();
    CLI::App* app = Leaf(checkpoint, "ls", "List the checkpoints of a repository",
                         "  cairn checkpoint ls runs/a\n"
                         "  cairn checkpoint ls runs/a --json | jq '.checkpoints[].step'");
    app->add_option("DIR", options->directory, "The repository")->required();
    app->add_flag("-a,--all", options->all, "Also those that do not count any more");
    commands->Add(app, [options](Console* console) { return List(*options, console); });
  }
  {
    auto options = std::make_shared<ShowOptions>();
    CLI::App* app = Leaf(checkpoint, "show", "Show what is in a checkpoint",
                         "  cairn checkpoint show runs/a             the latest\n"
                         "  cairn checkpoint show runs/a 40          that of step 40\n"
                         "  cairn checkpoint show runs/a 5b3c9e01    by the beginning of its id\n"
                         "  cairn checkpoint show runs/a/checkpoint_000040");
    app->add_option("DIR", options->directory, "The repository, or a checkpoint's directory")
        ->required();
    app->add_option("STEP|ID", options->which, "Which one; without it the latest")
        ->check(NotEmpty());
    app->add_flag("-a,--all", options->all, "All tensors and files, however many");
    commands->Add(app, [options](Console* console) { return Show(*options, console); });
  }
  {
    auto options = std::make_shared<VerifyOptions>();
    CLI::App* app =
        Leaf(checkpoint, "verify",
             "Compare every byte with its checksum; exit code 1 when something is wrong",
             "  cairn checkpoint verify runs/a\n"
             "  cairn checkpoint verify runs/a --fast      records and sizes only\n"
             "  cairn checkpoint verify runs/a/checkpoint_000040");
    app->add_option("DIR", options->directory, "The repository, or a checkpoint's directory")
        ->required();
    app->add_flag("--fast", options->fast, "Records, and files present with their sizes");
    commands->Add(app, [options](Console* console) { return VerifyAll(*options, console); });
  }
  {
    auto options = std::make_shared<DiffOptions>();
    CLI::App* app =
        Leaf(checkpoint, "diff", "Compare the tensors of two checkpoints",
             "  cairn checkpoint diff runs/a 20 40\n"
             "  cairn checkpoint diff runs/a/checkpoint_000020 runs/b/checkpoint_000020\n"
             "  cairn checkpoint diff runs/a runs/b        the latest of each");
    app->add_option("A B | DIR STEP STEP", options->words,
                    "Two checkpoints' directories (or repositories: their latest), or a repository "
                    "and two steps or ids")
        ->required()
        ->expected(2, 3)
        ->check(NotEmpty());
    app->add_flag("-a,--all", options->all, "All tensors that differ, however many");
    app->add_flag("--exit-code", options->exit_code, "Exit with 1 when they differ");
    commands->Add(app, [options](Console* console) { return DiffTwo(*options, console); });
  }
}

void AddTakeover(CLI::App* app, bool* takeover) {
  app->add_flag("--takeover", *takeover,
                "Also beside a writer that may be alive: it is fenced out, its next save fails");
}

void AddMoving(CLI::App* checkpoint, Commands* commands) {
  {
    auto options = std::make_shared<ExportOptions>();
    CLI::App* app =
        Leaf(checkpoint, "export", "Write a checkpoint as a plain safetensors directory",
             "  cairn checkpoint export runs/a model/          the latest\n"
             "  cairn checkpoint export runs/a 40 model/\n"
             "OUT gets model.safetensors (or model-00001-of-0000n.safetensors) with an index, as "
             "Hugging\n"
             "Face's tools expect them, and the checkpoint's own files. It appears whole or not at "
             "all.");
    app->add_option(
           "DIR [STEP|ID] OUT", options->words,
           "The repository (or a checkpoint's directory), which one, and the new directory")
        ->required()
        ->expected(2, 3);
    commands->Add(app, [options](Console* console) { return Export(*options, console); });
  }
  {
    auto options = std::make_shared<ImportOptions>();
    CLI::App* app =
        Leaf(checkpoint, "import", "Commit plain safetensors files as a checkpoint",
             "  cairn checkpoint import model.safetensors runs/a --step 0\n"
             "  cairn checkpoint import model/ runs/a --step 0     with its other files");
    app->add_option("SRC", options->source, "A .safetensors file, or a directory of them")
        ->required();
    app->add_option("DIR", options->directory, "The repository; made when missing")->required();
    app->add_option("--step", options->step, "The step of the new checkpoint")
        ->required()
        ->check(StepNumber());
    app->add_flag("--no-files", options->no_files, "Leave the directory's other files out");
    AddTakeover(app, &options->takeover);
    commands->Add(app, [options](Console* console) { return Import(*options, console); });
  }
  {
    auto options = std::make_shared<CopyOptions>();
    CLI::App* app =
        Leaf(checkpoint, "copy", "Copy checkpoints to another repository",
             "  cairn checkpoint copy runs/a backup/a              the latest\n"
             "  cairn checkpoint copy runs/a backup/a --all\n"
             "  cairn checkpoint copy runs/a backup/a --step 20 --step 40\n"
             "What is there already is passed over: start it again after an interruption.");
    app->add_option("SRC", options->source, "The repository to copy from")->required();
    app->add_option("DST", options->target, "The repository to copy into; made when missing")
        ->required();
    auto* step = app->add_option("--step", options->which, "A step or an id; may be repeated")
                     ->type_name("STEP|ID")
                     ->expected(1)
                     ->take_all()
                     ->check(NotEmpty());
    app->add_flag("--all", options->all, "Every checkpoint")->excludes(step);
    app->add_flag("--adopt", options->adopt,
                  "Copy into another job's repository: the copy becomes that job's own");
    AddTakeover(app, &options->takeover);
    commands->Add(app, [options](Console* console) { return Copy(*options, console); });
  }
  {
    auto options = std::make_shared<MergeOptions>();
    CLI::App* app = Leaf(checkpoint, "merge",
                         "Make one checkpoint of the parts that ranks saved into their own "
                         "directories (private=True)",
                         "  cairn checkpoint merge runs/all runs/rank_0 runs/rank_1 runs/rank_2");
    app->add_option("OUT", options->target, "The repository for the result; made when missing")
        ->required();
    app->add_option("DIR", options->parts, "The repositories of all ranks, in any order")
        ->required()
        ->expected(1, -1);
    app->add_option("--step", options->step, "Instead of the newest step that all have")
        ->check(StepNumber());
    app->add_flag("--separate-files", options->separate_files,
                  "Keep files that differ between ranks as <rank>/<name>");
    AddTakeover(app, &options->takeover);
    commands->Add(app, [options](Console* console) { return Merge(*options, console); });
  }
}

void AddKeeping(CLI::App* checkpoint, Commands* commands) {
  {
    auto options = std::make_shared<CompactOptions>();
    CLI::App* app = Leaf(checkpoint, "compact",
                         "Put an increment and what it builds on together into a full checkpoint",
                         "  cairn checkpoint compact runs/a\n"
                         "  cairn checkpoint compact runs/a 60\n"
                         "Restored, it gives the same bits. Not while the training runs.");
    app->add_option("DIR", options->directory, "The repository")->required();
    app->add_option("STEP|ID", options->which, "Which one; the latest unless named")
        ->check(NotEmpty());
    AddTakeover(app, &options->takeover);
    commands->Add(app, [options](Console* console) { return Compact(*options, console); });
  }
  {
    auto options = std::make_shared<RemoveOptions>();
    CLI::App* app = Leaf(checkpoint, "rm", "Remove checkpoints",
                         "  cairn checkpoint rm runs/a 20 40\n"
                         "  cairn checkpoint rm runs/a 5b3c9e01 --yes");
    app->add_option("DIR", options->directory, "The repository")->required();
    app->add_option("STEP|ID", options->which, "Which ones")
        ->required()
        ->expected(1, -1)
        ->check(NotEmpty());
    app->add_flag("--increments", options->increments, "Also the increments that build on them");
    app->add_flag("-y,--yes", options->yes, "Do not ask");
    AddTakeover(app, &options->takeover);
    commands->Add(app, [options](Console* console) { return Remove(*options, console); });
  }
  for (const bool pin : {true, false}) {
    auto options = std::make_shared<PinOptions>();
    CLI::App* app =
        pin ? Leaf(checkpoint, "pin", "Keep a checkpoint whatever the retention rules say",
                   "  cairn checkpoint pin runs/a 40\n"
                   "Works while the training runs.")
            : Leaf(checkpoint, "unpin", "Take a pin back", "  cairn checkpoint unpin runs/a 40");
    app->add_option("DIR", options->directory, "The repository")->required();
    app->add_option("STEP|ID", options->which, "Which one")->required()->check(NotEmpty());
    commands->Add(app, [options, pin](Console* console) { return Pin(*options, pin, console); });
  }
  {
    auto options = std::make_shared<GcOptions>();
    CLI::App* app = Leaf(checkpoint, "gc", "Sweep what crashes left behind",
                         "  cairn checkpoint gc runs/a\n"
                         "The next start of the training does the same.");
    app->add_option("DIR", options->directory, "The repository")->required();
    AddTakeover(app, &options->takeover);
    commands->Add(app, [options](Console* console) { return Gc(*options, console); });
  }
}

void AddDoctor(CLI::App* root, Commands* commands) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* app =
      Leaf(root, "doctor", "Tell what this machine and a directory allow, and how fast it is",
           "  cairn doctor\n"
           "  cairn doctor runs/             writes and removes two files of 512 MiB there\n"
           "  cairn doctor runs/ --size 2GiB --rounds 5\n"
           "  cairn doctor --slurm /shared   whether trials can run on this site's Slurm: one job\n"
           "  cairn doctor --ray /shared     the same of Ray");
  auto slurm = std::make_shared<bool>(false);
  auto partition = std::make_shared<std::string>();
  CLI::Option* on_slurm = app->add_flag("--slurm", *slurm, "Try this site's Slurm instead");
  app->add_option("--partition", *partition, "Where the job of --slurm runs")->needs(on_slurm);
  auto ray = std::make_shared<bool>(false);
  auto on = std::make_shared<DoctorRayOptions>();
  CLI::Option* on_ray =
      app->add_flag("--ray", *ray, "Try this site's Ray instead")->excludes(on_slurm);
  app->add_option("--ray-address", on->address, "The URL of its dashboard")->needs(on_ray);
  app->add_option("--ray-token-file", on->token_file, "A file with its token")->needs(on_ray);
  app->add_option("DIR", options->directory, "An existing directory to try and to measure");
  app->add_option("--size", options->bytes, "Bytes of each measured file")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{8} << 20, std::uint64_t{1} << 40))
      ->type_name("BYTES");
  app->add_option("--rounds", options->rounds, "How often each way is measured")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  commands->Add(app, [options, slurm, partition, ray, on](Console* console) {
    if (*ray) {
      on->directory = options->directory;
      return DoctorRay(*on, console);
    }
    return *slurm ? DoctorSlurm({.directory = options->directory, .partition = *partition}, console)
                  : Doctor(*options, console);
  });
}

void AddBench(CLI::App* root, Commands* commands) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* app =
      Leaf(root, "bench", "Measure saves and restores in a directory, beside plain files",
           "  cairn bench runs/             a state of 1 GiB, three rounds\n"
           "  cairn bench runs/ --size 8GiB --tensors 300");
  app->add_option("DIR", options->directory, "An existing directory")->required();
  app->add_option("--size", options->bytes, "Bytes of the state")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1} << 20, std::uint64_t{1} << 40))
      ->type_name("BYTES");
  app->add_option("--tensors", options->tensors, "Equal tensors that it consists of")
      ->check(CLI::Range(1, 100000))
      ->type_name("N");
  app->add_option("--rounds", options->rounds, "How often each is measured")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  commands->Add(app, [options](Console* console) { return Bench(*options, console); });
}

void AddServe(CLI::App* root, Commands* commands) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* app = Leaf(root, "serve", "Serve an exported model that follows a training job",
                       "  cairn serve --model export --follow runs/a\n"
                       "  cairn serve --model export --follow runs/a --listen 0.0.0.0:8000 "
                       "--token-file token\n"
                       "Answers the Open Inference Protocol (KServe v2): /v2/models/<name>/infer. "
                       "Ends with Ctrl-C.");
  app->add_option("--model", options->model,
                  "What export_saved_model wrote, or the directory above")
      ->required();
  app->add_option("--follow", options->repository, "The training job's repository")->required();
  app->add_option("--listen", options->listen, "Host and port; port 0: a free one")
      ->capture_default_str();
  app->add_option("--grpc", options->grpc,
                  "Host and port where rows are looked up by gRPC; without it nowhere")
      ->type_name("HOST:PORT");
  app->add_option("--tls-cert", options->tls_certificate,
                  "PEM file of its certificate: then it is at https:// alone")
      ->type_name("FILE");
  app->add_option("--tls-key", options->tls_key, "PEM file of that certificate's key")
      ->type_name("FILE");
  app->add_option("--name", options->name, "Of the model; without it the export's directory");
  app->add_option("--token-file", options->token_file,
                  "A file with the token to ask for; without it CAIRN_TOKEN, if set");
  app->add_option("--poll", options->poll_seconds, "Seconds between looks at the repository")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
  app->add_option("--keep", options->keep_versions, "Versions that stay to go back to")
      ->capture_default_str();
  app->add_option("--cpu-share", options->cpu_share, "Of a core for long updates")
      ->check(CLI::Range(0.01, 64.0))
      ->capture_default_str();
  app->add_option("--threads", options->threads, "For requests; 0: one for each core, up to 64")
      ->check(CLI::Range(0, kMaxHttpThreads));
  app->add_option("--run-threads", options->run_threads, "Of one prediction; 0: OpenVINO's choice")
      ->check(CLI::Range(0, 1024));
  app->add_option("--max-request", options->max_request_bytes, "Bytes of the largest request")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  app->add_flag("--allow-not-finite", options->allow_not_finite,
                "Serve updates with NaN or infinite weights too");
  app->add_option(
         "--probes", options->probes,
         "JSON file of predictions and the range that each must lie in before an update is "
         "served (docs/guides/serving.md)")
      ->type_name("FILE");
  AddReportsTo(app, &options->master);
  commands->Add(app, [options](Console* console) { return Serve(*options, console); });
}

std::string ErrorJson(std::string_view code, std::string_view message) {
  return EncodeJson(Value::Object{{"error", Value::Object{{"code", std::string(code)},
                                                          {"message", std::string(message)}}}},
                    2) +
         "\n";
}

/// False when standard output cannot be written, for another reason than a reader that left.
bool Print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) return true;
    if (n < 0) {
      std::fprintf(stderr, "cairn: cannot write the output: %s\n", std::strerror(errno));
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

int Fail(bool json, const Status& status, int exit_code) {
  if (json) {
    Print(ErrorJson(CodeName(status.code()), status.message()));
  } else {
    std::fputs(("cairn: " + PrintableLines(status.message()) + "\n").c_str(), stderr);
  }
  return exit_code;
}

/// The deepest command that was named, for its help.
const CLI::App* Deepest(const CLI::App* app) {
  for (const CLI::App* sub : app->get_subcommands()) return Deepest(sub);
  return app;
}

std::string CommandName(const CLI::App* app) {
  return app->get_parent() == nullptr ? "cairn"
                                      : CommandName(app->get_parent()) + " " + app->get_name();
}

std::string HelpOf(const CLI::App* app) {
  return app->help(app->get_parent() == nullptr ? "" : CommandName(app->get_parent()));
}

/// Letters to add, drop or change to make one of the other.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row.back();
}

/// " (did you mean …?)", or "" where nothing is near.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  std::string nearest;
  std::size_t best = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& one : known) {
    const std::size_t distance = EditDistance(word, one);
    if (distance < best) {
      best = distance;
      nearest = one;
    }
  }
  return nearest.empty() ? "" : " (did you mean \"" + nearest + "\"?)";
}

std::string NoSuchCommand(const CLI::App& where, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* sub : where.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(sub->get_name());
  }
  return "there is no command \"" + word + "\"" + DidYouMean(word, known);
}

/// What is left of a command line that could be read: an option that there is not goes before the
/// words after it, which may be its value.
std::string NotUnderstood(const CLI::App& where) {
  const std::vector<std::string> words = where.remaining();
  const auto option = std::ranges::find_if(
      words, [](const std::string& word) { return word.size() > 1 && word.starts_with('-'); });
  if (option == words.end()) {
    return words.empty() ? "too many words" : "\"" + words.front() + "\" is one word too many";
  }
  const std::string name = option->substr(0, option->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* one : where.get_options()) {
    for (const std::string& longer : one->get_lnames()) known.push_back("--" + longer);
  }
  return "there is no option \"" + name + "\"" +
         (name.starts_with("--") ? DidYouMean(name, known) : "");
}

int Usage(const CLI::App& root, const CLI::ParseError& error, bool json) {
  const CLI::App* where = Deepest(&root);
  if (error.get_name() == "CallForHelp" || error.get_name() == "CallForAllHelp") {
    const std::vector<std::string> words = where->remaining();
    if (!words.empty() && !where->get_subcommands([](const CLI::App*) { return true; }).empty()) {
      return Fail(json, InvalidArgumentError(NoSuchCommand(*where, words.front())), kUsage);
    }
    return Print(HelpOf(where)) ? 0 : kFailure;
  }
  if (error.get_name() == "CallForVersion") {
    return Print(std::string(error.what()) + "\n") ? 0 : kFailure;
  }
  std::string what = error.what();
  if (error.get_name() == "RequiredError" && what.find("subcommand") != what.npos) {
    const std::vector<std::string> words = where->remaining();
    if (!json && words.empty()) {
      std::fputs(HelpOf(where).c_str(), stderr);
      return kUsage;
    }
    what = words.empty() ? "name a command" : NoSuchCommand(*where, words.front());
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    what = NotUnderstood(*where);
  }
  return Fail(json, InvalidArgumentError(what + ": see `" + CommandName(where) + " --help`"),
              kUsage);
}

/// Checkpoints of large models have thousands of files, all open at once.
void AllowManyOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Main(int argc, char** argv) {
  // A reader that left must not end us in the middle of a change.
  std::signal(SIGPIPE, SIG_IGN);
  // Nor must a limit on the sizes of files: it is an error like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  AllowManyOpenFiles();
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") break;
    json = json || std::string_view(argv[i]) == "--json";
  }

  CLI::App root("Cairn keeps training alive: checkpoints that survive anything.", "cairn");
  root.set_version_flag("--version", "cairn " CAIRN_VERSION);
  root.require_subcommand(1);
  root.footer(
      "Examples:\n"
      "  cairn checkpoint ls runs/a\n"
      "  cairn checkpoint verify runs/a\n"
      "  cairn experiment create config.yaml . -f     (or: cairn e create …)\n"
      "  cairn doctor runs/\n"
      "`cairn COMMAND --help` tells more. Exit codes: 0 done, 1 failed or problems found, 2 "
      "usage.");
  CLI::App* checkpoint =
      root.add_subcommand("checkpoint", "Look at, move, keep and remove checkpoints");
  checkpoint->require_subcommand(1);
  checkpoint->footer(
      "Examples:\n"
      "  cairn checkpoint ls runs/a\n"
      "  cairn checkpoint show runs/a 40\n"
      "`cairn checkpoint COMMAND --help` tells more.");
  Commands commands;
  AddReading(checkpoint, &commands);
  AddMoving(checkpoint, &commands);
  AddKeeping(checkpoint, &commands);
  AddDoctor(&root, &commands);
  AddBench(&root, &commands);
#ifdef CAIRN_WITH_PS
  AddPserver(&root, &commands);
  AddPsRun(&root, &commands);
#endif
  AddServe(&root, &commands);
  AddMasterCommand(&root, &commands);
  AddExperimentCommands(&root, &commands);
  AddTrialCommands(&root, &commands);
  AddAccountCommands(&root, &commands);
  AddCompletion(&root, &commands);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return Usage(root, error, json);
  }
  const Run* run = commands.Chosen();
  if (run == nullptr) return Fail(json, InvalidArgumentError("name a command"), kUsage);

  Console console(json);
  const Result<Output> result = (*run)(&console);
  if (!result.ok()) {
    const int code = Fail(json, result.status(), kFailure);
    if (Console::interrupted()) Console::EndByCaughtSignal();
    return code;
  }
  const std::string text = json ? EncodeJson(result->json, 2) + "\n" : result->text;
  return Print(text) ? result->exit_code : kFailure;
}

}  // namespace
}  // namespace cairn::cli

int main(int argc, char** argv) {
  try {
    return cairn::cli::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("cairn: out of memory\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cairn: internal error: %s; please report it\n", error.what());
  } catch (...) {
    std::fputs("cairn: internal error; please report it\n", stderr);
  }
  return 1;
}
