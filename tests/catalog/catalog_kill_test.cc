// A process that writes a catalog (events, logs, experiments) is killed at any moment, again and
// again: whatever it was told is durable must be there, once, and the tables must agree with the
// events.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "catalog/test_events.h"
#include "catalog/test_tables.h"
#include "storage/local/temp_directory.h"
#include "tests/crash/torture.h"

namespace cairn {
namespace {

constexpr std::array<const char*, 4> kSteps = {"opening", "events", "logs", "experiments"};

/// What the writer says, in memory that outlives it.
struct Told {
  std::atomic<int> step{0};  // of kSteps: what is under way
  std::atomic<std::uint64_t> events{0};
  std::atomic<std::uint64_t> lines{0};
  std::atomic<std::uint64_t> experiments{0};
};

std::string TextOfLine(std::uint64_t number) { return "line " + std::to_string(number); }

/// Never returns.
void Write(const std::string& url, std::uint64_t seed, Told* told) {
  auto catalog = Catalog::Open({.url = url});
  if (!catalog.ok()) _exit(3);
  EventMaker maker(seed);
  maker.Some((*catalog)->LastEvent().value());
  std::uint64_t offset = (*catalog)->logs().Position("1", 1).value();
  std::uint64_t made = (*catalog)->experiments().List({.limit = 0}).value().total;
  for (std::uint64_t turn = 0;; ++turn) {
    told->step = 1;
    const std::vector<Event> events = maker.Some(1 + turn % 40);
    if (!(*catalog)->events().Append(events).ok()) _exit(4);
    told->events = events.back().seq;

    told->step = 2;
    LogBatch batch{.trial = "1", .run = 1, .from = offset, .next = offset + 1 + turn % 3};
    while (offset < batch.next) batch.lines.push_back({.text = TextOfLine(++offset)});
    if (!(*catalog)->logs().Append(std::vector{batch}).ok()) _exit(5);
    told->lines = offset;

    told->step = 3;
    const std::string uuid = std::to_string(made + 1);
    if (!(*catalog)->experiments().Create({.uuid = uuid, .name = uuid}).ok()) _exit(6);
    told->experiments = ++made;
  }
}

void Check(const std::string& url, std::uint64_t seed, const Told& told) {
  auto catalog = Catalog::Open({.url = url});
  ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
  const auto events = ReplayAll(&(*catalog)->events());
  ASSERT_GE(events.size(), told.events);
  EventMaker maker(seed);
  ASSERT_EQ(maker.Some(events.size()), events);
  ExpectTablesAgree(catalog->get(), maker.records());

  std::uint64_t lines = 0;
  for (LogQuery query{.trial = "1"};;) {
    const auto page = (*catalog)->logs().Read(query);
    ASSERT_TRUE(page.ok()) << page.status().ToString();
    for (const LogLine& line : page->lines) {
      ++lines;
      ASSERT_EQ(line.id, lines);
      ASSERT_EQ(line.text, TextOfLine(lines));
    }
    query.from_id = page->next_id;
    if (!page->more) break;
  }
  EXPECT_GE(lines, told.lines);
  EXPECT_EQ((*catalog)->logs().Position("1", 1).value(), lines);

  const auto page = (*catalog)->experiments().List({.descending = false, .limit = 1000});
  ASSERT_TRUE(page.ok());
  EXPECT_GE(page->total, told.experiments);
  for (std::size_t i = 0; i < page->items.size(); ++i) {
    EXPECT_EQ(page->items[i].uuid, std::to_string(i + 1));
  }
}

TEST(CatalogKill, NothingAcknowledgedIsLostAndTheTablesAgree) {
  auto* told = static_cast<Told*>(
      mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(told, MAP_FAILED);
  crash::Torture torture("catalog", 3);
  torture.Run([&](std::uint64_t seed) {
    TempDirectory directory;
    const std::string url = "sqlite:" + (directory / "catalog.db");
    new (told) Told;
    std::mt19937_64 random(seed);
    for (int kills = 0; kills < 5; ++kills) {
      told->step = 0;
      const pid_t writer = fork();
      if (writer == 0) Write(url, seed, told);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 250'000));  // any moment
      kill(writer, SIGKILL);
      int how = 0;
      EXPECT_EQ(waitpid(writer, &how, 0), writer);
      EXPECT_TRUE(WIFSIGNALED(how)) << "it ended by itself: " << WEXITSTATUS(how);
      torture.Count(std::string("killed while ") + kSteps[static_cast<std::size_t>(told->step)], 1);
      Check(url, seed, *told);
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "seed " << seed << ", kill " << kills;
        return false;
      }
    }
    torture.Count("events", told->events);
    return true;
  });
  munmap(told, sizeof(Told));
}

}  // namespace
}  // namespace cairn
