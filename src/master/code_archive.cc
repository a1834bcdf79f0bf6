// Archives of code, both ways. libarchive only takes them apart: which names and links are
// acceptable, and how files come to disk, is decided here.
//
// Nothing can leave the root: (1) a path has no "..", and is made of real directories, because
// links are made last, when everything else is there, and a name that is taken is an error; (2) a
// link's target climbs only at its beginning, from a real directory, and not above the root; names
// after that can pass through other links, of which the same holds.
#include "master/code_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"
#include "launch/process_identity.h"
#include "master/glob.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

using Reader = std::unique_ptr<archive, decltype(&archive_read_free)>;
using Writer = std::unique_ptr<archive, decltype(&archive_write_free)>;
using Entry = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

std::string Why(archive* from) {
  const char* text = archive_error_string(from);
  return text == nullptr ? "not an archive" : text;
}

std::string ErrnoText() { return std::strerror(errno); }

/// "./a//b/" → "a/b"; "" for the root. InvalidArgument for what could leave it.
Result<std::string> CleanPath(std::string_view path, const CodeLimits& limits) {
  const auto refuse = [&](std::string_view why) {
    return InvalidArgumentError(fmt::format("the archive has {}: {}", QuoteForMessage(path), why));
  };
  if (path.size() > limits.path_bytes) return refuse("the name is too long");
  if (path.starts_with('/')) return refuse("an absolute name");
  std::string clean;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part == "..") return refuse("\"..\" in a name");
    if (part.size() > 255) return refuse("the name is too long");
    if (part.find('\0') != std::string_view::npos) return refuse("a NUL in a name");
    if (!clean.empty()) clean += '/';
    clean += part;
  }
  return clean;
}

/// What a link at `path` may point to.
Status CheckTarget(std::string_view path, std::string_view target, const CodeLimits& limits) {
  const auto refuse = [&](std::string_view why) {
    return InvalidArgumentError(
        fmt::format("{} is a link to {}: {}", QuoteForMessage(path), QuoteForMessage(target), why));
  };
  if (target.empty() || target.size() > limits.path_bytes) return refuse("not a name");
  if (target.starts_with('/')) return refuse("it leads out of the directory");
  auto depth = std::ranges::count(path, '/');
  bool climbing = true;
  for (std::string_view rest = target; !rest.empty();) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    rest = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      climbing = false;
    } else if (!climbing) {
      return refuse("\"..\" after a name");
    } else if (--depth < 0) {
      return refuse("it leads out of the directory");
    }
  }
  return Status::Ok();
}

Result<CodeEntry> Judge(archive_entry* entry, const CodeLimits& limits) {
  const char* name = archive_entry_pathname_utf8(entry);
  if (name == nullptr) name = archive_entry_pathname(entry);
  if (name == nullptr) return InvalidArgumentError("the archive has a name that cannot be read");
  CodeEntry out;
  ASSIGN_OR_RETURN(out.path, CleanPath(name, limits));
  const auto refuse = [&](std::string_view what) {
    return InvalidArgumentError(
        fmt::format("the archive has {}: {}", QuoteForMessage(out.path), what));
  };
  if (archive_entry_hardlink(entry) != nullptr || archive_entry_hardlink_utf8(entry) != nullptr) {
    return refuse("hard links are not taken");
  }
  switch (archive_entry_filetype(entry)) {
    case AE_IFDIR:
      out.kind = CodeEntry::Kind::kDirectory;
      break;
    case AE_IFREG:
      out.kind = CodeEntry::Kind::kFile;
      out.executable = (archive_entry_perm(entry) & 0111) != 0;
      break;
    case AE_IFLNK: {
      out.kind = CodeEntry::Kind::kLink;
      const char* target = archive_entry_symlink_utf8(entry);
      if (target == nullptr) target = archive_entry_symlink(entry);
      if (target == nullptr) return refuse("a link that cannot be read");
      out.target = target;
      RETURN_IF_ERROR(CheckTarget(out.path, out.target, limits));
      break;
    }
    default:
      return refuse("only files, directories and links are taken");
  }
  if (out.path.empty() && out.kind != CodeEntry::Kind::kDirectory) return refuse("no name");
  return out;
}

/// A file of the directory that is packed.
struct Found {
  std::string path;
  fs::path where;
  fs::file_type type = fs::file_type::regular;
  std::uint64_t bytes = 0;
};

