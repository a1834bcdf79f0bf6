#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/dtype.h>
#include <cairn/initializer.h>
#include <cairn/optimizer.h>
#include <cairn/status.h>

/// Sparse tables: rows of weights by 64-bit keys, made when they are first touched, with full and
/// incremental checkpoints that are cut in microseconds and written while training goes on:
///
///   auto table = cairn::Table::Make({.name = "users", .dim = 16, .optimizer = adagrad,
///                                    .initializer = normal}).value();
///   table->Lookup(ids, rows);                    // makes rows on first touch
///   table->ApplyGradients(ids, gradients);
///   auto cuts = cairn::CutTables({table.get()}, {.kind = cairn::CutKind::kFull}).value();
///   auto handle = manager->Save({.step = 10, .tensors = cuts[0]->Tensors()}).value();
///   …                                            // goes on training meanwhile
///   handle.Wait().ok() ? cuts[0]->Committed() : cuts[0]->Failed();
namespace cairn {

/// Keys are spread over this many logical shards by a fixed hash that is part of the format.
inline constexpr std::uint32_t kTableShards = 1024;

/// The logical shard of a key.
std::uint32_t TableShardOf(std::int64_t key);

/// Logical shards [begin, end).
struct ShardRange {
  std::uint32_t begin = 0;
  std::uint32_t end = kTableShards;
  bool Contains(std::uint32_t shard) const { return shard >= begin && shard < end; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// What belongs to one cut passes through one gate. Updates enter it, a batch at a time; a cut
/// waits until all that are inside have left, and holds back others for the microseconds it takes.
/// Any thread.
class CutGate {
 public:
  CutGate();
  ~CutGate();
  CutGate(const CutGate&) = delete;
  CutGate& operator=(const CutGate&) = delete;

  /// The gate of tables that name no other.
  static const std::shared_ptr<CutGate>& Process();

  /// While one lives no cut happens. Tables enter by themselves for each call; a caller that
  /// changes several tables, or dense variables, in one step enters around all of it. May be
  /// nested. Leaves on the thread that entered.
  class [[nodiscard]] Batch {
   public:
    explicit Batch(CutGate* gate);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    CutGate* gate_;
    void* slot_;
  };

  /// Whether the calling thread is inside of a batch.
  bool InBatch() const;
  /// Whether any thread is: a look, which may be over by the time it is told.
  bool InUse() const;

  /// Calls `fn` while nobody is inside. May be nested. FailedPrecondition from inside a batch,
  /// which would wait for itself.
  Status Exclusive(const std::function<Status()>& fn);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Rows are made only for keys that were looked up (with create) `min_count` times. Before that a
/// lookup gives the initial value and gradients are ignored. The counts are part of checkpoints.
struct AdmissionOptions {
  std::uint32_t min_count = 1;
};

/// What Table::Evict removes; both may be set, either suffices.
struct EvictionOptions {
  std::optional<std::int64_t> steps_to_live;  // rows not made or updated for more steps than this
  std::optional<float> min_l2_norm;           // rows whose weights are shorter
};

struct TableOptions {
  std::string name;           // tensors are <name>/keys …; not empty, no control characters
  std::uint32_t dim = 0;      // weights of a row, 1 … 65,536
  DType dtype = DType::kF32;  // of the weights: kF32, kF16, kBF16. Slots are always float32
  std::shared_ptr<const Optimizer> optimizer;      // shared: tables have the same one
  std::shared_ptr<const Initializer> initializer;  // shared likewise
  std::uint64_t seed = 0;                          // of the initial values
  std::optional<AdmissionOptions> admission;
  std::optional<EvictionOptions> eviction;
  ShardRange shards;              // this process's share of the keys; others are refused
  std::shared_ptr<CutGate> gate;  // shared by all that is cut together; nullptr: the process's
  /// Memory for the earlier content of rows that are updated while a cut is being written. When it
  /// is used up updates wait for the writer. The writer of an increment takes at most as much again
  /// to gather its rows; those that do not fit are gone through once for each column.
  std::uint64_t side_buffer_bytes = 512u << 20;

  Status Validate() const;
};

enum class Missing : std::uint8_t {
  kCreate,   // make the row (as admission allows)
  kInitial,  // give the initial value, change nothing
};

/// A row as iteration shows it; valid during the call.
struct RowView {
  std::int64_t key = 0;
  std::uint64_t frequency = 0;  // updates, counting each occurrence in a batch
  std::int64_t version = 0;     // the step of the last change
  std::span<const float> weights;
  std::span<const float> slots;  // all of them, back to back
};

struct EvictReport {
  std::uint64_t rows = 0;     // removed
  std::uint64_t pending = 0;  // counts of keys not yet admitted that were dropped
};

struct TableMemory {
  std::uint64_t rows = 0;      // bytes of row records, with room for more
  std::uint64_t index = 0;     // from keys to rows
  std::uint64_t tracking = 0;  // lists of changed rows, tombstones, room to gather increments in
  std::uint64_t side_buffer = 0;
  std::uint64_t pending = 0;  // counts of keys not yet admitted
  std::uint64_t total() const { return rows + index + tracking + side_buffer + pending; }
};

class TableCut;
class TableLoader;

enum class CutKind : std::uint8_t {
  kFull,         // all rows
  kCumulative,   // rows changed since the last committed full (the base)
  kConsecutive,  // rows changed since the last committed full or increment (the parent)
};

struct CutRequest {
  CutKind kind = CutKind::kFull;
  /// Of increments: weights and slots as 8-bit integers with a scale for each row, a quarter of
  /// the size. See TableCut::QuantizationError.
  bool quantize = false;
  /// Keys as one zstd column. Costs the caller the time to compress them: their number must be
  /// known before the file is laid out.
  bool compress_keys = false;
};

/// A sparse table in memory. All calls may come from many threads at once; calls of one thread are
/// bit-reproducible. A batch may hold a key several times: gradients of one key are summed in
/// order, then applied once. A call that fails has changed nothing, except where said.
class Table {
 public:
  static Result<std::unique_ptr<Table>> Make(TableOptions options);
  virtual ~Table() = default;

  /// Gives the weights of each id, as float32, `dim` a row, into `out`. With kCreate a row is made
  /// on first touch; rows that exist are not changed by being looked up.
  virtual Status Lookup(std::span<const std::int64_t> ids, std::span<float> out,
                        Missing missing = Missing::kCreate) = 0;
  /// Makes missing rows (unless admission has still to admit them: then it is ignored), and lets
  /// the optimizer change each id's row.
  virtual Status ApplyGradients(std::span<const std::int64_t> ids,
                                std::span<const float> gradients) = 0;
  /// Sets weights; makes missing rows whatever admission says; of a key given twice the last
  /// counts. Slots stay.
  virtual Status Assign(std::span<const std::int64_t> ids, std::span<const float> values) = 0;
  /// Removes rows and counts of pending keys; returns how many rows there were.
  virtual Result<std::uint64_t> Erase(std::span<const std::int64_t> ids) = 0;
  /// Removes what the eviction options say, at `step`. FailedPrecondition without any.
  virtual Result<EvictReport> Evict(std::int64_t step) = 0;
  /// Removes everything; increments need a new full first. FailedPrecondition while a cut is being
  /// saved: Erase is not refused then.
  virtual Status Clear() = 0;

  /// Calls `fn` for each row, shard after shard. Rows changed meanwhile are seen before or after
  /// the change. `fn` may not call this table; a status that is not OK ends it.
  virtual Status ForEach(const std::function<Status(const RowView&)>& fn) = 0;

  virtual std::uint64_t size() const = 0;
  virtual std::uint64_t pending_size() const = 0;
  virtual TableMemory memory() const = 0;
  virtual const TableOptions& options() const = 0;
  virtual const std::vector<SlotSpec>& slots() const = 0;

  /// The step that changes are stamped with (a row's version).
  virtual std::int64_t step() const = 0;
  virtual void set_step(std::int64_t step) = 0;
  virtual float learning_rate() const = 0;
  virtual void set_learning_rate(float rate) = 0;

  /// Whether an increment of this kind has something to stand on: a committed or loaded full.
  virtual bool has_base() const = 0;
  /// Grows whenever it is settled anew which rows count as changed: by a committed cut, a load,
  /// Clear. Where it is not as a save or restore left it, somebody else's increments hold the rows
  /// that changed since.
  virtual std::uint64_t settled_count() const = 0;
  /// Rows and tombstones that an increment would hold now: about, while others update.
  virtual std::uint64_t ChangedRows(CutKind kind) const = 0;
};

/// How a table stands in a checkpoint, for the manifest.
struct TableSummary {
  std::string name;
  std::uint32_t dim = 0;
  DType dtype = DType::kF32;
  std::uint64_t rows = 0;
  std::uint64_t deleted = 0;
  std::uint64_t pending = 0;
  NumberRange held;  // its logical shards; of tracked arrays, its rows
};

/// The rows of a table at the instant of a cut: all of them or those that changed. They are handed
/// out as tensors that are read while the table goes on changing. Used by one thread; the table
/// must outlive it. A table has at most one at a time.
class TableCut {
 public:
  /// Gives its rows back to the next increment, unless Committed was called.
  virtual ~TableCut() = default;

  virtual CutKind kind() const = 0;
  virtual const TableSummary& summary() const = 0;
  /// For SaveRequest::tensors, in group kTable; borrowed from this object. Each byte is given out
  /// once, each tensor in order, the tensors in any order.
  virtual std::vector<Tensor> Tensors() = 0;
  /// The manifest that names these rows is durable: they leave the set of changed rows.
  virtual void Committed() = 0;
  /// They will be in the next increment.
  virtual void Failed() = 0;

  /// With CutRequest::quantize, when everything was read: the largest difference between an element
  /// and what was written for it, and the largest in parts of its row's largest element.
  struct Error {
    double max_abs = 0;
    double max_relative = 0;
  };
  virtual Error QuantizationError() const = 0;
};

/// Cuts several tables at one instant; all must pass through the same gate. `also` is called within
/// it: the dense variables, generators and positions that it takes, and what it changes in tables,
/// belong to the same instant. When it fails nothing was cut. FailedPrecondition: a table has a cut
/// already that is neither committed nor failed, or an increment is asked for and there is no base.
/// Called from outside of batches.
Result<std::vector<std::unique_ptr<TableCut>>> CutTables(std::span<Table* const> tables,
                                                         const CutRequest& request,
                                                         const std::function<Status()>& also = {});

/// The columns of a stored part of a table, as its file's header gives them: names without
/// "<table>/".
struct StoredColumn {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
};

/// The keys of a part whose column is "keys_zstd" (CutRequest::compress_keys); `rows` is how many
/// there are, as shard_offsets ends. Corruption when they are not.
Result<std::vector<std::int64_t>> DecodeTableKeys(std::span<const std::byte> stored,
                                                  std::uint64_t rows);

/// Rows [first, first + count) of a stored part.
struct RowRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// A run of rows of a stored part: the same rows of each column.
struct RowBlock {
  std::uint64_t first = 0;  // row number in the part
  std::span<const std::int64_t> keys;
  std::span<const std::byte> values;              // as stored
  std::vector<std::span<const std::byte>> slots;  // in the order of Table::slots()
  std::span<const std::int64_t> frequency;
  std::span<const std::int64_t> version;
  std::span<const float> value_scale;              // of quantized parts
  std::vector<std::span<const float>> slot_scale;  // likewise; empty where a slot is not quantized
};

/// Fills a table from a full and the increments that follow it, part by part and block by block,
/// so that nothing passes through memory twice. Nobody else may use the table meanwhile (calls are
/// refused). When a call failed, or the loader goes without Finish, the table is left empty.
///
///   auto loader = TableLoader::Begin(table.get(), {}).value();
///   for (each checkpoint of the chain, the full first) {
///     loader->BeginCheckpoint(kind);
///     for (each participant's file with this table) {
///       auto part = loader->BeginPart(columns, shard_offsets).value();
///       loader->AddDeleted(keys);                              // of increments, before rows
///       for (RowRange range : part->rows()) … part->AddRows(block);   // from several threads
///       loader->AddPending(keys, counts, versions);
///     }
///   }
///   loader->Finish();
class TableLoader {
 public:
  struct Options {
    /// Rows that the table has stay, and those that are loaded replace their like. Increments then
    /// need a new full first.
    bool merge = false;
  };
  static Result<std::unique_ptr<TableLoader>> Begin(Table* table, const Options& options);
  /// Compares what is stored with the table, as BeginPart does, before anything is begun.
  static Status Fits(const Table& table, const std::vector<StoredColumn>& columns,
                     std::span<const std::int64_t> shard_offsets);
  virtual ~TableLoader() = default;

  /// One participant's file.
  class Part {
   public:
    virtual ~Part() = default;
    /// The runs of rows that this table owns; others need not be read.
    virtual const std::vector<RowRange>& rows() const = 0;
    /// Rows within rows(). May be called from several threads. Corruption: a key that does not
    /// belong to the shard whose place it has, columns of different lengths.
    virtual Status AddRows(const RowBlock& block) = 0;
  };

  /// The full first, then its increments in order. Replaying one is harmless.
  virtual Status BeginCheckpoint(CutKind kind) = 0;
  /// Compares names, dtypes and shapes with the table (Mismatch, naming each), and the offsets with
  /// the number of rows (Corruption). Changes nothing.
  virtual Result<std::unique_ptr<Part>> BeginPart(const std::vector<StoredColumn>& columns,
                                                  std::span<const std::int64_t> shard_offsets) = 0;
  /// Keys removed since the base; those of other shards are passed over.
  virtual Status AddDeleted(std::span<const std::int64_t> keys) = 0;
  virtual Status AddPending(std::span<const std::int64_t> keys,
                            std::span<const std::int64_t> counts,
                            std::span<const std::int64_t> versions) = 0;
  virtual Status Finish() = 0;
};

}  // namespace cairn
