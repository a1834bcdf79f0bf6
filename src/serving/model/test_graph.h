#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::serving {

/// An input of rows [batch, dim] and the output that is made of it.
struct SumInput {
  std::string rows;
  std::string sum;
  std::int64_t dim = 0;
};

/// Each output is its input's rows plus the weight "w" [1], which is 0. Rows and weight of one
/// checkpoint carry its number, so that every element is twice that number, or the two do not
/// belong together.
inline std::string SumGraph(const std::vector<SumInput>& inputs) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(17);
  onnx::GraphProto* graph = model.mutable_graph();
  graph->set_name("sum");
  onnx::TensorProto* weight = graph->add_initializer();
  weight->set_name("w");
  weight->set_data_type(onnx::TensorProto::FLOAT);
  weight->add_dims(1);
  weight->set_raw_data(std::string(4, '\0'));
  for (const SumInput& input : inputs) {
    const auto describe = [&](onnx::ValueInfoProto* value, const std::string& name) {
      value->set_name(name);
      auto* type = value->mutable_type()->mutable_tensor_type();
      type->set_elem_type(onnx::TensorProto::FLOAT);
      type->mutable_shape()->add_dim()->set_dim_param("batch_" + input.rows);
      type->mutable_shape()->add_dim()->set_dim_value(input.dim);
    };
    describe(graph->add_input(), input.rows);
    describe(graph->add_output(), input.sum);
    onnx::NodeProto* node = graph->add_node();
    node->set_op_type("Add");
    node->add_input(input.rows);
    node->add_input("w");
    node->add_output(input.sum);
  }
  return model.SerializeAsString();
}

inline std::string SumGraph(std::int64_t dim) { return SumGraph({{"rows", "y", dim}}); }

}  // namespace cairn::serving
