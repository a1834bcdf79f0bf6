// What bench/catalog.py measures of the catalog, on one database (an empty one):
//   append URL REPORTS GROUP ROUNDS  durable reports in groups, beside the same rows in the same
//                                    transactions
//   list URL EXPERIMENTS PAGES       pages of 50 experiments
//   series URL POINTS READS          a long curve read as 1,000 points
//   curve URL POINTS                 only writes one, for bench/master.py to ask a master for
// Prints a JSON object; times in seconds.

#include <libpq-fe.h>
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "catalog/catalog.h"
#include "catalog/connection.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr int kTrials = 16;

double Now() { return std::chrono::duration<double>(Clock::System()->Now()).count(); }

/// Makes the events of trials that report.
class Reports {
 public:
  std::vector<Event> Begin() {
    using O = Value::Object;
    std::vector<Event> events;
    for (int i = 1; i <= kTrials; ++i) {
      const TrialConfig config{.experiment = "1", .argv = {"train"}, .storage = "/data"};
      Add(i, 0, EventKind::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}},
          &events);
      Add(i, 1, EventKind::kRunStarted, O{{"from", Value()}, {"resume_mode", "fresh"}}, &events);
      Add(i, 1, EventKind::kRunReady, O{{"rank", 0}}, &events);
    }
    return events;
  }
  std::vector<Event> Group(std::size_t size) {
    using O = Value::Object;
    std::vector<Event> events;
    for (std::size_t i = 0; i < size; ++i) {
      const std::int64_t step = ++reported_;
      Add(1 + static_cast<int>(step % kTrials), 1, EventKind::kReport,
          O{{"sequence", step},
            {"group", "training"},
            {"steps_completed", step},
            {"metrics", O{{"loss", std::sin(static_cast<double>(step))},
                          {"accuracy", 1.0 / static_cast<double>(step)},
                          {"samples", step * 32}}}},
          &events);
    }
    return events;
  }

 private:
  void Add(int trial, std::uint64_t run, EventKind kind, Value body, std::vector<Event>* events) {
    events->push_back({.seq = ++seq_,
                       .time = 1'700'000'000'000'000'000 + static_cast<std::int64_t>(seq_),
                       .trial = std::to_string(trial),
                       .run = run,
                       .kind = kind,
                       .body = std::move(body)});
  }
  std::uint64_t seq_ = 0;
  std::int64_t reported_ = 0;
};

/// One program that inserts rows by the database's own library.
class PlainRows {
 public:
  virtual ~PlainRows() = default;
  virtual void Insert(const std::vector<Event>& events) = 0;

 protected:
  static constexpr const char* kTable =
      "CREATE TABLE plain (seq BIGINT PRIMARY KEY, trial TEXT NOT NULL, grp TEXT NOT NULL, run "
      "BIGINT NOT NULL, time BIGINT NOT NULL, steps BIGINT NOT NULL, body TEXT NOT NULL)";
  static constexpr const char* kIndex = "CREATE INDEX plain_trial ON plain (trial, grp, seq)";
  static void Die(const char* what, const char* why) {
    std::fprintf(stderr, "%s: %s\n", what, why);
    std::exit(1);
  }
};

