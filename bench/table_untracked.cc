// The updates of `cairn_bench table_updates`, of a table that was compiled without tracking.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bench/benchmarks.h"

int main(int argc, char** argv) {
  CLI::App app("Measures updates of tables without tracking");
  cairn::bench::Options options;
  options.variant = "tracking";
  std::string name;
  app.add_option("name", name, "ignored: there is one");
  app.add_option("--directory", options.directory, "not used");
  app.add_option("--bytes", options.bytes, "size of the table");
  app.add_option("--rounds", options.rounds, "undisturbed rounds");
  app.add_option("--max-rounds", options.max_rounds, "give up after so many");
  app.add_option("--max-others", options.max_others, "cores that others may use");
  app.add_option("--threads", options.threads, "not used");
  app.add_option("--variant", options.variant, "ignored");
  CLI11_PARSE(app, argc, argv);
  const cairn::Status status = cairn::bench::RunTableUpdates(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.ToString());
  return 1;
}
