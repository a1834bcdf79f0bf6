// The plugin: the one file that includes OpenVINO's headers. OpenVINO throws; nothing leaves here.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <openvino/op/constant.hpp>
#include <openvino/op/maximum.hpp>
#include <openvino/op/minimum.hpp>
#include <openvino/op/tensor_iterator.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/openvino.hpp>
#include <optional>
#include <set>
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
  OwnedTensor out;
  out.name = signature.name;
  out.dtype = signature.dtype;
  const ov::Shape& shape = tensor.get_shape();
  out.shape.assign(shape.begin(), shape.end());
  out.bytes = tensor.get_byte_size();
  // One piece of memory for the elements and for what counts their owners.
  constexpr std::size_t kAlign = 64;
  std::size_t room = out.bytes + kAlign;
  auto memory = std::make_shared_for_overwrite<std::byte[]>(room);
  void* begin = memory.get();
  auto* const data = static_cast<std::byte*>(std::align(kAlign, out.bytes, begin, room));
  out.data = std::shared_ptr<std::byte>(std::move(memory), data);
  if (out.bytes > 0) std::memcpy(data, tensor.data(), out.bytes);
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

bool HasInnerGraphs(const ov::Model& model) {
  const auto ops = model.get_ops();
  return std::any_of(ops.begin(), ops.end(), [](const std::shared_ptr<ov::Node>& node) {
    return ov::is_type<ov::op::util::MultiSubGraphOp>(node);
  });
}

/// Whether the sizes of feeds go together, by the rules of every operator. The CPU plugin does not
/// ask (seen in 2026.4: rows that are added to fewer rows give no rows, or a segmentation fault).
/// May be called from many threads.
class SizeRules {
 public:
  /// Of a branch that is not taken the sizes need not go together, and nobody knows before which
  /// one that is: then there are no rules.
  explicit SizeRules(std::shared_ptr<ov::Model> model)
      : model_(std::move(model)), rules_(model_->is_dynamic() && !HasInnerGraphs(*model_)) {}

  /// Throws ov::Exception when they do not. `ports`: the places of the inputs in the model.
  void Check(const Runtime::Inputs& inputs, const std::vector<std::size_t>& ports) {
    if (!rules_) return;
    std::vector<std::uint64_t> sizes;
    for (const auto& [signature, feed] : inputs) {
      sizes.insert(sizes.end(), feed->shape.begin(), feed->shape.end());
    }
    const std::lock_guard lock(mutex_);
    if (fitting_.contains(sizes)) return;
    if (reshaped_ == nullptr) reshaped_ = model_->clone();
    std::map<ov::Output<ov::Node>, ov::PartialShape> shapes;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& shape = inputs[i].second->shape;
      shapes[reshaped_->input(ports[i])] = ov::Shape(shape.begin(), shape.end());
    }
    reshaped_->reshape(shapes);
    if (fitting_.size() >= kMostKept) fitting_.clear();
    fitting_.insert(std::move(sizes));
  }

 private:
  static constexpr std::size_t kMostKept = 4096;

  const std::shared_ptr<ov::Model> model_;  // shared: OpenVINO's own way
  const bool rules_;
  std::mutex mutex_;
  std::shared_ptr<ov::Model> reshaped_;  // guarded by mutex_; a clone: it shares the weights
  std::set<std::vector<std::uint64_t>> fitting_;  // guarded by mutex_; all sizes of feeds in turn
};

/// A model that is compiled, and compiled anew when a run has failed. OpenVINO keeps what it knows
/// of shapes in the compiled graph, and after a failure what it knows is wrong (seen in 2026.4:
/// feeds that are right get wrong numbers then, by whatever request).
class OpenVinoRuntime final : public Runtime {
 public:
  OpenVinoRuntime(std::shared_ptr<ov::Model> model, const InferenceOptions& options)
      : model_(std::move(model)), options_(options), sizes_(model_), compiled_(Compile()) {}

