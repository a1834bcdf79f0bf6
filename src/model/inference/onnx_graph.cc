// Includes ONNX's (and so Protocol Buffers') headers, as onnx_functions.cc does and nobody else.

#include "model/inference/onnx_graph.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/foreign/onnx_initializers.h"
#include "model/inference/onnx_functions.h"

namespace cairn {
namespace {

// Constants of so few elements are shapes and axes, which tools want to see in the graph.
constexpr std::uint64_t kFewElements = 64;

std::string Quoted(std::string_view name) { return QuoteForMessage(name); }

std::optional<DType> FromOnnx(int type) {
  switch (type) {
    case onnx::TensorProto::FLOAT:
      return DType::kF32;
    case onnx::TensorProto::DOUBLE:
      return DType::kF64;
    case onnx::TensorProto::FLOAT16:
      return DType::kF16;
    case onnx::TensorProto::BFLOAT16:
      return DType::kBF16;
    case onnx::TensorProto::INT64:
      return DType::kI64;
    case onnx::TensorProto::INT32:
      return DType::kI32;
    case onnx::TensorProto::INT16:
      return DType::kI16;
    case onnx::TensorProto::INT8:
      return DType::kI8;
    case onnx::TensorProto::UINT64:
      return DType::kU64;
    case onnx::TensorProto::UINT32:
      return DType::kU32;
    case onnx::TensorProto::UINT16:
      return DType::kU16;
    case onnx::TensorProto::UINT8:
      return DType::kU8;
    case onnx::TensorProto::BOOL:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

bool IsFloat(int type) {
  return type == onnx::TensorProto::FLOAT || type == onnx::TensorProto::DOUBLE ||
         type == onnx::TensorProto::FLOAT16 || type == onnx::TensorProto::BFLOAT16;
}

/// Operators that compute gradients or update weights: no inference model has them.
bool IsTrainingOnly(const onnx::NodeProto& node) {
  const std::string& domain = node.domain();
  const std::string& type = node.op_type();
  if (domain == "ai.onnx.training" || domain == "ai.onnx.preview.training") return true;
  return type.ends_with("Grad") || type.ends_with("Optimizer") || type == "Gradient" ||
         type == "YieldOp";
}

/// Calls `fn` for the node and those of the graphs inside of it (If, Loop, Scan).
void ForEachInside(const onnx::NodeProto& node,
                   const std::function<void(const onnx::NodeProto&)>& fn) {
  fn(node);
  for (const auto& attribute : node.attribute()) {
    for (const auto& inner : attribute.g().node()) ForEachInside(inner, fn);
    for (const auto& graph : attribute.graphs()) {
      for (const auto& inner : graph.node()) ForEachInside(inner, fn);
    }
  }
}

bool GoesIntoFile(const onnx::TensorProto& tensor) {
  if (!FromOnnx(tensor.data_type())) return false;
  std::uint64_t elements = 1;
  for (const std::int64_t dim : tensor.dims()) {
    // No tensor has such a shape: whoever reads it says so.
    if (dim < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(dim), &elements)) {
      return true;
    }
  }
  // onnxruntime finds no place in a file for a tensor without elements.
  return elements > (IsFloat(tensor.data_type()) ? 0 : kFewElements);
}

/// The tensors that a node reads when it predicts, those that graphs inside of it (If, Loop, Scan)
/// read from outside among them.
void ForEachInput(const onnx::NodeProto& node, const std::function<void(const std::string&)>& fn);

void ForEachOuter(const onnx::GraphProto& graph,
                  const std::function<void(const std::string&)>& fn) {
  std::unordered_set<std::string_view> inner;
  for (const auto& input : graph.input()) inner.insert(input.name());
  for (const auto& tensor : graph.initializer()) inner.insert(tensor.name());
  for (const auto& node : graph.node()) {
    for (const auto& output : node.output()) inner.insert(output);
  }
  const auto outer = [&](const std::string& name) {
    if (!inner.contains(name)) fn(name);
  };
  for (const auto& node : graph.node()) ForEachInput(node, outer);
  for (const auto& output : graph.output()) outer(output.name());
}

void ForEachInput(const onnx::NodeProto& node, const std::function<void(const std::string&)>& fn) {
  // The others of a dropout, its ratio and whether it trains, have no say then: whoever trains may
  // have made them inputs of the graph.
  const int inputs =
      node.op_type() == "Dropout" ? std::min(node.input_size(), 1) : node.input_size();
  for (int i = 0; i < inputs; ++i) {
    if (!node.input(i).empty()) fn(node.input(i));  // an optional input that is not there
  }
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) ForEachOuter(attribute.g(), fn);
    for (const auto& graph : attribute.graphs()) ForEachOuter(graph, fn);
  }
}

/// Of a graph or a function, those of the graphs inside of its nodes among them.
template <typename Nodes>
void ForEachNode(Nodes* graph, const std::function<void(onnx::NodeProto*)>& fn) {
  for (auto& node : *graph->mutable_node()) {
    fn(&node);
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) ForEachNode(attribute.mutable_g(), fn);
      for (auto& inner : *attribute.mutable_graphs()) ForEachNode(&inner, fn);
    }
  }
}

