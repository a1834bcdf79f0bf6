#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/dtype.h>
#include <cairn/status.h>
#include <cairn/transfer.h>

/// Models for inference: an ONNX graph cut down to what its targets need, its weights in
/// safetensors, and a runtime for it.
///
///   cairn::SaveInferenceModel({.directory = "export", .model = bytes, .feed_names = {"x"},
///                              .target_names = {"probability"}}).value();
///   auto model = cairn::InferenceModel::Load("export").value();
///   auto outputs = model->Run({{"x", {DType::kF32, {8, 13}, data}}}).value();
///
/// In the library cairn::predict of the installed package; running wants OpenVINO (a plugin that is
/// loaded at the first Load).
namespace cairn {

struct TensorSignature {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // -1: any size

  friend bool operator==(const TensorSignature&, const TensorSignature&) = default;
};
struct ModelSignature {
  std::vector<TensorSignature> inputs;
  std::vector<TensorSignature> outputs;

  friend bool operator==(const ModelSignature&, const ModelSignature&) = default;
};

struct SaveInferenceRequest {
  std::string directory;   // for this save alone; made when missing
  std::string model;       // a serialized ONNX ModelProto …
  std::string model_path;  // … or the file of one, also beside which external data is: path or URL
  std::vector<std::string> feed_names;    // the inputs; inner tensors may be named too
  std::vector<std::string> target_names;  // the outputs
  /// Weights that are no parameters: recorded as persistables, as the statistics of batch
  /// normalisation are, so that LoadParams passes them over. Unknown names do not matter.
  std::vector<std::string> persistables;
  TransferControl control;
};

struct SavedInferenceModel {
  CheckpointInfo info;
  ModelSignature signature;
  std::string model_path;             // of model.onnx
  std::uint64_t nodes = 0;            // that were kept …
  std::uint64_t pruned_nodes = 0;     // … and were not
  std::vector<std::string> weights;   // in params.safetensors, sorted
  std::vector<std::string> left_out;  // weights that the targets do not need
  std::uint64_t bytes = 0;            // of the weights
};

/// Cuts the graph backwards from the targets with the feeds as its boundary, puts dropout and batch
/// normalisation into inference mode, and commits model.onnx, params.safetensors (which model.onnx
/// refers to: one copy of the weights) and the signature. InvalidArgument names a target that is
/// not there, a feed that a target needs and nobody named, a feed that nothing needs, an operator
/// that exists only in training.
Result<SavedInferenceModel> SaveInferenceModel(const SaveInferenceRequest& request);

/// An input: borrowed, contiguous, row-major.
struct FeedTensor {
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  const void* data = nullptr;
};

struct InferenceOptions {
  std::string
      plugin;       // path of the runtime's plugin; "": CAIRN_PREDICT_PLUGIN, or where it was built
  int threads = 0;  // of one Run; 0: the runtime's choice
};

/// A loaded model. Run may be called from many threads at once; Reload beside it: calls that have
/// begun finish with the weights they began with. A failed Reload leaves the model as it was.
class InferenceModel {
 public:
  /// Verifies every checksum, then compiles the graph. Unavailable says what to install when the
  /// runtime is missing.
  static Result<std::unique_ptr<InferenceModel>> Load(const std::string& directory,
                                                      const InferenceOptions& options = {});
  virtual ~InferenceModel() = default;

  virtual const ModelSignature& signature() const = 0;
  virtual CheckpointInfo info() const = 0;

  /// The targets, in the order of the signature. InvalidArgument names a feed that is missing, not
  /// known, or of a wrong dtype or shape.
  virtual Result<std::vector<OwnedTensor>> Run(const std::map<std::string, FeedTensor>& feeds) = 0;

  /// Takes the weights of the newest save in the directory (another one when it is named). Its
  /// graph must be the same: FailedPrecondition otherwise. The graph is not read again.
  virtual Status Reload(const std::string& directory = "") = 0;

  /// How often the graph was read: once, unless the runtime had folded weights away as it read and
  /// a reload had to begin anew.
  virtual std::uint64_t graph_reads() const = 0;
};

}  // namespace cairn
