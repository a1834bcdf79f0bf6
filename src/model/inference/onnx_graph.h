#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/inference.h>
#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// An ONNX model that is being cut down to an inference model. Owns its graph; the bytes of
/// external data belong to the SideFiles it was parsed with. For one thread.
class OnnxGraph {
 public:
  /// Corruption when the bytes are no model; Unimplemented for a model over ONNX's own 2 GB.
  static Result<std::unique_ptr<OnnxGraph>> Parse(std::span<const std::byte> model);
  virtual ~OnnxGraph() = default;

  /// Keeps what the targets need, with the feeds as boundary, in inference mode; see
  /// SaveInferenceModel. On failure the graph may be of no use.
  virtual Status Prune(const std::vector<std::string>& feeds,
                       const std::vector<std::string>& targets) = 0;

  virtual ModelSignature signature() const = 0;
  virtual std::uint64_t nodes() const = 0;
  virtual std::uint64_t pruned_nodes() const = 0;
  /// Weights that Prune dropped.
  virtual const std::vector<std::string>& left_out() const = 0;
  /// Weights that are statistics: the means and variances of batch normalisation.
  virtual std::set<std::string> statistics() const = 0;

  /// The weights that go into a file of their own, by name. Small integer constants (shapes, axes)
  /// and types that safetensors does not have stay in the graph, with their elements in it.
  virtual Result<std::vector<ForeignTensor>> Weights(SideFiles* files) = 0;
  /// The model with those weights as external data: name → (offset, bytes) in `location`.
  virtual Result<std::string> Serialize(
      const std::string& location,
      const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>& places) = 0;
};

}  // namespace cairn
