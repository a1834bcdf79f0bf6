#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "format/json.h"

namespace cairn::bench {
namespace {

/// The engine without Python beside bench/peers/worker.py: the same states, calls and answers, so
/// that what differs is what Python adds.
class EngineContender {
 public:
  EngineContender(std::size_t count, std::uint64_t bytes_each)
      : state_(Shapes(count, bytes_each)) {}

  Result<std::string> Answer(const Value& command) {
    const auto text = [&](std::string_view key) {
      const Value* value = command.Find(key);
      return value != nullptr && value->if_string() != nullptr ? *value->if_string()
                                                               : std::string();
    };
    const Value* touch = command.Find("touch");
    const std::uint64_t to_touch =
        touch == nullptr ? 0 : static_cast<std::uint64_t>(touch->AsInt());
    const std::string path = text("path");
    const std::string what = text("do");
    if (what == "save") return Save(path, to_touch);
    if (what == "async") return Begin(path, to_touch);
    if (what == "load") return Load(path, to_touch);
    return InvalidArgumentError("there is no command " + what);
  }

  Status Close() { return manager_ == nullptr ? Status::Ok() : manager_->Close(); }

 private:
  static std::vector<State::Shape> Shapes(std::size_t count, std::uint64_t bytes_each) {
    std::vector<State::Shape> shapes;
    for (std::size_t i = 0; i < count; ++i) {
      shapes.push_back({fmt::format("t{:05}", i), {bytes_each / 4}});
    }
    return shapes;
  }

  /// Every word of it, as NumPy's `array += 1`.
  void ChangeAll() {
    for (std::size_t i = 0; i < state_.count(); ++i) {
      for (std::uint32_t& word : Words(i)) ++word;
    }
  }

  std::span<std::uint32_t> Words(std::size_t tensor) const {
    const std::span<std::byte> bytes = state_.memory(tensor);
    return {reinterpret_cast<std::uint32_t*>(bytes.data()), bytes.size() / 4};
  }

  /// A number that differs when bytes do.
  std::uint64_t Digest() const {
    std::uint64_t digest = 0;
    for (std::size_t i = 0; i < state_.count(); ++i) {
      for (const std::uint32_t word : Words(i)) digest = digest * 31 + word;
    }
    return digest >> 3;  // JSON readers take it for a signed one
  }

  Result<std::int64_t> NextStep(const std::string& path) {
    if (manager_ == nullptr || path_ != path) {
      RETURN_IF_ERROR(Close());
      ManagerOptions options;
      options.directory = path_ = path;
      options.retention.keep_last = 1;
      ASSIGN_OR_RETURN(manager_, CheckpointManager::Open(std::move(options)));
    }
    ASSIGN_OR_RETURN(const auto latest, manager_->Latest());
    return latest.has_value() ? latest->step + 1 : 0;
  }

  Result<std::string> Save(const std::string& path, std::uint64_t to_touch) {
    ChangeAll();
    TouchAndFree(to_touch);
    const double begun = Now();
    ASSIGN_OR_RETURN(const std::int64_t step, NextStep(path));
    RETURN_IF_ERROR(SaveDurably(manager_.get(), state_, step));
    const double seconds = Now() - begun;
    return fmt::format("{{\"seconds\": {:.9f}, \"digest\": {}}}", seconds, Digest());
  }

  Result<std::string> Begin(const std::string& path, std::uint64_t to_touch) {
    ChangeAll();
    TouchAndFree(to_touch);
    const double begun = Now();
    ASSIGN_OR_RETURN(const std::int64_t step, NextStep(path));
    SaveRequest request;
    request.step = step;
    request.tensors = state_.Views();
    ASSIGN_OR_RETURN(const SaveHandle handle, manager_->Save(std::move(request)));
    const double blocked = Now() - begun;
    RETURN_IF_ERROR(handle.Wait().status());
    return fmt::format("{{\"blocked\": {:.9f}, \"seconds\": {:.9f}}}", blocked, Now() - begun);
  }

  Result<std::string> Load(const std::string& path, std::uint64_t to_touch) {
    TouchAndFree(to_touch);
    const double begun = Now();
    ManagerOptions options;
    options.directory = path;
    options.read_only = true;
    ASSIGN_OR_RETURN(const auto reader, CheckpointManager::Open(std::move(options)));
    RestoreRequest request;
    request.into = state_.Targets();
    ASSIGN_OR_RETURN(const auto restored, reader->Restore(std::move(request)));
    RETURN_IF_ERROR(reader->Close());
    const double seconds = Now() - begun;
    if (!restored.has_value()) return NotFoundError("there is no checkpoint in " + path);
    return fmt::format("{{\"seconds\": {:.9f}, \"digest\": {}}}", seconds, Digest());
  }

  State state_;
  std::string path_;
  std::unique_ptr<CheckpointManager> manager_;
};

}  // namespace

Status RunContender(const Options& options) {
  const std::size_t count = std::max(1, std::atoi(options.variant.c_str()));
  EngineContender contender(count, options.bytes / count);
  fmt::print("{{\"version\": \"C++\", \"digest\": 0}}\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    ASSIGN_OR_RETURN(const Value command, DecodeJson(line));
    const Result<std::string> answer = contender.Answer(command);
    std::string error;
    if (!answer.ok()) AppendJsonString(answer.status().ToString(), &error);
    fmt::print("{}\n", answer.ok() ? *answer : fmt::format("{{\"error\": {}}}", error));
    std::fflush(stdout);
  }
  return contender.Close();
}

}  // namespace cairn::bench
