#include "src/serving.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/serving.h>

#include "format/safetensors.h"
#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/signature.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename Fn>
auto Unlocked(Fn fn) {
  const WithoutGil released;
  return fn();
}

nb::object FromVersion(const serving::VersionInfo& info) {
  nb::dict out;
  out["step"] = info.step;
  out["id"] = info.id;
  out["committed"] = static_cast<double>(info.committed_nanos) / 1e9;
  out["rows"] = info.rows;
  return out;
}

/// Feeds: tensors as _native describes them. The caller keeps their memory.
std::map<std::string, FeedTensor> ToFeeds(nb::handle feeds) {
  std::map<std::string, FeedTensor> inputs;
  for (const nb::handle feed : feeds) {
    Tensor tensor = ToTensor(feed);
    inputs[tensor.name] = {tensor.dtype, std::move(tensor.shape), tensor.data};
  }
  return inputs;
}

nb::object FromOutputs(Result<std::vector<OwnedTensor>> outputs) {
  nb::list out;
  for (OwnedTensor& tensor : ValueOrRaise(std::move(outputs))) {
    out.append(FromOwned(std::move(tensor)));
  }
  return out;
}

nb::object Export(const std::string& directory, const nb::bytes& model,
                  const std::string& model_path, const std::vector<std::string>& feed_names,
                  const std::vector<std::string>& target_names, const nb::dict& tables,
                  const std::map<std::string, std::string>& variables, bool increments) {
  serving::ExportRequest request;
  request.directory = directory;
  request.model.assign(model.c_str(), model.size());
  request.model_path = model_path;
  request.feed_names = feed_names;
  request.target_names = target_names;
  for (const auto& [input, described] : tables) {
    const auto [name, dim, dtype, value] =
        nb::cast<std::tuple<std::string, std::uint32_t, std::string, float>>(described);
    const auto known = DTypeFromName(dtype);
    if (!known) Raise(InvalidArgumentError("table \"" + name + "\": unknown dtype"));
    request.tables[nb::cast<std::string>(input)] = {name, dim, *known, value};
  }
  request.variables = variables;
  request.increments = increments;
  const serving::Exported exported =
      ValueOrRaise(Unlocked([&] { return serving::Export(request); }));
  nb::dict out;
  out["path"] = exported.path;
  out["version"] = exported.version;
  out["inputs"] = FromSignature(exported.model.signature.inputs);
  out["outputs"] = FromSignature(exported.model.signature.outputs);
  out["weights"] = exported.model.weights;
  return out;
}

/// What happened to updates, until somebody asks. The follower's thread never waits for Python.
class Events {
 public:
  void Add(const serving::UpdateEvent& event) {
    const std::lock_guard lock(mutex_);
    if (events_.size() == kMost) events_.pop_front();
    events_.push_back(event);
  }
  std::deque<serving::UpdateEvent> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  static constexpr std::size_t kMost = 10'000;
  std::mutex mutex_;
  std::deque<serving::UpdateEvent> events_;
};

const char* KindName(serving::UpdateEvent::Kind kind) {
  switch (kind) {
    case serving::UpdateEvent::Kind::kApplied:
      return "applied";
    case serving::UpdateEvent::Kind::kRefused:
      return "refused";
    case serving::UpdateEvent::Kind::kPassedOver:
      return "passed over";
    case serving::UpdateEvent::Kind::kUnreachable:
      return "unreachable";
    case serving::UpdateEvent::Kind::kAbandoned:
      return "abandoned";
  }
  return "";
}

struct Served {
  std::shared_ptr<Events> events;  // shared with the callback
  std::unique_ptr<serving::Model> model;
};

