#include "storage/local/thread_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/local/posix_fs.h"

namespace cairn {
namespace {

constexpr int kMaxThreads = 8;
constexpr int kMaxDepth = 4096;

/// See NewThreadQueue. The caller's side is for one thread at a time; the workers meet it only at
/// `mu_`.
class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(int depth) : depth_(depth) {}
  ~ThreadQueue() override {
    {
      MutexLock lock(&mu_);
      closing_ = true;
    }
    wake_worker_.NotifyAll();
    workers_.clear();  // joins; they first do what is pending
  }

  int depth() const override { return depth_; }
  int in_flight() const override { return in_flight_; }

  Status SubmitRead(FsFile* file, std::uint64_t offset, std::span<std::byte> into,
                    std::uint64_t tag) override {
    return Submit([=] {
      Done done{.tag = tag};
      Result<std::size_t> read = file->ReadAt(offset, into);
      if (read.ok()) {
        done.bytes = *read;
      } else {
        done.status = read.status();
      }
      return done;
    });
  }

  Status SubmitWrite(FsFile* file, std::uint64_t offset, std::span<const std::byte> bytes,
                     std::uint64_t tag) override {
    return Submit([=] {
      Done done{.tag = tag, .status = file->WriteAt(offset, bytes)};
      if (done.status.ok()) done.bytes = bytes.size();
      return done;
    });
  }

  Status SubmitSync(FsFile* file, std::string_view why, std::uint64_t tag) override {
    return Submit([file, why = std::string(why), tag] {
      return Done{.tag = tag, .status = file->Sync(why)};
    });
  }

  Status SubmitSyncDirectory(const std::string& path, std::string_view why,
                             std::uint64_t tag) override {
    return Submit([path, why = std::string(why), tag] {
      return Done{.tag = tag, .status = PosixFs()->SyncDirectory(path, why)};
    });
  }

  Result<Done> Wait() override {
    if (in_flight_ == 0) return InvalidArgumentError("nothing is in flight");
    MutexLock lock(&mu_);
    while (done_.empty()) wake_caller_.Wait(&mu_);
    Done done = std::move(done_.front());
    done_.pop_front();
    --in_flight_;
    return done;
  }

 private:
  using Work = std::function<Done()>;

  Status Submit(Work work) {
    if (in_flight_ == depth_) {
      return InvalidArgumentError(fmt::format("{} operations are in flight already", depth_));
    }
    RETURN_IF_ERROR(StartWorker());
    {
      MutexLock lock(&mu_);
      pending_.push_back(std::move(work));
    }
    ++in_flight_;
    wake_worker_.NotifyOne();
    return Status::Ok();
  }

  /// One more worker while all that exist may be busy.
  Status StartWorker() {
    const int wanted = std::min({in_flight_ + 1, depth_, kMaxThreads});
    if (static_cast<int>(workers_.size()) >= wanted) return Status::Ok();
    try {
      workers_.emplace_back([this] { Run(); });
    } catch (const std::system_error& error) {
      if (workers_.empty()) {
        return ResourceExhaustedError(fmt::format("start an I/O thread: {}", error.what()));
      }
    }
    return Status::Ok();
  }

  void Run() {
    while (true) {
      Work work;
      {
        MutexLock lock(&mu_);
        while (pending_.empty() && !closing_) wake_worker_.Wait(&mu_);
        if (pending_.empty()) return;
        work = std::move(pending_.front());
        pending_.pop_front();
      }
      Done done = work();
      {
        MutexLock lock(&mu_);
        done_.push_back(std::move(done));
      }
      wake_caller_.NotifyOne();
    }
  }

  const int depth_;
  int in_flight_ = 0;  // the caller's own count: submitted and not yet returned by Wait

  Mutex mu_;
  CondVar wake_worker_;
  CondVar wake_caller_;
  bool closing_ GUARDED_BY(mu_) = false;
  std::deque<Work> pending_ GUARDED_BY(mu_);
  std::deque<Done> done_ GUARDED_BY(mu_);

  std::vector<std::jthread> workers_;  // last: they use everything above
};

}  // namespace

Status CheckQueueDepth(int depth) {
  if (depth < 1 || depth > kMaxDepth) {
    return InvalidArgumentError(
        fmt::format("queue depth {}: must be between 1 and {}", depth, kMaxDepth));
  }
  return Status::Ok();
}

Result<std::unique_ptr<IoQueue>> NewThreadQueue(int depth) {
  RETURN_IF_ERROR(CheckQueueDepth(depth));
  return std::unique_ptr<IoQueue>(std::make_unique<ThreadQueue>(depth));
}

}  // namespace cairn
