#include <array>

#include "catalog/migrations.h"

namespace cairn {
namespace {

// docs/format/catalog.md says what the columns hold.
constexpr std::string_view kFirst = R"(
CREATE TABLE owner (
  id {int} PRIMARY KEY, epoch {int} NOT NULL, uuid TEXT NOT NULL, host TEXT NOT NULL,
  pid {int} NOT NULL, since {int} NOT NULL);
INSERT INTO owner (id, epoch, uuid, host, pid, since) VALUES (1, 0, '', '', 0, 0);

CREATE TABLE events (
  seq {int} PRIMARY KEY, time {int} NOT NULL, trial TEXT NOT NULL, run {int} NOT NULL,
  kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX events_trial ON events (trial, seq);

CREATE TABLE reports (
  seq {int} PRIMARY KEY, trial TEXT NOT NULL, grp TEXT NOT NULL, run {int} NOT NULL,
  time {int} NOT NULL, steps {int} NOT NULL, body TEXT NOT NULL);
CREATE INDEX reports_trial ON reports (trial, grp, seq);
CREATE TABLE report_blocks (
  first_seq {int} PRIMARY KEY, last_seq {int} NOT NULL, trial TEXT NOT NULL, grp TEXT NOT NULL,
  reports {int} NOT NULL, min_steps {int} NOT NULL, max_steps {int} NOT NULL,
  data {blob} NOT NULL);
CREATE INDEX report_blocks_trial ON report_blocks (trial, grp, first_seq);
CREATE INDEX report_blocks_last ON report_blocks (last_seq, first_seq);
CREATE TABLE metric_names (
  trial TEXT NOT NULL, grp TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (trial, grp, name));

CREATE TABLE experiments (
  id {serial}, uuid TEXT NOT NULL UNIQUE, name TEXT NOT NULL, description TEXT NOT NULL,
  owner TEXT NOT NULL, state TEXT NOT NULL, code_digest TEXT NOT NULL, code_bytes {int} NOT NULL,
  storage TEXT NOT NULL, parent_trial TEXT NOT NULL, parent_checkpoint TEXT NOT NULL,
  metric TEXT NOT NULL, smaller_is_better {int} NOT NULL, labels TEXT NOT NULL,
  notes TEXT NOT NULL, progress {real} NOT NULL DEFAULT 0, archived {int} NOT NULL DEFAULT 0,
  deleted {int} NOT NULL DEFAULT 0, created {int} NOT NULL, started {int} NOT NULL DEFAULT 0,
  ended {int} NOT NULL DEFAULT 0, message TEXT NOT NULL DEFAULT '',
  trials {int} NOT NULL DEFAULT 0, best_metric {real}, best_trial TEXT NOT NULL DEFAULT '',
  checkpoints {int} NOT NULL DEFAULT 0, checkpoint_bytes {int} NOT NULL DEFAULT 0,
  haystack TEXT NOT NULL);
CREATE INDEX experiments_state ON experiments (state);
CREATE TABLE experiment_texts (
  id {int} PRIMARY KEY REFERENCES experiments (id) ON DELETE CASCADE,
  config_text TEXT NOT NULL, config TEXT NOT NULL, searcher_state {blob} NOT NULL);

CREATE TABLE trials (
  id TEXT PRIMARY KEY, number {int}, experiment TEXT NOT NULL, experiment_id {int},
  state TEXT NOT NULL, core TEXT NOT NULL, config TEXT NOT NULL, parent_trial TEXT NOT NULL,
  parent_checkpoint TEXT NOT NULL, created {int} NOT NULL, started {int} NOT NULL DEFAULT 0,
  ended {int} NOT NULL DEFAULT 0, progress {real} NOT NULL DEFAULT 0,
  status TEXT NOT NULL DEFAULT '', message TEXT NOT NULL DEFAULT '',
  steps {int} NOT NULL DEFAULT 0, latest_metrics TEXT NOT NULL DEFAULT '{}', best_metric {real},
  best_steps {int} NOT NULL DEFAULT 0, reports {int} NOT NULL DEFAULT 0,
  checkpoints {int} NOT NULL DEFAULT 0, checkpoint_bytes {int} NOT NULL DEFAULT 0);
CREATE INDEX trials_experiment ON trials (experiment, state);
CREATE INDEX trials_experiment_id ON trials (experiment_id, state);

CREATE TABLE runs (
  trial TEXT NOT NULL, run {int} NOT NULL, started {int} NOT NULL, ready {int} NOT NULL DEFAULT 0,
  ended {int} NOT NULL DEFAULT 0, resume_mode TEXT NOT NULL, start_point TEXT NOT NULL,
  archives_past {int} NOT NULL, code {int} NOT NULL DEFAULT 0, signal {int} NOT NULL DEFAULT 0,
  lost {int} NOT NULL DEFAULT 0, stopped {int} NOT NULL DEFAULT 0,
  message TEXT NOT NULL DEFAULT '', PRIMARY KEY (trial, run));

CREATE TABLE checkpoints (
  ordinal {int} PRIMARY KEY, trial TEXT NOT NULL, experiment TEXT NOT NULL, id TEXT NOT NULL,
  registration TEXT NOT NULL, state TEXT NOT NULL, steps {int} NOT NULL, ranks {int} NOT NULL,
  metadata TEXT NOT NULL, metrics TEXT NOT NULL, bytes {int} NOT NULL, generation {int} NOT NULL,
  sequence {int} NOT NULL, path TEXT NOT NULL, pinned {int} NOT NULL, awaits_score {int} NOT NULL,
  run {int} NOT NULL, time {int} NOT NULL, completed {int} NOT NULL, reason TEXT NOT NULL,
  kind TEXT NOT NULL, base TEXT NOT NULL);
CREATE INDEX checkpoints_trial ON checkpoints (trial, steps);
CREATE INDEX checkpoints_experiment ON checkpoints (experiment);
CREATE INDEX checkpoints_id ON checkpoints (id);
CREATE INDEX checkpoints_registration ON checkpoints (registration);

CREATE TABLE log_blocks (
  trial TEXT NOT NULL, first_id {int} NOT NULL, last_id {int} NOT NULL, min_run {int} NOT NULL,
  max_run {int} NOT NULL, min_time {int} NOT NULL, max_time {int} NOT NULL, levels {int} NOT NULL,
  bytes {int} NOT NULL, merged {int} NOT NULL, data {blob} NOT NULL,
  PRIMARY KEY (trial, first_id));
CREATE INDEX log_blocks_time ON log_blocks (max_time);
CREATE TABLE log_trials (
  trial TEXT PRIMARY KEY, next_id {int} NOT NULL, bytes {int} NOT NULL, loose {int} NOT NULL);
CREATE TABLE log_positions (
  trial TEXT NOT NULL, run {int} NOT NULL, next {int} NOT NULL, PRIMARY KEY (trial, run));

CREATE TABLE users (
  id {serial}, name TEXT NOT NULL, folded TEXT NOT NULL UNIQUE, password_hash TEXT NOT NULL,
  role TEXT NOT NULL, active {int} NOT NULL, created {int} NOT NULL);
CREATE TABLE tokens (
  id {serial}, kind TEXT NOT NULL, hash TEXT NOT NULL UNIQUE,
  user_id {int} REFERENCES users (id) ON DELETE CASCADE, label TEXT NOT NULL,
  trial TEXT NOT NULL, run {int} NOT NULL, created {int} NOT NULL, expires {int} NOT NULL,
  last_used {int} NOT NULL);
CREATE INDEX tokens_user ON tokens (user_id);

CREATE TABLE webhooks (
  id {serial}, url TEXT NOT NULL, secret TEXT NOT NULL, owner TEXT NOT NULL,
  triggers TEXT NOT NULL, active {int} NOT NULL, created {int} NOT NULL);
CREATE TABLE deliveries (
  id {serial}, webhook {int} NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
  key TEXT NOT NULL, payload TEXT NOT NULL, created {int} NOT NULL, state TEXT NOT NULL,
  attempts {int} NOT NULL, next_attempt {int} NOT NULL, message TEXT NOT NULL,
  UNIQUE (webhook, key));
CREATE INDEX deliveries_due ON deliveries (state, next_attempt);

CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
)";

constexpr std::string_view kSummaries = R"(
CREATE TABLE trial_summaries (trial TEXT PRIMARY KEY, data {blob} NOT NULL);
)";

// A page of experiments is counted without reading their rows.
constexpr std::string_view kCounting = R"(
CREATE INDEX experiments_shown ON experiments (deleted, archived);
)";