/// A view keeps its model.
class PyView {
 public:
  PyView(std::shared_ptr<Served> served, std::unique_ptr<serving::Model::View> view)
      : served_(std::move(served)), view_(std::move(view)) {}
  nb::object Version() const { return FromVersion(view_->version()); }
  void Lookup(const std::string& table, const Ids& ids, OutFloats out) const {
    RaiseIfError(Unlocked(
        [&] { return view_->Lookup(table, {ids.data(), ids.size()}, {out.data(), out.size()}); }));
  }
  nb::object Predict(nb::handle feeds) const {
    const auto inputs = ToFeeds(feeds);
    return FromOutputs(Unlocked([&] { return view_->Predict(inputs); }));
  }

 private:
  const std::shared_ptr<Served> served_;  // shared: views and the model end in any order
  const std::unique_ptr<serving::Model::View> view_;
};

class PyServed {
 public:
  explicit PyServed(std::shared_ptr<Served> served) : served_(std::move(served)) {}
  ~PyServed() { Close(); }

  static std::unique_ptr<PyServed> Open(const nb::dict& settings) {
    serving::ModelOptions options;
    options.export_dir = nb::cast<std::string>(settings["export_dir"]);
    options.repository = nb::cast<std::string>(settings["repository"]);
    options.job = nb::cast<std::string>(settings["job"]);
    options.inference.plugin = nb::cast<std::string>(settings["plugin"]);
    options.inference.threads = nb::cast<int>(settings["threads"]);
    options.keep_versions = nb::cast<std::size_t>(settings["keep_versions"]);
    options.poll = std::chrono::nanoseconds(
        static_cast<std::int64_t>(nb::cast<double>(settings["poll_secs"]) * 1e9));
    options.check_finite = nb::cast<bool>(settings["check_finite"]);
    options.cpu_share = nb::cast<double>(settings["cpu_share"]);
    options.follow = nb::cast<bool>(settings["follow"]);
    options.require_version = nb::cast<bool>(settings["require_version"]);
    for (const nb::handle each : nb::cast<nb::list>(settings["probes"])) {
      const auto [feeds, output, low, high] =
          nb::cast<std::tuple<nb::object, std::string, double, double>>(each);
      serving::Probe probe;
      probe.output = output;
      probe.min = low;
      probe.max = high;
      for (const nb::handle feed : feeds) {
        const Tensor tensor = ToTensor(feed);
        const std::uint64_t bytes = ValueOrRaise(TensorBytes(tensor.dtype, tensor.shape));
        probe.feeds[tensor.name] = {
            tensor.dtype, tensor.shape,
            std::string(static_cast<const char*>(tensor.data), static_cast<std::size_t>(bytes))};
      }
      options.probes.push_back(std::move(probe));
    }
    auto served = std::make_shared<Served>();
    served->events = std::make_shared<Events>();
    options.on_update = [events = served->events](const serving::UpdateEvent& event) {
      events->Add(event);
    };
    served->model = ValueOrRaise(Unlocked([&] { return serving::Model::Open(options); }));
    return std::make_unique<PyServed>(std::move(served));
  }

