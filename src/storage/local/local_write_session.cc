#include "storage/local/local_write_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "storage/local/local_prepared_object.h"
#include "storage/local/local_store.h"
#include "storage/local/object_path.h"

namespace cairn {
namespace {

constexpr std::uint64_t kBlock = AlignedBuffer::kAlignment;
/// How many bytes of the page cache a session leaves behind itself before it waits for the disk.
constexpr std::uint64_t kCacheWindow = 64u << 20;

}  // namespace

LocalWriteSession::LocalWriteSession(LocalStore* store, WriteMode mode,
                                     std::unique_ptr<IoQueue> queue)
    : store_(store),
      mode_(mode),
      transfers_(static_cast<std::size_t>(queue->depth())),
      queue_(std::move(queue)) {
  for (std::size_t i = transfers_.size(); i > 0; --i) free_transfers_.push_back(i - 1);
}

LocalWriteSession::~LocalWriteSession() {
  if (trial_) store_->trial_taken_.store(false);
}

std::size_t LocalWriteSession::part_bytes() const { return store_->options_.part_bytes; }

ObjectParts LocalWriteSession::PartsOf(std::uint64_t /*bytes*/) const {
  // What is on its way, and some that are filled meanwhile: parts that were sent together end
  // together, and the disk shall not wait for the next.
  const int depth = store_->options_.queue_depth;
  return {.part_bytes = part_bytes(), .buffers = depth + depth / 2};
}

Status LocalWriteSession::Condemn(Status status) {
  if (!condemned_.ok()) return condemned_;
  condemned_ = std::move(status);
  while (queue_->in_flight() > 0) {
    if (!queue_->Wait().ok()) break;
  }
  return condemned_;
}

Result<std::uint32_t> LocalWriteSession::Open(const std::string& name, const NewObject& object) {
  RETURN_IF_ERROR(condemned_);
  Result<std::uint32_t> opened = OpenUnchecked(name, object);
  if (!opened.ok()) return Condemn(opened.status());
  return opened;
}

Result<std::unique_ptr<FsFile>> LocalWriteSession::TakeFromPool(const std::string& name,
                                                                const std::string& reuse) {
  Fs* const fs = store_->options_.fs;
  const Result<FsStat> stat = fs->Stat(store_->PathOf(reuse));
  if (stat.status().Is(Code::kNotFound)) return std::unique_ptr<FsFile>();
  if (!stat.ok()) return stat.status();
  // A second name may be a backup made with links: its bytes are not ours to write over.
  if (stat->is_directory || stat->links != 1) return std::unique_ptr<FsFile>();
  if (fs->Stat(store_->PathOf(name)).ok()) {
    return AlreadyExistsError(fmt::format("\"{}\" in {}: exists", name, store_->Describe()));
  }
  Status renamed = store_->InDirectoryOf(
      name, [&] { return fs->Rename(store_->PathOf(reuse), store_->PathOf(name)); });
  if (renamed.Is(Code::kNotFound)) return std::unique_ptr<FsFile>();
  RETURN_IF_ERROR(renamed);
  store_->directories_.NamesChanged(ParentOf(reuse));
  return fs->Open(store_->PathOf(name), {.write = true});
}

Result<std::unique_ptr<FsFile>> LocalWriteSession::TakeUnfinished(const std::string& name,
                                                                  std::uint64_t* bytes) {
  Result<std::unique_ptr<FsFile>> file =
      store_->options_.fs->Open(store_->PathOf(name), {.write = true});
  if (file.status().Is(Code::kNotFound)) return std::unique_ptr<FsFile>();
  if (!file.ok()) return file.status();
  ASSIGN_OR_RETURN(const FsStat stat, (*file)->Stat());
  // Under a second name somebody else relies on its bytes.
  if (stat.is_directory || stat.links != 1) {
    return AlreadyExistsError(
        fmt::format("\"{}\" in {}: exists, and is not unfinished", name, store_->Describe()));
  }
  *bytes = stat.bytes;
  return file;
}

Result<std::uint32_t> LocalWriteSession::OpenUnchecked(const std::string& name,
                                                       const NewObject& wanted) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max() - kBlock;
  if (wanted.bytes > kMaxBytes || objects_.size() >= std::numeric_limits<std::uint32_t>::max()) {
    return InvalidArgumentError(
        fmt::format("write \"{}\": {} bytes are too many", name, wanted.bytes));
  }
  Object object{.name = name, .bytes = wanted.bytes};
  if (!wanted.reuse.empty()) {
    RETURN_IF_ERROR(ValidateObjectName(wanted.reuse));
    ASSIGN_OR_RETURN(object.buffered, TakeFromPool(name, wanted.reuse));
    object.reused = object.buffered != nullptr;
  } else if (wanted.resume) {
    ASSIGN_OR_RETURN(object.buffered, TakeUnfinished(name, &object.left_bytes));
    object.reused = object.buffered != nullptr;
    object.cached = object.reused;
  }
  if (object.buffered == nullptr) {
    Result<std::unique_ptr<FsFile>> file = store_->InDirectoryOf(name, [&] {
      return store_->options_.fs->Open(store_->PathOf(name),
                                       {.write = true, .create = true, .exclusive = true});
    });
    if (!file.ok()) return file.status();
    object.buffered = *std::move(file);
  }
  store_->directories_.NamesChanged(ParentOf(name));
  const bool wants_direct =
      mode_ == WriteMode::kDirect ||
      (mode_ == WriteMode::kAuto && store_->chosen_write_mode() != WriteMode::kBuffered);
  if (wants_direct && wanted.bytes >= store_->options_.direct_from_bytes) {
    ASSIGN_OR_RETURN(object.direct, store_->OpenDirect(name, /*write=*/true));
  }
  RETURN_IF_ERROR(Reserve(&object));
  announced_bytes_ += wanted.bytes;
  objects_.push_back(std::move(object));
  return static_cast<std::uint32_t>(objects_.size() - 1);
}

