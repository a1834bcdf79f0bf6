#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "cli/completion.h"
#include "cli/console.h"

namespace CLI {
class App;
}

namespace cairn::cli {

struct MasterOptions;

using Run = std::function<Result<Output>(Console*)>;

/// The commands by their place in the command line.
class Commands {
 public:
  /// A command that ends a line; it gets --json.
  void Add(CLI::App* app, Run run);
  /// The one that was named, or null.
  const Run* Chosen() const;

 private:
  bool json_ = false;  // read from the arguments before they are parsed
  std::vector<std::pair<CLI::App*, Run>> leaves_;
};

CLI::App* Leaf(CLI::App* parent, const std::string& name, const std::string& description,
               const std::string& examples);
/// A command that only has commands below it.
CLI::App* Group(CLI::App* parent, const std::string& name, const std::string& description,
                const std::string& examples);
/// --master and --ca.
void AddMasterOptions(CLI::App* app, MasterOptions* options);
/// --master of what serves: who is told how it does.
void AddReportsTo(CLI::App* app, std::string* master);

// Each adds its part of the tree.
void AddExperimentCommands(CLI::App* root, Commands* commands);
void AddTrialCommands(CLI::App* root, Commands* commands);
void AddAccountCommands(CLI::App* root, Commands* commands);
void AddMasterCommand(CLI::App* root, Commands* commands);
void AddCompletion(CLI::App* root, Commands* commands);
#ifdef CAIRN_WITH_PS
void AddPserver(CLI::App* root, Commands* commands);
void AddPsRun(CLI::App* root, Commands* commands);
#endif

}  // namespace cairn::cli
