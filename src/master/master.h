#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/ids.h"
#include "catalog/logs.h"
#include "master/api.h"
#include "net/tls_files.h"

namespace cairn::master {

struct MasterOptions {
  /// Holds everything that is the master's own: database, code, logs and records of runs, the
  /// token of the local user, and checkpoints unless `storage` says otherwise. Made when missing,
  /// for this user alone.
  std::string data_directory;
  /// Where the REST API and the page are. Elsewhere than on the loopback only when somebody has a
  /// password.
  std::string listen = "127.0.0.1:8080";
  /// Then the API and the page are at https:// alone.
  TlsFiles tls;
  /// PEM file of who signed that certificate: told to runs that reach the master there
  /// (CAIRN_MASTER_CA). "": they trust the authorities of their system.
  std::string tls_ca;
  /// "sqlite:PATH" or "postgresql://…"; "": cairn.db in the data directory.
  std::string database;
  /// For experiments that name none: a directory or URL; "": checkpoints/ in the data directory.
  std::string storage;
  /// The URL under which trials on other machines reach this master; "": where it listens. "files":
  /// through files in the data directory, which they share; for a master on the loopback.
  std::string advertise;
  /// The Ray on which trials run that say so: the URL of its dashboard, and a file with its token;
  /// "": as Ray's own programs find them (FindRay in launch/ray_client.h).
  std::string ray_address;
  std::string ray_token_file;
  /// What trials share on this machine; 0: one for each core.
  int slots = 0;
  std::string web_directory;  // "": web/ in the data directory, when it is there
  bool takeover = false;      // do not wait for a living master on the same database
  /// How often processes that joined by hand say that they live. Six missed ones: lost.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(10);
  /// That a user, or an address without one, may ask, with bursts of four times that; 0: no bound.
  double requests_per_second = 500;
  /// Of logs in the catalog; zero fields: no bound.
  LogRetention log_retention;
  std::string version;
  Clock* clock = Clock::System();
  IdSource* ids = IdSource::System();
  bool weak_hashes = false;  // of passwords; tests alone

  Status Validate() const;
};

/// The master: the trial engine as a service. One process for a data directory; runs survive it,
/// and the next one goes on with them.
class Master {
 public:
  using Options = MasterOptions;
  /// Listens when it returns. Unavailable: another master lives on this data directory or database.
  static Result<std::unique_ptr<Master>> Start(Options options);
  /// Stops: what runs goes on, and whoever starts a master here again finds it.
  ~Master();
  Master(const Master&) = delete;
  Master& operator=(const Master&) = delete;

  const std::string& url() const;
  /// A link that logs the local user in, once, within ten minutes.
  Result<std::string> LoginLink();
  /// Ok when there is a web page for the link to lead to; otherwise NotFound, with the remedy.
  Status CheckPage() const;
  /// Where the token of the local user is.
  std::string token_path() const;
  Accounts* accounts();
  /// All routes: method, pattern, who may. For the test of the contract.
  struct RouteInfo {
    std::string method;
    std::string pattern;
    std::string role;
  };
  std::vector<RouteInfo> Routes() const;
  void Stop();

 private:
  class Impl;
  explicit Master(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// True for 127.0.0.0/8, [::1] and localhost, and for Unix sockets.
bool IsLoopback(std::string_view listen);

}  // namespace cairn::master
