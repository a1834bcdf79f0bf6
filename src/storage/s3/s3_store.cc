#include "storage/s3/s3_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "storage/s3/crc32c.h"
#include "storage/s3/s3_copy.h"
#include "storage/s3/s3_reader.h"
#include "storage/s3/s3_replies.h"
#include "storage/s3/s3_uploads.h"
#include "storage/s3/s3_write_session.h"

namespace cairn {
namespace {

constexpr std::string_view kTemporaryPrefix = ".cairn-tmp";

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Status ValidatePrefix(const std::string& prefix) {
  return prefix.empty() ? Status::Ok() : ValidateObjectName(prefix);
}

/// The header's number, or nullopt.
std::optional<std::uint64_t> Length(const HttpResponse& response) {
  const std::string_view text = response.Header("content-length");
  std::uint64_t bytes = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), bytes);
  if (text.empty() || parsed.ec != std::errc()) return std::nullopt;
  return bytes;
}

}  // namespace

Result<std::unique_ptr<Store>> OpenS3Store(const std::string& url, const StorageOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<S3Store> store, S3Store::Open({.url = url, .storage = options}));
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<S3Store>> S3Store::Open(Options options) {
  ASSIGN_OR_RETURN(S3Config config,
                   MakeS3Config(options.url, options.storage, options.environment.variables));
  ASSIGN_OR_RETURN(std::shared_ptr<S3Client> client,
                   S3Client::Open(std::move(config), options.environment));
  return std::unique_ptr<S3Store>(new S3Store(std::move(options), std::move(client)));
}

StoreTraits S3Store::traits() const {
  return {.create_only = create_only_.load() != CreateOnly::kIgnored,
          .resumes = true,
          .parallel_requests = client_->config().connections};
}

// ---------------------------------------------------------------- whole objects

S3Request S3Store::PutRequest(const std::string& name, std::string_view bytes) const {
  S3Request request{.what = "put", .method = "PUT", .key = KeyOf(name), .body = AsBytes(bytes)};
  request.headers.push_back({"x-amz-checksum-crc32c", Crc32cText(Crc32c(AsBytes(bytes)))});
  return request;
}

Status S3Store::Put(const std::string& name, std::string_view bytes) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  return client_->Expect(PutRequest(name, bytes)).status();
}

Status S3Store::Create(const std::string& name, std::string_view bytes) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  RETURN_IF_ERROR(EnsureCreateOnly());
  if (create_only_.load() == CreateOnly::kIgnored) return CreateUnguarded(name, bytes);
  S3Request request = PutRequest(name, bytes);
  request.headers.push_back({"If-None-Match", "*"});
  // "Exists" after a lost answer may be our own doing. It is reported all the same: who publishes a
  // record reads it back and knows its own.
  return client_->Expect(std::move(request)).status();
}

Status S3Store::CreateUnguarded(const std::string& name, std::string_view bytes) {
  const auto there = Head(name);
  if (there.ok()) {
    return AlreadyExistsError("create \"" + Describe() + "/" + name + "\": it exists");
  }
  if (!there.status().Is(Code::kNotFound)) return there.status();
  return client_->Expect(PutRequest(name, bytes)).status();
}

Result<std::string> S3Store::Get(const std::string& name, std::uint64_t limit) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  S3Request request{.what = "read", .key = KeyOf(name), .max_body_bytes = limit};
  request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  // Errors have bodies too.
  constexpr std::uint64_t kErrorBytes = 64u << 10;
  request.max_body_bytes = std::max(limit, kErrorBytes);
  ASSIGN_OR_RETURN(HttpResponse response, client_->Expect(std::move(request)));
  if (response.body.size() > limit) {
    return ResourceExhaustedError(fmt::format("read \"{}/{}\": has {} bytes, at most {} are read",
                                              Describe(), name, response.body.size(), limit));
  }
  // Of an object that came in parts only a checksum of checksums is known ("…-3").
  const std::string_view sent = response.Header("x-amz-checksum-crc32c");
  const bool whole = !sent.empty() && sent.find('-') == sent.npos &&
                     response.Header("x-amz-checksum-type") != "COMPOSITE";
  if (whole && sent != Crc32cText(Crc32c(AsBytes(response.body)))) {
    return CorruptionError("read \"" + Describe() + "/" + name +
                           "\": the bytes do not have the checksum that the server has of them");
  }
  return std::move(response.body);
}

