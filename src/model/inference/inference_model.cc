#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <cairn/inference.h>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/inference/runtime.h"
#include "model/inference/signature.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSignatureBytes = 64u << 20;

/// A saved model whose files are open and were compared with their checksums.
struct OpenSave {
  PlacedCheckpoint placed;
  std::unique_ptr<OpenCheckpoint> files;
  ModelSignature signature;
  Hash128 graph;  // of model.onnx
  CheckpointInfo info;
};

/// A directory of saves (its latest), or one checkpoint's directory.
Result<PlacedCheckpoint> Place(const std::string& path) {
  std::error_code unknown;
  if (!fs::exists(fs::path(path) / names::kRepository, unknown)) return ReadCheckpointAt(path);
  PlacedCheckpoint placed;
  ASSIGN_OR_RETURN(placed.env, ExistingDirectory(path));
  RepositoryReader reader(placed.env.store.get());
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  const Checkpoint* latest = view.Latest();
  if (latest == nullptr) {
    if (!view.damaged.empty()) return view.damaged.front().status;
    return NotFoundError("there is no complete save yet");
  }
  placed.checkpoint = *latest;
  return placed;
}

Result<OpenSave> OpenAndVerify(const std::string& path) {
  OpenSave save;
  ASSIGN_OR_RETURN(save.placed, Place(path));
  Store* store = save.placed.env.store.get();
  const Checkpoint& checkpoint = save.placed.checkpoint;
  ASSIGN_OR_RETURN(save.files,
                   OpenCheckpoint::Open(store, checkpoint.directory, checkpoint.manifest));
  const std::ptrdiff_t model = save.files->FindFile(kInferenceModel);
  if (model < 0 || save.files->FindFile(kInferenceSignature) < 0) {
    return InvalidArgumentError(
        "this is no inference model (it has no model.onnx); save_inference_model writes one");
  }
  std::vector<VerifyProblem> problems;
  RETURN_IF_ERROR(VerifyFiles(store, *save.files, {}, &problems).status());
  if (!problems.empty()) return CorruptionError(problems.front().what);
  ASSIGN_OR_RETURN(const std::string signature,
                   save.files->ReadWhole(kInferenceSignature, kMaxSignatureBytes));
  ASSIGN_OR_RETURN(save.signature, DecodeSignature(signature));
  save.graph = save.files->files()[static_cast<std::size_t>(model)].entry->hash.whole;
  save.info = MakeInfo(*store, checkpoint);
  return save;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string out;
  for (const std::int64_t dim : shape) {
    out += (out.empty() ? "" : ",") + (dim < 0 ? std::string("?") : std::to_string(dim));
  }
  return "[" + out + "]";
}

Status CheckFeed(const TensorSignature& wanted, const FeedTensor& feed) {
  bool fits = feed.dtype == wanted.dtype && feed.shape.size() == wanted.shape.size();
  for (std::size_t d = 0; fits && d < wanted.shape.size(); ++d) {
    fits = wanted.shape[d] < 0 || feed.shape[d] == static_cast<std::uint64_t>(wanted.shape[d]);
  }
  const auto bytes = TensorBytes(feed.dtype, feed.shape);
  if (!bytes.ok()) return bytes.status().WithContext("feed " + QuoteForMessage(wanted.name));
  if (fits && *bytes > 0 && feed.data == nullptr) {
    return InvalidArgumentError("the feed " + QuoteForMessage(wanted.name) + " has no memory");
  }
  if (fits) return Status::Ok();
  return InvalidArgumentError(fmt::format("the feed {} is {} [{}]; the model wants {} {}",
                                          QuoteForMessage(wanted.name), DTypeName(feed.dtype),
                                          EncodeDims(feed.shape), DTypeName(wanted.dtype),
                                          ShapeText(wanted.shape)));
}

class Model final : public InferenceModel {
 public:
  Model(std::string directory, OpenSave save, InferenceOptions options,
        std::unique_ptr<Runtime> runtime)
      : directory_(std::move(directory)),
        options_(std::move(options)),
        signature_(std::move(save.signature)),
        graph_(save.graph),
        info_(std::move(save.info)),
        runtime_(std::move(runtime)) {}

  const ModelSignature& signature() const override { return signature_; }

  CheckpointInfo info() const override {
    const std::shared_lock lock(mutex_);
    return info_;
  }

  std::uint64_t graph_reads() const override {
    const std::shared_lock lock(mutex_);
    return graph_reads_;
  }

