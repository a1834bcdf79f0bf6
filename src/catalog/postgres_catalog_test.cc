// The catalog on a real PostgreSQL, and what is its own: a server that goes away and comes back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "catalog/conformance.h"
#include "catalog/connection.h"
#include "catalog/migrations.h"
#include "catalog/test_events.h"
#include "catalog/test_postgres_server.h"
#include "catalog/test_tables.h"

namespace cairn {
namespace {

CatalogUnderTest OnSharedServer() {
  const auto server = TestPostgresServer::Shared();
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  if (!server.ok()) return {};
  const auto url = (*server)->FreshDatabase();
  EXPECT_TRUE(url.ok()) << url.status().ToString();
  return {nullptr, url.ok() ? *url : ""};
}

INSTANTIATE_TEST_SUITE_P(Postgres, CatalogConformance,
                         ::testing::Values(CatalogFactory{"postgres", OnSharedServer}),
                         CatalogConformance::Name);

TEST(PostgresCatalog, AServerThatWasGoneIsFoundAgainAndNothingIsLost) {
  auto server = TestPostgresServer::Start();
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const std::string url = (*server)->FreshDatabase().value();
  auto catalog = Catalog::Open({.url = url, .timeout = std::chrono::seconds(60)}).value();
  EventMaker maker(9);
  std::vector<Event> all;
  const auto append = [&](const std::vector<Event>& events) {
    return catalog->events().Append(events);
  };
  for (const bool in_good_order : {true, false}) {
    std::vector<Event> events = maker.Some(30);
    all.insert(all.end(), events.begin(), events.end());
    ASSERT_TRUE(append(events).ok());
    ASSERT_TRUE(catalog->Ping().ok());
    if (in_good_order) {
      (*server)->Stop();
    } else {
      (*server)->Kill();
    }
    events = maker.Some(30);
    all.insert(all.end(), events.begin(), events.end());
    const Status gone = append(events);
    EXPECT_TRUE(gone.Is(Code::kUnavailable)) << gone.ToString();
    EXPECT_TRUE(append(events).Is(Code::kUnavailable));
    EXPECT_TRUE(catalog->Ping().Is(Code::kUnavailable));
    EXPECT_TRUE(catalog->trials().List({}).status().Is(Code::kUnavailable));
    ASSERT_TRUE((*server)->Launch().ok());
    const Status back = append(events);
    EXPECT_TRUE(back.ok()) << back.ToString();
    EXPECT_TRUE(catalog->Ping().ok());
  }
  // While nobody is looking: the next call finds dead connections and makes new ones.
  (*server)->Stop();
  ASSERT_TRUE((*server)->Launch().ok());
  EXPECT_TRUE(catalog->trials().List({}).ok());
  EXPECT_TRUE(append(maker.Some(5)).ok());
  ExpectTablesAgree(catalog.get(), maker.records());
  auto replayed = ReplayAll(&catalog->events());
  replayed.resize(all.size());
  EXPECT_EQ(replayed, all);
}

TEST(PostgresCatalog, AServerThatDiesWhileItIsWrittenToLosesNothing) {
  auto server = TestPostgresServer::Start();
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  auto catalog = Catalog::Open({.url = (*server)->FreshDatabase().value()}).value();
  EventMaker maker(10);
  std::atomic<std::uint64_t> appended{0};
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    while (!stop) {
      const std::vector<Event> events = maker.Some(20);
      while (!catalog->events().Append(events).ok()) std::this_thread::yield();
      appended = events.back().seq;
    }
  });
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t before = appended;
    while (appended < before + 200) std::this_thread::yield();
    (*server)->Kill();
    ASSERT_TRUE((*server)->Launch().ok());
  }
  stop = true;
  writer.join();
  ExpectTablesAgree(catalog.get(), maker.records());
  EXPECT_EQ(catalog->LastEvent().value(), maker.records().last_seq());
}

TEST(PostgresCatalog, WhatCannotBeOpenedIsNamed) {
  const auto server = TestPostgresServer::Shared();
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_TRUE(Catalog::Open({.url = (*server)->Url("no_such_database")})
                  .status()
                  .Is(Code::kFailedPrecondition));
  EXPECT_TRUE(Catalog::Open({.url = "postgresql://postgres@127.0.0.1:1/x"})
                  .status()
                  .Is(Code::kUnavailable));
  const std::string url = (*server)->FreshDatabase().value();
  auto catalog = Catalog::Open({.url = url}).value();
  const Status backup = catalog->Backup("/tmp/never-made");
  EXPECT_TRUE(backup.Is(Code::kUnimplemented));
  EXPECT_THAT(std::string(backup.message()), ::testing::HasSubstr("pg_dump"));
}

TEST(PostgresCatalog, AStepOfTheSchemaThatFailsLeavesTheVersionBefore) {
  const auto server = TestPostgresServer::Shared();
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  auto connection = Connection::Open({.dialect = Dialect::kPostgres,
                                      .conninfo = (*server)->FreshDatabase().value()})
                        .value();
  const std::vector<Migration> steps = {
      {.version = 1, .name = "one", .sql = "CREATE TABLE a (x {int})"},
      {.version = 2, .name = "two", .sql = "CREATE TABLE c (x {int});\nCREATE TABLE c (x {int})"}};
  EXPECT_FALSE(Migrate(connection.get(), Clock::System(), steps).ok());
  EXPECT_EQ(connection->QueryInt("SELECT MAX(version) FROM schema_migrations").value(), 1);
  EXPECT_EQ(
      connection->QueryInt("SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'c'")
          .value(),
      0);
}

/// Codes that a server gives only when something is broken.
TEST(PostgresCatalog, ErrorsOfTheServerHaveTheirStatus) {
  const auto server = TestPostgresServer::Shared();
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  auto connection =
      Connection::Open({.dialect = Dialect::kPostgres, .conninfo = (*server)->Url("postgres")})
          .value();
  const auto raise = [&](const std::string& state) {
    return connection
        ->Script("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '" + state + "'; END $$")
        .code();
  };
  EXPECT_EQ(raise("53100"), Code::kResourceExhausted);  // disk full
  EXPECT_EQ(raise("53300"), Code::kUnavailable);        // too many connections
  EXPECT_EQ(raise("40001"), Code::kUnavailable);        // serialization
  EXPECT_EQ(raise("57014"), Code::kDeadlineExceeded);   // canceled by a timeout
  EXPECT_EQ(raise("58030"), Code::kUnavailable);        // I/O error
  EXPECT_EQ(raise("XX001"), Code::kCorruption);
  EXPECT_EQ(raise("42501"), Code::kPermissionDenied);
  EXPECT_EQ(raise("23505"), Code::kAlreadyExists);
  EXPECT_FALSE(connection->lost());
}

}  // namespace
}  // namespace cairn
