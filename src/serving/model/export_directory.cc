#include "serving/model/export_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRecord = 64u << 20;

std::optional<std::int64_t> Number(const std::string& name) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number < 1) return std::nullopt;
  return number;
}

/// The numbers of the exports in a directory, newest first.
std::vector<std::int64_t> Numbers(const std::string& directory) {
  std::vector<std::int64_t> numbers;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (const auto number = Number(it->path().filename().string())) numbers.push_back(*number);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
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
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return UnavailableError("cannot make the directory \"" + directory + "\": " + error.message());
  }
  const std::vector<std::int64_t> there = Numbers(directory);
  for (std::int64_t number = there.empty() ? 1 : there.front() + 1;; ++number) {
    const std::string path = (fs::path(directory) / std::to_string(number)).string();
    if (fs::create_directory(path, error)) return std::pair(path, number);
    if (error) {
      return UnavailableError("cannot make the directory \"" + path + "\": " + error.message());
    }
  }
}

namespace {

Result<OpenExport> OpenNewest(const std::string& path) {
  std::error_code unknown;
  const std::vector<std::int64_t> numbers = Numbers(path);
  if (fs::exists(fs::path(path) / names::kRepository, unknown) || numbers.empty()) {
    return OpenOne(path);
  }
  Status first;
  for (const std::int64_t number : numbers) {
    auto one = OpenOne((fs::path(path) / std::to_string(number)).string());
    // One without a save was being written when its writer ended.
    if (one.ok() || !one.status().Is(Code::kNotFound)) return one;
    if (first.ok()) first = one.status();
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
