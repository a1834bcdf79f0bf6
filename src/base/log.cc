#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

#include "base/thread_annotations.h"

namespace cairn {
namespace {

struct Sink {
  Mutex mu;
  std::shared_ptr<std::function<void(LogLevel, std::string_view)>> custom GUARDED_BY(mu);
};

Sink& GlobalSink() {
  static Sink* sink = new Sink;  // never destroyed: threads may log while the process ends
  return *sink;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

spdlog::logger& StderrLogger() {
  static std::shared_ptr<spdlog::logger>* logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "cairn", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("cairn %^%l%$: %v");
    const char* wanted = std::getenv("CAIRN_LOG");
    const auto level = spdlog::level::from_str(wanted == nullptr ? "warning" : wanted);
    made->set_level(wanted != nullptr && level == spdlog::level::off ? spdlog::level::warn : level);
    return new std::shared_ptr<spdlog::logger>(std::move(made));
  }();
  return **logger;
}

}  // namespace

void Log(LogLevel level, std::string_view message) {
  std::shared_ptr<std::function<void(LogLevel, std::string_view)>> custom;
  {
    MutexLock lock(&GlobalSink().mu);
    custom = GlobalSink().custom;
  }
  if (custom != nullptr) {
    (*custom)(level, message);
  } else {
    StderrLogger().log(ToSpdlog(level), message);
  }
}

void SetLogSink(std::function<void(LogLevel, std::string_view)> sink) {
  MutexLock lock(&GlobalSink().mu);
  GlobalSink().custom =
      sink ? std::make_shared<std::function<void(LogLevel, std::string_view)>>(std::move(sink))
           : nullptr;
}

}  // namespace cairn
