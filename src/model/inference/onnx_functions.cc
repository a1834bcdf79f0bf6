// Includes ONNX's headers, as onnx_graph.cc does and nobody else.

#include "model/inference/onnx_functions.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr int kMaxDepth = 64;                // of calls
constexpr std::size_t kMaxNodes = 1u << 18;  // functions that call each other multiply

using Names = std::unordered_map<std::string, std::string>;
using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

std::string DomainOf(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

/// The values of a field that is newer than this libonnx.
template <typename Message>
std::vector<std::string> Unknown(const Message& message, int number) {
  std::vector<std::string> values;
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& field = unknown.field(i);
    if (field.number() == number &&
        field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      values.push_back(field.length_delimited());
    }
  }
  return values;
}

/// Values of attributes that calls may leave out.
std::vector<onnx::AttributeProto> DefaultsOf(const onnx::FunctionProto& function) {
  constexpr int kAttributeProto = 11;
  std::vector<onnx::AttributeProto> defaults;
  for (const std::string& bytes : Unknown(function, kAttributeProto)) {
    onnx::AttributeProto attribute;
    if (attribute.ParseFromString(bytes)) defaults.push_back(attribute);
  }
  return defaults;
}

template <typename Message>
std::string Name(const Message& message, const std::string& name, int overload) {
  const std::vector<std::string> values = Unknown(message, overload);
  // The last one counts, as Protocol Buffers have it.
  return DomainOf(message.domain()) + "\n" + name + "\n" + (values.empty() ? "" : values.back());
}

