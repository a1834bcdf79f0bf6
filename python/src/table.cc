#include "src/table.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/table.h>

#include "src/errors.h"
#include "src/gil.h"

namespace nb = nanobind;

namespace cairn::python {

CutKind ToCutKind(const std::string& kind) {
  if (kind == "full") return CutKind::kFull;
  if (kind == "cumulative") return CutKind::kCumulative;
  if (kind == "consecutive") return CutKind::kConsecutive;
  Raise(InvalidArgumentError("kind = \"" + kind +
                             "\": there are \"full\", \"cumulative\" and \"consecutive\""));
}

namespace {

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutInts = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> Span(const Ids& ids) { return {ids.data(), ids.size()}; }
std::span<const float> Span(const Floats& rows) { return {rows.data(), rows.size()}; }

template <typename Fn>
auto Unlocked(Fn fn) {
  const WithoutGil released;
  return fn();
}

/// (kind, {setting: value}) as cairn.optimizers makes it.
std::shared_ptr<const Optimizer> ToOptimizer(const std::string& kind, const nb::dict& settings) {
  const auto number = [&](const char* name) { return nb::cast<float>(settings[name]); };
  const float rate = number("learning_rate");
  if (kind == "sgd") return ValueOrRaise(MakeSgd({rate}));
  if (kind == "momentum") {
    return ValueOrRaise(
        MakeMomentum({rate, number("momentum"), nb::cast<bool>(settings["nesterov"])}));
  }
  if (kind == "adagrad") {
    return ValueOrRaise(
        MakeAdagrad({rate, number("initial_accumulator_value"), number("epsilon")}));
  }
  if (kind == "adam") {
    return ValueOrRaise(MakeAdam({rate, number("beta1"), number("beta2"), number("epsilon")}));
  }
  if (kind == "adamw") {
    return ValueOrRaise(MakeAdamW(
        {rate, number("beta1"), number("beta2"), number("epsilon"), number("weight_decay")}));
  }
  if (kind == "ftrl") {
    return ValueOrRaise(
        MakeFtrl({rate, number("learning_rate_power"), number("initial_accumulator_value"),
                  number("l1"), number("l2"), number("beta")}));
  }
  if (kind == "rowwise_adagrad") {
    return ValueOrRaise(
        MakeRowwiseAdagrad({rate, number("initial_accumulator_value"), number("epsilon")}));
  }
  Raise(InvalidArgumentError("there is no optimizer \"" + kind + "\""));
}

std::shared_ptr<const Initializer> ToInitializer(const std::string& kind, float a, float b) {
  if (kind == "constant") return ValueOrRaise(MakeConstant(a));
  if (kind == "uniform") return ValueOrRaise(MakeUniform(a, b));
  if (kind == "normal") return ValueOrRaise(MakeNormal(a, b));
  if (kind == "truncated_normal") return ValueOrRaise(MakeTruncatedNormal(a, b));
  Raise(InvalidArgumentError("there is no initializer \"" + kind + "\""));
}

std::unique_ptr<Table> MakeTable(const nb::dict& settings) {
  TableOptions options;
  options.name = nb::cast<std::string>(settings["name"]);
  options.dim = nb::cast<std::uint32_t>(settings["dim"]);
  const auto dtype = DTypeFromName(nb::cast<std::string>(settings["dtype"]));
  if (!dtype) Raise(InvalidArgumentError("table \"" + options.name + "\": unknown dtype"));
  options.dtype = *dtype;
  const auto [optimizer, optimizer_settings] =
      nb::cast<std::pair<std::string, nb::dict>>(settings["optimizer"]);
  options.optimizer = ToOptimizer(optimizer, optimizer_settings);
  const auto [initializer, a, b] =
      nb::cast<std::tuple<std::string, float, float>>(settings["initializer"]);
  options.initializer = ToInitializer(initializer, a, b);
  options.seed = nb::cast<std::uint64_t>(settings["seed"]);
  if (const auto count = nb::cast<std::optional<std::uint32_t>>(settings["admission"])) {
    options.admission = AdmissionOptions{*count};
  }
  const auto steps = nb::cast<std::optional<std::int64_t>>(settings["steps_to_live"]);
  const auto norm = nb::cast<std::optional<float>>(settings["min_l2_norm"]);
  if (steps || norm) options.eviction = EvictionOptions{steps, norm};
  const auto [begin, end] = nb::cast<std::pair<std::uint32_t, std::uint32_t>>(settings["shards"]);
  options.shards = {begin, end};
  options.side_buffer_bytes = nb::cast<std::uint64_t>(settings["side_buffer_bytes"]);
  return ValueOrRaise(Table::Make(std::move(options)));
}

/// (keys, frequency, version, weights, slots) as bytes of int64, int64, int64, float32, float32.
nb::tuple Export(Table* table) {
  std::vector<std::int64_t> keys;
  std::vector<std::int64_t> frequency;
  std::vector<std::int64_t> version;
  std::vector<float> weights;
  std::vector<float> slots;
  const Status status = Unlocked([&] {
    return table->ForEach([&](const RowView& row) {
      keys.push_back(row.key);
      frequency.push_back(static_cast<std::int64_t>(row.frequency));
      version.push_back(row.version);
      weights.insert(weights.end(), row.weights.begin(), row.weights.end());
      slots.insert(slots.end(), row.slots.begin(), row.slots.end());
      return Status::Ok();
    });
  });
  RaiseIfError(status);
  const auto bytes = [](const auto& column) {
    return nb::bytes(reinterpret_cast<const char*>(column.data()),
                     column.size() * sizeof(column[0]));
  };
  return nb::make_tuple(bytes(keys), bytes(frequency), bytes(version), bytes(weights),
                        bytes(slots));
}

nb::dict Memory(const Table& table) {
  const TableMemory memory = Unlocked([&] { return table.memory(); });
  nb::dict out;
  out["rows"] = memory.rows;
  out["index"] = memory.index;
  out["tracking"] = memory.tracking;
  out["side_buffer"] = memory.side_buffer;
  out["pending"] = memory.pending;
  return out;
}

std::uint64_t TensorSize(const Tensor& tensor) {
  std::uint64_t bytes = static_cast<std::uint64_t>(DTypeBits(tensor.dtype)) / 8;
  for (const std::uint64_t d : tensor.shape) bytes *= d;
  return bytes;
}

/// A cut, which borrows from its table.
class Cut {
 public:
  Cut(nb::object table, std::unique_ptr<TableCut> cut)
      : table_(std::move(table)), cut_(std::move(cut)) {}
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;
  ~Cut() {
    const WithoutGil released;
    cut_ = nullptr;
  }
  TableCut* operator->() const { return cut_.get(); }

