#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/command_tree.h"
#include "cli/experiment_commands.h"
#include "cli/master_checkpoint_commands.h"

namespace cairn::cli {
namespace {

constexpr const char* kActions[][3] = {
    {"pause", "Ask it to save and exit; it goes on with `activate`", "pause"},
    {"activate", "Go on with what is paused, at the step where it was", "activate"},
    {"cancel", "End it in good order", "cancel"},
    {"kill", "End it now; what was not saved is lost", "kill"},
};

void AddLogOptions(CLI::App* app, LogsOptions* options) {
  app->add_flag("-f,--follow", options->follow, "Go on with what comes; Ctrl-C detaches");
  app->add_option("--tail", options->selection.tail, "Only the last so many lines")
      ->check(CLI::Range(0, 10000))
      ->type_name("N");
  app->add_option("--level", options->selection.level, "Of this level and above")
      ->check(CLI::IsMember({"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}));
  app->add_option("--rank", options->selection.rank, "Of one rank")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("N");
  app->add_option("--run", options->selection.run, "Of one run")
      ->check(CLI::Range(1, 1'000'000'000))
      ->type_name("N");
  app->add_option("--search", options->selection.search, "With this in the text");
  app->add_flag("--timestamps", options->selection.times, "With the time of each line");
}

/// --watch, or --watch=SECONDS.
void AddWatch(CLI::App* app, double* watch) {
  app->add_option("-w,--watch", *watch, "Look again every so many seconds (2), until Ctrl-C")
      ->expected(0, 1)
      ->default_str("2")
      ->check(CLI::Range(0.1, 86400.0))
      ->type_name("SECONDS");
}

void AddListOptions(CLI::App* app, ListOptions* options, const std::vector<std::string>& sorts) {
  app->add_option("--state", options->state, "In one of these states: RUNNING,PAUSED")
      ->type_name("STATE");
  app->add_option("--sort", options->sort, "By this")->check(CLI::IsMember(sorts));
  app->add_flag("--asc", options->ascending, "The smallest first");
  app->add_option("-n,--limit", options->limit, "At most so many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--offset", options->offset, "Without the first so many")->type_name("N");
  AddWatch(app, &options->watch);
}

/// What experiments and trials have in common. `e` is what the examples call the group.
void AddShared(CLI::App* group, bool trial, Commands* commands) {
  const std::string e = trial ? "  cairn t " : "  cairn e ";
  const std::string what = trial ? "The trial" : "The experiment";
  {
    auto options = std::make_shared<LogsOptions>();
    CLI::App* app = Leaf(group, "logs", "Show what its processes wrote",
                         e + "logs 7\n" + e + "logs -f 7\n" + e + "logs 7 --tail 50 --search loss");
    app->add_option("ID", options->id, what)->required();
    AddLogOptions(app, options.get());
    AddMasterOptions(app, &options->master);
    commands->Add(app,
                  [options, trial](Console* console) { return Logs(*options, trial, console); });
  }
  for (const auto& action : kActions) {
    auto options = std::make_shared<ActOptions>();
    const std::string name = action[0];
    CLI::App* app = Leaf(group, name, action[1], e + name + " 7\n" + e + name + " 7 8 9");
    app->add_option("ID", options->ids, what + ", or several")->required()->expected(1, -1);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options, name, trial](Console* console) {
      return Act(*options, name, trial, console);
    });
  }
  {
    auto options = std::make_shared<ContinueOptions>();
    CLI::App* app =
        Leaf(group, "continue", "Go on with one that ended, or begin a new one with its weights",
             e + "continue 7                 the same trial, at the step where it was\n" + e +
                 "continue 7 --new -f        a new experiment with its weights, from step 0\n" + e +
                 "continue 7 --new --from 5b3c9e01-… --config hyperparameters.lr=0.01");
    app->add_option("ID", options->id, what)->required();
    app->add_flag("--new", options->as_new, "A new experiment that begins with its weights");
    app->add_option("--from", options->from, "A checkpoint; without it the latest")
        ->type_name("ID");
    app->add_option("--config", options->overrides, "Other values in the config of the new one")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->take_all();
    app->add_flag("-f,--follow", options->follow, "Follow its logs; Ctrl-C detaches");
    AddMasterOptions(app, &options->master);
    commands->Add(
        app, [options, trial](Console* console) { return Continue(*options, trial, console); });
  }
  {
    auto options = std::make_shared<CheckpointListOptions>();
    CLI::App* app = Leaf(group, "checkpoints", "List its checkpoints, the newest first",
                         e + "checkpoints 7\n" + e + "checkpoints 7 --best -n 3\n" + e +
                             "checkpoints 7 --state COMPLETED,DELETED");
    app->add_option("ID", options->id, what)->required();
    app->add_option("--state", options->state, "ACTIVE, COMPLETED, DELETED, ERROR; COMPLETED");
    app->add_flag("--best", options->best, "The one with the best score first");
    app->add_option("-n,--limit", options->limit, "At most so many")
        ->check(CLI::Range(1, 1000))
        ->type_name("N");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options, trial](Console* console) {
      return ListCheckpoints(*options, trial, console);
    });
  }
  {
    auto options = std::make_shared<DownloadOptions>();
    CLI::App* app = Leaf(group, "download", "Fetch a checkpoint, the latest unless named",
                         e + "download 7 -o model/\n" + e + "download 7 --best -o best.tar\n" + e +
                             "download 7 --checkpoint 5b3c9e01-… -o old.zip");
    app->add_option("ID", options->id, what)->required();
    auto* checkpoint = app->add_option("--checkpoint", options->checkpoint, "Which one");
    app->add_flag("--best", options->best, "The one with the best score")->excludes(checkpoint);
    if (!trial) {
      app->add_flag("--code", options->code, "The experiment's code instead")->excludes(checkpoint);
    }
    app->add_option("-o,--output", options->out,
                    "A new directory, or a file that ends with .tar, .tar.gz or .zip")
        ->required();
    AddMasterOptions(app, &options->master);
    commands->Add(
        app, [options, trial](Console* console) { return Download(*options, trial, console); });
  }
  {
    auto options = std::make_shared<WaitOptions>();
    CLI::App* app = Leaf(
        group, "wait",
        "Wait until it has ended, also through a pause; exit code 0 for COMPLETED "
        "alone, 1 for ERROR and CANCELED",
        e + "wait 7 && echo done\n" + e + "wait 7 --timeout 3600\n" + e + "wait 7 --or-paused");
    app->add_option("ID", options->id, what)->required();
    app->add_option("--timeout", options->timeout, "At most so long")
        ->check(CLI::Range(0.001, 1e9))
        ->type_name("SECONDS");
    app->add_flag("--or-paused", options->or_paused, "Until it is paused, too: exit code 3 then");
    AddMasterOptions(app, &options->master);
    commands->Add(app,
                  [options, trial](Console* console) { return Wait(*options, trial, console); });
  }
}

/// Of both kinds, and of their checkpoints by id.
void AddCheckpointActions(CLI::App* group, bool trial, Commands* commands) {
  const std::string e = trial ? "  cairn t " : "  cairn e ";
  {
    auto options = std::make_shared<RemoveCheckpointsOptions>();
    CLI::App* app =
        Leaf(group, "rm", "Remove checkpoints by name or id",
             e + "rm 7 'checkpoint_00001?'\n" + e + "rm 7 '*' --dry-run\n" +
                 "Pinned ones, the latest of a trial that has not ended and what another builds on "
                 "stay; a trial\nthat runs removes its own with its next checkpoint.");
    app->add_option("ID", options->id, trial ? "The trial" : "The experiment")->required();
    app->add_option("GLOB", options->globs, "Over ids and names of directories: *, ?, [a-z]")
        ->required()
        ->expected(1, -1);
    app->add_flag("--dry-run", options->dry_run, "Only tell what would go");
    app->add_flag("-y,--yes", options->yes, "Do not ask");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options, trial](Console* console) {
      return RemoveMasterCheckpoints(*options, trial, console);
    });
  }
  for (const bool pinned : {true, false}) {
    auto options = std::make_shared<MasterCheckpointsOptions>();
    CLI::App* app =
        pinned ? Leaf(group, "pin", "Keep checkpoints whatever the rules say", e + "pin 6a41f0c2")
               : Leaf(group, "unpin", "Leave checkpoints to the rules again", e + "unpin 6a41f0c2");
    app->add_option("CHECKPOINT", options->ids, "Their ids")->required()->expected(1, -1);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options, pinned](Console* console) {
      return PinMasterCheckpoints(*options, pinned, console);
    });
  }
  {
    auto options = std::make_shared<MasterCheckpointsOptions>();
    CLI::App* app =
        Leaf(group, "verify", "Compare checkpoints with their checksums", e + "verify 6a41f0c2");
    app->add_option("CHECKPOINT", options->ids, "Their ids")->required()->expected(1, -1);
    AddMasterOptions(app, &options->master);
    commands->Add(
        app, [options](Console* console) { return VerifyMasterCheckpoints(*options, console); });
  }
}

