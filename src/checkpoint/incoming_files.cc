#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/transfer.h"
#include "storage/adopting_store.h"

// The files of a checkpoint that comes from elsewhere. Of a copy that was cut short they come about
// in three ways, each for what the one before could not take:
//
//  1. Adopt.   What arrived whole is given its new name.
//  2. Resume.  What was left unfinished is finished where it was left, because an upload cannot
//              change its key, and is then given its new name too.
//  3. Write.   The rest.

namespace cairn {

Result<bool> HasBytes(Store* store, const std::string& name, const FileHash& hash,
                      std::size_t first, const std::function<bool()>& cancelled) {
  const auto opened = store->OpenReader(name);
  if (opened.status().Is(Code::kNotFound)) return false;
  if (!opened.ok()) return opened.status();
  ObjectReader* const reader = opened->get();
  if (reader->bytes() != hash.bytes) return false;
  FileHasher hasher;
  std::vector<std::byte> block(std::min<std::uint64_t>(hash.bytes, kChunkBytes));
  for (std::size_t chunk = first; chunk < hash.chunks.size(); ++chunk) {
    if (cancelled && cancelled()) return CancelledError("interrupted");
    const std::uint64_t offset = std::uint64_t{chunk} * kChunkBytes;
    const std::span<std::byte> piece(block.data(),
                                     std::min<std::uint64_t>(block.size(), hash.bytes - offset));
    RETURN_IF_ERROR(reader->Read(offset, piece));
    if (Xxh3(piece) != hash.chunks[chunk]) return false;
    hasher.Update(piece);
  }
  return first > 0 || hasher.Finish() == hash;
}

namespace {

/// Gives a whole file, `from`, the name `to`. False when it is gone, cannot be taken over, or
/// (`compare`: found by reading it, else by its size) is not what it has to be.
Result<bool> GiveName(Store* store, AdoptingStore* adopting, const std::string& from,
                      const std::string& to, const FileHash& hash, bool compare) {
  const Status adopted = adopting->Adopt(from, to);
  if (adopted.Is(Code::kNotFound) || adopted.Is(Code::kUnimplemented) ||
      adopted.Is(Code::kResourceExhausted)) {
    return false;
  }
  RETURN_IF_ERROR(adopted);
  if (compare) {
    ASSIGN_OR_RETURN(const bool whole, HasBytes(store, to, hash));
    if (whole) return true;
  } else {
    const auto arrived = store->Stat(to);
    if (!arrived.ok() && !arrived.status().Is(Code::kNotFound)) return arrived.status();
    if (arrived.ok() && arrived->bytes == hash.bytes) return true;
  }
  const Status deleted = store->Delete(to);
  if (!deleted.ok() && !deleted.Is(Code::kNotFound)) return deleted;
  return false;
}

/// Gives `from`, what an earlier copy left, the name `to`. False when it is not there, not whole,
/// or cannot be taken over.
Result<bool> TakeOver(Store* store, AdoptingStore* adopting, const std::string& from,
                      const std::string& to, const FileHash& hash) {
  const auto there = store->Stat(from);
  if (there.status().Is(Code::kNotFound)) return false;
  if (!there.ok()) return there.status();
  if (there->bytes != hash.bytes) return false;
  if (store->traits().hard_links && hash.chunks.size() > 1) {
    // A file that was cut short lacks its end: it has one name, to be resumed under, and is not
    // read twice.
    ASSIGN_OR_RETURN(const bool ends, HasBytes(store, from, hash, hash.chunks.size() - 1));
    if (!ends) return false;
  }
  return GiveName(store, adopting, from, to, hash, /*compare=*/store->traits().hard_links);
}

/// Whether a file that is visible while it is written may be unfinished: with a second name it is
/// whole, or an earlier copy was about to find out.
Result<bool> HasOneName(Store* store, const std::string& name) {
  const auto names = store->LinkCount(name);
  if (names.status().Is(Code::kNotFound)) return false;
  if (!names.ok()) return names.status();
  return *names == 1;
}

/// `listed`: all that the store calls unfinished, in order.
Result<bool> IsUnfinished(Store* store, const std::vector<std::string>& listed,
                          const std::string& name, std::uint64_t bytes) {
  // MinIO lists an upload only when it is asked for by its whole name. A request is worth it for a
  // file that takes many to send.
  constexpr std::uint64_t kWorthAsking = 64u << 20;
  if (std::binary_search(listed.begin(), listed.end(), name)) return true;
  if (bytes < kWorthAsking) return false;
  ASSIGN_OR_RETURN(const std::vector<std::string> found, store->ListUnfinished(name));
  return std::binary_search(found.begin(), found.end(), name);
}

}  // namespace

PlannedFile* IncomingFiles::Add(std::string path, std::string part, std::uint64_t bytes,
                                const FileHash* expected) {
  PlannedFile file;
  file.path = std::move(path);
  file.bytes = bytes;
  file.streamed = true;
  plan_.total_bytes += bytes;
  plan_.files.push_back(std::move(file));
  parts_.push_back(std::move(part));
  expected_.push_back(expected == nullptr ? std::nullopt : std::optional(*expected));
  left_.emplace_back();
  return &plan_.files.back();
}

void IncomingFiles::AddCopy(std::string path, std::string part, const FileHash& hash,
                            std::unique_ptr<TensorSource> source, std::vector<std::string> left) {
  PlannedFile* file = Add(std::move(path), std::move(part), hash.bytes, &hash);
  left_.back() = std::move(left);
  PlannedTensor tensor;
  tensor.index = request_.tensors.size();
  tensor.bytes = hash.bytes;
  file->tensors.push_back(std::move(tensor));
  request_.tensors.push_back({.name = file->path, .source = source.get()});
  sources_.push_back(std::move(source));
}

void IncomingFiles::AddBytes(std::string path, std::string part, std::string bytes) {
  PlannedFile* file = Add(std::move(path), std::move(part), bytes.size(), nullptr);
  file->head = std::move(bytes);
}

void IncomingFiles::AddTensors(std::string path, std::string part, std::string head,
                               const std::vector<TensorEntry>& entries,
                               std::vector<std::unique_ptr<TensorSource>> sources) {
  const std::uint64_t data = entries.empty() ? 0 : entries.back().end;
  PlannedFile* file = Add(std::move(path), std::move(part), head.size() + data, nullptr);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    PlannedTensor tensor;
    tensor.index = request_.tensors.size();
    tensor.stored_name = entries[i].name;
    tensor.file_offset = head.size() + entries[i].begin;
    tensor.bytes = entries[i].end - entries[i].begin;
    file->tensors.push_back(std::move(tensor));
    request_.tensors.push_back({.name = entries[i].name, .source = sources[i].get()});
    sources_.push_back(std::move(sources[i]));
  }
  file->head = std::move(head);
}

