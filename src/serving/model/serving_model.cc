#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <cairn/serving.h>

#include "base/status_macros.h"
#include "format/json.h"
#include "model/inference/runtime.h"
#include "serving/follower.h"
#include "serving/model/export_directory.h"
#include "serving/model/graph_loader.h"
#include "serving/versions.h"

namespace cairn::serving {
namespace {

VersionInfo InfoOf(const VersionFacts& facts) {
  VersionInfo info;
  info.step = facts.step;
  info.id = facts.id;
  info.committed_nanos = facts.committed;
  info.rows = facts.rows;
  return info;
}

UpdateEvent EventOf(const UpdateReport& report) {
  UpdateEvent event;
  switch (report.kind) {
    case UpdateReport::Kind::kApplied:
      event.kind = UpdateEvent::Kind::kApplied;
      break;
    case UpdateReport::Kind::kRefused:
      event.kind = UpdateEvent::Kind::kRefused;
      break;
    case UpdateReport::Kind::kPassedOver:
      event.kind = UpdateEvent::Kind::kPassedOver;
      break;
    case UpdateReport::Kind::kUnreachable:
      event.kind = UpdateEvent::Kind::kUnreachable;
      break;
    case UpdateReport::Kind::kAbandoned:
      event.kind = UpdateEvent::Kind::kAbandoned;
      break;
  }
  event.id = report.id;
  event.step = report.step;
  event.full = report.full;
  event.rows = report.rows;
  event.changed = report.changed;
  event.seconds = report.seconds;
  event.message = report.message;
  return event;
}

std::vector<ServedTable> TablesOf(const ExportRecord& record) {
  std::vector<ServedTable> tables;
  for (const ExportRecord::Input& input : record.inputs) {
    const bool there = std::any_of(tables.begin(), tables.end(), [&](const ServedTable& table) {
      return table.name == input.table.name;
    });
    if (!there) tables.push_back(input.table);
  }
  return tables;
}

/// A probe that no version could pass would hold up all of them.
Status CheckProbes(const ModelOptions& options, const ModelSignature& signature) {
  const auto fits = [](const Probe::Feed& feed, const TensorSignature& wanted) {
    if (feed.dtype != wanted.dtype || feed.shape.size() != wanted.shape.size()) return false;
    for (std::size_t d = 0; d < feed.shape.size(); ++d) {
      if (wanted.shape[d] >= 0 && feed.shape[d] != static_cast<std::uint64_t>(wanted.shape[d])) {
        return false;
      }
    }
    return true;
  };
  for (const Probe& probe : options.probes) {
    for (const TensorSignature& input : signature.inputs) {
      const auto feed = probe.feeds.find(input.name);
      if (feed == probe.feeds.end()) {
        return InvalidArgumentError("probes: the input " + QuoteForMessage(input.name) +
                                    " is missing");
      }
      if (!fits(feed->second, input)) {
        return InvalidArgumentError("probes: the input " + QuoteForMessage(input.name) +
                                    " is not of the dtype and shape that the model wants");
      }
    }
    if (probe.feeds.size() > signature.inputs.size()) {
      return InvalidArgumentError("probes: there are inputs that the model does not have");
    }
    if (!(probe.min <= probe.max)) {
      return InvalidArgumentError(
          fmt::format("probes: nothing is between {} and {}: min is above "
                      "max",
                      probe.min, probe.max));
    }
    const auto output =
        std::find_if(signature.outputs.begin(), signature.outputs.end(),
                     [&](const TensorSignature& s) { return s.name == probe.output; });
    if (output == signature.outputs.end() || output->dtype != DType::kF32) {
      return InvalidArgumentError("probes: " + QuoteForMessage(probe.output) +
                                  " is no float32 output of the model");
    }
  }
  return Status::Ok();
}

class ModelImpl final : public Model {
 public:
  ModelImpl(const OpenExport& exported, const ModelOptions& options)
      : versions_(TablesOf(exported.record), {.keep = options.keep_versions}),
        runner_(exported, &versions_, options.max_row_bytes) {}

  Status Start(const OpenExport& exported, ModelOptions options) {
    RETURN_IF_ERROR(CheckProbes(options, runner_.signature()));
    ASSIGN_OR_RETURN(const LocalGraph graph, LocalGraph::Of(exported.save));
    ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                     OpenRuntime(graph.path(), options.inference));
    ASSIGN_OR_RETURN(std::vector<Runtime::Weight> weights, ReadWeights(exported.save));
    loader_ = std::make_unique<GraphLoader>(std::move(runtime), std::move(weights),
                                            exported.record.variables, &runner_, options.probes,
                                            options.check_finite);
    FollowerOptions follow;
    follow.repository = options.repository;
    follow.storage = options.storage;
    follow.job = options.job;
    follow.increments = exported.record.increments;
    follow.poll = options.poll;
    follow.finite = options.check_finite;
    follow.cpu_share = options.cpu_share;
    std::function<void(const UpdateReport&)> report;
    if (options.on_update) {
      report = [tell = options.on_update](const UpdateReport& r) { tell(EventOf(r)); };
    }
    ASSIGN_OR_RETURN(
        follower_, Follower::Open(std::move(follow), &versions_, loader_.get(), std::move(report)));
    follows_ = options.follow;
    if (!follows_ || options.require_version || !options.look_behind) {
      const Status looked = follows_ ? follower_->LookInTurn() : follower_->Look();
      if (!looked.ok() && options.require_version) return looked;
    }
    if (follows_) follower_->Start();
    return Status::Ok();
  }

