#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/inference.h>
#include <cairn/session.h>
#include <cairn/status.h>
#include <cairn/storage_options.h>
#include <cairn/table.h>

/// Serving that follows training: a model is exported once, and then takes the tables and dense
/// variables of each checkpoint that the training job commits.
///
///   cairn::serving::Export({.directory = "export", .model = onnx, .feed_names = {"x", "user"},
///                           .target_names = {"score"}, .tables = {{"user",
///                           ExportTable::Of(*users)}}, .increments = true, .session =
///                           &session_options}).value();
///   auto model = cairn::serving::Model::Open({.export_dir = "export",
///                                             .repository = "runs/a"}).value();
///   auto scores = model->Predict({{"x", …}, {"user", {DType::kI64, {64}, ids}}}).value();
///
/// In the library cairn::predict of the installed package.
namespace cairn::serving {

// ---------------------------------------------------------------- export

/// A table as an export remembers it.
struct ExportTable {
  std::string name;  // as in the checkpoints
  std::uint32_t dim = 0;
  DType dtype = DType::kF32;
  float default_value = 0;  // of the weights of ids that are not there

  /// The default is the constant of a constant initializer, otherwise 0: random weights that were
  /// never trained tell a model nothing.
  static ExportTable Of(const Table& table);
};

struct ExportRequest {
  std::string directory;   // the export becomes its numbered subdirectory: 1, 2, …
  std::string model;       // a serialized ONNX ModelProto …
  std::string model_path;  // … or the file of one
  std::vector<std::string> feed_names;
  std::vector<std::string> target_names;
  /// Inputs of the graph that are rows of a table. Whoever asks the served model gives ids instead.
  std::map<std::string, ExportTable> tables;
  /// Weights of the graph → variables of the checkpoints, for names that differ. Others are looked
  /// for by their name, alone or behind the last '/'; what a checkpoint does not have stays as
  /// exported.
  std::map<std::string, std::string> variables;
  /// The export loads full checkpoints and increments; false: full ones only.
  bool increments = false;
  /// Where given, an export for increments is refused (FailedPrecondition) when it saves none.
  const SessionOptions* session = nullptr;
};

struct Exported {
  std::string path;  // of the numbered directory
  std::int64_t version = 0;
  SavedInferenceModel model;
};

/// Writes the pruned graph, the dense weights, which table feeds which input, and the signature, in
/// one commit. InvalidArgument names an input that is no feed, or a table that does not fit it.
Result<Exported> Export(const ExportRequest& request);

// ---------------------------------------------------------------- serving

/// A guard: what the model must give for these feeds before a version is shown.
struct Probe {
  /// An input: owned, so that it lives as long as the model.
  struct Feed {
    DType dtype = DType::kF32;
    std::vector<std::uint64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Feed> feeds;
  std::string output;
  double min = 0;  // every element lies between, NaN never does
  double max = 1;
};

struct VersionInfo {
  std::int64_t step = 0;
  std::string id;                    // of the checkpoint
  std::int64_t committed_nanos = 0;  // since 1970, by the writer's clock
  std::uint64_t rows = 0;            // of all tables
};

/// What happened to a checkpoint (or, with an empty id, to the repository).
struct UpdateEvent {
  enum class Kind : std::uint8_t {
    kApplied,
    kRefused,     // damaged, not fitting, or a guard: the version before stays
    kPassedOver,  // of another job, of an abandoned branch, a broken chain, an unwanted increment
    kUnreachable,
    kAbandoned,  // the version that was served counts no longer
  };
  Kind kind = Kind::kApplied;
  std::string id;
  std::int64_t step = 0;
  bool full = false;
  std::uint64_t rows = 0;     // read
  std::uint64_t changed = 0;  // that were not as before
  double seconds = 0;
  std::string message;
};

struct ModelStats {
  std::uint64_t updates = 0;
  std::uint64_t refused = 0;
  std::uint64_t rows_applied = 0;
  double last_update_seconds = 0;
  double update_seconds = 0;      // of all
  std::int64_t newest_step = -1;  // committed, as far as is known
  std::int64_t newest_committed_nanos = 0;
  bool reachable = false;  // the repository, at the last look
  std::string last_problem;
  std::uint64_t table_bytes = 0;  // of rows and indexes in use
};

struct ModelOptions {
  std::string export_dir;  // a numbered directory, or the one above it: the newest is taken
  std::string repository;  // a path or URL
  StorageOptions storage;
  std::string job;  // whose repository it must be; "": the first that is found
  InferenceOptions inference;
  std::size_t keep_versions = 2;  // that stay beside the newest, to go back to
  std::chrono::nanoseconds poll = std::chrono::seconds(1);  // besides what inotify tells
  bool check_finite = true;  // refuse updates with NaN or infinite weights
  std::vector<Probe> probes;
  double cpu_share = 0.5;  // of a core for long updates
  /// Of the rows that one prediction looks up: more are refused before memory is taken. 0: no limit
  /// (the caller gives the ids).
  std::uint64_t max_row_bytes = 0;
  bool follow = true;           // false: what is there when it is opened, and Update()
  bool require_version = true;  // false: Open succeeds before the first checkpoint is there
  /// Without require_version: the follower makes the first look, and Open waits neither for a large
  /// checkpoint nor for a store that is silent. Until then there is no version.
  bool look_behind = false;
  std::function<void(const UpdateEvent&)> on_update;  // on the follower's thread; quick
};

/// A model that follows a training job's repository. All calls may come from many threads; none
/// waits for an update. A bad update changes nothing but the statistics.
class Model {
 public:
  static Result<std::unique_ptr<Model>> Open(ModelOptions options);
  virtual ~Model() = default;

