// A program that tunes, for tests that kill it: tune_test_program OPTIONS, which is JSON: those of
// tune::Options by their names, "kind" ("function" or "class") and "out", a file for what Run gave.
// Exits with 0, with 3 when a signal ended it, and with 1 on an error, which it prints.
//
// What a trial does is in its config, or in the object that this calls "as":
//   iterations   it ends by itself after so many, over all runs
//   limit_file   … or as many as this file says, read before each
//   per_run      … or after so many of each run
//   fail_at      fails instead of this iteration, as long as `mended` is not there
//   fail_runs    so many runs fail after one report; counted in a file of the trial's directory
//   mended       a file
//   touch        a file that it makes after its first report
//   wait_for     a file that it waits for after its first report
//   print        it prints a line for each iteration
//   late         a metric that is there from the third iteration on
//   every        a function saves every so many iterations
//   poll         a function makes one iteration, and then asks ShouldEnd until it is to end
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include <cairn/tune.h>

#include "base/status_macros.h"
#include "format/json.h"
#include "tune/value_members.h"

namespace cairn::tune {
namespace {

constexpr auto kLook = std::chrono::milliseconds(5);

const Value& Behaviour(const Value& config) {
  const Value* one = config.Find("as");
  return one == nullptr ? config : *one;
}

/// Deterministic: its sum depends on the config and on each iteration having been made once.
class Model {
 public:
  explicit Model(const Trial& trial) : trial_(trial), config_(Behaviour(trial.config())) {}

  Status Load(const std::string& directory) {
    std::ifstream(directory + "/state") >> made_ >> sum_;
    return made_ == trial_.iteration() ? Status::Ok() : CorruptionError("another iteration");
  }
  Status Save(const std::string& directory) const {
    std::ofstream file(directory + "/state");
    file << made_ << " " << sum_;
    file.close();
    return file ? Status::Ok() : UnavailableError("state: cannot be written");
  }

  bool more() const {
    std::int64_t limit = IntOf(config_, "iterations", std::numeric_limits<std::int64_t>::max());
    if (const std::string file = TextOf(config_, "limit_file"); !file.empty()) {
      std::ifstream(file) >> limit;
    }
    const std::int64_t per_run = IntOf(config_, "per_run", std::numeric_limits<int>::max());
    return made_ < limit && in_this_run_ < per_run;
  }

  Result<Value> Step() {
    if (in_this_run_ == 1) RETURN_IF_ERROR(AfterFirst());
    const bool mended = std::filesystem::exists(TextOf(config_, "mended"));
    if (!mended && made_ + 1 == IntOf(config_, "fail_at", -1)) return InternalError("as told");
    ++made_;
    ++in_this_run_;
    sum_ += made_ * IntOf(config_, "x", 1);
    if (BoolOf(config_, "print")) std::printf("iteration %ld\n", static_cast<long>(made_));
    Value::Object result{{"sum", sum_}, {"made", made_}, {"in_this_run", in_this_run_}};
    if (made_ >= 3 && BoolOf(config_, "late")) result["late"] = Value::Object{{"a", "x,\"y\""}};
    return Value(result);
  }

 private:
  Status AfterFirst() const {
    if (const std::string file = TextOf(config_, "touch"); !file.empty()) std::ofstream{file};
    if (const std::string file = TextOf(config_, "wait_for"); !file.empty()) {
      while (!std::filesystem::exists(file)) std::this_thread::sleep_for(kLook);
    }
    return FailRun();
  }
  Status FailRun() const {
    const std::int64_t fails = IntOf(config_, "fail_runs");
    if (fails == 0) return Status::Ok();
    const std::string name = trial_.directory() + "/runs.txt";
    std::ofstream(name, std::ios::app) << "x";
    const auto runs = static_cast<std::int64_t>(std::filesystem::file_size(name));
    return runs <= fails ? InternalError("run " + std::to_string(runs)) : Status::Ok();
  }

