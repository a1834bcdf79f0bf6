#include <cairn/scope.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/initializer.h"

namespace cairn {
namespace {

constexpr std::size_t kNamesInMessage = 5;

// 64-byte aligned, zeroed. Null when there is not so much.
std::shared_ptr<std::byte> AllocateVariable(std::uint64_t bytes) {
  constexpr std::align_val_t kAlign{64};
  void* memory = ::operator new(std::max<std::uint64_t>(bytes, 1), kAlign, std::nothrow);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), [](std::byte* p) { ::operator delete(p, kAlign); }};
}

/// The memory is a scope's own, and it writes what it may: others get it for reading.
std::span<std::byte> Writable(const Variable& variable) {
  return {const_cast<std::byte*>(variable.data.get()), variable.bytes};
}

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kParameter:
      return "parameter";
    case Role::kPersistable:
      return "persistable";
    case Role::kTemporary:
      return "temporary";
  }
  return "?";
}

std::optional<Role> RoleFromName(std::string_view name) {
  for (const Role role : {Role::kParameter, Role::kPersistable, Role::kTemporary}) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

Status Scope::Parameter(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                        const VariableOptions& options) {
  return Declare(std::move(name), Role::kParameter, dtype, std::move(shape), options);
}

Status Scope::Persistable(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                          const VariableOptions& options) {
  return Declare(std::move(name), Role::kPersistable, dtype, std::move(shape), options);
}

Status Scope::Temporary(std::string name, DType dtype, std::vector<std::uint64_t> shape,
                        const VariableOptions& options) {
  return Declare(std::move(name), Role::kTemporary, dtype, std::move(shape), options);
}

Status Scope::Declare(std::string name, Role role, DType dtype, std::vector<std::uint64_t> shape,
                      const VariableOptions& options) {
  if (name.empty()) return InvalidArgumentError("a variable needs a name");
  if (!IsValidUtf8(name)) {
    return InvalidArgumentError("the name " + QuoteForMessage(name) + " is not UTF-8");
  }
  const std::string what = "variable " + QuoteForMessage(name);
  if (frozen_ && role != Role::kTemporary) {
    return FailedPreconditionError(
        what +
        ": the scope is frozen (a clone for testing); declare it in the one it was cloned "
        "from");
  }
  auto bytes = TensorBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status().WithContext(what);
  if (!std::isfinite(options.learning_rate_factor)) {
    return InvalidArgumentError(fmt::format("{}: learning_rate_factor must be finite, not {}", what,
                                            options.learning_rate_factor));
  }
  if (options.initializer) {
    const Status valid = ValidateInitializer(*options.initializer, dtype);
    if (!valid.ok()) return valid.WithContext(what);
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = variables_.find(name); it != variables_.end()) {
      return AlreadyExistsError(
          fmt::format("{} is declared already, as a {}; clear the scope to "
                      "build another program in it",
                      what, RoleName(it->second.role)));
    }
  }
  Variable variable;
  variable.data = AllocateVariable(*bytes);
  if (variable.data == nullptr) {
    return ResourceExhaustedError(fmt::format("{}: no memory for {} bytes", what, *bytes));
  }
  variable.name = name;
  variable.role = role;
  variable.dtype = dtype;
  variable.shape = std::move(shape);
  variable.bytes = *bytes;
  if (options.data != nullptr) std::memcpy(Writable(variable).data(), options.data, *bytes);
  variable.initializer = options.initializer;
  variable.trainable = role == Role::kParameter && options.trainable;
  variable.learning_rate_factor = options.learning_rate_factor;
  const std::lock_guard lock(mutex_);
  if (!variables_.try_emplace(std::move(name), std::move(variable)).second) {
    return AlreadyExistsError(what + " is being declared by two threads");
  }
  return Status::Ok();
}

Status Scope::FindLocked(std::string_view name, const Variable** found) const {
  const auto it = variables_.find(name);
  if (it != variables_.end()) {
    *found = &it->second;
    return Status::Ok();
  }
  // The neighbours in the order of names: those that begin alike.
  std::string near;
  std::size_t listed = 0;
  const std::string_view start = name.substr(0, (name.size() + 1) / 2);
  for (auto like = variables_.lower_bound(start);
       like != variables_.end() && like->first.starts_with(start) && listed < kNamesInMessage;
       ++like, ++listed) {
    near += (near.empty() ? "; names like it: " : ", ") + like->first;
  }
  if (near.empty()) near = fmt::format("; the scope has {} variables", variables_.size());
  return NotFoundError("there is no variable " + QuoteForMessage(name) + near);
}

