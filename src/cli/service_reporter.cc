#include "cli/service_reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/variables.h"

namespace cairn::cli {
namespace {

// A master forgets a service after a minute of silence.
constexpr auto kInterval = std::chrono::seconds(10);

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

/// As the contract wants names.
std::string Tame(std::string name) {
  for (char& c : name) {
    const bool known = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!known) c = '-';
  }
  if (!name.empty() && name.front() == '.') name.front() = '-';
  return name.substr(0, 64);
}

}  // namespace

Result<std::unique_ptr<ServiceReporter>> ServiceReporter::Start(ServiceReporterOptions options,
                                                                Console* console) {
  if (options.master.empty()) return std::unique_ptr<ServiceReporter>();
  ASSIGN_OR_RETURN(auto master, MasterClient::Open({.url = options.master}, console));
  if (const auto token = ProcessVariables()("CAIRN_MASTER_TOKEN")) master->SetToken(*token);
  if (options.name.empty()) {
    options.name = fmt::format("{}-{}-{}", options.kind, HostName(), getpid());
  }
  options.name = Tame(std::move(options.name));
  return std::unique_ptr<ServiceReporter>(
      new ServiceReporter(std::move(options), std::move(master)));
}

ServiceReporter::ServiceReporter(ServiceReporterOptions options,
                                 std::unique_ptr<MasterClient> master)
    : options_(std::move(options)), master_(std::move(master)) {
  thread_ = std::jthread([this] { Run(); });
}

ServiceReporter::~ServiceReporter() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void ServiceReporter::Run() {
  bool failing = false;  // said once
  for (;;) {
    const auto told = master_->Send("PUT", "/api/v1/services/" + options_.name,
                                    Value::Object{{"kind", options_.kind},
                                                  {"host", HostName()},
                                                  {"repository", options_.repository},
                                                  {"facts", Value(options_.facts())}});
    if (told.ok()) {
      failing = false;
    } else if (!std::exchange(failing, true) && !Console::interrupted()) {
      LogWarning(fmt::format("the master {} was not told how this service does: {}",
                             options_.master, told.status().message()));
    }
    MutexLock hold(&mu_);
    if (!stopping_) changed_.WaitFor(&mu_, kInterval);
    if (stopping_) return;
  }
}

}  // namespace cairn::cli
