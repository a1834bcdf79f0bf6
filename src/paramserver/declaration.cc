#include "paramserver/declaration.h"

#include <set>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn::ps {
namespace {

/// Settings by name; the ones that were asked for are known, all others a mistake.
class Settings {
 public:
  explicit Settings(const OptimizerSpec& spec) : spec_(spec) {}

  void Read(const char* name, float* value) {
    known_.insert(name);
    const auto it = spec_.settings.find(name);
    if (it != spec_.settings.end()) *value = static_cast<float>(it->second);
  }
  void Read(const char* name, bool* value) {
    known_.insert(name);
    const auto it = spec_.settings.find(name);
    if (it != spec_.settings.end()) *value = it->second != 0;
  }
  Status CheckAllKnown() const {
    for (const auto& [name, value] : spec_.settings) {
      if (known_.contains(name)) continue;
      std::string known;
      for (const std::string& each : known_) known += (known.empty() ? "" : ", ") + each;
      return InvalidArgumentError("the optimizer \"" + spec_.kind + "\" has no setting \"" + name +
                                  "\"; it has " + known);
    }
    return Status::Ok();
  }

 private:
  const OptimizerSpec& spec_;
  std::set<std::string> known_;
};

Value ToValue(const OptimizerSpec& spec) {
  Value::Object settings;
  for (const auto& [name, value] : spec.settings) settings[name] = value;
  return Value::Object{{"kind", spec.kind}, {"settings", std::move(settings)}};
}

Result<const Value::Object*> ObjectAt(const Value& value, std::string_view key) {
  const Value* member = value.Find(key);
  if (member == nullptr || member->if_object() == nullptr) {
    return CorruptionError("a declaration without \"" + std::string(key) + "\"");
  }
  return member->if_object();
}

Result<OptimizerSpec> OptimizerFrom(const Value& value) {
  ASSIGN_OR_RETURN(const Value::Object* members, ObjectAt(value, "optimizer"));
  OptimizerSpec spec;
  RETURN_IF_ERROR(MemberReader(*members).Text("kind", &spec.kind));
  const auto settings = members->find("settings");
  if (settings == members->end() || settings->second.if_object() == nullptr) return spec;
  for (const auto& [name, number] : *settings->second.if_object()) {
    if (!number.is_number()) return CorruptionError("setting \"" + name + "\" is no number");
    spec.settings[name] = number.AsDouble();
  }
  return spec;
}

}  // namespace

Result<std::shared_ptr<const Optimizer>> MakeOptimizer(const OptimizerSpec& spec) {
  Settings settings(spec);
  const auto finish = [&](auto make, auto& options) -> Result<std::shared_ptr<const Optimizer>> {
    settings.Read("learning_rate", &options.learning_rate);
    RETURN_IF_ERROR(settings.CheckAllKnown());
    return make(options);
  };
  if (spec.kind == "sgd") {
    SgdOptions options;
    return finish(MakeSgd, options);
  }
  if (spec.kind == "momentum") {
    MomentumOptions options;
    settings.Read("momentum", &options.momentum);
    settings.Read("nesterov", &options.nesterov);
    return finish(MakeMomentum, options);
  }
  if (spec.kind == "adagrad") {
    AdagradOptions options;
    settings.Read("initial_accumulator_value", &options.initial_accumulator_value);
    settings.Read("epsilon", &options.epsilon);
    return finish(MakeAdagrad, options);
  }
  if (spec.kind == "adam") {
    AdamOptions options;
    settings.Read("beta1", &options.beta1);
    settings.Read("beta2", &options.beta2);
    settings.Read("epsilon", &options.epsilon);
    return finish(MakeAdam, options);
  }
  if (spec.kind == "adamw") {
    AdamWOptions options;
    settings.Read("beta1", &options.beta1);
    settings.Read("beta2", &options.beta2);
    settings.Read("epsilon", &options.epsilon);
    settings.Read("weight_decay", &options.weight_decay);
    return finish(MakeAdamW, options);
  }
  if (spec.kind == "ftrl") {
    FtrlOptions options;
    settings.Read("learning_rate_power", &options.learning_rate_power);
    settings.Read("initial_accumulator_value", &options.initial_accumulator_value);
    settings.Read("l1", &options.l1);
    settings.Read("l2", &options.l2);
    settings.Read("beta", &options.beta);
    return finish(MakeFtrl, options);
  }
  if (spec.kind == "rowwise_adagrad") {
    RowwiseAdagradOptions options;
    settings.Read("initial_accumulator_value", &options.initial_accumulator_value);
    settings.Read("epsilon", &options.epsilon);
    return finish(MakeRowwiseAdagrad, options);
  }
  return InvalidArgumentError("there is no optimizer \"" + spec.kind + "\"");
}

Result<std::shared_ptr<const Initializer>> MakeInitializer(const InitializerSpec& spec) {
  const auto a = static_cast<float>(spec.a);
  const auto b = static_cast<float>(spec.b);
  if (spec.kind == "constant") return MakeConstant(a);
  if (spec.kind == "uniform") return MakeUniform(a, b);
  if (spec.kind == "normal") return MakeNormal(a, b);
  if (spec.kind == "truncated_normal") return MakeTruncatedNormal(a, b);
  return InvalidArgumentError("there is no initializer \"" + spec.kind + "\"");
}

