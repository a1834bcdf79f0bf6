#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"
#include "checkpoint/restore_point.h"
#include "checkpoint/stored_tables.h"
#include "checkpoint/table_diff.h"
#include "format/records.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxIndexBytes = 1u << 30;

std::string_view FileName(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

/// What a machine that went down leaves of a record that was written for the living alone: nothing,
/// zeros, zeros behind its beginning, or whole pages of a longer one.
bool WentDownWithTheMachine(std::string_view bytes) {
  constexpr std::size_t kPage = 4096;
  return bytes.empty() || bytes.back() == '\0' || bytes.size() % kPage == 0;
}

/// Looks over one repository or one checkpoint; one use, one thread.
class Verifier {
 public:
  Verifier(Store* store, bool deep, const Progress& progress)
      : store_(store), reader_(store), deep_(deep), progress_(progress) {}

  Result<VerifyReport> Repository() {
    ASSIGN_OR_RETURN(const RepositoryView view, reader_.Read());
    RETURN_IF_ERROR(CheckGenerations());
    RETURN_IF_ERROR(LookForLostRecords(view));
    for (const DamagedCheckpoint& damaged : view.damaged) {
      Problem(damaged.directory, std::string(damaged.status.message()));
    }
    std::vector<const Checkpoint*> checked;
    for (const Checkpoint& checkpoint : view.checkpoints) {
      if (!checkpoint.counts && !(checkpoint.foreign && !checkpoint.removed)) continue;
      checked.push_back(&checkpoint);
      total_ += checkpoint.manifest->Bytes();
    }
    for (const Checkpoint* checkpoint : checked) RETURN_IF_ERROR(Check(*checkpoint));
    CheckChains(view.checkpoints, checked);
    return std::move(report_);
  }

  Result<VerifyReport> Alone(const Checkpoint& checkpoint) {
    total_ = checkpoint.manifest->Bytes();
    RETURN_IF_ERROR(Check(checkpoint));
    if (checkpoint.manifest->kind == CheckpointKind::kIncrement) {
      ASSIGN_OR_RETURN(const std::vector<Checkpoint> siblings, ReadSiblings(store_));
      CheckChains(siblings, {&checkpoint});
    }
    return std::move(report_);
  }

 private:
  void Problem(const std::string& checkpoint, std::string what) {
    report_.problems.push_back({checkpoint, std::move(what)});
  }

  enum class For { kAllTimes, kTheLiving };

  /// Ok also when it is an `Or`, which may stand in its place.
  template <typename Record, typename Or = Record>
  Status CheckRecord(const std::string& name, For whom = For::kAllTimes) {
    auto bytes = store_->Get(name, kMaxRecordBytes);
    if (bytes.status().Is(Code::kNotFound)) return Status::Ok();  // removed meanwhile
    if (bytes.status().Is(Code::kInternal)) {
      Problem(name, std::string(bytes.status().message()));
      return Status::Ok();
    }
    if (!bytes.ok()) return bytes.status();
    if (whom == For::kTheLiving && WentDownWithTheMachine(*bytes)) return Status::Ok();
    const auto record = Decode<Record>(*bytes);
    if (!record.ok() && !Decode<Or>(*bytes).ok())
      Problem(name, std::string(record.status().message()));
    return Status::Ok();
  }

  Status CheckGenerations() {
    RETURN_IF_ERROR(CheckRecord<RepositoryRecord>(std::string(names::kRepository)));
    ASSIGN_OR_RETURN(const Listing listing, store_->List(std::string(names::kGenerations)));
    for (const ObjectInfo& object : listing.objects) {
      const std::string_view file = FileName(object.name);
      if (names::GenerationOfFence(file)) {
        RETURN_IF_ERROR(CheckRecord<FenceRecord>(object.name));
      } else if (names::GenerationOfSeal(file)) {
        RETURN_IF_ERROR((CheckRecord<SealRecord, ClosedRecord>(object.name)));
      } else if (names::GenerationOfEnd(file)) {
        RETURN_IF_ERROR(CheckRecord<EndRecord>(object.name, For::kTheLiving));
      } else if (names::GenerationOfStart(file)) {
        RETURN_IF_ERROR(CheckRecord<StartRecord>(object.name, For::kTheLiving));
      }
    }
    for (const std::string& prefix : listing.prefixes) {
      const bool joins = prefix == names::kJoins;
      const bool shelves = prefix == names::kShelves;
      ASSIGN_OR_RETURN(const Listing records,
                       store_->List(joins || shelves ? prefix : names::Path(prefix, "attempts")));
      if (!joins && !shelves && !names::GenerationOfDirectory(FileName(prefix))) continue;
      for (const ObjectInfo& object : records.objects) {
        const std::string_view file = FileName(object.name);
        if (joins || shelves ? !file.ends_with(".json") : !names::NumberOfAttempt(file)) continue;
        RETURN_IF_ERROR(joins     ? CheckRecord<JoinRecord>(object.name, For::kTheLiving)
                        : shelves ? CheckRecord<ShelfRecord>(object.name)
                                  : CheckRecord<AttemptRecord>(object.name, For::kTheLiving));
      }
    }
    return Status::Ok();
  }

  /// Readers and writers bridge what is missing here; whoever verifies is told.
  Status LookForLostRecords(const RepositoryView& view) {
    std::vector<std::string> expected = view.damaged_records;
    expected.emplace_back(names::kRepository);
    if (view.newest_seal) expected.push_back(names::Fence(view.newest_seal->generation));
    for (const std::string& name : expected) {
      const auto stat = store_->Stat(name);
      if (stat.status().Is(Code::kNotFound)) {
        Problem(name, "is missing; the next opening for writing goes on without it");
      } else if (!stat.ok()) {
        return stat.status();
      }
    }
    return Status::Ok();
  }

  Status CheckSmallRecords(const std::string& directory) {
    ASSIGN_OR_RETURN(const Listing notes, store_->List(names::Path(directory, "notes")));
    for (const ObjectInfo& object : notes.objects) {
      if (!names::NumberOfNote(FileName(object.name))) continue;
      RETURN_IF_ERROR(CheckRecord<NoteRecord>(object.name));
    }
    ASSIGN_OR_RETURN(const Listing parts, store_->List(names::Path(directory, "parts")));
    for (const ObjectInfo& object : parts.objects) {
      if (!object.name.ends_with(".json")) continue;
      RETURN_IF_ERROR(CheckRecord<PartRecord>(object.name, For::kTheLiving));
    }
    return Status::Ok();
  }

  /// The files that are there with their sizes; a problem for each of the others.
  Result<std::shared_ptr<const Manifest>> WholeFiles(const Checkpoint& checkpoint) {
    auto whole = std::make_shared<Manifest>(*checkpoint.manifest);
    whole->files.clear();
    for (const ManifestFile& file : checkpoint.manifest->files) {
      const std::string name =
          file.ref.empty() ? names::Path(checkpoint.directory, file.path) : file.ref;
      const auto reader = store_->OpenReader(name);
      if (reader.status().Is(Code::kUnavailable)) return reader.status();
      if (reader.status().Is(Code::kNotFound)) {
        Problem(checkpoint.directory, file.path + ": is missing");
      } else if (!reader.ok()) {
        Problem(checkpoint.directory, file.path + ": " + std::string(reader.status().message()));
      } else if ((*reader)->bytes() != file.hash.bytes) {
        Problem(checkpoint.directory, file.path + ": has " + std::to_string((*reader)->bytes()) +
                                          " bytes, the manifest says " +
                                          std::to_string(file.hash.bytes));
      } else {
        whole->files.push_back(file);
      }
    }
    return std::shared_ptr<const Manifest>(std::move(whole));
  }

  /// What was listed may have been read from a copy; the one that lies there may be damaged.
  Status CheckManifest(const Checkpoint& checkpoint) {
    const auto manifest = reader_.ReadManifest(checkpoint.directory);
    if (manifest.ok() || manifest.status().Is(Code::kNotFound)) return Status::Ok();
    if (!manifest.status().Is(Code::kCorruption)) return manifest.status();
    Problem(checkpoint.directory, std::string(manifest.status().message()));
    return Status::Ok();
  }

  Status Check(const Checkpoint& checkpoint) {
    const std::size_t problems = report_.problems.size();
    const std::uint64_t before = done_;
    RETURN_IF_ERROR(CheckManifest(checkpoint));
    Status status = CheckFiles(checkpoint);
    done_ = before + checkpoint.manifest->Bytes();
    RETURN_IF_ERROR(status);
    if (!progress_(done_, total_)) return CancelledError("interrupted");
    if (report_.problems.size() > problems &&
        store_->Stat(names::Path(checkpoint.directory, names::kManifest))
            .status()
            .Is(Code::kNotFound)) {
      report_.problems.resize(problems);  // retention removed it while we looked
      return Status::Ok();
    }
    RETURN_IF_ERROR(CheckSmallRecords(checkpoint.directory));
    report_.files += checkpoint.manifest->files.size();
    report_.checkpoints.push_back(MakeInfo(*store_, checkpoint));
    return Status::Ok();
  }

  Status CheckFiles(const Checkpoint& checkpoint) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const Manifest> whole, WholeFiles(checkpoint));
    if (!deep_) return Status::Ok();
    const std::size_t problems = report_.problems.size();
    auto opened = OpenCheckpoint::Open(store_, checkpoint.directory, whole);
    if (opened.status().Is(Code::kUnavailable)) return opened.status();
    if (!opened.ok()) {
      Problem(checkpoint.directory, std::string(opened.status().message()));
      return Status::Ok();
    }
    const Progress report = [&](std::uint64_t done, std::uint64_t) {
      return progress_(done_ + done, total_);
    };
    ASSIGN_OR_RETURN(const std::uint64_t read,
                     VerifyFiles(store_, **opened, report, &report_.problems));
    report_.bytes += read;
    const bool all = whole->files.size() == checkpoint.manifest->files.size();
    if (all && report_.problems.size() == problems) return CheckContents(opened->get());
    return Status::Ok();
  }

  /// The bytes are what was written; is what was written a checkpoint that can be restored?
  Status CheckContents(OpenCheckpoint* open) {
    const auto judge = [&](const Status& status, const std::string& what) -> Status {
      if (status.ok()) return status;
      if (status.Is(Code::kUnavailable) || status.Is(Code::kResourceExhausted)) return status;
      Problem(open->directory(), what + std::string(status.message()));
      return Status::Ok();
    };
    RETURN_IF_ERROR(judge(open->ReadCatalog(TensorGroup::kModel, "").status(), ""));
    RETURN_IF_ERROR(CheckTables(open, judge));
    if (open->FindFile(names::kIndex) < 0) return Status::Ok();
    ASSIGN_OR_RETURN(const std::string text, open->ReadWhole(names::kIndex, kMaxIndexBytes));
    const auto index = DecodeSafetensorsIndex(text);
    RETURN_IF_ERROR(judge(index.status(), std::string(names::kIndex) + ": "));
    const auto built = open->BuildIndex();
    RETURN_IF_ERROR(judge(built.status(), ""));
    if (index.ok() && built.ok() && index->files != built->files) {
      Problem(open->directory(),
              std::string(names::kIndex) + ": does not name the tensors that the files hold");
    }
    return Status::Ok();
  }

  template <typename Judge>
  Status CheckTables(OpenCheckpoint* open, const Judge& judge) {
    for (const std::string& participant : TableParticipants(open->manifest())) {
      RETURN_IF_ERROR(judge(open->ReadCatalog(TensorGroup::kTable, participant).status(), ""));
    }
    const auto tables = ReadTables(store_, open, 0);
    RETURN_IF_ERROR(judge(tables.status(), ""));
    if (!tables.ok()) return Status::Ok();
    for (const ManifestTable& said : open->manifest().tables) {
      std::uint64_t rows = 0;
      std::uint64_t deleted = 0;
      for (const StoredTable& table : *tables) {
        if (table.part.table != said.name) continue;
        rows += table.part.rows;
        deleted += table.part.deleted;
      }
      if (rows == said.rows && deleted == said.deleted) continue;
      Problem(open->directory(), "table " + said.name + ": " + std::to_string(rows) + " rows and " +
                                     std::to_string(deleted) + " deleted keys, the manifest says " +
                                     std::to_string(said.rows) + " and " +
                                     std::to_string(said.deleted));
    }
    return Status::Ok();
  }

  void CheckChains(const std::vector<Checkpoint>& all,
                   const std::vector<const Checkpoint*>& checked) {
    const ChainIndex index(all);
    std::set<std::string> damaged;
    for (const VerifyProblem& problem : report_.problems) damaged.insert(problem.checkpoint);
    for (const Checkpoint* checkpoint : checked) {
      const auto chain = index.Resolve(*checkpoint);
      if (!chain.ok()) {
        Problem(checkpoint->directory, std::string(chain.status().message()));
        continue;
      }
      for (const Checkpoint* below : *chain) {
        if (below->directory == checkpoint->directory || !damaged.contains(below->directory)) {
          continue;
        }
        Problem(checkpoint->directory, "builds on " + below->directory + ", which is damaged");
        break;
      }
    }
  }

  Store* const store_;
  RepositoryReader reader_;
  const bool deep_;
  const Progress& progress_;
  VerifyReport report_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