using TensorVisitor = std::function<void(onnx::TensorProto*)>;

void VisitSparse(onnx::SparseTensorProto* tensor, const TensorVisitor& fn) {
  fn(tensor->mutable_values());
  fn(tensor->mutable_indices());
}

/// The tensors that the attributes of nodes hold, and the weights of graphs inside of them.
template <typename Nodes>
void ForEachInnerTensor(Nodes* graph, const TensorVisitor& fn) {
  ForEachNode(graph, [&](onnx::NodeProto* node) {
    for (auto& attribute : *node->mutable_attribute()) {
      if (attribute.has_t()) fn(attribute.mutable_t());
      for (auto& tensor : *attribute.mutable_tensors()) fn(&tensor);
      if (attribute.has_sparse_tensor()) VisitSparse(attribute.mutable_sparse_tensor(), fn);
      for (auto& tensor : *attribute.mutable_sparse_tensors()) VisitSparse(&tensor, fn);
      const auto weights = [&](onnx::GraphProto* inner) {
        for (auto& tensor : *inner->mutable_initializer()) fn(&tensor);
        for (auto& tensor : *inner->mutable_sparse_initializer()) VisitSparse(&tensor, fn);
      };
      if (attribute.has_g()) weights(attribute.mutable_g());
      for (auto& inner : *attribute.mutable_graphs()) weights(&inner);
    }
  });
}

/// Puts external data into the tensor itself.
Status TakeExternal(SideFiles* files, onnx::TensorProto* tensor) {
  if (tensor->data_location() != onnx::TensorProto::EXTERNAL) return Status::Ok();
  onnx::ModelProto alone;
  onnx::TensorProto* copy = alone.mutable_graph()->add_initializer();
  *copy = *tensor;
  if (copy->name().empty()) copy->set_name("constant");
  const std::string bytes = alone.SerializeAsString();
  ASSIGN_OR_RETURN(const std::vector<ForeignTensor> decoded,
                   DecodeOnnxInitializers(std::as_bytes(std::span(bytes)), files));
  const std::span<const std::byte> elements = decoded.front().Bytes();
  tensor->set_raw_data(elements.data(), elements.size());
  tensor->clear_external_data();
  tensor->clear_data_location();
  return Status::Ok();
}

/// Keeps the elements of a repeated field that `keep` is true for, in order.
template <typename Field, typename Keep>
void KeepIf(Field* field, Keep keep) {
  int kept = 0;
  for (int i = 0; i < field->size(); ++i) {
    if (!keep(field->Get(i), i)) continue;
    if (kept != i) field->SwapElements(kept, i);
    ++kept;
  }
  field->DeleteSubrange(kept, field->size() - kept);
}

class Graph final : public OnnxGraph {
 public:
  explicit Graph(onnx::ModelProto model) : model_(std::move(model)) {}