Status S3Store::BucketIsThere() {
  return client_
      ->Expect({.what = "list",
                .query = {{"list-type", "2"}, {"max-keys", "1"}, {"prefix", KeyOf("cairn.json")}}})
      .status();
}

Result<HttpResponse> S3Store::Head(const std::string& name) {
  S3Request request{.what = "look up", .method = "HEAD", .key = KeyOf(name)};
  auto response = client_->Expect(std::move(request));
  // An answer without a body does not tell a missing object from a missing bucket.
  if (response.status().Is(Code::kNotFound)) RETURN_IF_ERROR(BucketIsThere());
  return response;
}

Result<ObjectInfo> S3Store::Stat(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  ASSIGN_OR_RETURN(const HttpResponse response, Head(name));
  const auto bytes = Length(response);
  if (!bytes) {
    return CorruptionError("look up \"" + Describe() + "/" + name + "\": the size is missing");
  }
  return ObjectInfo{.name = name, .bytes = *bytes};
}

Result<Listing> S3Store::List(const std::string& prefix) {
  std::atomic<std::size_t> count = 0;
  ASSIGN_OR_RETURN(Pages pages, ListPages(prefix, /*deep=*/false, {},
                                          std::numeric_limits<std::size_t>::max(), &count));
  Listing listing;
  listing.prefixes = std::move(pages.prefixes);
  listing.objects.reserve(pages.objects.size());
  for (TaggedObject& object : pages.objects) {
    listing.objects.push_back({.name = std::move(object.name), .bytes = object.bytes});
  }
  return listing;
}

Result<std::vector<TaggedObject>> S3Store::ListBelow(const std::string& prefix, std::size_t limit) {
  std::atomic<std::size_t> count = 0;
  ASSIGN_OR_RETURN(Pages pages, ListPages(prefix, /*deep=*/true, {}, limit, &count));
  return std::move(pages.objects);
}

Result<std::vector<TaggedObject>> S3Store::ListAll(const std::vector<std::string>& directories,
                                                   std::size_t limit) {
  // A page holds 1,000 objects, and each page is asked for with what the one before it said: parts
  // of fewer directories would hardly be more than a page.
  constexpr std::size_t kLeastDirectories = 250;
  const std::string root = KeyOf("").empty() ? "" : KeyOf("") + "/";
  std::vector<std::string> keys;
  keys.reserve(directories.size());
  for (const std::string& directory : directories) keys.push_back(root + directory + "/");
  std::sort(keys.begin(), keys.end());
  const std::size_t parts = std::clamp<std::size_t>(
      keys.size() / kLeastDirectories, 1, static_cast<std::size_t>(client_->config().connections));
  std::vector<Result<Pages>> pages(parts, Pages());
  std::atomic<std::size_t> count = 0;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < parts; ++i) {
      threads.emplace_back([&, i] {
        const auto key = [&](std::size_t part) { return keys[part * keys.size() / parts]; };
        const KeyRange range{.after = i == 0 ? "" : key(i),
                             .before = i + 1 == parts ? "" : key(i + 1)};
        pages[i] = ListPages("", /*deep=*/true, range, limit, &count);
      });
    }
  }
  std::vector<TaggedObject> all;
  all.reserve(count);
  for (Result<Pages>& part : pages) {
    RETURN_IF_ERROR(part.status());
    std::move(part->objects.begin(), part->objects.end(), std::back_inserter(all));
  }
  return all;
}

