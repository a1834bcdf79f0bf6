#include "catalog/reindex.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/status_macros.h"
#include "catalog/test_tables.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

std::vector<std::string> Save(const std::string& repository, std::int64_t first, int count) {
  std::vector<std::string> ids;
  auto manager = CheckpointManager::Open(
                     {.directory = repository, .run = 4, .retention = {.keep_last = std::nullopt}})
                     .value();
  for (std::int64_t step = first; step < first + count; ++step) {
    ids.push_back(manager
                      ->Save({.step = step,
                              .counters = Value::Object{{"x", step}},
                              .metrics = Value::Object{{"loss", 0.5}},
                              .metadata = Value::Object{{"steps_completed", step * 10}},
                              .blocking = true})
                      .value()
                      .Wait()
                      .value()
                      .id);
  }
  EXPECT_TRUE(manager->Close().ok());
  return ids;
}

/// Real repositories, read alone.
class ReadOnly : public RepositoryAccess {
 public:
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    return real_->List(repository);
  }
  Result<std::string> Job(const std::string& repository) override { return real_->Job(repository); }
  Result<std::uint64_t> NewestRun(const std::string& repository) override {
    return real_->NewestRun(repository);
  }
  Result<std::string> Claim(const std::string&, const std::string&) override {
    return UnimplementedError("reindexing claims nothing");
  }
  Result<std::vector<std::string>> Remove(const std::string&, const Owner&,
                                          const std::vector<std::string>&) override {
    return UnimplementedError("reindexing removes nothing");
  }
  Status Tidy(const std::string&, const Owner&) override {
    return UnimplementedError("reindexing deletes nothing");
  }
  Status Pin(const std::string&, const std::string&, bool) override {
    return UnimplementedError("reindexing pins nothing");
  }

 private:
  const std::unique_ptr<RepositoryAccess> real_ = RepositoryAccess::Real();
};

/// One of them the storage does not give away.
class OneCannotBeRead final : public ReadOnly {
 public:
  explicit OneCannotBeRead(std::string one) : one_(std::move(one)) {}
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    if (repository == one_) return UnavailableError("it does not answer");
    return ReadOnly::List(repository);
  }

 private:
  const std::string one_;
};

/// The second checkpoint is an increment, and all are old.
class OldIncrements final : public ReadOnly {
 public:
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    ASSIGN_OR_RETURN(auto found, ReadOnly::List(repository));
    found[1].kind = "increment";
    found[1].base = found[0].id;
    for (FoundCheckpoint& one : found) one.time = 1700000000000000000;
    return found;
  }
};

TrialRecords Fold(Catalog* catalog) {
  TrialRecords records;
  for (const Event& event : ReplayAll(&catalog->events())) {
    const Status applied = records.Apply(event);
    EXPECT_TRUE(applied.ok()) << applied.ToString();
  }
  return records;
}

TEST(Reindex, ALostDatabaseIsMadeAnewFromTheStorage) {
  TempDirectory directory;
  const std::string root = directory / "storage";
  const auto first = Save(root + "/7/1", 1, 3);
  Save(root + "/7/2", 1, 1);
  Save(root + "/named/3", 1, 2);
  std::filesystem::create_directories(root + "/7/not-a-repository");
  std::filesystem::create_directories(root + "/.hidden/4");
  std::ofstream(root + "/a file") << "x";
  // One that cannot be read is named, and the others are done.
  Save(root + "/7/5", 1, 1);

  auto catalog = Catalog::Open({.url = "sqlite:" + (directory / "c.db")}).value();
  OneCannotBeRead repositories(root + "/7/5");
  const ReindexOptions options{.roots = {root, directory / "no such root"},
                               .repositories = &repositories};
  auto report = Reindex(catalog.get(), options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->repositories, 3u);
  EXPECT_EQ(report->experiments_added, 1u);
  EXPECT_EQ(report->trials_added, 3u);
  EXPECT_EQ(report->checkpoints_added, 6u);
  ASSERT_EQ(report->problems.size(), 2u) << ::testing::PrintToString(report->problems);
  EXPECT_NE(report->problems[0].find("7/5"), std::string::npos);

  EXPECT_EQ(catalog->experiments().Get(7)->trials, 2u);
  EXPECT_EQ(catalog->experiments().Get(7)->checkpoints, 4u);
  EXPECT_EQ(catalog->experiments().Create({.uuid = "u"}).value(), 8) << "its number is taken";
  EXPECT_EQ(catalog->trials().GetCheckpoint(first[1])->record.steps, 20);
  EXPECT_EQ(catalog->trials().Get("3")->experiment, "named");
  ExpectTablesAgree(catalog.get(), Fold(catalog.get()));
  // Whoever goes on there, or tidies up, does so with a number above those of the runs that wrote.
  EXPECT_EQ(Fold(catalog.get()).Find("1")->core.run, 4u);
  EXPECT_EQ(catalog->trials().Get("1")->core.run, 4u);

  // Again: nothing is new.
  const std::uint64_t last = catalog->LastEvent().value();
  report = Reindex(catalog.get(), options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->trials_added + report->checkpoints_added + report->checkpoints_removed, 0u);
  EXPECT_EQ(catalog->LastEvent().value(), last);

  // What came and went since a backup.
  Save(root + "/7/1", 10, 1);
  {
    auto manager =
        CheckpointManager::Open(
            {.directory = root + "/7/1", .run = 4, .retention = {.keep_last = std::nullopt}})
            .value();
    ASSERT_TRUE(manager->Delete(first[0]).ok());
    ASSERT_TRUE(manager->Pin(first[1]).ok());
    ASSERT_TRUE(manager->Close().ok());
  }
  report = Reindex(catalog.get(), options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->checkpoints_added, 1u);
  EXPECT_EQ(report->checkpoints_removed, 1u);
  EXPECT_EQ(catalog->trials().GetCheckpoint(first[0])->record.state, CheckpointState::kDeleted);
  EXPECT_TRUE(catalog->trials().GetCheckpoint(first[1])->record.pinned);
  ExpectTablesAgree(catalog.get(), Fold(catalog.get()));
}

