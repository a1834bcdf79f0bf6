#include "storage/parted_write_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

// Grown parts are whole chunks of manifests, which is what a resumed copy compares.
constexpr std::uint64_t kGrowth = 4u << 20;
// What large parts may take in memory. Two are sent at a time even if they take more.
constexpr std::uint64_t kLargeInFlight = 512u << 20;

std::uint64_t DivideUp(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

ObjectParts PartedWriteSession::PartsOf(std::uint64_t bytes) const {
  std::uint64_t part = limits_.part_bytes;
  if (DivideUp(bytes, part) > limits_.parts) {
    part = DivideUp(DivideUp(bytes, limits_.parts), kGrowth) * kGrowth;
  }
  const auto at_once = std::clamp<std::uint64_t>(kLargeInFlight / part, 2, 8);
  return {.part_bytes = part, .buffers = static_cast<int>(at_once)};
}

Result<std::uint32_t> PartedWriteSession::Open(const std::string& name, const NewObject& object) {
  std::uint32_t id = 0;
  Status opened = TryOpen(name, object, &id);
  if (!opened.ok()) return Condemn(std::move(opened));
  return id;
}

Status PartedWriteSession::TryOpen(const std::string& name, const NewObject& object,
                                   std::uint32_t* id) {
  {
    MutexLock lock(&mu_);
    if (!condemned_.ok()) return condemned_;
  }
  RETURN_IF_ERROR(ValidateObjectName(name));
  const ObjectParts parts = PartsOf(object.bytes);
  if (parts.part_bytes > limits_.largest_part_bytes) {
    return InvalidArgumentError(
        fmt::format("\"{}\" has {} bytes, and at most {} can be stored, in {} parts of {} each; {}",
                    name, object.bytes, limits_.parts * limits_.largest_part_bytes, limits_.parts,
                    limits_.largest_part_bytes, limits_.too_large));
  }
  // What puts the object into its place replaces nothing either; this is to fail before the bytes
  // are sent.
  RETURN_IF_ERROR(CheckFree(name));
  Object made{.name = name,
              .bytes = object.bytes,
              .part_bytes = parts.part_bytes,
              .in_flight = std::min(limits_.in_flight, parts.buffers),
              .parts = DivideUp(object.bytes, parts.part_bytes)};
  if (object.resume) RETURN_IF_ERROR(FindLeft(made));
  MutexLock lock(&mu_);
  *id = static_cast<std::uint32_t>(objects_.size());
  objects_.push_back(std::move(made));
  Opened();
  return condemned_;
}

Status PartedWriteSession::CheckObject(std::uint32_t id) {
  if (!condemned_.ok()) return condemned_;
  if (id >= objects_.size()) return InvalidArgumentError("no such object in this session");
  if (objects_[id].closed) {
    return InvalidArgumentError("\"" + objects_[id].name + "\" is closed");
  }
  return Status::Ok();
}

Result<std::size_t> PartedWriteSession::NextPart(std::uint32_t id, std::size_t bytes) {
  RETURN_IF_ERROR(CheckObject(id));
  const Object& object = objects_[id];
  const std::uint64_t due =
      std::min<std::uint64_t>(object.bytes - object.appended, object.part_bytes);
  if (bytes == 0 || bytes != due) {
    return InvalidArgumentError(
        fmt::format("a part of \"{}\" has {} bytes, {} are due", object.name, bytes, due));
  }
  return static_cast<std::size_t>(object.appended / object.part_bytes);
}

Status PartedWriteSession::Append(std::uint32_t object, std::span<const std::byte> part,
                                  bool /*padded*/, std::uint64_t tag) {
  Status status = TryAppend({.object = object, .bytes = part, .tag = tag});
  return status.ok() ? status : Condemn(std::move(status));
}

Status PartedWriteSession::TryAppend(const Transfer& transfer) {
  Transfer next = transfer;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(next.part, NextPart(next.object, next.bytes.size()));
    Object& object = objects_[next.object];
    object.appended += next.bytes.size();
    const int in_flight = object.in_flight;
    while (borrowed_ >= in_flight && condemned_.ok()) changed_.Wait(&mu_);
    if (!condemned_.ok()) return condemned_;
    ++borrowed_;
  }
  return Send(next);
}