// Steps that a run reported again: what earlier runs said of them does not count any more. Of what
// was reported before, those that are in no block yet.
constexpr std::string_view kRepeated = R"(
CREATE TABLE repeated_steps (
  trial TEXT NOT NULL, grp TEXT NOT NULL, steps {int} NOT NULL, run {int} NOT NULL,
  PRIMARY KEY (trial, grp, steps));
INSERT INTO repeated_steps (trial, grp, steps, run)
  SELECT p.trial, p.grp, p.steps, MAX(p.run) FROM reports p
  JOIN runs r ON r.trial = p.trial AND r.run = p.run
  WHERE p.steps <= r.archives_past GROUP BY p.trial, p.grp, p.steps;
)";

// An experiment that was not given a name is called by its number.
constexpr std::string_view kNamed = R"(
UPDATE experiments SET name = 'experiment ' || id, haystack = haystack || '
experiment ' || id WHERE name = '';
)";

// What a run's end was to its trial: an exit code alone does not tell a pause from the end.
constexpr std::string_view kOutcomes = R"(
ALTER TABLE runs ADD COLUMN outcome TEXT NOT NULL DEFAULT '';
)";

// How long processes really ran: without the time in which they waited for slots. Of what was
// recorded before, nobody knows when its processes began: the time of the request stands for it.
constexpr std::string_view kRunning = R"(
ALTER TABLE runs ADD COLUMN began {int} NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN ran {int} NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN running_since {int} NOT NULL DEFAULT 0;
ALTER TABLE experiments ADD COLUMN ran {int} NOT NULL DEFAULT 0;
ALTER TABLE experiments ADD COLUMN running_since {int} NOT NULL DEFAULT 0;
ALTER TABLE experiments ADD COLUMN running {int} NOT NULL DEFAULT 0;
ALTER TABLE experiments ADD COLUMN metric_group TEXT NOT NULL DEFAULT 'validation';
UPDATE runs SET began = started;
UPDATE trials SET
  ran = (SELECT CAST(COALESCE(SUM(r.ended - r.began), 0) AS BIGINT) FROM runs r
    WHERE r.trial = trials.id AND r.ended > r.began),
  running_since = CASE WHEN state IN ('STARTING', 'RUNNING', 'PAUSING', 'STOPPING') THEN
    COALESCE((SELECT MAX(r.began) FROM runs r WHERE r.trial = trials.id AND r.ended = 0), 0)
    ELSE 0 END;