Status LocalWriteSession::Reserve(Object* object) {
  if (object->direct == nullptr) {
    return object->reused ? object->buffered->Truncate(object->bytes) : Status::Ok();
  }
  Status reserved = object->buffered->Allocate(object->bytes);
  if (!reserved.ok() && !reserved.Is(Code::kUnimplemented)) return reserved;
  return object->buffered->Truncate(object->bytes);
}

bool LocalWriteSession::UseDirect(const Object& object) const {
  if (object.direct == nullptr) return false;
  if (mode_ == WriteMode::kDirect) return true;
  if (trial_ && !object.reused) return trial_->mode() == WriteMode::kDirect;
  return store_->chosen_write_mode() != WriteMode::kBuffered;
}

Status LocalWriteSession::MaybeBeginTrial(const Object& object) {
  if (mode_ != WriteMode::kAuto || trial_ || object.direct == nullptr || object.reused ||
      announced_bytes_ < store_->options_.trial_from_bytes ||
      store_->chosen_write_mode() != WriteMode::kAuto) {
    return Status::Ok();
  }
  if (store_->trial_taken_.exchange(true)) return Status::Ok();  // another session is at it
  RETURN_IF_ERROR(WaitForParts());
  trial_.emplace(store_->options_.clock, store_->options_.trial_stretch_bytes);
  trial_objects_.clear();
  return Status::Ok();
}

Status LocalWriteSession::TrialPartSubmitted(std::uint32_t id, std::uint64_t bytes) {
  if (!trial_ || objects_[id].reused || objects_[id].direct == nullptr) return Status::Ok();
  if (std::find(trial_objects_.begin(), trial_objects_.end(), id) == trial_objects_.end()) {
    trial_objects_.push_back(id);
  }
  if (!trial_->Add(bytes)) return Status::Ok();
  RETURN_IF_ERROR(WaitForParts());
  for (const std::uint32_t touched : trial_objects_) {
    // Closed ones may have been synced, and their files closed, meanwhile.
    if (FsFile* file = objects_[touched].buffered.get()) RETURN_IF_ERROR(file->Sync("write trial"));
  }
  trial_->EndStretch();
  trial_objects_.clear();
  if (!trial_->finished()) return Status::Ok();
  store_->chosen_write_mode_.store(trial_->choice());
  LogInfo(fmt::format("{}: direct writes {:.2f} GB/s, buffered {:.2f} GB/s: {}", store_->Describe(),
                      trial_->direct_bytes_per_second() / 1e9,
                      trial_->buffered_bytes_per_second() / 1e9,
                      trial_->choice() == WriteMode::kDirect ? "direct" : "buffered"));
  trial_.reset();
  return Status::Ok();
}

Result<bool> LocalWriteSession::ReadLeft(std::uint32_t object, std::span<std::byte> into) {
  RETURN_IF_ERROR(condemned_);
  Result<bool> read = ReadLeftUnchecked(object, into);
  if (!read.ok()) return Condemn(read.status());
  return read;
}