void AddCreate(CLI::App* group, Commands* commands) {
  auto options = std::make_shared<CreateOptions>();
  CLI::App* app = Leaf(group, "create", "Begin an experiment: a config and a directory of code",
                       "  cairn e create config.yaml . -f        and follow its logs\n"
                       "  cairn e create config.yaml . --config hyperparameters.lr=0.1\n"
                       "  cairn e create config.yaml . --validate\n"
                       "What .cairnignore names (as in .gitignore) stays here.");
  app->add_option("CONFIG", options->config, "The YAML file")->required();
  app->add_option("DIR", options->directory, "The directory of code")->required();
  app->add_flag("-f,--follow", options->follow, "Follow its logs; Ctrl-C detaches");
  app->add_flag("--paused", options->paused, "Do not start it yet");
  app->add_option("--config", options->overrides, "Other values than the file's")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  app->add_flag("--validate", options->validate, "Only check the config");
  AddMasterOptions(app, &options->master);
  commands->Add(app, [options](Console* console) { return CreateExperiment(*options, console); });
}

void AddListAndShow(CLI::App* group, Commands* commands) {
  {
    auto options = std::make_shared<ListOptions>();
    CLI::App* app = Leaf(group, "ls",
                         "List experiments, the newest first. DURATION is how long at least one "
                         "trial ran: without pauses and waits for slots",
                         "  cairn e ls\n"
                         "  cairn e ls --state RUNNING --watch\n"
                         "  cairn e ls --search mnist --sort best --json");
    app->alias("list");
    app->add_option("--owner", options->owner, "Of this user");
    app->add_option("--label", options->label, "With this label");
    app->add_option("--search", options->search, "With this in id, name, description or labels");
    app->add_flag("-a,--all", options->archived, "Also archived ones");
    AddListOptions(app, options.get(),
                   {"id", "name", "state", "progress", "trials", "best", "checkpoint_bytes",
                    "owner", "created", "started", "duration"});
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ListExperiments(*options, console); });
  }
  {
    auto options = std::make_shared<ShowOneOptions>();
    CLI::App* app = Leaf(group, "show", "Show an experiment and its trials",
                         "  cairn e show 7\n"
                         "  cairn e show 7 --watch\n"
                         "  cairn e show 7 --config > config.yaml");
    app->alias("describe");
    app->add_option("ID", options->id, "The experiment")->required();
    app->add_flag("--config", options->config, "Its config, as it was written");
    AddWatch(app, &options->watch);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ShowExperiment(*options, console); });
  }
}

