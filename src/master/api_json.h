#pragma once

#include <cstdint>
#include <span>

#include <cairn/status.h>
#include <cairn/value.h>

#include "catalog/catalog.h"
#include "master/api.h"

namespace cairn::master {

// What the catalog has, as docs/openapi.yaml calls it.

/// Seconds since 1970, or null for 0.
Value Seconds(std::int64_t nanos);
Value ToJson(const User& user);
Value ToJson(const Token& token, const std::string& user);
/// `whole`: with what lists leave out.
Value ToJson(const ApiParts& parts, const Experiment& experiment, bool whole);
Value ToJson(const ApiParts& parts, const TrialRow& trial);
Value ToJson(const RunRow& run);
/// `new_bytes` as far as it is known: LookUpNewBytes before.
Value ToJson(const ApiParts& parts, const CheckpointRow& checkpoint);
void LookUpNewBytes(const ApiParts& parts, std::span<const CheckpointRow> rows);
Value ToJson(const RetentionPolicy& policy);
/// Unknown members are refused. `searcher` gives the score where none is named.
Result<RetentionPolicy> PolicyFromBody(const ApiCall& call, const SearcherConfig& searcher);

/// A checkpoint's metadata with what users laid over it; kept in the catalog, because a committed
/// checkpoint never changes.
Result<Value> MetadataOf(const ApiParts& parts, const CheckpointRecord& record);
Status SetMetadata(const ApiParts& parts, const CheckpointRecord& record, const Value& metadata);

/// Reads it again, as the answer to what changed it.
Result<ApiAnswer> ExperimentAnswer(const ApiParts& parts, std::int64_t id, int status = 200);
Result<ApiAnswer> TrialAnswer(const ApiParts& parts, const std::string& trial);
/// A page of checkpoints by what the query of the call says.
Result<ApiAnswer> CheckpointPage(const ApiParts& parts, const ApiCall& call, CheckpointQuery query);
Result<ApiAnswer> TrialPage(const ApiParts& parts, const ApiCall& call, std::string experiment,
                            bool descending);

}  // namespace cairn::master