class PlainSqlite final : public PlainRows {
 public:
  explicit PlainSqlite(const std::string& path) {
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) Die("sqlite", sqlite3_errmsg(db_));
    Exec("PRAGMA journal_mode=WAL");
    Exec("PRAGMA synchronous=FULL");
    Exec(kTable);
    Exec(kIndex);
    sqlite3_prepare_v2(db_, "INSERT INTO plain VALUES (?, ?, ?, ?, ?, ?, ?)", -1, &insert_,
                       nullptr);
  }
  ~PlainSqlite() override {
    sqlite3_finalize(insert_);
    sqlite3_close(db_);
  }
  void Insert(const std::vector<Event>& events) override {
    Exec("BEGIN IMMEDIATE");
    for (const Event& event : events) {
      const std::string body = EncodeJson(event.body);
      sqlite3_bind_int64(insert_, 1, static_cast<sqlite3_int64>(event.seq));
      sqlite3_bind_text(insert_, 2, event.trial.c_str(), -1, SQLITE_STATIC);
      sqlite3_bind_text(insert_, 3, "training", -1, SQLITE_STATIC);
      sqlite3_bind_int64(insert_, 4, static_cast<sqlite3_int64>(event.run));
      sqlite3_bind_int64(insert_, 5, event.time);
      sqlite3_bind_int64(insert_, 6, event.body.Find("steps_completed")->AsInt());
      sqlite3_bind_text(insert_, 7, body.c_str(), -1, SQLITE_STATIC);
      if (sqlite3_step(insert_) != SQLITE_DONE) Die("insert", sqlite3_errmsg(db_));
      sqlite3_reset(insert_);
    }
    Exec("COMMIT");
  }

 private:
  void Exec(const char* sql) {
    if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
      Die(sql, sqlite3_errmsg(db_));
    }
  }
  sqlite3* db_ = nullptr;
  sqlite3_stmt* insert_ = nullptr;
};

class PlainPostgres final : public PlainRows {
 public:
  explicit PlainPostgres(const std::string& url) : db_(PQconnectdb(url.c_str())) {
    Exec("SET synchronous_commit = on");
    Exec(kTable);
    Exec(kIndex);
    PQclear(
        PQprepare(db_, "i", "INSERT INTO plain VALUES ($1, $2, $3, $4, $5, $6, $7)", 7, nullptr));
  }
  ~PlainPostgres() override { PQfinish(db_); }
  void Insert(const std::vector<Event>& events) override {
    Exec("BEGIN");
    for (const Event& event : events) {
      const std::string texts[] = {std::to_string(event.seq),
                                   event.trial,
                                   "training",
                                   std::to_string(event.run),
                                   std::to_string(event.time),
                                   std::to_string(event.body.Find("steps_completed")->AsInt()),
                                   EncodeJson(event.body)};
      const char* values[7];
      for (int i = 0; i < 7; ++i) values[i] = texts[i].c_str();
      PGresult* result = PQexecPrepared(db_, "i", 7, values, nullptr, nullptr, 0);
      if (PQresultStatus(result) != PGRES_COMMAND_OK) Die("insert", PQerrorMessage(db_));
      PQclear(result);
    }
    Exec("COMMIT");
  }

 private:
  void Exec(const char* sql) {
    PGresult* result = PQexec(db_, sql);
    if (PQresultStatus(result) != PGRES_COMMAND_OK) Die(sql, PQerrorMessage(db_));
    PQclear(result);
  }
  PGconn* db_;
};

bool IsSqlite(const std::string& url) { return url.starts_with("sqlite:"); }

Result<Value> Append(const std::string& url, std::size_t reports, std::size_t group, int rounds) {
  ASSIGN_OR_RETURN(const auto catalog, Catalog::Open({.url = url}));
  std::unique_ptr<PlainRows> plain;
  if (IsSqlite(url)) {
    plain = std::make_unique<PlainSqlite>(url.substr(7) + ".plain");
  } else {
    plain = std::make_unique<PlainPostgres>(url);
  }
  Reports maker;
  RETURN_IF_ERROR(catalog->events().Append(maker.Begin()));
  Value::List ours;
  Value::List theirs;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::vector<Event>> groups;
    for (std::size_t made = 0; made < reports; made += group) groups.push_back(maker.Group(group));
    double began = Now();
    for (const auto& events : groups) RETURN_IF_ERROR(catalog->events().Append(events));
    ours.emplace_back(Now() - began);
    began = Now();
    for (const auto& events : groups) plain->Insert(events);
    theirs.emplace_back(Now() - began);
  }
  return Value(Value::Object{{"catalog", std::move(ours)}, {"plain", std::move(theirs)}});
}

