#include "storage/webhdfs/webhdfs_write_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "storage/webhdfs/webhdfs_store.h"

namespace cairn {
namespace {

constexpr int kMaxInFlight = 8;
constexpr std::size_t kMaxParts = 100'000;
constexpr std::size_t kMaxSourcesBytes = 4000;  // servers refuse requests with long heads

}  // namespace

WebHdfsWriteSession::WebHdfsWriteSession(std::shared_ptr<WebHdfsClient> client, std::string id)
    : client_(std::move(client)),
      id_(std::move(id)),
      depth_(std::min(client_->config().connections, kMaxInFlight)) {}

WebHdfsWriteSession::~WebHdfsWriteSession() { Stop(); }

std::string WebHdfsWriteSession::PartPath(const Object& object, std::size_t part) const {
  return object.parts_path + fmt::format("/p{:06}", part);
}

// ---------------------------------------------------------------- the caller's side

Result<std::uint32_t> WebHdfsWriteSession::Open(const std::string& name, const NewObject& object) {
  {
    MutexLock lock(&mu_);
    if (!condemned_.ok()) return condemned_;
  }
  std::uint32_t id = 0;
  const Status opened = OpenUnchecked(name, object, &id);
  if (!opened.ok()) return Condemn(opened);
  return id;
}

Status WebHdfsWriteSession::OpenUnchecked(const std::string& name, const NewObject& object,
                                          std::uint32_t* id) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  const std::size_t part = part_bytes();
  const std::uint64_t count = object.bytes / part + (object.bytes % part != 0 ? 1 : 0);
  if (count > kMaxParts) {
    return InvalidArgumentError(
        fmt::format("\"{}\" would have {} parts of {} bytes, at most {} are allowed; raise "
                    "StorageOptions::part_bytes",
                    name, count, part, kMaxParts));
  }
  const WebHdfsConfig& config = client_->config();
  std::string path = config.PathOf(name);
  // The rename replaces nothing either; this is to fail before the bytes are sent.
  const auto there = client_->Stat(path);
  if (there.ok()) return AlreadyExistsError("\"" + config.where + "/" + name + "\" exists");
  if (!there.status().Is(Code::kNotFound)) return there.status();
  MutexLock lock(&mu_);
  *id = static_cast<std::uint32_t>(objects_.size());
  Object added{.name = name, .path = std::move(path), .bytes = object.bytes, .parts = count};
  added.parts_path = TemporaryPath(config, id_ + "/") +
                     added.path.substr(std::min(config.root.size() + 1, added.path.size()));
  objects_.push_back(std::move(added));
  return Status::Ok();
}

Status WebHdfsWriteSession::CheckObject(std::uint32_t id) {
  if (id >= objects_.size()) return InvalidArgumentError("no such object in this session");
  if (objects_[id].closed) {
    return InvalidArgumentError("\"" + objects_[id].name + "\" is closed");
  }
  return Status::Ok();
}

Status WebHdfsWriteSession::Append(std::uint32_t object, std::span<const std::byte> part,
                                   bool /*padded*/, std::uint64_t tag) {
  Status status = AppendUnchecked(object, part, tag);
  return status.ok() ? status : Condemn(std::move(status));
}

Status WebHdfsWriteSession::AppendUnchecked(std::uint32_t id, std::span<const std::byte> part,
                                            std::uint64_t tag) {
  Task task{.object = id, .bytes = part, .tag = tag};
  {
    MutexLock lock(&mu_);
    if (!condemned_.ok()) return condemned_;
    RETURN_IF_ERROR(CheckObject(id));
    Object& object = objects_[id];
    const std::uint64_t due = std::min<std::uint64_t>(object.bytes - object.appended, part_bytes());
    if (part.empty() || part.size() != due) {
      return InvalidArgumentError(
          fmt::format("a part of \"{}\" has {} bytes, {} are due", object.name, part.size(), due));
    }
    task.part = object.appended / part_bytes();
    object.appended += part.size();
    while (parts_ >= depth_ && condemned_.ok()) changed_.Wait(&mu_);
    if (!condemned_.ok()) return condemned_;
    ++parts_;
  }
  return Add(std::move(task));
}

Status WebHdfsWriteSession::Add(Task task) {
  {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
  }
  changed_.NotifyAll();
  if (threads_.size() == static_cast<std::size_t>(depth_)) return Status::Ok();
  try {
    threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      return ResourceExhaustedError(std::string("no thread to write with: ") + error.what());
    }
  }
  return Status::Ok();
}

