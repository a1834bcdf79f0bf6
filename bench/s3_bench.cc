// What bench/s3.py measures of the store on S3, one thing per process:
//   s3_bench put URL NAME BYTES PART CONNECTIONS     s3_bench get URL NAME BYTES PART CONNECTIONS
//   s3_bench save URL BYTES PART CONNECTIONS         s3_bench restore URL BYTES PART CONNECTIONS
//   s3_bench fill URL COUNT                          s3_bench list URL
// Prints a JSON object: seconds, and the most memory that the process has had, in bytes; of save
// and restore what it has had above the state itself.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/clock.h"
#include "base/ids.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/repository.h"
#include "checkpoint/shelves.h"
#include "format/manifest.h"
#include "format/records.h"
#include "storage/open_store.h"

namespace cairn {
namespace {

constexpr std::size_t kBuffers = 8;

std::uint64_t BytesOf(std::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) {
      return std::strtoull(line.c_str() + field.size(), nullptr, 10) << 10;
    }
  }
  return 0;
}
std::uint64_t PeakBytes() { return BytesOf("VmHWM:"); }

double Since(Clock::Duration begin) {
  return std::chrono::duration<double>(Clock::System()->Now() - begin).count();
}

/// Buffers of a part each, touched; random enough not to be compressed or deduplicated.
std::vector<std::byte> TouchedBuffers(std::size_t part) {
  std::vector<std::byte> memory(part * kBuffers);
  std::uint64_t x = 88172645463325252u;
  for (std::size_t i = 0; i + 8 <= memory.size(); i += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(memory.data() + i, &x, 8);
  }
  return memory;
}

Status Put(Store* store, const std::string& name, std::uint64_t bytes, double* seconds) {
  auto session = store->NewWriteSession(WriteMode::kAuto);
  if (!session.ok()) return session.status();
  const std::size_t part = (*session)->part_bytes();
  std::vector<std::byte> memory = TouchedBuffers(part);
  const Clock::Duration begin = Clock::System()->Now();
  auto object = (*session)->Open(name, {.bytes = bytes});
  if (!object.ok()) return object.status();
  std::vector<std::size_t> free;
  for (std::size_t i = 0; i < kBuffers; ++i) free.push_back(i);
  for (std::uint64_t at = 0; at < bytes; at += part) {
    while (free.empty()) {
      auto tag = (*session)->WaitPart();
      if (!tag.ok()) return tag.status();
      free.push_back(*tag);
    }
    const std::size_t buffer = free.back();
    free.pop_back();
    const std::span<const std::byte> piece(memory.data() + buffer * part,
                                           std::min<std::uint64_t>(part, bytes - at));
    if (Status s = (*session)->Append(*object, piece, true, buffer); !s.ok()) return s;
  }
  if (Status s = (*session)->Close(*object); !s.ok()) return s;
  if (Status s = (*session)->Drain(); !s.ok()) return s;
  *seconds = Since(begin);
  return Status::Ok();
}

Status Get(Store* store, const std::string& name, std::size_t part, double* seconds) {
  std::vector<std::byte> memory = TouchedBuffers(part);
  const Clock::Duration begin = Clock::System()->Now();
  auto reader = store->OpenReader(name);
  if (!reader.ok()) return reader.status();
  auto queue = store->NewReadQueue(kBuffers);
  if (!queue.ok()) return queue.status();
  const std::uint64_t bytes = (*reader)->bytes();
  std::uint64_t at = 0;
  std::size_t next = 0;
  while (at < bytes || (*queue)->in_flight() > 0) {
    std::size_t buffer = next;
    if (at >= bytes || next == kBuffers) {
      auto done = (*queue)->Wait();
      if (!done.ok()) return done.status();
      if (!done->status.ok()) return done->status;
      buffer = done->tag;
      if (at >= bytes) continue;
    } else {
      ++next;
    }
    const std::span<std::byte> into(memory.data() + buffer * part, part);
    if (Status s = (*queue)->Submit(reader->get(), at, into, buffer); !s.ok()) return s;
    at += part;
  }
  *seconds = Since(begin);
  return Status::Ok();
}

