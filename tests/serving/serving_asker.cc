// serving_asker <port> <seed> <result>: asks a served model for rows by gRPC until SIGTERM, as a
// client on another machine would. Both tables of an answer must carry the number of the version
// that it names. Writes "lookups mixtures failures" to the result file and ends with 0.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cairn/serving_client.h>

#include "tests/serving/numbered_job.h"

namespace {

volatile std::sig_atomic_t g_stop = 0;

bool All(const std::vector<float>& values, std::int64_t number) {
  for (const float value : values) {
    if (value != static_cast<float>(number)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace cairn::serving;
  if (argc != 4) return 2;
  std::signal(SIGTERM, [](int) { g_stop = 1; });
  const auto client = LookupClient::Connect(
      {.address = "127.0.0.1:" + std::string(argv[1]), .timeout = std::chrono::seconds(30)});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  std::uint64_t lookups = 0;
  std::uint64_t mixtures = 0;
  std::uint64_t failures = 0;
  std::vector<std::int64_t> ids(64);
  while (g_stop == 0) {
    for (std::int64_t& id : ids) id = NumberedKey(random());
    const LookupClient::Wanted wanted[] = {{.table = "a", .ids = ids, .dim = kDimA},
                                           {.table = "b", .ids = ids, .dim = kDimB}};
    const auto found = (*client)->Lookup(wanted);
    if (!found.ok()) {
      ++failures;
      std::fprintf(stderr, "%s\n", found.status().ToString().c_str());
      continue;
    }
    lookups += 2 * ids.size();
    const bool same =
        All(found->tables[0].values, found->step) && All(found->tables[1].values, found->step);
    mixtures += same ? 0 : 1;
    // Some time is left for the follower and the job, on machines of few cores.
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  std::ofstream result(argv[3]);
  result << lookups << ' ' << mixtures << ' ' << failures << '\n';
  return result.flush() ? 0 : 1;
}
