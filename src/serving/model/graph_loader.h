#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/inference.h>
#include <cairn/serving.h>

#include "base/thread_annotations.h"
#include "model/inference/runtime.h"
#include "serving/follower.h"
#include "serving/model/export_directory.h"
#include "serving/versions.h"

namespace cairn::serving {

/// The graph with the dense variables of one version.
class Graph final : public Dense {
 public:
  Graph(std::shared_ptr<Runtime> runtime, std::vector<Runtime::Weight> weights)
      : runtime_(std::move(runtime)), weights_(std::move(weights)) {}
  Runtime* runtime() const { return runtime_.get(); }
  const std::vector<Runtime::Weight>& weights() const { return weights_; }

 private:
  const std::shared_ptr<Runtime> runtime_;      // shared: without variables there is one for all
  const std::vector<Runtime::Weight> weights_;  // that came from the checkpoint
};

/// Runs an export's graph on a version: ids become rows, rows and feeds become targets.
class GraphRunner {
 public:
  /// `max_row_bytes`: as in ModelOptions.
  GraphRunner(const OpenExport& exported, const Versions* versions, std::uint64_t max_row_bytes);

  const ModelSignature& signature() const { return served_; }
  /// InvalidArgument names a feed that is missing, unknown, or not as the signature wants it.
  Result<std::vector<OwnedTensor>> Run(const Versions::Snapshot& snapshot,
                                       const std::map<std::string, FeedTensor>& feeds) const;

 private:
  struct Source {
    std::ptrdiff_t table = -1;  // index in the versions; -1: the feed itself
    std::uint32_t dim = 0;
  };
  ModelSignature graph_;         // what the graph takes …
  ModelSignature served_;        // … and what is asked for
  std::vector<Source> sources_;  // like inputs
  std::uint64_t max_row_bytes_;
};

/// Loads the dense variables of checkpoints into the graph, and runs the probes.
class GraphLoader final : public DenseLoader {
 public:
  /// `runner` is borrowed. `weights`: those of the export.
  GraphLoader(std::shared_ptr<Runtime> runtime, std::vector<Runtime::Weight> weights,
              std::map<std::string, std::string> variables, const GraphRunner* runner,
              std::vector<serving::Probe> probes, bool finite);

  Result<std::shared_ptr<const Dense>> Load(Store* store, OpenCheckpoint* checkpoint,
                                            const std::shared_ptr<const Dense>& before) override;
  Status Probe(const Versions::Snapshot& snapshot) override;

  std::vector<std::string> fixed_weights() const EXCLUDES(mu_);

 private:
  /// The stored variable of a weight, or null. MismatchError when there is one that does not fit.
  Result<const StoredTensor*> Find(const Runtime::Weight& weight, const TensorMap& stored) const;

  const std::shared_ptr<Runtime> runtime_;  // shared with graphs that have no variables
  const std::vector<Runtime::Weight> weights_;
  const std::map<std::string, std::string> variables_;
  const GraphRunner* const runner_;
  const std::vector<serving::Probe> probes_;
  const bool finite_;

  mutable Mutex mu_;
  std::vector<std::string> fixed_ GUARDED_BY(mu_);
};

}  // namespace cairn::serving
