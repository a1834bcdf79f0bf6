#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/account_commands.h"
#include "cli/command_tree.h"

namespace cairn::cli {
namespace {

void AddPasswordStdin(CLI::App* app, bool* from_stdin) {
  app->add_flag("--password-stdin", *from_stdin, "Read the password from standard input");
}

void AddSessions(CLI::App* root, Commands* commands) {
  {
    auto options = std::make_shared<LoginOptions>();
    CLI::App* app = Leaf(root, "login", "Log in at a master; later commands use the session",
                         "  cairn login ada\n"
                         "  cairn login ada --master https://train.example:8443");
    app->add_option("USER", options->username, "The user's name")->required();
    AddPasswordStdin(app, &options->password_stdin);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return Login(*options, console); });
  }
  {
    auto options = std::make_shared<MasterOptions>();
    CLI::App* app = Leaf(root, "login-link", "Print a link that opens the page, logged in",
                         "  cairn login-link\n"
                         "It works once, within ten minutes.");
    AddMasterOptions(app, options.get());
    commands->Add(app, [options](Console* console) { return LoginLink(*options, console); });
  }
  {
    auto options = std::make_shared<MasterOptions>();
    CLI::App* app = Leaf(root, "logout", "End the session of `cairn login`", "  cairn logout");
    AddMasterOptions(app, options.get());
    commands->Add(app, [options](Console* console) { return Logout(*options, console); });
  }
}

void AddUsers(CLI::App* root, Commands* commands) {
  CLI::App* group = Group(root, "user", "Users of a master",
                          "  cairn user create ada --role user\n"
                          "  cairn user ls");
  {
    auto options = std::make_shared<MasterOptions>();
    CLI::App* app = Leaf(group, "ls", "List the users", "  cairn user ls");
    app->alias("list");
    AddMasterOptions(app, options.get());
    commands->Add(app, [options](Console* console) { return ListUsers(*options, console); });
  }
  {
    auto options = std::make_shared<MasterOptions>();
    CLI::App* app =
        Leaf(group, "whoami", "Tell who the master takes you for", "  cairn user whoami");
    AddMasterOptions(app, options.get());
    commands->Add(app, [options](Console* console) { return Whoami(*options, console); });
  }
  const auto roles = CLI::IsMember({"viewer", "user", "admin"});
  {
    auto options = std::make_shared<UserOptions>();
    options->role = "user";
    CLI::App* app = Leaf(group, "create", "Add a user",
                         "  cairn user create ada\n"
                         "  cairn user create robot --role viewer --no-password");
    app->add_option("USER", options->username, "The new user's name")->required();
    app->add_option("--role", options->role, "What it may do")->check(roles)->capture_default_str();
    AddPasswordStdin(app, &options->password_stdin);
    app->add_flag("--no-password", options->no_password, "It can only use tokens");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return CreateUser(*options, console); });
  }
  for (const bool active : {true, false}) {
    auto options = std::make_shared<UserOptions>();
    CLI::App* app =
        active ? Leaf(group, "activate", "Let a user in again", "  cairn user activate ada")
               : Leaf(group, "deactivate", "Let a user do nothing any more",
                      "  cairn user deactivate ada");
    app->add_option("USER", options->username, "The user's name")->required();
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options, active](Console* console) {
      return SetUserActive(*options, active, console);
    });
  }
  {
    auto options = std::make_shared<UserOptions>();
    CLI::App* app =
        Leaf(group, "set-role", "Change what a user may do", "  cairn user set-role ada admin");
    app->add_option("USER", options->username, "The user's name")->required();
    app->add_option("ROLE", options->role, "viewer, user or admin")->required()->check(roles);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return SetUserRole(*options, console); });
  }
  {
    auto options = std::make_shared<UserOptions>();
    CLI::App* app = Leaf(group, "change-password", "Change your password, or (admins) another's",
                         "  cairn user change-password\n"
                         "  cairn user change-password ada");
    app->add_option("USER", options->username, "Another user's name");
    AddPasswordStdin(app, &options->password_stdin);
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ChangePassword(*options, console); });
  }
}

void AddTokens(CLI::App* root, Commands* commands) {
  CLI::App* group = Group(root, "token", "Tokens for programs that speak with a master",
                          "  CAIRN_TOKEN=$(cairn token create nightly --expires 90)\n"
                          "  cairn token ls");
  {
    auto options = std::make_shared<TokenOptions>();
    CLI::App* app = Leaf(group, "ls", "List your tokens", "  cairn token ls");
    app->alias("list");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return ListTokens(*options, console); });
  }
  {
    auto options = std::make_shared<TokenOptions>();
    CLI::App* app = Leaf(group, "create", "Make a token and print it, this once",
                         "  cairn token create nightly --expires 90");
    app->add_option("NAME", options->name, "What it is for")->required();
    app->add_option("--expires", options->expires_days, "After so many days; without it never")
        ->check(CLI::Range(0.001, 3650.0))
        ->type_name("DAYS");
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return CreateToken(*options, console); });
  }
  {
    auto options = std::make_shared<TokenOptions>();
    CLI::App* app = Leaf(group, "rm", "Take a token back", "  cairn token rm 3f2a");
    app->alias("revoke");
    app->add_option("ID", options->id, "As `cairn token ls` shows it")->required();
    AddMasterOptions(app, &options->master);
    commands->Add(app, [options](Console* console) { return RemoveToken(*options, console); });
  }
}

}  // namespace

void AddAccountCommands(CLI::App* root, Commands* commands) {
  AddSessions(root, commands);
  AddUsers(root, commands);
  AddTokens(root, commands);
}

}  // namespace cairn::cli