/// With what it builds on, which lies beside it.
Result<OpenRestorePoint> OpenPlaced(const PlacedCheckpoint& placed) {
  Store* const store = placed.env.store.get();
  if (placed.checkpoint.manifest->kind == CheckpointKind::kFull) {
    return OpenRestorePoint::Open(store, {&placed.checkpoint});
  }
  ASSIGN_OR_RETURN(const std::vector<Checkpoint> siblings, ReadSiblings(store));
  const auto chain = ChainIndex(siblings).Resolve(placed.checkpoint);
  if (!chain.ok()) {
    return CorruptionError(placed.checkpoint.directory + " " +
                           std::string(chain.status().message()));
  }
  return OpenRestorePoint::Open(store, *chain);
}

}  // namespace

Result<VerifyReport> Verify(const std::string& directory, bool deep, const Progress& progress) {
  ASSIGN_OR_RETURN(const Environment env, ExistingDirectory(directory));
  if (IsCheckpointDirectory(directory)) {
    ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(directory));
    return Verifier(placed.env.store.get(), deep, progress).Alone(placed.checkpoint);
  }
  return Verifier(env.store.get(), deep, progress).Repository();
}

Result<std::vector<TensorDifference>> Diff(const std::string& a, const std::string& b,
                                           const Progress& progress) {
  ASSIGN_OR_RETURN(const PlacedCheckpoint left, ReadCheckpointAt(a));
  ASSIGN_OR_RETURN(const PlacedCheckpoint right, ReadCheckpointAt(b));
  ASSIGN_OR_RETURN(const OpenRestorePoint open_left, OpenPlaced(left));
  ASSIGN_OR_RETURN(const OpenRestorePoint open_right, OpenPlaced(right));
  Store* const store_left = left.env.store.get();
  Store* const store_right = right.env.store.get();
  ASSIGN_OR_RETURN(
      std::vector<TensorDifference> out,
      DiffCheckpoints(store_left, open_left.tip(), store_right, open_right.tip(), progress));
  ASSIGN_OR_RETURN(const std::vector<TensorDifference> tables,
                   DiffTables(store_left, open_left, store_right, open_right));
  out.insert(out.end(), tables.begin(), tables.end());
  return out;
}

}  // namespace cairn