Status WebHdfsWriteSession::Close(std::uint32_t object) {
  Status status = CloseUnchecked(object);
  return status.ok() ? status : Condemn(std::move(status));
}

Status WebHdfsWriteSession::CloseUnchecked(std::uint32_t id) {
  bool whole = false;
  {
    MutexLock lock(&mu_);
    if (!condemned_.ok()) return condemned_;
    RETURN_IF_ERROR(CheckObject(id));
    Object& object = objects_[id];
    if (object.appended != object.bytes) {
      return InvalidArgumentError(fmt::format("\"{}\" was closed with {} of {} bytes", object.name,
                                              object.appended, object.bytes));
    }
    object.closed = true;
    ++unfinished_;
    whole = object.arrived == object.parts;
  }
  return whole ? Add({.object = id}) : Status::Ok();
}

Result<std::uint64_t> WebHdfsWriteSession::WaitPart() {
  Status failed;
  {
    MutexLock lock(&mu_);
    while (condemned_.ok() && tags_.empty() && parts_ > 0) changed_.Wait(&mu_);
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

Status WebHdfsWriteSession::Drain() {
  Status failed;
  {
    MutexLock lock(&mu_);
    // Parts of objects that stay open are waited for too: their memory is given back.
    while (condemned_.ok() && (unfinished_ > 0 || parts_ > 0)) changed_.Wait(&mu_);
    if (condemned_.ok()) {
      tags_.clear();
      return Status::Ok();
    }
    failed = condemned_;
  }
  return Condemn(std::move(failed));
}

// ---------------------------------------------------------------- the threads' side

void WebHdfsWriteSession::Work() {
  while (true) {
    Task task;
    Object object;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      task = tasks_.front();
      tasks_.pop_front();
      object = objects_[task.object];
    }
    Status status = Do(task, object);
    MutexLock lock(&mu_);
    Done(task, std::move(status));
  }
}

Status WebHdfsWriteSession::Do(const Task& task, const Object& object) {
  return task.part ? client_->Write(PartPath(object, *task.part), task.bytes) : Finish(object);
}

Status WebHdfsWriteSession::Finish(const Object& object) {
  const std::string first = PartPath(object, 0);
  if (object.parts == 0) RETURN_IF_ERROR(client_->Write(first, {}));
  std::vector<std::string> sources;
  std::size_t length = 0;
  for (std::size_t part = 1; part < object.parts; ++part) {
    sources.push_back(PartPath(object, part));
    length += sources.back().size();
    if (length < kMaxSourcesBytes && part + 1 < object.parts) continue;
    RETURN_IF_ERROR(client_->Concat(first, sources));
    sources.clear();
    length = 0;
  }
  RETURN_IF_ERROR(RenameIntoPlace(client_.get(), first, object.path, /*replace=*/false));
  client_->Delete(object.parts_path, /*recursive=*/true)
      .status()
      .IgnoreError("an empty directory, which the end of the session deletes with the rest");
  return Status::Ok();
}

void WebHdfsWriteSession::Done(const Task& task, Status status) {
  Object& object = objects_[task.object];
  if (!status.ok()) {
    if (condemned_.ok()) condemned_ = std::move(status);
  } else if (task.part) {
    --parts_;
    tags_.push_back(task.tag);
    if (++object.arrived == object.parts && object.closed)
      tasks_.push_back({.object = task.object});
  } else {
    object.done = true;
    --unfinished_;
  }
  changed_.NotifyAll();
}

// ---------------------------------------------------------------- ends

Status WebHdfsWriteSession::Condemn(Status status) {
  {
    MutexLock lock(&mu_);
    if (condemned_.ok()) condemned_ = std::move(status);
  }
  Stop();
  MutexLock lock(&mu_);
  return condemned_;
}

void WebHdfsWriteSession::Stop() {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    tasks_.clear();
  }
  changed_.NotifyAll();
  threads_.clear();
  MutexLock lock(&mu_);
  if (objects_.empty()) return;
  const Status deleted =
      client_->Delete(TemporaryPath(client_->config(), id_), /*recursive=*/true).status();
  if (!deleted.ok()) {
    LogWarning("unfinished files stay until the repository is next opened for writing: " +
               deleted.ToString());
  }
}

}  // namespace cairn
