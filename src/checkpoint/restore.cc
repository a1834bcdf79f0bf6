#include "checkpoint/restore.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/stored_elsewhere.h"
#include "checkpoint/table_restore.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxStateFileBytes = 256u << 20;
// Looking for few names pays when there are very many: an index of 1 MiB lists some 15,000.
constexpr std::uint64_t kLargeIndexBytes = 1u << 20;
constexpr std::size_t kFewTargets = 64;

constexpr std::size_t kNamesInMessage = 10;
constexpr std::size_t kNameInMessageBytes = 200;

// "a, b, c and 12 more"
std::string JoinNames(const std::vector<std::string>& list) {
  std::string out;
  for (std::size_t i = 0; i < std::min(list.size(), kNamesInMessage); ++i) {
    if (i > 0) out += ", ";
    out += list[i].size() <= kNameInMessageBytes ? list[i]
                                                 : list[i].substr(0, kNameInMessageBytes) + "…";
  }
  if (list.size() > kNamesInMessage) {
    out += fmt::format(" and {} more", list.size() - kNamesInMessage);
  }
  return out;
}

std::string TypeAndShape(DType dtype, const std::vector<std::uint64_t>& shape) {
  return fmt::format("{} [{}]", DTypeName(dtype), EncodeDims(shape));
}

const std::vector<std::uint64_t>& GlobalShape(const MutableTensor& target) {
  return target.shard.has_value() ? target.shard->global_shape : target.shape;
}

Status CheckTarget(const MutableTensor& target) {
  const auto bytes = TensorBytes(target.dtype, target.shape);
  if (!bytes.ok()) return bytes.status();
  if (*bytes > 0 && target.data == nullptr) return InvalidArgumentError("has no memory");
  if (!target.shard.has_value()) return Status::Ok();
  const auto whole = TensorBytes(target.dtype, target.shard->global_shape);
  if (!whole.ok()) return whole.status();
  const auto& [global, offset] = *target.shard;
  bool inside = global.size() == target.shape.size() && offset.size() == target.shape.size();
  for (std::size_t d = 0; inside && d < global.size(); ++d) {
    inside = offset[d] <= global[d] && target.shape[d] <= global[d] - offset[d];
  }
  if (inside) return Status::Ok();
  return InvalidArgumentError(fmt::format("the shard [{}] at [{}] is not inside [{}]",
                                          EncodeDims(target.shape), EncodeDims(offset),
                                          EncodeDims(global)));
}

Result<OwnedTensor> Allocate(std::string name, TensorGroup group, const StoredTensor& stored) {
  // Large tensors are in huge pages, so that the kernel has fewer of them to hand out.
  constexpr std::uint64_t kHugePage = 2u << 20;
  ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(stored.dtype, stored.shape));
  const std::align_val_t align{bytes >= 4 * kHugePage ? kHugePage : 64};
  void* memory = ::operator new(std::max<std::uint64_t>(bytes, 1), align, std::nothrow);
  if (memory == nullptr) {
    return ResourceExhaustedError(fmt::format("no memory for {}: {} bytes", name, bytes));
  }
  if (bytes >= 4 * kHugePage) {
    (void)madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only advice
  }
  return OwnedTensor{
      .name = std::move(name),
      .dtype = stored.dtype,
      .shape = stored.shape,
      .group = group,
      .bytes = bytes,
      .data = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                         [align](std::byte* p) { ::operator delete(p, align); })};
}

/// One RestoreChain call. Matches stored tensors and targets first; memory is touched by Read()
/// alone.
class Restoration {
 public:
  Restoration(Store* store, std::vector<OpenCheckpoint*> chain, const RestoreRequest& request,
              const std::string& participant, const Progress& progress)
      : store_(store),
        chain_(std::move(chain)),
        checkpoint_(chain_.back()),
        request_(request),
        participant_(participant),
        progress_(progress) {}