Result<bool> PartedWriteSession::ReadLeft(std::uint32_t object, std::span<std::byte> into) {
  Result<bool> read = TryReadLeft(object, into);
  if (!read.ok()) return Condemn(read.status());
  return read;
}

Result<bool> PartedWriteSession::TryReadLeft(std::uint32_t object, std::span<std::byte> into) {
  Transfer due{.object = object};
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(due.part, NextPart(object, into.size()));
  }
  return ReadLeftPart(due, into);
}

Result<bool> PartedWriteSession::KeepLeft(std::uint32_t object, std::span<const std::byte> part) {
  Result<bool> kept = TryKeepLeft({.object = object, .bytes = part});
  if (!kept.ok()) return Condemn(kept.status());
  return kept;
}

Result<bool> PartedWriteSession::TryKeepLeft(Transfer due) {
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(due.part, NextPart(due.object, due.bytes.size()));
  }
  ASSIGN_OR_RETURN(const bool held, HoldsLeftPart(due));
  if (!held) return false;
  MutexLock lock(&mu_);
  Object& object = objects_[due.object];
  object.appended += due.bytes.size();
  ++object.arrived;
  if (arrived_bytes_ != nullptr) *arrived_bytes_ += due.bytes.size();
  return true;
}

void PartedWriteSession::LeaveUnfinished(bool leave) {
  MutexLock lock(&mu_);
  leave_ = leave;
}

bool PartedWriteSession::CountArrived(std::atomic<std::uint64_t>* bytes) {
  MutexLock lock(&mu_);
  arrived_bytes_ = bytes;
  return true;
}

bool PartedWriteSession::LeavesUnfinished() const {
  return leave_ && (condemned_.ok() || condemned_.Is(Code::kUnavailable) ||
                    condemned_.Is(Code::kDeadlineExceeded));
}

Status PartedWriteSession::Close(std::uint32_t object) {
  Status status = TryClose(object);
  return status.ok() ? status : Condemn(std::move(status));
}

Status PartedWriteSession::TryClose(std::uint32_t id) {
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckObject(id));
    Object& object = objects_[id];
    if (object.appended != object.bytes) {
      return InvalidArgumentError(fmt::format("\"{}\" was closed with {} of {} bytes", object.name,
                                              object.appended, object.bytes));
    }
    object.closed = true;
    ++unfinished_;
    if (object.arrived < object.parts) return Status::Ok();  // the last part to arrive ends it
  }
  return Finish(id);
}

Result<std::uint64_t> PartedWriteSession::WaitPart() {
  Status failed;
  {
    MutexLock lock(&mu_);
    while (condemned_.ok() && tags_.empty() && borrowed_ > 0) changed_.Wait(&mu_);
    if (condemned_.ok()) {
      if (tags_.empty()) return InvalidArgumentError("no part is outstanding");
      const std::uint64_t tag = tags_.front();
      tags_.pop_front();
      return tag;
    }
    failed = condemned_;
  }
  return Condemn(std::move(failed));
}

Status PartedWriteSession::Drain() {
  Status failed;
  {
    MutexLock lock(&mu_);
    // Parts of objects that stay open are waited for too: their memory is given back.
    while (condemned_.ok() && (unfinished_ > 0 || borrowed_ > 0)) changed_.Wait(&mu_);
    if (condemned_.ok()) {
      tags_.clear();
      return Status::Ok();
    }
    failed = condemned_;
  }
  return Condemn(std::move(failed));
}

bool PartedWriteSession::PartArrived(const Transfer& transfer) {
  --borrowed_;
  if (arrived_bytes_ != nullptr) *arrived_bytes_ += transfer.bytes.size();
  tags_.push_back(transfer.tag);
  changed_.NotifyAll();
  Object& object = objects_[transfer.object];
  return ++object.arrived == object.parts && object.closed;
}

void PartedWriteSession::ObjectDone(std::uint32_t id) {
  objects_[id].done = true;
  --unfinished_;
  changed_.NotifyAll();
}

void PartedWriteSession::Fail(Status status) {
  if (condemned_.ok()) condemned_ = std::move(status);
  changed_.NotifyAll();
}

Status PartedWriteSession::Condemn(Status status) {
  {
    MutexLock lock(&mu_);
    Fail(std::move(status));
  }
  StopAll();
  MutexLock lock(&mu_);
  return condemned_;
}

}  // namespace cairn
