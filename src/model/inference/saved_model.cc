#include "model/inference/saved_model.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"
#include "checkpoint/stored_bytes.h"
#include "checkpoint/transfer.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/inference/signature.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSignatureBytes = 64u << 20;

/// A directory of saves (its latest), or one checkpoint's directory.
Result<PlacedCheckpoint> PlaceOf(const std::string& path) {
  ASSIGN_OR_RETURN(const bool repository, IsRepository(path));
  if (!repository) return ReadCheckpointAt(path);
  PlacedCheckpoint placed;
  ASSIGN_OR_RETURN(placed.env, ExistingDirectory(path));
  RepositoryReader reader(placed.env.store.get());
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  const Checkpoint* latest = view.Latest();
  if (latest == nullptr) {
    if (!view.damaged.empty()) return view.damaged.front().status;
    return NotFoundError("there is no complete save yet");
  }
  placed.checkpoint = *latest;
  return placed;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string out;
  for (const std::int64_t dim : shape) {
    out += (out.empty() ? "" : ",") + (dim < 0 ? std::string("?") : std::to_string(dim));
  }
  return "[" + out + "]";
}

}  // namespace

LocalGraph::LocalGraph(LocalGraph&& other) noexcept
    : path_(std::move(other.path_)), copy_(std::exchange(other.copy_, {})) {}

LocalGraph::~LocalGraph() {
  std::error_code ignored;
  if (!copy_.empty()) fs::remove_all(copy_, ignored);
}

Result<LocalGraph> LocalGraph::Of(const OpenSave& save) {
  LocalGraph graph;
  if (!IsRemote(save.info.path)) {
    graph.path_ = save.info.path + "/" + std::string(kInferenceModel);
    return graph;
  }
  std::string made = (fs::temp_directory_path() / "cairn-model-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) {
    return UnavailableError("no temporary directory for the model: " + made);
  }
  graph.copy_ = made;
  ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(graph.copy_, {.create = false}));
  StoredBytes bytes(save.placed.env.store.get(), save.files.get());
  IncomingFiles files;
  for (std::size_t i = 0; i < save.files->files().size(); ++i) {
    const ManifestFile& file = *save.files->files()[i].entry;
    files.AddCopy(file.path, file.part, file.hash,
                  std::make_unique<StoredFileSource>(&bytes, i, /*begin=*/0));
  }
  std::vector<std::string> created;
  RETURN_IF_ERROR(files.Write(env, "", {}, &created).status());
  graph.path_ = graph.copy_ + "/" + std::string(kInferenceModel);
  return graph;
}

std::string NewestSave(const std::string& path) {
  const auto placed = PlaceOf(path);
  return placed.ok() ? placed->checkpoint.manifest->id : "";
}

Result<OpenSave> OpenAndVerify(const std::string& path, std::string* id) {
  OpenSave save;
  ASSIGN_OR_RETURN(save.placed, PlaceOf(path));
  if (id != nullptr) *id = save.placed.checkpoint.manifest->id;
  Store* store = save.placed.env.store.get();
  const Checkpoint& checkpoint = save.placed.checkpoint;
  ASSIGN_OR_RETURN(save.files,
                   OpenCheckpoint::Open(store, checkpoint.directory, checkpoint.manifest));
  const std::ptrdiff_t model = save.files->FindFile(kInferenceModel);
  if (model < 0 || save.files->FindFile(kInferenceSignature) < 0) {
    return InvalidArgumentError(
        "this is no inference model (it has no model.onnx); save_inference_model writes one");
  }
  std::vector<VerifyProblem> problems;
  RETURN_IF_ERROR(VerifyFiles(store, *save.files, {}, &problems).status());
  if (!problems.empty()) return CorruptionError(problems.front().what);
  ASSIGN_OR_RETURN(const std::string signature,
                   save.files->ReadWhole(kInferenceSignature, kMaxSignatureBytes));
  ASSIGN_OR_RETURN(save.signature, DecodeSignature(signature));
  save.graph = save.files->files()[static_cast<std::size_t>(model)].entry->hash.whole;
  save.info = MakeInfo(*store, checkpoint);
  return save;
}

Result<std::vector<Runtime::Weight>> ReadWeights(const OpenSave& save) {
  RestoreRequest request;
  request.allocate = true;
  ASSIGN_OR_RETURN(Restored restored,
                   RestoreCheckpoint(save.placed.env.store.get(), save.files.get(), request,
                                     names::Participant("rank", 0), {}));
  std::vector<Runtime::Weight> weights;
  for (OwnedTensor& tensor : restored.tensors) {
    weights.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
                       std::move(tensor.data), tensor.bytes});
  }
  return weights;
}

Status CheckFeed(const TensorSignature& wanted, const FeedTensor& feed) {
  bool fits = feed.dtype == wanted.dtype && feed.shape.size() == wanted.shape.size();
  for (std::size_t d = 0; fits && d < wanted.shape.size(); ++d) {
    fits = wanted.shape[d] < 0 || feed.shape[d] == static_cast<std::uint64_t>(wanted.shape[d]);
  }
  const auto bytes = TensorBytes(feed.dtype, feed.shape);
  if (!bytes.ok()) return bytes.status().WithContext("feed " + QuoteForMessage(wanted.name));
  if (fits && *bytes > 0 && feed.data == nullptr) {
    return InvalidArgumentError("the feed " + QuoteForMessage(wanted.name) + " has no memory");
  }
  if (fits) return Status::Ok();
  return InvalidArgumentError(fmt::format("the feed {} is {} [{}]; the model wants {} {}",
                                          QuoteForMessage(wanted.name), DTypeName(feed.dtype),
                                          EncodeDims(feed.shape), DTypeName(wanted.dtype),
                                          ShapeText(wanted.shape)));
}

Status UnknownFeed(const ModelSignature& signature,
                   const std::map<std::string, FeedTensor>& feeds) {
  for (const auto& [name, feed] : feeds) {
    bool known = false;
    for (const TensorSignature& wanted : signature.inputs) known |= wanted.name == name;
    if (known) continue;
    std::string names;
    for (const TensorSignature& wanted : signature.inputs) {
      names += (names.empty() ? "" : ", ") + wanted.name;
    }
    return InvalidArgumentError("the model has no feed " + QuoteForMessage(name) +
                                "; its feeds are " + names);
  }
  return InternalError("a feed is there twice");
}

}  // namespace cairn