  class ViewImpl final : public View {
   public:
    ViewImpl(const ModelImpl* model, serving::Versions::Snapshot snapshot)
        : model_(model), snapshot_(std::move(snapshot)) {}
    VersionInfo version() const override { return InfoOf(snapshot_.facts()); }
    Status Lookup(std::string_view table, std::span<const std::int64_t> ids,
                  std::span<float> out) const override {
      return model_->LookupAt(snapshot_, table, ids, out);
    }
    Result<std::vector<OwnedTensor>> Predict(
        const std::map<std::string, FeedTensor>& feeds) const override {
      return model_->runner_.Run(snapshot_, feeds);
    }

   private:
    const ModelImpl* const model_;
    const serving::Versions::Snapshot snapshot_;
  };

  Result<std::unique_ptr<View>> Take() const override {
    ASSIGN_OR_RETURN(serving::Versions::Snapshot snapshot, Acquire());
    return std::unique_ptr<View>(std::make_unique<ViewImpl>(this, std::move(snapshot)));
  }

  Result<std::unique_ptr<View>> TakeStep(std::int64_t step) const override {
    ASSIGN_OR_RETURN(serving::Versions::Snapshot snapshot, versions_.AcquireStep(step));
    return std::unique_ptr<View>(std::make_unique<ViewImpl>(this, std::move(snapshot)));
  }

  Status Lookup(std::string_view table, std::span<const std::int64_t> ids,
                std::span<float> out) const override {
    ASSIGN_OR_RETURN(const serving::Versions::Snapshot snapshot, Acquire());
    return LookupAt(snapshot, table, ids, out);
  }

  Result<std::vector<OwnedTensor>> Predict(
      const std::map<std::string, FeedTensor>& feeds) const override {
    ASSIGN_OR_RETURN(const serving::Versions::Snapshot snapshot, Acquire());
    return runner_.Run(snapshot, feeds);
  }

  Result<VersionInfo> Version() const override {
    ASSIGN_OR_RETURN(const serving::Versions::Snapshot snapshot, Acquire());
    return InfoOf(snapshot.facts());
  }

  const ModelSignature& signature() const override { return runner_.signature(); }
  std::vector<TableInfo> tables() const override {
    std::vector<TableInfo> out;
    for (const auto& table : versions_.tables()) {
      out.push_back({table->options().name, table->options().dim});
    }
    return out;
  }
  std::vector<std::string> fixed_weights() const override { return loader_->fixed_weights(); }

  Status Rollback(std::size_t n) override { return versions_.Rollback(n); }
  Status Pin(std::string_view id) override { return versions_.Pin(id); }
  Status PinStep(std::int64_t step) override { return versions_.PinStep(step); }
  void Resume() override { versions_.Resume(); }
  bool held() const override { return versions_.held(); }
  std::vector<VersionInfo> Versions() const override {
    std::vector<VersionInfo> out;
    for (const VersionFacts& facts : versions_.kept()) out.push_back(InfoOf(facts));
    return out;
  }

  void Notify() override { follower_->Notify(); }
  Status Update() override {
    if (follows_) {
      return FailedPreconditionError("the model follows its repository by itself; see follow");
    }
    return follower_->Look();
  }
  void StopFollowing() override { follower_->Stop(); }
  ModelStats stats() const override {
    const FollowerStats from = follower_->stats();
    ModelStats stats;
    stats.updates = from.applied;
    stats.refused = from.refused;
    stats.rows_applied = from.rows;
    stats.last_update_seconds = from.last_seconds;
    stats.update_seconds = from.seconds;
    stats.newest_step = from.newest_step;
    stats.newest_committed_nanos = from.newest_committed;
    stats.reachable = from.reachable;
    stats.last_problem = from.last_problem;
    stats.table_bytes = versions_.bytes_in_use();
    return stats;
  }

 private:
  Result<serving::Versions::Snapshot> Acquire() const {
    serving::Versions::Snapshot snapshot = versions_.Acquire();
    if (!snapshot) return UnavailableError("there is no checkpoint to serve yet");
    return snapshot;
  }

  Status LookupAt(const serving::Versions::Snapshot& snapshot, std::string_view table,
                  std::span<const std::int64_t> ids, std::span<float> out) const {
    const std::ptrdiff_t index = versions_.Find(table);
    if (index < 0) {
      std::string names;
      for (const auto& each : versions_.tables()) {
        names += (names.empty() ? "" : ", ") + each->options().name;
      }
      return InvalidArgumentError("the model has no table " + QuoteForMessage(table) +
                                  "; its tables are: " + names);
    }
    const auto i = static_cast<std::size_t>(index);
    if (out.size() != ids.size() * versions_.tables()[i]->options().dim) {
      return InvalidArgumentError("lookup: the memory for the rows has another size");
    }
    snapshot.Lookup(i, ids, out.data());
    return Status::Ok();
  }

  serving::Versions versions_;
  const GraphRunner runner_;
  std::unique_ptr<GraphLoader> loader_;
  bool follows_ = false;
  std::unique_ptr<Follower> follower_;  // the last: its thread uses all of the above
};

}  // namespace

Result<std::unique_ptr<Model>> Model::Open(ModelOptions options) {
  ASSIGN_OR_RETURN(const OpenExport exported, OpenNewestExport(options.export_dir));
  auto model = std::make_unique<ModelImpl>(exported, options);
  const std::string repository = options.repository;
  const Status started = model->Start(exported, std::move(options));
  if (!started.ok()) return started.WithContext("serve from \"" + repository + "\"");
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace cairn::serving
