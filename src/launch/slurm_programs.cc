#include "launch/slurm_programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/status_macros.h"
#include "launch/run_command.h"

namespace cairn {
namespace {

/// Slurm's programs wait for their controller by themselves; this is for when they hang.
constexpr std::chrono::seconds kPatience{30};

/// Refusals that no second try can change. Everything else may be a controller that is away.
constexpr std::string_view kRefusals[] = {"Invalid",
                                          "invalid",
                                          "not permitted",
                                          "not available",
                                          "Unable to allocate",
                                          "violates",
                                          "exceeds",
                                          "Requested",
                                          "Access",
                                          "denied",
                                          "unrecognized",
                                          "ambiguous",
                                          "Unspecified",
                                          "PartitionTimeLimit"};

/// "sbatch: error: Batch job submission failed: Invalid qos specification" without the noise.
std::string Said(const CommandOutcome& outcome) {
  std::string said;
  std::string_view rest(outcome.err.empty() ? outcome.out : outcome.err);
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (const std::size_t error = line.find("error: "); error != std::string_view::npos) {
      line.remove_prefix(error + 7);
    }
    if (line.empty() || said.size() > 500) continue;
    if (!said.empty()) said += "; ";
    said += line;
  }
  return said.empty() ? fmt::format("ended with code {}", outcome.code) : said;
}

class SlurmPrograms final : public SlurmClient {
 public:
  Status Find(const std::string& directory) {
    const std::pair<const char*, std::string*> wanted[] = {
        {"sbatch", &sbatch_}, {"squeue", &squeue_}, {"scancel", &scancel_}};
    for (const auto& [name, path] : wanted) {
      auto found = FindProgram(directory.empty() ? name : directory + "/" + name);
      if (!found.ok()) {
        return NotFoundError(fmt::format(
            "Slurm is not here: {}; install its client, or name the directory of its programs",
            found.status().message()));
      }
      *path = *std::move(found);
    }
    // A job inherits the environment of sbatch. Asking sbatch for none at all would make it load
    // the user's login files, which takes a second.
    for (const auto& [name, value] : SlurmEnvironment()) {
      environment_.push_back(fmt::format("{}={}", name, value));
    }
    return Status::Ok();
  }

  Status Submit(const std::vector<std::string>& flags, std::string_view script) override {
    std::vector<std::string> argv = {sbatch_, "--parsable", "--no-requeue", "--export=ALL"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    auto outcome = RunCommand(argv, environment_, script, kPatience);
    if (!outcome.ok()) return Failed("sbatch", outcome.status().message());
    if (outcome->code == 0) return Status::Ok();
    const std::string said = Said(*outcome);
    const bool refused = std::ranges::any_of(
        kRefusals, [&](std::string_view word) { return said.find(word) != std::string::npos; });
    return refused ? InvalidArgumentError("Slurm refuses the job: " + said)
                   : Failed("sbatch", said);
  }

  Result<std::vector<SlurmJob>> Jobs() override {
    auto outcome = RunCommand(
        {squeue_, "--me", "--noheader", "--array", "--states=all", "--format=%i|%K|%T|%B|%r|%j"},
        environment_, "", kPatience);
    if (!outcome.ok()) return Failed("squeue", outcome.status().message());
    if (outcome->code != 0) return Failed("squeue", Said(*outcome));
    return ParseSqueue(outcome->out);
  }

  Status Cancel(const std::vector<std::string>& ids, bool pending_only) override {
    std::vector<std::string> argv = {scancel_, "--quiet"};
    if (pending_only) argv.emplace_back("--state=PENDING");
    argv.insert(argv.end(), ids.begin(), ids.end());
    auto outcome = RunCommand(argv, environment_, "", kPatience);
    if (!outcome.ok()) return Failed("scancel", outcome.status().message());
    const std::string said = Said(*outcome);
    // Also when one of several has just ended by itself, or begun: of that it says nothing.
    if (outcome->code == 0 || outcome->err.empty() ||
        said.find("Invalid job id") != std::string::npos ||
        said.find("already completing") != std::string::npos) {
      return Status::Ok();
    }
    return Failed("scancel", said);
  }

  bool warns() const override { return true; }

 private:
  static Status Failed(std::string_view program, std::string_view why) {
    return UnavailableError(fmt::format("{}: {}", program, why));
  }

  std::string sbatch_;
  std::string squeue_;
  std::string scancel_;
  std::vector<std::string> environment_;
};

}  // namespace

std::vector<SlurmJob> ParseSqueue(std::string_view text) {
  std::vector<SlurmJob> jobs;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    // id|index|state|node|reason|name: a name may hold anything, so it comes last.
    std::array<std::string_view, 6> fields;
    std::string_view rest = line;
    bool whole = true;
    for (std::size_t i = 0; i + 1 < fields.size(); ++i) {
      const std::size_t bar = rest.find('|');
      if (bar == std::string_view::npos) {
        whole = false;
        break;
      }
      fields[i] = rest.substr(0, bar);
      rest.remove_prefix(bar + 1);
    }
    if (!whole || fields[0].empty()) continue;
    SlurmJob job;
    job.id = fields[0];
    std::from_chars(fields[1].data(), fields[1].data() + fields[1].size(), job.index);  // or "N/A"
    job.state = fields[2];
    job.node = fields[3];
    job.reason = fields[4];
    job.name = rest;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<std::unique_ptr<SlurmClient>> FindSlurmPrograms(const std::string& directory) {
  auto client = std::make_unique<SlurmPrograms>();
  RETURN_IF_ERROR(client->Find(directory));
  return std::unique_ptr<SlurmClient>(std::move(client));
}

}  // namespace cairn