  Result<Restored> Run() {
    FillFromManifest();
    {
      const std::jthread listing = ListAhead();
      RETURN_IF_ERROR(ReadStateFiles(/*alone=*/!listing.joinable()));
      if (request_.prepare) RETURN_IF_ERROR(request_.prepare(out_, &request_));
    }
    for (const MutableTensor& target : request_.into) {
      const Status status = CheckTarget(target);
      if (!status.ok()) return status.WithContext("tensor " + target.name);
    }
    if (!request_.into.empty() || request_.allocate) {
      for (const MutableTensor& target : request_.into) {
        if (NamesAreGiven()) known_.insert(target.name);
      }
      RETURN_IF_ERROR(MatchModel());
      RETURN_IF_ERROR(MatchState());
      RETURN_IF_ERROR(MatchTables());
      RETURN_IF_ERROR(JudgeNames());
      RETURN_IF_ERROR(JudgeMismatches());
      RETURN_IF_ERROR(PlanRuns());
    }
    if (request_.tables != nullptr) RETURN_IF_ERROR(StartTables());
    if (request_.atomic) {
      RETURN_IF_ERROR(Verify());
      ++pass_;
    }
    RETURN_IF_ERROR(Read());
    return std::move(out_);
  }

 private:
  /// A stored tensor and the memory it goes to. Points into request_ and catalogs_.
  struct Transfer {
    const std::string* name = nullptr;  // the target's
    const StoredTensor* stored = nullptr;
    const std::vector<std::uint64_t>* shape = nullptr;
    const std::vector<std::uint64_t>* offset = nullptr;  // null: the origin
    std::byte* to = nullptr;
  };

  void FillFromManifest() {
    const Manifest& manifest = checkpoint_->manifest();
    Checkpoint view;
    view.directory = checkpoint_->directory();
    view.manifest = checkpoint_->shared_manifest();
    out_.info = MakeInfo(*store_, view);
    out_.step = manifest.step;
    out_.counters = manifest.counters;
    out_.metrics = manifest.metrics;
    out_.metadata = manifest.metadata;

    const auto& all = manifest.participants;
    own_state_ = std::find(all.begin(), all.end(), participant_) != all.end();
    if (own_state_) {
      state_of_ = participant_;
    } else if (!all.empty()) {
      state_of_ = all.front();
    }
  }

  /// `alone`: nobody else reads the checkpoint meanwhile.
  Status ReadStateFiles(bool alone) {
    if (state_of_.empty()) return Status::Ok();
    const std::string prefix = names::Path(state_of_, "");
    for (const OpenFile& file : checkpoint_->files()) {
      const std::string& path = file.entry->path;
      std::string name;
      if (path.starts_with(prefix)) {
        name = path.substr(prefix.size());
        if (name == names::kStateTensors) continue;
      } else if (path.starts_with("trainer_") &&
                 !path.starts_with(names::Path(file.entry->part, ""))) {
        name = "/" + path;  // by one server for that trainer, whom all servers tell it
      } else {
        continue;
      }
      ASSIGN_OR_RETURN(out_.state_files[std::move(name)],
                       alone ? checkpoint_->ReadWhole(path, kMaxStateFileBytes)
                             : checkpoint_->ReadBeside(path, kMaxStateFileBytes));
    }
    return Status::Ok();
  }

  /// Starts to list the stored tensors on another thread, if that is wanted. Until it has ended
  /// nobody else reads chunks of the checkpoint.
  std::jthread ListAhead() {
    // Of very many tensors few may be asked for, and then the list is not read.
    if (!request_.list_ahead || !request_.prepare || HasLargeIndex()) return {};
    try {
      return std::jthread([this] {
        try {
          ahead_.emplace(checkpoint_->ReadCatalog(TensorGroup::kModel, ""));
        } catch (const std::bad_alloc&) {
          ahead_.reset();  // read again, by who can say so
        }
      });
    } catch (const std::system_error&) {
      return {};  // no thread to be had: it is read afterwards
    }
  }

  std::vector<const MutableTensor*> TargetsOf(TensorGroup group) const {
    std::vector<const MutableTensor*> targets;
    for (const MutableTensor& target : request_.into) {
      if (target.group == group) targets.push_back(&target);
    }
    return targets;
  }