  void Lookup(const std::string& table, const Ids& ids, OutFloats out) const {
    const auto served = living();
    RaiseIfError(Unlocked([&] {
      return served->model->Lookup(table, {ids.data(), ids.size()}, {out.data(), out.size()});
    }));
  }
  nb::object Predict(nb::handle feeds) const {
    const auto served = living();
    const auto inputs = ToFeeds(feeds);
    return FromOutputs(Unlocked([&] { return served->model->Predict(inputs); }));
  }
  nb::object Version() const { return FromVersion(ValueOrRaise(model().Version())); }
  std::unique_ptr<PyView> Take() const {
    return std::make_unique<PyView>(served_, ValueOrRaise(model().Take()));
  }
  void Rollback(std::size_t n) const { RaiseIfError(model().Rollback(n)); }
  void Pin(const std::string& id) const { RaiseIfError(model().Pin(id)); }
  void PinStep(std::int64_t step) const { RaiseIfError(model().PinStep(step)); }
  void Resume() const { model().Resume(); }
  bool Held() const { return model().held(); }
  nb::object Versions() const {
    nb::list out;
    for (const serving::VersionInfo& info : model().Versions()) out.append(FromVersion(info));
    return out;
  }
  void Notify() const { model().Notify(); }
  void Update() const {
    const auto served = living();
    RaiseIfError(Unlocked([&] { return served->model->Update(); }));
  }
  nb::object TakeEvents() const {
    nb::list out;
    for (const serving::UpdateEvent& event : living()->events->Take()) {
      nb::dict one;
      one["kind"] = KindName(event.kind);
      one["id"] = event.id;
      one["step"] = event.step;
      one["full"] = event.full;
      one["rows"] = event.rows;
      one["changed"] = event.changed;
      one["seconds"] = event.seconds;
      one["message"] = event.message;
      out.append(one);
    }
    return out;
  }
  nb::object Stats() const {
    const serving::ModelStats stats = model().stats();
    nb::dict out;
    out["updates"] = stats.updates;
    out["refused"] = stats.refused;
    out["rows_applied"] = stats.rows_applied;
    out["last_update_seconds"] = stats.last_update_seconds;
    out["update_seconds"] = stats.update_seconds;
    out["newest_step"] = stats.newest_step;
    out["newest_committed"] = static_cast<double>(stats.newest_committed_nanos) / 1e9;
    out["reachable"] = stats.reachable;
    out["last_problem"] = stats.last_problem;
    out["table_bytes"] = stats.table_bytes;
    return out;
  }
  nb::object Inputs() const { return FromSignature(model().signature().inputs); }
  nb::object Outputs() const { return FromSignature(model().signature().outputs); }
  nb::object Tables() const {
    nb::dict out;
    for (const auto& table : model().tables()) out[table.name.c_str()] = table.dim;
    return out;
  }
  std::vector<std::string> FixedWeights() const { return model().fixed_weights(); }
  /// Ends following. Views that are left keep what they have.
  void Close() {
    auto last = std::exchange(served_, nullptr);
    if (last == nullptr) return;
    const WithoutGil released;  // the follower's thread is waited for
    last->model->StopFollowing();
    last = nullptr;
  }

 private:
  /// Kept by whoever lets other threads run, one of which may close the model.
  std::shared_ptr<Served> living() const {
    if (served_ == nullptr) Raise(FailedPreconditionError("the model was closed"));
    return served_;
  }
  serving::Model& model() const { return *living()->model; }
  std::shared_ptr<Served> served_;  // shared with views
};

}  // namespace

void BindServing(nb::module_& module) {
  module.def("export_model", &Export, nb::kw_only(), nb::arg("directory"), nb::arg("model"),
             nb::arg("model_path"), nb::arg("feed_names"), nb::arg("target_names"),
             nb::arg("tables"), nb::arg("variables"), nb::arg("increments"));
  nb::class_<PyView>(module, "ServedView")
      .def("version", &PyView::Version)
      .def("lookup", &PyView::Lookup)
      .def("predict", &PyView::Predict);
  nb::class_<PyServed>(module, "Served")
      .def_static("open", &PyServed::Open)
      .def("lookup", &PyServed::Lookup)
      .def("predict", &PyServed::Predict)
      .def("version", &PyServed::Version)
      .def("view", &PyServed::Take)
      .def("rollback", &PyServed::Rollback)
      .def("pin", &PyServed::Pin)
      .def("pin_step", &PyServed::PinStep)
      .def("resume", &PyServed::Resume)
      .def("held", &PyServed::Held)
      .def("versions", &PyServed::Versions)
      .def("notify", &PyServed::Notify)
      .def("update", &PyServed::Update)
      .def("events", &PyServed::TakeEvents)
      .def("stats", &PyServed::Stats)
      .def("close", &PyServed::Close)
      .def_prop_ro("inputs", &PyServed::Inputs)
      .def_prop_ro("outputs", &PyServed::Outputs)
      .def_prop_ro("tables", &PyServed::Tables)
      .def_prop_ro("fixed_weights", &PyServed::FixedWeights);
}

}  // namespace cairn::python
