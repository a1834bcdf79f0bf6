#include "cli/master_command.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

#ifdef CAIRN_WITH_MASTER
#include "catalog/catalog.h"
#include "catalog/reindex.h"
#include "cli/output.h"
#include "cli/token_file.h"
#include "master/files.h"
#include "master/master.h"
#include "storage/open_store.h"
#endif

namespace cairn::cli {

#ifdef CAIRN_WITH_MASTER
namespace {

std::uint16_t PortOf(const std::string& url) {
  std::uint16_t port = 0;
  const std::size_t colon = url.rfind(':');
  std::from_chars(url.data() + colon + 1, url.data() + url.size(), port);
  return port;
}

/// The web page that was installed or built with this program; "" when there is none. One in the
/// data directory goes before it.
std::string PageOf(const std::string& data_directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(fs::path(data_directory) / "web", error)) return "";
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  // <prefix>/bin and <prefix>/share, and bin/ of a build directory in the source tree.
  for (const fs::path& page : {bin / "../share/cairn/web", bin / "../../../web/dist"}) {
    if (fs::is_regular_file(page / "index.html", error)) {
      return fs::canonical(page, error).string();
    }
  }
  return "";
}

std::string DatabaseOf(const std::string& database, const std::string& data_directory) {
  return database.empty() ? fmt::format("sqlite:{}/cairn.db", data_directory) : database;
}

}  // namespace

Result<Output> RunMaster(const MasterCommandOptions& options, Console* console) {
  console->CatchInterrupts();
  master::MasterOptions start;
  start.data_directory = options.data_directory;
  start.listen = options.listen;
  start.tls = {.certificate = options.tls_certificate, .key = options.tls_key};
  start.tls_ca = options.tls_ca;
  start.advertise = options.advertise;
  start.ray_address = options.ray_address;
  start.ray_token_file = options.ray_token_file;
  start.database = options.database;
  start.storage = options.storage;
  start.web_directory = options.web.empty() ? PageOf(options.data_directory) : options.web;
  start.slots = options.slots;
  start.takeover = options.takeover;
  start.requests_per_second = options.requests_per_second;
  start.log_retention.max_age =
      std::chrono::nanoseconds(static_cast<std::int64_t>(options.log_days * 86400e9));
  start.log_retention.max_bytes = options.log_bytes;
  start.version = CAIRN_VERSION;
  ASSIGN_OR_RETURN(const auto running, master::Master::Start(std::move(start)));
  // Commands of this user on this machine find the token by the port.
  std::string local;
  if (master::IsLoopback(options.listen)) {
    if (auto path = LocalTokenPath(PortOf(running->url())); path.ok()) {
      ASSIGN_OR_RETURN(std::string token, master::ReadWhole(running->token_path()));
      while (token.ends_with('\n')) token.pop_back();
      const Status written = WriteToken(*path, token);
      if (written.ok()) local = *path;
      if (!written.ok()) LogWarning(written.ToString());
    }
  }
  console->Note(fmt::format("master at {}", running->url()));
  if (const Status page = running->CheckPage(); page.ok()) {
    ASSIGN_OR_RETURN(const std::string link, running->LoginLink());
    console->Note(fmt::format("log in (once, within ten minutes): {}", link));
  } else {
    console->Note(page.message());
  }
  while (!Console::interrupted()) console->clock()->Sleep(std::chrono::milliseconds(50));
  running->Stop();
  if (!local.empty()) RemoveToken(local).IgnoreError("the next master writes another");
  Output output;
  output.text = "stopped; what trains goes on, start the master again to see it\n";
  output.json = Value::Object{{"stopped", true}};
  return output;
}

Result<Output> BackupMaster(const MasterBackupOptions& options, Console*) {
  ASSIGN_OR_RETURN(const auto catalog,
                   Catalog::Open({.url = DatabaseOf(options.database, options.data_directory),
                                  .mode = CatalogOptions::Mode::kReader}));
  RETURN_IF_ERROR(catalog->Backup(options.out));
  std::error_code error;
  const auto bytes = std::filesystem::file_size(options.out, error);
  Output output;
  output.text = fmt::format("{}: {} bytes\n", options.out, bytes);
  output.json = Value::Object{{"path", options.out}, {"bytes", static_cast<std::uint64_t>(bytes)}};
  return output;
}

Result<Output> ReindexMaster(const MasterReindexOptions& options, Console*) {
  std::error_code error;
  if (!std::filesystem::is_directory(options.data_directory, error)) {
    return NotFoundError(fmt::format("there is no directory \"{}\"", options.data_directory));
  }
  // As the master names them.
  const auto absolute = [](const std::string& path) {
    std::string whole = std::filesystem::absolute(path).lexically_normal().string();
    while (whole.size() > 1 && whole.ends_with('/')) whole.pop_back();
    return whole;
  };
  const std::string data_directory = absolute(options.data_directory);
  std::vector<std::string> roots = options.roots;
  for (std::string& root : roots) {
    if (!IsUrl(root)) root = absolute(root);
  }
  if (roots.empty()) roots.push_back(data_directory + "/checkpoints");
  ASSIGN_OR_RETURN(const auto catalog,
                   Catalog::Open({.url = DatabaseOf(options.database, options.data_directory)}));
  const auto repositories = RepositoryAccess::Real();
  ASSIGN_OR_RETURN(const ReindexReport report,
                   Reindex(catalog.get(), {.roots = roots,
                                           .data_directory = data_directory,
                                           .repositories = repositories.get()}));
  Output output;
  output.text = fmt::format(
      "{} read: {}, {} and {} added, {} found gone\n",
      report.repositories == 1 ? "1 repository"
                               : fmt::format("{} repositories", report.repositories),
      Counted(report.experiments_added, "experiment"), Counted(report.trials_added, "trial"),
      Counted(report.checkpoints_added, "checkpoint"),
      Counted(report.checkpoints_removed, "checkpoint"));
  Value::List problems;
  for (const std::string& problem : report.problems) {
    output.text += "Problem: " + Printable(problem) + "\n";
    problems.emplace_back(problem);
  }
  output.json = Value::Object{{"repositories", report.repositories},
                              {"experiments_added", report.experiments_added},
                              {"trials_added", report.trials_added},
                              {"checkpoints_added", report.checkpoints_added},
                              {"checkpoints_removed", report.checkpoints_removed},
                              {"problems", std::move(problems)}};
  output.exit_code = report.problems.empty() ? 0 : 1;
  return output;
}

#else

Result<Output> RunMaster(const MasterCommandOptions&, Console*) {
  return UnimplementedError(
      "this build of Cairn has no master: scripts/setup build installs what it wants");
}
Result<Output> BackupMaster(const MasterBackupOptions&, Console*) { return RunMaster({}, nullptr); }
Result<Output> ReindexMaster(const MasterReindexOptions&, Console*) {
  return RunMaster({}, nullptr);
}

#endif

}  // namespace cairn::cli
