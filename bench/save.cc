#include <fmt/format.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"

namespace cairn::bench {
namespace {

Result<std::unique_ptr<CheckpointManager>> OpenFor(const Options& options,
                                                   const std::string& directory, bool recycle) {
  ManagerOptions manager;
  manager.directory = directory;
  manager.retention.keep_last = 1;
  manager.copy_threads = options.threads;
  if (!recycle) manager.pool_bytes = 0;
  return CheckpointManager::Open(std::move(manager));
}

/// Saves the changed state; the removal of the one before comes after the clock stopped.
Status TimedSave(CheckpointManager* manager, State* state, std::int64_t step, Stopwatch* watch) {
  state->ChangeAll();
  watch->Start();
  const Status saved = SaveDurably(manager, *state, step);
  watch->Stop();
  RETURN_IF_ERROR(saved);
  return manager->WaitAll();
}

/// The contender writes a new file beside that of its last round, then removes that one.
class NewFiles {
 public:
  NewFiles(std::string directory, std::string name)
      : directory_(std::move(directory)), name_(std::move(name)) {}
  std::string Next() { return fmt::format("{}/{}-{}", directory_, name_, ++number_); }
  void RemoveLast() {
    if (number_ > 1) unlink(fmt::format("{}/{}-{}", directory_, name_, number_ - 1).c_str());
  }

 private:
  const std::string directory_;
  const std::string name_;
  int number_ = 0;
};

}  // namespace

Status RunRaw(const Options& options) {
  State state(UniformShapes(options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "raw"));
  const std::span<const std::byte> bytes = state.Contiguous();
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return Status::Ok();
  };
  std::vector<Contender> contenders;
  const std::string path = directory + "/file";
  for (const bool allocate : {true, false}) {
    for (const std::size_t block : {1u << 20, 4u << 20, 8u << 20, 16u << 20}) {
      for (const int depth : {2, 4, 8, 16}) {
        const RawOptions raw{.block = block, .depth = depth, .allocate = allocate};
        contenders.push_back(
            {fmt::format("direct {} MiB x {}{}", block >> 20, depth, allocate ? "" : " growing"),
             bytes.size(), [=](Stopwatch* watch) {
               watch->Start();
               const Status wrote = WriteDirect(path, bytes, false, raw);
               watch->Stop();
               unlink(path.c_str());
               return wrote;
             }});
      }
    }
  }
  contenders.push_back({"buffered", bytes.size(), [=](Stopwatch* watch) {
                          watch->Start();
                          const Status wrote = WriteBuffered(path, bytes, false);
                          watch->Stop();
                          unlink(path.c_str());
                          return wrote;
                        }});
  const Status status = RunRounds(options, "raw", prepare, contenders);
  RemoveDirectory(directory);
  return status;
}

Status RunSave(const Options& options) {
  State state(ShapesOf(options.variant, options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "save"));
  ASSIGN_OR_RETURN(const auto fresh, OpenFor(options, directory + "/new", /*recycle=*/false));
  ASSIGN_OR_RETURN(const auto recycled, OpenFor(options, directory + "/recycled", true));
  const std::span<const std::byte> bytes = state.Contiguous();
  const std::string existing = directory + "/existing";
  NewFiles direct(directory, "direct");
  NewFiles buffered(directory, "buffered");

  // Until both repositories are in their steady state: the first save compares the ways of writing,
  // the third is the first that finds files to write over.
  std::int64_t step = 0;
  for (int i = 0; i < 3; ++i) {
    for (CheckpointManager* manager : {fresh.get(), recycled.get()}) {
      state.ChangeAll();
      RETURN_IF_ERROR(SaveDurably(manager, state, ++step));
      RETURN_IF_ERROR(manager->WaitAll());
    }
  }
  RETURN_IF_ERROR(WriteDirect(existing, bytes, /*overwrite=*/false));

  const std::vector<Contender> contenders = {
      {"raw direct", bytes.size(),
       [&](Stopwatch* watch) {
         const std::string path = direct.Next();
         watch->Start();
         const Status wrote = WriteDirect(path, bytes, /*overwrite=*/false);
         watch->Stop();
         direct.RemoveLast();
         return wrote;
       }},
      {"raw buffered", bytes.size(),
       [&](Stopwatch* watch) {
         const std::string path = buffered.Next();
         watch->Start();
         const Status wrote = WriteBuffered(path, bytes, /*overwrite=*/false);
         watch->Stop();
         buffered.RemoveLast();
         return wrote;
       }},
      {"cairn new", state.bytes(),
       [&](Stopwatch* watch) { return TimedSave(fresh.get(), &state, ++step, watch); }},
      {"raw overwrite", bytes.size(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status wrote = WriteDirect(existing, bytes, /*overwrite=*/true);
         watch->Stop();
         return wrote;
       }},
      {"cairn recycled", state.bytes(),
       [&](Stopwatch* watch) { return TimedSave(recycled.get(), &state, ++step, watch); }},
  };
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "save/" + options.variant, prepare, contenders));
  RETURN_IF_ERROR(fresh->Close());
  RETURN_IF_ERROR(recycled->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

Status RunFirstSave(const Options& options) {
  State state(ShapesOf(options.variant, options.bytes));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "first"));
  const std::span<const std::byte> bytes = state.Contiguous();
  const std::string path = directory + "/raw";
  Settle();
  TouchAndFree(MemoryToTouch(options));
  ASSIGN_OR_RETURN(const auto manager, OpenFor(options, directory + "/new", false));
  SaveHandle handle;
  Options once = options;
  once.rounds = once.max_rounds = 1;
  const std::vector<Contender> contenders = {
      {"cairn first", state.bytes(),
       [&](Stopwatch* watch) {
         SaveRequest request;
         request.step = 1;
         request.tensors = state.Views();
         watch->Start();
         ASSIGN_OR_RETURN(handle, manager->Save(std::move(request)));
         const Status durable = handle.Wait().status();
         watch->Stop();
         watch->Note("blocked", handle.StallSeconds());
         return durable;
       }},
      {"raw direct", bytes.size(),
       [&](Stopwatch* watch) {
         watch->Start();
         const Status wrote = WriteDirect(path, bytes, /*overwrite=*/false);
         watch->Stop();
         return wrote;
       }},
  };
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(once, "first/" + options.variant, prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
