#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "paramserver/declaration.h"
#include "paramserver/holdings.h"

// What trainers change, each change once, and first into the log. A replay of the log makes the
// same changes in the same order.

namespace cairn::ps {
namespace {

Status TakenName(const std::string& name, const char* what) {
  return InvalidArgumentError(
      "\"" + name + "\": the servers have a " + what +
      " of this name; a table and a dense variable need names of their own");
}

}  // namespace

// ---------------------------------------------------------------- the log

Status Holdings::Log(const LogRecord& record) {
  if (seams_.taken) seams_.taken();
  if (log_ == nullptr) return Status::Ok();
  if (record.body.size() + kLogHeadBytes > kMaxFramePayload) {
    return InvalidArgumentError(
        fmt::format("{} bytes are too many for a record of the update log", record.body.size()));
  }
  const Status appended = log_->Append(record);
  if (appended.ok()) return Status::Ok();
  MutexLock lock(&mu_);
  return LogBroke(appended);
}

Status Holdings::LogHeld(const LogRecord& record) {
  if (log_ == nullptr) return Status::Ok();
  const Status appended = log_->Append(record);
  return appended.ok() ? appended : LogBroke(appended);
}

Status Holdings::LogBroke(const Status& why) {
  // Whether the record is there is known when the log is opened anew; trainers wait for that.
  Break(UnavailableError("the update log cannot be written: " + why.ToString()));
  return broken_;
}

Status Holdings::Replayed(const LogRecord& record) {
  if (record.kind == Kind::kStatus) return Status::Ok();
  {
    MutexLock lock(&mu_);
    ++replayed_;
    RETURN_IF_ERROR(broken_);
    if (record.trainer >= trainers_.size()) return CorruptionError("a record of no trainer");
    Trainer& trainer = trainers_[record.trainer];
    switch (record.kind) {
      case Kind::kHello:
        if (trainer.left) ComeBack(record.trainer);
        return Status::Ok();
      case Kind::kLeave:
        TakeLeaving(record.trainer);
        return Status::Ok();
      case Kind::kEndStep: {
        ASSIGN_OR_RETURN(const EndStepRequest end, DecodeEndStepRequest(record.body));
        ASSIGN_OR_RETURN(const bool fresh, EndsNewStep(record.trainer, end));
        if (fresh) TakeEnd(record.trainer, end, record.sequence);
        if (!fresh && Restates(trainer, end)) TakeState(record.trainer, end);
        return broken_;
      }
      case Kind::kDeclareTable: {
        ASSIGN_OR_RETURN(const Value value, DecodeJson(AsText(record.body)));
        ASSIGN_OR_RETURN(const TableSpec spec, TableSpecFrom(value));
        // Logged twice by a server that left its generation between log and table.
        ASSIGN_OR_RETURN(const auto known, DeclaredTable(spec));
        if (!known) MakeDeclaredTable(spec).status().IgnoreError("refused then as now");
        return Status::Ok();
      }
      case Kind::kDeclareDense: {
        ASSIGN_OR_RETURN(const DenseBody body, DecodeDenseBody(record.body));
        ASSIGN_OR_RETURN(const Value value, DecodeJson(body.description));
        ASSIGN_OR_RETURN(const DenseSpec spec, DenseSpecFrom(value));
        ASSIGN_OR_RETURN(const std::vector<float> values, DecodeFloats(body.values));
        ASSIGN_OR_RETURN(const auto known, DeclaredDense(spec));
        if (!known) MakeDeclaredDense(spec, values).status().IgnoreError("refused then as now");
        return Status::Ok();
      }
      default:
        break;
    }
    if (record.sequence <= trainer.sequence) return Status::Ok();
    trainer.sequence = record.sequence;
    if (CountsAtOnce(record.kind)) ++changes_;
  }
  if (record.kind == Kind::kPull) {
    ASSIGN_OR_RETURN(Table * table, FindTable(record.id));
    std::vector<std::int64_t> copy;
    ASSIGN_OR_RETURN(const auto keys, ViewKeys(record.body, &copy));
    std::vector<float> out(keys.size() * table->options().dim);
    table->Lookup(keys, out, Missing::kCreate).IgnoreError("refused then as now");
    return Status::Ok();
  }
  MakeChange(record.trainer, record.kind, record.id, record.sequence, record.body)
      .status()
      .IgnoreError("refused then as now");
  return Status::Ok();
}

// ---------------------------------------------------------------- declarations

Result<std::optional<std::uint32_t>> Holdings::DeclaredTable(const TableSpec& spec) const {
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].spec.name != spec.name) continue;
    if (tables_[i].spec == spec) return std::optional(static_cast<std::uint32_t>(i));
    return MismatchError("table \"" + spec.name + "\": the servers have another one: " +
                         Differences(ToValue(tables_[i].spec), ToValue(spec)));
  }
  for (const DenseEntry& dense : dense_) {
    if (dense.variable->spec().name == spec.name) return TakenName(spec.name, "dense variable");
  }
  return std::optional<std::uint32_t>();
}

