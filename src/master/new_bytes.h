#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "storage/store.h"

namespace cairn::master {

/// Bytes that were written for each checkpoint of a repository: those of all its files but the ones
/// that it shares with earlier ones.
Result<std::map<std::string, std::uint64_t>> ReadNewBytes(const std::string& repository);
/// The same of an open store. `inode` tells, where there are hard links, which names are one file.
Result<std::map<std::string, std::uint64_t>> CountNewBytes(
    Store* store, const std::function<Result<std::uint64_t>(const std::string& name)>& inode);

struct NewBytesOptions {
  Clock* clock = Clock::System();
  std::function<Result<std::map<std::string, std::uint64_t>>(const std::string& repository)> read =
      ReadNewBytes;
  /// What somebody asked for and did not get at once is known now; on any thread, once for each
  /// trial.
  std::function<void(const std::string& trial, const std::string& checkpoint)> on_found;
  /// How long an answer waits for the storage, all of its checkpoints together.
  std::chrono::nanoseconds moment = std::chrono::seconds(1);
  /// Between two looks at the same repository, at least; one that took long is left alone for ten
  /// times as long.
  std::chrono::nanoseconds pause = std::chrono::milliseconds(200);
};

/// How many bytes were written for a checkpoint: what it cost to keep. Equal contents alone are not
/// shared: a save looks at the checkpoint before it only, and writes a file anew that has many
/// links already. So the storage is asked: a reference of the manifest, or a hard link. A committed
/// checkpoint does not change, so that what was found once is known until the master ends. Two
/// threads read the storage: one that is slow or away holds nobody up for more than a moment. May
/// be called from any thread.
class NewBytes {
 public:
  using Options = NewBytesOptions;
  struct Wanted {
    std::string trial;
    std::string repository;
    std::string id;
  };

  explicit NewBytes(Options options) : options_(std::move(options)) {}
  ~NewBytes();
  NewBytes(const NewBytes&) = delete;
  NewBytes& operator=(const NewBytes&) = delete;

  void Start();
  void Stop();

  /// Has those looked up that are not known, and waits a moment for that.
  void Want(std::span<const Wanted> wanted);
  /// Nothing where nobody knows, or not yet. Quick.
  std::optional<std::uint64_t> Of(const std::string& id) const;

 private:
  struct Place {
    bool asked = false;                       // to be looked at, from `due` on
    Clock::Duration due{};                    // not before
    bool busy = false;                        // is being looked at
    Clock::Duration since{};                  // since when it is asked for, or busy
    std::uint64_t looks = 0;                  // that ended
    std::map<std::string, std::string> left;  // by checkpoint, its trial: who asked went without
  };

  void Run();
  /// One that may be looked at now; otherwise when the next one may.
  Place* Next(std::string* repository, std::optional<Clock::Duration>* when) REQUIRES(mu_);
  void Look(const std::string& repository, Place* place);

  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::map<std::string, std::uint64_t> known_ GUARDED_BY(mu_);  // by checkpoint
  std::map<std::string, Place> places_ GUARDED_BY(mu_);         // by repository
  std::vector<std::jthread> threads_;
};

}  // namespace cairn::master
