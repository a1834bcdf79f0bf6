#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include <cairn/table.h>

namespace cairn {
namespace {

TEST(CutGate, NothingIsInsideWhileItIsClosed) {
  CutGate gate;
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t per_thread[4][8] = {};
  std::vector<std::jthread> threads;
  for (auto& own : per_thread) {
    threads.emplace_back([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const CutGate::Batch batch(&gate);
        ++own[0];
        const CutGate::Batch nested(&gate);
        ++own[1];
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    const Status cut = gate.Exclusive([&] {
      a = b = 0;
      for (const auto& own : per_thread) {
        a += own[0];
        b += own[1];
      }
      return Status::Ok();
    });
    ASSERT_TRUE(cut.ok());
    ASSERT_EQ(a, b);
  }
}

TEST(CutGate, OpensAgainWhenTheWorkFails) {
  CutGate gate;
  EXPECT_TRUE(gate.Exclusive([] { return InternalError("no"); }).Is(Code::kInternal));
  EXPECT_THROW(gate.Exclusive([]() -> Status { throw 1; }).IgnoreError("thrown"), int);
  const CutGate::Batch batch(&gate);
  EXPECT_TRUE(gate.Exclusive([] { return Status::Ok(); }).Is(Code::kFailedPrecondition));
}

TEST(CutGate, GatesAreIndependent) {
  CutGate a;
  CutGate b;
  const CutGate::Batch batch(&a);
  EXPECT_TRUE(b.Exclusive([] { return Status::Ok(); }).ok());
}

}  // namespace
}  // namespace cairn
