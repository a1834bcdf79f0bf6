#include "serving/model/graph_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/restore.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "serving/finite.h"
#include "serving/pace.h"

namespace cairn::serving {

// ---------------------------------------------------------------- running

GraphRunner::GraphRunner(const OpenExport& exported, const Versions* versions,
                         std::uint64_t max_row_bytes)
    : graph_(exported.save.signature),
      served_(exported.save.signature),
      max_row_bytes_(max_row_bytes) {
  for (TensorSignature& input : served_.inputs) {
    Source source;
    for (const ExportRecord::Input& from : exported.record.inputs) {
      if (from.input != input.name || input.shape.empty()) continue;
      source = {versions->Find(from.table.name), from.table.dim};
      input.dtype = DType::kI64;
      input.shape.pop_back();
    }
    sources_.push_back(source);
  }
}

Result<std::vector<OwnedTensor>> GraphRunner::Run(
    const Versions::Snapshot& snapshot, const std::map<std::string, FeedTensor>& feeds) const {
  std::vector<FeedTensor> rows(served_.inputs.size());
  std::vector<std::vector<float>> memory(served_.inputs.size());
  std::uint64_t row_bytes = 0;
  std::vector<std::pair<const TensorSignature*, const FeedTensor*>> inputs;
  for (std::size_t i = 0; i < served_.inputs.size(); ++i) {
    const TensorSignature& wanted = served_.inputs[i];
    const auto feed = feeds.find(wanted.name);
    if (feed == feeds.end()) {
      return InvalidArgumentError("the feed " + QuoteForMessage(wanted.name) + " is missing");
    }
    RETURN_IF_ERROR(CheckFeed(wanted, feed->second));
    if (sources_[i].table < 0) {
      inputs.emplace_back(&graph_.inputs[i], &feed->second);
      continue;
    }
    rows[i].shape = feed->second.shape;
    rows[i].shape.push_back(sources_[i].dim);
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(DType::kF32, rows[i].shape));
    row_bytes += bytes;
    if (max_row_bytes_ > 0 && row_bytes > max_row_bytes_) {
      return ResourceExhaustedError(fmt::format(
          "the rows of {} ids of {} take more than the {} bytes that one prediction may look up; "
          "ask for fewer at once",
          bytes / sizeof(float) / sources_[i].dim, QuoteForMessage(wanted.name), max_row_bytes_));
    }
    memory[i].resize(bytes / sizeof(float));
    rows[i].data = memory[i].data();
    const std::span ids(static_cast<const std::int64_t*>(feed->second.data),
                        memory[i].size() / sources_[i].dim);
    snapshot.Lookup(static_cast<std::size_t>(sources_[i].table), ids, memory[i].data());
    inputs.emplace_back(&graph_.inputs[i], &rows[i]);
  }
  if (feeds.size() != inputs.size()) return UnknownFeed(served_, feeds);
  asked_.Begin(inputs);
  auto outputs =
      static_cast<const Graph*>(snapshot.dense())->runtime()->Run(inputs, graph_.outputs);
  asked_.End();
  return outputs;
}

void GraphRunner::Asked::Begin(const Runtime::Inputs& inputs) {
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) {  // else another one's shapes do as well
      shapes_.resize(inputs.size());
      for (std::size_t i = 0; i < inputs.size(); ++i) shapes_[i] = inputs[i].second->shape;
    }
  }
  const std::size_t running = running_.fetch_add(1, std::memory_order_relaxed) + 1;
  std::size_t most = most_.load(std::memory_order_relaxed);
  while (running > most && !most_.compare_exchange_weak(most, running)) {
  }
}

std::pair<std::size_t, std::vector<std::vector<std::uint64_t>>> GraphRunner::Asked::Take() {
  const std::size_t most = most_.exchange(running_.load(std::memory_order_relaxed));
  const std::lock_guard lock(mutex_);
  return {most, shapes_};
}

