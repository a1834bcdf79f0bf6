#include "src/manager.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/checkpoint_manager.h>
#include <cairn/table_checkpoint.h>
#include <cairn/transfer.h>

#include "checkpoint/damage.h"
#include "checkpoint/save_turn.h"
#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/state_encoder.h"
#include "src/state_matcher.h"
#include "src/steps.h"
#include "src/waiting.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

std::chrono::nanoseconds Seconds(double seconds, const char* what) {
  // Over a century no clock is asked.
  if (!(seconds >= 0)) Raise(InvalidArgumentError(std::string(what) + " must not be negative"));
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, 3e9) * 1e9));
}

template <typename Fn>
auto Unlocked(Fn fn) {
  const WithoutGil released;
  return fn();
}

SaveKind ToKind(const std::string& kind) {
  if (kind == "full") return SaveKind::kFull;
  if (kind == "cumulative") return SaveKind::kCumulative;
  if (kind == "consecutive") return SaveKind::kConsecutive;
  Raise(InvalidArgumentError("kind = \"" + kind +
                             "\": there are \"full\", \"cumulative\" and \"consecutive\""));
}

DiskWrites ToDiskWrites(const std::string& how) {
  if (how == "direct") return DiskWrites::kDirect;
  return how == "buffered" ? DiskWrites::kBuffered : DiskWrites::kAuto;
}

/// A save under way.
class Handle {
 public:
  explicit Handle(SaveHandle save) : save_(std::move(save)) {}

  nb::object Wait() {
    WaitUntilDone(save_);
    return FromInfo(ValueOrRaise(save_.Wait()));
  }
  nb::object Outcome() const {
    auto outcome = save_.Outcome();
    return outcome ? FromInfo(ValueOrRaise(*std::move(outcome))) : nb::none();
  }
  bool Done() const { return save_.Done(); }
  bool WaitFor(double seconds) {
    const WithoutGil released;
    return save_.WaitFor(Seconds(seconds, "timeout"));
  }
  void Guard() {
    WaitUntilCopied(save_);
    RaiseIfError(save_.Guard());
  }
  const SaveHandle& save() const { return save_; }
  /// In a fork, whose copy of this object nobody may destroy: waiting threads are the parent's.
  void Abandon() { new SaveHandle(save_); }  // NOLINT: never freed, on purpose

 private:
  SaveHandle save_;
};

/// Gives true when the state was matched natively: then nobody asks for the names that were
/// restored.
bool Ask(const nb::callable& prepare, const Restored& head, RestoreRequest* asked) {
  nb::dict files;
  for (const auto& [name, content] : head.state_files) {
    files[nb::str(name.data(), name.size())] = nb::bytes(content.data(), content.size());
  }
  const auto answer = nb::cast<nb::dict>(prepare(FromInfo(head.info), files));
  const nb::object into = answer["into"];
  const bool matched = nb::isinstance<MatchedState>(into);
  asked->into = matched ? nb::cast<MatchedState&>(into).TakeTensors() : ToMutableTensors(into);
  asked->allocate = nb::cast<bool>(answer["allocate"]);
  for (const nb::handle name : answer["allocate_names"]) {
    asked->allocate_names.insert(nb::cast<std::string>(name));
  }
  asked->strict = nb::cast<bool>(answer["strict"]);
  for (const nb::handle name : answer["skip"]) asked->skip.insert(nb::cast<std::string>(name));
  asked->rename = nb::cast<std::map<std::string, std::string>>(answer["rename"]);
  return matched;
}

/// `matched`: nobody asks for the names that were restored.
nb::object FromRestored(const Restored& restored, bool matched) {
  nb::dict out;
  out["info"] = FromInfo(restored.info);
  out["bytes"] = restored.bytes;
  out["count"] = restored.restored.size();
  if (!matched) out["restored"] = restored.restored;
  out["skipped"] = restored.skipped;
  out["fallbacks"] = restored.fallbacks;
  out["skipped_tables"] = nb::list();  // where there are any, the caller says so
  nb::list tensors;
  for (const OwnedTensor& tensor : restored.tensors) tensors.append(FromOwned(tensor));
  out["tensors"] = tensors;
  return out;
}

