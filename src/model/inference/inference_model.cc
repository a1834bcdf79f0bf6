#include <filesystem>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <cairn/inference.h>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "format/json.h"
#include "model/inference/runtime.h"
#include "model/inference/saved_model.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

/// A save that takes the place of the one that is being read removes its files: what failed then is
/// tried again with the newer one. `attempt` says which save it tried.
template <typename Attempt>
auto WithNewestSave(const std::string& path, const Attempt& attempt) {
  while (true) {
    std::string tried;
    auto outcome = attempt(&tried);
    if (outcome.ok() || tried.empty() || NewestSave(path) == tried) return outcome;
  }
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
    if (feeds.size() != inputs.size()) return UnknownFeed(signature_, feeds);
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
    const Status status =
        WithNewestSave(path, [&](std::string* id) { return ReloadFrom(path, id); });
    return status.ok() ? status : status.WithContext("reload from \"" + path + "\"");
  }

 private:
  Status ReloadFrom(const std::string& path, std::string* id) {
    ASSIGN_OR_RETURN(OpenSave save, OpenAndVerify(path, id));
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
      ASSIGN_OR_RETURN(const LocalGraph graph, LocalGraph::Of(save));
      fresh = OpenRuntime(graph.path(), options_);
    }
    if (!fresh.ok()) return fresh.status();
    const std::unique_lock lock(mutex_);
    runtime_ = *std::move(fresh);
    info_ = std::move(save.info);
    graph_reads_ += again ? 1 : 0;
    return Status::Ok();
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
                                                  const InferenceOptions& options,
                                                  std::string* id) {
  ASSIGN_OR_RETURN(OpenSave save, OpenAndVerify(directory, id));
  ASSIGN_OR_RETURN(const LocalGraph graph, LocalGraph::Of(save));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, OpenRuntime(graph.path(), options));
  return std::unique_ptr<InferenceModel>(
      std::make_unique<Model>(directory, std::move(save), options, std::move(runtime)));
}

/// What is reloaded later is what was loaded, also when the process works elsewhere then.
std::string WholePath(const std::string& directory) {
  if (IsUrl(directory)) return directory;
  std::error_code error;
  const auto whole = std::filesystem::absolute(directory, error);
  return error ? directory : whole.string();
}

}  // namespace

Result<std::unique_ptr<InferenceModel>> InferenceModel::Load(const std::string& given,
                                                             const InferenceOptions& options) {
  RETURN_IF_ERROR(CheckPath(given));
  const std::string directory = WholePath(given);
  auto model =
      WithNewestSave(directory, [&](std::string* id) { return LoadModel(directory, options, id); });
  if (!model.ok()) {
    return model.status().WithContext("load inference model \"" + given + "\"");
  }
  return model;
}

}  // namespace cairn
