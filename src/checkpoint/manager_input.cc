#include "checkpoint/manager_input.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/retention.h"
#include "format/json.h"
#include "storage/store.h"

namespace cairn {
namespace {

constexpr int kMostCopyThreads = 1024;

}  // namespace

Status ValidateOptions(const ManagerOptions& options) {
  RETURN_IF_ERROR(ValidateRetention(options.retention));
  if (options.world_size < 1) return InvalidArgumentError("world_size must be at least 1");
  if (options.rank < 0 || options.rank >= options.world_size) {
    return InvalidArgumentError("rank " + std::to_string(options.rank) +
                                " is not one of world_size " + std::to_string(options.world_size));
  }
  if (options.participant.empty() || !ValidateObjectName(options.participant).ok() ||
      options.participant.find('/') != options.participant.npos) {
    return InvalidArgumentError("participant must be a plain name like \"rank\" or \"trainer\"");
  }
  if (options.copy_threads < 0 || options.copy_threads > kMostCopyThreads) {
    return InvalidArgumentError("copy_threads must be between 0 (as many as there are cores) and " +
                                std::to_string(kMostCopyThreads) + ", not " +
                                std::to_string(options.copy_threads));
  }
  return Status::Ok();
}

Status ValidateValues(const SaveRequest& request) {
  const std::pair<const char*, const Value*> members[] = {{"counters", &request.counters},
                                                          {"metrics", &request.metrics},
                                                          {"metadata", &request.metadata},
                                                          {"lineage", &request.lineage}};
  for (const auto& [name, value] : members) {
    if (!value->is_object()) return InvalidArgumentError(std::string(name) + " must be an object");
    // Two levels are the manifest's own.
    RETURN_IF_ERROR(ValidateJsonValue(*value, kMaxJsonDepth - 2).WithContext(name));
  }
  return Status::Ok();
}

}  // namespace cairn