Result<S3Store::Pages> S3Store::ListPages(const std::string& prefix, bool deep,
                                          const KeyRange& range, std::size_t limit,
                                          std::atomic<std::size_t>* count) {
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  const std::string root = KeyOf("").empty() ? "" : KeyOf("") + "/";
  const std::string start = prefix.empty() ? root : KeyOf(prefix) + "/";
  Pages listing;
  std::string token;
  do {
    S3Request request{.what = "list", .key = ""};
    request.query = {{"list-type", "2"}, {"encoding-type", "url"}};
    if (!deep) request.query.emplace_back("delimiter", "/");
    if (!start.empty()) request.query.emplace_back("prefix", start);
    if (!token.empty()) {
      request.query.emplace_back("continuation-token", token);
    } else if (!range.after.empty()) {
      request.query.emplace_back("start-after", range.after);
    }
    ASSIGN_OR_RETURN(const HttpResponse response, client_->Expect(std::move(request)));
    auto page = DecodeListPage(response.body);
    if (!page.ok()) return page.status().WithContext("list \"" + Describe() + "/" + prefix + "\"");
    const auto listable = [&](std::string_view key) {
      return key.starts_with(start) && !key.substr(start.size()).starts_with(kTemporaryPrefix) &&
             ValidateObjectName(key.substr(root.size())).ok();
    };
    bool beyond = false;
    for (S3ListPage::Object& object : page->objects) {
      beyond = !range.before.empty() && object.key >= range.before;
      if (beyond) break;
      if (!listable(object.key)) continue;  // also the "directories" that some tools make
      ++*count;
      listing.objects.push_back({.name = object.key.substr(root.size()),
                                 .bytes = object.bytes,
                                 .tag = std::move(object.etag)});
    }
    for (std::string_view below : page->prefixes) {
      if (below.ends_with('/')) below.remove_suffix(1);
      if (!listable(below)) continue;
      listing.prefixes.emplace_back(below.substr(root.size()));
    }
    if (*count > limit) {
      return ResourceExhaustedError("\"" + Describe() + "/" + prefix + "\" has more than " +
                                    std::to_string(limit) + " objects");
    }
    if (!token.empty() && page->next == token) {
      return CorruptionError("list \"" + Describe() + "/" + prefix + "\": the list does not end");
    }
    token = beyond ? "" : std::move(page->next);
  } while (!token.empty());
  std::sort(listing.objects.begin(), listing.objects.end(),
            [](const TaggedObject& a, const TaggedObject& b) { return a.name < b.name; });
  return listing;
}

Status S3Store::Delete(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  // S3 says "deleted" of what was never there.
  RETURN_IF_ERROR(Head(name).status());
  return client_->Expect({.what = "delete", .method = "DELETE", .key = KeyOf(name)}).status();
}

// ---------------------------------------------------------------- create-only puts

Result<S3Store::CreateOnly> S3Store::Probe() {
  const std::string key =
      KeyOf(std::string(kTemporaryPrefix) + "-probe-" + options_.ids->NewUuid());
  const auto put = [&](std::string_view bytes) {
    S3Request request{.what = "put", .method = "PUT", .key = key, .body = AsBytes(bytes)};
    request.headers.push_back({"If-None-Match", "*"});
    return client_->Expect(std::move(request)).status();
  };
  const Status first = put("1");
  // After a lost answer the first may already find itself, which proves the same.
  if (first.Is(Code::kUnimplemented) || first.Is(Code::kInvalidArgument)) {
    return CreateOnly::kIgnored;
  }
  if (!first.ok() && !first.Is(Code::kAlreadyExists)) return first;
  const Status second = first.ok() ? put("2") : first;
  client_->Expect({.what = "delete", .method = "DELETE", .key = key})
      .status()
      .IgnoreError("a probe that stays is hidden and tiny");
  if (second.Is(Code::kAlreadyExists)) return CreateOnly::kHeeded;
  if (!second.ok()) return second;
  return CreateOnly::kIgnored;
}

Status S3Store::EnsureCreateOnly() {
  CreateOnly known = create_only_.load();
  if (known == CreateOnly::kHeeded) return Status::Ok();
  if (known == CreateOnly::kUnknown) {
    MutexLock lock(&probe_mu_);
    known = create_only_.load();
    if (known == CreateOnly::kUnknown) {
      ASSIGN_OR_RETURN(known, Probe());
      create_only_.store(known);
      if (known == CreateOnly::kIgnored && client_->config().single_writer) {
        LogWarning(Describe() +
                   ": the server has no create-only puts; nothing keeps a second writer out");
      }
    }
  }
  if (known == CreateOnly::kHeeded || client_->config().single_writer) return Status::Ok();
  return FailedPreconditionError(
      "\"" + Describe() + "\": the server at " + client_->config().endpoint +
      " ignores \"If-None-Match: *\", so two writers could destroy each other's checkpoints; use a "
      "server that heeds it, or, if only one process ever writes here, say so with single_writer "
      "(CAIRN_SINGLE_WRITER=1)");
}

// ---------------------------------------------------------------- sessions and readers