  /// One version, for several calls that belong together. Must not outlive the model.
  class View {
   public:
    virtual ~View() = default;
    virtual VersionInfo version() const = 0;
    /// The rows of the ids as float32, `dim` each; the default for ids that are not there.
    virtual Status Lookup(std::string_view table, std::span<const std::int64_t> ids,
                          std::span<float> out) const = 0;
    /// The targets. Inputs that are rows of a table are given as int64 ids.
    virtual Result<std::vector<OwnedTensor>> Predict(
        const std::map<std::string, FeedTensor>& feeds) const = 0;
  };
  /// The visible version. Unavailable before there is one.
  virtual Result<std::unique_ptr<View>> Take() const = 0;
  /// One of Versions(), whichever is visible. NotFound, naming those that are kept.
  virtual Result<std::unique_ptr<View>> TakeStep(std::int64_t step) const = 0;

  // The same, each with a version of its own.
  virtual Status Lookup(std::string_view table, std::span<const std::int64_t> ids,
                        std::span<float> out) const = 0;
  virtual Result<std::vector<OwnedTensor>> Predict(
      const std::map<std::string, FeedTensor>& feeds) const = 0;
  virtual Result<VersionInfo> Version() const = 0;

  /// What is asked with: tables' inputs are int64 ids of any shape.
  virtual const ModelSignature& signature() const = 0;
  struct TableInfo {
    std::string name;
    std::uint32_t dim = 0;
  };
  virtual std::vector<TableInfo> tables() const = 0;
  /// Weights that no checkpoint has and that stay as exported; known with the first version.
  virtual std::vector<std::string> fixed_weights() const = 0;

  /// Shows the n-th version before the visible one, until Resume.
  virtual Status Rollback(std::size_t n = 1) = 0;
  virtual Status Pin(std::string_view id) = 0;
  virtual Status PinStep(std::int64_t step) = 0;
  virtual void Resume() = 0;
  virtual bool held() const = 0;
  virtual std::vector<VersionInfo> Versions() const = 0;  // oldest first

  /// A writer beside it says that it has committed.
  virtual void Notify() = 0;
  /// Looks for something new now, on this thread. Only with follow = false.
  virtual Status Update() = 0;
  /// Ends following for good, an update under way too; what is visible stays. By one thread,
  /// and not from on_update.
  virtual void StopFollowing() = 0;
  virtual ModelStats stats() const = 0;
};

}  // namespace cairn::serving