  const Trial& trial_;
  const Value config_;
  std::int64_t made_ = 0;
  std::int64_t in_this_run_ = 0;
  std::int64_t sum_ = 0;
};

Status Train(Trial& trial) {
  Model model(trial);
  if (trial.checkpoint()) RETURN_IF_ERROR(model.Load(*trial.checkpoint()));
  const Trial::Save save = [&](const std::string& at) { return model.Save(at); };
  const Value& behaviour = Behaviour(trial.config());
  const std::int64_t every = IntOf(behaviour, "every", 1);
  while (model.more()) {
    ASSIGN_OR_RETURN(Value result, model.Step());
    const bool due = trial.ShouldCheckpoint(every);
    RETURN_IF_ERROR(trial.Report(std::move(result), due ? save : Trial::Save()));
    while (BoolOf(behaviour, "poll")) {
      if (trial.ShouldEnd()) return Status::Ok();
      std::this_thread::sleep_for(kLook);
    }
  }
  return Status::Ok();
}

class Steps final : public Trainable {
 public:
  Status Setup(const Trial& trial) override {
    model_ = std::make_unique<Model>(trial);
    return Status::Ok();
  }
  Result<Value> Step() override {
    ASSIGN_OR_RETURN(Value result, model_->Step());
    if (!model_->more()) (*result.if_object())["done"] = true;
    return result;
  }
  Status Save(const std::string& directory) override { return model_->Save(directory); }
  Status Load(const std::string& directory) override { return model_->Load(directory); }

 private:
  std::unique_ptr<Model> model_;
};

std::optional<std::uint64_t> Count(const Value& given, const char* name) {
  if (given.Find(name) == nullptr) return std::nullopt;
  return static_cast<std::uint64_t>(IntOf(given, name));
}

Value Any(const Value& given, const char* name, Value otherwise) {
  const Value* found = given.Find(name);
  return found == nullptr ? otherwise : *found;
}

Options OptionsFrom(const Value& given) {
  const double budget = Any(given, "time_budget_s", 0).AsDouble();
  Options options{.directory = TextOf(given, "directory"),
                  .space = Any(given, "space", Value::Object{}),
                  .num_samples = IntOf(given, "num_samples", 1),
                  .seed = static_cast<std::uint64_t>(IntOf(given, "seed")),
                  .metric = TextOf(given, "metric"),
                  .scheduler = Any(given, "scheduler", Value()),
                  .stop = Any(given, "stop", Value()),
                  .time_budget = std::chrono::milliseconds(static_cast<int>(budget * 1000)),
                  .max_concurrent = static_cast<std::size_t>(IntOf(given, "max_concurrent", 2)),
                  .max_failures = IntOf(given, "max_failures"),
                  .fail_fast = BoolOf(given, "fail_fast"),
                  .checkpoint_frequency = IntOf(given, "checkpoint_frequency"),
                  .checkpoint_at_end = BoolOf(given, "checkpoint_at_end"),
                  .num_to_keep = Count(given, "num_to_keep"),
                  .resume_unfinished = Any(given, "resume_unfinished", true) == Value(true),
                  .resume_errored = BoolOf(given, "resume_errored"),
                  .restart_errored = BoolOf(given, "restart_errored"),
                  .extend = BoolOf(given, "extend"),
                  .log_to_file = BoolOf(given, "log_to_file"),
                  .chdir_to_trial_dir = BoolOf(given, "chdir_to_trial_dir"),
                  .launcher = TextOf(given, "launcher"),
                  .host = TextOf(given, "host")};
  const Value resources = Any(given, "resources", Value::Object{});
  for (const auto& [name, value] : *resources.if_object()) {
    options.resources[name] = TextOf(resources, name);
  }
  if (const std::string name = TextOf(given, "trainable"); !name.empty()) options.trainable = name;
  return options;
}

Value Describe(const std::vector<TrialResult>& results) {
  Value::List all;
  for (const TrialResult& result : results) {
    all.push_back(Value::Object{{"trial", result.trial},
                                {"config", result.config},
                                {"status", result.status},
                                {"error", result.error},
                                {"results", result.results},
                                {"checkpoint", result.checkpoint}});
  }
  return all;
}

int Main(const std::string& text) {
  const auto given = DecodeJson(text);
  if (!given.ok()) return 2;
  const Options options = OptionsFrom(*given);
  const auto results =
      TextOf(*given, "kind") == "class"
          ? Run(options, [] { return std::unique_ptr<Trainable>(std::make_unique<Steps>()); })
          : Run(options, Train);
  if (!results.ok()) {
    std::fprintf(stderr, "%s\n", results.status().ToString().c_str());
    return results.status().Is(Code::kCancelled) ? 3 : 1;
  }
  std::ofstream(TextOf(*given, "out")) << EncodeJson(Describe(*results));
  return 0;
}

}  // namespace
}  // namespace cairn::tune

int main(int argc, char** argv) { return argc == 2 ? cairn::tune::Main(argv[1]) : 2; }
