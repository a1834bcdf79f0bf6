#include "cli/raw_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>
#include <span>
#include <system_error>

#include "base/ids.h"
#include "base/status_macros.h"
#include "cli/console.h"
#include "storage/local/object_path.h"
#include "storage/local/posix_fs.h"

namespace cairn::cli {
namespace {

constexpr int kDepth = 6;

}  // namespace

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Status ScratchDirectory::Make(const std::string& directory, std::string_view purpose) {
  const std::string path = JoinPath(
      directory, fmt::format("{}-{}-{}", kTemporaryPrefix, purpose, IdSource::System()->NewUuid()));
  RETURN_IF_ERROR(PosixFs()->MakeDirectory(path));
  path_ = path;
  return Status::Ok();
}

std::string ScratchDirectory::operator/(std::string_view name) const {
  return JoinPath(path_, name);
}

void RawFiles::FreeAligned::operator()(std::byte* p) const {
  ::operator delete(p, std::align_val_t{kAlign});
}

RawFiles::RawFiles(Clock* clock) : clock_(clock) {
  memory_.reset(static_cast<std::byte*>(::operator new(kPart * kDepth, std::align_val_t{kAlign})));
  // Touched, and not compressible by whatever lies below.
  std::uint64_t state = 88172645463325252u;
  for (std::size_t i = 0; i < kPart * kDepth; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(memory_.get() + i, &state, 8);
  }
}

Result<double> RawFiles::Write(const std::string& path, std::uint64_t bytes, bool direct,
                               bool fresh) {
  const Clock::Duration begun = clock_->Now();
  ASSIGN_OR_RETURN(const std::unique_ptr<FsFile> file,
                   PosixFs()->Open(path, {.write = true, .create = fresh, .direct = direct}));
  RETURN_IF_ERROR(Move(file.get(), bytes, /*write=*/true, direct));
  RETURN_IF_ERROR(file->Sync("measured"));
  return Rate(bytes, begun);
}

Result<double> RawFiles::Read(const std::string& path, std::uint64_t bytes, bool direct) {
  ASSIGN_OR_RETURN(const std::unique_ptr<FsFile> file, PosixFs()->Open(path, {.direct = direct}));
  file->DropCache(0, bytes);
  const Clock::Duration begun = clock_->Now();
  RETURN_IF_ERROR(Move(file.get(), bytes, /*write=*/false, direct));
  return Rate(bytes, begun);
}

double RawFiles::Rate(std::uint64_t bytes, Clock::Duration begun) const {
  const double seconds = std::chrono::duration<double>(clock_->Now() - begun).count();
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

Status RawFiles::Move(FsFile* file, std::uint64_t bytes, bool write, bool direct) {
  ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, PosixFs()->NewQueue(kDepth));
  std::vector<std::uint64_t> free;
  for (std::uint64_t i = 0; i < kDepth; ++i) free.push_back(i);
  const auto wait = [&]() -> Status {
    ASSIGN_OR_RETURN(const IoQueue::Done done, queue->Wait());
    free.push_back(done.tag);
    return done.status;
  };
  for (std::uint64_t at = 0; at < bytes; at += kPart) {
    if (Console::interrupted()) return CancelledError("interrupted");
    if (free.empty()) RETURN_IF_ERROR(wait());
    const std::uint64_t slot = free.back();
    free.pop_back();
    const std::span<std::byte> part(memory_.get() + slot * kPart,
                                    std::min<std::uint64_t>(kPart, bytes - at));
    RETURN_IF_ERROR(write ? queue->SubmitWrite(file, at, part, slot)
                          : queue->SubmitRead(file, at, part, slot));
    if (write && !direct) file->StartWriteback(at, part.size());
  }
  while (queue->in_flight() > 0) RETURN_IF_ERROR(wait());
  return Status::Ok();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace cairn::cli