  Status Prune(const std::vector<std::string>& feeds,
               const std::vector<std::string>& targets) override {
    RETURN_IF_ERROR(CheckNames(feeds, "feed_names"));
    RETURN_IF_ERROR(CheckNames(targets, "target_names"));
    RETURN_IF_ERROR(InlineFunctions(&model_));
    Index();
    RETURN_IF_ERROR(CheckFeeds(feeds));
    RETURN_IF_ERROR(Reach(feeds, targets));
    RETURN_IF_ERROR(FindTypes(feeds, targets));
    Cut();
    GiveWayToFeeds(feeds);
    RETURN_IF_ERROR(SetInputs(feeds));
    RETURN_IF_ERROR(SetOutputs(targets));
    RETURN_IF_ERROR(UseInferenceMode());
    DropOrigins();
    return Status::Ok();
  }

  ModelSignature signature() const override { return signature_; }
  std::uint64_t nodes() const override {
    return static_cast<std::uint64_t>(model_.graph().node_size());
  }
  std::uint64_t pruned_nodes() const override { return pruned_nodes_; }
  const std::vector<std::string>& left_out() const override { return left_out_; }
  std::set<std::string> statistics() const override {
    std::set<std::string> names;
    for (const auto& node : model_.graph().node()) {
      ForEachInside(node, [&](const onnx::NodeProto& inner) {
        if (inner.op_type() != "BatchNormalization") return;
        for (int i = 3; i < std::min(inner.input_size(), 5); ++i) names.insert(inner.input(i));
      });
    }
    return names;
  }

  Result<std::vector<ForeignTensor>> Weights(SideFiles* files) override {
    RETURN_IF_ERROR(TakeExternalOfGraph(files));
    // The reader of initializers understands every coding; it gets the ones that are wanted.
    onnx::ModelProto wanted;
    for (const auto& tensor : model_.graph().initializer()) {
      if (GoesIntoFile(tensor)) *wanted.mutable_graph()->add_initializer() = tensor;
    }
    if (wanted.graph().initializer_size() == 0) return std::vector<ForeignTensor>();
    weights_ = std::make_unique<std::string>();
    if (!wanted.SerializeToString(weights_.get())) {
      return UnimplementedError(
          "the weights are over 2 GB inside of the model; save it with "
          "external data and give its path");
    }
    return DecodeOnnxInitializers(std::as_bytes(std::span(*weights_)), files);
  }

  Result<std::string> Serialize(
      const std::string& location,
      const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>& places) override {
    onnx::ModelProto out = model_;
    for (auto& tensor : *out.mutable_graph()->mutable_initializer()) {
      const auto place = places.find(tensor.name());
      if (place == places.end()) continue;
      MakeExternal(location, place->second, &tensor);
    }
    std::string bytes;
    if (!out.SerializeToString(&bytes)) return InternalError("the model cannot be serialized");
    return bytes;
  }

 private:
  /// The files beside this model are not beside the one that is saved.
  Status TakeExternalOfGraph(SideFiles* files) {
    Status status;
    const auto take = [&](onnx::TensorProto* tensor) {
      if (status.ok()) status = TakeExternal(files, tensor);
    };
    onnx::GraphProto* graph = model_.mutable_graph();
    for (auto& tensor : *graph->mutable_initializer()) {
      if (!GoesIntoFile(tensor)) take(&tensor);
    }
    for (auto& tensor : *graph->mutable_sparse_initializer()) VisitSparse(&tensor, take);
    ForEachInnerTensor(graph, take);
    for (auto& function : *model_.mutable_functions()) ForEachInnerTensor(&function, take);
    return status;
  }

  static Status CheckNames(const std::vector<std::string>& names, std::string_view what) {
    std::set<std::string> seen;
    for (const std::string& name : names) {
      if (name.empty() || !seen.insert(name).second) {
        return InvalidArgumentError(
            fmt::format("{}: {} is there twice, or is no name", what, Quoted(name)));
      }
    }
    if (!names.empty() || what == "feed_names") return Status::Ok();
    return InvalidArgumentError("target_names: none; name the outputs that are wanted");
  }