Status Collect(const fs::path& directory, const std::string& prefix, const IgnoreRules& rules,
               const CodeLimits& limits, std::vector<Found>* out) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(*at);
  }
  if (error) {
    return InvalidArgumentError(fmt::format("{}: {}", directory.string(), error.message()));
  }
  for (const fs::directory_entry& entry : entries) {
    const std::string path = prefix + entry.path().filename().string();
    const fs::file_status status = entry.symlink_status(error);
    const bool is_directory = status.type() == fs::file_type::directory;
    if (rules.Ignores(path, is_directory)) continue;
    Found found{.path = path, .where = entry.path(), .type = status.type()};
    if (is_directory) {
      out->push_back(found);
      RETURN_IF_ERROR(Collect(entry.path(), path + "/", rules, limits, out));
    } else if (status.type() == fs::file_type::regular) {
      found.bytes = entry.file_size(error);
      out->push_back(found);
    } else if (status.type() == fs::file_type::symlink) {
      const Status inside =
          CheckTarget(path, fs::read_symlink(entry.path(), error).string(), limits);
      if (!inside.ok()) {
        return InvalidArgumentError(
            fmt::format("{}: name it in .cairnignore to leave it out", inside.message()));
      }
      out->push_back(found);
    } else {
      return InvalidArgumentError(fmt::format(
          "{} is neither file nor directory: name it in .cairnignore to leave it out", path));
    }
    if (out->size() > limits.entries) {
      return ResourceExhaustedError(fmt::format(
          "{} has more than {} files: leave some out with .cairnignore", prefix, limits.entries));
    }
  }
  return Status::Ok();
}

Status TooLarge(std::vector<Found> found, std::uint64_t most) {
  std::ranges::sort(found, std::greater<>(), &Found::bytes);
  std::string largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, found.size()); ++i) {
    largest += fmt::format("{}{} ({} bytes)", i > 0 ? ", " : "", found[i].path, found[i].bytes);
  }
  return ResourceExhaustedError(
      fmt::format("the code is larger than {} bytes; the largest are {}: leave them out with "
                  ".cairnignore",
                  most, largest));
}

la_ssize_t AppendBytes(archive*, void* to, const void* bytes, size_t size) {
  static_cast<std::string*>(to)->append(static_cast<const char*>(bytes), size);
  return static_cast<la_ssize_t>(size);
}

Status WriteOne(archive* to, const Found& found) {
  const Entry entry(archive_entry_new(), &archive_entry_free);
  archive_entry_set_pathname(entry.get(), found.path.c_str());
  archive_entry_set_mtime(entry.get(), 0, 0);
  std::ifstream in;
  if (found.type == fs::file_type::directory) {
    archive_entry_set_filetype(entry.get(), AE_IFDIR);
    archive_entry_set_perm(entry.get(), 0755);
  } else if (found.type == fs::file_type::symlink) {
    std::error_code error;
    archive_entry_set_filetype(entry.get(), AE_IFLNK);
    archive_entry_set_perm(entry.get(), 0777);
    archive_entry_set_symlink(entry.get(), fs::read_symlink(found.where, error).c_str());
  } else {
    struct stat status{};
    in.open(found.where, std::ios::binary);
    if (!in || stat(found.where.c_str(), &status) != 0) {
      return InvalidArgumentError(fmt::format("{} cannot be read: {}", found.path, ErrnoText()));
    }
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), (status.st_mode & 0100) != 0 ? 0755 : 0644);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(found.bytes));
  }
  if (archive_write_header(to, entry.get()) < ARCHIVE_WARN) {
    return InternalError(fmt::format("{}: {}", found.path, Why(to)));
  }
  if (found.type != fs::file_type::regular) return Status::Ok();
  std::vector<char> buffer(256u << 10);
  std::uint64_t left = found.bytes;
  while (left > 0) {
    in.read(buffer.data(),
            static_cast<std::streamsize>(std::min<std::uint64_t>(left, buffer.size())));
    const auto got = static_cast<std::uint64_t>(in.gcount());
    if (got == 0) return UnavailableError(fmt::format("{} changes while it is read", found.path));
    if (archive_write_data(to, buffer.data(), got) < 0) return InternalError(Why(to));
    left -= got;
  }
  return Status::Ok();
}

Status SeenTwice(std::string_view path) {
  return InvalidArgumentError(
      fmt::format("the archive has {} twice, or as two things", QuoteForMessage(path)));
}

