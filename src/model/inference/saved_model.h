#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/inference.h>

#include "base/checksum.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_path.h"
#include "model/inference/runtime.h"

namespace cairn {

/// A saved inference model whose files are open and were compared with their checksums.
struct OpenSave {
  PlacedCheckpoint placed;
  std::unique_ptr<OpenCheckpoint> files;
  ModelSignature signature;
  Hash128 graph;  // of model.onnx
  CheckpointInfo info;
};

/// `path`: a directory of saves (its latest), or one checkpoint's directory. `id`, unless null: of
/// the save that was tried, also when it failed.
Result<OpenSave> OpenAndVerify(const std::string& path, std::string* id = nullptr);

/// Of the save that OpenAndVerify would try now; "" when there is none.
std::string NewestSave(const std::string& path);

/// The graph and its weights as files of this machine, which is what runtimes read: those of a
/// local save themselves, of any other a copy in a temporary directory, which goes with this
/// object. A runtime that is open does not need it any more.
class LocalGraph {
 public:
  static Result<LocalGraph> Of(const OpenSave& save);
  ~LocalGraph();
  LocalGraph(LocalGraph&& other) noexcept;
  LocalGraph& operator=(LocalGraph&&) = delete;

  /// Of model.onnx.
  const std::string& path() const { return path_; }

 private:
  LocalGraph() = default;

  std::string path_;
  std::string copy_;  // the temporary directory; "": none
};

/// All weights of params.safetensors.
Result<std::vector<Runtime::Weight>> ReadWeights(const OpenSave& save);

/// InvalidArgument, naming the feed, when it is not as the signature wants it.
Status CheckFeed(const TensorSignature& wanted, const FeedTensor& feed);

/// InvalidArgument, naming a feed that the signature does not have.
Status UnknownFeed(const ModelSignature& signature, const std::map<std::string, FeedTensor>& feeds);

}  // namespace cairn
