#include "src/row_tracked.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <cairn/row_tracked.h>

#include "src/errors.h"
#include "src/gil.h"
#include "src/table.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

using Rows = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
/// Name, dtype, elements of a row, address.
using Array = std::tuple<std::string, std::string, std::uint64_t, std::uintptr_t>;

std::unique_ptr<RowTracked> Make(const std::string& name, std::uint64_t rows,
                                 const std::vector<Array>& arrays, std::uint64_t first_row,
                                 std::uint64_t whole_rows, std::uint64_t side_buffer_bytes) {
  RowTrackedOptions options;
  options.name = name;
  options.rows = rows;
  options.first_row = first_row;
  options.whole_rows = whole_rows;
  options.side_buffer_bytes = side_buffer_bytes;
  for (const auto& [array, dtype, width, address] : arrays) {
    const auto known = DTypeFromName(dtype);
    if (!known) Raise(InvalidArgumentError("array \"" + array + "\": unknown dtype " + dtype));
    options.arrays.push_back(
        {array, *known, width, reinterpret_cast<void*>(address)});  // NOLINT: a buffer's
  }
  return ValueOrRaise(RowTracked::Make(std::move(options)));
}

}  // namespace

void DefineRowTracked(nb::module_& module) {
  nb::class_<RowTracked>(module, "RowTracked", nb::dynamic_attr())  // for what it borrows
      .def_static("make", &Make)
      .def("touch",
           [](RowTracked* tracked, const Rows& rows) {
             Status touched;
             {
               const WithoutGil released;
               touched = tracked->Touch({rows.data(), rows.size()});
             }
             RaiseIfError(touched);
           })
      .def("has_base", &RowTracked::has_base)
      .def("changed_rows", [](const RowTracked& tracked, const std::string& kind) {
        return tracked.ChangedRows(ToCutKind(kind));
      });
}

}  // namespace cairn::python
