#include "master/checkpoint_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/chain.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/restore_point.h"

namespace cairn::master {
namespace {

using Writer = std::unique_ptr<archive, decltype(&archive_write_free)>;
using Entry = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

/// Where libarchive's bytes go, and why they could not.
struct Sink {
  const std::function<Status(std::string_view)>* write = nullptr;
  Status status;
};

la_ssize_t Pass(archive*, void* to, const void* bytes, size_t size) {
  Sink* const sink = static_cast<Sink*>(to);
  if (sink->status.ok()) {
    sink->status = (*sink->write)(std::string_view(static_cast<const char*>(bytes), size));
  }
  return sink->status.ok() ? static_cast<la_ssize_t>(size) : -1;
}

Status Failed(archive* writer, const Sink& sink) {
  if (!sink.status.ok()) return sink.status;
  const char* text = archive_error_string(writer);
  return InternalError(fmt::format("archive: {}", text == nullptr ? "failed" : text));
}

Status WriteFile(archive* writer, const Sink& sink, const std::string& name, std::int64_t seconds,
                 ObjectReader* reader) {
  const Entry entry(archive_entry_new(), &archive_entry_free);
  archive_entry_set_pathname(entry.get(), name.c_str());
  archive_entry_set_filetype(entry.get(), AE_IFREG);
  archive_entry_set_perm(entry.get(), 0644);
  archive_entry_set_mtime(entry.get(), seconds, 0);
  archive_entry_set_size(entry.get(), static_cast<la_int64_t>(reader->bytes()));
  if (archive_write_header(writer, entry.get()) < ARCHIVE_WARN) return Failed(writer, sink);
  std::vector<std::byte> buffer(1u << 20);
  for (std::uint64_t at = 0; at < reader->bytes();) {
    const auto count = std::min<std::uint64_t>(buffer.size(), reader->bytes() - at);
    const std::span<std::byte> piece(buffer.data(), static_cast<std::size_t>(count));
    RETURN_IF_ERROR(reader->Read(at, piece));
    if (archive_write_data(writer, piece.data(), piece.size()) < 0) return Failed(writer, sink);
    at += count;
  }
  return Status::Ok();
}

/// A checkpoint of which every file is open.
struct Member {
  std::string directory;
  std::unique_ptr<OpenCheckpoint> open;
  std::unique_ptr<ObjectReader> manifest;
};

/// The checkpoint and, before it, those that it builds on.
Result<std::vector<Member>> OpenChain(const PlacedCheckpoint& placed) {
  Store* const store = placed.env.store.get();
  std::vector<Checkpoint> siblings;
  Chain chain = {&placed.checkpoint};
  if (placed.checkpoint.manifest->kind == CheckpointKind::kIncrement) {
    ASSIGN_OR_RETURN(siblings, ReadSiblings(store));
    auto resolved = ChainIndex(siblings).Resolve(placed.checkpoint);
    if (!resolved.ok()) {
      return resolved.status().WithContext("an increment that nothing can open");
    }
    chain = *std::move(resolved);
  }
  std::vector<Member> members;
  for (const Checkpoint* one : chain) {
    Member member{.directory = one->directory, .open = nullptr, .manifest = nullptr};
    ASSIGN_OR_RETURN(member.open, OpenCheckpoint::Open(store, one->directory, one->manifest));
    ASSIGN_OR_RETURN(member.manifest,
                     store->OpenReader(names::Path(one->directory, names::kManifest)));
    members.push_back(std::move(member));
  }
  return members;
}

}  // namespace

Status ArchiveCheckpoint(const std::string& checkpoint, ArchiveFormat format,
                         const std::function<Status()>& begin,
                         const std::function<Status(std::string_view bytes)>& write) {
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(checkpoint));
  ASSIGN_OR_RETURN(const std::vector<Member> members, OpenChain(placed));
  RETURN_IF_ERROR(begin());
  Sink sink{.write = &write, .status = Status::Ok()};
  const Writer writer(archive_write_new(), &archive_write_free);
  if (format == ArchiveFormat::kZip) {
    archive_write_set_format_zip(writer.get());
    // Weights do not compress, and a reader gets them sooner.
    archive_write_set_options(writer.get(), "zip:compression=store");
  } else {
    archive_write_set_format_pax_restricted(writer.get());
    if (format == ArchiveFormat::kTarGz) {
      archive_write_add_filter_gzip(writer.get());
      archive_write_set_options(writer.get(), "gzip:compression-level=1");
    }
  }
  archive_write_set_bytes_per_block(writer.get(), 256 << 10);
  archive_write_set_bytes_in_last_block(writer.get(), 1);
  if (archive_write_open(writer.get(), &sink, nullptr, Pass, nullptr) != ARCHIVE_OK) {
    return Failed(writer.get(), sink);
  }
  for (const Member& member : members) {
    const std::int64_t seconds = member.open->manifest().time / 1'000'000'000;
    for (const OpenFile& file : member.open->files()) {
      RETURN_IF_ERROR(WriteFile(writer.get(), sink, names::Path(member.directory, file.entry->path),
                                seconds, file.reader.get()));
    }
    RETURN_IF_ERROR(WriteFile(writer.get(), sink, names::Path(member.directory, names::kManifest),
                              seconds, member.manifest.get()));
  }
  if (archive_write_close(writer.get()) != ARCHIVE_OK) return Failed(writer.get(), sink);
  return Status::Ok();
}

}  // namespace cairn::master