/// Percentiles of times, in seconds.
Value Summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return times[std::min(times.size() - 1, static_cast<std::size_t>(part * times.size()))];
  };
  return Value::Object{{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", times.back()}};
}

Result<Value> List(const std::string& url, int experiments, int pages) {
  {
    ASSIGN_OR_RETURN(const auto catalog, Catalog::Open({.url = url}));
    RETURN_IF_ERROR(catalog->experiments().Create({.uuid = "first", .name = "first"}).status());
    // All others in one transaction, by copying the first: creating them is not measured.
    ASSIGN_OR_RETURN(
        const auto connection,
        Connection::Open(IsSqlite(url)
                             ? ConnectionTarget{.path = url.substr(7)}
                             : ConnectionTarget{.dialect = Dialect::kPostgres, .conninfo = url}));
    RETURN_IF_ERROR(connection->Script("BEGIN"));
    for (int i = 2; i <= experiments; ++i) {
      const std::string name = "experiment number " + std::to_string(i * 7919 % experiments);
      RETURN_IF_ERROR(connection->Run(
          "INSERT INTO experiments (uuid, name, description, owner, state, code_digest, "
          "code_bytes, storage, parent_trial, parent_checkpoint, metric, smaller_is_better, "
          "labels, notes, progress, created, started, ended, haystack) SELECT ?, ?, description, "
          "?, ?, code_digest, code_bytes, storage, '', '', 'loss', 1, '[\"a\"]', notes, ?, "
          "created, ?, ?, ? FROM experiments WHERE id = 1",
          {name + "/" + std::to_string(i), name, "owner " + std::to_string(i % 20),
           std::string(i % 3 == 0 ? "ACTIVE" : "COMPLETED"), (i % 100) / 100.0,
           static_cast<std::int64_t>(1000 + i), static_cast<std::int64_t>(2000 + i * 13 % 997),
           name}));
    }
    RETURN_IF_ERROR(connection->Script("COMMIT"));
    std::vector<Event> events;
    std::uint64_t seq = 0;
    for (int i = 1; i <= experiments; ++i) {
      for (int trial = 0; trial < 2; ++trial) {
        const TrialConfig config{
            .experiment = std::to_string(i), .argv = {"train"}, .storage = "/data"};
        ++seq;
        events.push_back({.seq = seq,
                          .trial = std::to_string(seq),
                          .kind = EventKind::kTrialCreated,
                          .body = Value::Object{{"config", ToValue(config)}, {"parent", Value()}}});
      }
      if (events.size() >= 2000 || i == experiments) {
        RETURN_IF_ERROR(catalog->events().Append(events));
        events.clear();
      }
    }
  }
  ASSIGN_OR_RETURN(const auto catalog, Catalog::Open({.url = url}));
  std::vector<double> times;
  for (int i = 0; i < pages; ++i) {
    ExperimentQuery query{.sort = static_cast<ExperimentSort>(i % 11),
                          .descending = i % 2 == 0,
                          .offset = static_cast<std::uint64_t>(i * 50 % experiments),
                          .now = 5000};
    if (i % 5 == 1) query.search = "number 1";
    if (i % 5 == 2) query.states = {"ACTIVE"};
    if (i % 5 == 3) query.owners = {"owner 3", "owner 4"};
    const double began = Now();
    ASSIGN_OR_RETURN(const auto page, catalog->experiments().List(query));
    times.push_back(Now() - began);
    if (page.total == 0) return InternalError("an empty list");
  }
  return Summary(std::move(times));
}

Result<Value> Series(const std::string& url, std::size_t points, int reads) {
  ASSIGN_OR_RETURN(const auto catalog, Catalog::Open({.url = url}));
  Reports maker;
  RETURN_IF_ERROR(catalog->events().Append(maker.Begin()));
  for (std::size_t made = 0; made < points * kTrials; made += 8192) {
    // Of one trial alone: the others are given up again.
    std::vector<Event> events = maker.Group(std::min<std::size_t>(8192, points * kTrials - made));
    for (Event& event : events) event.trial = "1";
    if (made >= points) break;
    events.resize(std::min(events.size(), points - made));
    RETURN_IF_ERROR(catalog->events().Append(events));
  }
  std::vector<double> one;
  std::vector<double> all;
  for (int i = 0; i < reads; ++i) {
    double began = Now();
    ASSIGN_OR_RETURN(
        const auto series,
        catalog->metrics().Series({.trial = "1", .group = "training", .names = {"loss"}}, 1000));
    one.push_back(Now() - began);
    if (series.size() != 1 || series[0].total != points || series[0].points.size() > 1000) {
      return InternalError("the curve is not as it was reported");
    }
    began = Now();
    RETURN_IF_ERROR(catalog->metrics().Series({.trial = "1"}, 1000).status());
    all.push_back(Now() - began);
  }
  return Value(Value::Object{{"one", Summary(std::move(one))}, {"all", Summary(std::move(all))}});
}

/// A trial that has ended, as a master would have written it: another program reads its curve.
Result<Value> Curve(const std::string& url, std::int64_t points) {
  using O = Value::Object;
  ASSIGN_OR_RETURN(const auto catalog, Catalog::Open({.url = url}));
  ASSIGN_OR_RETURN(const std::int64_t experiment,
                   catalog->experiments().Create({.uuid = "curve",
                                                  .owner = "admin",
                                                  .state = "COMPLETED",
                                                  .config = O{{"entrypoint", "train"}}}));
  const TrialConfig config{
      .experiment = std::to_string(experiment), .argv = {"train"}, .storage = "/data"};
  std::vector<Event> events;
  std::uint64_t seq = 0;
  const auto add = [&](std::uint64_t run, EventKind kind, Value body) {
    events.push_back(
        {.seq = ++seq,
         .time = 1'700'000'000'000'000'000 + static_cast<std::int64_t>(seq) * 1'000'000,
         .trial = "1",
         .run = run,
         .kind = kind,
         .body = std::move(body)});
  };
  add(0, EventKind::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
  add(1, EventKind::kRunStarted, O{{"from", Value()}, {"resume_mode", "fresh"}});
  for (std::int64_t i = 1; i <= points; ++i) {
    add(1, EventKind::kReport,
        O{{"sequence", i},
          {"group", "training"},
          {"steps_completed", i},
          {"metrics", O{{"loss", 1 / std::sqrt(static_cast<double>(i))},
                        {"accuracy", std::sin(static_cast<double>(i))},
                        {"samples", 32 * i}}}});
    if (events.size() < 8192) continue;
    RETURN_IF_ERROR(catalog->events().Append(events));
    events.clear();
  }
  add(1, EventKind::kRunExited, O{{"code", 0}});
  RETURN_IF_ERROR(catalog->events().Append(events));
  return Value(O{{"trial", "1"}});
}

Result<Value> Run(const std::vector<std::string>& words) {
  const auto number = [&](std::size_t i) { return std::atoi(words.at(i).c_str()); };
  if (words.size() == 6 && words[1] == "append") {
    return Append(words[2], static_cast<std::size_t>(number(3)),
                  static_cast<std::size_t>(number(4)), number(5));
  }
  if (words.size() == 5 && words[1] == "list") return List(words[2], number(3), number(4));
  if (words.size() == 5 && words[1] == "series") {
    return Series(words[2], static_cast<std::size_t>(number(3)), number(4));
  }
  if (words.size() == 4 && words[1] == "curve") return Curve(words[2], number(3));
  return InvalidArgumentError(
      "append URL REPORTS GROUP ROUNDS | list URL EXPERIMENTS PAGES | "
      "series URL POINTS READS | curve URL POINTS");
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const auto result = cairn::Run(std::vector<std::string>(argv, argv + argc));
  if (!result.ok()) {
    std::fprintf(stderr, "catalog_bench: %s\n", result.status().ToString().c_str());
    return 1;
  }
  std::puts(cairn::EncodeJson(*result).c_str());
  return 0;
}
