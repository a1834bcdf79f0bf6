#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>

/// Variables by role. A program declares its variables in a scope, initialises them, trains, and
/// saves or loads them by role (io.h):
///
///   cairn::Scope& scope = cairn::DefaultScope();
///   scope.Parameter("fc/w", DType::kF32, {8, 4}, {.initializer =
///                   cairn::VariableInitializer::Uniform(-0.1, 0.1)});
///   scope.Persistable("lr", DType::kF32, {});
///   scope.Initialize(/*seed=*/7);
///   std::span<float> w = scope.Values<float>("fc/w").value();
namespace cairn {

/// What a variable is for. Every parameter is persistable too.
enum class Role : std::uint8_t {
  kParameter,    // learned
  kPersistable,  // lives across iterations: optimizer slots, learning rate, counters, statistics
  kTemporary,    // destroyed at the end of the iteration, never saved
};
std::string_view RoleName(Role role);  // "parameter", "persistable", "temporary"
std::optional<Role> RoleFromName(std::string_view name);

/// The first values of a variable: a pure function of (seed, the variable's name, the element), so
/// that they depend neither on the order of declarations nor on threads. Integer variables take
/// Constant alone.
struct VariableInitializer {
  enum class Kind : std::uint8_t { kConstant, kUniform, kNormal, kTruncatedNormal };
  Kind kind = Kind::kConstant;
  double a = 0;  // the constant; the lower end; the mean
  double b = 0;  // the upper end; the standard deviation

  static VariableInitializer Constant(double value) { return {Kind::kConstant, value, 0}; }
  static VariableInitializer Uniform(double low, double high) {
    return {Kind::kUniform, low, high};
  }
  static VariableInitializer Normal(double mean, double deviation) {
    return {Kind::kNormal, mean, deviation};
  }
  /// Values farther than two deviations from the mean are drawn again.
  static VariableInitializer TruncatedNormal(double mean, double deviation) {
    return {Kind::kTruncatedNormal, mean, deviation};
  }

  friend bool operator==(const VariableInitializer&, const VariableInitializer&) = default;
};

struct VariableOptions {
  const void* data = nullptr;                      // first values, copied; else zeros
  std::optional<VariableInitializer> initializer;  // run by Initialize
  bool trainable = true;                           // for the optimizer; parameters only
  double learning_rate_factor = 1;                 // likewise; finite
};

/// What a scope knows of a variable.
struct Variable {
  std::string name;
  Role role = Role::kParameter;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::optional<VariableInitializer> initializer;
  bool trainable = true;
  double learning_rate_factor = 1;
  bool loaded = false;  // its values came out of a file
  bool frozen = false;  // of a clone for testing: nobody may write it by this scope
  /// For reading; Scope::MutableBytes is for writing. Shared: views that bindings handed out
  /// outlive the variable.
  std::shared_ptr<const std::byte> data;
};

struct InitializeOptions {
  /// Initialise variables whose values were loaded, too. Otherwise that is refused: an initializer
  /// that runs after a load would throw the loaded values away in silence.
  bool overwrite = false;
};

/// A program's variables by name. Its methods may be called from several threads; who reads and
/// writes a variable's memory at the same time is the callers' affair. A failed call changes
/// nothing.
class Scope {
 public:
  Scope() = default;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// Declare a variable: a name of UTF-8 text, not empty, not taken (AlreadyExists). In a frozen
  /// scope only temporaries may be declared.
  Status Parameter(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                   const VariableOptions& options = {});
  Status Persistable(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                     const VariableOptions& options = {});
  Status Temporary(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                   const VariableOptions& options = {});

  /// NotFound says which names are like it.
  Result<Variable> Find(std::string_view name) const;
  bool Contains(std::string_view name) const;
  /// By name. kPersistable gives the parameters too; nullopt all.
  std::vector<Variable> Vars(std::optional<Role> role = std::nullopt) const;

  /// A variable's memory. Writing is refused in a frozen scope (FailedPrecondition), except to
  /// temporaries.
  Result<std::span<const std::byte>> Bytes(std::string_view name) const;
  Result<std::span<std::byte>> MutableBytes(std::string_view name);
  /// The same as numbers; InvalidArgument when the variable is of another dtype.
  template <typename T>
  Result<std::span<T>> Values(std::string_view name);

  /// Runs the initializers. FailedPrecondition, naming them, when variables were loaded (see
  /// InitializeOptions).
  Status Initialize(std::uint64_t seed, const InitializeOptions& options = {});
  /// Destroys the temporaries.
  void EndIteration();
  /// Destroys all variables: a new program begins.
  Status Clear();

  /// With `for_test`: a frozen scope over the same memory, for predicting while (or after)
  /// training: it sees the parameters and cannot change them. Otherwise an independent copy.
  /// Neither has temporaries.
  Result<std::unique_ptr<Scope>> Clone(bool for_test) const;
  bool frozen() const { return frozen_; }

  /// For loaders: these values came out of a file.
  void MarkLoaded(const std::vector<std::string>& names);

 private:
  Status Declare(std::string name, Role role, DType dtype, std::vector<std::uint64_t> shape,
                 const VariableOptions& options);
  Status CheckType(std::string_view name, std::span<const DType> dtypes, std::size_t bytes) const;
  Status FindLocked(std::string_view name, const Variable** found) const;

  bool frozen_ = false;  // set once, by Clone
  mutable std::mutex mutex_;
  std::map<std::string, Variable, std::less<>> variables_;  // guarded by mutex_
};

/// The scope of a program that names none.
Scope& DefaultScope();

template <typename T>
Result<std::span<T>> Scope::Values(std::string_view name) {
  static_assert(std::is_arithmetic_v<std::remove_const_t<T>>);
  using Number = std::remove_const_t<T>;
  std::vector<DType> fitting;
  if constexpr (std::is_same_v<Number, bool>) {
    fitting = {DType::kBool};
  } else if constexpr (std::is_floating_point_v<Number>) {
    fitting = {sizeof(Number) == 4 ? DType::kF32 : DType::kF64};
  } else if constexpr (sizeof(Number) == 8) {
    fitting = {std::is_signed_v<Number> ? DType::kI64 : DType::kU64};
  } else if constexpr (sizeof(Number) == 4) {
    fitting = {std::is_signed_v<Number> ? DType::kI32 : DType::kU32};
  } else if constexpr (sizeof(Number) == 2) {
    fitting = {std::is_signed_v<Number> ? DType::kI16 : DType::kU16};
    if (std::is_unsigned_v<Number>) fitting.insert(fitting.end(), {DType::kF16, DType::kBF16});
  } else {
    fitting = {std::is_signed_v<Number> ? DType::kI8 : DType::kU8};
  }
  if (Status status = CheckType(name, fitting, sizeof(Number)); !status.ok()) return status;
  if constexpr (std::is_const_v<T>) {
    auto bytes = Bytes(name);
    if (!bytes.ok()) return bytes.status();
    return std::span<T>(reinterpret_cast<T*>(bytes->data()), bytes->size() / sizeof(T));
  } else {
    auto bytes = MutableBytes(name);
    if (!bytes.ok()) return bytes.status();
    return std::span<T>(reinterpret_cast<T*>(bytes->data()), bytes->size() / sizeof(T));
  }
}

}  // namespace cairn
