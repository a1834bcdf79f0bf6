#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "serving/versions.h"

/// What tests of versions share: updates written down as maps.
namespace cairn::serving {

using RowMap = std::map<std::int64_t, float>;  // a row's weights are all the same number

inline Status PutAll(VersionedTable* table, const RowMap& rows) {
  std::vector<std::int64_t> keys;
  std::vector<float> values;
  for (const auto& [key, value] : rows) {
    keys.push_back(key);
    values.insert(values.end(), table->options().dim, value);
  }
  return table->Put(keys, reinterpret_cast<const std::byte*>(values.data()));
}

inline void CommitUpdate(Versions* versions, std::string id, std::int64_t step) {
  {
    VersionFacts facts;
    facts.id = std::move(id);
    facts.step = step;
    ASSERT_TRUE(versions->Prepare(std::move(facts), nullptr).ok());
  }
  versions->Commit();
  versions->Collect();
}

/// All rows of [first, last) at a snapshot: those that are there, by the default of -1.
inline RowMap ReadAll(const Versions::Snapshot& snapshot, std::int64_t first, std::int64_t last,
                      std::uint32_t dim) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = first; id < last; ++id) ids.push_back(id);
  std::vector<float> out(ids.size() * dim);
  snapshot.Lookup(0, ids, out.data());
  RowMap rows;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::uint32_t d = 1; d < dim; ++d) EXPECT_EQ(out[i * dim], out[i * dim + d]) << ids[i];
    if (out[i * dim] != -1) rows[ids[i]] = out[i * dim];
  }
  return rows;
}

}  // namespace cairn::serving