Result<std::uint32_t> Holdings::MakeDeclaredTable(const TableSpec& spec) {
  ASSIGN_OR_RETURN(auto table, MakeTable(spec));
  table->set_step(step_);
  tables_.push_back({spec, std::move(table)});
  declared_since_full_ = true;
  ++changes_;
  RenewCheckpoints();  // the next checkpoint is a full one
  return static_cast<std::uint32_t>(tables_.size() - 1);
}

Result<std::uint32_t> Holdings::DeclareTable(const Peer& peer, const Request& request) {
  ASSIGN_OR_RETURN(const Value value, DecodeJson(AsText(request.body)));
  ASSIGN_OR_RETURN(const TableSpec spec, TableSpecFrom(value));
  RETURN_IF_ERROR(MakeTableOptions(spec).status());
  return DeclareOnce(
      peer, request, [&]() REQUIRES(mu_) { return DeclaredTable(spec); },
      [] { return Status::Ok(); }, [&]() REQUIRES(mu_) { return MakeDeclaredTable(spec); });
}

Result<std::optional<std::uint32_t>> Holdings::DeclaredDense(const DenseSpec& spec) const {
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    if (dense_[i].variable->spec().name != spec.name) continue;
    if (dense_[i].variable->spec() == spec) return std::optional(static_cast<std::uint32_t>(i));
    return MismatchError("dense variable \"" + spec.name + "\": the servers have another one: " +
                         Differences(ToValue(dense_[i].variable->spec()), ToValue(spec)));
  }
  for (const TableEntry& table : tables_) {
    if (table.spec.name == spec.name) return TakenName(spec.name, "table");
  }
  return std::optional<std::uint32_t>();
}

Result<std::uint32_t> Holdings::MakeDeclaredDense(const DenseSpec& spec,
                                                  std::span<const float> values) {
  ASSIGN_OR_RETURN(auto variable, DenseVariable::Make(spec, options_.index, options_.servers));
  RETURN_IF_ERROR(variable->Assign(values));
  dense_.push_back({std::move(variable)});
  ++changes_;
  return static_cast<std::uint32_t>(dense_.size() - 1);
}

Result<std::uint32_t> Holdings::DeclareDense(const Peer& peer, const Request& request) {
  ASSIGN_OR_RETURN(const DenseBody body, DecodeDenseBody(request.body));
  ASSIGN_OR_RETURN(const Value value, DecodeJson(body.description));
  ASSIGN_OR_RETURN(const DenseSpec spec, DenseSpecFrom(value));
  ASSIGN_OR_RETURN(const std::vector<float> values, DecodeFloats(body.values));
  // Before anything is allocated: a shape is easily said.
  const auto check = [&]() -> Status {
    ASSIGN_OR_RETURN(const DenseShape shape, RowsOf(spec.shape));
    const std::uint64_t rows = RowsIn(BlocksOf(spec.name, shape, options_.index, options_.servers));
    if (values.size() == rows * shape.width &&
        (shape.width == 0 || values.size() / shape.width == rows)) {
      return Status::Ok();
    }
    return InvalidArgumentError(fmt::format(
        "dense variable \"{}\": this server has {} rows of {} elements of it, and {} elements came",
        spec.name, rows, shape.width, values.size()));
  };
  return DeclareOnce(
      peer, request, [&]() REQUIRES(mu_) { return DeclaredDense(spec); }, check,
      [&]() REQUIRES(mu_) { return MakeDeclaredDense(spec, values); });
}

Result<std::uint32_t> Holdings::DeclareOnce(
    const Peer& peer, const Request& request,
    const std::function<Result<std::optional<std::uint32_t>>()>& known,
    const std::function<Status()>& check, const std::function<Result<std::uint32_t>()>& make) {
  Mutex* changing = nullptr;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckLiving());
    ASSIGN_OR_RETURN(const auto id, known());
    if (id) return *id;
    RETURN_IF_ERROR(CheckTrainer(peer));
    changing = trainers_[peer.trainer].changing.get();
  }
  MutexLock one(changing);
  MutexLock declare(&declaring_);
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(peer));
    ASSIGN_OR_RETURN(const auto id, known());
    if (id) return *id;
  }
  RETURN_IF_ERROR(check());
  RETURN_IF_ERROR(Log({.kind = request.head.kind, .trainer = peer.trainer, .body = request.body}));
  // What is in the log is made, also when the generation is being left by now: a replay makes it.
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(broken_);
  return make();
}

