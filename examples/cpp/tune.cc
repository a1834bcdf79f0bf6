// Tunes a learning rate: gradient descent on a quadratic, with checkpoints. Kill it at any moment
// and start it again: it goes on.
//
//   tune DIRECTORY
#include <cstdio>
#include <fstream>
#include <string>

#include <cairn/tune.h>

namespace {

using cairn::Status;
using cairn::Value;

Status Train(cairn::tune::Trial& trial) {
  const double lr = trial.config().Find("lr")->AsDouble();
  double x = 10;
  if (trial.checkpoint()) std::ifstream(*trial.checkpoint() + "/x") >> x;
  while (trial.iteration() < 20) {
    x -= lr * 2 * x;  // the gradient of x²
    const Status told = trial.Report(Value::Object{{"loss", x * x}}, [&](const std::string& at) {
      std::ofstream file(at + "/x");
      file.precision(17);
      file << x;
      return Status::Ok();
    });
    if (!told.ok()) return told;
  }
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  const auto results = cairn::tune::Run(
      {.directory = argc > 1 ? argv[1] : "tune-example",
       .space = Value::Object{{"lr", Value::Object{{"grid_search", Value::List{0.01, 0.1, 0.3}}}}},
       .metric = "loss",
       .max_failures = 3,
       .num_to_keep = 2,
       .score = "loss",
       .maximize = false},
      Train);
  if (!results.ok()) {
    std::fprintf(stderr, "%s\n", results.status().ToString().c_str());
    return 1;
  }
  for (const cairn::tune::TrialResult& result : *results) {
    std::printf("%s lr %.2f: %s, %zu results, loss %.3g, %s\n", result.trial.c_str(),
                result.config.Find("lr")->AsDouble(), result.status.c_str(), result.results.size(),
                result.results.empty() ? -1 : result.results.back().Find("loss")->AsDouble(),
                result.checkpoint.c_str());
  }
  return 0;
}