  Result<std::vector<OwnedTensor>> Run(const std::map<std::string, FeedTensor>& feeds) override {
    std::vector<std::pair<const TensorSignature*, const FeedTensor*>> inputs;
    for (const TensorSignature& wanted : signature_.inputs) {
      const auto feed = feeds.find(wanted.name);
      if (feed == feeds.end()) {
        return InvalidArgumentError("the feed " + QuoteForMessage(wanted.name) + " is missing");
      }
      RETURN_IF_ERROR(CheckFeed(wanted, feed->second));
      inputs.emplace_back(&wanted, &feed->second);
    }
    if (feeds.size() != inputs.size()) return UnknownFeed(feeds);
    std::shared_ptr<Runtime> runtime;
    {
      const std::shared_lock lock(mutex_);
      runtime = runtime_;
    }
    return runtime->Run(inputs, signature_.outputs);
  }

  Status Reload(const std::string& directory) override {
    const std::lock_guard reloading(reloading_);
    const std::string& path = directory.empty() ? directory_ : directory;
    const Status status = ReloadFrom(path);
    return status.ok() ? status : status.WithContext("reload from \"" + path + "\"");
  }

 private:
  Status UnknownFeed(const std::map<std::string, FeedTensor>& feeds) const {
    for (const auto& [name, feed] : feeds) {
      bool known = false;
      for (const TensorSignature& wanted : signature_.inputs) known |= wanted.name == name;
      if (known) continue;
      std::string names;
      for (const TensorSignature& wanted : signature_.inputs) {
        names += (names.empty() ? "" : ", ") + wanted.name;
      }
      return InvalidArgumentError("the model has no feed " + QuoteForMessage(name) +
                                  "; its feeds are " + names);
    }
    return InternalError("a feed is there twice");
  }

  Status ReloadFrom(const std::string& path) {
    ASSIGN_OR_RETURN(OpenSave save, OpenAndVerify(path));
    // Weights of other sizes stand at other places of the file, which the graph names; so equal
    // bytes mean the same graph with weights of the same shapes.
    if (save.graph != graph_) {
      return FailedPreconditionError("its graph is another one; load it with load_inference_model");
    }
    ASSIGN_OR_RETURN(const std::vector<Runtime::Weight> weights, ReadWeights(save));
    std::shared_ptr<Runtime> current;
    {
      const std::shared_lock lock(mutex_);
      current = runtime_;
    }
    auto fresh = current->WithWeights(weights);
    const bool again = fresh.status().Is(Code::kUnimplemented);
    if (again) {
      // The runtime folded a weight into something else while reading: read the same graph again.
      fresh = OpenRuntime(save.info.path + "/" + std::string(kInferenceModel), options_);
    }
    if (!fresh.ok()) return fresh.status();
    const std::unique_lock lock(mutex_);
    runtime_ = *std::move(fresh);
    info_ = std::move(save.info);
    graph_reads_ += again ? 1 : 0;
    return Status::Ok();
  }

  static Result<std::vector<Runtime::Weight>> ReadWeights(const OpenSave& save) {
    RestoreRequest request;
    request.allocate = true;
    ASSIGN_OR_RETURN(Restored restored,
                     RestoreCheckpoint(save.placed.env.store.get(), save.files.get(), request,
                                       names::Participant("rank", 0), {}));
    std::vector<Runtime::Weight> weights;
    for (OwnedTensor& tensor : restored.tensors) {
      weights.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
                         std::move(tensor.data), tensor.bytes});
    }
    return weights;
  }

  const std::string directory_;
  const InferenceOptions options_;
  const ModelSignature signature_;
  const Hash128 graph_;
  std::mutex reloading_;  // one Reload at a time
  mutable std::shared_mutex mutex_;
  CheckpointInfo info_;               // guarded by mutex_
  std::uint64_t graph_reads_ = 1;     // guarded by mutex_
  std::shared_ptr<Runtime> runtime_;  // guarded by mutex_; shared: runs that began keep theirs
};

Result<std::unique_ptr<InferenceModel>> LoadModel(const std::string& directory,
                                                  const InferenceOptions& options) {
  ASSIGN_OR_RETURN(OpenSave save, OpenAndVerify(directory));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                   OpenRuntime(save.info.path + "/" + std::string(kInferenceModel), options));
  return std::unique_ptr<InferenceModel>(
      std::make_unique<Model>(directory, std::move(save), options, std::move(runtime)));
}

}  // namespace

Result<std::unique_ptr<InferenceModel>> InferenceModel::Load(const std::string& directory,
                                                             const InferenceOptions& options) {
  RETURN_IF_ERROR(CheckPath(directory));
  auto model = LoadModel(directory, options);
  if (!model.ok()) {
    return model.status().WithContext("load inference model \"" + directory + "\"");
  }
  return model;
}

}  // namespace cairn
