#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace cairn {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// One line for the people who run the job; standard error by default, from warnings up
/// (CAIRN_LOG=debug|info|warning|error changes that). May be called from any thread.
void Log(LogLevel level, std::string_view message);
inline void LogDebug(std::string_view message) { Log(LogLevel::kDebug, message); }
inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(std::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

/// Sends every line to `sink` instead (null: back to standard error). For bindings and tests.
void SetLogSink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace cairn