  Status MatchModel() {
    const std::vector<const MutableTensor*> targets = TargetsOf(TensorGroup::kModel);
    if (!FewOfVeryMany(targets.size())) {
      if (!ahead_) ahead_.emplace(checkpoint_->ReadCatalog(TensorGroup::kModel, ""));
      ASSIGN_OR_RETURN(TensorMap stored, *std::move(ahead_));
      return Match(TensorGroup::kModel, std::move(stored), targets);
    }
    std::set<std::string, std::less<>> wanted;
    for (const MutableTensor* target : targets) wanted.insert(target->name);
    all_known_ = false;
    std::uint64_t listed = 0;
    ASSIGN_OR_RETURN(TensorMap stored, checkpoint_->FindModelTensors(wanted, &listed));
    for (const auto& [name, tensor] : stored) {
      listed -= std::min<std::uint64_t>(listed, tensor.pieces.size());
    }
    RETURN_IF_ERROR(Match(TensorGroup::kModel, std::move(stored), targets));
    if (listed > 0) {
      out_.skipped.emplace_back("*", fmt::format("{} more stored tensors not asked for", listed));
    }
    return Status::Ok();
  }

  bool NamesAreGiven() const { return !request_.rename.empty() || !request_.skip.empty(); }

  bool FewOfVeryMany(std::size_t targets) const {
    if (request_.strict || request_.allocate || !request_.rename.empty()) return false;
    return targets <= kFewTargets && HasLargeIndex();
  }

  bool HasLargeIndex() const {
    const std::ptrdiff_t index = checkpoint_->FindFile(names::kIndex);
    return index >= 0 && checkpoint_->files()[static_cast<std::size_t>(index)].entry->hash.bytes >=
                             kLargeIndexBytes;
  }

  Status MatchState() {
    const std::vector<const MutableTensor*> targets = TargetsOf(TensorGroup::kState);
    TensorMap stored;
    if (!state_of_.empty()) {
      ASSIGN_OR_RETURN(stored, checkpoint_->ReadCatalog(TensorGroup::kState, state_of_));
    }
    const bool asked_by_name = std::any_of(stored.begin(), stored.end(), [&](const auto& entry) {
      return request_.allocate_names.contains(entry.first);
    });
    if (own_state_ || asked_by_name) {
      return Match(TensorGroup::kState, std::move(stored), targets);
    }
    // Another number of ranks than before: what belonged to one of them fits nobody.
    std::set<std::string> left_out;
    for (const MutableTensor* target : targets) left_out.insert(target->name);
    for (const auto& [name, tensor] : stored) left_out.insert(name);
    if (NamesAreGiven()) {
      known_.insert(left_out.begin(), left_out.end());
      for (const auto& [name, tensor] : stored) stored_.insert(name);
    }
    for (const std::string& name : left_out) {
      out_.skipped.emplace_back(
          name, fmt::format("state of a participant; the checkpoint has no {}", participant_));
    }
    return Status::Ok();
  }

  Status MatchTables() {
    const std::vector<const MutableTensor*> targets = TargetsOf(TensorGroup::kTable);
    if (targets.empty()) return Status::Ok();  // a table restores its own rows
    ASSIGN_OR_RETURN(TensorMap stored, checkpoint_->ReadCatalog(TensorGroup::kTable, participant_));
    return Match(TensorGroup::kTable, std::move(stored), targets);
  }

  const std::string& Renamed(const std::string& stored_name) const {
    const auto it = request_.rename.find(stored_name);
    return it == request_.rename.end() ? stored_name : it->second;
  }

