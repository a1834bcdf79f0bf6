#include "paramserver/job_file.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"
#include "paramserver/declaration.h"

namespace cairn::ps {

std::string Encode(const JobFile& job) {
  Value::List steps;
  for (const std::int64_t each : job.trainer_steps) steps.emplace_back(each);
  Value::List sequences;
  for (const std::uint64_t each : job.sequences) sequences.emplace_back(each);
  Value::List tables;
  for (const TableSpec& spec : job.tables) tables.push_back(ToValue(spec));
  Value::List dense;
  for (const DenseSpec& spec : job.dense) dense.push_back(ToValue(spec));
  Value::Object value{{"version", 1},
                      {"mode", job.mode == Mode::kSync ? "sync" : "async"},
                      {"servers", job.servers},
                      {"step", job.step},
                      {"trainer_steps", std::move(steps)},
                      {"sequences", std::move(sequences)},
                      {"tables", std::move(tables)},
                      {"dense", std::move(dense)}};
  if (!job.step_sequences.empty() && job.step_sequences != job.sequences) {
    Value::List ended;
    for (const std::uint64_t each : job.step_sequences) ended.emplace_back(each);
    value["step_sequences"] = std::move(ended);
  }
  if (std::find(job.left.begin(), job.left.end(), true) != job.left.end()) {
    Value::List left;
    for (const bool each : job.left) left.emplace_back(each);
    value["left"] = std::move(left);
  }
  if (!job.log_name.empty()) {
    value["log"] = Value::Object{{"name", job.log_name}, {"next", job.log_next}};
  }
  if (job.full_age_steps > 0 || job.full_age_ms > 0) {
    value["since_full"] = Value::Object{{"steps", job.full_age_steps}, {"ms", job.full_age_ms}};
  }
  return EncodeJson(value, 2) + "\n";
}

Result<JobFile> DecodeJobFile(const std::string& text) {
  ASSIGN_OR_RETURN(const Value value, DecodeJson(text));
  if (value.if_object() == nullptr) return CorruptionError("job.json is no object");
  const MemberReader reader(*value.if_object());
  JobFile job;
  RETURN_IF_ERROR(reader.Int("step", &job.step));
  if (const Value* servers = value.Find("servers"))
    job.servers = static_cast<int>(servers->AsInt());
  const auto each = [&](const char* name, const auto& add) -> Status {
    const Value::List* list = nullptr;
    RETURN_IF_ERROR(reader.OptionalList(name, &list));
    if (list == nullptr) return Status::Ok();
    for (const Value& item : *list) RETURN_IF_ERROR(add(item));
    return Status::Ok();
  };
  RETURN_IF_ERROR(each("trainer_steps", [&](const Value& item) {
    job.trainer_steps.push_back(item.AsInt());
    return Status::Ok();
  }));
  RETURN_IF_ERROR(each("sequences", [&](const Value& item) {
    job.sequences.push_back(static_cast<std::uint64_t>(item.AsInt()));
    return Status::Ok();
  }));
  RETURN_IF_ERROR(each("step_sequences", [&](const Value& item) {
    job.step_sequences.push_back(static_cast<std::uint64_t>(item.AsInt()));
    return Status::Ok();
  }));
  RETURN_IF_ERROR(each("left", [&](const Value& item) {
    job.left.push_back(item == Value(true));
    return Status::Ok();
  }));
  if (const Value* log = value.Find("log"); log != nullptr && log->if_object() != nullptr) {
    const MemberReader members(*log->if_object());
    RETURN_IF_ERROR(members.Text("name", &job.log_name));
    RETURN_IF_ERROR(members.Uint("next", &job.log_next));
  }
  if (const Value* age = value.Find("since_full"); age != nullptr && age->if_object() != nullptr) {
    const MemberReader members(*age->if_object());
    RETURN_IF_ERROR(members.Uint("steps", &job.full_age_steps));
    RETURN_IF_ERROR(members.Uint("ms", &job.full_age_ms));
    constexpr std::uint64_t kOldest = std::uint64_t{1} << 40;  // some decades; in steps enough
    if (job.full_age_steps > kOldest || job.full_age_ms > kOldest) {
      return CorruptionError("job.json: since_full is no age");
    }
  }
  RETURN_IF_ERROR(each("tables", [&](const Value& item) -> Status {
    ASSIGN_OR_RETURN(TableSpec spec, TableSpecFrom(item));
    job.tables.push_back(std::move(spec));
    return Status::Ok();
  }));
  RETURN_IF_ERROR(each("dense", [&](const Value& item) -> Status {
    ASSIGN_OR_RETURN(DenseSpec spec, DenseSpecFrom(item));
    job.dense.push_back(std::move(spec));
    return Status::Ok();
  }));
  return job;
}

}  // namespace cairn::ps
