// The simulated file system against the machine's own: the same random operations give the same
// statuses, bytes and names on both.

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/seeded_random.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

/// One file system and the files the walk has open on it.
struct World {
  Fs* fs;
  std::string root;
  std::vector<std::unique_ptr<FsFile>> open;

  /// One random operation, the same for the same state of `random`; what came of it.
  std::string Step(SeededRandom random);
};

std::string CodeText(const Status& status) { return std::string(CodeName(status.code())); }

std::string World::Step(SeededRandom random) {
  const std::vector<std::string> paths = {"a",     "b", "d",   "d/a",   "d/e",
                                          "d/e/a", "f", "f/a", "./d//a"};
  const auto path = [&] { return root + "/" + paths[random.Below(paths.size())]; };
  const auto file = [&]() -> FsFile* {
    return open.empty() ? nullptr : open[random.Below(open.size())].get();
  };
  const std::uint64_t kind = random.Below(12);
  switch (kind) {
    case 0:
    case 1: {
      const OpenMode mode{.write = random.Coin() || random.Coin(),
                          .create = random.Coin(),
                          .exclusive = random.Coin()};
      OpenMode used = mode;
      used.exclusive = mode.exclusive && mode.create;  // undefined without
      used.truncate = mode.write && random.Below(4) == 0;
      auto opened = fs->Open(path(), used);
      if (!opened.ok()) return "open " + CodeText(opened.status());
      if ((*opened)->Stat()->is_directory) return "open directory";
      if (open.size() > 6) open.erase(open.begin());
      open.push_back(*std::move(opened));
      return "open OK";
    }
    case 2:
      return "mkdir " + CodeText(fs->MakeDirectory(path()));
    case 3:
      return "rmdir " + CodeText(fs->RemoveDirectory(path()));
    case 4:
      return "unlink " + CodeText(fs->Unlink(path()));
    case 5: {
      const std::string from = path();
      return "link " + CodeText(fs->Link(from, path()));
    }
    case 6: {
      const std::string from = path();
      return "rename " + CodeText(fs->Rename(from, path()));
    }
    case 7: {
      auto stat = fs->Stat(path());
      if (!stat.ok()) return "stat " + CodeText(stat.status());
      if (stat->is_directory) return "stat directory";
      return "stat " + std::to_string(stat->bytes) + " links " + std::to_string(stat->links);
    }
    case 8: {
      FsFile* target = file();
      const std::string text(1 + random.Below(6000), static_cast<char>('a' + random.Below(26)));
      const std::uint64_t offset = random.Below(9000);
      if (target == nullptr) return "";
      return "write " +
             CodeText(target->WriteAt(offset, std::as_bytes(std::span(text.data(), text.size()))));
    }
    case 9: {
      FsFile* target = file();
      const std::uint64_t bytes = random.Below(9000);
      if (target == nullptr) return "";
      // A handle for reading: EINVAL from one, EBADF from the other; both refuse.
      return target->Truncate(bytes).ok() ? "truncate OK" : "truncate refused";
    }
    case 10: {
      FsFile* target = file();
      const std::uint64_t offset = random.Below(9000);
      std::string text(random.Below(9000), '?');
      if (target == nullptr) return "";
      auto count = target->ReadAt(offset, std::as_writable_bytes(std::span(text)));
      if (!count.ok()) return "read " + CodeText(count.status());
      return "read " + text.substr(0, *count);
    }
    default: {
      auto entries = fs->List(path());
      if (!entries.ok()) return "list " + CodeText(entries.status());
      std::string text = "list";
      for (const FsEntry& entry : *entries) {
        text += " " + entry.name + (entry.is_directory ? "/" : "");
      }
      return text;
    }
  }
}

TEST(SimFsLikeness, RandomOperationsGiveTheSameOnTheMachinesFileSystem) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    TempDirectory directory;
    SimFs sim;
    ASSERT_TRUE(sim.MakeDirectory("/root").ok());
    World simulated{.fs = &sim, .root = "/root", .open = {}};
    World real{.fs = PosixFs(), .root = directory.path(), .open = {}};
    SeededRandom random(seed);
    for (int step = 0; step < 400; ++step) {
      const SeededRandom choice(random.Next());
      const std::string expected = real.Step(choice);
      ASSERT_EQ(simulated.Step(choice), expected) << "seed " << seed << " step " << step;
      ++seen[expected.substr(0, expected.find(' ', expected.find(' ') + 1)).substr(0, 30)];
    }
  }
  EXPECT_GT(seen.size(), 20u);
}

}  // namespace
}  // namespace cairn
