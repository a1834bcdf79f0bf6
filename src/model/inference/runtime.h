#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/inference.h>

namespace cairn {

/// What executes graphs: the interface between Cairn and the plugin that is linked with OpenVINO.
/// Both are built together; nothing throws across it.
class Runtime {
 public:
  struct Weight {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<std::uint64_t> shape;
    std::shared_ptr<std::byte> data;  // shared: the runtime keeps it as long as it computes with it
    std::uint64_t bytes = 0;
  };

  using Inputs = std::vector<std::pair<const TensorSignature*, const FeedTensor*>>;

  virtual ~Runtime() = default;

  /// The outputs in the order of `outputs`. May be called from many threads.
  virtual Result<std::vector<OwnedTensor>> Run(const Inputs& inputs,
                                               const std::vector<TensorSignature>& outputs) = 0;

  /// Makes ready for so many calls of Run at once with inputs of these shapes, so that the first
  /// ones take no longer than later ones. May be called from many threads.
  virtual Status Warm(const Inputs& inputs, std::size_t at_once) = 0;

  /// A runtime of the same graph with other weights, compiled anew from the graph in memory.
  /// Unimplemented when a weight is not found in the graph as it was read.
  virtual Result<std::unique_ptr<Runtime>> WithWeights(const std::vector<Weight>& weights) = 0;
};

/// The one symbol of the plugin. The version changes with the interface.
inline constexpr const char* kRuntimeSymbol = "cairn_runtime_v2";
using OpenRuntimeFn = bool (*)(const std::string& model_path, const InferenceOptions& options,
                               std::unique_ptr<Runtime>* out, std::string* error);

/// Loads the plugin once and opens the model with it.
Result<std::unique_ptr<Runtime>> OpenRuntime(const std::string& model_path,
                                             const InferenceOptions& options);

}  // namespace cairn
