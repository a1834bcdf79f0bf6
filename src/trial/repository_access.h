#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// A committed checkpoint as the repository has it.
struct FoundCheckpoint {
  std::string id;
  std::int64_t steps = 0;  // metadata's steps_completed, else the step
  Value metadata = Value::Object{};
  Value metrics = Value::Object{};
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::string path;
  std::string kind;  // "full", "increment"
  std::string base;  // of an increment: what it builds on
  std::int64_t time = 0;
  bool pinned = false;
  std::string damage;  // a run could not restore it, for this reason, and it was right
};

/// The event that registers one which was found, and not reported: `checkpoint_completed`.
Value CompletedBody(const FoundCheckpoint& found);

/// What the engine does with the repositories of trials. May be called from several threads; calls
/// wait for the storage.
class RepositoryAccess {
 public:
  virtual ~RepositoryAccess() = default;
  /// The checkpoints that count, oldest first. NotFound: there is no repository.
  virtual Result<std::vector<FoundCheckpoint>> List(const std::string& repository) = 0;
  /// Whose job it is. NotFound: there is no repository.
  virtual Result<std::string> Job(const std::string& repository) = 0;
  /// The newest run that opened it: no older one writes there any more. 0: none, or no repository.
  virtual Result<std::uint64_t> NewestRun(const std::string& repository) = 0;
  /// Makes it that job's where nobody was before. Returns whose it is now.
  virtual Result<std::string> Claim(const std::string& repository, const std::string& job) = 0;
  /// Whose checkpoints are touched, and in the name of which run.
  struct Owner {
    std::string job;  // "": whoever's it is
    std::uint64_t run = 0;
  };
  /// Removes checkpoints as the owner, between two runs: its run is the newest. Returns those that
  /// are gone now; an error when none could be. Never called while a run lives.
  virtual Result<std::vector<std::string>> Remove(const std::string& repository, const Owner& owner,
                                                  const std::vector<std::string>& ids) = 0;
  /// Deletes what runs that died left half made or half removed, as the owner, between two runs.
  /// Opens the repository for writing only where there is such a thing. OK: also without a
  /// repository.
  virtual Status Tidy(const std::string& repository, const Owner& owner) = 0;
  /// Pins the checkpoint or takes the pin away, also while a run lives: of a pin and a removal at
  /// the same time one wins. NotFound, FailedPrecondition: it was removed.
  virtual Status Pin(const std::string& repository, const std::string& id, bool pinned) = 0;

  /// Those of src/checkpoint, by path or URL.
  static std::unique_ptr<RepositoryAccess> Real();
};

}  // namespace cairn