  void Index() {
    const onnx::GraphProto& graph = model_.graph();
    for (int i = 0; i < graph.node_size(); ++i) {
      for (const std::string& output : graph.node(i).output()) {
        if (!output.empty()) producers_.emplace(output, i);
      }
    }
    for (const auto& function : model_.functions()) {
      functions_.emplace(CalledAs(function), &function);
    }
    for (const auto& tensor : graph.initializer()) initializers_.insert(tensor.name());
    for (const auto& tensor : graph.sparse_initializer()) {
      initializers_.insert(tensor.values().name());
    }
    for (const auto& input : graph.input()) {
      if (!initializers_.contains(input.name())) inputs_.insert(input.name());
    }
  }

  Status CheckFeeds(const std::vector<std::string>& feeds) const {
    for (const std::string& feed : feeds) {
      if (inputs_.contains(feed) || producers_.contains(feed)) continue;
      if (initializers_.contains(feed)) {
        return InvalidArgumentError("feed_names: " + Quoted(feed) + " is a weight of the model");
      }
      return InvalidArgumentError("feed_names: the model has no tensor " + Quoted(feed) +
                                  "; its inputs are " + Listed(model_.graph().input()));
    }
    return Status::Ok();
  }

  template <typename Infos>
  static std::string Listed(const Infos& infos) {
    std::string out;
    int listed = 0;
    for (const auto& info : infos) {
      if (++listed > 10) return out + ", …";
      out += (out.empty() ? "" : ", ") + info.name();
    }
    return out.empty() ? "none" : out;
  }

  /// Marks what the targets need, backwards.
  Status Reach(const std::vector<std::string>& feeds, const std::vector<std::string>& targets) {
    const std::unordered_set<std::string> boundary(feeds.begin(), feeds.end());
    needed_nodes_.assign(static_cast<std::size_t>(model_.graph().node_size()), false);
    std::unordered_set<std::string> used_feeds;
    for (const std::string& target : targets) {
      if (!producers_.contains(target)) {
        return InvalidArgumentError("target_names: no operator computes " + Quoted(target) +
                                    "; the model's outputs are " + Listed(model_.graph().output()));
      }
      if (boundary.contains(target)) {
        return InvalidArgumentError("target_names: " + Quoted(target) + " is a feed too");
      }
      RETURN_IF_ERROR(ReachFrom(target, boundary, &used_feeds));
    }
    for (const std::string& feed : feeds) {
      if (used_feeds.contains(feed)) continue;
      return InvalidArgumentError("feed_names: no target needs " + Quoted(feed) + "; leave it out");
    }
    return Status::Ok();
  }

  Status ReachFrom(const std::string& target, const std::unordered_set<std::string>& boundary,
                   std::unordered_set<std::string>* used_feeds) {
    std::vector<std::string> work = {target};
    std::string missing;
    while (!work.empty()) {
      const std::string name = std::move(work.back());
      work.pop_back();
      if (boundary.contains(name)) {
        used_feeds->insert(name);
        continue;
      }
      if (!needed_tensors_.insert(name).second) continue;
      if (initializers_.contains(name)) continue;
      const auto producer = producers_.find(name);
      if (producer == producers_.end()) {
        return InvalidArgumentError(
            "the target " + Quoted(target) + " needs " + Quoted(name) +
            (inputs_.contains(name) ? ", which is not among feed_names; add it, or choose a target "
                                      "before it"
                                    : ", which nothing computes"));
      }
      const auto index = static_cast<std::size_t>(producer->second);
      if (needed_nodes_[index]) continue;
      needed_nodes_[index] = true;
      const onnx::NodeProto& node = model_.graph().node(producer->second);
      RETURN_IF_ERROR(CheckPredicts(node, target));
      ForEachInput(node, [&](const std::string& input) { work.push_back(input); });
    }
    return Status::Ok();
  }

