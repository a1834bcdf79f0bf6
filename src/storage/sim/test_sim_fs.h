#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/sim/sim_fs.h"

namespace cairn {

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Short forms for the tests; failures of the set-up are test failures.
class SimFsTest : public ::testing::Test {
 protected:
  std::unique_ptr<FsFile> Create(Fs& fs, const std::string& path) {
    auto file = fs.Open(path, {.write = true, .create = true, .exclusive = true});
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? std::move(*file) : nullptr;
  }

  std::unique_ptr<FsFile> OpenForWriting(Fs& fs, const std::string& path) {
    auto file = fs.Open(path, {.write = true});
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? std::move(*file) : nullptr;
  }

  /// A file with bytes and name durable.
  void Durable(SimFs& fs, const std::string& path, std::string_view text) {
    auto file = Create(fs, path);
    ASSERT_TRUE(file->WriteAt(0, Bytes(text)).ok());
    ASSERT_TRUE(file->Sync("test").ok());
    const std::size_t slash = path.rfind('/');
    ASSERT_TRUE(fs.SyncDirectory(slash == 0 ? "/" : path.substr(0, slash), "test").ok());
  }

  /// A directory whose name is durable.
  void DurableDirectory(SimFs& fs, const std::string& path) {
    ASSERT_TRUE(fs.MakeDirectory(path).ok());
    const std::size_t slash = path.rfind('/');
    ASSERT_TRUE(fs.SyncDirectory(slash == 0 ? "/" : path.substr(0, slash), "test").ok());
  }

  /// The file's bytes, or the name of the error.
  static std::string Content(Fs& fs, const std::string& path) {
    auto file = fs.Open(path, {});
    if (!file.ok()) return std::string(CodeName(file.status().code()));
    auto stat = (*file)->Stat();
    if (!stat.ok()) return stat.status().ToString();
    std::string text(stat->bytes, '?');
    auto count = (*file)->ReadAt(0, std::as_writable_bytes(std::span(text.data(), text.size())));
    if (!count.ok()) return count.status().ToString();
    text.resize(*count);
    return text;
  }

  static std::vector<std::string> Names(Fs& fs, const std::string& path) {
    std::vector<std::string> names;
    auto entries = fs.List(path);
    if (!entries.ok()) return {entries.status().ToString()};
    for (const FsEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }

  static std::unique_ptr<SimFs> Crash(const SimFs& fs, CrashMode mode, std::uint64_t seed = 1) {
    return SimFs::FromCrash(*fs.Snapshot(), mode, seed);
  }

  /// Everything that `look` says of the disk over many seeds of the mode.
  template <typename Look>
  static std::set<std::string> Outcomes(const SimFs& fs, CrashMode mode, const Look& look) {
    std::set<std::string> outcomes;
    const auto image = fs.Snapshot();
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      outcomes.insert(look(*SimFs::FromCrash(*image, mode, seed)));
    }
    return outcomes;
  }

  SimFs fs_;
};

inline const std::string kMissing(CodeName(Code::kNotFound));

}  // namespace cairn