  Status Match(TensorGroup group, TensorMap catalog,
               const std::vector<const MutableTensor*>& targets) {
    const TensorMap& stored = catalogs_.emplace_back(std::move(catalog));
    if (NamesAreGiven()) {
      for (const auto& [stored_name, tensor] : stored) {
        stored_.insert(stored_name);
        known_.insert(stored_name);
        known_.insert(Renamed(stored_name));
      }
    }
    struct Source {
      const std::string* stored_name;
      const StoredTensor* tensor;
      bool wanted = false;
    };
    std::unordered_map<std::string_view, Source> by_target;  // target name → stored tensor
    by_target.reserve(stored.size());
    std::set<std::string_view> left_alone;   // stored and target names, for the report
    std::set<std::string_view> lost_source;  // targets whose stored tensor is left alone
    for (const auto& [stored_name, tensor] : stored) {
      const std::string& name = Renamed(stored_name);
      if (request_.skip.contains(stored_name) || request_.skip.contains(name)) {
        left_alone.insert(request_.skip.contains(stored_name) ? stored_name : name);
        lost_source.insert(name);
        continue;
      }
      const auto [it, fresh] = by_target.try_emplace(name, Source{&stored_name, &tensor});
      if (!fresh) {
        return InvalidArgumentError(fmt::format("rename: both {} and {} would become {}",
                                                *it->second.stored_name, stored_name, name));
      }
    }
    for (const MutableTensor* target : targets) {
      const auto it = by_target.find(target->name);
      if (request_.skip.contains(target->name) ||
          (it == by_target.end() && lost_source.contains(target->name))) {
        left_alone.insert(target->name);
        continue;
      }
      if (it == by_target.end()) {
        mismatch_.missing.push_back(target->name);
        continue;
      }
      it->second.wanted = true;
      AddTransfer(*target, *it->second.tensor);
    }
    for (const std::string_view name : left_alone) {
      out_.skipped.emplace_back(name, "left alone, as asked for");
    }
    for (const auto& [stored_name, tensor] : stored) {
      const std::string& name = Renamed(stored_name);
      const auto it = by_target.find(name);
      if (it == by_target.end() || it->second.tensor != &tensor) continue;
      const bool named = request_.allocate_names.contains(name);
      if (it->second.wanted && !(request_.allocate && named)) continue;
      if (request_.allocate && (request_.allocate_names.empty() || named)) {
        to_allocate_.push_back({group, &name, &tensor});
      } else {
        mismatch_.unexpected.push_back(stored_name);
      }
    }
    return Status::Ok();
  }

  /// Complex numbers may be stored as pairs of floats (docs/format/state.md): the same bytes.
  const MutableTensor& AsStored(const MutableTensor& target, const StoredTensor& stored) {
    if (target.dtype != DType::kC64 || stored.dtype != DType::kF32) return target;
    MutableTensor& pairs = as_pairs_.emplace_back(target);
    pairs.dtype = DType::kF32;
    pairs.shape.push_back(2);
    if (pairs.shard) {
      pairs.shard->global_shape.push_back(2);
      pairs.shard->offset.push_back(0);
    }
    return pairs;
  }

  void AddTransfer(const MutableTensor& given, const StoredTensor& stored) {
    const MutableTensor& target = AsStored(given, stored);
    const std::vector<std::uint64_t>& global = GlobalShape(target);
    if (stored.dtype != target.dtype || stored.shape != global) {
      mismatch_.mismatched.push_back(fmt::format("{}: stored {}, wanted {}", target.name,
                                                 TypeAndShape(stored.dtype, stored.shape),
                                                 TypeAndShape(target.dtype, global)));
      return;
    }
    transfers_.push_back({.name = &target.name,
                          .stored = &stored,
                          .shape = &target.shape,
                          .offset = target.shard.has_value() ? &target.shard->offset : nullptr,
                          .to = static_cast<std::byte*>(target.data)});
  }

  /// Names in rename and skip that are nobody's: most likely misspelt, and then something else is
  /// restored than was meant.
  Status JudgeNames() {
    if (!all_known_) return Status::Ok();
    std::vector<std::string> unknown;
    for (const auto& [stored_name, name] : request_.rename) {
      if (!stored_.contains(stored_name)) unknown.push_back("rename: " + stored_name);
    }
    for (const std::string& name : request_.skip) {
      if (!known_.contains(name)) unknown.push_back("skip: " + name);
    }
    if (unknown.empty()) return Status::Ok();
    if (!request_.strict) {
      for (const std::string& name : unknown) {
        out_.skipped.emplace_back(name.substr(name.find(' ') + 1), "there is nothing of that name");
      }
      return Status::Ok();
    }
    return InvalidArgumentError(fmt::format("{}: there is nothing of that name in {}",
                                            JoinNames(unknown), checkpoint_->directory()));
  }