/// Runs a restore without the GIL. `prepare(info, state_files)` gives {"into": [...] or a
/// MatchedState, "skip":
/// [...], "allocate": bool, "allocate_names": [...], "strict": bool, "rename": {...}}; see
/// RestoreRequest::prepare. What it raises is raised here.
template <typename Outcome, typename Fn>
Outcome RunRestore(RestoreRequest request, const nb::callable& prepare, bool* matched, Fn restore) {
  MismatchReport mismatch;
  std::optional<nb::python_error> refused;
  request.prepare = [&](const Restored& head, RestoreRequest* asked) -> Status {
    const WithGil gil;
    try {
      *matched = Ask(prepare, head, asked);
      return Status::Ok();
    } catch (nb::python_error& error) {
      refused.emplace(error);
      return CancelledError("the state does not fit");
    }
  };
  request.mismatch = &mismatch;
  Interrupts interrupts;
  request.progress = [&](std::uint64_t, std::uint64_t) { interrupts.Poll(); };
  request.cancelled = [&] { return interrupts.interrupted(); };
  std::optional<Result<Outcome>> result;
  {
    const WithoutGil released;
    result.emplace(restore(std::move(request)));
  }
  interrupts.Rethrow();
  if (refused) throw nb::python_error(*refused);
  if (!result->ok()) Raise(result->status(), mismatch);
  return *std::move(*result);
}

nb::object Load(const std::string& path, const nb::callable& prepare, bool atomic, bool tensors) {
  RestoreRequest request;
  request.path = path;
  request.atomic = atomic;
  request.list_ahead = tensors;
  bool matched = false;
  const auto restored =
      RunRestore<Restored>(std::move(request), prepare, &matched,
                           [](const RestoreRequest& asked) { return LoadCheckpoint(asked); });
  return FromRestored(restored, matched);
}

class Manager {
 public:
  explicit Manager(std::shared_ptr<CheckpointManager> manager)
      : manager_(std::move(manager)), turns_(dynamic_cast<SaveTurns*>(manager_.get())) {}

  /// Until a save neither waits for the one before nor for what comes behind that.
  void AwaitTurn() {
    FinishLeft();
    if (turns_ == nullptr) return;
    WaitInterruptibly(
        [&](std::chrono::nanoseconds patience) { return turns_->TurnWithin(patience); });
  }
  /// Until nothing is written or removed any more.
  void AwaitIdle() {
    FinishLeft();
    if (turns_ == nullptr) return;
    WaitInterruptibly(
        [&](std::chrono::nanoseconds patience) { return turns_->IdleWithin(patience); });
  }

  std::unique_ptr<Handle> Save(std::int64_t step, StateEncoder& tensors, nb::handle counters,
                               nb::handle metrics, nb::handle metadata, nb::handle lineage,
                               const std::vector<std::pair<std::string, nb::object>>& files,
                               std::map<std::string, std::string> state_files,
                               const std::string& state_file, bool lazy, bool stream,
                               const std::string& kind, const nb::list& tables, bool quantize,
                               bool compress_keys) {
    SaveRequest request;
    request.kind = ToKind(kind);
    request.step = step;
    request.tensors = tensors.TakeTensors();
    request.counters = ToValue(counters, "counters");
    request.metrics = ToValue(metrics, "metrics");
    request.metadata = ToValue(metadata, "metadata");
    request.lineage = ToValue(lineage, "lineage");
    for (const auto& [name, content] : files) {
      UserFile file;
      file.name = name;
      if (nb::isinstance<nb::bytes>(content)) {
        const auto bytes = nb::borrow<nb::bytes>(content);
        file.bytes.assign(bytes.c_str(), bytes.size());
      } else {
        file.path = nb::cast<std::string>(content);
      }
      request.files.push_back(std::move(file));
    }
    request.state_files = std::move(state_files);
    request.state_files[state_file] = tensors.TakeJson();
    request.lazy = lazy;
    request.stream = stream;
    UseTables(tables, {.quantize = quantize, .compress_keys = compress_keys});
    std::optional<Result<SaveHandle>> handle;
    {
      const WithoutGil released;
      handle.emplace(tables_->Save(std::move(request)));
    }
    return std::make_unique<Handle>(ValueOrRaise(*std::move(handle)));
  }