std::uint64_t IncomingFiles::RoomNeeded(bool links) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    if (!links || left_[i].empty()) bytes += plan_.files[i].bytes;
  }
  return bytes;
}

Result<std::vector<ManifestFile>> IncomingFiles::Adopt(const Environment& env,
                                                       const std::string& directory,
                                                       const TransferControl& control,
                                                       std::vector<std::string>* created) {
  AdoptingStore* const adopting = FindAdopting(env.store.get());
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    if (!left_[i].empty()) candidates.push_back(i);
  }
  if (adopting == nullptr || candidates.empty()) return std::vector<ManifestFile>();
  for (const std::size_t i : candidates) {
    created->push_back(names::Path(directory, plan_.files[i].path));
  }
  std::vector<Result<bool>> outcomes(candidates.size(), false);
  ForEachRequest(*env.store, candidates.size(), [&](std::size_t c) {
    const std::size_t i = candidates[c];
    const std::string to = names::Path(directory, plan_.files[i].path);
    for (const std::string& from : left_[i]) {
      if (control.cancelled && control.cancelled()) {
        outcomes[c] = CancelledError("interrupted");
        return;
      }
      env.Step("copy: adopt");
      outcomes[c] = TakeOver(env.store.get(), adopting, from, to, *expected_[i]);
      if (!outcomes[c].ok() || *outcomes[c]) return;
    }
  });
  std::vector<std::size_t> taken;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    RETURN_IF_ERROR(outcomes[c].status());
    if (!*outcomes[c]) continue;
    taken.push_back(candidates[c]);
    progress_before += plan_.files[candidates[c]].bytes;
  }
  return TakeOut(taken);
}

std::vector<ManifestFile> IncomingFiles::TakeOut(const std::vector<std::size_t>& numbers) {
  std::vector<ManifestFile> taken;
  for (auto it = numbers.rbegin(); it != numbers.rend(); ++it) {
    const auto i = static_cast<std::ptrdiff_t>(*it);
    ManifestFile file;
    file.path = plan_.files[*it].path;
    file.part = parts_[*it];
    file.hash = *expected_[*it];
    plan_.total_bytes -= file.hash.bytes;
    taken.push_back(std::move(file));
    plan_.files.erase(plan_.files.begin() + i);
    parts_.erase(parts_.begin() + i);
    expected_.erase(expected_.begin() + i);
    left_.erase(left_.begin() + i);
  }
  return taken;
}

