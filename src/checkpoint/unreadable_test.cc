// What lies in a repository and cannot be read: other people's things, which concern nobody, and
// records of ours, which readers go on without and owners do not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/test_job_store.h"
#include "storage/forwarding_store.h"
#include "storage/local/temp_directory.h"
#include "storage/local/unprivileged.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

Status IoError() { return InternalError("read \"it\": Input/output error"); }
Status Denied() { return PermissionDeniedError("open \"it\": Permission denied"); }

/// Does not give what a test says.
class UnreadStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<std::string> Get(const std::string& name, std::uint64_t limit) override {
    const auto it = unread.find(name);
    return it == unread.end() ? inner()->Get(name, limit) : it->second;
  }
  std::map<std::string, Status> unread;  // by name
};

class Unreadable : public OnBothStores {
 protected:
  Unreadable() : unread_(std::make_shared<UnreadStore>(store_.get())) {
    SetLogSink([this](LogLevel, std::string_view line) { log_.emplace_back(line); });
    auto manager = Open({.retention = {.keep_last = std::nullopt}});
    for (std::int64_t step = 1; step <= 3; ++step) Save(manager.get(), step);
    EXPECT_TRUE(manager->Close().ok());
  }
  ~Unreadable() override { SetLogSink(nullptr); }

  static void Save(CheckpointManager* manager, std::int64_t step) {
    const std::vector<std::int64_t> values(100, step);
    const auto saved = manager->Save(
        {.step = step,
         .tensors = {{.name = "w", .dtype = DType::kI64, .shape = {100}, .data = values.data()}},
         .blocking = true});
    EXPECT_TRUE(saved.ok()) << saved.status().ToString();
  }
  Result<std::unique_ptr<CheckpointManager>> TryOpen(bool read_only) {
    Environment env = Env();
    env.store = unread_;
    return OpenManager({.retention = {.keep_last = std::nullopt}, .read_only = read_only},
                       std::move(env));
  }
  /// What a reader restores, and that it says what it passed over.
  std::int64_t ReaderRestores(const std::string& passed_over) {
    auto reader = TryOpen(/*read_only=*/true);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    if (!reader.ok()) return -1;
    const auto restored = (*reader)->Restore({.allocate = true});
    EXPECT_TRUE(restored.ok()) << restored.status().ToString();
    if (!restored.ok()) return -1;
    std::string fallbacks;
    for (const std::string& fallback : (*restored)->fallbacks) fallbacks += fallback + "\n";
    EXPECT_THAT(fallbacks, HasSubstr(passed_over));
    return (*restored)->step;
  }
  /// Who opens it for writing is told that of `name`; once it can be read, nothing is missing.
  void OwnersRefuse(const std::string& name, const std::string& remedy) {
    const Status refused = TryOpen(/*read_only=*/false).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr(name + " cannot be read"));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(remedy));
    unread_->unread.clear();
    auto owner = TryOpen(/*read_only=*/false);
    ASSERT_TRUE(owner.ok()) << owner.status().ToString();
    EXPECT_THAT(Steps(owner->get()), ElementsAre(1, 2, 3));
  }
  int Logged(std::string_view text) {
    return static_cast<int>(std::count_if(log_.begin(), log_.end(), [&](const std::string& line) {
      return line.find(text) != line.npos;
    }));
  }

  std::shared_ptr<UnreadStore> unread_;  // shared with the environments
  std::vector<std::string> log_;
};

TEST_P(Unreadable, OneOldManifestKeepsNoReaderFromTheLatest) {
  for (const Status& why : {IoError(), Denied()}) {
    unread_->unread["checkpoint_000001/manifest.json"] = why;
    EXPECT_EQ(ReaderRestores("checkpoint_000001"), 3);
    OwnersRefuse("checkpoint_000001", "move the directory");
  }
}

TEST_P(Unreadable, AReaderFallsBackWhereTheLatestManifestCannotBeRead) {
  unread_->unread["checkpoint_000003/manifest.json"] = IoError();
  EXPECT_EQ(ReaderRestores("checkpoint_000003"), 2);
  auto reader = TryOpen(/*read_only=*/true).value();
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Steps(reader.get()), ElementsAre(1, 2));
  EXPECT_EQ(reader->Latest().value()->step, 2);
  EXPECT_EQ(Logged("checkpoint_000003 cannot be read and is not listed"), 1);
  const Status asked_for = reader->Restore({.allocate = true, .step = 3}).status();
  EXPECT_EQ(asked_for.code(), Code::kInternal) << asked_for.ToString();
  EXPECT_THAT(std::string(asked_for.message()), HasSubstr("checkpoint_000003"));
  OwnersRefuse("checkpoint_000003", "move the directory");
}

