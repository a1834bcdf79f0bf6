// The catalog on SQLite, and what is SQLite's own: a full disk, a damaged file, backups.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string_view>
#include <tuple>

#include "catalog/conformance.h"
#include "catalog/connection.h"
#include "catalog/migrations.h"
#include "catalog/test_events.h"
#include "catalog/test_tables.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

INSTANTIATE_TEST_SUITE_P(Sqlite, CatalogConformance,
                         ::testing::Values(CatalogFactory{
                             "sqlite",
                             [] {
                               auto directory = std::make_shared<TempDirectory>();
                               return CatalogUnderTest{directory,
                                                       "sqlite:" + (*directory / "a b.db")};
                             }}),
                         CatalogConformance::Name);

std::string Url(const TempDirectory& directory) { return "sqlite:" + (directory / "catalog.db"); }

TEST(SqliteCatalog, AFullDatabaseRefusesAndGoesOnWhenThereIsRoom) {
  TempDirectory directory;
  EventMaker maker(3);
  std::vector<Event> refused;
  {
    auto catalog = Catalog::Open({.url = Url(directory), .max_bytes = 600'000}).value();
    Status status;
    while (status.ok()) {
      refused = maker.Some(50);
      status = catalog->events().Append(refused);
    }
    EXPECT_TRUE(status.Is(Code::kResourceExhausted)) << status.ToString();
    EXPECT_TRUE(catalog->events().Append(refused).Is(Code::kResourceExhausted)) << "still";
    EXPECT_TRUE(catalog->trials().List({}).ok()) << "reading goes on";
    EXPECT_EQ(catalog->LastEvent().value(), refused.front().seq - 1) << "all of them or none";
  }
  auto catalog = Catalog::Open({.url = Url(directory)}).value();
  ASSERT_TRUE(catalog->events().Append(refused).ok());
  ExpectTablesAgree(catalog.get(), maker.records());
}

TEST(SqliteCatalog, ADamagedFileIsNamed) {
  TempDirectory directory;
  {
    auto catalog = Catalog::Open({.url = Url(directory)}).value();
    EventMaker maker(3);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(catalog->events().Append(maker.Some(50)).ok());
  }
  const std::string path = directory / "catalog.db";
  const auto size = std::filesystem::file_size(path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    for (std::uintmax_t at = 8192; at + 2048 < size; at += 4096) {
      file.seekp(static_cast<std::streamoff>(at));
      file << std::string(2048, '\x5a');
    }
  }
  const auto opened = Catalog::Open({.url = Url(directory)});
  Status status = opened.status();
  if (opened.ok())
    status = (*opened)->events().Replay(1, [](const Event&) { return Status::Ok(); });
  EXPECT_TRUE(status.Is(Code::kCorruption)) << status.ToString();

  std::ofstream(path, std::ios::trunc)
      << "this is no database, but long enough to be taken for one";
  const auto garbage = Catalog::Open({.url = Url(directory)});
  EXPECT_TRUE(garbage.status().Is(Code::kCorruption)) << garbage.status().ToString();
  EXPECT_TRUE(Catalog::Open({.url = "sqlite:" + (directory / "no/such/x.db")})
                  .status()
                  .Is(Code::kUnavailable));
}

TEST(SqliteCatalog, ALogWithoutItsDatabaseIsKept) {
  TempDirectory directory;
  const std::string path = directory / "catalog.db";
  const std::string copy = directory / "copy.db";
  {
    auto catalog = Catalog::Open({.url = Url(directory)}).value();
    EventMaker maker(3);
    ASSERT_TRUE(catalog->events().Append(maker.Some(50)).ok());
    // As somebody leaves it who kills the master and takes the wrong file away.
    std::filesystem::copy_file(path + "-wal", copy + "-wal");
    std::ofstream(copy) << "";
  }
  const auto size = std::filesystem::file_size(copy + "-wal");
  for (const auto mode : {CatalogOptions::Mode::kOwner, CatalogOptions::Mode::kReader}) {
    const auto opened = Catalog::Open({.url = "sqlite:" + copy, .mode = mode});
    EXPECT_TRUE(opened.status().Is(Code::kCorruption)) << opened.status().ToString();
    EXPECT_EQ(std::filesystem::file_size(copy + "-wal"), size);
    std::filesystem::remove(copy);
  }
  std::filesystem::remove(copy + "-wal");
  EXPECT_TRUE(Catalog::Open({.url = "sqlite:" + copy}).ok());
}

TEST(SqliteCatalog, ABackupIsTheCatalogAsOfNowAndAppearsWhole) {
  TempDirectory directory;
  auto catalog = Catalog::Open({.url = Url(directory)}).value();
  EventMaker maker(4);
  ASSERT_TRUE(catalog->events().Append(maker.Some(500)).ok());
  const TrialRecords then = maker.records();
  const std::string path = directory / "backup.db";
  std::ofstream(path + ".partial") << "left by one that was cut short";
  const Status made = catalog->Backup(path);
  ASSERT_TRUE(made.ok()) << made.ToString();
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_TRUE(catalog->Backup(path).Is(Code::kAlreadyExists));
  ASSERT_TRUE(catalog->events().Append(maker.Some(100)).ok());
  auto copy = Catalog::Open({.url = "sqlite:" + path}).value();
  ExpectTablesAgree(copy.get(), then);
  // Beside a living owner, by a tool.
  auto reader = Catalog::Open({.url = Url(directory), .mode = CatalogOptions::Mode::kReader});
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader)->Backup(directory / "second.db").ok());
  EXPECT_FALSE((*reader)->Backup(directory / "no/such/place.db").ok());
}