  /// Refuses what exists only in training: the node, what is inside of it, and the functions of the
  /// model's own that it calls.
  Status CheckPredicts(const onnx::NodeProto& node, const std::string& target) {
    Status status;
    std::vector<const onnx::FunctionProto*> called;
    ForEachInside(node, [&](const onnx::NodeProto& inner) {
      const auto function = functions_.find(CalledAs(inner));
      if (function != functions_.end() && called_.insert(function->first).second) {
        called.push_back(function->second);
      }
      if (!status.ok() || !IsTrainingOnly(inner)) return;
      status = InvalidArgumentError(fmt::format(
          "the target {} needs the operator {}{}{} (node {}), which exists only in training",
          Quoted(target), inner.domain(), inner.domain().empty() ? "" : ".", inner.op_type(),
          Quoted(inner.name())));
    });
    RETURN_IF_ERROR(status);
    for (const onnx::FunctionProto* function : called) {
      for (const auto& inner : function->node()) RETURN_IF_ERROR(CheckPredicts(inner, target));
    }
    return Status::Ok();
  }

  /// Feeds and targets need types: those the model gives, else what ONNX infers.
  Status FindTypes(const std::vector<std::string>& feeds, const std::vector<std::string>& targets) {
    TakeTypes(model_.graph());
    const auto known = [&](const std::string& name) {
      const auto type = types_.find(name);
      return type != types_.end() && type->second.type().tensor_type().has_shape();
    };
    if (std::all_of(feeds.begin(), feeds.end(), known) &&
        std::all_of(targets.begin(), targets.end(), known)) {
      return Status::Ok();
    }
    onnx::ModelProto copy = model_;
    try {
      onnx::shape_inference::InferShapes(copy);
    } catch (const std::exception& error) {
      return InvalidArgumentError(std::string("the types of inner tensors cannot be inferred: ") +
                                  error.what());
    }
    TakeTypes(copy.graph());
    return Status::Ok();
  }
  void TakeTypes(const onnx::GraphProto& graph) {
    for (const auto* infos : {&graph.input(), &graph.output(), &graph.value_info()}) {
      for (const auto& info : *infos) {
        if (!info.type().has_tensor_type() || info.type().tensor_type().elem_type() == 0) continue;
        const auto [type, fresh] = types_.emplace(info.name(), info);
        // What was inferred may say more than what the model declares.
        if (!fresh && !type->second.type().tensor_type().has_shape()) type->second = info;
      }
    }
  }

  void Cut() {
    onnx::GraphProto* graph = model_.mutable_graph();
    const int before = graph->node_size();
    KeepIf(graph->mutable_node(), [&](const onnx::NodeProto&, int i) {
      return needed_nodes_[static_cast<std::size_t>(i)];
    });
    pruned_nodes_ = static_cast<std::uint64_t>(before - graph->node_size());
    const auto needed = [&](const std::string& name) { return needed_tensors_.contains(name); };
    KeepIf(graph->mutable_initializer(), [&](const onnx::TensorProto& tensor, int) {
      if (needed(tensor.name())) return true;
      left_out_.push_back(tensor.name());
      return false;
    });
    KeepIf(graph->mutable_sparse_initializer(), [&](const onnx::SparseTensorProto& tensor, int) {
      return needed(tensor.values().name());
    });
    KeepIf(graph->mutable_value_info(),
           [&](const onnx::ValueInfoProto& info, int) { return needed(info.name()); });
    KeepIf(graph->mutable_quantization_annotation(),
           [&](const onnx::TensorAnnotation& one, int) { return needed(one.tensor_name()); });
    functions_.clear();  // they point into what is cut now
    KeepIf(model_.mutable_functions(), [&](const onnx::FunctionProto& function, int) {
      return called_.contains(CalledAs(function));
    });
    model_.clear_training_info();
  }

  /// An operator that is kept for one of its outputs may compute another one that is fed: what is
  /// fed counts, and the computed one gets a name that nobody reads. A tensor has one source.
  void GiveWayToFeeds(const std::vector<std::string>& feeds) {
    const std::unordered_set<std::string_view> fed(feeds.begin(), feeds.end());
    std::string start = "unused";
    while (HasNames(model_.graph(), start + "#")) start += "_";
    int given = 0;
    for (auto& node : *model_.mutable_graph()->mutable_node()) {
      for (std::string& output : *node.mutable_output()) {
        if (fed.contains(output)) output = fmt::format("{}#{}", start, ++given);
      }
    }
  }

