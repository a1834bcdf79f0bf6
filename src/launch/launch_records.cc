#include "launch/launch_records.h"

#include <array>
#include <chrono>
#include <utility>

#include <cairn/value.h>

#include "base/status_macros.h"
#include "format/member_reader.h"
#include "format/sealed_json.h"

namespace cairn {
namespace {

constexpr std::array<std::pair<ExitKind, std::string_view>, 5> kExitKinds = {{
    {ExitKind::kExited, "exited"},
    {ExitKind::kSignaled, "signaled"},
    {ExitKind::kNotStarted, "not started"},
    {ExitKind::kTimeLimit, "time limit"},
    {ExitKind::kLost, "lost"},
}};

Result<Value::Object> DecodeOfKind(std::string_view bytes, std::string_view kind) {
  ASSIGN_OR_RETURN(Value::Object members, DecodeSealedJson(bytes));
  std::string found;
  RETURN_IF_ERROR(MemberReader(members).Text("record", &found));
  if (found != kind) {
    return CorruptionError("a record of kind '" + found + "' where one of kind '" +
                           std::string(kind) + "' should be");
  }
  return members;
}

Status ReadInt(const MemberReader& reader, std::string_view key, int* out) {
  std::int64_t number = 0;
  RETURN_IF_ERROR(reader.Int(key, &number));
  if (number < -1'000'000 || number > 1'000'000) {
    return CorruptionError("member '" + std::string(key) + "' is out of range");
  }
  *out = static_cast<int>(number);
  return Status::Ok();
}

}  // namespace

std::string_view ExitKindName(ExitKind kind) {
  for (const auto& [known, name] : kExitKinds) {
    if (known == kind) return name;
  }
  return "unknown";
}

std::string Encode(const LaunchRecord& record) {
  SealedJsonWriter out;
  out.Text("record", "launch");
  out.Text("id", record.id);
  out.Text("key", record.key);
  out.Texts("argv", record.argv);
  out.TextOrNull("cwd", record.cwd);
  out.Int("processes", record.processes);
  out.TextOrNull("slots", record.slots);
  out.Int("priority", record.priority);
  out.Uint("address_space_bytes", record.limits.address_space_bytes);
  out.Uint("open_files", record.limits.open_files);
  out.Uint("core_bytes", record.limits.core_bytes);
  out.Int("nice", record.limits.nice);
  out.Int("wall_time", record.limits.wall_time.count());
  out.Uint("log_bytes", record.limits.log_bytes);
  out.Int("grace", record.grace);
  out.Json("outlive_owner", Value(record.outlive_owner));
  out.Int("submitted", record.submitted);
  if (!record.job.empty()) {
    out.Text("job", record.job);
    out.Int("job_index", record.job_index);
    if (record.nodes != 1) out.Int("nodes", record.nodes);
    if (!record.starter.empty()) out.Texts("starter", record.starter);
  }
  return out.Seal();
}

Result<LaunchRecord> DecodeLaunch(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Value::Object members, DecodeOfKind(bytes, "launch"));
  const MemberReader reader(members);
  LaunchRecord record;
  RETURN_IF_ERROR(reader.Text("id", &record.id));
  RETURN_IF_ERROR(reader.Text("key", &record.key));
  RETURN_IF_ERROR(reader.Texts("argv", &record.argv));
  if (record.argv.empty()) return CorruptionError("member 'argv' is empty");
  RETURN_IF_ERROR(reader.OptionalText("cwd", &record.cwd));
  RETURN_IF_ERROR(reader.Int("processes", &record.processes));
  if (record.processes < 1 || record.processes > kMaxLaunchProcesses) {
    return CorruptionError("member 'processes' is out of range");
  }
  RETURN_IF_ERROR(reader.OptionalText("slots", &record.slots));
  RETURN_IF_ERROR(reader.Int("priority", &record.priority));
  RETURN_IF_ERROR(reader.Uint("address_space_bytes", &record.limits.address_space_bytes));
  RETURN_IF_ERROR(reader.Uint("open_files", &record.limits.open_files));
  RETURN_IF_ERROR(reader.Uint("core_bytes", &record.limits.core_bytes));
  RETURN_IF_ERROR(ReadInt(reader, "nice", &record.limits.nice));
  std::int64_t wall_time = 0;
  RETURN_IF_ERROR(reader.Int("wall_time", &wall_time));
  record.limits.wall_time = std::chrono::nanoseconds(wall_time);
  RETURN_IF_ERROR(reader.Uint("log_bytes", &record.limits.log_bytes));
  RETURN_IF_ERROR(reader.Int("grace", &record.grace));
  if (wall_time < 0 || record.grace < 0) return CorruptionError("a time is negative");
  RETURN_IF_ERROR(reader.OptionalBool("outlive_owner", &record.outlive_owner));
  RETURN_IF_ERROR(reader.Int("submitted", &record.submitted));
  RETURN_IF_ERROR(reader.OptionalText("job", &record.job));
  RETURN_IF_ERROR(reader.OptionalInt("job_index", &record.job_index));
  RETURN_IF_ERROR(reader.OptionalInt("nodes", &record.nodes));
  if (record.nodes < 1 || record.nodes > record.processes || record.processes % record.nodes != 0) {
    return CorruptionError("member 'nodes' does not fit 'processes'");
  }
  RETURN_IF_ERROR(reader.OptionalTexts("starter", &record.starter));
  return record;
}

