#include "src/errors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

namespace nb = nanobind;

namespace cairn::python {

void Raise(const Status& status, const MismatchReport& mismatch) {
  std::string kind(CodeName(status.code()));
  if (status.reason() == Reason::kOwnedByAnotherJob) kind = "OwnedByAnotherJob";
  if (status.reason() == Reason::kMismatch) kind = "Mismatch";
  const nb::object error =
      nb::module_::import_("cairn.errors")
          .attr("from_status")(kind, std::string(status.message()), mismatch.missing,
                               mismatch.unexpected, mismatch.mismatched);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace cairn::python
