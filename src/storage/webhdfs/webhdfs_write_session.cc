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
constexpr std::uint64_t kMaxPartBytes = 1u << 30;
constexpr std::size_t kMaxSourcesBytes = 4000;  // servers refuse requests with long heads

std::string PartName(std::size_t part) { return fmt::format("p{:06}", part); }

Result<std::vector<HdfsFileStatus>> ListSorted(WebHdfsClient* client, const std::string& path) {
  ASSIGN_OR_RETURN(std::vector<HdfsFileStatus> files, ListAll(client, path));
  std::sort(files.begin(), files.end(),
            [](const HdfsFileStatus& a, const HdfsFileStatus& b) { return a.name < b.name; });
  return files;
}

}  // namespace

WebHdfsWriteSession::WebHdfsWriteSession(std::shared_ptr<WebHdfsClient> client, std::string id)
    : PartedWriteSession({.part_bytes = client->config().part_bytes,
                          .parts = kMaxParts,
                          .largest_part_bytes =
                              std::max<std::uint64_t>(kMaxPartBytes, client->config().part_bytes),
                          .in_flight = std::min(client->config().connections, kMaxInFlight),
                          .too_large = "save it as several tensors"}),
      client_(std::move(client)),
      id_(std::move(id)),
      depth_(std::min(client_->config().connections, kMaxInFlight)) {}

WebHdfsWriteSession::~WebHdfsWriteSession() { StopAll(); }

std::string WebHdfsWriteSession::PartsPath(const Object& object) const {
  const WebHdfsConfig& config = client_->config();
  return TemporaryPath(config, id_) + PartsBelow(config, object.name);
}

std::string WebHdfsWriteSession::PartPath(const Object& object, std::size_t part) const {
  return PartsPath(object) + "/" + PartName(part);
}

// ---------------------------------------------------------------- the caller's side

Status WebHdfsWriteSession::CheckFree(const std::string& name) {
  const WebHdfsConfig& config = client_->config();
  const auto there = client_->Stat(config.PathOf(name));
  if (there.ok()) return AlreadyExistsError("\"" + config.where + "/" + name + "\" exists");
  return there.status().Is(Code::kNotFound) ? Status::Ok() : there.status();
}

Status WebHdfsWriteSession::FindLeft(const Object& object) {
  found_.clear();
  const WebHdfsConfig& config = client_->config();
  const std::string top = TemporaryPath(config, "");
  const std::string own = PartsPath(object);
  const std::string below = PartsBelow(config, object.name);
  // The parts that have their sizes, of those that stand there.
  const auto whole = [&](const std::vector<HdfsFileStatus>& files) {
    std::set<std::size_t> parts;
    for (std::size_t part = 0; part < object.parts; ++part) {
      const std::uint64_t begin = std::uint64_t{part} * object.part_bytes;
      const auto at = std::lower_bound(
          files.begin(), files.end(), PartName(part),
          [](const HdfsFileStatus& f, const std::string& n) { return f.name < n; });
      if (at == files.end() || at->directory || at->name != PartName(part)) continue;
      if (at->bytes == std::min<std::uint64_t>(object.part_bytes, object.bytes - begin)) {
        parts.insert(part);
      }
    }
    return parts;
  };
  std::string best;
  ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> sessions, ListAll(client_.get(), top));
  for (const HdfsFileStatus& session : sessions) {
    if (!session.directory || session.name == id_) continue;
    ASSIGN_OR_RETURN(const std::vector<HdfsFileStatus> files,
                     ListSorted(client_.get(), top + session.name + below));
    if (std::set<std::size_t> parts = whole(files); parts.size() > found_.size()) {
      found_ = std::move(parts);
      best = session.name;
    }
  }
  if (best.empty()) return Status::Ok();
  const Status renamed = RenameIntoPlace(client_.get(), top + best + below, own, /*replace=*/false);
  if (renamed.Is(Code::kNotFound)) found_.clear();  // its session lives, and ended
  if (!renamed.ok() && !renamed.Is(Code::kNotFound)) return renamed;
  return PruneDirectoriesAt(client_.get(), top + best, /*itself=*/true);
}

void WebHdfsWriteSession::Opened() { left_.push_back(std::exchange(found_, {})); }

Result<bool> WebHdfsWriteSession::ReadLeftPart(const Transfer& due, std::span<std::byte> into) {
  if (!left_[due.object].contains(due.part)) return false;
  std::string path;
  {
    MutexLock lock(&mu_);
    path = PartPath(objects_[due.object], due.part);
  }
  const Status read = client_->Read(path, 0, into);
  // Shorter after all, or blocks of which no copy is whole: it is written again.
  if (read.Is(Code::kNotFound) || read.Is(Code::kCorruption)) return false;
  RETURN_IF_ERROR(read);
  read_back_ = {due.object, due.part};
  return true;
}

Result<bool> WebHdfsWriteSession::HoldsLeftPart(const Transfer& due) {
  return read_back_ == std::pair(due.object, due.part);
}

Status WebHdfsWriteSession::Send(const Transfer& transfer) {
  return Add({.object = transfer.object, .part = transfer});
}

Status WebHdfsWriteSession::Finish(std::uint32_t id) { return Add({.object = id}); }

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
    Status status = task.part ? client_->Write(PartPath(object, task.part->part), task.part->bytes)
                              : PutTogether(object);
    MutexLock lock(&mu_);
    Done(task, std::move(status));
  }
}

Status WebHdfsWriteSession::PutTogether(const Object& object) {
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
  RETURN_IF_ERROR(RenameIntoPlace(client_.get(), first, client_->config().PathOf(object.name),
                                  /*replace=*/false));
  client_->Delete(PartsPath(object), /*recursive=*/true)
      .status()
      .IgnoreError("an empty directory, which the end of the session deletes with the rest");
  return Status::Ok();
}

void WebHdfsWriteSession::Done(const Task& task, Status status) {
  if (!status.ok()) return Fail(std::move(status));
  if (!task.part) return ObjectDone(task.object);
  if (PartArrived(*task.part)) tasks_.push_back({.object = task.object});
}

// ---------------------------------------------------------------- ends

void WebHdfsWriteSession::StopAll() {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    tasks_.clear();
  }
  changed_.NotifyAll();
  threads_.clear();
  MutexLock lock(&mu_);
  if (objects_.empty() || LeavesUnfinished()) return;
  const Status deleted =
      client_->Delete(TemporaryPath(client_->config(), id_), /*recursive=*/true).status();
  if (!deleted.ok()) {
    LogWarning("unfinished files stay until the repository is next opened for writing: " +
               deleted.ToString());
  }
}

}  // namespace cairn