Result<bool> LocalWriteSession::ReadLeftUnchecked(std::uint32_t id, std::span<std::byte> into) {
  // Room was reserved for all of a file before its first part was written: behind a gap that is
  // longer than any session has parts in flight there is nothing but that room.
  constexpr int kLongestGap = 16;
  if (id >= objects_.size() || objects_[id].closed) {
    return InvalidArgumentError(fmt::format("read what was left: object {} is not open", id));
  }
  Object& object = objects_[id];
  if (object.appended + into.size() > object.left_bytes || object.parts_missing >= kLongestGap) {
    return false;
  }
  const auto read = object.buffered->ReadAt(object.appended, into);
  // A block that cannot be read is written again.
  object.read_back = read.ok() && *read == into.size();
  return object.read_back;
}

Result<bool> LocalWriteSession::KeepLeft(std::uint32_t id, std::span<const std::byte> part) {
  RETURN_IF_ERROR(condemned_);
  if (id >= objects_.size() || !std::exchange(objects_[id].read_back, false)) return false;
  objects_[id].appended += part.size();
  objects_[id].parts_missing = 0;
  return true;
}

Status LocalWriteSession::Append(std::uint32_t object, std::span<const std::byte> part,
                                 bool /*padded*/, std::uint64_t tag) {
  RETURN_IF_ERROR(condemned_);
  Status appended = AppendUnchecked(object, part, tag);
  return appended.ok() ? appended : Condemn(std::move(appended));
}

Status LocalWriteSession::AppendUnchecked(std::uint32_t id, std::span<const std::byte> part,
                                          std::uint64_t tag) {
  if (id >= objects_.size() || objects_[id].closed) {
    return InvalidArgumentError(fmt::format("append: object {} is not open", id));
  }
  if (part.size() > objects_[id].bytes - objects_[id].appended) {
    return InvalidArgumentError(
        fmt::format("append to \"{}\": {} bytes are more than the {} announced", objects_[id].name,
                    objects_[id].appended + part.size(), objects_[id].bytes));
  }
  const bool last = objects_[id].appended + part.size() == objects_[id].bytes;
  if (!last && part.size() != part_bytes()) {
    return InvalidArgumentError(
        fmt::format("append to \"{}\": a part of {} bytes; all but the last have {}",
                    objects_[id].name, part.size(), part_bytes()));
  }
  if (part.size() > part_bytes()) {
    return InvalidArgumentError(fmt::format("append to \"{}\": a part of {} bytes; at most {}",
                                            objects_[id].name, part.size(), part_bytes()));
  }
  if (part.empty()) {
    written_.push_back(tag);
    return Status::Ok();
  }
  RETURN_IF_ERROR(MaybeBeginTrial(objects_[id]));
  while (parts_in_flight_ >= store_->options_.queue_depth) RETURN_IF_ERROR(Reap());

  Transfer transfer{.object = id,
                    .direct = UseDirect(objects_[id]),
                    .offset = objects_[id].appended,
                    .bytes = part,
                    .tag = tag};
  objects_[id].appended += part.size();
  objects_[id].read_back = false;
  ++objects_[id].parts_missing;
  if (transfer.direct) {
    const std::size_t odd = part.size() % kBlock;
    if (odd != 0) {
      RETURN_IF_ERROR(WriteOddEnd(id, transfer.offset + part.size() - odd, part.last(odd)));
      transfer.bytes = part.first(part.size() - odd);
    }
    if (!transfer.bytes.empty() && reinterpret_cast<std::uintptr_t>(part.data()) % kBlock != 0) {
      RETURN_IF_ERROR(CopyPart(&transfer));
    }
  }
  const bool free_again = transfer.copy.has_value() || transfer.bytes.empty();
  if (!transfer.bytes.empty()) RETURN_IF_ERROR(SubmitPart(std::move(transfer)));
  if (free_again) written_.push_back(tag);
  return TrialPartSubmitted(id, part.size());
}

Status LocalWriteSession::WriteOddEnd(std::uint32_t id, std::uint64_t offset,
                                      std::span<const std::byte> bytes) {
  objects_[id].cached = true;
  return objects_[id].buffered->WriteAt(offset, bytes).WithContext(objects_[id].name);
}