// ---------------------------------------------------------------- changes

Result<Table*> Holdings::TableOfChange(std::uint32_t id) {
  RETURN_IF_ERROR(broken_);
  if (id >= tables_.size()) {
    return NotFoundError("there is no table " + std::to_string(id) + ": declare it first");
  }
  return tables_[id].table.get();
}

Result<Table*> Holdings::FindTable(std::uint32_t id) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckLiving());
  return TableOfChange(id);
}

Result<Table*> Holdings::FindTable(const Peer& peer, std::uint32_t id) {
  if (peer.trainer != kObserver) {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(peer));
  }
  return FindTable(id);
}

Result<Holdings::DenseEntry*> Holdings::DenseOfChange(std::uint32_t id) {
  RETURN_IF_ERROR(broken_);
  if (id >= dense_.size()) {
    return NotFoundError("there is no dense variable " + std::to_string(id) + ": declare it first");
  }
  return &dense_[id];
}

Result<Holdings::DenseEntry*> Holdings::FindDense(std::uint32_t id) {
  RETURN_IF_ERROR(CheckLiving());
  return DenseOfChange(id);
}

Status Holdings::CheckKeys(const Table& table, std::span<const std::int64_t> keys) const {
  const ShardRange& owned = table.options().shards;
  for (const std::int64_t key : keys) {
    if (owned.Contains(TableShardOf(key))) continue;
    return InvalidArgumentError(
        fmt::format("table \"{}\": key {} belongs to another server", table.options().name, key));
  }
  return Status::Ok();
}

Status Holdings::Once(const Peer& peer, const Request& request,
                      const std::function<Status()>& change, bool* repeated) {
  const RequestHead& head = request.head;
  *repeated = false;
  Mutex* changing = nullptr;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(peer));
    changing = trainers_[peer.trainer].changing.get();
  }
  MutexLock one(changing);
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckTrainer(peer));  // its place may have been taken meanwhile
    const std::uint64_t last = trainers_[peer.trainer].sequence;
    if (head.sequence <= last) {
      ++repeated_;
      *repeated = true;
      return Status::Ok();
    }
    if (head.sequence != last + 1) {
      return FailedPreconditionError(fmt::format("change {} of trainer {} follows change {}",
                                                 head.sequence, peer.trainer, last));
    }
    if (CountsAtOnce(head.kind)) ++changes_;
  }
  RETURN_IF_ERROR(Log({.kind = head.kind,
                       .flags = head.flags,
                       .trainer = peer.trainer,
                       .id = head.id,
                       .sequence = head.sequence,
                       .body = request.body}));
  // A change that is refused takes its number too: what was sent after it is still to count. Nobody
  // takes this trainer's place while `changing` is held. From here on only what would refuse it
  // again may refuse it: the next generation has the number, be it kept or replayed.
  const Status done = change();
  MutexLock lock(&mu_);
  trainers_[peer.trainer].sequence = head.sequence;
  ++pushes_;
  return done;
}