/// The names of an archive: each is one thing, and only directories have something below them.
class Names {
 public:
  Status Add(const CodeEntry& entry) {
    for (std::size_t at = entry.path.find('/'); at != std::string::npos;
         at = entry.path.find('/', at + 1)) {
      std::string above = entry.path.substr(0, at);
      if (others_.contains(above)) return SeenTwice(above);
      directories_.insert(std::move(above));
    }
    const bool directory = entry.kind == CodeEntry::Kind::kDirectory;
    if (others_.contains(entry.path) || (!directory && directories_.contains(entry.path))) {
      return SeenTwice(entry.path);
    }
    (directory ? directories_ : others_).insert(entry.path);
    return Status::Ok();
  }

 private:
  std::set<std::string, std::less<>> directories_;  // also those that are only above something
  std::set<std::string, std::less<>> others_;
};

/// Makes files under a directory that is nobody else's.
class Extraction {
 public:
  explicit Extraction(std::string root) : root_(std::move(root)) {}

  Status Add(const CodeEntry& entry) {
    RETURN_IF_ERROR(FinishFile());
    if (entry.kind == CodeEntry::Kind::kLink) {
      links_.push_back(entry);
      return Status::Ok();
    }
    if (entry.kind == CodeEntry::Kind::kDirectory) return MakeDirectories(entry.path);
    const std::size_t slash = entry.path.rfind('/');
    if (slash != std::string::npos) RETURN_IF_ERROR(MakeDirectories(entry.path.substr(0, slash)));
    const std::string path = root_ + "/" + entry.path;
    file_.Reset(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     entry.executable ? 0755 : 0644));
    if (!file_.valid()) return Failed(entry.path);
    name_ = entry.path;
    return Status::Ok();
  }

  Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(file_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed(name_);
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return Status::Ok();
  }

  Status Finish() {
    RETURN_IF_ERROR(FinishFile());
    for (const CodeEntry& link : links_) {
      const std::size_t slash = link.path.rfind('/');
      // Before the first link is made all directories are; a parent that is a link is refused.
      if (slash != std::string::npos) RETURN_IF_ERROR(MakeDirectories(link.path.substr(0, slash)));
    }
    for (const CodeEntry& link : links_) {
      if (symlink(link.target.c_str(), (root_ + "/" + link.path).c_str()) != 0) {
        return Failed(link.path);
      }
    }
    // One call for all the small files: the file system's.
    const OwnedFd root(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root.valid() || syncfs(root.get()) != 0) return Failed(root_);
    return Status::Ok();
  }

 private:
  Status FinishFile() {
    file_.Reset();
    return Status::Ok();
  }

  Status MakeDirectories(const std::string& path) {
    for (std::size_t at = 0; at != std::string::npos;) {
      at = path.find('/', at + 1);
      const std::string part = path.substr(0, at);
      if (part.empty() || !made_.insert(part).second) continue;
      if (mkdir((root_ + "/" + part).c_str(), 0755) != 0) return Failed(part);
    }
    return Status::Ok();
  }

  static Status Failed(std::string_view path) {
    if (errno == EEXIST || errno == ENOTDIR || errno == ELOOP) return SeenTwice(path);
    const std::string message = fmt::format("{}: {}", QuoteForMessage(path), ErrnoText());
    return errno == ENOSPC || errno == EDQUOT ? ResourceExhaustedError(message)
                                              : UnavailableError(message);
  }

  const std::string root_;
  std::set<std::string> made_;
  std::vector<CodeEntry> links_;
  OwnedFd file_;
  std::string name_;
};

}  // namespace

