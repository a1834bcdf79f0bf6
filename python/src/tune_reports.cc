#include "src/tune_reports.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "src/convert.h"
#include "tune/report_lines.h"
#include "tune/tensorboard_events.h"
#include "tune/value_members.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

nb::bytes ToBytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

/// A report that is on record.
class Report {
 public:
  explicit Report(Value result) : result_(std::move(result)) {}
  const Value& value() const { return result_; }
  std::int64_t iteration() const { return tune::IntOf(result_, "training_iteration"); }
  nb::object result() const { return FromValue(result_); }

 private:
  const Value result_;
};

class ReportLines {
 public:
  using Pair = std::pair<std::string, std::string>;
  ReportLines(std::vector<std::string> columns, const Pair& json, const Pair& csv)
      : lines_({.columns = std::move(columns),
                .json = {json.first, json.second},
                .csv = {csv.first, csv.second}}) {}
  bool Add(const Report& report) { return lines_.Add(report.value()); }
  nb::tuple Take() {
    const tune::ReportLines::Texts texts = lines_.Take();
    return nb::make_tuple(ToBytes(texts.json), ToBytes(texts.csv), ToBytes(texts.events));
  }

 private:
  tune::ReportLines lines_;
};

}  // namespace

nb::object FromNews(Value news) {
  if (tune::TextOf(news, "what") != "result") return FromValue(news);
  nb::dict out;
  out["what"] = "result";
  out["trial"] = tune::TextOf(news, "trial");
  out["result"] = nb::cast(Report(tune::TakeMember(&news, "result")));
  return out;
}

void DefineTuneReports(nb::module_& module) {
  nb::class_<Report>(module, "TuneReport")
      .def("__init__",
           [](Report* made, nb::handle result) { new (made) Report(ToValue(result, "result")); })
      .def_prop_ro("iteration", &Report::iteration)
      .def("result", &Report::result);
  nb::class_<ReportLines>(module, "TuneReportLines")
      .def(nb::init<std::vector<std::string>, const ReportLines::Pair&, const ReportLines::Pair&>(),
           nb::arg("columns"), nb::arg("json"), nb::arg("csv"))
      .def("add", &ReportLines::Add, nb::arg("report"))
      .def("take", &ReportLines::Take);
  module.def(
      "tensorboard_header",
      [](double wall_time) { return ToBytes(tune::TensorboardHeader(wall_time)); },
      nb::arg("wall_time"));
  module.def(
      "tensorboard_scalars",
      [](double wall_time, std::int64_t step,
         const std::vector<std::pair<std::string, double>>& scalars) {
        return ToBytes(tune::TensorboardScalars(wall_time, step, scalars));
      },
      nb::arg("wall_time"), nb::arg("step"), nb::arg("scalars"));
}

}  // namespace cairn::python