Status GraphRunner::Warm(Runtime* runtime) const {
  constexpr std::size_t kMostAtOnce = 32;  // each holds memory of its own
  auto [most, shapes] = asked_.Take();
  std::vector<FeedTensor> feeds(graph_.inputs.size());
  std::vector<std::vector<std::byte>> zeros(feeds.size());
  Runtime::Inputs inputs;
  for (std::size_t i = 0; i < feeds.size(); ++i) {
    feeds[i].dtype = graph_.inputs[i].dtype;
    if (shapes.empty()) {
      for (const std::int64_t size : graph_.inputs[i].shape) {
        feeds[i].shape.push_back(size < 0 ? 1 : static_cast<std::uint64_t>(size));
      }
    } else {
      feeds[i].shape = shapes[i];
    }
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(feeds[i].dtype, feeds[i].shape));
    zeros[i].resize(std::max<std::uint64_t>(bytes, 1));
    feeds[i].data = zeros[i].data();
    inputs.emplace_back(&graph_.inputs[i], &feeds[i]);
  }
  return runtime->Warm(inputs, std::clamp<std::size_t>(most, 1, kMostAtOnce));
}

// ---------------------------------------------------------------- loading

GraphLoader::GraphLoader(std::shared_ptr<Runtime> runtime, std::vector<Runtime::Weight> weights,
                         std::map<std::string, std::string> variables, const GraphRunner* runner,
                         std::vector<serving::Probe> probes, bool finite)
    : runtime_(std::move(runtime)),
      weights_(std::move(weights)),
      variables_(std::move(variables)),
      runner_(runner),
      probes_(std::move(probes)),
      finite_(finite) {}

Result<const StoredTensor*> GraphLoader::Find(const Runtime::Weight& weight,
                                              const TensorMap& stored) const {
  const auto named = variables_.find(weight.name);
  const std::string& name = named == variables_.end() ? weight.name : named->second;
  auto found = stored.find(name);
  if (found == stored.end() && named == variables_.end()) {
    // A trainer keeps its variables in a state of its own: "state/model/fc.weight".
    const std::string suffix = "/" + name;
    for (auto it = stored.begin(); it != stored.end(); ++it) {
      if (!it->first.ends_with(suffix) || it->second.shape != weight.shape) continue;
      if (found != stored.end()) {
        return MismatchError(fmt::format(
            "the weight {} may be {} or {}: say which in `variables` of the export",
            QuoteForMessage(name), QuoteForMessage(found->first), QuoteForMessage(it->first)));
      }
      found = it;
    }
  }
  if (found == stored.end()) {
    if (named == variables_.end()) return nullptr;
    return MismatchError("the checkpoint has no variable " + QuoteForMessage(name));
  }
  const StoredTensor& tensor = found->second;
  if (tensor.dtype != weight.dtype || tensor.shape != weight.shape) {
    return MismatchError(fmt::format("the variable {} is {} [{}], the graph wants {} [{}]",
                                     QuoteForMessage(found->first), DTypeName(tensor.dtype),
                                     EncodeDims(tensor.shape), DTypeName(weight.dtype),
                                     EncodeDims(weight.shape)));
  }
  return &tensor;
}

Result<std::shared_ptr<const Dense>> GraphLoader::Load(Store* store, OpenCheckpoint* checkpoint,
                                                       const std::shared_ptr<const Dense>& before) {
  ASSIGN_OR_RETURN(const TensorMap stored, checkpoint->ReadCatalog(TensorGroup::kModel, ""));
  const auto* last = static_cast<const Graph*>(before.get());
  std::vector<Runtime::Weight> weights;
  std::vector<ByteRun> runs;
  std::vector<std::string> fixed;
  for (const Runtime::Weight& weight : weights_) {
    ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(weight, stored));
    if (tensor == nullptr) {
      // Beside rows of this step it would be the weight of the day of the export.
      if (last != nullptr && std::ranges::find(last->weights(), weight.name,
                                               &Runtime::Weight::name) != last->weights().end()) {
        return MismatchError("the checkpoint has no variable " + QuoteForMessage(weight.name) +
                             ", which the version before had");
      }
      fixed.push_back(weight.name);
      continue;
    }
    constexpr std::align_val_t kAlign{64};
    Runtime::Weight fresh = weight;
    auto* memory = static_cast<std::byte*>(
        ::operator new(std::max<std::uint64_t>(weight.bytes, 1), kAlign, std::nothrow));
    if (memory == nullptr) return ResourceExhaustedError("no memory for dense variables");
    fresh.data =
        std::shared_ptr<std::byte>(memory, [](std::byte* p) { ::operator delete(p, kAlign); });
    RETURN_IF_ERROR(IntersectPieces(*tensor, weight.shape,
                                    std::vector<std::uint64_t>(weight.shape.size()), memory,
                                    weights.size(), &runs));
    weights.push_back(std::move(fresh));
  }
  RETURN_IF_ERROR(ReadRuns(store, *checkpoint, runs, {}));
  {
    const MutexLock lock(&mu_);
    if (!fixed.empty() && fixed != fixed_) {
      LogInfo(fmt::format("serving: no checkpoint has the weights {}; they stay as exported",
                          fmt::join(fixed, ", ")));
    }
    fixed_ = std::move(fixed);
  }
  if (last != nullptr) {
    const auto same = [](const Runtime::Weight& a, const Runtime::Weight& b) {
      return a.name == b.name && a.bytes == b.bytes &&
             std::memcmp(a.data.get(), b.data.get(), a.bytes) == 0;
    };
    if (std::equal(weights.begin(), weights.end(), last->weights().begin(), last->weights().end(),
                   same)) {
      return before;  // only rows changed
    }
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Runtime> runtime, Compile(weights));
  return std::shared_ptr<const Dense>(
      std::make_shared<Graph>(std::move(runtime), std::move(weights)));
}