UPDATE experiments SET
  running = (SELECT COUNT(*) FROM trials t
    WHERE t.experiment_id = experiments.id AND t.running_since > 0);
UPDATE experiments SET
  running_since = CASE WHEN running = 0 THEN 0
    WHEN trials = 1 THEN (SELECT MAX(t.running_since) FROM trials t
      WHERE t.experiment_id = experiments.id)
    ELSE started END,
  ran = CASE
    WHEN trials = 1 THEN (SELECT CAST(COALESCE(SUM(t.ran), 0) AS BIGINT) FROM trials t
      WHERE t.experiment_id = experiments.id)
    WHEN running > 0 OR started = 0 THEN 0
    ELSE COALESCE((SELECT CASE WHEN MAX(t.ended) > experiments.started THEN
      MAX(t.ended) - experiments.started ELSE 0 END FROM trials t
      WHERE t.experiment_id = experiments.id), 0) END;
)";

constexpr std::array<Migration, 7> kMigrations = {{
    {.version = 1, .name = "first", .sql = kFirst},
    {.version = 2, .name = "summaries", .sql = kSummaries},
    {.version = 3, .name = "counting", .sql = kCounting},
    {.version = 4, .name = "repeated steps", .sql = kRepeated},
    {.version = 5, .name = "named", .sql = kNamed},
    {.version = 6, .name = "outcomes", .sql = kOutcomes},
    {.version = 7, .name = "running", .sql = kRunning},
}};

}  // namespace

std::span<const Migration> CatalogMigrations() { return kMigrations; }

}  // namespace cairn
