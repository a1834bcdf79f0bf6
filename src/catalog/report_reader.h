#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include <cairn/status.h>

#include "catalog/connection.h"
#include "catalog/report_block.h"

namespace cairn {

/// Reports are rows of `reports` until there are so many of a trial and group; then they become a
/// block.
inline constexpr std::size_t kReportsPerBlock = 1024;

/// Which reports of a trial do not count any more: a run that goes back archives what earlier runs
/// reported past its start, and what they reported of steps up to it that it reports again. Derived
/// from the runs and from `repeated_steps`, so that no report is ever rewritten.
class ArchiveRules {
 public:
  static Result<ArchiveRules> Load(Connection* connection, const std::string& trial);
  bool Archives(const std::string& group, std::uint64_t run, std::int64_t steps) const;

 private:
  // The smallest step past which reports of runs before this one are archived by it or a later one.
  std::map<std::uint64_t, std::int64_t> past_;
  // By group: the last run that reported the step again.
  std::map<std::string, std::map<std::int64_t, std::uint64_t>, std::less<>> repeated_;
};

/// `archives_past` of a run that archives everything.
inline constexpr std::int64_t kArchivesAll = std::numeric_limits<std::int64_t>::min() / 2;

/// The trial's blocks in order, of one group or ("") of all; those that hold no step within the
/// bounds are left out. The visitor must not use the connection.
struct BlockFilter {
  std::string trial;
  std::string group;
  std::int64_t from_steps = std::numeric_limits<std::int64_t>::min();
  std::int64_t to_steps = std::numeric_limits<std::int64_t>::max();
  std::uint64_t from_seq = 0;
};
using BlockVisitor = std::function<Status(const std::string& group, ReportBlock* block)>;
Status VisitReportBlocks(Connection* connection, const BlockFilter& filter,
                         const BlockVisitor& visit);

/// The reports that are in no block yet, in order.
using ReportVisitor = std::function<Status(const std::string& group, StoredReport report)>;
Status VisitLooseReports(Connection* connection, const BlockFilter& filter,
                         const ReportVisitor& visit);

}  // namespace cairn