  nb::object Restore(nb::callable prepare, std::optional<std::int64_t> step, const std::string& id,
                     const std::string& path, bool atomic, const nb::list& tables, bool strict,
                     bool merge) {
    AwaitIdle();
    UseTables(tables, {});
    RestoreRequest request;
    request.step = step;
    request.id = id;
    request.path = path;
    request.atomic = atomic;
    request.list_ahead = true;
    bool matched = false;
    const auto restored = RunRestore<std::optional<Restored>>(
        std::move(request), prepare, &matched, [&](RestoreRequest asked) {
          return tables_->Restore(std::move(asked), {.strict = strict, .merge = merge});
        });
    if (!restored) return nb::none();
    nb::object out = FromRestored(*restored, matched);
    out["skipped_tables"] = tables_->skipped();
    return out;
  }
  /// Releases the rows of a save that is over.
  void Settle() {
    const WithoutGil released;
    if (tables_) tables_->Settle();
  }
  bool CanIncrement() const { return tables_ != nullptr && tables_->CanIncrement(); }
  std::pair<double, double> QuantizationError() const {
    const auto error = tables_ ? tables_->quantization_error() : TableCut::Error{};
    return {error.max_abs, error.max_relative};
  }

  nb::object List() {
    nb::list out;
    for (const CheckpointInfo& info :
         ValueOrRaise(CallAside([manager = manager_] { return manager->List(); }))) {
      out.append(FromInfo(info));
    }
    return out;
  }
  nb::object Latest() {
    const auto info = ValueOrRaise(CallAside([manager = manager_] { return manager->Latest(); }));
    return info ? FromInfo(*info) : nb::none();
  }
  void Wait() {
    AwaitIdle();
    RaiseIfError(Unlocked([&] {
      if (tables_) tables_->Wait();
      return manager_->WaitAll();
    }));
  }
  void Pin(const std::string& id) {
    RaiseIfError(
        CallAside([manager = manager_, id] { return manager->Pin(id); }, {.what = "a pin"}));
  }
  void Unpin(const std::string& id) {
    RaiseIfError(
        CallAside([manager = manager_, id] { return manager->Unpin(id); }, {.what = "an unpin"}));
  }
  void Delete(const std::string& id) {
    AwaitIdle();
    RaiseIfError(CallAside([manager = manager_, id] { return manager->Delete(id); },
                           {.what = "a deletion", .left = &left_}));
  }
  void AddMetrics(const std::string& id, nb::handle metrics) {
    Value value = ToValue(metrics, "metrics");
    AwaitIdle();
    RaiseIfError(CallAside([manager = manager_, id,
                            value = std::move(value)] { return manager->AddMetrics(id, value); },
                           {.what = "a late metric", .left = &left_}));
  }
  void Close() {
    AwaitIdle();
    Unlocked([&] {
      if (tables_) tables_->Wait();
    });
    RaiseIfError(CallAside([manager = manager_] { return manager->Close(); },
                           {.what = "a close", .left = &left_}));
  }
  /// As Handle::Abandon.
  void Abandon() {
    new std::shared_ptr<CheckpointManager>(manager_);  // NOLINT
    (void)tables_.release();
  }
  const std::string& job() const { return manager_->job(); }
  std::uint64_t generation() const { return manager_->generation(); }

 private:
  /// A call that was left goes on, and keeps what the next one would need.
  void FinishLeft() {
    if (left_ == nullptr) return;
    left_->Wait();
    left_.reset();
  }
  /// Saves and restores are of these tables and tracked arrays from now on. Increments go on only
  /// with the same ones.
  void UseTables(const nb::list& tables, TableCheckpoints::Options options) {
    std::vector<Table*> wanted;
    std::vector<RowTracked*> arrays;
    for (const nb::handle each : tables) {
      if (nb::isinstance<RowTracked>(each)) {
        arrays.push_back(nb::cast<RowTracked*>(each));
      } else {
        wanted.push_back(nb::cast<Table*>(each));
      }
    }
    if (tables_ == nullptr || wanted != wanted_tables_ || arrays != wanted_arrays_) {
      const WithoutGil released;
      tables_ = std::make_unique<TableCheckpoints>(manager_.get(), wanted, arrays,
                                                   options);  // waits for the old
    }
    tables_->set_options(options);
    wanted_tables_ = std::move(wanted);
    wanted_arrays_ = std::move(arrays);
    keep_tables_ = tables;
  }

