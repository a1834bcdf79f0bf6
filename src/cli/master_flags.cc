// The flags of `cairn master`.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command_tree.h"
#include "cli/master_command.h"

namespace cairn::cli {

void AddMasterCommand(CLI::App* root, Commands* commands) {
  auto options = std::make_shared<MasterCommandOptions>();
  CLI::App* app =
      Leaf(root, "master", "Run experiments for people: REST, logs, pause and resume",
           "  cairn master --data-dir /var/lib/cairn\n"
           "  cairn master --data-dir /var/lib/cairn --db postgresql://cairn@db/cairn\n"
           "  cairn master backup --data-dir /var/lib/cairn copy.db\n"
           "  cairn master reindex --data-dir /var/lib/cairn\n"
           "What trains survives the master: stop it, kill it, start the same command again.");
  auto copy = std::make_shared<MasterBackupOptions>();
  CLI::App* backup = Leaf(app, "backup", "Copy the database, also while the master runs",
                          "  cairn master backup --data-dir /var/lib/cairn copy.db");
  backup->add_option("--data-dir", copy->data_directory, "The master's directory")
      ->capture_default_str();
  backup->add_option("--db", copy->database, "The database, when it is not in the data directory");
  backup->add_option("OUT", copy->out, "The new file")->required();
  commands->Add(backup, [copy](Console* console) { return BackupMaster(*copy, console); });

  auto found = std::make_shared<MasterReindexOptions>();
  CLI::App* reindex =
      Leaf(app, "reindex", "Make the database anew from the checkpoints, which are the truth",
           "  cairn master reindex --data-dir /var/lib/cairn\n"
           "  cairn master reindex --data-dir /var/lib/cairn s3://bucket/checkpoints\n"
           "Stop the master first. Metrics, logs and users come back from a backup only.");
  reindex->add_option("--data-dir", found->data_directory, "The master's directory")
      ->capture_default_str();
  reindex->add_option("--db", found->database,
                      "The database, when it is not in the data directory");
  reindex->add_option("ROOT", found->roots,
                      "Where trials keep their checkpoints; without it checkpoints/ of the data "
                      "directory");
  commands->Add(reindex, [found](Console* console) { return ReindexMaster(*found, console); });

  app->add_option("--data-dir", options->data_directory,
                  "Everything of the master's own; made when missing")
      ->capture_default_str();
  app->add_option("--listen", options->listen,
                  "Host and port; port 0: a free one. Elsewhere than on the loopback only when a "
                  "user has a password")
      ->capture_default_str();
  app->add_option("--tls-cert", options->tls_certificate,
                  "PEM file of its certificate: then it is at https:// alone")
      ->type_name("FILE");
  app->add_option("--tls-key", options->tls_key, "PEM file of that certificate's key")
      ->type_name("FILE");
  app->add_option("--tls-ca", options->tls_ca,
                  "PEM file of who signed it, for runs that reach the master there")
      ->type_name("FILE");
  app->add_option("--advertise", options->advertise,
                  "The URL under which trials on other machines reach the master; without it where "
                  "it listens; files: through the data directory, which they share");
  app->add_option("--ray-address", options->ray_address,
                  "The URL of the dashboard of the Ray on which trials run that say launcher: ray; "
                  "without it RAY_API_SERVER_ADDRESS, RAY_ADDRESS or http://127.0.0.1:8265")
      ->type_name("URL");
  app->add_option("--ray-token-file", options->ray_token_file,
                  "A file with the token that Ray asks for; without it RAY_AUTH_TOKEN, "
                  "RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token")
      ->type_name("FILE");
  app->add_option("--db", options->database,
                  "sqlite:PATH or postgresql://…; without it SQLite in the data directory");
  app->add_option("--storage", options->storage,
                  "Where checkpoints go when an experiment does not say: a directory, s3://, "
                  "hdfs://; without it in the data directory");
  app->add_option("--slots", options->slots, "That trials share; 0: one for each core")
      ->check(CLI::Range(0, 100000));
  app->add_option(
      "--web", options->web,
      "The directory of the web page's files; without it web/ of the data directory, or "
      "the page that came with this program");
  app->add_option("--log-days", options->log_days, "How long logs are kept; 0: for ever")
      ->check(CLI::Range(0.0, 100000.0));
  app->add_option("--log-bytes", options->log_bytes, "Of all logs together; 0: no bound")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  app->add_option("--requests-per-second", options->requests_per_second,
                  "That each user may ask, four times as many at once; 0: no bound")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str()
      ->type_name("N");
  app->add_flag("--takeover", options->takeover,
                "Fence a master out that still holds the database");
  commands->Add(app, [options](Console* console) { return RunMaster(*options, console); });
}

}  // namespace cairn::cli