Result<Variable> Scope::Find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Variable* found = nullptr;
  RETURN_IF_ERROR(FindLocked(name, &found));
  return *found;
}

bool Scope::Contains(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return variables_.contains(name);
}

std::vector<Variable> Scope::Vars(std::optional<Role> role) const {
  const std::lock_guard lock(mutex_);
  std::vector<Variable> out;
  for (const auto& [name, variable] : variables_) {
    const bool wanted = !role || variable.role == *role ||
                        (*role == Role::kPersistable && variable.role == Role::kParameter);
    if (wanted) out.push_back(variable);
  }
  return out;
}

Result<std::span<const std::byte>> Scope::Bytes(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Variable* found = nullptr;
  RETURN_IF_ERROR(FindLocked(name, &found));
  return std::span<const std::byte>(found->data.get(), found->bytes);
}

Result<std::span<std::byte>> Scope::MutableBytes(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const Variable* found = nullptr;
  RETURN_IF_ERROR(FindLocked(name, &found));
  if (found->frozen) {
    return FailedPreconditionError(
        fmt::format("the {} {} may not be changed: the scope is frozen (a clone for testing)",
                    RoleName(found->role), QuoteForMessage(name)));
  }
  return Writable(*found);
}

Status Scope::CheckType(std::string_view name, std::span<const DType> dtypes,
                        std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const Variable* found = nullptr;
  RETURN_IF_ERROR(FindLocked(name, &found));
  if (std::find(dtypes.begin(), dtypes.end(), found->dtype) != dtypes.end()) return Status::Ok();
  return InvalidArgumentError(
      fmt::format("the variable {} is of dtype {}; its values were asked for as numbers of {} "
                  "bytes of another kind",
                  QuoteForMessage(name), DTypeName(found->dtype), bytes));
}

Status Scope::Initialize(std::uint64_t seed, const InitializeOptions& options) {
  const std::lock_guard lock(mutex_);
  if (frozen_) {
    return FailedPreconditionError("a frozen scope (a clone for testing) is not initialised");
  }
  std::string loaded;
  std::size_t count = 0;
  for (const auto& [name, variable] : variables_) {
    if (!variable.initializer || !variable.loaded) continue;
    if (++count <= kNamesInMessage) loaded += (loaded.empty() ? "" : ", ") + name;
  }
  if (count > 0 && !options.overwrite) {
    if (count > kNamesInMessage) loaded += fmt::format(" and {} more", count - kNamesInMessage);
    return FailedPreconditionError(
        fmt::format("the initializers would overwrite values that were loaded: {}. Initialise "
                    "first and load afterwards, or say overwrite",
                    loaded));
  }
  for (auto& [name, variable] : variables_) {
    if (!variable.initializer) continue;
    const Status filled =
        FillInitial(*variable.initializer, seed, name, variable.dtype, Writable(variable));
    if (!filled.ok()) return filled.WithContext("variable " + QuoteForMessage(name));
    variable.loaded = false;
  }
  return Status::Ok();
}

void Scope::EndIteration() {
  const std::lock_guard lock(mutex_);
  std::erase_if(variables_,
                [](const auto& entry) { return entry.second.role == Role::kTemporary; });
}

Status Scope::Clear() {
  const std::lock_guard lock(mutex_);
  if (frozen_) return FailedPreconditionError("a frozen scope cannot be cleared");
  variables_.clear();
  return Status::Ok();
}

Result<std::unique_ptr<Scope>> Scope::Clone(bool for_test) const {
  auto clone = std::make_unique<Scope>();
  clone->frozen_ = for_test;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, variable] : variables_) {
    if (variable.role == Role::kTemporary) continue;
    Variable copy = variable;
    copy.frozen = for_test;
    if (!for_test) {
      copy.data = AllocateVariable(copy.bytes);
      if (copy.data == nullptr) {
        return ResourceExhaustedError(
            fmt::format("clone: no memory for the {} bytes of {}", copy.bytes, name));
      }
      std::memcpy(Writable(copy).data(), variable.data.get(), copy.bytes);
    }
    clone->variables_.emplace(name, std::move(copy));
  }
  return clone;
}

void Scope::MarkLoaded(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    if (const auto it = variables_.find(name); it != variables_.end()) it->second.loaded = true;
  }
}

Scope& DefaultScope() {
  static Scope scope;
  return scope;
}

}  // namespace cairn