 private:
  nb::object table_;  // lives longer
  std::unique_ptr<TableCut> cut_;
};

/// All columns of a cut: {name without the table's: (dtype, shape, bytes)}.
nb::dict ReadCut(const Cut& cut) {
  nb::dict out;
  const std::size_t prefix = cut->summary().name.size() + 1;
  for (const Tensor& tensor : cut->Tensors()) {
    std::string bytes(TensorSize(tensor), '\0');
    const auto into = std::as_writable_bytes(std::span(bytes.data(), bytes.size()));
    if (tensor.source != nullptr) {
      RaiseIfError(Unlocked([&] { return tensor.source->Fill(0, into); }));
    } else if (!bytes.empty()) {
      std::memcpy(bytes.data(), tensor.data, bytes.size());
    }
    out[nb::str(tensor.name.substr(prefix).c_str())] = nb::make_tuple(
        std::string(DTypeName(tensor.dtype)), tensor.shape, nb::bytes(bytes.data(), bytes.size()));
  }
  return out;
}

nb::dict Summary(const Cut& cut) {
  const TableSummary& summary = cut->summary();
  nb::dict out;
  out["name"] = summary.name;
  out["dim"] = summary.dim;
  out["dtype"] = std::string(DTypeName(summary.dtype));
  out["rows"] = summary.rows;
  out["deleted"] = summary.deleted;
  out["pending"] = summary.pending;
  return out;
}

nb::list CutAll(const nb::list& tables, const std::string& kind, bool quantize, bool compress_keys,
                const std::optional<nb::callable>& also) {
  const CutRequest request{ToCutKind(kind), quantize, compress_keys};
  const auto pointers = nb::cast<std::vector<Table*>>(tables);
  std::optional<nb::python_error> raised;
  const auto dense = [&]() -> Status {
    if (!also) return Status::Ok();
    const WithGil locked;
    try {
      (*also)();
      return Status::Ok();
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      return CancelledError("the callback raised");
    }
  };
  auto cuts = Unlocked([&] { return CutTables(pointers, request, dense); });
  if (raised) throw std::move(*raised);
  nb::list out;
  std::size_t i = 0;
  for (auto& cut : ValueOrRaise(std::move(cuts))) {
    out.append(nb::cast(std::make_unique<Cut>(tables[i++], std::move(cut))));
  }
  return out;
}

/// A part as ReadCut gives it.
struct StoredPart {
  std::vector<StoredColumn> columns;
  std::map<std::string, nb::bytes> bytes;