TEST_P(Unreadable, AnOwnerDoesNotGoBackOverAnErrorThatPasses) {
  auto owner = TryOpen(/*read_only=*/false).value();
  unread_->unread["checkpoint_000003/manifest.json"] = IoError();
  EXPECT_EQ(owner->Restore({.allocate = true}).status().code(), Code::kInternal);
  EXPECT_EQ(owner->Restore({.allocate = true, .step = 1}).value()->step, 1);
  unread_->unread.clear();
  EXPECT_EQ(owner->Restore({.allocate = true}).value()->step, 3);
}

TEST_P(Unreadable, TheJobIsKnownFromOtherRecords) {
  unread_->unread["cairn.json"] = IoError();
  EXPECT_EQ(ReaderRestores(""), 3);
  EXPECT_GE(Logged("cairn.json is unreadable"), 1);
  OwnersRefuse("cairn.json", "make it readable");
}

TEST_P(Unreadable, ReadersBridgeASealAsIfItWereDamaged) {
  {
    auto again = Open();
  }
  unread_->unread[names::Seal(2)] = IoError();
  EXPECT_EQ(ReaderRestores(""), 3);
  OwnersRefuse(names::Seal(2), "make it readable");
}

TEST_P(Unreadable, ANoteIsTakenForAPinByReaders) {
  {
    auto manager = Open();
    ASSERT_TRUE(manager->Pin(manager->Latest().value()->id).ok());
  }
  unread_->unread["checkpoint_000003/notes/000001.json"] = IoError();
  EXPECT_EQ(ReaderRestores(""), 3);
  auto reader = TryOpen(/*read_only=*/true).value();
  EXPECT_TRUE(reader->Latest().value()->pinned);
  OwnersRefuse("checkpoint_000003", "move the directory");
}

TEST_P(Unreadable, AStoreThatIsNotReachedIsNoDamage) {
  for (const std::string name : {"checkpoint_000001/manifest.json", "cairn.json"}) {
    unread_->unread = {{name, UnavailableError("unreachable")}};
    const auto reader = TryOpen(/*read_only=*/true);
    const Status status = reader.ok() ? (*reader)->List().status() : reader.status();
    EXPECT_EQ(status.code(), Code::kUnavailable) << name;
  }
  unread_->unread = {{"checkpoint_000001/manifest.json", ResourceExhaustedError("EMFILE")}};
  auto reader = TryOpen(/*read_only=*/true).value();
  EXPECT_EQ(reader->List().status().code(), Code::kResourceExhausted);
}

