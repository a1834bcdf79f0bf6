// One trainer of tests/cluster: trains the test model, tells each step on standard output, and
// writes what was learned at the end, to OUTPUT and its number. "back": it was about to leave, and
// the job went back.
//
//   cluster_trainer OUTPUT STEPS HOLD FILE      with the environment of `cairn ps run`
//
// Trainer 0 does not begin step HOLD before there is the FILE. With CAIRN_TEST_LINES it tells its
// steps there, each line with CAIRN_TEST_LIFE and the trainer's number before it.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <cairn/ps.h>

#include "paramserver/test_job.h"

namespace {

using namespace cairn;
using namespace cairn::ps;

void Tell(const std::string& line) {
  static std::FILE* const pipe = [] {
    const char* name = std::getenv("CAIRN_TEST_LINES");
    return name == nullptr ? nullptr : std::fopen(name, "a");
  }();
  std::string text = line + "\n";
  if (pipe != nullptr) {
    text = std::string(std::getenv("CAIRN_TEST_LIFE")) + " " + std::getenv("CAIRN_TRAINER_ID") +
           " " + text;
  }
  std::FILE* const out = pipe != nullptr ? pipe : stdout;
  std::fputs(text.c_str(), out);
  std::fflush(out);  // one write: the lines of several trainers do not mix
}

Status Run(const std::string& output, std::int64_t steps, std::int64_t hold,
           const std::string& word) {
  ASSIGN_OR_RETURN(ClientOptions options, ClientOptions::FromEnvironment());
  options.reconnect_timeout = std::chrono::seconds(60);
  ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
  TestModel model;
  RETURN_IF_ERROR(model.Declare(client.get()));
  Tell("begin " + std::to_string(client->step()));
  for (;;) {
    RETURN_IF_ERROR(model.TrainTo(steps, [&](std::int64_t step) {
      Tell("step " + std::to_string(step));
      while (step == hold && client->trainer() == 0 && !std::filesystem::exists(word)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }));
    // The job may still go back: only what is seen after all have ended counts.
    Status met = client->Barrier();
    Result<std::map<std::string, std::vector<float>>> learned =
        met.ok() ? model.Learned() : Result<std::map<std::string, std::vector<float>>>(met);
    if (learned.ok()) met = client->Barrier();  // nobody leaves before all have looked
    if (met.Is(Code::kAborted) || learned.status().Is(Code::kAborted)) continue;
    RETURN_IF_ERROR(met);
    if (!learned.ok()) return learned.status();
    std::ofstream out(output + std::to_string(client->trainer()));
    for (const auto& [name, numbers] : *learned) {
      out << name;
      for (const float number : numbers) {
        char text[32];
        std::snprintf(text, sizeof text, " %a", static_cast<double>(number));
        out << text;
      }
      out << '\n';
    }
    out.close();
    if (!out) return UnavailableError("cannot write " + output);
    const Status left = client->Close();
    if (left.Is(Code::kAborted)) {
      Tell("back");
      continue;
    }
    Tell("rollbacks " + std::to_string(client->rollbacks()));
    return left;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const Status status = Run(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cluster_trainer: %s\n", status.ToString().c_str());
  return 1;
}
