#include "cli/command_tree.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/master_client.h"

namespace cairn::cli {
namespace {

void Collect(const CLI::App* app, const std::string& path, std::vector<CommandWords>* out) {
  CommandWords words;
  words.path = path;
  std::vector<std::pair<const CLI::App*, std::string>> below;
  for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) {
    std::vector<std::string> names = sub->get_aliases();
    names.insert(names.begin(), sub->get_name());
    for (const std::string& name : names) {
      words.commands.push_back(name);
      below.emplace_back(sub, path.empty() ? name : path + " " + name);
    }
  }
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) words.options.push_back("--" + name);
    for (const std::string& name : option->get_snames()) words.options.push_back("-" + name);
    words.takes_files = words.takes_files || option->get_positional();
  }
  out->push_back(std::move(words));
  for (const auto& [sub, name] : below) Collect(sub, name, out);
}

}  // namespace

void Commands::Add(CLI::App* app, Run run) {
  app->add_flag("--json", json_, "Print JSON, also for errors");
  leaves_.emplace_back(app, std::move(run));
}

const Run* Commands::Chosen() const {
  for (const auto& [app, run] : leaves_) {
    if (app->parsed()) return &run;
  }
  return nullptr;
}

CLI::App* Leaf(CLI::App* parent, const std::string& name, const std::string& description,
               const std::string& examples) {
  CLI::App* app = parent->add_subcommand(name, description);
  app->footer("Examples:\n" + examples);
  return app;
}

CLI::App* Group(CLI::App* parent, const std::string& name, const std::string& description,
                const std::string& examples) {
  CLI::App* app = Leaf(parent, name, description, examples);
  app->require_subcommand(1);
  return app;
}

void AddMasterOptions(CLI::App* app, MasterOptions* options) {
  app->add_option("-m,--master", options->url,
                  "The master's URL; without it CAIRN_MASTER, then http://127.0.0.1:8080")
      ->type_name("URL");
  app->add_option("--ca", options->ca_file,
                  "PEM file of who signed its certificate; without it CAIRN_MASTER_CA, then the "
                  "system's authorities")
      ->type_name("FILE");
}

void AddReportsTo(CLI::App* app, std::string* master) {
  app->add_option("--master", *master,
                  "A master that is told how it does (token: CAIRN_MASTER_TOKEN); see its page "
                  "Cluster")
      ->type_name("URL");
}

void AddCompletion(CLI::App* root, Commands* commands) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = Leaf(root, "completion", "Print a script that teaches a shell these commands",
                       "  source <(cairn completion bash)          in ~/.bashrc\n"
                       "  source <(cairn completion zsh)           in ~/.zshrc, after compinit\n"
                       "  cairn completion fish | source           in config.fish");
  app->add_option("SHELL", *shell, "bash, zsh or fish")->required();
  commands->Add(app, [shell, root](Console*) -> Result<Output> {
    std::vector<CommandWords> words;
    Collect(root, "", &words);
    auto script = CompletionScript(*shell, "cairn", words);
    if (!script.ok()) return script.status();
    Output output;
    output.json = Value::Object{{"script", *script}};
    output.text = *std::move(script);
    return output;
  });
}

}  // namespace cairn::cli
