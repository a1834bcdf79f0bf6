#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "catalog/database.h"
#include "catalog/event_tables.h"
#include "trial/event_log.h"

namespace cairn {

/// The events of a catalog, with the tables that follow from them in the same transactions. Reports
/// are kept apart from the other events: they are many, and become blocks.
class CatalogEventLog final : public EventLog {
 public:
  explicit CatalogEventLog(CatalogDatabase* db) : db_(db) {}

  Status Append(std::span<const Event> events) override;
  Status Replay(std::uint64_t from, const Visitor& visit) override;
  /// What the trials came to, as Compact left it; reports stay in their tables.
  Result<TrialRecords> Restore() override;
  /// Writes anew what is known of those trials to which something happened since. Removes no event.
  Status Compact() override;
  bool CompactsInSteps() const override { return true; }
  Result<std::uint64_t> Last();

 private:
  using Group = std::pair<std::string, std::string>;  // trial, group

  /// The events from `from` to `to`.
  Status ReplayRange(std::uint64_t from, std::uint64_t to, const Visitor& visit);
  /// Takes the events up to `to` into the summaries, which stand for those up to `from`.
  Status Summarize(std::uint64_t from, std::uint64_t to);
  Status AppendIn(Connection* connection, std::span<const Event> events) REQUIRES(mu_);
  Status LoadTail(Connection* connection) REQUIRES(mu_);
  /// Puts the oldest loose reports of a group into a block.
  Status MakeBlock(Connection* connection, const Group& group) REQUIRES(mu_);

  CatalogDatabase* const db_;
  Mutex mu_;
  // What is known of the database; after a failure all of it is read anew.
  bool tail_known_ GUARDED_BY(mu_) = false;
  std::uint64_t last_ GUARDED_BY(mu_) = 0;
  std::map<Group, std::size_t> loose_ GUARDED_BY(mu_);  // reports in no block
  EventTables tables_ GUARDED_BY(mu_);
};

}  // namespace cairn