Result<std::shared_ptr<Runtime>> GraphLoader::Compile(const std::vector<Runtime::Weight>& weights) {
  Clock* const clock = Clock::System();
  const Clock::Duration began = clock->Now();
  const std::chrono::nanoseconds used = Pace::ThreadTime();
  const std::chrono::nanoseconds used_by_all = Pace::ProcessTime();
  // OpenVINO compiles on threads of its own, and has no way to tell what they used: about as much
  // as one that works all the while this one waits, and no more than all threads did.
  const auto count = [&] {
    const std::chrono::nanoseconds mine = Pace::ThreadTime() - used;
    const std::chrono::nanoseconds most =
        std::min(clock->Now() - began, Pace::ProcessTime() - used_by_all);
    elsewhere_ += std::max(std::chrono::nanoseconds(0), most - mine);
  };
  std::shared_ptr<Runtime> runtime = runtime_;
  if (!weights.empty()) {
    auto fresh = runtime_->WithWeights(weights);
    if (!fresh.ok()) {
      count();
      const Status& why = fresh.status();
      const bool unfit = why.Is(Code::kUnimplemented) || why.Is(Code::kInvalidArgument);
      return unfit ? MismatchError(std::string(why.message())) : why;
    }
    runtime = *std::move(fresh);
  }
  runner_->Warm(runtime.get()).IgnoreError("then the first who ask wait for it");
  count();
  return runtime;
}

Status GraphLoader::Check(const Versions::Snapshot& snapshot) {
  for (const Runtime::Weight& weight : static_cast<const Graph*>(snapshot.dense())->weights()) {
    if (!finite_ || AllFinite(weight.dtype, weight.data.get(), weight.bytes)) continue;
    return FailedPreconditionError("the variable " + QuoteForMessage(weight.name) +
                                   " has NaN or infinite elements");
  }
  for (const serving::Probe& probe : probes_) {
    std::map<std::string, FeedTensor> feeds;
    for (const auto& [name, feed] : probe.feeds) {
      feeds[name] = {feed.dtype, feed.shape, feed.bytes.data()};
    }
    ASSIGN_OR_RETURN(const std::vector<OwnedTensor> outputs, runner_->Run(snapshot, feeds));
    for (const OwnedTensor& output : outputs) {
      if (output.name != probe.output) continue;
      const auto* values = reinterpret_cast<const float*>(output.data.get());
      for (std::uint64_t i = 0; i < output.bytes / sizeof(float); ++i) {
        if (values[i] >= probe.min && values[i] <= probe.max) continue;
        return FailedPreconditionError(
            fmt::format("the probe: {} is {}, which is not between {} and {}",
                        QuoteForMessage(probe.output), values[i], probe.min, probe.max));
      }
    }
  }
  return Status::Ok();
}

std::vector<std::string> GraphLoader::fixed_weights() const {
  const MutexLock lock(&mu_);
  return fixed_;
}

}  // namespace cairn::serving