Result<std::string> PackCode(const std::string& directory, const CodeLimits& limits) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return NotFoundError(fmt::format("{} is not a directory", directory));
  }
  std::string rules;
  if (std::ifstream in(directory + "/.cairnignore", std::ios::binary); in) {
    std::stringstream text;
    text << in.rdbuf();
    rules = text.str();
  }
  std::vector<Found> found;
  RETURN_IF_ERROR(Collect(directory, "", IgnoreRules(rules), limits, &found));
  std::ranges::sort(found, {}, &Found::path);
  std::uint64_t bytes = 0;
  for (const Found& file : found) bytes += file.bytes;
  if (bytes > limits.bytes) return TooLarge(std::move(found), limits.bytes);
  std::string out;
  const Writer writer(archive_write_new(), &archive_write_free);
  archive_write_set_format_pax_restricted(writer.get());
  archive_write_add_filter_gzip(writer.get());
  archive_write_set_options(writer.get(), "gzip:!timestamp");
  archive_write_set_bytes_in_last_block(writer.get(), 1);
  if (archive_write_open(writer.get(), &out, nullptr, AppendBytes, nullptr) != ARCHIVE_OK) {
    return InternalError(Why(writer.get()));
  }
  for (const Found& file : found) RETURN_IF_ERROR(WriteOne(writer.get(), file));
  if (archive_write_close(writer.get()) != ARCHIVE_OK) return InternalError(Why(writer.get()));
  if (out.size() > limits.archive_bytes) return TooLarge(std::move(found), limits.archive_bytes);
  return out;
}

Status VisitCode(std::string_view bytes, const CodeLimits& limits, const CodeVisitor& visitor) {
  if (bytes.size() > limits.archive_bytes) {
    return ResourceExhaustedError(
        fmt::format("the archive has {} bytes: at most {}", bytes.size(), limits.archive_bytes));
  }
  const Reader reader(archive_read_new(), &archive_read_free);
  archive_read_support_format_tar(reader.get());
  archive_read_support_filter_gzip(reader.get());
  if (archive_read_open_memory(reader.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) {
    return InvalidArgumentError(fmt::format("not a .tar.gz: {}", Why(reader.get())));
  }
  std::uint64_t entries = 0;
  std::uint64_t total = 0;
  Names names;
  std::vector<char> buffer(256u << 10);
  for (;;) {
    archive_entry* raw = nullptr;
    const int code = archive_read_next_header(reader.get(), &raw);
    if (code == ARCHIVE_EOF) return Status::Ok();
    if (code < ARCHIVE_WARN) {
      return InvalidArgumentError(fmt::format("a damaged archive: {}", Why(reader.get())));
    }
    if (++entries > limits.entries) {
      return ResourceExhaustedError(
          fmt::format("the archive has more than {} files", limits.entries));
    }
    ASSIGN_OR_RETURN(const CodeEntry entry, Judge(raw, limits));
    if (entry.path.empty()) continue;  // the root itself
    RETURN_IF_ERROR(names.Add(entry));
    RETURN_IF_ERROR(visitor.entry(entry));
    if (entry.kind != CodeEntry::Kind::kFile) continue;
    for (;;) {
      const la_ssize_t n = archive_read_data(reader.get(), buffer.data(), buffer.size());
      if (n == 0) break;
      if (n < 0) {
        return InvalidArgumentError(fmt::format("a damaged archive: {}", Why(reader.get())));
      }
      total += static_cast<std::uint64_t>(n);
      if (total > limits.bytes) {
        return ResourceExhaustedError(
            fmt::format("the archive unpacks to more than {} bytes", limits.bytes));
      }
      RETURN_IF_ERROR(visitor.data(std::string_view(buffer.data(), static_cast<std::size_t>(n))));
    }
  }
}

Status ExtractCode(std::string_view archive, const std::string& directory,
                   const CodeLimits& limits) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(directory, error))) {
    return AlreadyExistsError(fmt::format("{} is there already", directory));
  }
  const std::string partial = directory + ".partial";
  fs::remove_all(partial, error);
  if (mkdir(partial.c_str(), 0755) != 0) {
    return UnavailableError(fmt::format("{}: {}", partial, ErrnoText()));
  }
  Extraction extraction(partial);
  Status status =
      VisitCode(archive, limits,
                {.entry = [&](const CodeEntry& entry) { return extraction.Add(entry); },
                 .data = [&](std::string_view bytes) { return extraction.Write(bytes); }});
  if (status.ok()) status = extraction.Finish();
  if (status.ok() && rename(partial.c_str(), directory.c_str()) != 0) {
    status = UnavailableError(fmt::format("{}: {}", directory, ErrnoText()));
  }
  if (!status.ok()) {
    fs::remove_all(partial, error);
    return status;
  }
  const std::string parent = fs::path(directory).parent_path().string();
  const OwnedFd above(
      open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!above.valid() || fsync(above.get()) != 0) {
    return UnavailableError(fmt::format("{}: {}", parent, ErrnoText()));
  }
  return Status::Ok();
}

}  // namespace cairn::master
