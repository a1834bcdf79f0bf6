// Crash enumeration of the local store: before every operation that changes the simulated disk the
// power fails, in every way the disk knows, and each of the store's promises is held against what
// is left. Then every reason for a sync is switched off in turn, and the enumeration must notice.

#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;
constexpr std::size_t kPart = 4096;

/// What may stand under a name after a crash. `nullopt` is "nothing".
struct Allowed {
  bool anything = false;
  std::set<std::optional<std::string>> contents;
};
using Promises = std::map<std::string, Allowed>;

/// Drives a store and keeps account of what it has promised so far.
class Account {
 public:
  explicit Account(Store* store) : store_(store) {}

  const Promises& promises() const { return promises_; }

  void Put(const std::string& name, const std::string& bytes) {
    May(name, bytes);
    ASSERT_TRUE(store_->Put(name, bytes).ok());
    Must(name, bytes);
  }

  void Create(const std::string& name, const std::string& bytes) {
    May(name, bytes);
    ASSERT_TRUE(store_->Create(name, bytes).ok());
    Must(name, bytes);
  }

  /// Several objects through one session, then their names. `reuse` is for the first; `record`, if
  /// it has a name, is prepared beside them and created then.
  void Write(const std::vector<std::pair<std::string, std::string>>& objects,
             const std::string& reuse = "",
             const std::pair<std::string, std::string>& record = {}) {
    auto session = store_->NewWriteSession(WriteMode::kDirect);
    ASSERT_TRUE(session.ok());
    std::vector<std::uint32_t> handles;
    for (const auto& [name, bytes] : objects) {
      promises_[name] = {.anything = true};
      if (!reuse.empty()) promises_[reuse] = {.anything = true};
      auto handle = (*session)->Open(
          name, {.bytes = bytes.size(), .reuse = handles.empty() ? reuse : std::string()});
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      handles.push_back(*handle);
    }
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const std::string_view bytes = objects[i].second;
      for (std::size_t at = 0; at < bytes.size(); at += kPart) {
        const std::string_view part = bytes.substr(at, kPart);
        ASSERT_TRUE(
            (*session)
                ->Append(handles[i], std::as_bytes(std::span(part.data(), part.size())), false, at)
                .ok());
      }
      ASSERT_TRUE((*session)->Close(handles[i]).ok());
    }
    std::unique_ptr<PreparedObject> prepared;
    if (!record.first.empty()) {
      prepared = (*session)->Prepare(record.first, record.second).value();
      ASSERT_TRUE((*session)->SyncNames("", "data names").ok());
    }
    ASSERT_TRUE((*session)->Drain().ok());
    // Durable bytes: from here on a name leads to them or is not there.
    for (const auto& [name, bytes] : objects) promises_[name] = {.contents = {std::nullopt, bytes}};
    ASSERT_TRUE(store_->SyncNames("", "data names").ok());
    for (const auto& [name, bytes] : objects) Must(name, bytes);
    if (!reuse.empty()) Must(reuse, std::nullopt);
    if (prepared == nullptr) return;
    May(record.first, record.second);
    ASSERT_TRUE(prepared->Create().ok());
    Must(record.first, record.second);
  }

  void Link(const std::string& from, const std::string& to, const std::string& bytes) {
    May(to, bytes);
    ASSERT_TRUE(store_->Link(from, to).ok());
    ASSERT_TRUE(store_->SyncNames("", "link names").ok());
    Must(to, bytes);
  }

  void Delete(const std::string& name) {
    May(name, std::nullopt);
    ASSERT_TRUE(store_->Delete(name).ok());
    ASSERT_TRUE(store_->PruneDirectories("").ok());
    ASSERT_TRUE(store_->SyncNames("", "removed names").ok());
    Must(name, std::nullopt);
  }

  void MoveToPool(const std::string& name, const std::string& pool_name) {
    May(name, std::nullopt);
    promises_[pool_name] = {.anything = true};
    auto moved = store_->MoveToPool(name, pool_name);
    ASSERT_TRUE(moved.ok() && *moved);
    ASSERT_TRUE(store_->SyncNames("", "pool names").ok());
    Must(name, std::nullopt);
  }

 private:
  void May(const std::string& name, std::optional<std::string> bytes) {
    Allowed& allowed = promises_[name];
    if (allowed.contents.empty()) allowed.contents.insert(std::nullopt);
    allowed.contents.insert(std::move(bytes));
  }
  void Must(const std::string& name, std::optional<std::string> bytes) {
    promises_[name] = {.contents = {std::move(bytes)}};
  }

  Store* const store_;
  Promises promises_;
};

std::string Data(char c, std::size_t bytes) { return std::string(bytes, c); }

