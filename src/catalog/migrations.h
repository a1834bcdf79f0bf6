#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/clock.h"
#include "catalog/connection.h"

namespace cairn {

/// One step of the schema. The text is for both databases; in braces stands what they call
/// differently: {serial} {int} {real} {blob}. Once released it is never changed: a database
/// remembers its checksum.
struct Migration {
  int version = 0;  // 1, 2, 3 …
  std::string_view name;
  std::string_view sql;
};

/// All steps, in order.
std::span<const Migration> CatalogMigrations();

/// Brings the tables to the newest version, each step in a transaction of its own: killed in the
/// middle, the database has the version before. FailedPrecondition for a database that a newer
/// program made, or whose steps are not ours.
Status Migrate(Connection* connection, Clock* clock,
               std::span<const Migration> migrations = CatalogMigrations());

/// OK when the tables have the newest version; FailedPrecondition says what to do otherwise.
Status CheckSchema(Connection* connection,
                   std::span<const Migration> migrations = CatalogMigrations());

/// The text as one of the databases wants it.
std::string InDialect(std::string_view sql, Dialect dialect);

}  // namespace cairn
