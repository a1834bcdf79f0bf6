#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "table/kept_rows.h"
#include "table/key_index.h"
#include "table/pre_images.h"
#include "table/row_layout.h"
#include "table/row_list.h"
#include "table/side_buffer.h"
#include "table/slab.h"

namespace cairn::table {

// Off only in the benchmark that measures what tracking costs.
#if defined(CAIRN_TABLE_UNTRACKED)
inline constexpr bool kTracking = false;
#else
inline constexpr bool kTracking = true;
#endif

/// The time between two cuts, as seen by an update. It does not change while a batch is inside of
/// the gate.
struct Epoch {
  std::uint32_t number = 1;
  bool tracking = false;  // changed rows are listed: a full was cut or loaded
};

/// Which epochs are durable: rows changed after `base` are in a cumulative increment, rows changed
/// after `parent` in a consecutive one.
struct DurableEpochs {
  std::uint32_t base = 0;
  std::uint32_t parent = 0;
};

/// The same where updates read it: set before the shards are told, one after the other, so that who
/// holds a shard's lock sees at least what that shard was told.
class SharedDurableEpochs {
 public:
  DurableEpochs Get() const {
    return {base_.load(std::memory_order_relaxed), parent_.load(std::memory_order_relaxed)};
  }
  void Set(const DurableEpochs& durable) {
    base_.store(durable.base, std::memory_order_relaxed);
    parent_.store(durable.parent, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint32_t> base_{0};
  std::atomic<std::uint32_t> parent_{0};
};

/// Which rows belong to a cut: those alive and changed after `from` (a full: all that are alive).
struct CutScope {
  std::uint32_t epoch = 0;   // the one that the cut closed
  std::uint32_t parent = 0;  // the newest that is durable
  std::uint32_t from = 0;
  bool full = false;
  bool cumulative = false;
};

/// The records of one logical shard: arena, index, changed rows, and what a cut under way needs.
///
/// Changed rows. A record's epoch is that of its last change, and it is in the list of the current
/// epoch exactly when its epoch is the current one, alive or not. So no set is needed: the first
/// touch in an epoch appends. At a cut the list is put aside whole (`closed_`); when the cut is
/// over it is added to the rows that changed after the base and are durable (`earlier_`), or, when
/// it failed, to those that are not (`undurable_`). In which of the lists a row counts is told by
/// its epoch, so that nobody looks for it in the others: a consecutive increment costs what changed
/// since the last one, however much changed since the base. A row may stand several times in one
/// list, until that is sorted. Places of removed rows are used again at once.
///
/// A cut under way. Its rows are found by walking the lists (a full: the arena up to where it
/// reached), as often as there are columns. A record whose epoch is after the cut's was changed
/// since: its content at the cut is in the pre-images, and if it is not there the record did not
/// belong to the cut.
///
/// A cut that is read once (ReadCutOnce): its rows may come in any order, so whoever changes one
/// before the walk has come there copies it to the end of a list, and the walk passes it by. The
/// lists are in the order of addresses, so that how far the walk has come tells which rows those
/// are: nothing has to be looked up.
///
/// The shard's lock guards all of it but PrefetchIndex. std::bad_alloc passes through, with nothing
/// changed that anybody sees.
class alignas(64) RowStore {
 public:
  /// All are borrowed.
  struct Memory {
    Slab* rows;
    RowListPool* lists;
    SideBuffer* side;
  };
  RowStore(const RowLayout* layout, const Memory& memory)
      : current_(memory.lists),
        closed_(memory.lists),
        layout_(layout),
        slab_(memory.rows),
        side_(memory.side),
        earlier_(memory.lists),
        undurable_(memory.lists) {}

  const RowLayout& layout() const { return *layout_; }
  std::size_t size() const { return index_.size(); }

  void PrefetchIndex(std::uint64_t hash) const { index_.Prefetch(hash); }
  RowHeader* Candidate(std::uint64_t hash) const { return index_.Candidate(hash); }
  RowHeader* Find(std::int64_t key, std::uint64_t hash) const { return index_.Find(key, hash); }

  /// Makes the row of a key that has none; frequency and version are 0, the rest is the caller's to
  /// fill.
  RowHeader* Insert(std::int64_t key, std::uint64_t hash, const Epoch& epoch);
  /// Before a row is changed. False: the side buffer is full, and nothing happened.
  bool Touch(RowHeader* row, const Epoch& epoch, const SharedDurableEpochs& durable) {
    if constexpr (!kTracking) return true;
    if (row->epoch == epoch.number) return true;
    return FirstTouch(row, epoch, durable);
  }
  /// Removes a row. False: as with Touch.
  bool Erase(RowHeader* row, std::uint64_t hash, const Epoch& epoch,
             const SharedDurableEpochs& durable);

  /// Rows that a cut of this kind would have, if the current epoch ended now.
  std::uint64_t ChangedSinceBase() const { return since_base_; }
  std::uint64_t ChangedSinceParent() const { return since_parent_; }

  /// Closes the current epoch; returns how many rows belong to the cut. Takes no time to speak of.
  std::uint64_t BeginCut(const CutScope& scope);
  /// Right after BeginCut of an increment: its rows will be walked over once, and those that were
  /// changed meanwhile taken with TakeKept. `pool`: borrowed until the copy has ended.
  void ReadCutOnce(KeptRowPool* pool) {
    once_ = true;
    kept_ = KeptRows(pool, side_);
  }
  /// Of a cut that is read once, when the walk is over: the rows that it passed by. Ends the copy.
  KeptRows TakeKept();
  /// Every column was read, or the cut is given up.
  void EndCopy();
  /// After EndCopy.
  void EndCut(bool committed);
  /// Keeps the lists of changed rows from growing without bound. Between EndCopy and the next cut,
  /// without the lock: updates do not look at these lists.
  void CompactLists();
  bool cutting() const { return cutting_; }

  /// A place in the walk over the rows of a cut.
  struct CutCursor {
    std::uint32_t list = 0;  // chunk of a full; of an increment: earlier, undurable, closed rows
    std::size_t at = 0;
    std::size_t fetched = 0;  // of the list
  };
  /// A row as it was at the cut.
  struct CutRow {
    const RowHeader* header = nullptr;
    const RowHeader* live = nullptr;  // where its columns are, unless …
    PreImages::Image image{};         // … they were kept aside
  };
  /// Before a walk, unless one is under way: puts the rows of the cut into the order of their
  /// addresses. Needs no lock, as those below that say so: updates do not look at these lists.
  void BeginWalk();
  void EndWalk();  // without the lock
  /// What will be read of records besides the header: bytes from `begin` to before `end`.
  struct Wanted {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// Fetches as many of the next rows of the walk from memory. Without the lock: under it the rows
  /// are at hand, and nobody waits there for memory.
  void FetchCutRows(CutCursor* cursor, std::size_t rows, const Wanted& wanted) const;
  /// Gives the next rows of the cut, up to rows.size(); fewer only at the end.
  std::size_t NextCutRows(CutCursor* cursor, std::span<CutRow> rows) const;
  /// The same of a cut that is read once: without those that will come with TakeKept.
  std::size_t NextUnchangedRows(CutCursor* cursor, std::span<const RowHeader*> rows);
  const std::byte* CutColumn(const CutRow& row, std::size_t column) const {
    return row.live != nullptr ? RowLayout::Bytes(row.live) + layout_->columns()[column].offset
                               : pre_images_->Column(row.image, column);
  }
  /// No one will read this column of the cut again.
  void DropCutColumn(std::size_t column);

  /// A place in the walk over all rows, at any time.
  struct Cursor {
    std::size_t chunk = 0;
    std::uint32_t at = 0;
  };
  /// The next row that is alive, or nullptr.
  RowHeader* Next(Cursor* cursor) const;

  /// After a load: what is in the current epoch changed since the base, and nothing since the
  /// parent.
  void EndLoad();
  /// For tombstones: removes rows last changed in or before `epoch`, which nobody tracks.
  void Forget(std::uint32_t epoch);
  void Reserve(std::size_t rows) { index_.Reserve(rows); }
  /// Empty, with nothing tracked; the slab is the caller's to reset.
  void Reset();

  std::uint64_t row_bytes() const { return capacity_ * layout_->stride(); }
  std::uint64_t index_bytes() const { return index_.bytes(); }
  /// Besides the lists of changed rows, which are in the pool.
  std::uint64_t tracking_bytes() const { return free_.capacity() * sizeof(RowHeader*); }

 private:
  struct Chunk {
    std::byte* base;
    std::uint32_t rows;
  };
  RowHeader* At(const Chunk& chunk, std::size_t row) const {
    return reinterpret_cast<RowHeader*>(chunk.base + row * layout_->stride());
  }
  bool FirstTouch(RowHeader* row, const Epoch& epoch, const SharedDurableEpochs& durable);
  bool KeepForCut(const RowHeader* row);
  RowHeader* TakePlace();
  /// The slot's row at the cut, if it belongs to it: a full's, or last changed in these epochs.
  struct Epochs {
    std::uint32_t after = 0;
    std::uint32_t last = 0;
  };
  bool AtCut(const RowHeader* slot, const Epochs& epochs, CutRow* row) const;
  /// Of an increment: the epochs of the rows that count in a list.
  static constexpr std::uint32_t kCutLists = 3;
  Epochs EpochsOf(std::uint32_t list) const;
  /// Of a cut that is read once and that the row belongs to: the walk has come past it.
  bool WasWalked(const RowHeader* row) const {
    const std::uint32_t list = row->epoch == scope_.epoch ? 2 : row->epoch > scope_.parent ? 1 : 0;
    return list == walked_.list ? row < walked_.end : list < walked_.list;
  }

  // What every first touch needs, in one cache line: a batch comes past hundreds of shards.
  KeyIndex index_;
  // Rows alive by when they last changed.
  std::uint32_t in_current_ = 0;
  std::uint32_t since_parent_ = 0;
  std::uint32_t since_base_ = 0;
  bool cutting_ = false;  // the cut's columns are being read
  RowList current_;       // of it the end

  // What a cut changes while the gate is closed.
  RowList closed_;
  CutScope scope_;
  bool once_ = false;
  std::uint32_t cut_chunks_ = 0;  // the arena's end at the cut
  std::uint32_t cut_used_in_last_ = 0;
  std::uint64_t cut_dropped_ = 0;  // columns that were read, a bit each
  struct {
    std::uint32_t list = 0;
    const RowHeader* end = nullptr;  // the first row of the list that is still to come
  } walked_;
  KeptRows kept_;

  const RowLayout* const layout_;
  Slab* const slab_;
  SideBuffer* const side_;
  std::vector<Chunk> chunks_;
  std::uint32_t used_in_last_ = 0;  // rows of the last chunk
  std::uint64_t capacity_ = 0;      // rows of all chunks
  std::vector<RowHeader*> free_;
  RowList earlier_;
  RowList undurable_;
  std::size_t compacted_ = 0;  // entries of both when they were last compacted

  bool walking_ = false;
  std::array<std::vector<RowHeader*>, kCutLists> walk_;  // of an increment, by address
  std::unique_ptr<PreImages> pre_images_;
};

}  // namespace cairn::table
