#include "cli/ps_save_notifier.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace cairn::cli {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<PsSaveNotifier>> PsSaveNotifier::Start(PsSaveNotifierOptions options) {
  if (options.url.empty()) return std::unique_ptr<PsSaveNotifier>();
  if (!options.url.starts_with("http://") && !options.url.starts_with("https://")) {
    return InvalidArgumentError("--notify: \"" + options.url +
                                "\" is no http:// or https:// URL; of a cairn serve it is "
                                "http://host:port/v2/models/<name>/notify");
  }
  HttpClientOptions http;
  http.connections = 1;
  http.connect_timeout = std::chrono::seconds(2);
  http.stall_timeout = std::chrono::seconds(5);
  http.ca_bundle = options.ca;
  ASSIGN_OR_RETURN(auto client, HttpClient::Open(std::move(http)));
  return std::unique_ptr<PsSaveNotifier>(new PsSaveNotifier(std::move(options), std::move(client)));
}

PsSaveNotifier::PsSaveNotifier(PsSaveNotifierOptions options, std::unique_ptr<HttpClient> client)
    : options_(std::move(options)), client_(std::move(client)) {
  thread_ = std::jthread([this] { Run(); });
}

PsSaveNotifier::~PsSaveNotifier() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void PsSaveNotifier::TellIfNew() {
  const std::optional<std::int64_t> saves = options_.saves();
  if (!saves || *saves == told_) return;
  told_ = *saves;
  if (told_ == 0) return;  // the job went back, and counts from there
  HttpCall call;
  call.prepare = [this](int) -> Result<HttpRequest> {
    HttpRequest request{.method = "POST", .url = options_.url};
    if (!options_.token.empty()) {
      request.headers.push_back({"Authorization", "Bearer " + options_.token});
    }
    return request;
  };
  call.max_attempts = 1;  // the next look comes anyway
  const auto answer = client_->Fetch(std::move(call));
  if (answer.ok() && answer->Succeeded()) {
    failing_ = false;
    return;
  }
  if (std::exchange(failing_, true)) return;
  LogWarning(fmt::format("{} was not told of a checkpoint: {}", options_.url,
                         answer.ok() ? fmt::format("HTTP {}", answer->status)
                                     : std::string(answer.status().message())));
}

void PsSaveNotifier::Run() {
  for (bool stopping = false; !stopping;) {
    {
      MutexLock hold(&mu_);
      if (!stopping_) changed_.WaitFor(&mu_, kInterval);
      stopping = stopping_;
    }
    TellIfNew();
  }
}

}  // namespace cairn::cli