Result<TableOptions> MakeTableOptions(const TableSpec& spec) {
  TableOptions options;
  options.name = spec.name;
  options.dim = spec.dim;
  options.dtype = spec.dtype;
  options.seed = spec.seed;
  ASSIGN_OR_RETURN(options.optimizer, MakeOptimizer(spec.optimizer));
  ASSIGN_OR_RETURN(options.initializer, MakeInitializer(spec.initializer));
  if (spec.admission) options.admission = AdmissionOptions{*spec.admission};
  if (spec.steps_to_live || spec.min_l2_norm) {
    options.eviction = EvictionOptions{spec.steps_to_live, {}};
    if (spec.min_l2_norm) options.eviction->min_l2_norm = static_cast<float>(*spec.min_l2_norm);
  }
  RETURN_IF_ERROR(options.Validate());
  return options;
}

Value ToValue(const TableSpec& spec) {
  Value::Object value{{"name", spec.name},
                      {"dim", static_cast<std::uint64_t>(spec.dim)},
                      {"dtype", std::string(DTypeName(spec.dtype))},
                      {"seed", spec.seed},
                      {"optimizer", ToValue(spec.optimizer)},
                      {"initializer", Value::Object{{"kind", spec.initializer.kind},
                                                    {"a", spec.initializer.a},
                                                    {"b", spec.initializer.b}}}};
  if (spec.admission) value["admission"] = static_cast<std::uint64_t>(*spec.admission);
  if (spec.steps_to_live) value["steps_to_live"] = *spec.steps_to_live;
  if (spec.min_l2_norm) value["min_l2_norm"] = *spec.min_l2_norm;
  return value;
}

Value ToValue(const DenseSpec& spec) {
  Value::List shape;
  for (const std::uint64_t extent : spec.shape) shape.emplace_back(extent);
  return Value::Object{
      {"name", spec.name}, {"shape", std::move(shape)}, {"optimizer", ToValue(spec.optimizer)}};
}

std::string Differences(const Value& there, const Value& here) {
  std::set<std::string> names;
  for (const Value* each : {&there, &here}) {
    for (const auto& [name, value] : *each->if_object()) names.insert(name);
  }
  const auto text = [](const Value* value) {
    return value == nullptr ? std::string("none") : EncodeJson(*value);
  };
  std::string out;
  for (const std::string& name : names) {
    const std::string had = text(there.Find(name));
    const std::string asked = text(here.Find(name));
    if (had == asked) continue;
    out += (out.empty() ? "" : "; ") + name + " " + had + " there, " + asked + " here";
  }
  return out;
}

Result<TableSpec> TableSpecFrom(const Value& value) {
  if (value.if_object() == nullptr) return CorruptionError("a declaration is an object");
  const MemberReader reader(*value.if_object());
  TableSpec spec;
  std::uint64_t dim = 0;
  std::string dtype;
  RETURN_IF_ERROR(reader.Text("name", &spec.name));
  RETURN_IF_ERROR(reader.Uint("dim", &dim));
  RETURN_IF_ERROR(reader.Text("dtype", &dtype));
  RETURN_IF_ERROR(reader.Uint("seed", &spec.seed));
  if (dim == 0 || dim > 65'536) {
    return CorruptionError("table \"" + spec.name + "\": dim " + std::to_string(dim) +
                           " is not within 1 … 65,536");
  }
  spec.dim = static_cast<std::uint32_t>(dim);
  const auto known = DTypeFromName(dtype);
  if (!known) return CorruptionError("table \"" + spec.name + "\": unknown dtype " + dtype);
  spec.dtype = *known;
  ASSIGN_OR_RETURN(spec.optimizer, OptimizerFrom(value));
  ASSIGN_OR_RETURN(const Value::Object* initializer, ObjectAt(value, "initializer"));
  RETURN_IF_ERROR(MemberReader(*initializer).Text("kind", &spec.initializer.kind));
  for (const auto& [key, number] :
       {std::pair("a", &spec.initializer.a), std::pair("b", &spec.initializer.b)}) {
    const auto it = initializer->find(std::string_view(key));
    if (it == initializer->end() || !it->second.is_number()) {
      return CorruptionError("an initializer without \"" + std::string(key) + "\"");
    }
    *number = it->second.AsDouble();
  }
  if (reader.Has("admission")) {
    std::uint64_t count = 0;
    RETURN_IF_ERROR(reader.Uint("admission", &count));
    if (count == 0 || count > 0xffffffff) return CorruptionError("admission out of range");
    spec.admission = static_cast<std::uint32_t>(count);
  }
  if (reader.Has("steps_to_live")) {
    std::int64_t steps = 0;
    RETURN_IF_ERROR(reader.Int("steps_to_live", &steps));
    spec.steps_to_live = steps;
  }
  if (const Value* norm = value.Find("min_l2_norm"); norm != nullptr && norm->is_number()) {
    spec.min_l2_norm = norm->AsDouble();
  }
  return spec;
}

Result<DenseSpec> DenseSpecFrom(const Value& value) {
  if (value.if_object() == nullptr) return CorruptionError("a declaration is an object");
  DenseSpec spec;
  const MemberReader reader(*value.if_object());
  RETURN_IF_ERROR(reader.Text("name", &spec.name));
  const Value::List* shape = nullptr;
  RETURN_IF_ERROR(reader.OptionalList("shape", &shape));
  if (shape == nullptr) return CorruptionError("a dense variable without a shape");
  for (const Value& extent : *shape) {
    const std::int64_t number = extent.AsInt(-1);
    if (number < 0) return CorruptionError("a dense variable with an impossible shape");
    spec.shape.push_back(static_cast<std::uint64_t>(number));
  }
  ASSIGN_OR_RETURN(spec.optimizer, OptimizerFrom(value));
  return spec;
}

}  // namespace cairn::ps
