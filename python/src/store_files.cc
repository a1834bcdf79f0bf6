#include "src/store_files.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "src/errors.h"
#include "src/gil.h"
#include "storage/open_store.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;

/// Whole files by name, in one store.
class StoreFiles {
 public:
  explicit StoreFiles(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  static std::unique_ptr<StoreFiles> Open(const std::string& where) {
    auto store = [&] {
      const WithoutGil released;
      return OpenStore(where);
    }();
    return std::make_unique<StoreFiles>(ValueOrRaise(std::move(store)));
  }

  void Put(const std::string& name, const nb::bytes& bytes) {
    const std::string_view data(bytes.c_str(), bytes.size());
    const Status status = [&] {
      const WithoutGil released;
      return store_->Put(name, data);
    }();
    RaiseIfError(status);
  }

  /// None: there is no such file.
  nb::object Get(const std::string& name) {
    auto found = [&] {
      const WithoutGil released;
      return store_->Get(name, kMaxBytes);
    }();
    if (found.status().Is(Code::kNotFound)) return nb::none();
    const std::string bytes = ValueOrRaise(std::move(found));
    return nb::bytes(bytes.data(), bytes.size());
  }

  /// Also of a file that is not there.
  void Delete(const std::string& name) {
    const Status status = [&] {
      const WithoutGil released;
      return store_->Delete(name);
    }();
    if (!status.Is(Code::kNotFound)) RaiseIfError(status);
  }

 private:
  const std::unique_ptr<Store> store_;
};

}  // namespace

void DefineStoreFiles(nb::module_& module) {
  nb::class_<StoreFiles>(module, "StoreFiles")
      .def_static("open", &StoreFiles::Open, nb::arg("where"))
      .def("put", &StoreFiles::Put, nb::arg("name"), nb::arg("data"))
      .def("get", &StoreFiles::Get, nb::arg("name"))
      .def("delete", &StoreFiles::Delete, nb::arg("name"));
}

}  // namespace cairn::python
