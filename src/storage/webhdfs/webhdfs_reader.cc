#include "storage/webhdfs/webhdfs_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

Status WebHdfsReader::Read(std::uint64_t offset, std::span<std::byte> into) {
  if (into.size() > bytes_ || offset > bytes_ - into.size()) {
    return CorruptionError(fmt::format("read \"{}\": short read: {} bytes at {}, it has {}", name_,
                                       into.size(), offset, bytes_));
  }
  return client_->Read(path_, offset, into).WithContext("\"" + name_ + "\"");
}

WebHdfsReadQueue::WebHdfsReadQueue(int depth, int threads)
    : depth_(depth), max_threads_(static_cast<std::size_t>(std::min(depth, threads))) {}

WebHdfsReadQueue::~WebHdfsReadQueue() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    tasks_.clear();
  }
  changed_.NotifyAll();
  threads_.clear();  // what is being read is read to its end
}

int WebHdfsReadQueue::in_flight() const {
  MutexLock lock(&mu_);
  return in_flight_;
}

Status WebHdfsReadQueue::Submit(ObjectReader* reader, std::uint64_t offset,
                                std::span<std::byte> into, std::uint64_t tag) {
  auto* mine = dynamic_cast<WebHdfsReader*>(reader);
  if (mine == nullptr) return InvalidArgumentError("the reader is another store's");
  std::size_t waiting = 0;
  {
    MutexLock lock(&mu_);
    if (in_flight_ == depth_) return InvalidArgumentError("the read queue is full");
    ++in_flight_;
    const std::uint64_t there = mine->bytes();
    into = into.first(std::min<std::uint64_t>(into.size(), offset < there ? there - offset : 0));
    if (into.empty()) {
      done_.push_back({.tag = tag, .status = Status::Ok(), .bytes = 0});
      return Status::Ok();
    }
    tasks_.push_back({mine, offset, into, tag});
    waiting = tasks_.size();
  }
  changed_.NotifyAll();
  if (threads_.size() < max_threads_ && waiting > 0) {
    try {
      threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error& error) {
      if (threads_.empty()) {
        MutexLock lock(&mu_);
        tasks_.pop_back();
        --in_flight_;
        return ResourceExhaustedError(std::string("no thread to read with: ") + error.what());
      }
    }
  }
  return Status::Ok();
}

void WebHdfsReadQueue::Work() {
  while (true) {
    Task task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      task = tasks_.front();
      tasks_.pop_front();
    }
    Done done{.tag = task.tag, .status = task.reader->Read(task.offset, task.into)};
    if (done.status.ok()) done.bytes = task.into.size();
    MutexLock lock(&mu_);
    done_.push_back(std::move(done));
    changed_.NotifyAll();
  }
}

Result<ReadQueue::Done> WebHdfsReadQueue::Wait() {
  MutexLock lock(&mu_);
  if (in_flight_ == 0) return InvalidArgumentError("no read is in flight");
  while (done_.empty()) changed_.Wait(&mu_);
  Done done = std::move(done_.front());
  done_.pop_front();
  --in_flight_;
  return done;
}

}  // namespace cairn
