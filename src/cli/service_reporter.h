#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/thread_annotations.h"
#include "cli/console.h"
#include "cli/master_client.h"

namespace cairn::cli {

struct ServiceReporterOptions {
  std::string master;      // its URL; the token: CAIRN_MASTER_TOKEN, else as for other commands
  std::string kind;        // "paramserver", "serving"
  std::string name;        // "": the kind with host and process; other characters become '-'
  std::string repository;  // that it works on
  std::function<Value::Object()> facts;  // asked on the reporter's thread
};

/// Tells a master now and then that a service lives and how it does, for people who look there. A
/// master that does not answer changes nothing for the service: it is said once.
class ServiceReporter {
 public:
  /// Null when no master is named.
  static Result<std::unique_ptr<ServiceReporter>> Start(ServiceReporterOptions options,
                                                        Console* console);
  ~ServiceReporter();
  ServiceReporter(const ServiceReporter&) = delete;
  ServiceReporter& operator=(const ServiceReporter&) = delete;

 private:
  ServiceReporter(ServiceReporterOptions options, std::unique_ptr<MasterClient> master);
  void Run();

  const ServiceReporterOptions options_;
  const std::unique_ptr<MasterClient> master_;  // of the thread alone
  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::jthread thread_;
};

}  // namespace cairn::cli