TEST(CatalogOptions, NonsenseIsRefused) {
  for (const std::string url : {"", "mysql://x", "sqlite:"}) {
    EXPECT_TRUE(Catalog::Open({.url = url}).status().Is(Code::kInvalidArgument)) << url;
  }
}

TEST(Migrations, ADatabaseOfANewerProgramIsRefused) {
  TempDirectory directory;
  {
    ASSERT_TRUE(Catalog::Open({.url = Url(directory)}).ok());
  }
  const ConnectionTarget target{.path = directory / "catalog.db"};
  {
    auto connection = Connection::Open(target).value();
    ASSERT_TRUE(connection
                    ->Run("INSERT INTO schema_migrations (version, name, checksum, applied) "
                          "VALUES (99, 'later', 'x', 0)")
                    .ok());
  }
  for (const auto mode : {CatalogOptions::Mode::kOwner, CatalogOptions::Mode::kReader}) {
    const auto refused = Catalog::Open({.url = Url(directory), .mode = mode});
    ASSERT_TRUE(refused.status().Is(Code::kFailedPrecondition)) << refused.status().ToString();
    EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("newer program"));
  }
}

TEST(Migrations, WhatAnOlderProgramWroteIsBroughtUpToDate) {
  TempDirectory directory;
  const ConnectionTarget target{.path = directory / "catalog.db"};
  {
    auto connection = Connection::Open(target).value();
    ASSERT_TRUE(Migrate(connection.get(), Clock::System(), CatalogMigrations().subspan(0, 3)).ok());
    ASSERT_TRUE(connection
                    ->Script("INSERT INTO experiments (uuid, name, description, owner, state, "
                             "code_digest, code_bytes, storage, parent_trial, parent_checkpoint, "
                             "metric, smaller_is_better, labels, notes, created, haystack) VALUES "
                             "('u', '', '', 'ada', 'COMPLETED', '', 0, '', '', '', '', 1, '[]', "
                             "'', 1, '1');\n"
                             "INSERT INTO runs (trial, run, started, resume_mode, start_point, "
                             "archives_past) VALUES ('1', 1, 1, 'fresh', 'null', -9), ('1', 2, 2, "
                             "'resume', 'null', 100);\n"
                             "INSERT INTO reports (seq, trial, grp, run, time, steps, body) VALUES "
                             "(1, '1', 'validation', 1, 1, 100, '{\"steps_completed\": 100}'), "
                             "(2, '1', 'validation', 2, 2, 100, '{\"steps_completed\": 100}'), "
                             "(3, '1', 'validation', 2, 3, 110, '{\"steps_completed\": 110}')")
                    .ok());
  }
  auto catalog = Catalog::Open({.url = Url(directory)});
  ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
  EXPECT_EQ((*catalog)->experiments().Get(1)->name, "experiment 1");
  EXPECT_EQ((*catalog)->experiments().List({.search = "experiment 1"})->total, 1u);
  const auto reports = (*catalog)->metrics().Reports({.trial = "1"});
  ASSERT_TRUE(reports.ok()) << reports.status().ToString();
  ASSERT_EQ(reports->size(), 2u);
  EXPECT_EQ((*reports)[0].run, 2u);
}