TEST(Reindex, TrialsAreKnownByTheJobsOfTheirRepositoriesAndNumbersThatAreTakenLeftAlone) {
  TempDirectory directory;
  const std::string root = directory / "storage";
  // Two records counted to the same numbers; the second one's trials went aside.
  Save(root + "/2/2", 1, 1);
  Save(root + "/2-1a2b3c4d/2", 1, 2);
  auto repositories = RepositoryAccess::Real();
  const std::string job = repositories->Job(root + "/2-1a2b3c4d/2").value();

  // A record that knows one of them.
  auto catalog = Catalog::Open({.url = "sqlite:" + (directory / "c.db")}).value();
  const auto experiment = catalog->experiments().Create({.uuid = "one"}).value();
  const auto second = catalog->experiments().Create({.uuid = "two"}).value();
  ASSERT_EQ(second, 2);
  const TrialConfig config{.experiment = "2", .argv = {"train"}, .storage = root};
  const Event created{.seq = 1,
                      .time = 1,
                      .trial = "2",
                      .kind = EventKind::kTrialCreated,
                      .body = Value::Object{{"config", ToValue(config)},
                                            {"parent", Value()},
                                            {"job", job},
                                            {"directory", "2-1a2b3c4d/2"}}};
  ASSERT_TRUE(catalog->events().Append(std::span(&created, 1)).ok());
  const ReindexOptions options{.roots = {root}, .repositories = repositories.get()};
  auto report = Reindex(catalog.get(), options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->problems.size(), 0u) << ::testing::PrintToString(report->problems);
  EXPECT_EQ(report->trials_added, 1u);
  EXPECT_EQ(catalog->trials().Get("2")->checkpoints, 2u);
  EXPECT_EQ(catalog->trials().Get("2")->experiment, "2");
  EXPECT_EQ(catalog->trials().Get("3")->experiment, "3");
  EXPECT_EQ(catalog->trials().Get("3")->checkpoints, 1u);
  EXPECT_EQ(RepositoryOf(*Fold(catalog.get()).Find("3")), root + "/2/2");
  report = Reindex(catalog.get(), options);
  EXPECT_EQ(report->trials_added + report->checkpoints_added + report->experiments_added, 0u);

  // Without any record both are found.
  auto lost = Catalog::Open({.url = "sqlite:" + (directory / "d.db")}).value();
  report = Reindex(lost.get(), options);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->trials_added, 2u);
  EXPECT_EQ(report->experiments_added, 2u);
  EXPECT_EQ(report->checkpoints_added, 3u);
  EXPECT_EQ(experiment, 1);
}

TEST(Reindex, IncrementsKeepTheirKindBaseAndAge) {
  TempDirectory directory;
  const std::string root = directory / "storage";
  const auto ids = Save(root + "/7/1", 1, 2);
  OldIncrements repositories;
  auto catalog = Catalog::Open({.url = "sqlite:" + (directory / "c.db")}).value();
  ASSERT_TRUE(Reindex(catalog.get(), {.roots = {root}, .repositories = &repositories}).ok());
  const CheckpointRow increment = catalog->trials().GetCheckpoint(ids[1]).value();
  EXPECT_EQ(increment.kind, "increment");
  EXPECT_EQ(increment.base, ids[0]);
  EXPECT_EQ(increment.record.time, 1700000000000000000);
  ExpectTablesAgree(catalog.get(), Fold(catalog.get()));
}

}  // namespace
}  // namespace cairn
