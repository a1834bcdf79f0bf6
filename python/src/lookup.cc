// Lookups of served tables, in the module _ps because they are linked with gRPC.

#include "src/lookup.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/serving_client.h>

#include "src/errors.h"
#include "src/gil.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Asked = std::tuple<std::string, Ids, std::uint32_t>;

/// The array owns the numbers; nothing is copied.
Rows ToArray(serving::LookupClient::Rows rows) {
  auto* values = new std::vector<float>(std::move(rows.values));
  const nb::capsule owner(
      values, [](void* gone) noexcept { delete static_cast<std::vector<float>*>(gone); });
  const std::size_t dim = rows.dim;
  return {values->data(), {dim == 0 ? 0 : values->size() / dim, dim}, owner};
}

// Not "Client": nanobind tells types apart by their names, also of unnamed namespaces.
class Lookups {
 public:
  explicit Lookups(const nb::dict& given) {
    serving::LookupClientOptions options;
    options.address = nb::cast<std::string>(given["address"]);
    options.token = nb::cast<std::string>(given["token"]);
    options.ca = nb::cast<std::string>(given["ca"]);
    options.server_name = nb::cast<std::string>(given["server_name"]);
    options.timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(nb::cast<double>(given["timeout"]) * 1e3));
    options.max_answer_bytes = nb::cast<std::uint64_t>(given["max_answer_bytes"]);
    auto client = [&] {
      const WithoutGil released;
      return serving::LookupClient::Connect(std::move(options));
    }();
    RaiseIfError(client.status());
    client_ = *std::move(client);
  }

  std::tuple<std::int64_t, std::string, std::vector<Rows>> Lookup(const std::vector<Asked>& asked) {
    std::vector<serving::LookupClient::Wanted> wanted;
    for (const auto& [table, ids, dim] : asked) {
      wanted.push_back({.table = table, .ids = {ids.data(), ids.size()}, .dim = dim});
    }
    auto found = [&] {
      const WithoutGil released;
      return client_->Lookup(wanted);
    }();
    RaiseIfError(found.status());
    std::vector<Rows> tables;
    for (auto& rows : found->tables) tables.push_back(ToArray(std::move(rows)));
    return {found->step, std::move(found->id), std::move(tables)};
  }

 private:
  std::unique_ptr<serving::LookupClient> client_;
};

}  // namespace

void DefineLookup(nb::module_& module) {
  nb::class_<Lookups>(module, "LookupClient")
      .def(nb::init<const nb::dict&>())
      .def("lookup", &Lookups::Lookup);
}

}  // namespace cairn::python