void AddKeeping(CLI::App* group, Commands* commands) {
  {
    auto options = std::make_shared<DeleteOptions>();
    CLI::App* app = Leaf(group, "delete", "Delete ended experiments with all that belongs to them",
                         "  cairn e delete 7\n"
                         "  cairn e delete 7 8 --yes --keep-checkpoints");
    app->add_option("ID", options->ids, "The experiments")->required()->expected(1, -1);
    app->add_flag("-y,--yes", options->yes, "Do not ask");
    app->add_flag("--force", options->force, "Also with pinned checkpoints");
    app->add_flag("--keep-checkpoints", options->keep_checkpoints, "Leave the repositories");
    AddMasterOptions(app, &options->master);
    commands->Add(app,
                  [options](Console* console) { return DeleteExperiments(*options, console); });
  }
  {
    auto options = std::make_shared<PolicyOptions>();
    CLI::App* app = Leaf(group, "set-policy", "Say which of its checkpoints stay",
                         "  cairn e set-policy 7                             how it is\n"
                         "  cairn e set-policy 7 --keep-last 3 --keep-best 2 --preview\n"
                         "  cairn e set-policy 7 --max-age 14d --max-bytes 50GiB\n"
                         "What any of the --keep rules keeps stays; \"none\" takes a rule away.");
    app->add_option("ID", options->id, "The experiment")->required();
    app->add_option("--keep-last", options->keep_last, "The newest so many")->type_name("N|none");
    app->add_option("--keep-best", options->keep_best, "Of each trial, by score")
        ->type_name("N|none");
    app->add_option("--experiment-best", options->experiment_best, "Of all trials, by score")
        ->type_name("N|none");
    app->add_option("--keep-every", options->keep_every, "Steps that are multiples of it")
        ->type_name("N|none");
    app->add_option("--score", options->score, "The metric")->type_name("METRIC");
    app->add_option("--order", options->order, "Which score is better")
        ->check(CLI::IsMember({"min", "max"}));
    app->add_option("--max-age", options->max_age, "12h, 14d")->type_name("TIME|none");
    app->add_option("--max-bytes", options->max_bytes, "Of each trial: 500MB, 50GiB")
        ->type_name("BYTES|none");
    app->add_option("--experiment-bytes", options->experiment_bytes, "Of all trials together")
        ->type_name("BYTES|none");
    app->add_flag("--preview", options->preview, "Only tell what would go");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return SetPolicy(*options, console); });
  }
  {
    auto options = std::make_shared<EditOptions>();
    CLI::App* app = Leaf(group, "edit", "Change its name, description, notes or labels",
                         "  cairn e edit 7 --name \"with dropout\" --add-label paper\n"
                         "  cairn e edit 7 --archive");
    app->add_option("ID", options->id, "The experiment")->required();
    app->add_option("--name", options->name, "A new name");
    app->add_option("--description", options->description, "A new description");
    app->add_option("--notes", options->notes, "New notes");
    app->add_option("--add-label", options->add_labels, "May be repeated")->take_all()->expected(1);
    app->add_option("--remove-label", options->remove_labels, "May be repeated")
        ->take_all()
        ->expected(1);
    app->add_flag_callback(
        "--archive", [options] { options->archived = "true"; }, "Leave it out of lists");
    app->add_flag_callback(
        "--unarchive", [options] { options->archived = "false"; }, "Show it in lists again");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return EditExperiment(*options, console); });
  }
}

}  // namespace

