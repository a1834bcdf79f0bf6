#include "trial/run_output.h"

#include <algorithm>
#include <iostream>
#include <ostream>
#include <streambuf>
#include <vector>

#include "base/thread_annotations.h"
#include "trial/run_log.h"

namespace cairn {
namespace {

/// In place of a stream's own buffer, which it writes through to, for as long as there is a log to
/// copy to. Contexts may come and go in any order, and others may exchange buffers too: so there is
/// one for each stream, which is never destroyed.
class StreamCopy final : public std::streambuf {
 public:
  StreamCopy(std::ostream* stream, bool is_stderr) : stream_(stream), is_stderr_(is_stderr) {}

  void Add(RunLog* log) {
    MutexLock hold(&mu_);
    logs_.push_back(log);
    if (stream_->rdbuf() != this && own_ == nullptr) own_ = stream_->rdbuf(this);
  }
  void Remove(RunLog* log) {
    MutexLock hold(&mu_);
    std::erase(logs_, log);
    // Whoever has put another buffer in its place may still write through to this one.
    if (!logs_.empty() || stream_->rdbuf() != this) return;
    stream_->rdbuf(own_);
    own_ = nullptr;
  }

 protected:
  int_type overflow(int_type letter) override {
    if (traits_type::eq_int_type(letter, traits_type::eof())) return traits_type::not_eof(letter);
    const char byte = traits_type::to_char_type(letter);
    return xsputn(&byte, 1) == 1 ? letter : traits_type::eof();
  }
  std::streamsize xsputn(const char* bytes, std::streamsize size) override {
    MutexLock hold(&mu_);
    if (own_ == nullptr) return 0;
    const std::streamsize put = own_->sputn(bytes, size);
    for (RunLog* log : logs_) log->Write(is_stderr_, {bytes, static_cast<std::size_t>(put)});
    return put;
  }
  int sync() override {
    MutexLock hold(&mu_);
    return own_ == nullptr ? 0 : own_->pubsync();
  }

 private:
  std::ostream* const stream_;
  const bool is_stderr_;
  Mutex mu_;
  std::streambuf* own_ GUARDED_BY(mu_) = nullptr;  // null: the stream has its own
  std::vector<RunLog*> logs_ GUARDED_BY(mu_);
};

struct Copies {
  StreamCopy out{&std::cout, false};
  StreamCopy err{&std::cerr, true};
  StreamCopy log{&std::clog, true};
};

Copies& AllCopies() {
  static auto* const copies = new Copies();  // streams are written to until the very end
  return *copies;
}

}  // namespace

class RunOutput::Impl {
 public:
  Impl(RunClient* client, int rank) : log_({.client = client, .rank = rank}) {
    AllCopies().out.Add(&log_);
    AllCopies().err.Add(&log_);
    AllCopies().log.Add(&log_);
  }
  ~Impl() {
    AllCopies().out.Remove(&log_);
    AllCopies().err.Remove(&log_);
    AllCopies().log.Remove(&log_);
  }

 private:
  RunLog log_;
};

RunOutput::RunOutput(RunClient* client, int rank) : impl_(std::make_unique<Impl>(client, rank)) {}
RunOutput::~RunOutput() = default;

}  // namespace cairn