  Result<TensorSignature> Describe(const std::string& name, std::string_view what) const {
    const auto it = types_.find(name);
    if (it == types_.end()) {
      return InvalidArgumentError(
          fmt::format("{}: the model does not say of which type {} is", what, Quoted(name)));
    }
    const auto& type = it->second.type().tensor_type();
    const auto dtype = FromOnnx(type.elem_type());
    if (!dtype) {
      return InvalidArgumentError(
          fmt::format("{}: {} is of ONNX's data type {}, which is no number", what, Quoted(name),
                      type.elem_type()));
    }
    if (!type.has_shape()) {
      return InvalidArgumentError(
          fmt::format("{}: the model does not say how many dimensions {} has; declare its shape, "
                      "with names in the place of sizes that vary",
                      what, Quoted(name)));
    }
    TensorSignature signature{name, *dtype, {}};
    for (const auto& dim : type.shape().dim()) {
      signature.shape.push_back(dim.has_dim_value() && dim.dim_value() >= 0 ? dim.dim_value() : -1);
    }
    return signature;
  }

  Status SetInputs(const std::vector<std::string>& feeds) {
    onnx::GraphProto* graph = model_.mutable_graph();
    graph->clear_input();  // old models list their weights as inputs too
    for (const std::string& feed : feeds) {
      ASSIGN_OR_RETURN(TensorSignature signature, Describe(feed, "feed_names"));
      signature_.inputs.push_back(std::move(signature));
      *graph->add_input() = types_.at(feed);
    }
    return Status::Ok();
  }
  Status SetOutputs(const std::vector<std::string>& targets) {
    onnx::GraphProto* graph = model_.mutable_graph();
    graph->clear_output();
    for (const std::string& target : targets) {
      ASSIGN_OR_RETURN(TensorSignature signature, Describe(target, "target_names"));
      signature_.outputs.push_back(std::move(signature));
      *graph->add_output() = types_.at(target);
    }
    return Status::Ok();
  }

  /// Where in the program an operator came from is for debugging the program; the same weights
  /// saved from another line must give the same graph.
  void DropOrigins() {
    // Field numbers of metadata_props, which this libonnx may not know.
    constexpr int kOfNode = 9;
    constexpr int kOfGraph = 16;
    constexpr int kOfTensor = 16;
    constexpr int kOfValue = 4;
    const auto drop = [](auto* message, int number) {
      message->clear_doc_string();
      message->GetReflection()->MutableUnknownFields(message)->DeleteByNumber(number);
    };
    model_.clear_metadata_props();
    model_.clear_doc_string();
    onnx::GraphProto* graph = model_.mutable_graph();
    drop(graph, kOfGraph);
    ForEachNode(graph, [&](onnx::NodeProto* node) { drop(node, kOfNode); });
    for (auto& tensor : *graph->mutable_initializer()) drop(&tensor, kOfTensor);
    for (auto* infos :
         {graph->mutable_input(), graph->mutable_output(), graph->mutable_value_info()}) {
      for (auto& info : *infos) drop(&info, kOfValue);
    }
  }

  Status UseInferenceMode() {
    std::unordered_set<std::string> outputs;
    for (const auto& output : model_.graph().output()) outputs.insert(output.name());
    RETURN_IF_ERROR(UseInferenceModeIn(model_.mutable_graph(), std::move(outputs)));
    for (auto& function : *model_.mutable_functions()) {
      outputs = {function.output().begin(), function.output().end()};
      RETURN_IF_ERROR(UseInferenceModeIn(&function, std::move(outputs)));
    }
    DropUnread();
    return Status::Ok();
  }

