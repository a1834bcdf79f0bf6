#include <fmt/format.h>

#include <charconv>

#include "base/log.h"
#include "base/status_macros.h"
#include "paramserver/holdings.h"
#include "storage/open_store.h"
#include "storage/remove_under.h"

// Update logs that a job left when it went on with another number of servers or trainers, or in
// another mode. Only in the repository: a directory for logs may be shared with other jobs.

namespace cairn::ps {
namespace {

constexpr std::string_view kLogs = "log";

/// 2 of "log/ps_2"; -1 for what is no server's.
int ServerOf(std::string_view directory) {
  constexpr std::string_view kServer = "log/ps_";
  int server = -1;
  if (!directory.starts_with(kServer)) return -1;
  directory.remove_prefix(kServer.size());
  const char* const end = directory.data() + directory.size();
  const auto [rest, error] = std::from_chars(directory.data(), end, server);
  return error == std::errc() && rest == end ? server : -1;
}

}  // namespace

Status Holdings::FindOldLogs() {
  if (!options_.log_directory.empty()) return Status::Ok();
  ASSIGN_OR_RETURN(const std::shared_ptr<Store> store,
                   OpenStore(options_.directory, OpenStoreOptions{}));
  ASSIGN_OR_RETURN(const Listing servers, store->List(std::string(kLogs)));
  std::vector<std::string> found;
  for (const std::string& directory : servers.prefixes) {
    const int server = ServerOf(directory);
    // Of servers that there are no more the lead takes care.
    if (server != options_.index && !(lead_ && server >= options_.servers)) continue;
    ASSIGN_OR_RETURN(const Listing logs, store->List(directory));
    for (const std::string& log : logs.prefixes) {
      if (server == options_.index && log.ends_with("/" + log_name_)) continue;
      found.push_back(log);
    }
  }
  MutexLock lock(&mu_);
  old_logs_ = std::move(found);
  return Status::Ok();
}

void Holdings::RemoveOldLogs() {
  if (old_logs_.empty()) return;
  const auto store = OpenStore(options_.directory, OpenStoreOptions{});
  Status removed = store.status();
  for (const std::string& log : old_logs_) {
    if (removed.ok()) removed = RemoveUnder(store->get(), log);
    // Of a server that there is no more.
    if (removed.ok()) removed = (*store)->PruneDirectories(log.substr(0, log.rfind('/')));
  }
  if (removed.ok()) {
    LogInfo(fmt::format("ps_{}: removed {} update logs that no checkpoint needs", options_.index,
                        old_logs_.size()));
  } else {
    LogWarning(
        fmt::format("ps_{}: an old update log stays: {}", options_.index, removed.ToString()));
  }
  old_logs_.clear();  // what could not be removed is found by the next generation
}

}  // namespace cairn::ps