Status LocalWriteSession::CopyPart(Transfer* transfer) {
  if (!spare_copies_.empty()) {
    transfer->copy = std::move(spare_copies_.back());
    spare_copies_.pop_back();
  } else {
    transfer->copy.emplace(part_bytes());
  }
  const std::span<std::byte> copy = transfer->copy->span();
  if (copy.size() < transfer->bytes.size()) {
    return ResourceExhaustedError(fmt::format("write \"{}\": no memory for a buffer of {} bytes",
                                              objects_[transfer->object].name, part_bytes()));
  }
  std::memcpy(copy.data(), transfer->bytes.data(), transfer->bytes.size());
  transfer->bytes = copy.first(transfer->bytes.size());
  transfer->reported = true;
  return Status::Ok();
}

Status LocalWriteSession::SubmitPart(Transfer transfer) {
  Object& object = objects_[transfer.object];
  const std::size_t slot = free_transfers_.back();
  transfers_[slot] = std::move(transfer);
  const Transfer& kept = transfers_[slot];
  RETURN_IF_ERROR(queue_
                      ->SubmitWrite(kept.direct ? object.direct.get() : object.buffered.get(),
                                    kept.offset, kept.bytes, slot)
                      .WithContext(object.name));
  free_transfers_.pop_back();
  ++object.writes;
  ++parts_in_flight_;
  object.cached = object.cached || !kept.direct;
  return Status::Ok();
}

Status LocalWriteSession::Close(std::uint32_t object) {
  RETURN_IF_ERROR(condemned_);
  Status closed = CloseUnchecked(object);
  return closed.ok() ? closed : Condemn(std::move(closed));
}

Status LocalWriteSession::CloseUnchecked(std::uint32_t id) {
  if (id >= objects_.size() || objects_[id].closed) {
    return InvalidArgumentError(fmt::format("close: object {} is not open", id));
  }
  Object& object = objects_[id];
  if (object.appended != object.bytes) {
    return InvalidArgumentError(fmt::format("close \"{}\": {} of {} bytes were appended",
                                            object.name, object.appended, object.bytes));
  }
  object.closed = true;
  ++unsynced_;
  if (object.writes == 0) to_sync_.push_back({.index = id});
  return SubmitSyncs();
}

Status LocalWriteSession::SyncNames(const std::string& prefix, std::string_view why) {
  RETURN_IF_ERROR(condemned_);
  if (!prefix.empty()) RETURN_IF_ERROR(ValidateObjectName(prefix));
  for (DirtyDirectories::Marked& marked : store_->directories_.MarkedIn(prefix)) {
    to_sync_.push_back({.names = true, .index = names_.size()});
    names_.push_back({.marked = std::move(marked), .why = std::string(why)});
    ++unsynced_;
  }
  Status submitted = SubmitSyncs();
  return submitted.ok() ? submitted : Condemn(std::move(submitted));
}

Result<std::unique_ptr<PreparedObject>> LocalWriteSession::Prepare(const std::string& name,
                                                                   std::string_view bytes) {
  RETURN_IF_ERROR(condemned_);
  RETURN_IF_ERROR(ValidateObjectName(name));
  ASSIGN_OR_RETURN(LocalStore::Temporary temporary, store_->WriteTemporary(name, bytes, ""));
  auto durable = std::make_shared<bool>(false);
  const std::string path = store_->PathOf(temporary.name);
  auto prepared =
      std::make_unique<LocalPreparedObject>(store_, name, std::move(temporary), durable);
  // A descriptor of the session's own: it syncs whoever outlives whom.
  Object object{.name = name,
                .bytes = bytes.size(),
                .appended = bytes.size(),
                .closed = true,
                .why = LocalStore::kRecordBytes,
                .durable = std::move(durable)};
  ASSIGN_OR_RETURN(object.buffered, store_->options_.fs->Open(path, {.write = true}));
  objects_.push_back(std::move(object));
  to_sync_.push_back({.index = objects_.size() - 1});
  ++unsynced_;
  if (Status submitted = SubmitSyncs(); !submitted.ok()) return Condemn(std::move(submitted));
  return std::unique_ptr<PreparedObject>(std::move(prepared));
}

Status LocalWriteSession::SubmitSyncs() {
  while (!to_sync_.empty() && syncs_in_flight_ < kSyncsInFlight) {
    const SyncTarget target = to_sync_.front();
    to_sync_.pop_front();
    const std::size_t slot = free_transfers_.back();
    transfers_[slot] = Transfer{.sync = target};
    const Status submitted = SubmitSync(target, slot);
    if (target.names && submitted.Is(Code::kNotFound)) {
      --unsynced_;  // removed by somebody: Store::SyncNames sees to what that means
      continue;
    }
    RETURN_IF_ERROR(submitted);
    free_transfers_.pop_back();
    ++syncs_in_flight_;
  }
  return Status::Ok();
}