void AddExperimentCommands(CLI::App* root, Commands* commands) {
  CLI::App* group = Group(root, "experiment", "Experiments of a master (also: e)",
                          "  cairn e create config.yaml . -f\n"
                          "  cairn e ls\n"
                          "  cairn e pause 7; cairn e activate 7\n"
                          "`cairn experiment COMMAND --help` tells more.");
  group->alias("e");
  AddCreate(group, commands);
  AddListAndShow(group, commands);
  AddShared(group, false, commands);
  AddCheckpointActions(group, false, commands);
  AddKeeping(group, commands);
}

void AddTrialCommands(CLI::App* root, Commands* commands) {
  CLI::App* group = Group(root, "trial", "Trials of a master's experiments (also: t)",
                          "  cairn t ls --experiment 7\n"
                          "  cairn t metrics 12 --group validation\n"
                          "`cairn trial COMMAND --help` tells more.");
  group->alias("t");
  {
    auto options = std::make_shared<ListOptions>();
    CLI::App* app = Leaf(group, "ls", "List trials, the newest first",
                         "  cairn t ls\n"
                         "  cairn t ls --experiment 7 --sort best");
    app->alias("list");
    app->add_option("-e,--experiment", options->experiment, "Of this experiment");
    AddListOptions(app, options.get(),
                   {"id", "state", "progress", "best", "steps_completed", "created", "duration"});
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ListTrials(*options, console); });
  }
  {
    auto options = std::make_shared<ShowOneOptions>();
    CLI::App* app = Leaf(group, "show", "Show a trial", "  cairn t show 12");
    app->alias("describe");
    app->add_option("ID", options->id, "The trial")->required();
    AddWatch(app, &options->watch);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ShowTrial(*options, console); });
  }
  {
    auto options = std::make_shared<MetricsOptions>();
    CLI::App* app = Leaf(group, "metrics", "Show what a trial reported",
                         "  cairn t metrics 12\n"
                         "  cairn t metrics 12 --group validation --name loss --json\n"
                         "  cairn t metrics 12 --name loss --points 100");
    app->add_option("ID", options->id, "The trial")->required();
    app->add_option("--group", options->group, "training, validation, or another");
    app->add_option("--name", options->name, "Metrics, separated by commas");
    app->add_option("--points", options->points, "Only about so many of each metric")
        ->check(CLI::Range(2, 100000))
        ->type_name("N");
    app->add_flag("-a,--all", options->archived, "Also what a later run went back before");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ShowMetrics(*options, console); });
  }
  AddShared(group, true, commands);
  AddCheckpointActions(group, true, commands);
}

}  // namespace cairn::cli