  Status JudgeMismatches() {
    if (!request_.strict) {
      for (std::string& name : mismatch_.missing) {
        out_.skipped.emplace_back(std::move(name), "not in the checkpoint");
      }
      for (std::string& name : mismatch_.unexpected) {
        out_.skipped.emplace_back(std::move(name), "not asked for");
      }
      for (const std::string& line : mismatch_.mismatched) {
        const std::size_t end = line.rfind(": stored ");
        out_.skipped.emplace_back(line.substr(0, end), line.substr(end + 2));
      }
      return Status::Ok();
    }
    const std::string elsewhere = StoredElsewhere(mismatch_.missing, mismatch_.unexpected);
    if (request_.partial) {
      for (std::string& name : mismatch_.unexpected) {
        out_.skipped.emplace_back(std::move(name), "not asked for");
      }
      mismatch_.unexpected.clear();
    }
    std::vector<std::string> parts;
    const auto add = [&](const std::vector<std::string>& list, std::string_view what) {
      if (list.empty()) return;
      parts.push_back(fmt::format("{} {}: {}", list.size(), what, JoinNames(list)));
    };
    add(mismatch_.missing, "not in the checkpoint");
    if (!parts.empty()) parts.back() += elsewhere;
    add(mismatch_.unexpected, "stored but not asked for");
    add(mismatch_.mismatched, "of another type or shape");
    if (parts.empty()) return Status::Ok();
    const Status refused = MismatchError(fmt::format(
        "restore {}: the tensors do not match: {}. Nothing was changed; rename, skip or "
        "strict=false restore the others",
        checkpoint_->directory(), fmt::join(parts, "; ")));
    if (request_.mismatch != nullptr) *request_.mismatch = std::move(mismatch_);
    return refused;
  }

