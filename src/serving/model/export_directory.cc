#include "serving/model/export_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "storage/open_store.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRecord = 64u << 20;
// In the place of an export on a bucket, so that of two exporters one has the number.
constexpr std::string_view kClaim = "claim.json";

std::optional<std::int64_t> Number(const std::string& name) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number < 1) return std::nullopt;
  return number;
}

/// The numbers of the exports in a place, newest first; none where it is not there yet.
Result<std::vector<std::int64_t>> Numbers(const std::string& where) {
  std::vector<std::int64_t> numbers;
  const auto env = ExistingDirectory(where);
  if (env.status().Is(Code::kNotFound)) return numbers;
  if (!env.ok()) return env.status();
  ASSIGN_OR_RETURN(const Listing listing, env->store->List(""));
  for (const std::string& name : listing.prefixes) {
    if (const auto number = Number(name)) numbers.push_back(*number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

std::string Inside(const std::string& where, std::int64_t number) {
  return where + (where.ends_with('/') ? "" : "/") + std::to_string(number);
}

/// True: the number is this caller's alone. A directory can be made once, an object created once.
Result<bool> Claim(const std::string& where, std::int64_t number) {
  if (IsRemote(where)) {
    ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(where, {.create = true}));
    const Status claimed =
        env.store->Create(std::to_string(number) + "/" + std::string(kClaim), "{}\n");
    if (claimed.Is(Code::kAlreadyExists)) return false;
    if (!claimed.ok()) return claimed;
    return true;
  }
  const std::string path = Inside(where, number);
  std::error_code error;
  const bool made = fs::create_directory(path, error);
  if (error) {
    return UnavailableError("cannot make the directory \"" + path + "\": " + error.message());
  }
  return made;
}

Result<OpenExport> OpenOne(const std::string& path) {
  OpenExport opened;
  ASSIGN_OR_RETURN(opened.save, OpenAndVerify(path));
  if (opened.save.files->FindFile(kExportRecord) < 0) {
    return InvalidArgumentError(
        "this is an inference model and no export for serving; export_saved_model writes one");
  }
  ASSIGN_OR_RETURN(const std::string bytes,
                   opened.save.files->ReadWhole(kExportRecord, kMaxRecord));
  ASSIGN_OR_RETURN(opened.record, DecodeExportRecord(bytes));
  return opened;
}

}  // namespace

Result<std::pair<std::string, std::int64_t>> MakeExportDirectory(const std::string& directory) {
  RETURN_IF_ERROR(CheckPath(directory));
  std::string where = directory;
  if (!IsRemote(directory)) {
    ASSIGN_OR_RETURN(where, LocalPath(directory));
    std::error_code error;
    // The process may work in another directory when it opens what it exported.
    if (auto whole = fs::absolute(where, error); !error) where = whole.string();
    fs::create_directories(where, error);
    if (error) {
      return UnavailableError("cannot make the directory \"" + where + "\": " + error.message());
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> there, Numbers(where));
  for (std::int64_t number = there.empty() ? 1 : there.front() + 1;; ++number) {
    ASSIGN_OR_RETURN(const bool ours, Claim(where, number));
    if (ours) return std::pair(Inside(where, number), number);
  }
}

void GiveUpExportDirectory(const std::string& path) {
  if (IsRemote(path)) {
    const auto env = EnvironmentAt(path, {.create = false});
    if (env.ok()) env->store->Delete(std::string(kClaim)).IgnoreError("it only takes a number");
    return;
  }
  std::error_code ignored;
  fs::remove(path, ignored);  // not when something is in it
}

namespace {

Result<OpenExport> OpenNewest(const std::string& path) {
  ASSIGN_OR_RETURN(const bool one, IsRepository(path));
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> numbers, Numbers(path));
  if (one || numbers.empty()) return OpenOne(path);
  Status first;
  for (const std::int64_t number : numbers) {
    auto opened = OpenOne(Inside(path, number));
    // One without a save was being written when its writer ended.
    if (opened.ok() || !opened.status().Is(Code::kNotFound)) return opened;
    if (first.ok()) first = opened.status();
  }
  return first;
}

}  // namespace

Result<OpenExport> OpenNewestExport(const std::string& path) {
  RETURN_IF_ERROR(CheckPath(path));
  auto opened = OpenNewest(path);
  if (!opened.ok()) return opened.status().WithContext("export \"" + path + "\"");
  return opened;
}

}  // namespace cairn::serving
