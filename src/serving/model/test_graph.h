#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>

namespace cairn::serving {

/// "y" = "rows" [batch, dim] + the weight "w" [1], which is 0. Rows and weight of one checkpoint
/// carry its number, so that every element of "y" is twice that number, or the two do not belong
/// together.
inline std::string SumGraph(std::int64_t dim) {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(17);
  onnx::GraphProto* graph = model.mutable_graph();
  graph->set_name("sum");
  const auto describe = [&](onnx::ValueInfoProto* value, const char* name) {
    value->set_name(name);
    auto* type = value->mutable_type()->mutable_tensor_type();
    type->set_elem_type(onnx::TensorProto::FLOAT);
    type->mutable_shape()->add_dim()->set_dim_param("batch");
    type->mutable_shape()->add_dim()->set_dim_value(dim);
  };
  describe(graph->add_input(), "rows");
  describe(graph->add_output(), "y");
  onnx::TensorProto* weight = graph->add_initializer();
  weight->set_name("w");
  weight->set_data_type(onnx::TensorProto::FLOAT);
  weight->add_dims(1);
  weight->set_raw_data(std::string(4, '\0'));
  onnx::NodeProto* node = graph->add_node();
  node->set_op_type("Add");
  node->add_input("rows");
  node->add_input("w");
  node->add_output("y");
  return model.SerializeAsString();
}

}  // namespace cairn::serving
