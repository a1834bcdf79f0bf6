// The plugin: the one file that includes OpenVINO's headers. OpenVINO throws; nothing leaves here.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <openvino/op/constant.hpp>
#include <openvino/op/maximum.hpp>
#include <openvino/op/minimum.hpp>
#include <openvino/op/tensor_iterator.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/openvino.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "model/inference/runtime.h"

namespace cairn {
namespace {

/// The types whose numbers the runtime may take for others.
std::optional<DType> WideType(const ov::element::Type& element) {
  if (element == ov::element::i64) return DType::kI64;
  if (element == ov::element::u64) return DType::kU64;
  if (element == ov::element::u32) return DType::kU32;
  if (element == ov::element::f64) return DType::kF64;
  return std::nullopt;
}

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

/// "x [2, 4], rows [3, 16]"
std::string ShapesOf(
    const std::vector<std::pair<const TensorSignature*, const FeedTensor*>>& inputs) {
  std::string out;
  for (const auto& [signature, feed] : inputs) {
    out += (out.empty() ? "" : ", ") + signature->name + " [";
    for (std::size_t d = 0; d < feed->shape.size(); ++d) {
      out += (d == 0 ? "" : ", ") + std::to_string(feed->shape[d]);
    }
    out += "]";
  }
  return out;
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

/// What ONNX's Scan becomes, here or in a branch or loop. The CPU plugin gives wrong numbers once
/// it fuses operators that read and write the state (seen in 2026.4: state + x * w).
bool HasScan(const ov::Model& model) {
  for (const auto& node : model.get_ops()) {
    if (ov::is_type<ov::op::v0::TensorIterator>(node)) return true;
    const auto outer = ov::as_type_ptr<ov::op::util::MultiSubGraphOp>(node);
    for (std::size_t i = 0; outer && i < outer->get_internal_subgraphs_size(); ++i) {
      if (HasScan(*outer->get_function(i))) return true;
    }
  }
  return false;
}

/// The first element that `is_beyond`, as text.
template <typename T, typename Fn>
std::optional<std::string> FirstOf(const void* data, std::size_t count, const Fn& is_beyond) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
    if (!is_beyond(value)) continue;
    if constexpr (std::is_integral_v<T>) return std::to_string(value);
    std::ostringstream text;
    text << value;
    return text.str();
  }
  return std::nullopt;
}

/// The CPU plugin computes whole numbers in 32 bits and others in float32. What does not fit there
/// it takes for another number, and says nothing.
std::optional<std::string> FirstBeyond(DType dtype, const void* data, std::size_t count) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto above = [](auto value) { return value > kMost; };
  switch (dtype) {
    case DType::kI64:
      return FirstOf<std::int64_t>(data, count,
                                   [](std::int64_t v) { return v < kLeast || v > kMost; });
    case DType::kU64:
      return FirstOf<std::uint64_t>(
          data, count, [](std::uint64_t v) { return v > static_cast<std::uint64_t>(kMost); });
    case DType::kU32:
      return FirstOf<std::uint32_t>(data, count, above);
    case DType::kF64:
      // Also an infinity: it becomes the largest float there is.
      return FirstOf<double>(
          data, count, [](double v) { return std::fabs(v) > std::numeric_limits<float>::max(); });
    default:
      return std::nullopt;
  }
}

template <typename T>
bool AreLimits(const void* data, std::size_t count) {
  using Limits = std::numeric_limits<T>;
  return !FirstOf<T>(data, count, [](T v) { return v > Limits::lowest() && v < Limits::max(); });
}

/// Limits of the type as bounds, which a Clip without bounds gets: a number that fits is within
/// them, whatever they become.
bool BoundsNothing(const ov::op::v0::Constant& constant, DType dtype, const void* data,
                   std::size_t count) {
  const auto users = constant.output(0).get_target_inputs();
  const auto compares = [](const auto& user) {
    return ov::is_type<ov::op::v1::Minimum>(user.get_node()) ||
           ov::is_type<ov::op::v1::Maximum>(user.get_node());
  };
  if (users.empty() || !std::all_of(users.begin(), users.end(), compares)) return false;
  switch (dtype) {
    case DType::kU64:
      return AreLimits<std::uint64_t>(data, count);
    case DType::kU32:
      return AreLimits<std::uint32_t>(data, count);
    case DType::kF64:
      return AreLimits<double>(data, count);
    default:
      return false;
  }
}

/// The first number of a constant that does not fit.
std::optional<std::string> ConstantBeyond(const ov::op::v0::Constant& constant) {
  const auto dtype = WideType(constant.get_element_type());
  if (!dtype) return std::nullopt;
  const void* const data = constant.get_data_ptr();
  const std::size_t count = ov::shape_size(constant.get_shape());
  if (*dtype != DType::kI64) {
    if (BoundsNothing(constant, *dtype, data, count)) return std::nullopt;
    return FirstBeyond(*dtype, data, count);
  }
  // The largest there are stand for "up to the end", and still do in 32 bits.
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max() - 1;
  return FirstOf<std::int64_t>(data, count, [](std::int64_t v) {
    return (v > std::numeric_limits<std::int32_t>::max() && v < kEnd) ||
           (v < std::numeric_limits<std::int32_t>::min() && v > -kEnd);
  });
}

