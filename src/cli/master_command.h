#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

struct MasterCommandOptions {
  std::string data_directory = "cairn-master";
  std::string listen = "127.0.0.1:8080";
  std::string tls_certificate;  // PEM files; "": no TLS
  std::string tls_key;
  std::string tls_ca;  // told to runs
  std::string advertise;
  std::string ray_address;     // "": as Ray's own programs find it
  std::string ray_token_file;  // the same
  std::string database;        // "": SQLite in the data directory
  std::string storage;         // "": checkpoints/ in the data directory
  std::string web;             // "": web/ in the data directory
  int slots = 0;               // 0: one for each core
  bool takeover = false;
  double requests_per_second = 500;  // of each user; 0: no bound
  double log_days = 0;               // 0: for ever
  std::uint64_t log_bytes = 0;       // of all trials together; 0: no bound
};

/// `cairn master`: serves until it is interrupted; what trains goes on.
Result<Output> RunMaster(const MasterCommandOptions& options, Console* console);

struct MasterBackupOptions {
  std::string data_directory = "cairn-master";
  std::string database;
  std::string out;
};
/// `cairn master backup`: a copy of the database, beside a living master.
Result<Output> BackupMaster(const MasterBackupOptions& options, Console* console);

struct MasterReindexOptions {
  std::string data_directory = "cairn-master";
  std::string database;
  std::vector<std::string> roots;  // empty: checkpoints/ in the data directory
};
/// `cairn master reindex`: brings the database in line with the repositories; no master may run.
/// Problems make its exit code 1.
Result<Output> ReindexMaster(const MasterReindexOptions& options, Console* console);

}  // namespace cairn::cli