Result<std::string> Holdings::MakeChange(std::uint32_t trainer, Kind kind, std::uint32_t id,
                                         std::uint64_t sequence, std::span<const std::byte> body) {
  if (kind == Kind::kDensePush) {
    ASSIGN_OR_RETURN(std::vector<float> gradient, DecodeFloats(body));
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(DenseEntry * entry, DenseOfChange(id));
    if (!sync_) {
      RETURN_IF_ERROR(entry->variable->Apply(gradient));
      return std::string();
    }
    const std::size_t own = std::as_const(*entry->variable).values().size();
    if (gradient.size() != own) {
      return InvalidArgumentError(
          fmt::format("dense variable \"{}\": a gradient of {} elements for {}",
                      entry->variable->spec().name, gradient.size(), own));
    }
    trainers_[trainer].dense.push_back({sequence, id, std::move(gradient)});
    return std::string();
  }
  Table* table = nullptr;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(table, TableOfChange(id));
  }
  if (kind == Kind::kErase) {
    std::vector<std::int64_t> copy;
    ASSIGN_OR_RETURN(const auto keys, ViewKeys(body, &copy));
    ASSIGN_OR_RETURN(const std::uint64_t erased, table->Erase(keys));
    return EncodeNumber(erased);
  }
  if (kind == Kind::kEvict) {
    ASSIGN_OR_RETURN(const std::uint64_t number, DecodeNumber(body));
    const auto step = static_cast<std::int64_t>(number);
    if (step < 0) return InvalidArgumentError(fmt::format("there is no step {}", step));
    // Without a rule it is refused at once, also in sync mode.
    if (!sync_ || !table->options().eviction) {
      ASSIGN_OR_RETURN(const EvictReport evicted, table->Evict(step));
      MutexLock lock(&mu_);
      evicted_ += evicted.rows;
      return Encode(std::optional(evicted));
    }
    MutexLock lock(&mu_);
    trainers_[trainer].evictions.push_back({sequence, id, step});
    return std::string();
  }
  if (kind == Kind::kSetRate) {
    ASSIGN_OR_RETURN(const float rate, DecodeRate(body));
    if (!std::isfinite(rate) || rate < 0) {
      return InvalidArgumentError(
          fmt::format("table \"{}\": {} is no learning rate", table->options().name, rate));
    }
    if (!sync_) {  // of two trainers' at once another may come last at each server
      table->set_learning_rate(rate);
      return std::string();
    }
    MutexLock lock(&mu_);
    trainers_[trainer].rates.push_back({sequence, id, rate});
    return std::string();
  }
  if (kind == Kind::kAssign || !sync_) {
    ASSIGN_OR_RETURN(const RowsView rows, ViewRows(body, table->options().dim));
    RETURN_IF_ERROR(kind == Kind::kAssign ? table->Assign(rows.keys, rows.values)
                                          : table->ApplyGradients(rows.keys, rows.values));
    return std::string();
  }
  // They are kept until the step ends.
  ASSIGN_OR_RETURN(Rows rows, DecodeRows(body, table->options().dim));
  RETURN_IF_ERROR(CheckKeys(*table, rows.keys));
  MutexLock lock(&mu_);
  trainers_[trainer].rows.push_back({sequence, id, std::move(rows)});
  return std::string();
}

Result<std::string> Holdings::Change(const Peer& peer, const Request& request) {
  const RequestHead& head = request.head;
  std::string answer;
  bool repeated = false;
  RETURN_IF_ERROR(Once(
      peer, request,
      [&]() -> Status {
        ASSIGN_OR_RETURN(answer,
                         MakeChange(peer.trainer, head.kind, head.id, head.sequence, request.body));
        return Status::Ok();
      },
      &repeated));
  if (repeated && head.kind == Kind::kErase) return EncodeNumber(0);
  if (repeated && head.kind == Kind::kEvict && !sync_) return Encode(std::optional(EvictReport()));
  return answer;
}

Status Holdings::Pull(const Peer& peer, const Request& request, Table* table,
                      std::span<const std::int64_t> keys, std::span<float> out) {
  const bool create = (request.head.flags & kCreateRows) != 0 && peer.trainer != kObserver;
  if (create && request.head.sequence != 0) {
    bool repeated = false;
    RETURN_IF_ERROR(
        Once(peer, request, [&] { return table->Lookup(keys, out, Missing::kCreate); }, &repeated));
    if (!repeated) return Status::Ok();
    return table->Lookup(keys, out, Missing::kInitial);  // counted before
  }
  return table->Lookup(keys, out, create ? Missing::kCreate : Missing::kInitial);
}

Result<ExportedRows> Holdings::Export(std::uint32_t id, std::uint32_t shard) {
  ASSIGN_OR_RETURN(Table * table, FindTable(id));
  ExportedRows out;
  RETURN_IF_ERROR(table->ForEach([&](const RowView& row) {
    if (TableShardOf(row.key) % kExportPages != shard) return Status::Ok();
    out.keys.push_back(row.key);
    out.frequency.push_back(static_cast<std::int64_t>(row.frequency));
    out.version.push_back(row.version);
    out.weights.insert(out.weights.end(), row.weights.begin(), row.weights.end());
    out.slots.insert(out.slots.end(), row.slots.begin(), row.slots.end());
    return Status::Ok();
  }));
  return out;
}

Status Holdings::PullDense(std::uint32_t id,
                           const std::function<void(std::span<const float>)>& show) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(DenseEntry * entry, FindDense(id));
  show(std::as_const(*entry->variable).values());
  return Status::Ok();
}

Result<std::vector<float>> Holdings::ExportDense(std::uint32_t id) {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(DenseEntry * entry, FindDense(id));
  const std::span<const float> values = std::as_const(*entry->variable).values();
  const std::span<const float> slots = entry->variable->slots();
  std::vector<float> all(values.begin(), values.end());
  all.insert(all.end(), slots.begin(), slots.end());
  return all;
}

}  // namespace cairn::ps
