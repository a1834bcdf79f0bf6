#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

struct ServeOptions {
  std::string model;       // an export
  std::string repository;  // that it follows
  std::string listen = "127.0.0.1:8000";
  std::string grpc;             // host:port of lookups by gRPC; "": none
  std::string tls_certificate;  // PEM files; "": no TLS
  std::string tls_key;
  std::string name;        // "": the name of the export's directory
  std::string token_file;  // "": CAIRN_TOKEN, or nobody is asked
  double poll_seconds = 1;
  std::uint64_t keep_versions = 2;
  double cpu_share = 0.5;
  int threads = 0;      // of requests; 0: one for each core
  int run_threads = 0;  // of one prediction; 0: the runtime's choice
  std::uint64_t max_request_bytes = 16u << 20;
  bool allow_not_finite = false;
  std::string probes;  // a file of guards; "": none
  std::string master;  // that is told which version is served; "": none
};

/// `cairn serve`: serves until it is interrupted. Unimplemented where inference models were not
/// built.
Result<Output> Serve(const ServeOptions& options, Console* console);

}  // namespace cairn::cli
