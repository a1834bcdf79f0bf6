#include "catalog/reindex.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "catalog/test_tables.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

std::vector<std::string> Save(const std::string& repository, std::int64_t first, int count) {
  std::vector<std::string> ids;
  auto manager =
      CheckpointManager::Open({.directory = repository, .retention = {.keep_last = std::nullopt}})
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

/// Real repositories, one of which the storage does not give away.
class OneCannotBeRead final : public RepositoryAccess {
 public:
  explicit OneCannotBeRead(std::string one) : one_(std::move(one)) {}
  Result<std::vector<FoundCheckpoint>> List(const std::string& repository) override {
    if (repository == one_) return UnavailableError("it does not answer");
    return real_->List(repository);
  }
  Result<std::vector<std::string>> Remove(const std::string&, std::uint64_t,
                                          const std::vector<std::string>&) override {
    return UnimplementedError("reindexing removes nothing");
  }

 private:
  const std::string one_;
  const std::unique_ptr<RepositoryAccess> real_ = RepositoryAccess::Real();
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

  // Again: nothing is new.
  const std::uint64_t last = catalog->LastEvent().value();
  report = Reindex(catalog.get(), options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->trials_added + report->checkpoints_added + report->checkpoints_removed, 0u);
  EXPECT_EQ(catalog->LastEvent().value(), last);

  // What came and went since a backup.
  Save(root + "/7/1", 10, 1);
  {
    auto manager = CheckpointManager::Open(
                       {.directory = root + "/7/1", .retention = {.keep_last = std::nullopt}})
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

}  // namespace
}  // namespace cairn