Result<std::unique_ptr<WriteSession>> S3Store::NewWriteSession(WriteMode /*mode*/) {
  const S3WriteSession::Options options{
      .conditional = create_only_.load() != CreateOnly::kIgnored,
      .parts = options_.most_parts,
  };
  return std::unique_ptr<WriteSession>(std::make_unique<S3WriteSession>(client_, options));
}

Result<std::unique_ptr<ObjectReader>> S3Store::OpenReader(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  ASSIGN_OR_RETURN(const HttpResponse response, Head(name));
  const auto bytes = Length(response);
  if (!bytes) {
    return CorruptionError("look up \"" + Describe() + "/" + name + "\": the size is missing");
  }
  return std::unique_ptr<ObjectReader>(std::make_unique<S3Reader>(
      client_, name, KeyOf(name), *bytes, std::string(response.Header("etag"))));
}

Result<std::unique_ptr<ReadQueue>> S3Store::NewReadQueue(int depth) {
  if (depth < 1) return InvalidArgumentError("a read queue has a depth of at least 1");
  return std::unique_ptr<ReadQueue>(std::make_unique<S3ReadQueue>(client_, depth));
}

Status S3Store::Adopt(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(ValidateObjectName(from));
  RETURN_IF_ERROR(ValidateObjectName(to));
  ASSIGN_OR_RETURN(const HttpResponse there, Head(from));
  const auto bytes = Length(there);
  if (!bytes) {
    return CorruptionError("look up \"" + Describe() + "/" + from + "\": the size is missing");
  }
  return CopyInBucket(client_.get(), {.from = KeyOf(from),
                                      .to = KeyOf(to),
                                      .bytes = *bytes,
                                      .etag = std::string(there.Header("etag")),
                                      .most_at_once = options_.most_copied_at_once,
                                      .most_parts = options_.most_parts,
                                      .create_only = create_only_.load() != CreateOnly::kIgnored});
}

// ---------------------------------------------------------------- unfinished uploads

Result<std::vector<std::string>> S3Store::ListUnfinished(const std::string& prefix) {
  RETURN_IF_ERROR(ValidatePrefix(prefix));
  const std::string root = KeyOf("").empty() ? "" : KeyOf("") + "/";
  ASSIGN_OR_RETURN(const auto uploads,
                   ListUploads(client_.get(), prefix.empty() ? root : KeyOf(prefix)));
  std::vector<std::string> names;
  for (const S3UploadPage::Upload& upload : uploads) {
    std::string name = upload.key.substr(std::min(root.size(), upload.key.size()));
    const bool below = prefix.empty() || name == prefix || name.starts_with(prefix + "/");
    if (below && ValidateObjectName(name).ok()) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Status S3Store::AbandonUnfinished(const std::string& name) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  const std::string key = KeyOf(name);
  ASSIGN_OR_RETURN(const auto uploads, ListUploads(client_.get(), key));
  for (const S3UploadPage::Upload& upload : uploads) {
    if (upload.key == key) RETURN_IF_ERROR(GiveUpUpload(client_.get(), upload));
  }
  return Status::Ok();
}

// ---------------------------------------------------------------- what buckets do not have

Status S3Store::PruneDirectories(const std::string& prefix) { return ValidatePrefix(prefix); }
Status S3Store::SyncNames(const std::string& prefix, std::string_view /*why*/) {
  return ValidatePrefix(prefix);
}
Status S3Store::Link(const std::string& /*from*/, const std::string& /*to*/) {
  return UnimplementedError("\"" + Describe() + "\": a bucket has no links");
}
Result<std::uint64_t> S3Store::LinkCount(const std::string& name) {
  RETURN_IF_ERROR(Stat(name).status());
  return std::uint64_t{1};
}
Result<bool> S3Store::MoveToPool(const std::string& /*name*/, const std::string& /*pool_name*/) {
  return false;
}
Result<std::unique_ptr<StoreLock>> S3Store::TryLock(const std::string& /*name*/) {
  return UnimplementedError("\"" + Describe() + "\": a bucket has no locks");
}
Result<std::optional<std::uint64_t>> S3Store::FreeBytes() { return std::optional<std::uint64_t>(); }
Status S3Store::Refresh(const std::string& /*prefix*/) { return Status::Ok(); }

}  // namespace cairn