  Status PlanRuns() {
    for (const auto& [group, name, stored] : to_allocate_) {
      ASSIGN_OR_RETURN(OwnedTensor tensor, Allocate(*name, group, *stored));
      transfers_.push_back(
          {.name = name, .stored = stored, .shape = &stored->shape, .to = tensor.data.get()});
      out_.tensors.push_back(std::move(tensor));
    }
    std::vector<std::uint64_t> origin;
    out_.restored.reserve(transfers_.size());
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      const auto& [name, stored, shape, offset, to] = transfers_[i];
      origin.assign(shape->size(), 0);
      const std::size_t first = runs_.size();
      const Status status = IntersectPieces(*stored, *shape, offset == nullptr ? origin : *offset,
                                            to, /*owner=*/i, &runs_);
      if (!status.ok()) {
        return status.WithContext(
            fmt::format("restore {}: tensor {}", checkpoint_->directory(), *name));
      }
      ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(stored->dtype, *shape));
      std::uint64_t covered = 0;
      for (std::size_t run = first; run < runs_.size(); ++run) {
        covered += runs_[run].bytes * runs_[run].count;
      }
      if (covered != bytes) {
        return FailedPreconditionError(fmt::format(
            "restore {}: tensor {}: only {} of {} bytes are here; the checkpoint holds one "
            "trainer's part (`cairn checkpoint merge` brings all together)",
            checkpoint_->directory(), *name, covered, bytes));
      }
      out_.bytes += bytes;
      out_.restored.push_back(*name);
    }
    return Status::Ok();
  }

  Status StartTables() {
    TableRestore::Options options;
    options.cancelled = request_.cancelled;
    if (progress_) {
      options.progress = [this](std::uint64_t done, std::uint64_t) {
        return Report(dense_ + done);
      };
    }
    tables_.emplace(store_, chain_, request_.tables, std::move(options));
    const Status status = tables_->Start();
    if (!status.ok()) return WithOverwritten(status, {});
    out_.bytes += tables_->bytes();
    return Status::Ok();
  }

  /// Variables and rows, read once or twice, are one to whoever watches.
  bool Report(std::uint64_t done) const {
    const std::uint64_t pass = dense_ + (tables_ ? tables_->bytes() : 0);
    return progress_(pass_ * pass + done, (request_.atomic ? 2 : 1) * pass);
  }
  Progress DenseProgress() {
    if (!progress_) return {};
    return [this](std::uint64_t done, std::uint64_t total) {
      dense_ = total;
      return Report(done);
    };
  }

  Status Verify() {
    Status status = ReadRuns(
        store_, *checkpoint_, runs_,
        {.verify_only = true, .progress = DenseProgress(), .cancelled = request_.cancelled});
    if (status.ok() && tables_) status = tables_->Verify();
    return status.ok() ? status : WithOverwritten(status, {});
  }

  Status Read() {
    std::vector<bool> touched(transfers_.size());
    Status status = ReadRuns(
        store_, *checkpoint_, runs_,
        {.progress = DenseProgress(), .cancelled = request_.cancelled, .touched = &touched});
    if (status.ok() && tables_) status = tables_->Read();
    return status.ok() ? status : WithOverwritten(status, touched);
  }

  Status WithOverwritten(const Status& status, const std::vector<bool>& touched) const {
    std::vector<std::string> overwritten;
    const std::size_t given = transfers_.size() - out_.tensors.size();  // not allocated here
    for (std::size_t i = 0; i < std::min(touched.size(), given); ++i) {
      if (touched[i]) overwritten.push_back(*transfers_[i].name);
    }
    std::string message(status.message());
    if (overwritten.empty()) {
      message += "; nothing was overwritten";
    } else {
      message += fmt::format("; {} of {} tensors were already overwritten, whole or in part: {}",
                             overwritten.size(), given, JoinNames(overwritten));
    }
    return Status(status.code(), std::move(message), status.reason());
  }

  struct NewTensor {
    TensorGroup group;
    const std::string* name;
    const StoredTensor* stored;
  };

  Store* const store_;
  const std::vector<OpenCheckpoint*> chain_;
  OpenCheckpoint* const checkpoint_;  // the last of the chain: dense variables are whole in it
  RestoreRequest request_;
  std::deque<MutableTensor> as_pairs_;  // targets of it; stay where they are
  const std::string& participant_;
  const Progress& progress_;
  std::optional<TableRestore> tables_;
  std::uint64_t dense_ = 0;                    // bytes of chunks of variables in a pass
  std::uint64_t pass_ = 0;                     // 1 after everything was verified
  bool own_state_ = false;                     // the checkpoint has this participant
  std::string state_of_;                       // whose state files are read
  std::set<std::string, std::less<>> stored_;  // names, where rename or skip are given
  std::set<std::string, std::less<>> known_;   // and those of the targets
  bool all_known_ = true;                      // false: not all that is stored was looked at
  std::optional<Result<TensorMap>> ahead_;     // of the model, read while the request was made
  std::deque<TensorMap> catalogs_;             // of the groups; a deque: others point into them
  MismatchReport mismatch_;
  std::vector<Transfer> transfers_;  // the given targets, then those to allocate
  std::vector<NewTensor> to_allocate_;
  std::vector<ByteRun> runs_;
  Restored out_;
};

}  // namespace

Result<Restored> RestoreCheckpoint(Store* store, OpenCheckpoint* checkpoint,
                                   const RestoreRequest& request, const std::string& participant,
                                   const Progress& progress) {
  return RestoreChain(store, {checkpoint}, request, participant, progress);
}

Result<Restored> RestoreChain(Store* store, std::vector<OpenCheckpoint*> chain,
                              const RestoreRequest& request, const std::string& participant,
                              const Progress& progress) {
  return Restoration(store, std::move(chain), request, participant, progress).Run();
}

}  // namespace cairn
