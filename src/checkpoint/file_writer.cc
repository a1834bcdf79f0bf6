#include "checkpoint/file_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "base/open_files.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "checkpoint/cheap_source.h"
#include "checkpoint/content_hasher.h"
#include "checkpoint/names.h"
#include "checkpoint/publish_manifest.h"

namespace cairn {
namespace {

constexpr std::uint64_t kArenaPart = ~std::uint64_t{0};  // tag of parts that need no buffer back
constexpr std::string_view kNamesWhy = "checkpoint names";
// Copied and hashed piece by piece, so that the hashes read the copy from the cache.
constexpr std::size_t kFillPiece = 64u << 10;
// Parts of at least this go to the disk from memory rather than through the page cache.
constexpr std::size_t kPastCaches = 1u << 20;
constexpr std::size_t kMaxOpenAhead = 64;  // two descriptors each
constexpr std::uint64_t kMaxLinks = 8;     // rewritten after that: a rotten block must not take all

/// A user's file, read in order.
class UserFileReader {
 public:
  ~UserFileReader() {
    if (fd_ >= 0) close(fd_);
  }
  Status Open(const std::string& path) {
    path_ = path;
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return UnavailableError("open \"" + path + "\": " + std::strerror(errno));
    return Status::Ok();
  }
  Status Fill(std::uint64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
      const ssize_t n = pread(fd_, into.data(), into.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return InternalError("read \"" + path_ + "\": " + std::strerror(errno));
      if (n == 0) {
        return FailedPreconditionError("\"" + path_ + "\" became shorter while it was being saved");
      }
      offset += static_cast<std::uint64_t>(n);
      into = into.subspan(static_cast<std::size_t>(n));
    }
    return Status::Ok();
  }

 private:
  std::string path_;
  int fd_ = -1;
};

class Writer {
 public:
  Writer(const Environment& env, const FileWriterInput& input, StreamRing* ring,
         WriteProgress* progress, WrittenFiles* out)
      : env_(env),
        store_(env.store.get()),
        input_(input),
        ring_(ring),
        progress_(progress),
        out_(out) {}

  Status Run();

 private:
  Status WriteAll();
  Status Claim();
  /// Opens the first large files before any byte is written.
  Status OpenAhead();
  bool MayBeShared(const PlannedFile& file) const;
  Result<std::uint32_t> OpenOne(const PlannedFile& file);
  void NoteCreated(std::string name, const Status& status);
  Status WriteOne(const PlannedFile& file);
  /// Shares the file with the previous checkpoint if its bytes are the same. What was hashed on the
  /// way is left in `known`, for writing it.
  Result<bool> ShareIfUnchanged(const PlannedFile& file, std::optional<FileHash>* known);
  /// Whether what is to be shared is still what its manifest says, as far as there is doubt.
  Result<bool> IsIntact(const PlannedFile& file, const ShareableFiles::File& previous);
  Result<bool> Share(const PlannedFile& file, const ShareableFiles::File& previous);
  /// `hasher`: null when the hashes are known already.
  Status WriteFromArena(const PlannedFile& file, std::uint32_t object, ContentHasher* hasher);
  /// The hash of what was written, unless `hasher` is null.
  Result<FileHash> WriteStreamed(const PlannedFile& file, std::uint32_t object,
                                 ContentHasher* hasher);
  const std::optional<FileHash>* Expected(const PlannedFile& file) const;
  Status CheckExpected(const PlannedFile& file, const FileHash& hash) const;
  /// What was left of an object's next part.
  enum class Left { kUnread, kGood, kBad };
  /// Reads it into `part`, if it can be read and compared.
  Result<Left> ReadLeft(const PlannedFile& file, std::uint32_t object, std::uint64_t offset,
                        std::span<std::byte> part);
  /// Fills and hashes (`hasher` may be null) a part of the ring in pieces of `step` bytes.
  Status FillPart(const PlannedFile& file, UserFileReader* reader, std::uint64_t offset,
                  std::span<std::byte> part, std::uint64_t step, ContentHasher* hasher);
  Status FillStreamed(const PlannedFile& file, UserFileReader* reader, std::uint64_t offset,
                      std::span<std::byte> into);
  /// Of the ring, whose buffers have the size of the object's parts then.
  Result<std::size_t> FreeBuffer(const ObjectParts& parts);
  Status WaitForBuffer();
  std::string TakeFromPool(std::uint64_t bytes);
  bool Rereadable(const PlannedFile& file) const;
  /// A call of a source may cost more than a copy.
  bool SmallPieces(const PlannedFile& file) const;
  /// Calls fn(span) for the bytes of a rereadable file, in order.
  template <typename Fn>
  void ForEachSpan(const PlannedFile& file, Fn fn) const;
  void Learn(const PlannedFile& file, const std::vector<std::uint64_t>& tensors);
  std::string Location(const PlannedFile& file) const {
    return names::Path(input_.directory, file.path);
  }