Status LocalWriteSession::SubmitSync(SyncTarget target, std::size_t slot) {
  if (target.names) {
    const Names& names = names_[target.index];
    return queue_->SubmitSyncDirectory(store_->PathOf(names.marked.directory), names.why, slot);
  }
  const Object& object = objects_[target.index];
  return queue_->SubmitSync(object.buffered.get(), object.why, slot).WithContext(object.name);
}

Status LocalWriteSession::Reap() {
  ASSIGN_OR_RETURN(IoQueue::Done done, queue_->Wait());
  const auto slot = static_cast<std::size_t>(done.tag);
  Transfer transfer = std::move(transfers_[slot]);
  transfers_[slot] = Transfer{};
  free_transfers_.push_back(slot);
  if (transfer.sync) {
    --syncs_in_flight_;
    RETURN_IF_ERROR(SyncDone(*transfer.sync, std::move(done.status)));
  } else {
    --parts_in_flight_;
    --objects_[transfer.object].writes;
    RETURN_IF_ERROR(PartDone(std::move(transfer), std::move(done.status)));
  }
  return SubmitSyncs();
}

Status LocalWriteSession::PartDone(Transfer transfer, Status status) {
  Object& object = objects_[transfer.object];
  if (transfer.direct && status.Is(Code::kInvalidArgument)) {
    // Refused at the first write rather than at open, as some FUSE file systems do.
    store_->direct_io_.store(false);
    transfer.direct = false;
    return SubmitPart(std::move(transfer));
  }
  if (!status.ok()) return status.WithContext(object.name);
  if (!transfer.reported) written_.push_back(transfer.tag);
  if (transfer.copy) spare_copies_.push_back(*std::move(transfer.copy));
  if (!transfer.direct) CacheWritten(transfer.object, transfer.offset, transfer.bytes.size());
  if (object.closed && object.writes == 0) to_sync_.push_back({.index = transfer.object});
  return Status::Ok();
}

void LocalWriteSession::CacheWritten(std::uint32_t id, std::uint64_t offset, std::uint64_t bytes) {
  // Small objects get their write-back from the sync that follows at once.
  if (objects_[id].bytes < store_->options_.direct_from_bytes) return;
  objects_[id].buffered->StartWriteback(offset, bytes);
  cache_.push_back({.object = id, .offset = offset, .bytes = bytes});
  cache_bytes_ += bytes;
  while (cache_bytes_ > kCacheWindow) {
    const CachedRange oldest = cache_.front();
    cache_.pop_front();
    cache_bytes_ -= oldest.bytes;
    if (FsFile* file = objects_[oldest.object].buffered.get()) {
      file->DropCache(oldest.offset, oldest.bytes);
    }
  }
}

Status LocalWriteSession::SyncDone(SyncTarget target, Status status) {
  if (target.names) return NamesSynced(names_[target.index], std::move(status));
  Object& object = objects_[target.index];
  if (!status.ok()) return status.WithContext(object.name);
  if (object.durable) *object.durable = true;
  if (object.cached) object.buffered->DropCache(0, object.bytes);
  object.buffered.reset();
  object.direct.reset();
  --unsynced_;
  return Status::Ok();
}

Status LocalWriteSession::NamesSynced(const Names& names, Status status) {
  --unsynced_;
  if (status.Is(Code::kNotFound)) return Status::Ok();  // as in SubmitSyncs
  if (status.ok()) store_->directories_.Synced(names.marked);
  return status;
}

Status LocalWriteSession::WaitForParts() {
  while (parts_in_flight_ > 0) RETURN_IF_ERROR(Reap());
  return Status::Ok();
}

Result<std::uint64_t> LocalWriteSession::WaitPart() {
  RETURN_IF_ERROR(condemned_);
  while (written_.empty()) {
    if (parts_in_flight_ == 0) return InvalidArgumentError("no part is outstanding");
    Status reaped = Reap();
    if (!reaped.ok()) return Condemn(std::move(reaped));
  }
  const std::uint64_t tag = written_.front();
  written_.pop_front();
  return tag;
}

Status LocalWriteSession::Drain() {
  RETURN_IF_ERROR(condemned_);
  Status drained = SubmitSyncs();
  while (drained.ok() && (parts_in_flight_ > 0 || unsynced_ > 0)) drained = Reap();
  if (!drained.ok()) return Condemn(std::move(drained));
  written_.clear();
  return Status::Ok();
}

}  // namespace cairn