TEST_P(Unreadable, OtherPeoplesDirectoriesConcernNobody) {
  ASSERT_TRUE(store_->Put("lost+found/x", "theirs").ok());
  ASSERT_TRUE(store_->Put("checkpoint_of_mine/x", "theirs").ok());
  for (const Status& why : {IoError(), Denied(), InvalidArgumentError("ELOOP")}) {
    unread_->unread["lost+found/manifest.json"] = why;
    unread_->unread["checkpoint_of_mine/manifest.json"] = Denied();
    EXPECT_EQ(ReaderRestores(""), 3);
    auto owner = TryOpen(/*read_only=*/false);
    ASSERT_TRUE(owner.ok()) << owner.status().ToString();
    EXPECT_EQ((*owner)->Restore({.allocate = true}).value()->step, 3);
  }
  unread_->unread["lost+found/manifest.json"] = UnavailableError("unreachable");
  EXPECT_EQ(TryOpen(/*read_only=*/false).status().code(), Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Stores, Unreadable, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Objects" : "Links"; });

/// On a real disk, by somebody who is not root.
class Unprivileged : public testing::Test {
 protected:
  Unprivileged() : run_(directory_ / "run") {
    fs::create_directory(run_);
    for (const std::string& path : {directory_.path(), run_}) chmod(path.c_str(), 0777);
    SetLogSink([](LogLevel, std::string_view) {});
    EXPECT_EQ(RunUnprivileged([this] { return SaveAndRestore(0); }), "");
  }
  ~Unprivileged() override {
    SetLogSink(nullptr);
    for (const std::string& path : closed_) chmod(path.c_str(), 0777);
  }

  /// A directory that nobody may look into.
  std::string Closed(const std::string& name) {
    const std::string path = directory_ / name;
    fs::create_directories(path);
    std::ofstream(path + "/x") << "theirs";
    chmod(path.c_str(), 0);
    closed_.push_back(path);
    return path;
  }
  void Link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(symlink(target.c_str(), (run_ + "/" + name).c_str()), 0);
  }
  /// Restores `from` (0: nothing), and saves the step after it. "" or what went wrong.
  std::string SaveAndRestore(std::int64_t from) const {
    auto manager = CheckpointManager::Open({.directory = run_, .retention = {.keep_last = 2}});
    if (!manager.ok()) return "open: " + manager.status().ToString();
    const auto restored = (*manager)->Restore({.allocate = true});
    if (!restored.ok()) return "restore: " + restored.status().ToString();
    if ((*restored ? (*restored)->step : 0) != from) return "another step was restored";
    const std::vector<double> values(10, 1.5);
    const auto saved = (*manager)->Save(
        {.step = from + 1,
         .tensors = {{.name = "w", .dtype = DType::kF64, .shape = {10}, .data = values.data()}},
         .blocking = true});
    if (!saved.ok()) return "save: " + saved.status().ToString();
    const auto reader = CheckpointManager::Open({.directory = run_, .read_only = true});
    if (!reader.ok()) return "read: " + reader.status().ToString();
    const auto latest = (*reader)->Latest();
    if (!latest.ok()) return "latest: " + latest.status().ToString();
    if (!*latest || (*latest)->step != from + 1) return "what was saved is not the latest";
    const Status closed = (*manager)->Close();
    return closed.ok() ? "" : "close: " + closed.ToString();
  }

  TempDirectory directory_;
  const std::string run_;
  std::vector<std::string> closed_;
};

TEST_F(Unprivileged, DirectoriesThatMayNotBeLookedIntoAreIgnored) {
  Closed("run/lost+found");
  Closed("run/checkpoint_of_root");
  EXPECT_EQ(RunUnprivileged([this] { return SaveAndRestore(1); }), "");
}

TEST_F(Unprivileged, LinksThatLeadNowhereAreIgnored) {
  Link("b", "a");
  Link("a", "b");
  Link("nothing", "dangling");
  Link(Closed("secret") + "/x", "data");
  EXPECT_EQ(RunUnprivileged([this] { return SaveAndRestore(1); }), "");
  EXPECT_TRUE(fs::is_symlink(run_ + "/a") && fs::is_symlink(run_ + "/data"));
}

TEST_F(Unprivileged, ALinkUnderTheNextNameIsLeftAlone) {
  Link("checkpoint_000002", "checkpoint_000002");
  Link("nothing", "checkpoint_000003");
  EXPECT_EQ(RunUnprivileged([this] { return SaveAndRestore(1); }), "");
  EXPECT_EQ(RunUnprivileged([this] { return SaveAndRestore(2); }), "");
  EXPECT_TRUE(fs::exists(run_ + "/checkpoint_000002-2/manifest.json"));
  EXPECT_TRUE(fs::exists(run_ + "/checkpoint_000003-2/manifest.json"));
  EXPECT_TRUE(fs::is_symlink(run_ + "/checkpoint_000003"));
}

TEST_F(Unprivileged, ACheckpointThatMayNotBeLookedIntoIsNotGone) {
  for (const bool behind_a_link : {false, true}) {
    const std::string path = run_ + "/checkpoint_000001";
    if (behind_a_link) {
      fs::create_directory(directory_ / "elsewhere");
      fs::rename(path, directory_ / "elsewhere/checkpoint_000001");
      Link(directory_ / "elsewhere/checkpoint_000001", "checkpoint_000001");
    }
    const std::string closed = behind_a_link ? directory_ / "elsewhere" : path;
    chmod(closed.c_str(), 0);
    EXPECT_EQ(RunUnprivileged([this]() -> std::string {
                const auto owner = CheckpointManager::Open({.directory = run_});
                if (!owner.status().Is(Code::kPermissionDenied)) return owner.status().ToString();
                const std::string message(owner.status().message());
                if (message.find("checkpoint_000001 cannot be read") == message.npos)
                  return message;
                const auto reader = CheckpointManager::Open({.directory = run_, .read_only = true});
                const auto listed = (*reader)->List();
                return listed.ok() && listed->empty() ? ""
                                                      : "a reader: " + listed.status().ToString();
              }),
              "");
    chmod(closed.c_str(), 0777);
  }
  EXPECT_EQ(RunUnprivileged([this] { return SaveAndRestore(1); }), "") << "it still counts";
}

TEST_F(Unprivileged, WhatOthersPutIntoACheckpointStaysWhenItIsRemoved) {
  Closed("run/checkpoint_000001/private");
  for (const std::int64_t step : {1, 2, 3}) {
    EXPECT_EQ(RunUnprivileged([&] { return SaveAndRestore(step); }), "");
  }
  EXPECT_FALSE(fs::exists(run_ + "/checkpoint_000001/manifest.json"));
  EXPECT_TRUE(fs::exists(run_ + "/checkpoint_000001/private"));
}

}  // namespace
}  // namespace cairn
