#include "cli/bench_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "cli/output.h"
#include "cli/raw_files.h"
#include "storage/local/posix_fs.h"

namespace cairn::cli {
namespace {

constexpr std::uint64_t kElement = 4;  // of F32

/// A state of equal tensors whose bytes differ from save to save, as a training's do.
class State {
 public:
  State(std::uint64_t bytes, std::uint64_t tensors)
      : words_(bytes / 8), each_(bytes / tensors), tensors_(tensors) {
    std::uint64_t x = 0x9e3779b97f4a7c15u;
    for (std::uint64_t& word : words_) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      word = x;
    }
  }

  /// One word in each 4 KiB: no file is the same as last time.
  void Step() {
    for (std::size_t i = 0; i < words_.size(); i += 512) ++words_[i];
  }
  void Clear() { std::fill(words_.begin(), words_.end(), 0); }
  std::uint64_t Sum() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t word : words_) sum = sum * 31 + word;
    return sum;
  }
  /// Name, shape and place of each, as Tensor or MutableTensor.
  template <typename T>
  std::vector<T> Tensors() {
    std::vector<T> all;
    for (std::uint64_t i = 0; i < tensors_; ++i) {
      T tensor;
      tensor.name = fmt::format("layer{:04}/weight", i);
      tensor.dtype = DType::kF32;
      tensor.shape = {each_ / kElement};
      tensor.data = reinterpret_cast<std::byte*>(words_.data()) + i * each_;
      all.push_back(std::move(tensor));
    }
    return all;
  }

 private:
  std::vector<std::uint64_t> words_;
  const std::uint64_t each_;
  const std::uint64_t tensors_;
};

using Figures = std::map<std::string, std::vector<double>>;

class Rounds {
 public:
  Rounds(const BenchOptions& options, std::uint64_t bytes, const ScratchDirectory& scratch,
         Console* console)
      : bytes_(bytes),
        rounds_(options.rounds),
        scratch_(scratch),
        clock_(console->clock()),
        bar_("bench", console->clock(), console->progress_enabled()),
        raw_(console->clock()),
        state_(bytes, options.tensors) {}

  Result<Figures> Run() {
    ManagerOptions options;
    options.directory = scratch_ / "run";
    options.retention.keep_last = 2;
    options.pool_bytes = 0;  // each save writes new files, as the plain one does
    ASSIGN_OR_RETURN(manager_, CheckpointManager::Open(std::move(options)));
    const bool direct =
        PosixFs()->Open(scratch_ / "probe", {.write = true, .create = true, .direct = true}).ok();
    for (int round = 0; round < rounds_; ++round) {
      RETURN_IF_ERROR(Save(round));
      RETURN_IF_ERROR(Restore());
      RETURN_IF_ERROR(Plain(direct));
    }
    RETURN_IF_ERROR(manager_->Close());
    return std::move(figures_);
  }

 private:
  Status Save(int round) {
    state_.Step();
    SaveRequest request;
    request.step = round + 1;
    request.tensors = state_.Tensors<Tensor>();
    ASSIGN_OR_RETURN(const SaveHandle handle, manager_->Save(std::move(request)));
    while (!handle.WaitFor(std::chrono::milliseconds(200))) {
      if (Console::interrupted()) return CancelledError("interrupted");
    }
    RETURN_IF_ERROR(handle.Wait().status());
    figures_["stall_seconds"].push_back(handle.StallSeconds());
    Note("save", handle.DurableSeconds());
    return Status::Ok();
  }

  Status Restore() {
    const std::uint64_t want = state_.Sum();
    state_.Clear();
    RestoreRequest request;
    request.into = state_.Tensors<MutableTensor>();
    request.cancelled = [] { return Console::interrupted(); };
    const Clock::Duration begun = clock_->Now();
    ASSIGN_OR_RETURN(const auto restored, manager_->Restore(std::move(request)));
    Note("restore", std::chrono::duration<double>(clock_->Now() - begun).count());
    if (!restored.has_value() || state_.Sum() != want) {
      return CorruptionError("the restored bytes are not those that were saved");
    }
    return Status::Ok();
  }

