#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "catalog/catalog.h"

namespace cairn {

/// A database to put a catalog on, empty at first.
struct CatalogUnderTest {
  /// Whatever it stands on; destroyed after all catalogs. Shared: the program may have one server.
  std::shared_ptr<void> ground;
  std::string url;
};

struct CatalogFactory {
  std::string name;  // letters, digits and underscores
  std::function<CatalogUnderTest()> make;
};

void PrintTo(const CatalogFactory& factory, std::ostream* out);

/// The one conformance suite: every sentence of the catalog's headers as a test, on each database.
/// A database's own test links cairn::catalog_conformance and says
///
///   INSTANTIATE_TEST_SUITE_P(Sqlite, CatalogConformance, ::testing::Values(CatalogFactory{…}),
///                            CatalogConformance::Name);
class CatalogConformance : public ::testing::TestWithParam<CatalogFactory> {
 public:
  static std::string Name(const ::testing::TestParamInfo<CatalogFactory>& info);

 protected:
  void SetUp() override;
  void TearDown() override { catalog_.reset(); }

  Catalog& catalog() { return *catalog_; }
  /// Closes the catalog and opens it again, as the next master would.
  void Reopen();
  Result<std::unique_ptr<Catalog>> Open(CatalogOptions options);

  CatalogUnderTest under_test_;
  std::unique_ptr<Catalog> catalog_;
};

}  // namespace cairn
