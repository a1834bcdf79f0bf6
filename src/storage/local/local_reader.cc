#include "storage/local/local_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kWorthDirectBytes = 1u << 20;
/// A range longer than this is not copied out of a buffer: the queue would hold too much memory.
constexpr std::size_t kMaxCopyBytes = 16u << 20;

bool IsAligned(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kBlock == 0;
}

}  // namespace

Status LocalReader::Read(std::uint64_t offset, std::span<std::byte> into) {
  ASSIGN_OR_RETURN(const std::size_t read, file_->ReadAt(offset, into));
  if (read == into.size()) return Status::Ok();
  return CorruptionError(fmt::format("read \"{}\": short read: {} of {} bytes at {}", path_, read,
                                     into.size(), offset));
}

FsFile* LocalReader::direct() {
  MutexLock lock(&mu_);
  if (!direct_tried_) {
    direct_tried_ = true;
    Result<std::unique_ptr<FsFile>> file = fs_->Open(path_, {.direct = true});
    if (file.ok()) {
      // The name may lead to another file by now; ours cannot give away its inode while it is open.
      const Result<FsStat> stat = (*file)->Stat();
      if (stat.ok() && stat->inode == inode_) direct_ = *std::move(file);
    }
  }
  return direct_refused_ ? nullptr : direct_.get();
}

void LocalReader::RefuseDirect() {
  MutexLock lock(&mu_);
  direct_refused_ = true;
}

LocalReadQueue::LocalReadQueue(std::unique_ptr<IoQueue> queue, ReadMode mode)
    : mode_(mode), requests_(static_cast<std::size_t>(queue->depth())), queue_(std::move(queue)) {
  for (std::size_t i = requests_.size(); i > 0; --i) free_.push_back(i - 1);
}

bool LocalReadQueue::WorthDirect(const Request& request) const {
  if (mode_ == ReadMode::kBuffered || request.done != 0) return false;
  return request.into.size() >= (mode_ == ReadMode::kAuto ? kWorthDirectBytes : kBlock);
}

Status LocalReadQueue::SubmitNext(std::size_t index) {
  Request& request = requests_[index];
  FsFile* const file = WorthDirect(request) ? request.reader->direct() : nullptr;
  if (file == nullptr) return SubmitBuffered(index);
  if (request.offset % kBlock != 0 || !IsAligned(request.into.data())) {
    return request.into.size() <= kMaxCopyBytes ? SubmitCopied(index, file) : SubmitBuffered(index);
  }
  request.direct = true;
  request.asked = request.into.size() - request.into.size() % kBlock;
  return queue_->SubmitRead(file, request.offset, request.into.first(request.asked), index);
}

Status LocalReadQueue::SubmitBuffered(std::size_t index) {
  Request& request = requests_[index];
  request.direct = false;
  request.asked = request.into.size() - request.done;
  return queue_->SubmitRead(request.reader->buffered(), request.offset + request.done,
                            request.into.subspan(request.done), index);
}

Status LocalReadQueue::SubmitCopied(std::size_t index, FsFile* file) {
  Request& request = requests_[index];
  const std::size_t lead = request.offset % kBlock;
  request.direct = true;
  request.asked = (lead + request.into.size() + kBlock - 1) / kBlock * kBlock;
  if (!spare_copies_.empty()) {
    request.copy = std::move(spare_copies_.back());
    spare_copies_.pop_back();
  }
  if (!request.copy || request.copy->span().size() < request.asked) {
    request.copy.emplace(request.asked);
    if (request.copy->span().empty()) {  // no memory
      request.copy.reset();
      return SubmitBuffered(index);
    }
  }
  return queue_->SubmitRead(file, request.offset - lead, request.copy->span().first(request.asked),
                            index);
}

bool LocalReadQueue::Advance(Request* request, const IoQueue::Done& part) {
  if (!part.status.ok()) {
    if (!request->direct || !part.status.Is(Code::kInvalidArgument)) return false;
    request->reader->RefuseDirect();
    request->copy.reset();
    return true;
  }
  if (request->copy) {
    const std::size_t lead = request->offset % kBlock;
    if (part.bytes > lead) {
      request->done = std::min(part.bytes - lead, request->into.size());
      std::memcpy(request->into.data(), request->copy->span().data() + lead, request->done);
    }
    spare_copies_.push_back(*std::move(request->copy));
    request->copy.reset();
    return false;
  }
  request->done += part.bytes;
  // The odd end behind a direct read; a shorter result was the end of the file.
  return part.bytes == request->asked && request->done < request->into.size();
}

Status LocalReadQueue::Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                              std::uint64_t tag) {
  auto* local = dynamic_cast<LocalReader*>(reader);
  if (local == nullptr) {
    return InvalidArgumentError("read queue: the reader belongs to another store");
  }
  if (into.size() > std::numeric_limits<std::uint64_t>::max() - offset) {
    return InvalidArgumentError(
        fmt::format("read \"{}\": offset {} is out of range", local->name(), offset));
  }
  if (free_.empty()) {
    return InvalidArgumentError(fmt::format("{} reads are in flight already", depth()));
  }
  const std::size_t index = free_.back();
  requests_[index] = Request{.reader = local, .offset = offset, .into = into, .tag = tag};
  RETURN_IF_ERROR(SubmitNext(index));
  free_.pop_back();
  return Status::Ok();
}

Result<ReadQueue::Done> LocalReadQueue::Wait() {
  while (true) {
    ASSIGN_OR_RETURN(IoQueue::Done part, queue_->Wait());
    const auto index = static_cast<std::size_t>(part.tag);
    if (Advance(&requests_[index], part)) {
      part.status = SubmitNext(index);
      if (part.status.ok()) continue;
    }
    free_.push_back(index);
    return Done{.tag = requests_[index].tag,
                .status = std::move(part.status),
                .bytes = requests_[index].done};
  }
}

}  // namespace cairn