  const Environment& env_;
  Store* const store_;
  const FileWriterInput& input_;
  StreamRing* const ring_;
  WriteProgress* const progress_;
  WrittenFiles* const out_;
  std::unique_ptr<WriteSession> session_;
  bool counts_arrived_ = false;  // the session counts what was written
  std::unordered_map<const PlannedFile*, std::uint32_t> opened_;  // ahead
  std::vector<std::size_t> free_buffers_;
  bool unreadable_ = false;         // the source of a copied file failed
  std::size_t streamed_parts_ = 0;  // buffers of the ring handed out for the first time
  std::vector<std::byte> piece_;    // see FillPart
};

Status Writer::Run() {
  // Files are open until they are synced, which may be all of them at once.
  AllowOpenFiles(input_.plan->files.size());
  ASSIGN_OR_RETURN(session_, store_->NewWriteSession(input_.mode));
  session_->LeaveUnfinished(input_.leave_unfinished);
  counts_arrived_ = session_->CountArrived(&progress_->written);
  Status status = WriteAll();
  if (!WasCutShort(status)) session_->LeaveUnfinished(false);
  session_.reset();
  RETURN_IF_ERROR(status);
  env_.Step("save: sync names");
  return store_->SyncNames(input_.directory, kNamesWhy);
}

Status Writer::WriteAll() {
  if (!input_.marker.empty()) RETURN_IF_ERROR(Claim());
  env_.Step("save: write");
  RETURN_IF_ERROR(OpenAhead());
  for (const PlannedFile& file : input_.plan->files) {
    if (input_.cancelled && input_.cancelled()) return CancelledError("the save was cancelled");
    const Status written = WriteOne(file);
    // What cannot be read names itself, and is not the file that is written.
    if (!written.ok()) return unreadable_ ? written : written.WithContext("write " + file.path);
  }
  env_.Step("save: sync data");
  if (input_.when_handed) RETURN_IF_ERROR(input_.when_handed(session_.get(), out_->files));
  RETURN_IF_ERROR(session_->SyncNames(input_.directory, kNamesWhy));
  return session_->Drain();
}

Status Writer::Claim() {
  env_.Step("save: claim");
  if (HoldsAnything(env_, input_.directory)) {
    return AlreadyExistsError(input_.directory + " is somebody's");
  }
  const std::string name = names::Path(input_.directory, names::kMarker);
  // A server's session sends what it is given beside each other: were it given the marker too, data
  // could arrive without it, and nobody would know later whose that is.
  const bool disk = store_->traits().directories && store_->traits().parallel_requests == 1;
  if (disk) {
    // Exclusive, but never synced, hence not closed: it only has to keep others out of the
    // directory and to tell a later sweep whose garbage this is; empty or torn it does so too.
    auto object = session_->Open(name, {.bytes = input_.marker.size(), .reuse = ""});
    NoteCreated(name, object.status());
    if (!object.ok()) return object.status();
    return session_->Append(*object, std::as_bytes(std::span(input_.marker)), false, kArenaPart);
  }
  const Status published = PublishRecord(env_, name, input_.marker);
  NoteCreated(name, published);
  return published;
}

Status Writer::OpenAhead() {
  // Room for a new file is given out by the journal, which waits for the syncs of the files before:
  // asked for in between, each one held the stream up for 3 to 40 ms.
  if (!store_->traits().directories) return Status::Ok();
  for (const PlannedFile& file : input_.plan->files) {
    if (opened_.size() == kMaxOpenAhead) break;
    if (file.bytes <= kChunkBytes || MayBeShared(file)) continue;
    auto handle = OpenOne(file);
    if (!handle.ok()) return handle.status().WithContext("write " + file.path);
    opened_.emplace(&file, *handle);
  }
  return Status::Ok();
}

Result<std::uint32_t> Writer::OpenOne(const PlannedFile& file) {
  if (const auto ahead = opened_.find(&file); ahead != opened_.end()) return ahead->second;
  const std::string name = Location(file);
  NewObject object{.bytes = file.bytes, .reuse = TakeFromPool(file.bytes), .resume = input_.resume};
  if (!object.reuse.empty()) env_.Step("save: recycle");
  auto handle = session_->Open(name, object);
  NoteCreated(name, handle.status());
  return handle;
}

void Writer::NoteCreated(std::string name, const Status& status) {
  // After a failure half-way the name may be there, and is ours. Somebody else's is not.
  if (!status.Is(Code::kAlreadyExists)) out_->created.push_back(std::move(name));
}

Status Writer::WriteOne(const PlannedFile& file) {
  std::optional<FileHash> known;
  ASSIGN_OR_RETURN(const bool shared, ShareIfUnchanged(file, &known));
  if (shared) return Status::Ok();
  ASSIGN_OR_RETURN(const std::uint32_t handle, OpenOne(file));
  // What cannot be compared next time is not expected to be shared either.
  const bool learn = Rereadable(file);
  ContentHasher hasher(file, /*tensors=*/learn);
  ManifestFile entry;
  if (file.streamed) {
    ASSIGN_OR_RETURN(entry.hash, WriteStreamed(file, handle, known ? nullptr : &hasher));
  } else {
    RETURN_IF_ERROR(WriteFromArena(file, handle, known ? nullptr : &hasher));
    if (!known) entry.hash = hasher.Finish();
  }
  RETURN_IF_ERROR(session_->Close(handle));
  entry.path = file.path;
  if (known) entry.hash = *known;
  entry.part = input_.participant;
  out_->files.push_back(std::move(entry));
  if (!known && learn) Learn(file, hasher.tensors());
  return Status::Ok();
}

bool Writer::Rereadable(const PlannedFile& file) const {
  if (!file.streamed) return true;
  if (!file.source_path.empty()) return false;
  return std::none_of(file.tensors.begin(), file.tensors.end(), [&](const PlannedTensor& tensor) {
    return input_.request->tensors[tensor.index].source != nullptr;
  });
}

bool Writer::SmallPieces(const PlannedFile& file) const {
  if (!file.source_path.empty()) return false;
  return std::all_of(file.tensors.begin(), file.tensors.end(), [&](const PlannedTensor& tensor) {
    TensorSource* const source = input_.request->tensors[tensor.index].source;
    return source == nullptr || dynamic_cast<CheapSource*>(source) != nullptr;
  });
}

template <typename Fn>
void Writer::ForEachSpan(const PlannedFile& file, Fn fn) const {
  if (!file.streamed) {
    fn(std::span(input_.arena + file.arena_offset, file.bytes));
    return;
  }
  fn(std::as_bytes(std::span(file.head)));
  for (const PlannedTensor& tensor : file.tensors) {
    const auto* bytes =
        input_.arena != nullptr
            ? input_.arena + tensor.arena_offset
            : static_cast<const std::byte*>(input_.request->tensors[tensor.index].data);
    fn(std::span(bytes, tensor.bytes));
  }
}

bool Writer::MayBeShared(const PlannedFile& file) const {
  if (input_.shareable == nullptr || file.bytes == 0 || !Rereadable(file) ||
      !input_.shareable->HasBytes(file.bytes)) {
    return false;
  }
  // Small files are hashed anyway; of large ones only those that did not change last time.
  return file.bytes <= kChunkBytes || (file.expect_unchanged && input_.history != nullptr);
}

Result<bool> Writer::ShareIfUnchanged(const PlannedFile& file, std::optional<FileHash>* known) {
  if (!MayBeShared(file)) return false;
  if (file.bytes <= kChunkBytes) {
    ContentHasher hasher(file);
    ForEachSpan(file, [&](std::span<const std::byte> bytes) { hasher.Update(bytes); });
    *known = hasher.Finish();
    Learn(file, hasher.tensors());
    const ShareableFiles::File* previous = input_.shareable->Find(file.bytes, (*known)->whole);
    if (previous == nullptr) return false;
    return Share(file, *previous);
  }
  // One hash decides. The chunks' and the tensors' are then those of the last time.
  Xxh3Stream whole;
  ForEachSpan(file, [&](std::span<const std::byte> bytes) { whole.Update(bytes); });
  const ShareableFiles::File* previous = input_.shareable->Find(file.bytes, whole.FinishWide());
  if (previous == nullptr) return false;
  std::vector<std::uint64_t> tensors;
  for (const PlannedTensor& tensor : file.tensors) {
    const auto before = input_.history->find(tensor.stored_name);
    if (before == input_.history->end()) return false;
    tensors.push_back(before->second.hash);
  }
  ASSIGN_OR_RETURN(const bool shared, Share(file, *previous));
  if (shared) Learn(file, tensors);
  return shared;
}

Result<bool> Writer::IsIntact(const PlannedFile& file, const ShareableFiles::File& previous) {
  // Deleted by hand, or by half.
  const auto there = store_->Stat(previous.location);
  if (there.status().Is(Code::kNotFound)) return false;
  if (!there.ok()) return there.status();
  if (there->bytes != file.bytes) return false;
  if (input_.shareable->proven()) return true;
  // Of large files nobody knows at the first save whether they changed, so they are written anew.
  if (file.bytes > kChunkBytes) return false;
  const auto bytes = store_->Get(previous.location, file.bytes);
  return bytes.ok() && Xxh3Wide(std::as_bytes(std::span(*bytes))) == previous.hash.whole;
}

Result<bool> Writer::Share(const PlannedFile& file, const ShareableFiles::File& previous) {
  ManifestFile entry;
  entry.path = file.path;
  entry.hash = previous.hash;
  entry.part = input_.participant;
  ASSIGN_OR_RETURN(const bool intact, IsIntact(file, previous));
  if (!intact) return false;
  if (store_->traits().hard_links) {
    env_.Step("save: link");
    auto links = store_->LinkCount(previous.location);
    if (!links.ok() || *links >= kMaxLinks) return false;
    const Status linked = store_->Link(previous.location, Location(file));
    NoteCreated(Location(file), linked);
    if (linked.Is(Code::kNotFound) || linked.Is(Code::kResourceExhausted) ||
        linked.Is(Code::kUnimplemented)) {
      return false;  // removed by hand, EMLINK, no links on this mount: write it
    }
    RETURN_IF_ERROR(linked);
  } else {
    entry.ref = previous.location;
  }
  out_->files.push_back(std::move(entry));
  progress_->shared += file.bytes;
  return true;
}

Status Writer::WriteFromArena(const PlannedFile& file, std::uint32_t object,
                              ContentHasher* hasher) {
  const std::byte* from = input_.arena + file.arena_offset;
  const std::uint64_t step = session_->PartsOf(file.bytes).part_bytes;
  for (std::uint64_t offset = 0; offset < file.bytes; offset += step) {
    const std::span<const std::byte> part(from + offset,
                                          std::min<std::uint64_t>(step, file.bytes - offset));
    // On its way first, hashed meanwhile.
    RETURN_IF_ERROR(session_->Append(object, part, true, kArenaPart));
    if (hasher != nullptr) hasher->Update(part);
    if (!counts_arrived_) progress_->written += part.size();
  }
  return Status::Ok();
}

Status Writer::WaitForBuffer() {
  ASSIGN_OR_RETURN(const std::uint64_t tag, session_->WaitPart());
  if (tag != kArenaPart) free_buffers_.push_back(static_cast<std::size_t>(tag));
  return Status::Ok();
}

Result<std::size_t> Writer::FreeBuffer(const ObjectParts& parts) {
  const auto count = static_cast<std::size_t>(parts.buffers);
  if (ring_->buffer_bytes() != parts.part_bytes || ring_->count() != count) {
    while (free_buffers_.size() < streamed_parts_) RETURN_IF_ERROR(WaitForBuffer());
    free_buffers_.clear();
    streamed_parts_ = 0;
    RETURN_IF_ERROR(ring_->Reserve(parts.part_bytes, count));
  }
  if (free_buffers_.empty() && streamed_parts_ < ring_->count()) return streamed_parts_++;
  while (free_buffers_.empty()) RETURN_IF_ERROR(WaitForBuffer());
  const std::size_t buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

const std::optional<FileHash>* Writer::Expected(const PlannedFile& file) const {
  if (input_.expected == nullptr) return nullptr;
  return &(*input_.expected)[static_cast<std::size_t>(&file - input_.plan->files.data())];
}

Status Writer::CheckExpected(const PlannedFile& file, const FileHash& hash) const {
  const std::optional<FileHash>* expected = Expected(file);
  if (expected == nullptr || !*expected || **expected == hash) return Status::Ok();
  return CorruptionError("the bytes that arrived are not those of its manifest");
}

Result<Writer::Left> Writer::ReadLeft(const PlannedFile& file, std::uint32_t object,
                                      std::uint64_t offset, std::span<std::byte> part) {
  const std::optional<FileHash>* expected = input_.resume ? Expected(file) : nullptr;
  if (expected == nullptr || !*expected) return Left::kUnread;
  // A part must begin with a chunk, and end with one or with the file.
  const std::uint64_t end = offset + part.size();
  if (offset % kChunkBytes != 0 || (end % kChunkBytes != 0 && end != file.bytes)) {
    return Left::kUnread;
  }
  ASSIGN_OR_RETURN(const bool read, session_->ReadLeft(object, part));
  if (!read) return Left::kUnread;
  for (std::uint64_t at = 0; at < part.size(); at += kChunkBytes) {
    const auto chunk = part.subspan(at, std::min<std::uint64_t>(kChunkBytes, part.size() - at));
    if (Xxh3(chunk) != (*expected)->chunks[(offset + at) / kChunkBytes]) return Left::kBad;
  }
  return Left::kGood;
}

Result<FileHash> Writer::WriteStreamed(const PlannedFile& file, std::uint32_t object,
                                       ContentHasher* hasher) {
  UserFileReader reader;
  if (!file.source_path.empty()) RETURN_IF_ERROR(reader.Open(file.source_path));
  FileHash hash;
  if (hasher != nullptr && file.bytes == 0) hash = hasher->Finish();
  const ObjectParts parts = session_->PartsOf(file.bytes);
  const std::uint64_t step = parts.part_bytes;
  const std::uint64_t fill = SmallPieces(file) ? kFillPiece : session_->part_bytes();
  for (std::uint64_t offset = 0; offset < file.bytes; offset += step) {
    if (input_.cancelled && input_.cancelled()) return CancelledError("the save was cancelled");
    ASSIGN_OR_RETURN(const std::size_t buffer, FreeBuffer(parts));
    const std::span<std::byte> part(ring_->buffer(buffer),
                                    std::min<std::uint64_t>(step, file.bytes - offset));
    ASSIGN_OR_RETURN(const Left left, ReadLeft(file, object, offset, part));
    const bool filled = left == Left::kGood;
    if (filled && hasher != nullptr) hasher->Update(part);
    if (!filled) RETURN_IF_ERROR(FillPart(file, &reader, offset, part, fill, hasher));
    if (hasher != nullptr && offset + part.size() == file.bytes) {
      hash = hasher->Finish();
      RETURN_IF_ERROR(CheckExpected(file, hash));
    }
    if (!counts_arrived_) progress_->written += part.size();
    const bool may_keep = input_.resume && left != Left::kBad;
    ASSIGN_OR_RETURN(const bool kept,
                     may_keep ? session_->KeepLeft(object, part) : Result<bool>(false));
    if (kept) {
      progress_->kept += part.size();
      free_buffers_.push_back(buffer);
    } else {
      RETURN_IF_ERROR(session_->Append(object, part, true, buffer));
    }
  }
  return hash;
}

Status Writer::FillPart(const PlannedFile& file, UserFileReader* reader, std::uint64_t offset,
                        std::span<std::byte> part, std::uint64_t step, ContentHasher* hasher) {
  // A disk reads lines that lie changed in the caches of a processor more slowly than memory (by a
  // tenth here). So a piece is put together and hashed in the cache, and goes past it into the
  // part.
  const bool past_caches = step == kFillPiece && part.size() >= kPastCaches;
  if (past_caches) piece_.resize(kFillPiece);
  for (std::uint64_t done = 0; done < part.size(); done += step) {
    const auto place = part.subspan(done, std::min<std::uint64_t>(step, part.size() - done));
    const auto piece = past_caches ? std::span(piece_).first(place.size()) : place;
    RETURN_IF_ERROR(FillStreamed(file, reader, offset + done, piece));
    if (hasher != nullptr) hasher->Update(piece);
    if (past_caches) StreamCopy(place.data(), piece.data(), place.size());
  }
  return Status::Ok();
}

Status Writer::FillStreamed(const PlannedFile& file, UserFileReader* reader, std::uint64_t offset,
                            std::span<std::byte> into) {
  if (!file.source_path.empty()) return reader->Fill(offset, into);
  const std::uint64_t end = offset + into.size();
  if (offset < file.head.size()) {
    const std::size_t n = std::min<std::uint64_t>(into.size(), file.head.size() - offset);
    std::memcpy(into.data(), file.head.data() + offset, n);
  }
  // The first tensor that ends behind `offset`; tensors stand in order.
  auto it = std::partition_point(
      file.tensors.begin(), file.tensors.end(),
      [&](const PlannedTensor& tensor) { return tensor.file_offset + tensor.bytes <= offset; });
  for (; it != file.tensors.end() && it->file_offset < end; ++it) {
    if (it->bytes == 0) continue;
    const std::uint64_t from = std::max(offset, it->file_offset);
    const std::uint64_t to = std::min(end, it->file_offset + it->bytes);
    const std::span<std::byte> piece = into.subspan(from - offset, to - from);
    const Tensor& tensor = input_.request->tensors[it->index];
    if (tensor.source != nullptr) {
      const Status filled = tensor.source->Fill(from - it->file_offset, piece);
      unreadable_ = !filled.ok() && tensor.name == file.path;  // a file that is copied whole
      if (unreadable_) return filled;
      RETURN_IF_ERROR(filled.WithContext("tensor \"" + tensor.name + "\""));
    } else {
      const std::byte* bytes = input_.arena != nullptr ? input_.arena + it->arena_offset
                                                       : static_cast<const std::byte*>(tensor.data);
      std::memcpy(piece.data(), bytes + (from - it->file_offset), piece.size());
    }
  }
  return Status::Ok();
}

std::string Writer::TakeFromPool(std::uint64_t bytes) {
  if (input_.pool == nullptr || bytes < input_.recycle_from_bytes) return "";
  // The nearest size: blocks that are there already are written over, the rest is cut off or added.
  auto best = input_.pool->end();
  auto distance = [&](const ObjectInfo& object) {
    return object.bytes > bytes ? object.bytes - bytes : bytes - object.bytes;
  };
  for (auto it = input_.pool->begin(); it != input_.pool->end(); ++it) {
    if (it->bytes < bytes / 2) continue;
    if (best == input_.pool->end() || distance(*it) < distance(*best)) best = it;
  }
  if (best == input_.pool->end()) return "";
  std::string name = std::move(best->name);
  input_.pool->erase(best);
  return name;
}

void Writer::Learn(const PlannedFile& file, const std::vector<std::uint64_t>& tensors) {
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    out_->history[file.tensors[i].stored_name].hash = tensors[i];
  }
}

}  // namespace

ShareableFiles::ShareableFiles(const std::string& directory, const Manifest& manifest, bool proven)
    : proven_(proven) {
  for (const ManifestFile& file : manifest.files) {
    const std::string location = file.ref.empty() ? names::Path(directory, file.path) : file.ref;
    by_bytes_.emplace(file.hash.bytes, File{location, file.hash});
  }
}

const ShareableFiles::File* ShareableFiles::Find(std::uint64_t bytes, const Hash128& whole) const {
  const auto [begin, end] = by_bytes_.equal_range(bytes);
  for (auto it = begin; it != end; ++it) {
    if (it->second.hash.whole == whole) return &it->second;
  }
  return nullptr;
}

bool ShareableFiles::HasBytes(std::uint64_t bytes) const { return by_bytes_.contains(bytes); }

bool WasCutShort(const Status& status) {
  return status.Is(Code::kCancelled) || status.Is(Code::kUnavailable) ||
         status.Is(Code::kDeadlineExceeded);
}

StreamRing::~StreamRing() { Free(); }

void StreamRing::Free() {
  if (data_ != nullptr) munmap(data_, buffer_bytes_ * count_);
  data_ = nullptr;
  buffer_bytes_ = 0;
  count_ = 0;
}

Status StreamRing::Reserve(std::size_t buffer_bytes, std::size_t count) {
  if (buffer_bytes_ == buffer_bytes && count_ == count) return Status::Ok();
  Free();
  void* mapped = mmap(nullptr, buffer_bytes * count, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhaustedError(std::string("no memory for write buffers: ") +
                                  std::strerror(errno));
  }
  madvise(mapped, buffer_bytes * count, MADV_HUGEPAGE);  // fewer pages to pin for direct writes
  data_ = static_cast<std::byte*>(mapped);
  buffer_bytes_ = buffer_bytes;
  count_ = count;
  return Status::Ok();
}

Status WriteFiles(const Environment& env, const FileWriterInput& input, StreamRing* ring,
                  WriteProgress* progress, WrittenFiles* out) {
  return Writer(env, input, ring, progress, out).Run();
}

}  // namespace cairn