/// A state of 64 tensors, through the manager: saved without a snapshot, which is the caller's to
/// pay for, or restored in place.
Status Transfer(const std::string& url, const StorageOptions& storage, bool save,
                std::uint64_t bytes, double* seconds, std::uint64_t* above) {
  constexpr std::size_t kTensors = 64;
  const std::uint64_t each = bytes / kTensors;
  std::vector<std::vector<std::uint8_t>> tensors;
  for (std::size_t i = 0; i < kTensors; ++i) {
    tensors.emplace_back(each, static_cast<std::uint8_t>(i + 1));
  }
  const std::uint64_t before = BytesOf("VmRSS:");
  if (!(std::ofstream("/proc/self/clear_refs") << 5 << std::flush)) {
    return UnavailableError("the peak of memory cannot be reset");
  }
  const Clock::Duration begin = Clock::System()->Now();
  auto manager =
      CheckpointManager::Open({.directory = url, .storage = storage, .low_memory = true});
  if (!manager.ok()) return manager.status();
  if (save) {
    SaveRequest request{.step = 1};
    for (std::size_t i = 0; i < kTensors; ++i) {
      request.tensors.push_back({.name = "w" + std::to_string(i),
                                 .dtype = DType::kU8,
                                 .shape = {each},
                                 .data = tensors[i].data()});
    }
    auto handle = (*manager)->Save(std::move(request));
    if (!handle.ok()) return handle.status();
    if (auto info = handle->Wait(); !info.ok()) return info.status();
  } else {
    RestoreRequest request;
    for (std::size_t i = 0; i < kTensors; ++i) {
      request.into.push_back({.name = "w" + std::to_string(i),
                              .dtype = DType::kU8,
                              .shape = {each},
                              .data = tensors[i].data()});
    }
    auto restored = (*manager)->Restore(request);
    if (!restored.ok()) return restored.status();
    if (!*restored) return NotFoundError("there is nothing to restore");
  }
  *seconds = Since(begin);
  *above = PeakBytes() - std::min(PeakBytes(), before);
  return (*manager)->Close();
}

/// What a checkpoint of one process has besides its manifest.
constexpr const char* kObjects[] = {".cairn-attempt", "__model__/model.safetensors.index.json",
                                    "__model__/rank_0-00001.safetensors", "rank_0/state.json"};

/// A repository of so many checkpoints, whose files hold nothing.
Status Fill(Store* store, std::uint64_t count) {
  RepositoryRecord record;
  record.job = "bench";
  if (Status s = store->Put(std::string(names::kRepository), Encode(record)); !s.ok()) return s;
  SealRecord seal;
  seal.generation = 1;
  seal.uuid = IdSource::System()->NewUuid();
  if (Status s = store->Put(names::Seal(1), Encode(seal)); !s.ok()) return s;
  std::vector<Status> statuses(count);
  ForEachRequest(*store, count, [&](std::size_t i) {
    Manifest manifest;
    manifest.id = IdSource::System()->NewUuid();
    manifest.job = "bench";
    manifest.attempt = IdSource::System()->NewUuid();
    manifest.generation = 1;
    manifest.sequence = i + 1;
    manifest.step = static_cast<std::int64_t>(i);
    const std::string directory = names::CheckpointDirectory(false, false, manifest.step, 1);
    for (const char* object : kObjects) {
      statuses[i] = store->Put(names::Path(directory, object), "{}");
      if (!statuses[i].ok()) return;
    }
    statuses[i] = store->Put(names::Path(directory, names::kManifest), EncodeManifest(manifest));
  });
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  // As the next opening for writing would, and a training that goes on does after 256 saves.
  return TidyShelves(store, IdSource::System());
}

Status List(Store* store, double* names_seconds, double* seconds, std::size_t* count) {
  Clock::Duration begin = Clock::System()->Now();
  auto listing = store->List("");
  if (!listing.ok()) return listing.status();
  *names_seconds = Since(begin);
  begin = Clock::System()->Now();
  auto view = RepositoryReader(store).Read();
  if (!view.ok()) return view.status();
  *seconds = Since(begin);
  *count = view->checkpoints.size();
  return Status::Ok();
}

int Main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const bool transfer = (command == "put" || command == "get") && argc == 7;
  const bool whole = (command == "save" || command == "restore") && argc == 6;
  if (!transfer && !whole && !(command == "fill" && argc == 4) &&
      !(command == "list" && argc == 3)) {
    std::fprintf(stderr,
                 "s3_bench put|get URL NAME BYTES PART CONNECTIONS | save|restore URL BYTES PART "
                 "CONNECTIONS | fill URL N | list URL\n");
    return 2;
  }
  OpenStoreOptions options;
  if (transfer || whole) {
    options.storage.part_bytes = std::strtoull(argv[argc - 2], nullptr, 10);
    options.storage.connections = std::atoi(argv[argc - 1]);
  }
  auto store = OpenStore(argv[2], options);
  Status status = store.status();
  double seconds = 0;
  double names_seconds = 0;
  std::size_t count = 0;
  std::uint64_t peak = 0;
  if (store.ok() && whole) {
    status = Transfer(argv[2], options.storage, command == "save",
                      std::strtoull(argv[3], nullptr, 10), &seconds, &peak);
  } else if (store.ok() && command == "put") {
    status = Put(store->get(), argv[3], std::strtoull(argv[4], nullptr, 10), &seconds);
  } else if (store.ok() && command == "get") {
    status = Get(store->get(), argv[3], options.storage.part_bytes, &seconds);
  } else if (store.ok() && command == "fill") {
    status = Fill(store->get(), std::strtoull(argv[3], nullptr, 10));
  } else if (store.ok()) {
    status = List(store->get(), &names_seconds, &seconds, &count);
  }
  if (!status.ok()) {
    std::fprintf(stderr, "s3_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  std::printf(
      "{\"seconds\": %.6f, \"names_seconds\": %.6f, \"count\": %zu, \"peak_bytes\": %llu}\n",
      seconds, names_seconds, count, static_cast<unsigned long long>(whole ? peak : PeakBytes()));
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main(argc, argv); }