template <typename Attributes>
const onnx::AttributeProto* Find(const Attributes& attributes, const std::string& name) {
  for (const onnx::AttributeProto& attribute : attributes) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

/// One call: what names and attributes of the function's body become.
class Body {
 public:
  Body(const onnx::NodeProto& call, const onnx::FunctionProto& function, std::string prefix)
      : call_(call), defaults_(DefaultsOf(function)), prefix_(std::move(prefix)) {
    for (int i = 0; i < function.input_size(); ++i) {
      names_[function.input(i)] = i < call.input_size() ? call.input(i) : "";
    }
    for (int i = 0; i < std::min(function.output_size(), call.output_size()); ++i) {
      if (call.output(i).empty()) continue;
      const auto [known, fresh] = names_.emplace(function.output(i), call.output(i));
      // An input, or an output that is there twice: nobody computes it once more.
      if (!fresh) same_.emplace_back(known->second, call.output(i));
    }
  }

  onnx::NodeProto Bound(const onnx::NodeProto& node) const {
    onnx::NodeProto bound = node;
    Bind(&bound);
    return bound;
  }
  /// (name, other name of the same)
  const std::vector<std::pair<std::string, std::string>>& same() const { return same_; }

 private:
  void Rename(std::string* name) const {
    if (name->empty()) return;
    const auto known = names_.find(*name);
    *name = known == names_.end() ? prefix_ + *name : known->second;
  }
  void Bind(onnx::NodeProto* node) const {
    if (!node->name().empty()) node->set_name(prefix_ + node->name());
    for (std::string& name : *node->mutable_input()) Rename(&name);
    for (std::string& name : *node->mutable_output()) Rename(&name);
    google::protobuf::RepeatedPtrField<onnx::AttributeProto> attributes;
    for (onnx::AttributeProto& attribute : *node->mutable_attribute()) {
      if (attribute.ref_attr_name().empty()) {
        if (attribute.has_g()) Bind(attribute.mutable_g());
        for (auto& graph : *attribute.mutable_graphs()) Bind(&graph);
        attributes.Add(std::move(attribute));
        continue;
      }
      const onnx::AttributeProto* given = Find(call_.attribute(), attribute.ref_attr_name());
      if (given == nullptr) given = Find(defaults_, attribute.ref_attr_name());
      if (given == nullptr) continue;  // the operator's own default
      onnx::AttributeProto value = *given;
      value.set_name(attribute.name());
      attributes.Add(std::move(value));
    }
    node->mutable_attribute()->Swap(&attributes);
  }
  void Bind(onnx::GraphProto* graph) const {
    for (auto* infos :
         {graph->mutable_input(), graph->mutable_output(), graph->mutable_value_info()}) {
      for (auto& info : *infos) Rename(info.mutable_name());
    }
    for (auto& tensor : *graph->mutable_initializer()) Rename(tensor.mutable_name());
    for (auto& tensor : *graph->mutable_sparse_initializer()) {
      Rename(tensor.mutable_values()->mutable_name());
    }
    for (auto& node : *graph->mutable_node()) Bind(&node);
  }

  const onnx::NodeProto& call_;
  const std::vector<onnx::AttributeProto> defaults_;
  const std::string prefix_;
  Names names_;  // of the function's inputs and outputs → of the caller
  std::vector<std::pair<std::string, std::string>> same_;
};

class Inliner {
 public:
  explicit Inliner(onnx::ModelProto* model) : model_(model) {
    std::map<std::string, std::int64_t> versions;
    for (const auto& opset : model->opset_import()) {
      versions[DomainOf(opset.domain())] = opset.version();
    }
    for (const auto& function : model->functions()) {
      bool fits = true;
      for (const auto& opset : function.opset_import()) {
        const auto version = versions.find(DomainOf(opset.domain()));
        fits &= version == versions.end() || version->second == opset.version();
      }
      if (fits) functions_.emplace(CalledAs(function), &function);
    }
    while (HasNames(model->graph(), start_ + "#")) start_ += "_";
  }

  Status InlineIn(onnx::GraphProto* graph, int depth) {
    Nodes nodes;
    for (auto& node : *graph->mutable_node()) {
      RETURN_IF_ERROR(Put(std::move(node), depth, &nodes));
    }
    graph->mutable_node()->Swap(&nodes);
    return Status::Ok();
  }

 private:
  Status Put(onnx::NodeProto node, int depth, Nodes* out) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) RETURN_IF_ERROR(InlineIn(attribute.mutable_g(), depth));
      for (auto& inner : *attribute.mutable_graphs()) RETURN_IF_ERROR(InlineIn(&inner, depth));
    }
    const auto called = functions_.find(CalledAs(node));
    if (called != functions_.end()) return Expand(node, *called->second, depth, out);
    if (++nodes_ > kMaxNodes) {
      return InvalidArgumentError(
          fmt::format("with the functions that it calls the graph has over {} nodes", kMaxNodes));
    }
    out->Add(std::move(node));
    return Status::Ok();
  }

  Status Expand(const onnx::NodeProto& call, const onnx::FunctionProto& function, int depth,
                Nodes* out) {
    if (depth == kMaxDepth) {
      return InvalidArgumentError("the function " + QuoteForMessage(function.name()) +
                                  " calls itself, or calls are nested too deeply");
    }
    // Also of those that hold nothing but calls of others.
    if (++calls_ > kMaxNodes) {
      return InvalidArgumentError(
          fmt::format("the functions that it has are called over {} times", kMaxNodes));
    }
    for (const auto& opset : function.opset_import()) Import(opset);
    const Body body(call, function, fmt::format("{}#{}/", start_, calls_));
    for (const auto& node : function.node()) {
      RETURN_IF_ERROR(Put(body.Bound(node), depth + 1, out));
    }
    for (const auto& [name, other] : body.same()) {
      onnx::NodeProto node;
      node.set_op_type("Identity");
      node.add_input(name);
      node.add_output(other);
      RETURN_IF_ERROR(Put(std::move(node), depth + 1, out));
    }
    return Status::Ok();
  }

  void Import(const onnx::OperatorSetIdProto& opset) {
    for (const auto& known : model_->opset_import()) {
      if (DomainOf(known.domain()) == DomainOf(opset.domain())) return;
    }
    *model_->add_opset_import() = opset;
  }

  onnx::ModelProto* const model_;
  std::map<std::string, const onnx::FunctionProto*> functions_;  // that can be put in their place
  std::string start_ = "inlined";                                // of new names
  std::size_t calls_ = 0;
  std::size_t nodes_ = 0;
};

}  // namespace

std::string CalledAs(const onnx::NodeProto& node) {
  constexpr int kOverload = 8;
  return Name(node, node.op_type(), kOverload);
}

std::string CalledAs(const onnx::FunctionProto& function) {
  constexpr int kOverload = 13;
  return Name(function, function.name(), kOverload);
}

bool HasNames(const onnx::GraphProto& graph, const std::string& start) {
  const auto begins = [&](const auto& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.starts_with(start); });
  };
  for (const auto& input : graph.input()) {
    if (input.name().starts_with(start)) return true;
  }
  for (const auto& tensor : graph.initializer()) {
    if (tensor.name().starts_with(start)) return true;
  }
  for (const auto& node : graph.node()) {
    if (begins(node.input()) || begins(node.output())) return true;
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g() && HasNames(attribute.g(), start)) return true;
      for (const auto& inner : attribute.graphs()) {
        if (HasNames(inner, start)) return true;
      }
    }
  }
  return false;
}

Status InlineFunctions(onnx::ModelProto* model) {
  if (model->functions_size() == 0) return Status::Ok();
  return Inliner(model).InlineIn(model->mutable_graph(), 0);
}

}  // namespace cairn
