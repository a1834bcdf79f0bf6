#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/scope.h>
#include <cairn/status.h>
#include <cairn/transfer.h>

/// Saving and loading variables by role. A save is a checkpoint in a directory of its own,
/// committed by a manifest: killed at any moment, the directory holds the save before or the new
/// one, whole.
///
///   cairn::SavePersistables("models/day1", scope).value();         // parameters, slots, counters
///   cairn::LoadPersistables("models/day1", &scope).value();        // the next day
///   cairn::LoadParams("models/day1", &predictor).value();          // parameters alone
namespace cairn {

/// A variable in anybody's memory: contiguous, row-major.
struct VariableView {
  std::string name;
  Role role = Role::kParameter;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  void* data = nullptr;    // only read by a save
  bool read_only = false;  // a load refuses it
};

/// A scope's variables that `wanted` is true for (all when it is empty), by name. Borrows the
/// scope's memory. Those of a frozen scope are read-only, but for temporaries.
using VariablePredicate = std::function<bool(const Variable&)>;
std::vector<VariableView> SelectVars(const Scope& scope, const VariablePredicate& wanted = {});

struct SaveVarsOptions {
  /// "": a file per variable, called as the variable (characters that files cannot have are
  /// escaped). Else all in this one file; ".safetensors" is added where it is missing.
  std::string filename;
  /// Variable → what its elements stand for, where the dtype does not say it ("complex64": pairs of
  /// floats; "datetime64[D]"). Recorded: a load refuses variables that mean something else.
  std::map<std::string, std::string> meanings;
  TransferControl control;
};

struct SavedVars {
  CheckpointInfo info;
  std::vector<std::string> names;  // of the variables, sorted
  std::uint64_t bytes = 0;         // of the variables
};

/// Saves the variables, durably, as the one content of `directory`, which is made when missing.
/// InvalidArgument: nothing was selected, a name twice, a temporary, or the directory holds a job's
/// checkpoints. Unavailable: somebody else writes there now.
Result<SavedVars> SaveVars(const std::string& directory, std::span<const VariableView> variables,
                           const SaveVarsOptions& options = {});
/// Variables of a scope for which `wanted` is true.
Result<SavedVars> SaveVars(const std::string& directory, const Scope& scope,
                           const VariablePredicate& wanted, const SaveVarsOptions& options = {});
Result<SavedVars> SaveParams(const std::string& directory, const Scope& scope,
                             const SaveVarsOptions& options = {});
Result<SavedVars> SavePersistables(const std::string& directory, const Scope& scope,
                                   const SaveVarsOptions& options = {});

/// Which of the stored variables must be wanted by somebody (with strict).
enum class StoredVars : std::uint8_t {
  kAll,         // all of them
  kParameters,  // the parameters; others may be stored too, and are passed over
  kAsked,       // none: the variables asked for are a selection
};

/// What wrote a file that Cairn did not.
enum class ForeignFormat : std::uint8_t {
  kGuess,          // by the file's name and first bytes
  kPaddleTensors,  // one tensor a file, or several behind each other: ForeignSource::names
  kPaddlePickle,   // .pdparams, .pdopt
  kTorch,          // torch.save of tensors (zip files)
  kSafetensors,
  kOnnx,  // the initializers of a model
};
std::string_view ForeignFormatName(ForeignFormat format);  // "paddle", "pdparams", "torch", …
std::optional<ForeignFormat> ForeignFormatFromName(std::string_view name);

struct ForeignSource {
  /// A file, or a directory of Paddle's one-variable files or of safetensors: a path or URL.
  std::string path;
  ForeignFormat format = ForeignFormat::kGuess;
  /// Paddle's combined files hold no names: those of the tensors in the order of the file (which
  /// is sorted by name where Paddle wrote it).
  std::vector<std::string> names;
};

/// All tensors of a foreign file, in new memory, by name. Nothing in it is executed: pickles are
/// read by an interpreter that knows the few constructors of arrays and refuses all else by name.
/// Corruption for damaged bytes; sizes are checked before memory is taken.
Result<std::vector<OwnedTensor>> ReadForeign(const ForeignSource& source);

struct LoadVarsOptions {
  StoredVars stored = StoredVars::kAll;
  bool strict = true;                         // false: what matches is loaded, the rest is reported
  std::map<std::string, std::string> rename;  // stored name → variable; misspelt ones are refused
  std::set<std::string> skip;                 // stored names or variables to leave alone; likewise
  MismatchReport* mismatch = nullptr;         // filled when the load is refused for mismatches
  std::map<std::string, std::string> meanings;  // as SaveVarsOptions has them
  /// For paths that are not Cairn's. `filename`: of one file in the directory (Paddle's combined
  /// file); a save knows its own files.
  std::string filename;
  ForeignFormat format = ForeignFormat::kGuess;
  std::vector<std::string> names;  // see ForeignSource
  TransferControl control;
};

struct LoadedVars {
  CheckpointInfo info;             // of a foreign file: the path alone
  std::vector<std::string> names;  // of the variables that were filled
  std::uint64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> skipped;  // (name, reason)
};

/// Fills the variables from a save, from any other checkpoint (a repository: its latest) or from a
/// foreign file. Names, shapes and dtypes of all variables are compared, and every checksum is
/// verified, before any memory changes: a failure leaves all variables as they were
/// (FailedPrecondition with options.mismatch filled, or Corruption). Neither the order of the
/// variables nor that of the file matters. FailedPrecondition: one of them is read-only.
Result<LoadedVars> LoadVars(const std::string& path, std::span<const VariableView> variables,
                            const LoadVarsOptions& options = {});
/// Into a scope, whose variables then count as loaded (see Scope::Initialize). The roles decide
/// which variables are asked for and `options.stored`. A frozen scope is refused.
Result<LoadedVars> LoadVars(const std::string& path, Scope* scope, const VariablePredicate& wanted,
                            const LoadVarsOptions& options = {});
Result<LoadedVars> LoadParams(const std::string& path, Scope* scope,
                              const LoadVarsOptions& options = {});
Result<LoadedVars> LoadPersistables(const std::string& path, Scope* scope,
                                    const LoadVarsOptions& options = {});

}  // namespace cairn
