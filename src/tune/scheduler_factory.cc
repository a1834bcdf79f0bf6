#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/description_reader.h"
#include "tune/scheduler.h"

namespace cairn::tune {
namespace {

void ReadScore(DescriptionReader* reader, ScoreOptions* score) {
  reader->Text("metric", &score->metric);
  reader->Mode("mode", &score->maximize);
  reader->Text("time_attr", &score->time_attr);
}

Result<std::unique_ptr<Scheduler>> Asha(DescriptionReader reader) {
  AshaOptions options;
  ReadScore(&reader, &options.score);
  reader.Number("max_t", &options.max_t);
  reader.Number("grace_period", &options.grace_period);
  reader.Number("reduction_factor", &options.reduction_factor);
  reader.Int("brackets", &options.brackets);
  reader.Bool("stop_last_trials", &options.stop_last_trials);
  reader.Bool("promote", &options.promote);
  reader.Uint64("seed", &options.seed);
  RETURN_IF_ERROR(reader.Finish());
  return MakeAshaScheduler(std::move(options));
}

Result<std::unique_ptr<Scheduler>> MedianRule(DescriptionReader reader) {
  MedianStoppingOptions options;
  ReadScore(&reader, &options.score);
  reader.Number("grace_period", &options.grace_period);
  reader.Int("min_samples_required", &options.min_samples_required);
  reader.Number("min_time_slice", &options.min_time_slice);
  reader.Bool("hard_stop", &options.hard_stop);
  RETURN_IF_ERROR(reader.Finish());
  return MakeMedianStoppingScheduler(std::move(options));
}

Result<std::unique_ptr<Scheduler>> Pbt(DescriptionReader reader) {
  PbtOptions options;
  ReadScore(&reader, &options.score);
  reader.Number("perturbation_interval", &options.perturbation_interval);
  reader.Number("burn_in_period", &options.burn_in_period);
  reader.Any("hyperparam_mutations", &options.hyperparam_mutations);
  reader.Number("quantile_fraction", &options.quantile_fraction);
  reader.Number("resample_probability", &options.resample_probability);
  reader.Numbers("perturbation_factors", &options.perturbation_factors);
  reader.Bool("require_metrics", &options.require_metrics);
  reader.Bool("synch", &options.synch);
  reader.Uint64("seed", &options.seed);
  RETURN_IF_ERROR(reader.Finish());
  return MakePbtScheduler(std::move(options));
}

}  // namespace

Result<std::unique_ptr<Scheduler>> MakeScheduler(const Value& description) {
  DescriptionReader reader("scheduler", description);
  std::string name;
  reader.Text("name", &name);
  if (!description.is_object()) return reader.Finish();
  if (name == "asha") return Asha(std::move(reader));
  if (name == "median") return MedianRule(std::move(reader));
  if (name == "pbt") return Pbt(std::move(reader));
  if (name == "fifo") {
    RETURN_IF_ERROR(reader.Finish());
    return MakeFifoScheduler();
  }
  return InvalidArgumentError(fmt::format(
      "scheduler: none is called {}; there are fifo, asha, median and pbt", QuoteForMessage(name)));
}

}  // namespace cairn::tune
