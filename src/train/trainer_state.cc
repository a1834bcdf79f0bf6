#include "train/trainer_state.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::string_view kStateFile = "state.json";
constexpr std::string_view kEpochFile = "epoch_id";
constexpr std::string_view kStepFile = "step_id";
// JSON has no NaN and no infinities; {"$f64": "<16 hex digits>"} stands for their bits.
constexpr std::string_view kBits = "$f64";
// Levels of state.json above a registered value, and below it for the bits.
constexpr int kOwnLevels = 3;
// More is damage; what is counted on from here does not overflow.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

constexpr std::int64_t kMostTrainers = std::numeric_limits<int>::max();

std::string Hex(std::uint64_t bits) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, bits >>= 4) {
    text[static_cast<std::size_t>(i)] = "0123456789abcdef"[bits & 15];
  }
  return text;
}

Status ToJson(Value* value) {
  if (const double* d = value->if_double(); d != nullptr && !std::isfinite(*d)) {
    *value = Value::Object{{std::string(kBits), Hex(std::bit_cast<std::uint64_t>(*d))}};
  } else if (Value::List* list = value->if_list()) {
    for (Value& element : *list) RETURN_IF_ERROR(ToJson(&element));
  } else if (Value::Object* object = value->if_object()) {
    if (object->contains(kBits)) {
      return InvalidArgumentError("a member may not be called " + std::string(kBits));
    }
    for (auto& [name, member] : *object) RETURN_IF_ERROR(ToJson(&member));
  }
  return Status::Ok();
}

Status FromJson(Value* value) {
  if (Value::List* list = value->if_list()) {
    for (Value& element : *list) RETURN_IF_ERROR(FromJson(&element));
    return Status::Ok();
  }
  Value::Object* object = value->if_object();
  if (object == nullptr) return Status::Ok();
  const auto bits = object->find(kBits);
  if (bits == object->end()) {
    for (auto& [name, member] : *object) RETURN_IF_ERROR(FromJson(&member));
    return Status::Ok();
  }
  const std::string* text = bits->second.if_string();
  std::uint64_t parsed = 0;
  if (object->size() != 1 || text == nullptr || text->size() != 16) {
    return CorruptionError("a number's bits are not as written");
  }
  const auto [end, error] = std::from_chars(text->data(), text->data() + 16, parsed, 16);
  if (error != std::errc() || end != text->data() + 16) {
    return CorruptionError("a number's bits are no hex digits");
  }
  *value = Value(std::bit_cast<double>(parsed));
  return Status::Ok();
}

Result<Value> Stored(const Value& value, const std::string& what) {
  Value copy = value;
  Status status = ToJson(&copy);
  if (status.ok()) status = ValidateJsonValue(copy, kMaxJsonDepth - kOwnLevels);
  if (!status.ok()) return status.WithContext(what);
  return copy;
}

Result<Value> StoredAll(const std::map<std::string, Value>& values) {
  Value::Object stored;
  for (const auto& [name, value] : values) {
    ASSIGN_OR_RETURN(stored[name], Stored(value, "state \"" + name + "\""));
  }
  return Value(std::move(stored));
}

/// Into `*values` what StoredAll gave.
Status LoadAll(const Value& json, std::string_view member, std::map<std::string, Value>* values) {
  const Value* stored = json.Find(member);
  if (stored == nullptr || !stored->is_object()) {
    return CorruptionError(std::string(kStateFile) + ": " + std::string(member) + " is missing");
  }
  for (const auto& [name, value] : *stored->if_object()) {
    Value& loaded = (*values)[name] = value;
    RETURN_IF_ERROR(FromJson(&loaded).WithContext("state \"" + name + "\""));
  }
  return Status::Ok();
}

Result<std::int64_t> Integer(const Value& json, std::string_view name, std::int64_t least,
                             std::int64_t most = kMostSteps) {
  const Value* value = json.Find(name);
  if (value == nullptr || !value->is_int() || value->AsInt(least - 1) < least ||
      value->AsInt() > most) {
    return CorruptionError(std::string(kStateFile) + ": " + std::string(name) +
                           " is missing or no count");
  }
  return value->AsInt();
}

}  // namespace

Result<std::map<std::string, std::string>> EncodeTrainerState(const TrainerState& state) {
  const TrainProgress& progress = state.progress;
  ASSIGN_OR_RETURN(Value values, StoredAll(state.values));
  Value::Object json{{"trainer", 1},  // the version of this file
                     {"epoch", progress.epoch},
                     {"next_step", progress.next_step},
                     {"global_step", progress.global_step},
                     {"epoch_complete", progress.epoch_complete},
                     {"trainer_id", state.trainer_id},
                     {"num_trainers", state.num_trainers},
                     {"state", std::move(values)}};
  ASSIGN_OR_RETURN(json["reader"], Stored(state.reader, "the reader's state"));
  if (!state.epoch_generators.empty()) {
    ASSIGN_OR_RETURN(json["epoch_generators"], StoredAll(state.epoch_generators));
  }
  RETURN_IF_ERROR(ValidateJsonValue(json));
  return std::map<std::string, std::string>{
      {std::string(kStateFile), EncodeJson(json, 2) + "\n"},
      {std::string(kEpochFile), std::to_string(progress.epoch)},
      {std::string(kStepFile), std::to_string(progress.next_step - 1)}};
}

Result<TrainerState> DecodeTrainerState(const std::map<std::string, std::string>& files) {
  const auto file = files.find(std::string(kStateFile));
  if (file == files.end()) {
    return FailedPreconditionError(
        "the checkpoint has no trainer's state.json: it was not saved "
        "by a Trainer");
  }
  auto decoded = DecodeJson(file->second);
  if (!decoded.ok()) return decoded.status().WithContext(kStateFile);
  const Value& json = *decoded;
  const Value* version = json.Find("trainer");
  if (version == nullptr || version->AsInt() != 1) {
    return FailedPreconditionError("state.json was not saved by a C++ Trainer of this version");
  }
  TrainerState state;
  ASSIGN_OR_RETURN(state.progress.epoch, Integer(json, "epoch", 0));
  ASSIGN_OR_RETURN(state.progress.next_step, Integer(json, "next_step", 1));
  ASSIGN_OR_RETURN(state.progress.global_step, Integer(json, "global_step", 1));
  ASSIGN_OR_RETURN(const std::int64_t id, Integer(json, "trainer_id", 0, kMostTrainers));
  ASSIGN_OR_RETURN(const std::int64_t trainers, Integer(json, "num_trainers", 1, kMostTrainers));
  state.trainer_id = static_cast<int>(id);
  state.num_trainers = static_cast<int>(trainers);
  const Value* complete = json.Find("epoch_complete");
  if (complete == nullptr || !complete->is_bool()) {
    return CorruptionError("state.json: epoch_complete is missing");
  }
  state.progress.epoch_complete = *complete->if_bool();
  if (const Value* reader = json.Find("reader")) {
    state.reader = *reader;
    RETURN_IF_ERROR(FromJson(&state.reader).WithContext("the reader's state"));
  }
  RETURN_IF_ERROR(LoadAll(json, "state", &state.values));
  if (json.Find("epoch_generators") != nullptr) {  // checkpoints from before have none
    RETURN_IF_ERROR(LoadAll(json, "epoch_generators", &state.epoch_generators));
  }
  return state;
}

}  // namespace cairn