/// The name of a constant whose numbers do not fit, with the first of these; here or in a branch or
/// loop.
std::optional<std::string> ConstantBeyond(const ov::Model& model) {
  for (const auto& node : model.get_ops()) {
    if (const auto outer = ov::as_type_ptr<ov::op::util::MultiSubGraphOp>(node)) {
      for (std::size_t i = 0; i < outer->get_internal_subgraphs_size(); ++i) {
        if (auto inner = ConstantBeyond(*outer->get_function(i))) return inner;
      }
    }
    const auto constant = ov::as_type_ptr<ov::op::v0::Constant>(node);
    if (!constant) continue;
    if (const auto beyond = ConstantBeyond(*constant)) {
      return *beyond + " in " + constant->get_friendly_name();
    }
  }
  return std::nullopt;
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

  Result<std::vector<OwnedTensor>> Run(const Inputs& inputs,
                                       const std::vector<TensorSignature>& outputs) override {
    try {
      Borrowed request(this);
      if (Status set = SetInputs(inputs, &*request); !set.ok()) return set;
      request->infer();
      std::vector<OwnedTensor> out;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const TensorSignature& signature = outputs[i];
        const auto port = Port(outputs_, compiled_.outputs(), signature.name, i, outputs.size());
        if (!port) return InternalError("the runtime has no output " + signature.name);
        const ov::Tensor tensor = request->get_tensor(*port);
        if (tensor.get_element_type() != *ToElement(signature.dtype)) {
          return InternalError("the runtime gives " + signature.name + " in another type");
        }
        out.push_back(CopyOut(signature, tensor));
      }
      return out;
    } catch (const ov::Exception& error) {
      // Types and the sizes that the graph names were compared: what is left are sizes that do not
      // go together, which only the graph knows.
      return InvalidArgumentError("the graph cannot be run with " + ShapesOf(inputs) +
                                  ": do their sizes belong together? OpenVINO: " + error.what());
    } catch (const std::exception& error) {
      return StatusOf(error);
    }
  }

  Status Warm(const Inputs& inputs, std::size_t at_once) override {
    try {
      // All are held before the first is given back, or there would be one. What a first run makes
      // (kernels for these shapes) is the model's: one is enough.
      std::deque<Borrowed> requests;
      for (std::size_t i = 0; i < std::max<std::size_t>(at_once, 1); ++i) {
        requests.emplace_back(this);
      }
      ov::InferRequest* const first = &*requests.front();
      if (Status set = SetInputs(inputs, first); !set.ok()) return set;
      first->infer();
      return Status::Ok();
    } catch (const std::exception& error) {
      return StatusOf(error);
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
      if (const auto beyond = ConstantBeyond(*model)) {
        return InvalidArgumentError("the number " + *beyond +
                                    " does not fit in 32 bits, in which OpenVINO computes");
      }
      return std::unique_ptr<Runtime>(std::make_unique<OpenVinoRuntime>(model, options_));
    } catch (const std::exception& error) {
      return StatusOf(error);
    }
  }

 private:
  using Ports = std::map<std::string, ov::Output<const ov::Node>>;

  static Status StatusOf(const std::exception& error) {
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
      return ResourceExhaustedError("OpenVINO has no memory");
    }
    return InternalError(std::string("OpenVINO: ") + error.what());
  }

  Status SetInputs(const Inputs& inputs, ov::InferRequest* request) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& [signature, feed] = inputs[i];
      const auto port = Port(inputs_, compiled_.inputs(), signature->name, i, inputs.size());
      const auto element = ToElement(feed->dtype);
      if (!port || !element) return InternalError("the runtime has no input " + signature->name);
      const ov::Shape shape(feed->shape.begin(), feed->shape.end());
      if (const auto beyond = FirstBeyond(feed->dtype, feed->data, ov::shape_size(shape))) {
        return InvalidArgumentError("the feed \"" + signature->name + "\" has " + *beyond +
                                    ", and OpenVINO computes in 32 bits: it would take it for "
                                    "another number; run model.onnx with onnxruntime");
      }
      // The runtime only reads inputs; its interface does not say so.
      request->set_tensor(*port, ov::Tensor(*element, shape, const_cast<void*>(feed->data)));
    }
    return Status::Ok();
  }

  /// By its name or, where OpenVINO has dropped that with an operator that does nothing (a dropout
  /// that predicts), by its place: the graph has inputs and outputs in the signature's order.
  static std::optional<ov::Output<const ov::Node>> Port(
      const Ports& by_name, const std::vector<ov::Output<const ov::Node>>& all,
      const std::string& name, std::size_t place, std::size_t count) {
    const auto found = by_name.find(name);
    if (found != by_name.end()) return found->second;
    if (all.size() != count) return std::nullopt;
    return all[place];
  }

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
    ov::InferRequest& operator*() { return request_; }

   private:
    OpenVinoRuntime* const runtime_;
    ov::InferRequest request_;
  };

  const std::shared_ptr<ov::Model> model_;  // shared: OpenVINO's own way
  const InferenceOptions options_;
  ov::CompiledModel compiled_;
  Ports inputs_;
  Ports outputs_;
  std::mutex mutex_;
  std::vector<ov::InferRequest> idle_;  // guarded by mutex_
};

}  // namespace
}  // namespace cairn

extern "C" __attribute__((visibility("default"))) bool cairn_runtime_v2(
    const std::string& model_path, const cairn::InferenceOptions& options,
    std::unique_ptr<cairn::Runtime>* out, std::string* error) {
  try {
    const std::shared_ptr<ov::Model> model = cairn::Core().read_model(model_path);
    if (cairn::HasScan(*model)) {
      *error =
          "it has the operator Scan, which OpenVINO computes wrongly; write it as a Loop, or run "
          "model.onnx with onnxruntime";
      return false;
    }
    if (const auto beyond = cairn::ConstantBeyond(*model)) {
      *error = "it has the number " + *beyond +
               ", and OpenVINO computes in 32 bits: it would take it for another number; run "
               "model.onnx with onnxruntime";
      return false;
    }
    *out = std::make_unique<cairn::OpenVinoRuntime>(model, options);
    return true;
  } catch (const std::exception& thrown) {
    *error = thrown.what();
    return false;
  }
}