  // Shared: the interpreter may end, and drop this object, in the middle of another thread's call.
  std::shared_ptr<CheckpointManager> manager_;
  SaveTurns* const turns_;       // the manager's; null: it has none
  std::shared_ptr<Aside> left_;  // shared with its thread
  nb::list keep_tables_;         // own what the next ones borrow
  std::vector<Table*> wanted_tables_;
  std::vector<RowTracked*> wanted_arrays_;
  std::unique_ptr<TableCheckpoints> tables_;
};

/// Runs a download aside. One that was left writes nothing any more: its directory may be another's
/// by then.
template <typename Fn>
void Fetch(Fn fetch) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);  // shared with the thread
  RaiseIfError(CallAside(
      [cancelled, fetch = std::move(fetch)] {
        return fetch(
            Progress([cancelled](std::uint64_t, std::uint64_t) { return !cancelled->load(); }));
      },
      {.cancelled = cancelled}));
}

template <typename T>
std::optional<T> Optional(const nb::dict& options, const char* name) {
  if (!options.contains(name) || options[name].is_none()) return std::nullopt;
  return nb::cast<T>(options[name]);
}

std::unique_ptr<Manager> Open(const nb::dict& given) {
  ManagerOptions options;
  options.directory = nb::cast<std::string>(given["directory"]);
  options.job = Optional<std::string>(given, "job").value_or("");
  options.run = Optional<std::uint64_t>(given, "run").value_or(0);
  options.retention.keep_last = Optional<std::uint64_t>(given, "keep_last");
  options.retention.keep_best = Optional<std::uint64_t>(given, "keep_best");
  options.retention.keep_fulls = Optional<std::uint64_t>(given, "keep_fulls");
  options.retention.keep_every = Optional<std::int64_t>(given, "keep_every");
  options.retention.score = Optional<std::string>(given, "score").value_or("");
  options.retention.maximize = nb::cast<bool>(given["maximize"]);
  options.rank = nb::cast<int>(given["rank"]);
  options.world_size = nb::cast<int>(given["world_size"]);
  options.participant = nb::cast<std::string>(given["participant"]);
  options.naming = nb::cast<bool>(given["serial"]) ? Naming::kSerial : Naming::kStep;
  options.on_busy = nb::cast<bool>(given["skip_when_busy"]) ? OnBusy::kSkip : OnBusy::kWait;
  options.deadline = Seconds(nb::cast<double>(given["deadline"]), "deadline");
  if (const auto join = Optional<double>(given, "join_deadline")) {
    options.join_deadline = Seconds(*join, "join_deadline");
  }
  options.low_memory = nb::cast<bool>(given["low_memory"]);
  options.read_only = nb::cast<bool>(given["read_only"]);
  options.private_parts = nb::cast<bool>(given["private"]);
  options.takeover = nb::cast<bool>(given["takeover"]);
  options.storage.upload_bytes_per_second =
      Optional<std::uint64_t>(given, "upload_limit").value_or(0);
  options.storage.single_writer = nb::cast<bool>(given["single_writer"]);
  options.disk_writes = ToDiskWrites(nb::cast<std::string>(given["disk_writes"]));
  if (const auto bytes = Optional<std::uint64_t>(given, "pool_bytes")) options.pool_bytes = *bytes;
  options.copy_threads = static_cast<int>(std::min<std::uint64_t>(
      Optional<std::uint64_t>(given, "copy_threads").value_or(0), 1u << 30));
  // Shared with the thread, and with the manager, which keeps its options for life.
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  options.cancelled = [cancelled] { return cancelled->load(); };
  return std::make_unique<Manager>(ValueOrRaise(CallAside(
      [options] { return OpenWatched(options); }, {.what = "an opening", .cancelled = cancelled})));
}

}  // namespace