  template <typename T>
  std::vector<T> Get(const std::string& name) const {
    const auto it = bytes.find(name);
    if (it == bytes.end()) return {};
    std::vector<T> out(it->second.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), it->second.c_str(), out.size() * sizeof(T));
    return out;
  }
  std::span<const std::byte> Bytes(const std::string& name) const {
    const auto it = bytes.find(name);
    if (it == bytes.end()) return {};
    return std::as_bytes(std::span(it->second.c_str(), it->second.size()));
  }
};

StoredPart ToPart(const nb::dict& columns) {
  StoredPart part;
  for (const auto& [name, column] : columns) {
    const auto [dtype, shape, bytes] =
        nb::cast<std::tuple<std::string, std::vector<std::uint64_t>, nb::bytes>>(column);
    const auto known = DTypeFromName(dtype);
    if (!known) Raise(InvalidArgumentError("unknown dtype " + dtype));
    const auto key = nb::cast<std::string>(name);
    part.columns.push_back({key, *known, shape});
    part.bytes.emplace(key, bytes);
  }
  return part;
}

Status LoadPart(TableLoader* loader, const Table& table, const StoredPart& part) {
  const auto offsets = part.Get<std::int64_t>("shard_offsets");
  auto begun = loader->BeginPart(part.columns, offsets);
  if (!begun.ok()) return begun.status();
  const auto rows = static_cast<std::uint64_t>(offsets.back());
  std::vector<std::int64_t> keys = part.Get<std::int64_t>("keys");
  if (part.bytes.contains("keys_zstd")) {
    auto decoded = DecodeTableKeys(part.Bytes("keys_zstd"), rows);
    if (!decoded.ok()) return decoded.status();
    keys = *std::move(decoded);
  }
  const auto frequency = part.Get<std::int64_t>("frequency");
  const auto version = part.Get<std::int64_t>("version");
  if (Status s = loader->AddDeleted(part.Get<std::int64_t>("deleted")); !s.ok()) return s;
  const auto slice = [&](const std::string& name, const RowRange& range) {
    const auto all = part.Bytes(name);
    const std::size_t width = rows == 0 ? 0 : all.size() / rows;
    return all.subspan(range.first * width, range.count * width);
  };
  for (const RowRange& range : (*begun)->rows()) {
    RowBlock block;
    block.first = range.first;
    block.keys = std::span(keys).subspan(range.first, range.count);
    block.frequency = std::span(frequency).subspan(range.first, range.count);
    block.version = std::span(version).subspan(range.first, range.count);
    block.values = slice("values", range);
    const auto value_scale = part.Get<float>("values_scale");
    std::vector<std::vector<float>> scales;
    if (!value_scale.empty()) {
      block.value_scale = std::span(value_scale).subspan(range.first, range.count);
    }
    for (const SlotSpec& slot : table.slots()) {
      block.slots.push_back(slice("slot/" + slot.name, range));
      scales.push_back(part.Get<float>("slot/" + slot.name + "_scale"));
    }
    for (const auto& scale : scales) {
      block.slot_scale.push_back(scale.empty()
                                     ? std::span<const float>()
                                     : std::span(scale).subspan(range.first, range.count));
    }
    if (Status s = (*begun)->AddRows(block); !s.ok()) return s;
  }
  return loader->AddPending(part.Get<std::int64_t>("pending_keys"),
                            part.Get<std::int64_t>("pending_counts"),
                            part.Get<std::int64_t>("pending_versions"));
}

/// Checkpoints of a chain as (kind, [columns of each part]).
void Load(Table* table, const std::vector<std::pair<std::string, std::vector<nb::dict>>>& chain,
          bool merge) {
  auto loader = ValueOrRaise(Unlocked([&] { return TableLoader::Begin(table, {.merge = merge}); }));
  for (const auto& [kind, parts] : chain) {
    RaiseIfError(loader->BeginCheckpoint(ToCutKind(kind)));
    for (const nb::dict& columns : parts) {
      RaiseIfError(LoadPart(loader.get(), *table, ToPart(columns)));
    }
  }
  RaiseIfError(loader->Finish());
}

/// A batch of the process's gate, of the thread that made it.
class Batch {
 public:
  Batch() = default;
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void Enter() {
    batches_.push_back(
        Unlocked([] { return std::make_unique<CutGate::Batch>(CutGate::Process().get()); }));
  }
  void Leave() {
    if (batches_.empty() || std::this_thread::get_id() != thread_) {
      Raise(FailedPreconditionError("a batch is left by the thread that entered it"));
    }
    batches_.pop_back();
  }

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
  std::vector<std::unique_ptr<CutGate::Batch>> batches_;
};

void DefineTableClass(nb::module_& module) {
  nb::class_<Table>(module, "Table")
      .def_static("make", &MakeTable)
      .def("lookup",
           [](Table* table, const Ids& ids, const OutFloats& out, bool create) {
             RaiseIfError(Unlocked([&] {
               return table->Lookup(Span(ids), {out.data(), out.size()},
                                    create ? Missing::kCreate : Missing::kInitial);
             }));
           })
      .def("apply_gradients",
           [](Table* table, const Ids& ids, const Floats& gradients) {
             RaiseIfError(
                 Unlocked([&] { return table->ApplyGradients(Span(ids), Span(gradients)); }));
           })
      .def("assign",
           [](Table* table, const Ids& ids, const Floats& values) {
             RaiseIfError(Unlocked([&] { return table->Assign(Span(ids), Span(values)); }));
           })
      .def("erase",
           [](Table* table, const Ids& ids) {
             return ValueOrRaise(Unlocked([&] { return table->Erase(Span(ids)); }));
           })
      .def("evict",
           [](Table* table, std::int64_t step) {
             const EvictReport report = ValueOrRaise(Unlocked([&] { return table->Evict(step); }));
             return std::pair(report.rows, report.pending);
           })
      .def("clear", [](Table* table) { RaiseIfError(Unlocked([&] { return table->Clear(); })); })
      .def("export", &Export)
      .def("memory", &Memory)
      .def("load", &Load)
      .def("size", &Table::size)
      .def("pending_size", &Table::pending_size)
      .def("has_base", &Table::has_base)
      .def("changed_rows",
           [](const Table& table, const std::string& kind) {
             return table.ChangedRows(ToCutKind(kind));
           })
      .def("slots",
           [](const Table& table) {
             nb::list out;
             for (const SlotSpec& slot : table.slots()) {
               out.append(nb::make_tuple(slot.name, slot.width));
             }
             return out;
           })
      .def_prop_rw("step", &Table::step, &Table::set_step)
      .def_prop_rw("learning_rate", &Table::learning_rate, &Table::set_learning_rate);
}

}  // namespace