  Status Plain(bool direct) {
    const std::string file = scratch_ / "plain";
    ASSIGN_OR_RETURN(double rate, raw_.Write(file, bytes_, direct, true));
    Add("plain_write", rate);
    ASSIGN_OR_RETURN(rate, raw_.Read(file, bytes_, direct));
    Add("plain_read", rate);
    return PosixFs()->Unlink(file);
  }

  void Note(const std::string& what, double seconds) {
    Add(what, static_cast<double>(bytes_) / std::max(seconds, 1e-9));
  }
  void Add(const std::string& what, double rate) {
    figures_[what].push_back(rate);
    bar_.Update(++done_ * bytes_, static_cast<std::uint64_t>(rounds_) * 4 * bytes_);
  }

  const std::uint64_t bytes_;
  const int rounds_;
  const ScratchDirectory& scratch_;
  Clock* const clock_;
  ProgressBar bar_;
  RawFiles raw_;
  State state_;
  std::unique_ptr<CheckpointManager> manager_;
  Figures figures_;
  std::uint64_t done_ = 0;
};

}  // namespace

Result<Output> Bench(const BenchOptions& options, Console* console) {
  if (IsRemote(options.directory)) {
    return InvalidArgumentError(
        "bench measures directories; how fast a bucket is tells `cairn doctor " +
        options.directory + "`");
  }
  if (IsUrl(options.directory)) {
    BenchOptions local = options;
    ASSIGN_OR_RETURN(local.directory, LocalPath(options.directory));
    return Bench(local, console);
  }
  RETURN_IF_ERROR(ExistingDirectory(options.directory).status());
  const std::uint64_t part = options.tensors * RawFiles::kAlign;
  const std::uint64_t bytes = options.bytes / part * part;
  if (bytes == 0) {
    return InvalidArgumentError(fmt::format("{} do not make {} tensors of at least {}",
                                            HumanBytes(options.bytes), options.tensors,
                                            HumanBytes(RawFiles::kAlign)));
  }
  ASSIGN_OR_RETURN(const std::uint64_t free, PosixFs()->FreeBytes(options.directory));
  // Three checkpoints at once and the plain file.
  if (free / 5 < bytes) {
    return ResourceExhaustedError(
        fmt::format("\"{}\" has {} free, and five times {} are needed: choose a smaller --size",
                    options.directory, HumanBytes(free), HumanBytes(bytes)));
  }
  console->CatchInterrupts();
  ScratchDirectory scratch;
  RETURN_IF_ERROR(scratch.Make(options.directory, "bench"));
  Figures figures;
  try {
    Rounds rounds(options, bytes, scratch, console);
    ASSIGN_OR_RETURN(figures, rounds.Run());
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("there is no memory for a state of " + HumanBytes(bytes) +
                                  ": choose a smaller --size");
  }

  Output out;
  out.text = fmt::format("{} in {}, median of {} (slowest to fastest)\n", HumanBytes(bytes),
                         Counted(options.tensors, "tensor"), Counted(options.rounds, "round"));
  static const std::vector<std::pair<std::string, std::string>> kTitles = {
      {"save", "save until durable"},
      {"plain_write", "plain file until durable"},
      {"restore", "restore, verified"},
      {"plain_read", "plain file, not cached"}};
  std::map<std::string, double> medians;
  Value::Object rates;
  for (const auto& [key, title] : kTitles) {
    const std::vector<double>& values = figures[key];
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    medians[key] = Median(values);
    out.text += fmt::format("{:<25} {:>12}   ({} to {})\n", title, HumanRate(medians[key]),
                            HumanRate(*low), HumanRate(*high));
    rates[key] = Value::Object{{"median", medians[key]}, {"slowest", *low}, {"fastest", *high}};
  }
  const double stall = Median(figures["stall_seconds"]);
  out.text += fmt::format("\nThe training waited {:.1f} ms for each save, which took {:.2f} s.\n",
                          stall * 1e3, static_cast<double>(bytes) / medians["save"]);
  out.text += fmt::format("A save reaches {:.2f} of the plain file's speed.\n",
                          medians["save"] / medians["plain_write"]);
  out.json =
      Value::Object{{"directory", options.directory}, {"bytes", bytes},
                    {"tensors", options.tensors},     {"rounds", std::int64_t{options.rounds}},
                    {"stall_seconds", stall},         {"bytes_per_second", std::move(rates)}};
  return out;
}

}  // namespace cairn::cli