void DefineManager(nb::module_& module) {
  nb::class_<Handle>(module, "Handle")
      .def("wait", &Handle::Wait)
      .def("wait_for", &Handle::WaitFor)
      .def("done", &Handle::Done)
      .def("outcome", &Handle::Outcome)
      .def("guard", &Handle::Guard)
      .def("abandon", &Handle::Abandon)
      .def_prop_ro("stall_seconds", [](const Handle& h) { return h.save().StallSeconds(); })
      .def_prop_ro("durable_seconds", [](const Handle& h) { return h.save().DurableSeconds(); })
      .def_prop_ro("bytes_written", [](const Handle& h) { return h.save().BytesWritten(); })
      .def_prop_ro("bytes_shared", [](const Handle& h) { return h.save().BytesShared(); });
  nb::class_<Manager>(module, "Manager")
      .def_static("open", &Open)
      .def("save", &Manager::Save, nb::kw_only(), nb::arg("step"), nb::arg("tensors"),
           nb::arg("counters"), nb::arg("metrics"), nb::arg("metadata"), nb::arg("lineage"),
           nb::arg("files"), nb::arg("state_files"), nb::arg("state_file"), nb::arg("lazy"),
           nb::arg("stream"), nb::arg("kind"), nb::arg("tables"), nb::arg("quantize"),
           nb::arg("compress_keys"))
      .def("restore", &Manager::Restore, nb::kw_only(), nb::arg("prepare"), nb::arg("step").none(),
           nb::arg("id"), nb::arg("path"), nb::arg("atomic"), nb::arg("tables") = nb::list(),
           nb::arg("strict") = true, nb::arg("merge") = false)
      .def("await_turn", &Manager::AwaitTurn)
      .def("await_idle", &Manager::AwaitIdle)
      .def("settle", &Manager::Settle)
      .def("can_increment", &Manager::CanIncrement)
      .def("quantization_error", &Manager::QuantizationError)
      .def("list", &Manager::List)
      .def("latest", &Manager::Latest)
      .def("wait", &Manager::Wait)
      .def("pin", &Manager::Pin)
      .def("unpin", &Manager::Unpin)
      .def("delete", &Manager::Delete)
      .def("add_metrics", &Manager::AddMetrics)
      .def("close", &Manager::Close)
      .def("abandon", &Manager::Abandon)
      .def_prop_ro("job", &Manager::job)
      .def_prop_ro("generation", &Manager::generation);
  module.def("note_damaged",
             [](const std::string& repository, const std::string& id, const std::string& reason) {
               RaiseIfError(CallAside([=] { return NoteDamaged(repository, id, reason); },
                                      {.what = "a note"}));
             });
  module.def("newest_whole", [](const std::string& repository) -> nb::object {
    const auto info = ValueOrRaise(CallAside([=] { return NewestWhole(repository); }));
    return info ? nb::cast(info->id) : nb::none();
  });
  module.def("user_files", [](const std::string& checkpoint) {
    return ValueOrRaise(CallAside([=] { return UserFilesOf(checkpoint); }));
  });
  module.def("fetch_user_file",
             [](const std::string& checkpoint, const std::string& name, const std::string& path) {
               Fetch([=](const Progress& progress) {
                 return FetchUserFile(checkpoint, name, path, progress);
               });
             });
  module.def("fetch_user_files",
             [](const std::string& checkpoint, const std::vector<std::string>& names,
                const std::string& directory, const std::string& how) {
               const FetchHow kind = how == "link"    ? FetchHow::kLink
                                     : how == "check" ? FetchHow::kCheck
                                                      : FetchHow::kCopy;
               Fetch([=](const Progress& progress) {
                 return FetchUserFiles(checkpoint, names, directory, kind, progress);
               });
             });
  module.def("load", &Load, nb::kw_only(), nb::arg("path"), nb::arg("prepare"), nb::arg("atomic"),
             nb::arg("tensors") = true);
}

}  // namespace cairn::python
