// Cutting graphs, and running them against OpenVINO called directly. Built where libonnx and
// OpenVINO are.

#include <cairn/inference.h>

#include <cstring>
#include <fstream>
#include <openvino/openvino.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/onnx_models.h"
#include "model/inference/onnx_graph.h"

#ifndef CAIRN_PLUGIN
#define CAIRN_PLUGIN ""
#endif

namespace cairn::bench {
namespace {

constexpr std::uint64_t kWidth = 256;
constexpr int kRuns = 500;

/// OpenVINO as its own samples call it, with the same options.
class Direct {
 public:
  explicit Direct(const std::string& path)
      : compiled_(
            core_.compile_model(path, "CPU", ov::hint::inference_precision(ov::element::f32),
                                ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY))),
        request_(compiled_.create_infer_request()) {}

  void Run(std::vector<float>* x, std::uint64_t rows, std::vector<float>* y) {
    request_.set_input_tensor(ov::Tensor(ov::element::f32, {rows, kWidth}, x->data()));
    request_.infer();
    const ov::Tensor out = request_.get_output_tensor();
    y->resize(out.get_size());
    std::memcpy(y->data(), out.data(), out.get_byte_size());
  }

 private:
  ov::Core core_;
  ov::CompiledModel compiled_;
  ov::InferRequest request_;
};

}  // namespace

Status RunPrune(const Options& options) {
  constexpr std::size_t kNodes = 20'000;
  const std::string model = ChainModel(kNodes);
  const std::vector<Contender> contenders = {
      {"prune", model.size(), [&](Stopwatch* watch) -> Status {
         ASSIGN_OR_RETURN(const auto graph, OnnxGraph::Parse(std::as_bytes(std::span(model))));
         watch->Start();
         RETURN_IF_ERROR(graph->Prune({"x"}, {"y"}));
         watch->Stop();
         if (graph->pruned_nodes() != kNodes / 3) return InternalError("cut at the wrong place");
         return Status::Ok();
       }}};
  return RunRounds(options, "prune", [] { return Status::Ok(); }, contenders);
}

Status RunPredict(const Options& options) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "predict"));
  ASSIGN_OR_RETURN(const SavedInferenceModel saved,
                   SaveInferenceModel({.directory = directory + "/model",
                                       .model = LayersModel(3, kWidth),
                                       .feed_names = {"x"},
                                       .target_names = {"y"}}));
  ASSIGN_OR_RETURN(const auto model,
                   InferenceModel::Load(directory + "/model", {.plugin = CAIRN_PLUGIN}));
  Direct direct(saved.model_path);
  const std::uint64_t rows = std::stoull(options.variant.empty() ? "1" : options.variant);
  std::vector<float> x(rows * kWidth, 0.5F);
  std::vector<float> y;
  const std::vector<Contender> contenders = {
      {"openvino", kRuns,
       [&](Stopwatch* watch) {
         watch->Start();
         for (int i = 0; i < kRuns; ++i) direct.Run(&x, rows, &y);
         watch->Stop();
         return Status::Ok();
       }},
      {"cairn", kRuns,
       [&](Stopwatch* watch) -> Status {
         watch->Start();
         for (int i = 0; i < kRuns; ++i) {
           ASSIGN_OR_RETURN(const auto out,
                            model->Run({{"x", {DType::kF32, {rows, kWidth}, x.data()}}}));
           if (i == 0 && !y.empty() &&
               std::memcmp(out[0].data.get(), y.data(), out[0].bytes) != 0) {
             return InternalError("the results differ");
           }
         }
         watch->Stop();
         return Status::Ok();
       }},
  };
  RETURN_IF_ERROR(RunRounds(
      options, "predict/" + std::to_string(rows), [] { return Status::Ok(); }, contenders));
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
