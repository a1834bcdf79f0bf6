#include "src/scope.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/io.h>
#include <cairn/scope.h>

#include "src/convert.h"
#include "src/errors.h"
#include "src/gil.h"
#include "src/waiting.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

// (kind, a, b)
using InitializerTuple = std::tuple<std::string, double, double>;
// (name, role, dtype, shape, address); the caller keeps the memory alive.
using ViewTuple =
    std::tuple<std::string, std::string, std::string, std::vector<std::uint64_t>, std::uint64_t>;

Role ToRole(const std::string& name) {
  const auto role = RoleFromName(name);
  if (!role) {
    Raise(InvalidArgumentError("role: \"" + name +
                               "\" is none; parameter, persistable and temporary are"));
  }
  return *role;
}

DType ToDType(const std::string& name) {
  const auto dtype = DTypeFromName(name);
  if (!dtype) Raise(InvalidArgumentError("\"" + name + "\" is no dtype of safetensors"));
  return *dtype;
}

VariableInitializer ToInitializer(const InitializerTuple& tuple) {
  const auto& [kind, a, b] = tuple;
  if (kind == "constant") return VariableInitializer::Constant(a);
  if (kind == "uniform") return VariableInitializer::Uniform(a, b);
  if (kind == "normal") return VariableInitializer::Normal(a, b);
  return VariableInitializer::TruncatedNormal(a, b);
}

nb::object FromVariable(const Variable& variable) {
  nb::dict out;
  out["name"] = variable.name;
  out["role"] = std::string(RoleName(variable.role));
  out["dtype"] = std::string(DTypeName(variable.dtype));
  out["shape"] = nb::tuple(nb::cast(variable.shape));
  out["bytes"] = variable.bytes;
  out["trainable"] = variable.trainable;
  out["learning_rate_factor"] = variable.learning_rate_factor;
  out["loaded"] = variable.loaded;
  return out;
}

/// A scope of its own, or the default one.
class PyScope {
 public:
  PyScope() : own_(std::make_unique<Scope>()), scope_(own_.get()) {}
  explicit PyScope(std::unique_ptr<Scope> own) : own_(std::move(own)), scope_(own_.get()) {}
  explicit PyScope(Scope* borrowed) : scope_(borrowed) {}

  void Declare(const ViewTuple& view, const std::optional<InitializerTuple>& initializer,
               bool trainable, double learning_rate_factor) {
    const auto& [name, role, dtype, shape, address] = view;
    VariableOptions options;
    options.data = reinterpret_cast<const void*>(address);  // NOLINT: NumPy's address
    if (initializer) options.initializer = ToInitializer(*initializer);
    options.trainable = trainable;
    options.learning_rate_factor = learning_rate_factor;
    const auto declare = ToRole(role) == Role::kParameter     ? &Scope::Parameter
                         : ToRole(role) == Role::kPersistable ? &Scope::Persistable
                                                              : &Scope::Temporary;
    RaiseIfError((scope_->*declare)(name, ToDType(dtype), shape, options));
  }

  nb::object Find(const std::string& name) const {
    return FromVariable(ValueOrRaise(scope_->Find(name)));
  }
  bool Contains(const std::string& name) const { return scope_->Contains(name); }
  nb::object Vars(const std::optional<std::string>& role) const {
    nb::list out;
    const auto wanted = role ? std::optional(ToRole(*role)) : std::nullopt;
    for (const Variable& variable : scope_->Vars(wanted)) out.append(FromVariable(variable));
    return out;
  }

  /// The variable's bytes, which live as long as the array; read-only where it may not be changed.
  nb::object Memory(const std::string& name) const {
    Variable variable = ValueOrRaise(scope_->Find(name));
    const bool writable = !variable.frozen;
    const std::size_t shape[] = {static_cast<std::size_t>(variable.bytes)};
    using Held = std::shared_ptr<const std::byte>;
    auto owner = std::make_unique<Held>(std::move(variable.data));
    const std::byte* const data = owner->get();
    const nb::capsule capsule(owner.release(),
                              [](void* p) noexcept { delete static_cast<Held*>(p); });
    if (writable) {
      return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(
          const_cast<std::byte*>(data), 1, shape, capsule));
    }
    return nb::cast(
        nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(data, 1, shape, capsule));
  }

  void Initialize(std::uint64_t seed, bool overwrite) {
    std::optional<Status> status;
    {
      const WithoutGil released;
      status = scope_->Initialize(seed, {.overwrite = overwrite});
    }
    RaiseIfError(*status);
  }
  void EndIteration() { scope_->EndIteration(); }
  void Clear() { RaiseIfError(scope_->Clear()); }
  std::unique_ptr<PyScope> Clone(bool for_test) const {
    return std::make_unique<PyScope>(ValueOrRaise(scope_->Clone(for_test)));
  }
  void MarkLoaded(const std::vector<std::string>& names) { scope_->MarkLoaded(names); }
  bool frozen() const { return scope_->frozen(); }

 private:
  std::unique_ptr<Scope> own_;
  Scope* scope_;
};

