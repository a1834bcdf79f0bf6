// The plugin: the one file that includes OpenVINO's headers. OpenVINO throws; nothing leaves here.

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <openvino/op/constant.hpp>
#include <openvino/openvino.hpp>
#include <optional>
#include <utility>

#include "model/inference/runtime.h"

namespace cairn {
namespace {

std::optional<ov::element::Type> ToElement(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ov::element::f32;
    case DType::kF64:
      return ov::element::f64;
    case DType::kF16:
      return ov::element::f16;
    case DType::kBF16:
      return ov::element::bf16;
    case DType::kI64:
      return ov::element::i64;
    case DType::kI32:
      return ov::element::i32;
    case DType::kI16:
      return ov::element::i16;
    case DType::kI8:
      return ov::element::i8;
    case DType::kU64:
      return ov::element::u64;
    case DType::kU32:
      return ov::element::u32;
    case DType::kU16:
      return ov::element::u16;
    case DType::kU8:
      return ov::element::u8;
    case DType::kBool:
      return ov::element::boolean;
    default:
      return std::nullopt;
  }
}

ov::Core& Core() {
  // Never destroyed: its threads may outlive static objects.
  static ov::Core* const core = new ov::Core();
  return *core;
}

OwnedTensor CopyOut(const TensorSignature& signature, const ov::Tensor& tensor) {
  constexpr std::align_val_t kAlign{64};
  OwnedTensor out;
  out.name = signature.name;
  out.dtype = signature.dtype;
  const ov::Shape shape = tensor.get_shape();
  out.shape.assign(shape.begin(), shape.end());
  out.bytes = tensor.get_byte_size();
  auto* memory =
      static_cast<std::byte*>(::operator new(std::max<std::uint64_t>(out.bytes, 1), kAlign));
  out.data = std::shared_ptr<std::byte>(memory, [](std::byte* p) { ::operator delete(p, kAlign); });
  if (out.bytes > 0) std::memcpy(memory, tensor.data(), out.bytes);
  return out;
}

/// A compiled model and the requests that run it: as many as run at once.
class OpenVinoRuntime final : public Runtime {
 public:
  OpenVinoRuntime(std::shared_ptr<ov::Model> model, const InferenceOptions& options)
      : model_(std::move(model)), options_(options) {
    ov::AnyMap config = {
        // The default computes in bf16 where the processor can, and is off by 1e-3.
        {ov::hint::inference_precision.name(), ov::element::f32},
        {ov::hint::performance_mode.name(), ov::hint::PerformanceMode::LATENCY},
    };
    if (options.threads > 0) config.emplace(ov::inference_num_threads.name(), options.threads);
    compiled_ = Core().compile_model(model_, "CPU", config);
    for (const auto& input : compiled_.inputs()) {
      for (const std::string& name : input.get_names()) inputs_.emplace(name, input);
    }
    for (const auto& output : compiled_.outputs()) {
      for (const std::string& name : output.get_names()) outputs_.emplace(name, output);
    }
  }

  Result<std::vector<OwnedTensor>> Run(
      const std::vector<std::pair<const TensorSignature*, const FeedTensor*>>& inputs,
      const std::vector<TensorSignature>& outputs) override {
    try {
      Borrowed request(this);
      for (const auto& [signature, feed] : inputs) {
        const auto port = inputs_.find(signature->name);
        const auto element = ToElement(feed->dtype);
        if (port == inputs_.end() || !element) {
          return InternalError("the runtime has no input " + signature->name);
        }
        // The runtime only reads inputs; its interface does not say so.
        request->set_tensor(port->second,
                            ov::Tensor(*element, ov::Shape(feed->shape.begin(), feed->shape.end()),
                                       const_cast<void*>(feed->data)));
      }
      request->infer();
      std::vector<OwnedTensor> out;
      for (const TensorSignature& signature : outputs) {
        const auto port = outputs_.find(signature.name);
        if (port == outputs_.end()) {
          return InternalError("the runtime has no output " + signature.name);
        }
        const ov::Tensor tensor = request->get_tensor(port->second);
        if (tensor.get_element_type() != *ToElement(signature.dtype)) {
          return InternalError("the runtime gives " + signature.name + " in another type");
        }
        out.push_back(CopyOut(signature, tensor));
      }
      return out;
    } catch (const std::exception& error) {
      return InternalError(std::string("OpenVINO: ") + error.what());
    }
  }

  Result<std::unique_ptr<Runtime>> WithWeights(const std::vector<Weight>& weights) override {
    try {
      const std::shared_ptr<ov::Model> model = model_->clone();
      std::map<std::string, std::shared_ptr<ov::Node>> constants;
      for (const auto& node : model->get_ops()) {
        if (!ov::is_type<ov::op::v0::Constant>(node)) continue;
        for (const std::string& name : node->output(0).get_names()) constants.emplace(name, node);
        constants.emplace(node->get_friendly_name(), node);
      }
      for (const Weight& weight : weights) {
        const auto found = constants.find(weight.name);
        const auto element = ToElement(weight.dtype);
        const ov::Shape shape(weight.shape.begin(), weight.shape.end());
        if (found == constants.end() || !element || found->second->get_element_type() != *element ||
            found->second->get_shape() != shape) {
          return UnimplementedError("the runtime changed " + weight.name + " as it read the graph");
        }
        const auto constant =
            std::make_shared<ov::op::v0::Constant>(*element, shape, weight.data.get(), weight.data);
        constant->set_friendly_name(found->second->get_friendly_name());
        constant->output(0).set_names(found->second->output(0).get_names());
        ov::replace_node(found->second, constant);
      }
      return std::unique_ptr<Runtime>(std::make_unique<OpenVinoRuntime>(model, options_));
    } catch (const std::exception& error) {
      return InternalError(std::string("OpenVINO: ") + error.what());
    }
  }

 private:
  /// A request for as long as one Run takes.
  class Borrowed {
   public:
    explicit Borrowed(OpenVinoRuntime* runtime) : runtime_(runtime) {
      {
        const std::lock_guard lock(runtime_->mutex_);
        if (!runtime_->idle_.empty()) {
          request_ = std::move(runtime_->idle_.back());
          runtime_->idle_.pop_back();
          return;
        }
      }
      request_ = runtime_->compiled_.create_infer_request();
    }
    ~Borrowed() {
      const std::lock_guard lock(runtime_->mutex_);
      runtime_->idle_.push_back(std::move(request_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    ov::InferRequest* operator->() { return &request_; }

   private:
    OpenVinoRuntime* const runtime_;
    ov::InferRequest request_;
  };

  const std::shared_ptr<ov::Model> model_;  // shared: OpenVINO's own way
  const InferenceOptions options_;
  ov::CompiledModel compiled_;
  std::map<std::string, ov::Output<const ov::Node>> inputs_;
  std::map<std::string, ov::Output<const ov::Node>> outputs_;
  std::mutex mutex_;
  std::vector<ov::InferRequest> idle_;  // guarded by mutex_
};

}  // namespace
}  // namespace cairn

extern "C" __attribute__((visibility("default"))) bool cairn_runtime_v1(
    const std::string& model_path, const cairn::InferenceOptions& options,
    std::unique_ptr<cairn::Runtime>* out, std::string* error) {
  try {
    *out = std::make_unique<cairn::OpenVinoRuntime>(cairn::Core().read_model(model_path), options);
    return true;
  } catch (const std::exception& thrown) {
    *error = thrown.what();
    return false;
  }
}