/// Everything a repository asks of a store.
void RunScript(Account* account) {
  account->Create("generations/000001.json", "fence");
  account->Put("note", "first");
  account->Write({{"c1/model/a", Data('a', 9000)},
                  {"c1/model/b", Data('b', 4096)},
                  {"c1/state", Data('s', 10)}});
  account->Create("c1/manifest.json", "manifest 1");
  account->Put("note", "second, which is longer");
  account->Link("c1/model/b", "c2/model/b", Data('b', 4096));
  account->Write({{"c2/model/a", Data('A', 12000)}});
  account->Create("c2/manifest.json", "manifest 2");
  account->Delete("c1/manifest.json");
  account->MoveToPool("c1/model/a", "pool/a");
  account->Delete("c1/model/b");
  account->Delete("c1/state");
  account->Write({{"c3/model/a", Data('C', 5000)}, {"c3/state", ""}}, "pool/a");
  account->Create("c3/manifest.json", "manifest 3");
  account->Write({{"c4/model/a", Data('D', 9000)}, {"c4/state", "state"}}, "",
                 {"c4/manifest.json", "manifest 4"});
}

struct Moment {
  std::string next;  // the operation that did not happen any more
  std::shared_ptr<const SimImage> image;
  Promises promises;
};

Result<std::unique_ptr<LocalStore>> OpenStore(SimFs* fs, SeededIds* ids) {
  return LocalStore::Open({.root = "/a/store",
                           .fs = fs,
                           .ids = ids,
                           .write_mode = WriteMode::kDirect,
                           .part_bytes = kPart,
                           .direct_from_bytes = kPart});
}

/// The disk and the promises before each operation of the script, and at its end.
std::vector<Moment> Record(const SimFs::SyncPredicate& ignore, std::vector<SimSync>* syncs) {
  std::vector<Moment> moments;
  SimFs fs({.queue_seed = 11});
  fs.IgnoreSyncs(ignore);
  SeededIds ids(1);
  auto store = OpenStore(&fs, &ids);
  EXPECT_TRUE(store.ok());
  Account account(store->get());
  fs.SetHook([&](const SimOp& op) {
    moments.push_back({DescribeSimOp(op), fs.Snapshot(), account.promises()});
  });
  RunScript(&account);
  fs.SetHook(nullptr);
  moments.push_back({"the end", fs.Snapshot(), account.promises()});
  if (syncs != nullptr) *syncs = fs.SyncLog();
  return moments;
}

/// What is wrong with the disk, or nothing.
std::string Check(SimFs* fs, const Promises& promises) {
  SeededIds ids(2);
  auto store = OpenStore(fs, &ids);
  if (!store.ok()) return "open: " + store.status().ToString();
  for (const auto& [name, allowed] : promises) {
    auto got = (*store)->Get(name, kNoLimit);
    if (!got.ok() && !got.status().Is(Code::kNotFound)) return got.status().ToString();
    if (allowed.anything) continue;
    if (allowed.contents.contains(got.ok() ? std::optional(*got) : std::nullopt)) continue;
    return name + (got.ok() ? " holds " + std::to_string(got->size()) + " wrong bytes"
                            : std::string(" is lost"));
  }
  return "";
}

/// The first broken promise over all moments and all ways to crash, or nothing.
std::string Enumerate(const std::vector<Moment>& moments, std::uint64_t seeds, int* worlds) {
  for (const Moment& moment : moments) {
    std::vector<std::pair<std::string, std::unique_ptr<SimFs>>> after;
    after.emplace_back("killed", SimFs::FromKill(*moment.image));
    after.emplace_back("forget", SimFs::FromCrash(*moment.image, CrashMode::kForget, 0));
    after.emplace_back("keep", SimFs::FromCrash(*moment.image, CrashMode::kKeep, 0));
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      after.emplace_back("subset", SimFs::FromCrash(*moment.image, CrashMode::kSubset, seed));
      after.emplace_back("torn", SimFs::FromCrash(*moment.image, CrashMode::kTorn, seed));
    }
    for (auto& [mode, fs] : after) {
      ++*worlds;
      const std::string wrong = Check(fs.get(), moment.promises);
      if (!wrong.empty()) return mode + " before " + moment.next + ": " + wrong;
    }
  }
  return "";
}

TEST(LocalStoreCrash, EveryPromiseHoldsAfterACrashAtAnyMoment) {
  const std::vector<Moment> moments = Record(nullptr, nullptr);
  ASSERT_GT(moments.size(), 100u);
  int worlds = 0;
  EXPECT_EQ(Enumerate(moments, 10, &worlds), "");
  std::cout << moments.size() << " moments, " << worlds << " crashed disks\n";
}

TEST(LocalStoreCrash, EveryReasonForASyncIsNeeded) {
  std::vector<SimSync> syncs;
  Record(nullptr, &syncs);
  std::set<std::pair<SimSync::Kind, std::string>> reasons;
  for (const SimSync& sync : syncs) reasons.emplace(sync.kind, sync.why);
  ASSERT_GT(reasons.size(), 4u);
  for (const auto& [kind, why] : reasons) {
    const auto moments =
        Record([&](const SimSync& sync) { return sync.kind == kind && sync.why == why; }, nullptr);
    int worlds = 0;
    const std::string found = Enumerate(moments, 10, &worlds);
    std::cout << (kind == SimSync::Kind::kFile ? "file" : "directory") << " sync \"" << why
              << "\" left out: " << (found.empty() ? "NOT NOTICED" : found) << "\n";
    EXPECT_NE(found, "") << why;
  }
}

}  // namespace
}  // namespace cairn
