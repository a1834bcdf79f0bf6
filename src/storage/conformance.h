#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

/// A store to be put to the test, empty at first.
struct StoreUnderTest {
  /// Whatever the store stands on (a simulated disk, a temporary directory, a server); destroyed
  /// after all Store objects. Shared: also captured by `open`.
  std::shared_ptr<void> ground;
  /// A Store object on that ground. Called several times: all of them see the same objects, as
  /// several processes would.
  std::function<Result<std::unique_ptr<Store>>()> open;
  /// Puts an object of any name there behind the store's back; empty when that cannot be done.
  std::function<void(const std::string& name)> plant;
  /// The number of names one object may have, when it is small enough to be tried.
  std::optional<int> max_links;
  /// Objects in the test of long listings. A store whose server answers in pages says more than a
  /// page here (S3: 1,000); on a disk each costs a sync.
  int long_listing = 60;
  /// The longest component of a name that is put twice. A server over a file system may need some
  /// of the 255 bytes for a temporary name of its own.
  std::size_t longest_component = 255;
};

struct StoreFactory {
  std::string name;  // letters, digits and underscores
  std::function<StoreUnderTest()> make;
};

void PrintTo(const StoreFactory& factory, std::ostream* out);

/// The one conformance suite: every sentence of store.h as a test, by subject in conformance_*.cc.
/// A store's own test is linked with all of them because it includes this file, and says
///
///   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, ::testing::Values(StoreFactory{…}),
///                            StoreConformance::Name);
class StoreConformance : public ::testing::TestWithParam<StoreFactory> {
 public:
  static std::string Name(const ::testing::TestParamInfo<StoreFactory>& info);

 protected:
  void SetUp() override;

  Store& store() { return *store_; }
  /// Another Store object on the same ground.
  std::unique_ptr<Store> OpenAnother();

  /// Writes the objects through one session, appending their parts in turn, and makes them durable.
  void WriteObjects(const std::vector<std::pair<std::string, std::string>>& objects, bool padded);
  /// The object through a reader, or the name of the error.
  std::string ReadObject(const std::string& name);

  StoreUnderTest under_test_;
  std::unique_ptr<Store> store_;
};

}  // namespace cairn
