#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
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
  /// Makes a runtime that nobody has asked yet ready for what was asked last: its shapes, and as
  /// many at once as there were since the last time. Before anybody asked: one of size 1.
  Status Warm(Runtime* runtime) const;

 private:
  /// What was asked of the graph, for Warm.
  class Asked {
   public:
    void Begin(const Runtime::Inputs& inputs);
    void End() { running_.fetch_sub(1, std::memory_order_relaxed); }
    /// How many at once since the last call, and the shapes of the last one; no shapes: none yet.
    std::pair<std::size_t, std::vector<std::vector<std::uint64_t>>> Take();

   private:
    std::atomic<std::size_t> running_{0};
    std::atomic<std::size_t> most_{0};
    std::mutex mutex_;  // never waited for by those who ask
    std::vector<std::vector<std::uint64_t>> shapes_;
  };

  struct Source {
    std::ptrdiff_t table = -1;  // index in the versions; -1: the feed itself
    std::uint32_t dim = 0;
  };
  ModelSignature graph_;         // what the graph takes …
  ModelSignature served_;        // … and what is asked for
  std::vector<Source> sources_;  // like inputs
  std::uint64_t max_row_bytes_;
  mutable Asked asked_;
};

/// Loads the dense variables of checkpoints into the graph, and is their guard: finite numbers, the
/// probes.
class GraphLoader final : public DenseLoader {
 public:
  /// `runner` is borrowed. `weights`: those of the export.
  GraphLoader(std::shared_ptr<Runtime> runtime, std::vector<Runtime::Weight> weights,
              std::map<std::string, std::string> variables, const GraphRunner* runner,
              std::vector<serving::Probe> probes, bool finite);

  Result<std::shared_ptr<const Dense>> Load(Store* store, OpenCheckpoint* checkpoint,
                                            const std::shared_ptr<const Dense>& before) override;
  Status Check(const Versions::Snapshot& snapshot) override;
  std::chrono::nanoseconds elsewhere() const override { return elsewhere_; }

  std::vector<std::string> fixed_weights() const EXCLUDES(mu_);

 private:
  /// A runtime with these weights, ready to be asked.
  Result<std::shared_ptr<Runtime>> Compile(const std::vector<Runtime::Weight>& weights);
  /// The stored variable of a weight, or null. MismatchError when there is one that does not fit.
  Result<const StoredTensor*> Find(const Runtime::Weight& weight, const TensorMap& stored) const;

  const std::shared_ptr<Runtime> runtime_;  // shared with graphs that have no variables
  const std::vector<Runtime::Weight> weights_;
  const std::map<std::string, std::string> variables_;
  const GraphRunner* const runner_;
  const std::vector<serving::Probe> probes_;
  const bool finite_;
  std::chrono::nanoseconds elsewhere_{0};  // the follower's thread alone

  mutable Mutex mu_;
  std::vector<std::string> fixed_ GUARDED_BY(mu_);
};

}  // namespace cairn::serving