void DefineTable(nb::module_& module) {
  DefineTableClass(module);
  nb::class_<Cut>(module, "TableCut")
      .def("read", &ReadCut)
      .def("summary", &Summary)
      .def("committed", [](const Cut& cut) { Unlocked([&] { cut->Committed(); }); })
      .def("failed", [](const Cut& cut) { Unlocked([&] { cut->Failed(); }); })
      .def("quantization_error", [](const Cut& cut) {
        const TableCut::Error error = cut->QuantizationError();
        return std::pair(error.max_abs, error.max_relative);
      });
  nb::class_<Batch>(module, "Batch")
      .def(nb::init<>())
      .def("enter", &Batch::Enter)
      .def("leave", &Batch::Leave);
  module.def("cut_tables", &CutAll, nb::arg("tables"), nb::arg("kind"), nb::arg("quantize"),
             nb::arg("compress_keys"), nb::arg("also").none());
  module.def("shard_of", &TableShardOf);
  module.def("shards_of", [](const Ids& ids, const OutInts& shards) {
    if (shards.size() != ids.size()) Raise(InvalidArgumentError("shards_of: sizes differ"));
    Unlocked([&] { std::ranges::transform(Span(ids), shards.data(), &TableShardOf); });
  });
}

}  // namespace cairn::python
