#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// Gives the batches of one epoch after the other. A Trainer calls it from the thread that trains,
/// one call at a time:
///
///   Begin(0) Next … Next → nullopt   Begin(1) Next …
///
/// A reader that can be put back into place overrides the three functions at the end: then a
/// resumed training calls LoadState instead of Begin, and reads nothing twice. One that cannot is
/// begun anew and read up to where it was; for that Begin(epoch) must give the same batches each
/// time.
template <typename Batch>
class Reader {
 public:
  virtual ~Reader() = default;

  /// Starts over at the first batch of an epoch.
  virtual Status Begin(std::int64_t epoch) = 0;
  /// The next batch, or nullopt at the epoch's end.
  virtual Result<std::optional<Batch>> Next() = 0;

  /// True: SaveState and LoadState work.
  virtual bool seekable() const { return false; }
  /// Where the reader stands: all that LoadState needs, small; never null. Called between two calls
  /// of Next: what counts is what Next has handed out, not what was read ahead.
  virtual Result<Value> SaveState() { return Value(); }
  /// Puts the reader (any object made the same way) where SaveState found it, without reading what
  /// came before. Begin is not called for the epoch under way.
  virtual Status LoadState(const Value& state) {
    (void)state;
    return UnimplementedError("this reader cannot seek");
  }
};

struct ShuffledIndicesOptions {
  std::uint64_t size = 0;        // of the data set
  std::uint64_t batch_size = 1;  // of one trainer
  std::uint64_t seed = 0;        // the same for all trainers
  bool shuffle = true;           // anew for each epoch, by (seed, epoch) alone
  int trainer_id = 0;            // each trainer gets its own share …
  int num_trainers = 1;          // … and all get the same number of batches
  bool drop_last = false;        // leave out a last batch that is not full
};

/// Indices into data that can be reached at random ("map-style"), in an order that depends on seed
/// and epoch alone, on every machine. Seeks in one step. The indices that do not divide evenly
/// among the trainers are left out, so that all trainers make the same number of steps.
class ShuffledIndices final : public Reader<std::vector<std::uint64_t>> {
 public:
  explicit ShuffledIndices(ShuffledIndicesOptions options);

  Status Begin(std::int64_t epoch) override;
  Result<std::optional<std::vector<std::uint64_t>>> Next() override;
  bool seekable() const override { return true; }
  Result<Value> SaveState() override;
  Status LoadState(const Value& state) override;

 private:
  Status Validate() const;

  ShuffledIndicesOptions options_;
  std::int64_t epoch_ = -1;
  std::uint64_t position_ = 0;      // in own_
  std::vector<std::uint64_t> own_;  // this trainer's share of the epoch, in order
};

}  // namespace cairn