  Result<std::vector<OwnedTensor>> Run(const Inputs& inputs,
                                       const std::vector<TensorSignature>& outputs) override {
    try {
      while (true) {
        Borrowed request(this);
        if (Status set = SetInputs(inputs, &request); !set.ok()) return set;
        if (!Infer(&request)) continue;
        return TakeOutputs(outputs, request.compiled().outputs, &*request);
      }
    } catch (const ov::Exception& error) {
      Renew();
      // Types and the sizes that the graph names were compared: what is left are sizes that do not
      // go together, which only the graph knows.
      return InvalidArgumentError("the graph cannot be run with " + ShapesOf(inputs) +
                                  ": do their sizes belong together? OpenVINO: " + error.what());
    } catch (const std::exception& error) {
      Renew();
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
      Borrowed& first = requests.front();
      if (Status set = SetInputs(inputs, &first); !set.ok()) return set;
      Infer(&first);
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
  /// Inputs or outputs of the compiled model: their places there by name.
  struct Ports {
    std::map<std::string, std::size_t> by_name;
    std::size_t count = 0;
  };

  /// An input or output as a request knows it.
  struct Port {
    std::string name;  // "": not looked for yet
    std::size_t index = 0;

    /// Looks for it, unless that was done before. By its name or, where OpenVINO has dropped that
    /// with an operator that does nothing (a dropout that predicts), by its place: the graph has
    /// inputs and outputs in the signature's order.
    bool Find(const Ports& ports, const std::string& wanted, std::size_t place, std::size_t count) {
      if (name == wanted) return true;
      const auto found = ports.by_name.find(wanted);
      if (found == ports.by_name.end() && ports.count != count) return false;
      index = found == ports.by_name.end() ? place : found->second;
      name = wanted;
      return true;
    }
  };

  /// An input, with what the request was given for it last: giving it a tensor takes longer than
  /// copying a small feed to where the one before was.
  struct Input {
    Port port;
    DType dtype = DType::kF32;
    std::vector<std::uint64_t> shape;
    const void* data = nullptr;  // of the feed before, or `own`
    ov::Tensor own;              // empty where the feed before was too large to be copied
  };

  struct Request {
    ov::InferRequest infer;
    std::vector<Input> inputs;
    std::vector<Port> outputs;
  };

  /// One compilation, and the requests that run it: as many as run at once.
  struct Compiled {
    ov::CompiledModel model;
    Ports inputs;
    Ports outputs;
    bool dynamic = false;  // has sizes that are known at run time
    /// Of one run at a time where sizes are dynamic: whoever waits for one that fails must not run
    /// after it. OpenVINO itself runs one at a time for the shortest latency.
    std::mutex running;
    std::atomic<bool> spoilt = false;            // a run has failed; set under `running`
    std::vector<std::unique_ptr<Request>> idle;  // guarded by the runtime's mutex_
  };

  /// Feeds up to this size are copied.
  static constexpr std::size_t kMostCopied = 4096;

  static Status StatusOf(const std::exception& error) {
    if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
      return ResourceExhaustedError("OpenVINO has no memory");
    }
    return InternalError(std::string("OpenVINO: ") + error.what());
  }

  static Ports PortsOf(const std::vector<ov::Output<const ov::Node>>& all) {
    Ports ports;
    ports.count = all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const std::string& name : all[i].get_names()) ports.by_name.emplace(name, i);
    }
    return ports;
  }

  std::shared_ptr<Compiled> Compile() const {
    ov::AnyMap config = {
        // The default computes in bf16 where the processor can, and is off by 1e-3.
        {ov::hint::inference_precision.name(), ov::element::f32},
        {ov::hint::performance_mode.name(), ov::hint::PerformanceMode::LATENCY},
    };
    if (options_.threads > 0) config.emplace(ov::inference_num_threads.name(), options_.threads);
    auto compiled = std::make_shared<Compiled>();
    compiled->model = Core().compile_model(model_, "CPU", config);
    compiled->inputs = PortsOf(compiled->model.inputs());
    compiled->outputs = PortsOf(compiled->model.outputs());
    compiled->dynamic = model_->is_dynamic();
    return compiled;
  }

  /// Whoever made a run fail waits for the new compilation, so that the next one need not.
  void Renew() {
    try {
      const Borrowed request(this);
    } catch (const std::exception&) {
      // The next run tries again, and says what is wrong.
    }
  }

  class Borrowed;
  /// False: another run has spoilt the compiled graph meanwhile, and nothing was computed.
  static bool Infer(Borrowed* request) {
    Compiled& compiled = request->compiled();
    std::unique_lock<std::mutex> lock(compiled.running, std::defer_lock);
    if (compiled.dynamic) lock.lock();
    if (compiled.spoilt) return false;
    try {
      (*request)->infer.infer();
    } catch (...) {
      compiled.spoilt = true;
      throw;
    }
    return true;
  }

  Status SetInputs(const Inputs& inputs, Borrowed* borrowed) {
    Request* const request = &**borrowed;
    request->inputs.resize(inputs.size());
    bool all_known = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& [signature, feed] = inputs[i];
      Input& input = request->inputs[i];
      const bool known = input.data != nullptr && input.port.name == signature->name &&
                         input.dtype == feed->dtype && input.shape == feed->shape;
      if (!known) input.data = nullptr;
      all_known = all_known && known;
      if (!ToElement(feed->dtype) ||
          !input.port.Find(borrowed->compiled().inputs, signature->name, i, inputs.size())) {
        return InternalError("the runtime has no input " + signature->name);
      }
    }
    if (!all_known) CheckSizes(inputs, *request);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto& [signature, feed] = inputs[i];
      std::size_t count = 1;
      for (const std::uint64_t size : feed->shape) count *= size;
      if (const auto beyond = FirstBeyond(feed->dtype, feed->data, count)) {
        return InvalidArgumentError("the feed \"" + signature->name + "\" has " + *beyond +
                                    ", and OpenVINO computes in 32 bits: it would take it for "
                                    "another number; run model.onnx with onnxruntime");
      }
      const ov::element::Type element = *ToElement(feed->dtype);
      SetInput(*feed, element, count * element.size(), request, &request->inputs[i]);
    }
    return Status::Ok();
  }

  void CheckSizes(const Inputs& inputs, const Request& request) {
    std::vector<std::size_t> ports;
    for (const Input& input : request.inputs) ports.push_back(input.port.index);
    sizes_.Check(inputs, ports);
  }

  /// `input->data` is null where the request does not know the shape yet.
  static void SetInput(const FeedTensor& feed, const ov::element::Type& element, std::size_t bytes,
                       Request* request, Input* input) {
    const bool copied = bytes <= kMostCopied;
    const bool set =
        input->data != nullptr && (copied ? bool(input->own) : input->data == feed.data);
    if (!set) {
      const ov::Shape shape(feed.shape.begin(), feed.shape.end());
      input->data = nullptr;
      input->own = copied ? ov::Tensor(element, shape) : ov::Tensor();
      // The runtime only reads inputs; its interface does not say so.
      const ov::Tensor tensor =
          copied ? input->own : ov::Tensor(element, shape, const_cast<void*>(feed.data));
      request->infer.set_input_tensor(input->port.index, tensor);
      input->dtype = feed.dtype;
      input->shape = feed.shape;
      input->data = copied ? tensor.data() : feed.data;
    }
    if (copied && bytes > 0) std::memcpy(input->own.data(), feed.data, bytes);
  }

  static Result<std::vector<OwnedTensor>> TakeOutputs(const std::vector<TensorSignature>& outputs,
                                                      const Ports& ports, Request* request) {
    std::vector<OwnedTensor> out;
    out.reserve(outputs.size());
    request->outputs.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const TensorSignature& signature = outputs[i];
      if (!request->outputs[i].Find(ports, signature.name, i, outputs.size())) {
        return InternalError("the runtime has no output " + signature.name);
      }
      const ov::Tensor tensor = request->infer.get_output_tensor(request->outputs[i].index);
      if (tensor.get_element_type() != *ToElement(signature.dtype)) {
        return InternalError("the runtime gives " + signature.name + " in another type");
      }
      out.push_back(CopyOut(signature, tensor));
    }
    return out;
  }

  /// A request of the current compilation, for as long as one Run takes.
  class Borrowed {
   public:
    explicit Borrowed(OpenVinoRuntime* runtime) : runtime_(runtime) {
      {
        const std::lock_guard lock(runtime_->mutex_);
        if (runtime_->compiled_->spoilt) runtime_->compiled_ = runtime_->Compile();
        compiled_ = runtime_->compiled_;
        if (!compiled_->idle.empty()) {
          request_ = std::move(compiled_->idle.back());
          compiled_->idle.pop_back();
          return;
        }
      }
      request_ = std::make_unique<Request>();
      request_->infer = compiled_->model.create_infer_request();
    }
    ~Borrowed() {
      if (compiled_->spoilt) return;
      const std::lock_guard lock(runtime_->mutex_);
      compiled_->idle.push_back(std::move(request_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    Compiled& compiled() { return *compiled_; }
    Request* operator->() { return request_.get(); }
    Request& operator*() { return *request_; }

   private:
    OpenVinoRuntime* const runtime_;
    std::shared_ptr<Compiled> compiled_;  // shared: another one may take its place meanwhile
    std::unique_ptr<Request> request_;
  };

  const std::shared_ptr<ov::Model> model_;  // shared: OpenVINO's own way
  const InferenceOptions options_;
  SizeRules sizes_;
  std::mutex mutex_;
  std::shared_ptr<Compiled> compiled_;  // guarded by mutex_; shared with the runs that use it
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
