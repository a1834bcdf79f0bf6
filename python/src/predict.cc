// The module _predict: inference models. Apart from _native, because it is linked with libonnx.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/inference.h>

#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/serving.h"
#include "src/signature.h"
#include "src/waiting.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

nb::object Save(const std::string& directory, const nb::bytes& model, const std::string& model_path,
                const std::vector<std::string>& feed_names,
                const std::vector<std::string>& target_names,
                const std::vector<std::string>& persistables) {
  SaveInferenceRequest request;
  request.directory = directory;
  request.model.assign(model.c_str(), model.size());
  request.model_path = model_path;
  request.feed_names = feed_names;
  request.target_names = target_names;
  request.persistables = persistables;
  Interrupts interrupts;
  request.control.progress = [&](std::uint64_t, std::uint64_t) { interrupts.Poll(); };
  request.control.cancelled = [&] { return interrupts.interrupted(); };
  std::optional<Result<SavedInferenceModel>> result;
  {
    const WithoutGil released;
    result.emplace(SaveInferenceModel(request));
  }
  interrupts.Rethrow();
  const SavedInferenceModel saved = ValueOrRaise(*std::move(result));
  nb::dict out;
  out["info"] = FromInfo(saved.info);
  out["inputs"] = FromSignature(saved.signature.inputs);
  out["outputs"] = FromSignature(saved.signature.outputs);
  out["model_path"] = saved.model_path;
  out["nodes"] = saved.nodes;
  out["pruned_nodes"] = saved.pruned_nodes;
  out["weights"] = saved.weights;
  out["left_out"] = saved.left_out;
  out["bytes"] = saved.bytes;
  return out;
}

class PyModel {
 public:
  explicit PyModel(std::shared_ptr<InferenceModel> model) : model_(std::move(model)) {}

  static std::unique_ptr<PyModel> Load(const std::string& directory, const std::string& plugin,
                                       int threads) {
    InferenceOptions options;
    options.plugin = plugin;
    options.threads = threads;
    std::optional<Result<std::unique_ptr<InferenceModel>>> model;
    {
      const WithoutGil released;
      model.emplace(InferenceModel::Load(directory, options));
    }
    return std::make_unique<PyModel>(ValueOrRaise(*std::move(model)));
  }

  /// Feeds: tensors as _native describes them. The caller keeps their memory.
  nb::object Run(nb::handle feeds) {
    std::map<std::string, FeedTensor> inputs;
    for (const nb::handle feed : feeds) {
      Tensor tensor = ToTensor(feed);
      inputs[tensor.name] = {tensor.dtype, std::move(tensor.shape), tensor.data};
    }
    std::optional<Result<std::vector<OwnedTensor>>> outputs;
    {
      const WithoutGil released;
      outputs.emplace(model_->Run(inputs));
    }
    nb::list out;
    for (OwnedTensor& tensor : ValueOrRaise(*std::move(outputs))) {
      out.append(FromOwned(std::move(tensor)));
    }
    return out;
  }

  void Reload(const std::string& directory) {
    std::optional<Status> status;
    {
      const WithoutGil released;
      status = model_->Reload(directory);
    }
    RaiseIfError(*status);
  }

  nb::object inputs() const { return FromSignature(model_->signature().inputs); }
  nb::object outputs() const { return FromSignature(model_->signature().outputs); }
  nb::object info() const { return FromInfo(model_->info()); }
  std::uint64_t graph_reads() const { return model_->graph_reads(); }

 private:
  // Shared: the interpreter may drop this object in the middle of another thread's call.
  std::shared_ptr<InferenceModel> model_;
};

}  // namespace
}  // namespace cairn::python

NB_MODULE(_predict, module) {
  using namespace cairn::python;  // NOLINT: the module's own names
  nb::set_leak_warnings(false);
  module.def("save", &Save, nb::kw_only(), nb::arg("directory"), nb::arg("model"),
             nb::arg("model_path"), nb::arg("feed_names"), nb::arg("target_names"),
             nb::arg("persistables"));
  nb::class_<PyModel>(module, "Model")
      .def_static("load", &PyModel::Load, nb::arg("directory"), nb::arg("plugin"),
                  nb::arg("threads"))
      .def("run", &PyModel::Run)
      .def("reload", &PyModel::Reload)
      .def_prop_ro("inputs", &PyModel::inputs)
      .def_prop_ro("outputs", &PyModel::outputs)
      .def_prop_ro("info", &PyModel::info)
      .def_prop_ro("graph_reads", &PyModel::graph_reads);
  BindServing(module);
}
