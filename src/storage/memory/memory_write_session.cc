#include "storage/memory/memory_write_session.h"

#include <algorithm>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::size_t kBlock = 4096;

std::string Quoted(const std::string& name) { return "\"" + name + "\""; }

}  // namespace

MemoryWriteSession::~MemoryWriteSession() {
  for (const Object& object : outgoing_) {
    if (object.id != 0) objects_->Unpin(object.id);
  }
}

Result<std::uint32_t> MemoryWriteSession::Open(const std::string& name, const NewObject& object) {
  hook_->Announce({.kind = StoreOp::Kind::kOpenObject, .name = name, .bytes = object.bytes});
  if (!failed_.ok()) return failed_;
  const Status opened = TryOpen(name, object);
  if (!opened.ok()) return Condemn(opened);
  return static_cast<std::uint32_t>(outgoing_.size() - 1);
}

Status MemoryWriteSession::Append(std::uint32_t object, std::span<const std::byte> part,
                                  bool padded, std::uint64_t tag) {
  hook_->Announce({.kind = StoreOp::Kind::kAppend,
                   .name = NameOf(object),
                   .offset = object < outgoing_.size() ? outgoing_[object].appended : 0,
                   .bytes = part.size()});
  if (!failed_.ok()) return failed_;
  return Condemn(TryAppend(object, part, padded, tag));
}

Status MemoryWriteSession::Close(std::uint32_t object) {
  hook_->Announce({.kind = StoreOp::Kind::kCloseObject, .name = NameOf(object)});
  if (!failed_.ok()) return failed_;
  return Condemn(TryClose(object));
}

Result<std::uint64_t> MemoryWriteSession::WaitPart() {
  hook_->Announce({.kind = StoreOp::Kind::kWaitPart});
  if (!failed_.ok()) return failed_;
  if (parts_.empty() && tags_.empty()) {
    return InvalidArgumentError("no part is outstanding");
  }
  if (tags_.empty()) CompleteOldest();
  const std::uint64_t tag = tags_.front();
  tags_.pop_front();
  return tag;
}

Status MemoryWriteSession::Drain() {
  hook_->Announce({.kind = StoreOp::Kind::kDrain});
  if (!failed_.ok()) return failed_;
  while (!parts_.empty()) CompleteOldest();
  tags_.clear();
  if (!objects_->options().object_store) return Status::Ok();
  for (Object& object : outgoing_) {
    if (!object.closed || object.published) continue;
    hook_->Announce({.kind = StoreOp::Kind::kPublish, .name = object.name, .bytes = object.bytes});
    const Status published = objects_->Create(object.name, std::move(object.content));
    if (!published.ok()) return Condemn(published);
    object.published = true;
  }
  return Status::Ok();
}

Status MemoryWriteSession::Condemn(Status status) {
  if (!status.ok()) {
    failed_ = status;
    parts_.clear();
    tags_.clear();
  }
  return status;
}

std::string MemoryWriteSession::NameOf(std::uint32_t object) const {
  return object < outgoing_.size() ? outgoing_[object].name : std::string();
}

Status MemoryWriteSession::TryOpen(const std::string& name, const NewObject& object) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  Object made{.name = name, .bytes = object.bytes};
  if (objects_->options().object_store) {
    if (objects_->Has(name)) return TakenInMemory(name);
    for (const Object& other : outgoing_) {
      if (other.name == name) return TakenInMemory(name);
    }
  } else {
    ASSIGN_OR_RETURN(made.id, objects_->OpenInPlace(name, object.reuse));
  }
  outgoing_.push_back(std::move(made));
  return Status::Ok();
}

Status MemoryWriteSession::TryAppend(std::uint32_t index, std::span<const std::byte> part,
                                     bool padded, std::uint64_t tag) {
  if (index >= outgoing_.size() || outgoing_[index].closed) {
    return InvalidArgumentError("append: no such open object");
  }
  Object& object = outgoing_[index];
  const std::uint64_t left = object.bytes - object.appended;
  if (part.empty() && left == 0) {
    tags_.push_back(tag);
    return Status::Ok();
  }
  if (part.empty() || part.size() > left || part.size() > part_bytes() ||
      (part.size() != part_bytes() && part.size() != left)) {
    return InvalidArgumentError(
        Quoted(object.name) + ": a part of " + std::to_string(part.size()) + " bytes, but " +
        std::to_string(std::min<std::uint64_t>(left, part_bytes())) + " are next");
  }
  if (padded) TouchRoomBehind(part);
  if (parts_.size() >= static_cast<std::size_t>(objects_->options().parts_in_flight)) {
    CompleteOldest();
  }
  parts_.push_back({.object = index, .offset = object.appended, .bytes = part, .tag = tag});
  object.appended += part.size();
  return Status::Ok();
}

Status MemoryWriteSession::TryClose(std::uint32_t index) {
  if (index >= outgoing_.size() || outgoing_[index].closed) {
    return InvalidArgumentError("close: no such open object");
  }
  Object& object = outgoing_[index];
  if (object.appended != object.bytes) {
    return InvalidArgumentError(Quoted(object.name) + ": closed after " +
                                std::to_string(object.appended) + " of " +
                                std::to_string(object.bytes) + " bytes");
  }
  object.closed = true;
  // A reused object may have been longer.
  if (object.id != 0) objects_->Resize(object.id, object.bytes);
  return Status::Ok();
}

void MemoryWriteSession::TouchRoomBehind(std::span<const std::byte> part) {
  const auto end = reinterpret_cast<std::uintptr_t>(part.data()) + part.size();
  const std::size_t room = (kBlock - end % kBlock) % kBlock;
  if (room > 0) (void)*static_cast<const volatile std::byte*>(part.data() + part.size() + room - 1);
}

void MemoryWriteSession::CompleteOldest() {
  const Part part = parts_.front();
  parts_.pop_front();
  Object& object = outgoing_[part.object];
  if (object.id != 0) {
    objects_->Write(object.id, part.offset, part.bytes);
  } else {
    object.content.Write(part.offset, part.bytes);
  }
  tags_.push_back(part.tag);
}

}  // namespace cairn