std::string Encode(const KeeperRecord& record) {
  SealedJsonWriter out;
  out.Text("record", "keeper");
  out.Int("pid", record.pid);
  out.Uint("start_ticks", record.start_ticks);
  out.Text("boot", record.boot);
  return out.Seal();
}

Result<KeeperRecord> DecodeKeeper(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Value::Object members, DecodeOfKind(bytes, "keeper"));
  const MemberReader reader(members);
  KeeperRecord record;
  RETURN_IF_ERROR(reader.Int("pid", &record.pid));
  // 0 and negative numbers mean groups to kill(2): such a record must never be acted upon.
  if (record.pid <= 1 || record.pid > (std::int64_t{1} << 30)) {
    return CorruptionError("member 'pid' is no process");
  }
  RETURN_IF_ERROR(reader.Uint("start_ticks", &record.start_ticks));
  RETURN_IF_ERROR(reader.Text("boot", &record.boot));
  return record;
}

std::string Encode(const RunningRecord& record) {
  Value::List pids;
  for (const std::int64_t pid : record.pids) pids.emplace_back(pid);
  SealedJsonWriter out;
  out.Text("record", "running");
  out.Json("pids", Value(std::move(pids)));
  out.Int("time", record.time);
  return out.Seal();
}

Result<RunningRecord> DecodeRunning(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Value::Object members, DecodeOfKind(bytes, "running"));
  const MemberReader reader(members);
  RunningRecord record;
  const Value::List* pids = nullptr;
  RETURN_IF_ERROR(reader.OptionalList("pids", &pids));
  if (pids != nullptr) {
    for (const Value& pid : *pids) {
      if (!pid.is_int()) return CorruptionError("member 'pids' holds something that is no number");
      record.pids.push_back(pid.AsInt());
    }
  }
  RETURN_IF_ERROR(reader.Int("time", &record.time));
  return record;
}

std::string Encode(const LaunchExit& record) {
  SealedJsonWriter out;
  out.Text("record", "exit");
  out.Text("kind", ExitKindName(record.kind));
  out.Int("code", record.code);
  out.Int("signal", record.signal);
  out.Int("rank", record.rank);
  out.Json("stopped", Value(record.stopped));
  out.TextOrNull("message", record.message);
  out.Int("time", record.time);
  return out.Seal();
}

Result<LaunchExit> DecodeExit(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Value::Object members, DecodeOfKind(bytes, "exit"));
  const MemberReader reader(members);
  LaunchExit record;
  std::string kind;
  RETURN_IF_ERROR(reader.Text("kind", &kind));
  bool known = false;
  for (const auto& [value, name] : kExitKinds) {
    if (name != kind) continue;
    record.kind = value;
    known = true;
  }
  if (!known) return CorruptionError("an exit of unknown kind '" + kind + "'");
  RETURN_IF_ERROR(ReadInt(reader, "code", &record.code));
  RETURN_IF_ERROR(ReadInt(reader, "signal", &record.signal));
  RETURN_IF_ERROR(ReadInt(reader, "rank", &record.rank));
  RETURN_IF_ERROR(reader.OptionalBool("stopped", &record.stopped));
  RETURN_IF_ERROR(reader.OptionalText("message", &record.message));
  RETURN_IF_ERROR(reader.Int("time", &record.time));
  return record;
}

}  // namespace cairn