  /// `read`: the outputs of the graph or function.
  template <typename Nodes>
  static Status UseInferenceModeIn(Nodes* graph, std::unordered_set<std::string> read) {
    Status status;
    for (const auto& node : graph->node()) {
      ForEachInput(node, [&](const std::string& input) { read.insert(input); });
    }
    ForEachNode(graph, [&](onnx::NodeProto* node) {
      if (node->op_type() == "Dropout") {
        // training_mode is false where it is not there, and then the ratio does not matter.
        while (node->input_size() > 1) node->mutable_input()->RemoveLast();
        // It hands its input on. OpenVINO loses one that is the output of a branch.
        if (node->output_size() == 1) {
          node->set_op_type("Identity");
          node->clear_attribute();
        }
      }
      if (node->op_type() == "BatchNormalization" && status.ok()) {
        status = NormaliseWithStoredStatistics(read, node);
      }
    });
    return status;
  }

  static Status NormaliseWithStoredStatistics(const std::unordered_set<std::string>& read,
                                              onnx::NodeProto* node) {
    for (auto& attribute : *node->mutable_attribute()) {
      if (attribute.name() == "training_mode") attribute.set_i(0);
    }
    while (node->output_size() > 1) {
      const std::string& last = node->output(node->output_size() - 1);
      if (read.contains(last)) {
        return InvalidArgumentError("the targets need " + Quoted(last) + ", the statistics that " +
                                    Quoted(node->name()) + " gathers in training only");
      }
      node->mutable_output()->RemoveLast();
    }
    return Status::Ok();
  }

  /// Constants that only the training mode read.
  void DropUnread() {
    onnx::GraphProto* graph = model_.mutable_graph();
    std::unordered_set<std::string> read;
    for (const auto& node : graph->node()) {
      ForEachInput(node, [&](const std::string& input) { read.insert(input); });
    }
    for (const auto& output : graph->output()) read.insert(output.name());
    KeepIf(graph->mutable_initializer(), [&](const onnx::TensorProto& tensor, int) {
      if (read.contains(tensor.name())) return true;
      left_out_.push_back(tensor.name());
      return false;
    });
    std::sort(left_out_.begin(), left_out_.end());
    const int before = graph->node_size();
    KeepIf(graph->mutable_node(), [&](const onnx::NodeProto& node, int) {
      return node.op_type() != "Constant" || node.output_size() == 0 ||
             read.contains(node.output(0));
    });
    pruned_nodes_ += static_cast<std::uint64_t>(before - graph->node_size());
  }

  static void MakeExternal(const std::string& location,
                           const std::pair<std::uint64_t, std::uint64_t>& place,
                           onnx::TensorProto* tensor) {
    tensor->clear_raw_data();
    tensor->clear_float_data();
    tensor->clear_int32_data();
    tensor->clear_int64_data();
    tensor->clear_double_data();
    tensor->clear_uint64_data();
    tensor->clear_external_data();
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
    const auto add = [&](const std::string& key, const std::string& value) {
      auto* entry = tensor->add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    };
    add("location", location);
    add("offset", std::to_string(place.first));
    add("length", std::to_string(place.second));
  }

  onnx::ModelProto model_;
  std::unordered_map<std::string, int> producers_;  // tensor → node
  std::unordered_set<std::string> initializers_;
  std::unordered_set<std::string> inputs_;                                 // that are no weights
  std::unordered_map<std::string, const onnx::FunctionProto*> functions_;  // until they are cut
  std::unordered_set<std::string> called_;                                 // functions
  std::vector<bool> needed_nodes_;
  std::unordered_set<std::string> needed_tensors_;
  std::unordered_map<std::string, onnx::ValueInfoProto> types_;
  ModelSignature signature_;
  std::uint64_t pruned_nodes_ = 0;
  std::vector<std::string> left_out_;
  std::unique_ptr<std::string> weights_;  // serialized: what Weights gives points into it
};

}  // namespace

Result<std::unique_ptr<OnnxGraph>> OnnxGraph::Parse(std::span<const std::byte> bytes) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return UnimplementedError(
        "the model is over 2 GB; save it with its weights as external data and give its path");
  }
  onnx::ModelProto model;
  if (bytes.empty() || !model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      !model.has_graph()) {
    return CorruptionError("is no ONNX model");
  }
  return std::unique_ptr<OnnxGraph>(std::make_unique<Graph>(std::move(model)));
}

}  // namespace cairn