Result<std::map<std::string, std::vector<std::size_t>>> IncomingFiles::FindUnfinished(
    const Environment& env) {
  Store* const store = env.store.get();
  const bool visible = store->traits().hard_links;
  std::vector<std::string> listed;
  if (!visible) {
    ASSIGN_OR_RETURN(listed, store->ListUnfinished(""));
  }
  std::map<std::string, std::vector<std::size_t>> found;
  for (std::size_t i = 0; i < left_.size(); ++i) {
    for (const std::string& name : left_[i]) {
      ASSIGN_OR_RETURN(const bool left,
                       visible ? HasOneName(store, name)
                               : IsUnfinished(store, listed, name, plan_.files[i].bytes));
      if (!left) continue;
      found[name.substr(0, name.size() - plan_.files[i].path.size() - 1)].push_back(i);
      break;
    }
  }
  return found;
}

Result<std::vector<ManifestFile>> IncomingFiles::Resume(const Environment& env,
                                                        const std::string& directory,
                                                        const TransferControl& control,
                                                        std::vector<std::string>* created,
                                                        std::uint64_t* bytes_kept) {
  Store* const store = env.store.get();
  AdoptingStore* const adopting = FindAdopting(store);
  const bool none =
      std::all_of(left_.begin(), left_.end(), [](const auto& l) { return l.empty(); });
  if (none || adopting == nullptr || !store->traits().resumes) return std::vector<ManifestFile>();
  ASSIGN_OR_RETURN(const auto found, FindUnfinished(env));
  std::vector<std::size_t> taken;
  for (const auto& [left_in, numbers] : found) {
    SavePlan plan;
    std::vector<std::optional<FileHash>> expected;
    for (const std::size_t i : numbers) {
      plan.files.push_back(plan_.files[i]);
      plan.total_bytes += plan_.files[i].bytes;
      expected.push_back(expected_[i]);
    }
    env.Step("copy: resume");
    WriteProgress progress;
    WrittenFiles written;
    const Status status =
        WriteSome(env, plan, expected, left_in, /*resume=*/true, control, &progress, &written);
    if (WasCutShort(status) || status.Is(Code::kCorruption)) return status;
    if (!status.ok()) {  // its process lives after all, and ended or gave up what it had begun
      LogInfo("what an earlier copy left unfinished is copied anew: " + status.ToString());
      continue;
    }
    std::size_t given_names = 0;
    for (const std::size_t i : numbers) {
      const std::string to = names::Path(directory, plan_.files[i].path);
      created->push_back(to);
      ASSIGN_OR_RETURN(const bool given,
                       GiveName(store, adopting, names::Path(left_in, plan_.files[i].path), to,
                                *expected_[i], /*compare=*/false));
      if (!given) continue;  // Write is left with it
      ++given_names;
      taken.push_back(i);
      progress_before += plan_.files[i].bytes;
    }
    if (given_names == numbers.size()) *bytes_kept += progress.kept;
  }
  std::sort(taken.begin(), taken.end());
  return TakeOut(taken);
}

Status IncomingFiles::WriteSome(const Environment& env, const SavePlan& plan,
                                const std::vector<std::optional<FileHash>>& expected,
                                const std::string& directory, bool resume,
                                const TransferControl& control, WriteProgress* progress,
                                WrittenFiles* written) {
  FileWriterInput input;
  input.plan = &plan;
  input.request = &request_;
  input.directory = directory;
  input.expected = &expected;
  input.resume = resume;
  input.leave_unfinished = !copies.empty();
  input.cancelled = [&] {
    if (control.progress) {
      control.progress(progress_before + progress->written,
                       std::max(progress_total, plan_.total_bytes));
    }
    return control.cancelled && control.cancelled();
  };
  StreamRing ring;
  const Status status = WriteFiles(env, input, &ring, progress, written);
  if (status.Is(Code::kCancelled)) return CancelledError("interrupted");
  RETURN_IF_ERROR(status);
  input.cancelled();
  return Status::Ok();
}

Result<std::vector<ManifestFile>> IncomingFiles::Write(const Environment& env,
                                                       const std::string& directory,
                                                       const TransferControl& control,
                                                       std::vector<std::string>* created) {
  WriteProgress progress;
  WrittenFiles written;
  const Status status =
      WriteSome(env, plan_, expected_, directory, /*resume=*/false, control, &progress, &written);
  std::move(written.created.begin(), written.created.end(), std::back_inserter(*created));
  RETURN_IF_ERROR(status);
  for (std::size_t i = 0; i < written.files.size(); ++i) written.files[i].part = parts_[i];
  return std::move(written.files);
}

}  // namespace cairn