TEST(Migrations, HowLongThingsRanIsTakenFromTheirRuns) {
  TempDirectory directory;
  {
    auto connection = Connection::Open({.path = directory / "catalog.db"}).value();
    ASSERT_TRUE(Migrate(connection.get(), Clock::System(), CatalogMigrations().subspan(0, 6)).ok());
    const auto experiment = [](int id, int trials, int started) {
      return fmt::format(
          "INSERT INTO experiments (id, uuid, name, description, owner, state, code_digest, "
          "code_bytes, storage, parent_trial, parent_checkpoint, metric, smaller_is_better, "
          "labels, "
          "notes, created, haystack, trials, started) VALUES ({0}, '{0}', '', '', 'ada', "
          "'RUNNING', "
          "'', 0, '', '', '', '', 1, '[]', '', 1, '', {1}, {2});\n",
          id, trials, started);
    };
    const auto trial = [](int id, int experiment, std::string_view state, int ended) {
      return fmt::format(
          "INSERT INTO trials (id, experiment, experiment_id, state, core, config, parent_trial, "
          "parent_checkpoint, created, started, ended) VALUES ('{}', '{}', {}, '{}', '{{}}', "
          "'{{}}', "
          "'', '', 1, 100, {});\n",
          id, experiment, experiment, state, ended);
    };
    const auto run = [](int trial, int number, int started, int ended) {
      return fmt::format(
          "INSERT INTO runs (trial, run, started, ended, resume_mode, start_point, archives_past) "
          "VALUES ('{}', {}, {}, {}, 'fresh', 'null', 0);\n",
          trial, number, started, ended);
    };
    const std::string rows = experiment(1, 1, 100) + trial(1, 1, "RUNNING", 0) +
                             run(1, 1, 100, 200) + run(1, 2, 500, 0) + experiment(2, 2, 100) +
                             trial(2, 2, "COMPLETED", 700) + trial(3, 2, "COMPLETED", 900) +
                             run(2, 1, 100, 700) + run(3, 1, 100, 900) + experiment(3, 2, 100) +
                             trial(4, 3, "PAUSED", 700) + trial(5, 3, "RUNNING", 0) +
                             run(4, 1, 100, 700) + run(5, 1, 300, 0) + experiment(4, 0, 0);
    const Status written = connection->Script(rows);
    ASSERT_TRUE(written.ok()) << written.ToString();
  }
  auto catalog = Catalog::Open({.url = Url(directory)});
  ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
  const auto times = [&](std::int64_t id) {
    const auto one = (*catalog)->experiments().Get(id).value();
    return std::tuple(one.ran, one.running_since);
  };
  EXPECT_EQ(times(1), std::tuple(100, 500));
  EXPECT_EQ(times(2), std::tuple(800, 0));
  EXPECT_EQ(times(3), std::tuple(0, 100));
  EXPECT_EQ(times(4), std::tuple(0, 0));
  EXPECT_EQ((*catalog)->trials().Runs("1")->at(1).began, 500);
}

TEST(Migrations, AStepThatFailsLeavesTheVersionBefore) {
  TempDirectory directory;
  auto connection = Connection::Open({.path = directory / "x.db"}).value();
  std::vector<Migration> steps = {
      {.version = 1, .name = "one", .sql = "CREATE TABLE a (x {int});\nCREATE TABLE b (x {blob})"},
      {.version = 2, .name = "two", .sql = "CREATE TABLE c (x {int});\nCREATE TABLE c (x {int})"}};
  EXPECT_FALSE(Migrate(connection.get(), Clock::System(), steps).ok());
  EXPECT_EQ(connection->QueryInt("SELECT MAX(version) FROM schema_migrations").value(), 1);
  EXPECT_EQ(connection->QueryInt("SELECT COUNT(*) FROM sqlite_master WHERE name = 'c'").value(), 0);
  EXPECT_TRUE(CheckSchema(connection.get(), steps).Is(Code::kFailedPrecondition));
  steps[1].sql = "CREATE TABLE c (x {int})";
  ASSERT_TRUE(Migrate(connection.get(), Clock::System(), steps).ok());
  ASSERT_TRUE(Migrate(connection.get(), Clock::System(), steps).ok());
  EXPECT_TRUE(CheckSchema(connection.get(), steps).ok());
  steps[0].sql = "CREATE TABLE a (x {real})";
  const Status changed = Migrate(connection.get(), Clock::System(), steps);
  EXPECT_TRUE(changed.Is(Code::kFailedPrecondition)) << changed.ToString();
}

}  // namespace
}  // namespace cairn