std::vector<VariableView> ToViews(const std::vector<ViewTuple>& tuples) {
  std::vector<VariableView> views;
  views.reserve(tuples.size());
  for (const auto& [name, role, dtype, shape, address] : tuples) {
    views.push_back({name, ToRole(role), ToDType(dtype), shape,
                     reinterpret_cast<void*>(address)});  // NOLINT: the array's address
  }
  return views;
}

ForeignFormat ToFormat(const std::string& name) {
  const auto format = ForeignFormatFromName(name);
  if (!format) {
    Raise(InvalidArgumentError("format: \"" + name +
                               "\" is none; paddle, pdparams, torch, safetensors and onnx are"));
  }
  return *format;
}

/// Runs `work` without the GIL; Ctrl-C ends it.
template <typename T, typename Fn>
Result<T> Interruptible(Fn work) {
  Interrupts interrupts;
  TransferControl control;
  control.progress = [&](std::uint64_t, std::uint64_t) { interrupts.Poll(); };
  control.cancelled = [&] { return interrupts.interrupted(); };
  std::optional<Result<T>> result;
  {
    const WithoutGil released;
    result.emplace(work(control));
  }
  interrupts.Rethrow();
  return *std::move(result);
}

nb::object PySaveVars(const std::string& directory, const std::vector<ViewTuple>& variables,
                      const std::string& filename, std::map<std::string, std::string> meanings) {
  const std::vector<VariableView> views = ToViews(variables);
  const SavedVars saved =
      ValueOrRaise(Interruptible<SavedVars>([&](const TransferControl& control) {
        return SaveVars(
            directory, views,
            {.filename = filename, .meanings = std::move(meanings), .control = control});
      }));
  nb::dict out;
  out["info"] = FromInfo(saved.info);
  out["names"] = saved.names;
  out["bytes"] = saved.bytes;
  return out;
}

nb::object PyLoadVars(const std::string& path, const std::vector<ViewTuple>& variables,
                      const std::string& stored, bool strict,
                      std::map<std::string, std::string> rename, std::set<std::string> skip,
                      const std::string& filename, const std::string& format,
                      std::vector<std::string> names, std::map<std::string, std::string> meanings) {
  const std::vector<VariableView> views = ToViews(variables);
  MismatchReport mismatch;
  LoadVarsOptions options;
  options.stored = stored == "parameters" ? StoredVars::kParameters
                   : stored == "asked"    ? StoredVars::kAsked
                                          : StoredVars::kAll;
  options.strict = strict;
  options.rename = std::move(rename);
  options.skip = std::move(skip);
  options.filename = filename;
  options.format = ToFormat(format);
  options.names = std::move(names);
  options.meanings = std::move(meanings);
  options.mismatch = &mismatch;
  const auto loaded = Interruptible<LoadedVars>([&](const TransferControl& control) {
    options.control = control;
    return LoadVars(path, views, options);
  });
  if (!loaded.ok()) Raise(loaded.status(), mismatch);
  nb::dict out;
  out["path"] = loaded->info.path;
  out["names"] = loaded->names;
  out["bytes"] = loaded->bytes;
  out["skipped"] = loaded->skipped;
  return out;
}

nb::object PyReadForeign(const std::string& path, const std::string& format,
                         std::vector<std::string> names) {
  std::optional<Result<std::vector<OwnedTensor>>> result;
  const ForeignSource source{path, ToFormat(format), std::move(names)};
  {
    const WithoutGil released;
    result.emplace(ReadForeign(source));
  }
  nb::list out;
  for (OwnedTensor& tensor : ValueOrRaise(*std::move(result))) {
    out.append(FromOwned(std::move(tensor)));
  }
  return out;
}

}  // namespace

void DefineScope(nb::module_& module) {
  nb::class_<PyScope>(module, "Scope")
      .def(nb::init<>())
      .def("declare", &PyScope::Declare, nb::kw_only(), nb::arg("view"),
           nb::arg("initializer").none(), nb::arg("trainable"), nb::arg("learning_rate_factor"))
      .def("find", &PyScope::Find)
      .def("contains", &PyScope::Contains)
      .def("vars", &PyScope::Vars, nb::arg("role").none())
      .def("memory", &PyScope::Memory)
      .def("initialize", &PyScope::Initialize, nb::arg("seed"), nb::arg("overwrite"))
      .def("end_iteration", &PyScope::EndIteration)
      .def("clear", &PyScope::Clear)
      .def("clone", &PyScope::Clone, nb::arg("for_test"))
      .def("mark_loaded", &PyScope::MarkLoaded)
      .def_prop_ro("frozen", &PyScope::frozen);
  module.def("default_scope", [] { return std::make_unique<PyScope>(&DefaultScope()); });
  module.def("save_vars", &PySaveVars, nb::kw_only(), nb::arg("directory"), nb::arg("variables"),
             nb::arg("filename"), nb::arg("meanings"));
  module.def("load_vars", &PyLoadVars, nb::kw_only(), nb::arg("path"), nb::arg("variables"),
             nb::arg("stored"), nb::arg("strict"), nb::arg("rename"), nb::arg("skip"),
             nb::arg("filename"), nb::arg("format"), nb::arg("names"), nb::arg("meanings"));
  module.def("read_foreign", &PyReadForeign, nb::kw_only(), nb::arg("path"), nb::arg("format"),
             nb::arg("names"));
}

}  // namespace cairn::python
