#include "storage/conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <ostream>
#include <set>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "storage/adopting_store.h"
#include "storage/append_object.h"
#include "storage/deep_listing.h"

namespace cairn {

void PrintTo(const StoreFactory& factory, std::ostream* out) { *out << factory.name; }

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;
constexpr std::size_t kBlock = 4096;
constexpr int kThreads = 8;

/// Memory that starts at a 4 KiB boundary and ends at one.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(
            kBlock, std::max<std::size_t>(1, (bytes + kBlock - 1) / kBlock) * kBlock))) {}
  ~AlignedMemory() { std::free(data_); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  std::span<std::byte> span() { return {data_, bytes_}; }
  void Fill(std::string_view text) { std::memcpy(data_, text.data(), text.size()); }
  void Scribble() { std::memset(data_, 0xEE, bytes_); }
  std::string_view text(std::size_t bytes) const {
    return {reinterpret_cast<const char*>(data_), bytes};
  }

 private:
  const std::size_t bytes_;
  std::byte* const data_;
};

/// Bytes that differ at every place and between seeds.
std::string Pattern(std::size_t bytes, std::uint64_t seed) {
  std::string text(bytes, '\0');
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t at = 0; at < bytes; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(text.data() + at, &state, std::min(sizeof(state), bytes - at));
  }
  return text;
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
Code CodeOf(const Result<T>& result) {
  return result.status().code();
}

std::vector<std::string> ObjectNames(const Listing& listing) {
  std::vector<std::string> names;
  for (const ObjectInfo& info : listing.objects) names.push_back(info.name);
  return names;
}

void RunInThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
}

::testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.ToString();
}

#define ASSERT_OK(expr) ASSERT_TRUE(IsOk(expr))
#define EXPECT_OK(expr) EXPECT_TRUE(IsOk(expr))
#define ASSERT_HAS(result) ASSERT_TRUE((result).ok()) << (result).status().ToString()

}  // namespace

std::string StoreConformance::Name(const ::testing::TestParamInfo<StoreFactory>& info) {
  return info.param.name;
}

void StoreConformance::SetUp() {
  under_test_ = GetParam().make();
  store_ = OpenAnother();
  ASSERT_NE(store_, nullptr);
  // Some stores find out what they can do when it is first tried.
  (void)store_->Create("probe", "x").ok();
  (void)store_->Link("probe", "probe-2").ok();
  (void)store_->TryLock("probe-3").ok();
  for (const char* name : {"probe", "probe-2", "probe-3"}) (void)store_->Delete(name).ok();
}

std::unique_ptr<Store> StoreConformance::OpenAnother() {
  Result<std::unique_ptr<Store>> opened = under_test_.open();
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  return opened.ok() ? *std::move(opened) : nullptr;
}

void StoreConformance::WriteObjects(const std::vector<std::pair<std::string, std::string>>& objects,
                                    bool padded) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part_bytes = (*session)->part_bytes();
  std::vector<std::uint32_t> handles;
  std::vector<std::size_t> at(objects.size(), 0);
  std::vector<std::unique_ptr<AlignedMemory>> buffers;  // by tag
  for (const auto& [name, bytes] : objects) {
    Result<std::uint32_t> handle = (*session)->Open(name, {.bytes = bytes.size()});
    ASSERT_HAS(handle);
    handles.push_back(*handle);
  }
  for (bool more = true; more;) {
    more = false;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const std::string& bytes = objects[i].second;
      if (at[i] == bytes.size()) continue;
      const std::size_t count = std::min(part_bytes, bytes.size() - at[i]);
      const std::string_view part = std::string_view(bytes).substr(at[i], count);
      auto buffer = std::make_unique<AlignedMemory>(count);
      buffer->Fill(part);
      ASSERT_OK((*session)->Append(handles[i], padded ? buffer->span() : AsBytes(part), padded,
                                   buffers.size()));
      buffers.push_back(std::move(buffer));
      at[i] += count;
      more = more || at[i] < bytes.size();
    }
  }
  for (const std::uint32_t handle : handles) ASSERT_OK((*session)->Close(handle));
  ASSERT_OK((*session)->Drain());
  ASSERT_OK(store().SyncNames("", "conformance"));
}

std::string StoreConformance::ReadObject(const std::string& name) {
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader(name);
  if (!reader.ok()) return std::string(CodeName(reader.status().code()));
  std::string text((*reader)->bytes(), '?');
  const Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(text)));
  return read.ok() ? text : std::string(CodeName(read.code()));
}

// ---------------------------------------------------------------- whole objects

TEST_P(StoreConformance, SaysWhereItIs) { EXPECT_FALSE(store().Describe().empty()); }

TEST_P(StoreConformance, StartsEmpty) {
  Result<Listing> listing = store().List("");
  ASSERT_HAS(listing);
  EXPECT_THAT(listing->objects, IsEmpty());
  EXPECT_THAT(listing->prefixes, IsEmpty());
}

TEST_P(StoreConformance, PutStoresAnyBytes) {
  std::string every;
  for (int i = 0; i < 256; ++i) every.push_back(static_cast<char>(i));
  for (const std::string& bytes :
       {std::string(), std::string("x"), every, Pattern((1u << 20) + 1, 1)}) {
    ASSERT_OK(store().Put("a/object", bytes));
    Result<std::string> got = store().Get("a/object", kNoLimit);
    ASSERT_HAS(got);
    EXPECT_TRUE(*got == bytes) << bytes.size() << " bytes";
    EXPECT_EQ(store().Stat("a/object")->bytes, bytes.size());
  }
}

TEST_P(StoreConformance, PutReplaces) {
  ASSERT_OK(store().Put("a", "a longer first text"));
  ASSERT_OK(store().Put("a", "second"));
  EXPECT_EQ(*store().Get("a", kNoLimit), "second");
  EXPECT_THAT(store().List("")->objects, SizeIs(1));
}

TEST_P(StoreConformance, OtherStoreObjectsSeeWhatWasPut) {
  auto other = OpenAnother();
  ASSERT_OK(store().Put("d/a", "x"));
  EXPECT_EQ(*other->Get("d/a", kNoLimit), "x");
  ASSERT_OK(other->Put("d/a", "y"));
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "y");
  ASSERT_OK(other->Delete("d/a"));
  EXPECT_EQ(CodeOf(store().Get("d/a", kNoLimit)), Code::kNotFound);
}

TEST_P(StoreConformance, ReadersOfAPutSeeOldOrNewAndNeverAMixture) {
  const std::array<std::string, 2> texts = {std::string(100'000, 'a'), std::string(70'000, 'b')};
  ASSERT_OK(store().Put("a", texts[0]));
  std::atomic<bool> stop = false;
  std::jthread writer([&] {
    for (int i = 0; i < 20; ++i) EXPECT_OK(store().Put("a", texts[i % 2]));
    stop = true;
  });
  while (!stop) {
    Result<std::string> got = store().Get("a", kNoLimit);
    ASSERT_HAS(got);
    ASSERT_TRUE(*got == texts[0] || *got == texts[1]);
  }
}

TEST_P(StoreConformance, CreateNeverReplaces) {
  ASSERT_OK(store().Create("d/a", "first"));
  EXPECT_EQ(store().Create("d/a", "second").code(), Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "first");
  ASSERT_OK(store().Put("d/b", "put"));
  EXPECT_EQ(store().Create("d/b", "second").code(), Code::kAlreadyExists);
  EXPECT_EQ(OpenAnother()->Create("d/a", "third").code(), Code::kAlreadyExists);
  ASSERT_OK(store().Delete("d/a"));
  EXPECT_OK(store().Create("d/a", "again"));
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "again");
}

TEST_P(StoreConformance, CreateVolatileNeverReplacesEither) {
  constexpr AfterCrash kAnything = AfterCrash::kAnything;
  constexpr AfterCrash kWhole = AfterCrash::kWholeOrNothing;
  ASSERT_OK(store().CreateVolatile("d/a", "first", kAnything));
  EXPECT_EQ(*OpenAnother()->Get("d/a", kNoLimit), "first");
  EXPECT_EQ(store().CreateVolatile("d/a", "second", kAnything).code(), Code::kAlreadyExists);
  EXPECT_EQ(OpenAnother()->Create("d/a", "third").code(), Code::kAlreadyExists);
  ASSERT_OK(store().Create("d/b", "durable"));
  EXPECT_EQ(store().CreateVolatile("d/b", "second", kWhole).code(), Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "first");
  EXPECT_EQ(store().CreateVolatile("d/../b", "x", kWhole).code(), Code::kInvalidArgument);
}

TEST_P(StoreConformance, CreateStoresEmptyAndLargeObjects) {
  ASSERT_OK(store().Create("empty", ""));
  EXPECT_EQ(*store().Get("empty", kNoLimit), "");
  EXPECT_EQ(store().Create("empty", "x").code(), Code::kAlreadyExists);
  const std::string large = Pattern(3'000'001, 2);
  ASSERT_OK(store().Create("large", large));
  EXPECT_TRUE(*store().Get("large", kNoLimit) == large);
}

TEST_P(StoreConformance, OneOfManyConcurrentCreatorsWins) {
  if (!store().traits().create_only) GTEST_SKIP() << "no create-only puts";
  for (int round = 0; round < 5; ++round) {
    const std::string name = "race/" + std::to_string(round) + "/record.json";
    std::vector<std::unique_ptr<Store>> stores;
    for (int i = 0; i < kThreads / 2; ++i) stores.push_back(OpenAnother());
    std::atomic<int> winners = 0;
    std::atomic<int> winner = -1;
    RunInThreads(kThreads, [&](int i) {
      // Half of them share a Store object, the other half have one each.
      Store& mine = i < kThreads / 2 ? store() : *stores[static_cast<std::size_t>(i) / 2];
      const Status created = mine.Create(name, "by " + std::to_string(i));
      if (created.ok()) {
        ++winners;
        winner = i;
      } else {
        EXPECT_EQ(created.code(), Code::kAlreadyExists) << created.ToString();
      }
    });
    ASSERT_EQ(winners, 1);
    EXPECT_EQ(*store().Get(name, kNoLimit), "by " + std::to_string(winner));
    EXPECT_THAT(store().List("race/" + std::to_string(round))->objects, SizeIs(1));
  }
}

TEST_P(StoreConformance, CreatesUnderNewPrefixesWhileOthersPrune) {
  std::atomic<int> left = 4;
  std::jthread pruner([&] {
    while (left > 0) EXPECT_OK(store().PruneDirectories("deep"));
  });
  RunInThreads(4, [&](int t) {
    auto mine = OpenAnother();
    for (int i = 0; i < 10; ++i) {
      const std::string name = "deep/" + std::to_string(i) + "/x/" + std::to_string(t);
      EXPECT_OK(mine->Create(name, "x"));
      EXPECT_OK(mine->Delete(name));
    }
    --left;
  });
}

TEST_P(StoreConformance, GetRefusesMoreThanItsLimit) {
  ASSERT_OK(store().Put("a", "12345"));
  EXPECT_EQ(*store().Get("a", 5), "12345");
  EXPECT_EQ(CodeOf(store().Get("a", 4)), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(store().Get("a", 0)), Code::kResourceExhausted);
  ASSERT_OK(store().Put("empty", ""));
  EXPECT_EQ(*store().Get("empty", 0), "");
}

TEST_P(StoreConformance, WhatIsNotThereIsNotFound) {
  ASSERT_OK(store().Put("d/a", "x"));
  for (const std::string name : {"missing", "missing/b", "d/missing", "d/a/b"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(CodeOf(store().Get(name, kNoLimit)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().Stat(name)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().OpenReader(name)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().LinkCount(name)), Code::kNotFound);
    EXPECT_EQ(store().Delete(name).code(), Code::kNotFound);
  }
}

TEST_P(StoreConformance, PrefixIsNoObject) {
  ASSERT_OK(store().Put("d/e/a", "x"));
  for (const std::string name : {"d", "d/e"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(CodeOf(store().Get(name, kNoLimit)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().Stat(name)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().OpenReader(name)), Code::kNotFound);
    EXPECT_EQ(store().Delete(name).code(), Code::kNotFound);
  }
  EXPECT_EQ(*store().Get("d/e/a", kNoLimit), "x");
}

TEST_P(StoreConformance, StatTellsNameAndSize) {
  ASSERT_OK(store().Put("d/a", "12345"));
  Result<ObjectInfo> info = store().Stat("d/a");
  ASSERT_HAS(info);
  EXPECT_EQ(info->name, "d/a");
  EXPECT_EQ(info->bytes, 5u);
}

TEST_P(StoreConformance, DeleteRemovesOneObject) {
  ASSERT_OK(store().Put("d/a", "x"));
  ASSERT_OK(store().Put("d/ab", "y"));
  ASSERT_OK(store().Delete("d/a"));
  EXPECT_EQ(CodeOf(store().Get("d/a", kNoLimit)), Code::kNotFound);
  EXPECT_EQ(store().Delete("d/a").code(), Code::kNotFound);
  EXPECT_EQ(*store().Get("d/ab", kNoLimit), "y");
  EXPECT_OK(store().SyncNames("d", "conformance"));
}

// ---------------------------------------------------------------- names

TEST_P(StoreConformance, TakesEveryValidName) {
  std::string deep = "deep";
  for (int i = 0; i < 12; ++i) deep += "/level " + std::to_string(i);
  // Not the full 1,024 bytes: a store may stand under a prefix of its own.
  const std::size_t component = under_test_.longest_component;
  std::string longest = std::string(component, 'x');
  for (int i = 0; i < 2; ++i) longest += "/" + std::string(component, static_cast<char>('a' + i));
  const std::vector<std::string> names = {
      "plain",
      "with space",
      " leading and trailing ",
      "d/ü/日本語/🙂.json",
      "percent%20and%2Fslash",
      "query?a=b&c=d#fragment",
      "plus+and;colon:at@comma,",
      "back\\slash\"quotes'",
      "[brackets]{braces}<angles>|*~`^$!()",
      ".hidden",
      "..almost",
      "d/.../a",
      "ends.with.dot.",
      "UPPER",
      "upper",
      "\xC3\xA9",   // é as one code point
      "e\xCC\x81",  // é as two: another name
      deep,
      longest,
  };
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    ASSERT_OK(ValidateObjectName(name));
    ASSERT_OK(store().Create(name, name));
  }
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    Result<std::string> got = store().Get(name, kNoLimit);
    ASSERT_HAS(got);
    EXPECT_EQ(*got, name);
    EXPECT_EQ(ReadObject(name), name);
    const std::size_t slash = name.rfind('/');
    const std::string prefix = slash == std::string::npos ? "" : name.substr(0, slash);
    EXPECT_THAT(ObjectNames(*store().List(prefix)), ::testing::Contains(name));
    ASSERT_OK(store().Put(name, "again"));
  }
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    EXPECT_EQ(*store().Get(name, kNoLimit), "again");
    EXPECT_OK(store().Delete(name));
  }
  EXPECT_THAT(store().List("")->objects, IsEmpty());
}

TEST_P(StoreConformance, SessionTakesEveryValidNameToo) {
  WriteObjects({{"d ü/日本語?#%41 +&.bin", "one"}, {std::string(255, 'n'), "two"}}, true);
  EXPECT_EQ(ReadObject("d ü/日本語?#%41 +&.bin"), "one");
  EXPECT_EQ(*store().Get(std::string(255, 'n'), kNoLimit), "two");
}

TEST_P(StoreConformance, RefusesInvalidNamesEverywhere) {
  using std::string_literals::operator""s;
  const std::vector<std::string> names = {"",
                                          "/a",
                                          "a/",
                                          "a//b",
                                          ".",
                                          "..",
                                          "a/..",
                                          "../a",
                                          "a/./b",
                                          "a\0b"s,
                                          "a\nb",
                                          "a\x7F",
                                          std::string(256, 'x'),
                                          std::string(10'000, 'x'),
                                          ".cairn-tmp",
                                          ".cairn-tmp-1",
                                          "a/.cairn-tmp-1/b"};
  ASSERT_OK(store().Put("source", "x"));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("source");
  for (const std::string& name : names) {
    SCOPED_TRACE(name.substr(0, 40));
    EXPECT_EQ(ValidateObjectName(name).code(), Code::kInvalidArgument);
    EXPECT_EQ(store().Put(name, "x").code(), Code::kInvalidArgument);
    EXPECT_EQ(store().Create(name, "x").code(), Code::kInvalidArgument);
    EXPECT_EQ(CodeOf(store().Get(name, kNoLimit)), Code::kInvalidArgument);
    EXPECT_EQ(CodeOf(store().Stat(name)), Code::kInvalidArgument);
    EXPECT_EQ(store().Delete(name).code(), Code::kInvalidArgument);
    EXPECT_EQ(CodeOf(store().OpenReader(name)), Code::kInvalidArgument);
    if (!name.empty()) {
      EXPECT_EQ(CodeOf(store().List(name)), Code::kInvalidArgument);
    }
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    EXPECT_EQ(CodeOf((*session)->Open(name, {.bytes = 1})), Code::kInvalidArgument);
    if (store().traits().hard_links) {
      EXPECT_EQ(store().Link("source", name).code(), Code::kInvalidArgument);
      EXPECT_EQ(store().Link(name, "target").code(), Code::kInvalidArgument);
      EXPECT_EQ(CodeOf(store().MoveToPool("source", name)), Code::kInvalidArgument);
    }
    if (store().traits().locks) {
      EXPECT_EQ(CodeOf(store().TryLock(name)), Code::kInvalidArgument);
    }
  }
  Result<Listing> listing = store().List("");
  ASSERT_HAS(listing);
  EXPECT_THAT(ObjectNames(*listing), ElementsAre("source"));
  EXPECT_THAT(listing->prefixes, IsEmpty());
}

// ---------------------------------------------------------------- lists

TEST_P(StoreConformance, ListsWhatStandsDirectlyUnderThePrefix) {
  for (const std::string name : {"b", "a", "d/x", "d/e/y", "d/e/z", "d/f/g/h", "da", "d0/x"}) {
    ASSERT_OK(store().Put(name, name));
  }
  Result<Listing> root = store().List("");
  ASSERT_HAS(root);
  EXPECT_THAT(ObjectNames(*root), ElementsAre("a", "b", "da"));
  EXPECT_THAT(root->prefixes, UnorderedElementsAre("d", "d0"));
  Result<Listing> d = store().List("d");
  ASSERT_HAS(d);
  EXPECT_THAT(ObjectNames(*d), ElementsAre("d/x"));
  EXPECT_EQ(d->objects[0].bytes, 3u);
  EXPECT_THAT(d->prefixes, UnorderedElementsAre("d/e", "d/f"));
  EXPECT_THAT(ObjectNames(*store().List("d/e")), ElementsAre("d/e/y", "d/e/z"));
  EXPECT_THAT(store().List("d/f")->prefixes, ElementsAre("d/f/g"));
}

TEST_P(StoreConformance, ListsNothingUnderAMissingPrefix) {
  ASSERT_OK(store().Put("d/a", "x"));
  for (const std::string prefix : {"missing", "d/missing", "missing/deeper", "d/a", "d/a/b"}) {
    SCOPED_TRACE(prefix);
    Result<Listing> listing = store().List(prefix);
    ASSERT_HAS(listing);
    EXPECT_THAT(listing->objects, IsEmpty());
    EXPECT_THAT(listing->prefixes, IsEmpty());
  }
}

TEST_P(StoreConformance, ListsObjectsSortedByTheirBytes) {
  for (const std::string name :
       {"l/B", "l/a", "l/10", "l/9", "l/\xC3\xA9", "l/a-", "l/a b", "l/~"}) {
    ASSERT_OK(store().Put(name, ""));
  }
  EXPECT_THAT(ObjectNames(*store().List("l")),
              ElementsAre("l/10", "l/9", "l/B", "l/a", "l/a b", "l/a-", "l/~", "l/\xC3\xA9"));
}

TEST_P(StoreConformance, ListsMoreObjectsThanOneAnswerHolds) {
  const int count = under_test_.long_listing;
  RunInThreads(4, [&](int t) {
    for (int i = t; i < count; i += 4) {
      EXPECT_OK(store().Put("many/" + std::to_string(100'000 + i), ""));
      if (i % 20 == 0) {
        EXPECT_OK(store().Put("many/p" + std::to_string(i) + "/x", ""));
      }
    }
  });
  Result<Listing> listing = store().List("many");
  ASSERT_HAS(listing);
  ASSERT_THAT(listing->objects, SizeIs(static_cast<std::size_t>(count)));
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(listing->objects[static_cast<std::size_t>(i)].name,
              "many/" + std::to_string(100'000 + i));
  }
  EXPECT_THAT(listing->prefixes, SizeIs(static_cast<std::size_t>((count + 19) / 20)));
}

TEST_P(StoreConformance, HidesTemporaryNames) {
  if (!under_test_.plant) GTEST_SKIP() << "cannot plant objects behind this store's back";
  ASSERT_OK(store().Put("d/a", "x"));
  under_test_.plant("d/.cairn-tmp-1");
  under_test_.plant(".cairn-tmp");
  Result<Listing> listing = store().List("d");
  ASSERT_HAS(listing);
  EXPECT_THAT(ObjectNames(*listing), ElementsAre("d/a"));
  EXPECT_THAT(store().List("")->objects, IsEmpty());
}

TEST_P(StoreConformance, ListForgetsWhatWasDeleted) {
  ASSERT_OK(store().Put("d/e/a", "x"));
  ASSERT_OK(store().Put("d/b", "x"));
  ASSERT_OK(store().Delete("d/e/a"));
  ASSERT_OK(store().PruneDirectories("d"));
  ASSERT_OK(store().SyncNames("d", "conformance"));
  EXPECT_THAT(store().List("d/e")->objects, IsEmpty());
  EXPECT_THAT(store().List("d")->prefixes, IsEmpty());
  ASSERT_OK(store().Delete("d/b"));
  ASSERT_OK(store().PruneDirectories("d"));
  EXPECT_THAT(store().List("")->prefixes, IsEmpty());
}

TEST_P(StoreConformance, PruneLeavesObjectsAlone) {
  ASSERT_OK(store().Put("d/e/f/a", "x"));
  ASSERT_OK(store().Put("d/g/b", "x"));
  ASSERT_OK(store().Delete("d/g/b"));
  EXPECT_OK(store().PruneDirectories("d"));
  EXPECT_OK(store().PruneDirectories(""));
  EXPECT_OK(store().PruneDirectories("missing"));
  EXPECT_OK(store().PruneDirectories("d/e/f/a"));
  EXPECT_EQ(*store().Get("d/e/f/a", kNoLimit), "x");
  EXPECT_THAT(store().List("d")->prefixes, ElementsAre("d/e"));
  EXPECT_OK(store().Create("d/g/b", "again")) << "a pruned prefix can be used again";
}

// ---------------------------------------------------------------- write sessions

TEST_P(StoreConformance, SessionWritesEverySize) {
  Result<std::unique_ptr<WriteSession>> probe = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(probe);
  const std::size_t part = (*probe)->part_bytes();
  ASSERT_GT(part, 0u);
  ASSERT_EQ(part % kBlock, 0u);
  for (const bool padded : {false, true}) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, std::size_t{4097},
          part - 1, part, part + 1, 3 * part, 3 * part + 4097}) {
      SCOPED_TRACE(std::to_string(bytes) + (padded ? " padded" : " not padded"));
      const std::string name = "s/" + std::to_string(bytes) + (padded ? "p" : "");
      const std::string text = Pattern(bytes, bytes + 1);
      WriteObjects({{name, text}}, padded);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_EQ(store().Stat(name)->bytes, bytes);
      EXPECT_TRUE(ReadObject(name) == text);
      ASSERT_OK(store().Delete(name));
    }
  }
}

TEST_P(StoreConformance, SessionWritesInEveryMode) {
  for (const WriteMode mode : {WriteMode::kAuto, WriteMode::kDirect, WriteMode::kBuffered}) {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(mode);
    ASSERT_HAS(session);
    const std::size_t part = (*session)->part_bytes();
    const std::string text = Pattern(2 * part + 5, 3);
    const std::string name = "m/" + std::to_string(static_cast<int>(mode));
    Result<std::uint32_t> object = (*session)->Open(name, {.bytes = text.size()});
    ASSERT_HAS(object);
    for (std::size_t at = 0; at < text.size(); at += part) {
      const std::string_view piece = std::string_view(text).substr(at, part);
      ASSERT_OK((*session)->Append(*object, AsBytes(piece), false, at));
    }
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    EXPECT_TRUE(ReadObject(name) == text);
  }
}

TEST_P(StoreConformance, SessionWritesManyObjectsInTurn) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  std::vector<std::pair<std::string, std::string>> objects;
  for (std::uint64_t i = 0; i < 5; ++i) {
    objects.emplace_back("i/" + std::to_string(i % 2) + "/" + std::to_string(i),
                         Pattern(i * part / 2 + i * 1000, i));
  }
  WriteObjects(objects, true);
  for (const auto& [name, text] : objects) EXPECT_TRUE(ReadObject(name) == text) << name;
  EXPECT_THAT(store().List("i")->prefixes, UnorderedElementsAre("i/0", "i/1"));
  EXPECT_TRUE(*OpenAnother()->Get("i/1/3", kNoLimit) == objects[3].second);
}

TEST_P(StoreConformance, SessionWritesManySmallObjects) {
  std::vector<std::pair<std::string, std::string>> objects;
  for (std::uint64_t i = 0; i < 40; ++i) {
    objects.emplace_back("small/" + std::to_string(i), Pattern(i * 13, i));
  }
  WriteObjects(objects, false);
  for (const auto& [name, text] : objects) EXPECT_TRUE(ReadObject(name) == text) << name;
}

TEST_P(StoreConformance, EveryTagIsReturnedOnceAndItsMemoryIsFreeThen) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part = (*session)->part_bytes();
  constexpr std::size_t kParts = 10;
  const std::string text = Pattern(kParts * part, 4);
  Result<std::uint32_t> object = (*session)->Open("tags", {.bytes = text.size()});
  ASSERT_HAS(object);
  // Two buffers for ten parts: each is written over as soon as its tag came back.
  std::array<AlignedMemory, 2> buffers = {AlignedMemory(part), AlignedMemory(part)};
  std::map<std::uint64_t, std::size_t> outstanding;  // tag → buffer
  std::vector<std::size_t> free = {0, 1};
  std::set<std::uint64_t> returned;
  const auto wait = [&] {
    Result<std::uint64_t> tag = (*session)->WaitPart();
    ASSERT_HAS(tag);
    EXPECT_TRUE(returned.insert(*tag).second) << "tag " << *tag << " came twice";
    auto found = outstanding.find(*tag);
    ASSERT_NE(found, outstanding.end()) << "nobody gave tag " << *tag;
    buffers[found->second].Scribble();
    free.push_back(found->second);
    outstanding.erase(found);
  };
  for (std::size_t i = 0; i < kParts; ++i) {
    if (free.empty()) wait();
    ASSERT_FALSE(HasFatalFailure());
    const std::size_t buffer = free.back();
    free.pop_back();
    buffers[buffer].Fill(std::string_view(text).substr(i * part, part));
    outstanding.emplace(1000 + i, buffer);
    ASSERT_OK((*session)->Append(*object, buffers[buffer].span(), true, 1000 + i));
  }
  while (!outstanding.empty() && !HasFatalFailure()) wait();
  EXPECT_THAT(returned, SizeIs(kParts));
  EXPECT_EQ(CodeOf((*session)->WaitPart()), Code::kInvalidArgument) << "none is outstanding";
  ASSERT_OK((*session)->Close(*object));
  ASSERT_OK((*session)->Drain());
  EXPECT_TRUE(ReadObject("tags") == text);
}

TEST_P(StoreConformance, MemoryIsFreeAfterDrain) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part = (*session)->part_bytes();
  const std::string text = Pattern(part + 100, 5);
  Result<std::uint32_t> object = (*session)->Open("drained", {.bytes = text.size()});
  ASSERT_HAS(object);
  {
    AlignedMemory first(part);
    AlignedMemory second(100);
    first.Fill(std::string_view(text).substr(0, part));
    second.Fill(std::string_view(text).substr(part));
    ASSERT_OK((*session)->Append(*object, first.span(), true, 1));
    ASSERT_OK((*session)->Append(*object, second.span(), true, 2));
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    first.Scribble();
    second.Scribble();
  }
  EXPECT_EQ(CodeOf((*session)->WaitPart()), Code::kInvalidArgument) << "Drain gave them all back";
  EXPECT_TRUE(ReadObject("drained") == text);
}

TEST_P(StoreConformance, SessionGoesOnAfterDrain) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  EXPECT_OK((*session)->Drain()) << "nothing to do";
  for (int i = 0; i < 3; ++i) {
    const std::string name = "round/" + std::to_string(i);
    Result<std::uint32_t> object = (*session)->Open(name, {.bytes = 4});
    ASSERT_HAS(object);
    ASSERT_OK((*session)->Append(*object, AsBytes("text"), false, 7));
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    EXPECT_EQ(ReadObject(name), "text");
  }
  EXPECT_OK((*session)->Drain());
}

TEST_P(StoreConformance, DrainLeavesOpenObjectsOpen) {
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  const std::size_t part = (*session)->part_bytes();
  const std::string text = Pattern(2 * part, 6);
  Result<std::uint32_t> open = (*session)->Open("open", {.bytes = text.size()});
  Result<std::uint32_t> closed = (*session)->Open("closed", {.bytes = 1});
  ASSERT_HAS(open);
  ASSERT_HAS(closed);
  const std::string_view view = text;
  ASSERT_OK((*session)->Append(*open, AsBytes(view.substr(0, part)), false, 1));
  ASSERT_OK((*session)->Append(*closed, AsBytes("c"), false, 2));
  ASSERT_OK((*session)->Close(*closed));
  ASSERT_OK((*session)->Drain());
  EXPECT_EQ(ReadObject("closed"), "c");
  ASSERT_OK((*session)->Append(*open, AsBytes(view.substr(part)), false, 3));
  ASSERT_OK((*session)->Close(*open));
  ASSERT_OK((*session)->Drain());
  EXPECT_TRUE(ReadObject("open") == text);
}

TEST_P(StoreConformance, SessionReplacesNothing) {
  ASSERT_OK(store().Put("taken", "old"));
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  EXPECT_EQ(CodeOf((*session)->Open("taken", {.bytes = 3})), Code::kAlreadyExists);
  session->reset();
  EXPECT_EQ(*store().Get("taken", kNoLimit), "old");
}

TEST_P(StoreConformance, SessionIsCondemnedByAnError) {
  ASSERT_OK(store().Put("taken", "old"));
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  Result<std::uint32_t> object = (*session)->Open("c/one", {.bytes = 3});
  ASSERT_HAS(object);
  Result<std::uint32_t> failed = (*session)->Open("taken", {.bytes = 3});
  ASSERT_EQ(CodeOf(failed), Code::kAlreadyExists);
  const std::string why = failed.status().ToString();
  EXPECT_EQ((*session)->Append(*object, AsBytes("abc"), false, 1).ToString(), why);
  EXPECT_EQ((*session)->Close(*object).ToString(), why);
  EXPECT_EQ((*session)->Open("c/two", {.bytes = 3}).status().ToString(), why);
  EXPECT_EQ((*session)->WaitPart().status().ToString(), why);
  EXPECT_EQ((*session)->Drain().ToString(), why);
  session->reset();
  EXPECT_EQ(CodeOf(store().Stat("c/two")), Code::kNotFound);
  // The caller deletes the names, which may or may not be there; then they are free.
  for (const std::string name : {"c/one", "c/two"}) {
    const Status deleted = store().Delete(name);
    EXPECT_TRUE(deleted.ok() || deleted.Is(Code::kNotFound)) << deleted.ToString();
  }
  WriteObjects({{"c/one", "abc"}, {"c/two", "def"}}, false);
  EXPECT_EQ(ReadObject("c/one"), "abc");
}

TEST_P(StoreConformance, SessionRefusesWrongUse) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string text = Pattern(2 * part, 7);
  const std::string_view view = text;
  using Use = std::function<Status(WriteSession&, std::uint32_t)>;
  const std::vector<std::pair<std::string, Use>> uses = {
      {"a short part before the last",
       [&](WriteSession& s, std::uint32_t o) {
         return s.Append(o, AsBytes(view.substr(0, part - 1)), false, 1);
       }},
      {"a part that is too large",
       [&](WriteSession& s, std::uint32_t o) {
         return s.Append(o, AsBytes(view.substr(0, part + 1)), false, 1);
       }},
      {"more bytes than announced",
       [&](WriteSession& s, std::uint32_t o) {
         EXPECT_OK(s.Append(o, AsBytes(view.substr(0, part)), false, 1));
         return s.Append(o, AsBytes(view.substr(0, part)), false, 2);
       }},
      {"closed too early", [](WriteSession& s, std::uint32_t o) { return s.Close(o); }},
      {"an unknown object",
       [&](WriteSession& s, std::uint32_t o) {
         return s.Append(o + 1, AsBytes(view.substr(0, part)), false, 1);
       }},
      {"closing an unknown object",
       [](WriteSession& s, std::uint32_t o) { return s.Close(o + 1); }},
      {"append after close",
       [&](WriteSession& s, std::uint32_t o) {
         EXPECT_OK(s.Append(o, AsBytes(view.substr(0, part)), false, 1));
         EXPECT_OK(s.Append(o, AsBytes(view.substr(0, 5)), false, 2));
         EXPECT_OK(s.Close(o));
         return s.Append(o, AsBytes(view.substr(0, 5)), false, 3);
       }},
  };
  int count = 0;
  for (const auto& [what, use] : uses) {
    SCOPED_TRACE(what);
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    Result<std::uint32_t> object =
        (*session)->Open("w/" + std::to_string(count++), {.bytes = part + 5});
    ASSERT_HAS(object);
    EXPECT_EQ(use(**session, *object).code(), Code::kInvalidArgument);
    EXPECT_EQ((*session)->Drain().code(), Code::kInvalidArgument);
  }
}

TEST_P(StoreConformance, AbandonedSessionLeavesOnlyDeletableNames) {
  {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    const std::size_t part = (*session)->part_bytes();
    AlignedMemory buffer(part);
    buffer.Scribble();
    Result<std::uint32_t> object = (*session)->Open("abandoned", {.bytes = 3 * part});
    ASSERT_HAS(object);
    ASSERT_OK((*session)->Append(*object, buffer.span(), true, 1));
    session->reset();  // waits for what is in flight, then the buffer goes
  }
  const Status deleted = store().Delete("abandoned");
  EXPECT_TRUE(deleted.ok() || deleted.Is(Code::kNotFound)) << deleted.ToString();
  EXPECT_OK(store().Create("abandoned", "free again"));
}

TEST_P(StoreConformance, SessionsOfSeveralThreadsDoNotDisturbEachOther) {
  RunInThreads(4, [&](int t) {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    const std::size_t part = (*session)->part_bytes();
    const std::string text = Pattern(part + 1001, static_cast<std::uint64_t>(t));
    const std::string name = "threads/" + std::to_string(t) + "/a";
    Result<std::uint32_t> object = (*session)->Open(name, {.bytes = text.size()});
    ASSERT_HAS(object);
    const std::string_view view = text;
    ASSERT_OK((*session)->Append(*object, AsBytes(view.substr(0, part)), false, 1));
    ASSERT_OK((*session)->Append(*object, AsBytes(view.substr(part)), false, 2));
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    ASSERT_OK(store().SyncNames("threads/" + std::to_string(t), "conformance"));
    EXPECT_TRUE(ReadObject(name) == text);
  });
}

TEST_P(StoreConformance, SyncNamesTakesAnyPrefix) {
  WriteObjects({{"n/e/w/a", "x"}}, false);
  EXPECT_OK(store().SyncNames("n/e/w", "conformance"));
  EXPECT_OK(store().SyncNames("", "conformance"));
  EXPECT_OK(store().SyncNames("missing", "conformance"));
  ASSERT_OK(store().Delete("n/e/w/a"));
  ASSERT_OK(store().PruneDirectories("n"));
  EXPECT_OK(store().SyncNames("n/e/w", "conformance")) << "the prefix is gone";
  EXPECT_OK(store().SyncNames("n", "conformance"));
}

// ---------------------------------------------------------------- readers

TEST_P(StoreConformance, ReaderReadsRanges) {
  const std::string text = Pattern(20'000, 8);
  ASSERT_OK(store().Put("r/a", text));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("r/a");
  ASSERT_HAS(reader);
  EXPECT_EQ((*reader)->name(), "r/a");
  EXPECT_EQ((*reader)->bytes(), text.size());
  const std::vector<std::pair<std::size_t, std::size_t>> ranges = {
      {0, 20'000}, {0, 1}, {19'999, 1}, {4096, 4096}, {4095, 4098}, {20'000, 0}, {0, 0}};
  for (const auto& [offset, bytes] : ranges) {
    SCOPED_TRACE(offset);
    std::string got(bytes, '?');
    EXPECT_OK((*reader)->Read(offset, std::as_writable_bytes(std::span(got))));
    EXPECT_TRUE(got == text.substr(offset, bytes));
  }
}

TEST_P(StoreConformance, ReadPastTheEndIsCorruption) {
  ASSERT_OK(store().Put("a", "12345"));
  ASSERT_OK(store().Put("empty", ""));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  std::string got(6, '?');
  const std::span<std::byte> into = std::as_writable_bytes(std::span(got));
  EXPECT_EQ((*reader)->Read(0, into).code(), Code::kCorruption);
  EXPECT_EQ((*reader)->Read(4, into.first(2)).code(), Code::kCorruption);
  EXPECT_EQ((*reader)->Read(5, into.first(1)).code(), Code::kCorruption);
  EXPECT_EQ((*reader)->Read(1'000'000, into).code(), Code::kCorruption);
  Result<std::unique_ptr<ObjectReader>> empty = store().OpenReader("empty");
  ASSERT_HAS(empty);
  EXPECT_EQ((*empty)->bytes(), 0u);
  EXPECT_OK((*empty)->Read(0, {}));
  EXPECT_EQ((*empty)->Read(0, into).code(), Code::kCorruption);
}

TEST_P(StoreConformance, ReaderServesSeveralThreads) {
  const std::string text = Pattern(200'000, 9);
  ASSERT_OK(store().Put("a", text));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  RunInThreads(kThreads, [&](int t) {
    for (std::size_t i = 0; i < 20; ++i) {
      const std::size_t offset = (i * 7919 + static_cast<std::size_t>(t) * 104'729) % 150'000;
      std::string got(10'000, '?');
      EXPECT_OK((*reader)->Read(offset, std::as_writable_bytes(std::span(got))));
      EXPECT_TRUE(got == text.substr(offset, got.size()));
    }
  });
}

TEST_P(StoreConformance, ReaderOfADeletedObjectReadsItOrSaysNotFound) {
  ASSERT_OK(store().Put("a", "12345"));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  ASSERT_OK(store().Delete("a"));
  std::string got(5, '?');
  const Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(got)));
  if (read.ok()) {
    EXPECT_EQ(got, "12345");
  } else {
    EXPECT_EQ(read.code(), Code::kNotFound) << read.ToString();
  }
}

TEST_P(StoreConformance, ReaderNeverMixesAnObjectWithItsSuccessor) {
  ASSERT_OK(store().Put("a", std::string(10'000, 'o')));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  ASSERT_OK(store().Put("a", std::string(10'000, 'n')));
  std::string got(10'000, '?');
  const Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(got)));
  if (read.ok()) {
    EXPECT_TRUE(got == std::string(10'000, 'o'));
  } else {
    EXPECT_EQ(read.code(), Code::kNotFound) << read.ToString();
  }
}

TEST_P(StoreConformance, QueueReadsManyRangesAtOnce) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::vector<std::pair<std::string, std::string>> objects = {
      {"q/a", Pattern(std::max<std::size_t>(2 * part, 65'536) + 777, 10)},
      {"q/b", Pattern(70'000, 11)}};
  WriteObjects(objects, true);
  std::vector<std::unique_ptr<ObjectReader>> readers;
  for (const auto& [name, text] : objects) {
    Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader(name);
    ASSERT_HAS(reader);
    readers.push_back(*std::move(reader));
  }
  Result<std::unique_ptr<ReadQueue>> queue = store().NewReadQueue(8);
  ASSERT_HAS(queue);
  EXPECT_GE((*queue)->depth(), 1);
  EXPECT_EQ((*queue)->in_flight(), 0);

  struct Range {
    std::size_t object;
    std::size_t offset;
    std::size_t bytes;
  };
  std::vector<Range> ranges;
  for (std::size_t object = 0; object < objects.size(); ++object) {
    const std::size_t size = objects[object].second.size();
    const std::size_t step = std::max<std::size_t>(kBlock, size / 20 / kBlock * kBlock);
    // Aligned ranges, the last one rounded up past the end, then odd ones.
    for (std::size_t at = 0; at < size; at += step) ranges.push_back({object, at, step});
    for (std::size_t i = 1; i < 30; ++i) ranges.push_back({object, i * 977, i * 1031});
  }
  std::vector<std::unique_ptr<AlignedMemory>> buffers;
  std::vector<bool> seen(ranges.size(), false);
  const auto wait = [&] {
    Result<ReadQueue::Done> done = (*queue)->Wait();
    ASSERT_HAS(done);
    ASSERT_OK(done->status);
    ASSERT_LT(done->tag, ranges.size());
    const Range& range = ranges[done->tag];
    EXPECT_FALSE(seen[done->tag]) << "a tag came twice";
    seen[done->tag] = true;
    const std::string_view expected =
        std::string_view(objects[range.object].second).substr(range.offset, range.bytes);
    ASSERT_EQ(done->bytes, expected.size());
    EXPECT_TRUE(buffers[done->tag]->text(done->bytes) == expected);
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if ((*queue)->in_flight() == (*queue)->depth()) wait();
    ASSERT_FALSE(HasFatalFailure());
    buffers.push_back(std::make_unique<AlignedMemory>(ranges[i].bytes));
    ASSERT_OK(
        (*queue)->Submit(readers[ranges[i].object].get(), ranges[i].offset, buffers[i]->span(), i));
  }
  while ((*queue)->in_flight() > 0 && !HasFatalFailure()) wait();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<std::ptrdiff_t>(seen.size()));
}

TEST_P(StoreConformance, QueueMayBeDestroyedWithReadsInFlight) {
  const std::string text = Pattern(1u << 20, 12);
  ASSERT_OK(store().Put("a", text));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  AlignedMemory memory(text.size());
  Result<std::unique_ptr<ReadQueue>> queue = store().NewReadQueue(4);
  ASSERT_HAS(queue);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_OK((*queue)->Submit(reader->get(), 0, memory.span(), i));
  }
  queue->reset();
}

TEST_P(StoreConformance, QueueReportsADeletedObjectInTheCompletion) {
  ASSERT_OK(store().Put("a", "12345"));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  ASSERT_OK(store().Delete("a"));
  Result<std::unique_ptr<ReadQueue>> queue = store().NewReadQueue(1);
  ASSERT_HAS(queue);
  std::string got(5, '?');
  ASSERT_OK((*queue)->Submit(reader->get(), 0, std::as_writable_bytes(std::span(got)), 9));
  Result<ReadQueue::Done> done = (*queue)->Wait();
  ASSERT_HAS(done);
  EXPECT_EQ(done->tag, 9u);
  if (done->status.ok()) {
    EXPECT_EQ(done->bytes, 5u);
    EXPECT_EQ(got, "12345");
  } else {
    EXPECT_EQ(done->status.code(), Code::kNotFound) << done->status.ToString();
  }
}

// ---------------------------------------------------------------- links and pool

TEST_P(StoreConformance, LinkGivesASecondName) {
  ASSERT_OK(store().Put("d/a", "x"));
  if (!store().traits().hard_links) {
    EXPECT_EQ(store().Link("d/a", "e/b").code(), Code::kUnimplemented);
    EXPECT_EQ(*store().LinkCount("d/a"), 1u);
    return;
  }
  EXPECT_EQ(*store().LinkCount("d/a"), 1u);
  ASSERT_OK(store().Link("d/a", "e/f/b"));
  EXPECT_EQ(*store().LinkCount("d/a"), 2u);
  EXPECT_EQ(*store().LinkCount("e/f/b"), 2u);
  ASSERT_OK(store().SyncNames("e", "conformance"));
  ASSERT_OK(store().Delete("d/a"));
  EXPECT_EQ(*store().Get("e/f/b", kNoLimit), "x");
  EXPECT_EQ(*store().LinkCount("e/f/b"), 1u);
}

TEST_P(StoreConformance, LinkReplacesNothing) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no links";
  ASSERT_OK(store().Put("a", "x"));
  ASSERT_OK(store().Put("b", "y"));
  EXPECT_EQ(store().Link("a", "b").code(), Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("b", kNoLimit), "y");
  EXPECT_EQ(store().Link("missing", "c").code(), Code::kNotFound);
  EXPECT_EQ(CodeOf(store().Stat("c")), Code::kNotFound);
}

TEST_P(StoreConformance, PutOverOneNameLeavesTheOther) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no links";
  ASSERT_OK(store().Put("a", "old"));
  ASSERT_OK(store().Link("a", "b"));
  ASSERT_OK(store().Put("a", "new"));
  EXPECT_EQ(*store().Get("b", kNoLimit), "old");
  EXPECT_EQ(*store().LinkCount("b"), 1u);
}

TEST_P(StoreConformance, LinkLimitIsReported) {
  if (!store().traits().hard_links || !under_test_.max_links) GTEST_SKIP() << "no small limit";
  ASSERT_OK(store().Put("a", "x"));
  for (int i = 1; i < *under_test_.max_links; ++i) {
    ASSERT_OK(store().Link("a", "l/" + std::to_string(i)));
  }
  EXPECT_EQ(store().Link("a", "l/more").code(), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(store().Stat("l/more")), Code::kNotFound);
  EXPECT_EQ(*store().Get("a", kNoLimit), "x");
}

TEST_P(StoreConformance, AdoptedBytesOutliveTheirFirstName) {
  AdoptingStore* adopting = FindAdopting(&store());
  if (adopting == nullptr) return;  // an ability that not all have
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{100'000}}) {
    const std::string content = Pattern(bytes, bytes);
    const std::string to = "new b/ü/" + std::to_string(bytes);
    ASSERT_TRUE(store().Put("old/a b+ü", content).ok());
    const Status adopted = adopting->Adopt("old/a b+ü", to);
    ASSERT_TRUE(adopted.ok()) << adopted.ToString();
    store().Delete("old/a b+ü").IgnoreError("it may have gone");
    const auto found = store().Get(to, kNoLimit);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(*found, content);
  }
  EXPECT_TRUE(adopting->Adopt("not/there", "c").Is(Code::kNotFound));
  EXPECT_TRUE(store().Stat("c").status().Is(Code::kNotFound));
}

TEST_P(StoreConformance, AppendedBytesStandBehindTheOthers) {
  AppendingStore* appending = FindAppending(&store());
  if (appending == nullptr) return;  // an ability that not all have
  EXPECT_EQ(CodeOf(appending->OpenAppend("not/there")), Code::kNotFound);
  EXPECT_EQ(CodeOf(appending->OpenAppend("a/../b")), Code::kInvalidArgument);
  ASSERT_TRUE(store().Create("log/a b+ü", "").ok());
  EXPECT_EQ(CodeOf(appending->OpenAppend("log")), Code::kNotFound) << "that is a directory";
  std::string content;
  for (int opening = 0; opening < 2; ++opening) {
    auto object = appending->OpenAppend("log/a b+ü");
    ASSERT_TRUE(object.ok()) << object.status().ToString();
    EXPECT_EQ((*object)->bytes(), content.size());
    EXPECT_TRUE((*object)->Sync("nothing was appended").ok());
    for (const std::size_t bytes : {std::size_t{5}, std::size_t{0}, std::size_t{200'000}}) {
      const std::string more = Pattern(bytes, bytes + static_cast<std::size_t>(opening));
      const Status appended = (*object)->Append(more);
      ASSERT_TRUE(appended.ok()) << appended.ToString();
      content += more;
      EXPECT_EQ((*object)->bytes(), content.size());
      // At once, and for another process too.
      EXPECT_EQ(*OpenAnother()->Get("log/a b+ü", kNoLimit), content);
    }
    const Status synced = (*object)->Sync("the test");
    EXPECT_TRUE(synced.ok() || synced.Is(Code::kUnimplemented)) << synced.ToString();
  }
  EXPECT_EQ(store().Stat("log/a b+ü")->bytes, content.size());
}

/// Writes `bytes` on top of what was left under the name; how many bytes were kept.
Result<std::uint64_t> ResumeObject(Store* store, const std::string& name,
                                   const std::string& bytes) {
  ASSIGN_OR_RETURN(const auto session, store->NewWriteSession(WriteMode::kAuto));
  ASSIGN_OR_RETURN(const std::uint32_t object,
                   session->Open(name, {.bytes = bytes.size(), .resume = true}));
  std::uint64_t kept = 0;
  for (std::size_t at = 0; at < bytes.size(); at += session->part_bytes()) {
    const std::string due = bytes.substr(at, session->part_bytes());
    std::string left(due.size(), '?');
    ASSIGN_OR_RETURN(const bool read,
                     session->ReadLeft(object, std::as_writable_bytes(std::span(left))));
    if (!read || left == due) {
      ASSIGN_OR_RETURN(const bool taken, session->KeepLeft(object, AsBytes(due)));
      if (taken) {
        kept += due.size();
        continue;
      }
    }
    RETURN_IF_ERROR(session->Append(object, AsBytes(due), false, at));
    RETURN_IF_ERROR(session->WaitPart().status());
  }
  RETURN_IF_ERROR(session->Close(object));
  RETURN_IF_ERROR(session->Drain());
  return kept;
}

TEST_P(StoreConformance, WhatWasLeftUnfinishedIsResumed) {
  if (!store().traits().resumes) return;  // an ability that not all have
  const std::string name = "checkpoint_1/a b+ü";
  const auto leave = [&](const std::string& bytes, std::size_t parts) {
    const auto other = OpenAnother();
    auto session = other->NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    (*session)->LeaveUnfinished(true);
    const auto object = (*session)->Open(name, {.bytes = bytes.size()});
    ASSERT_HAS(object);
    for (std::size_t i = 0; i < parts; ++i) {
      const std::string part = bytes.substr(i * (*session)->part_bytes(), (*session)->part_bytes());
      ASSERT_OK((*session)->Append(*object, AsBytes(part), false, i));
      ASSERT_HAS((*session)->WaitPart());
    }
  };
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string bytes = Pattern(3 * part + 77, 5);

  leave(bytes, 2);
  auto kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 2 * part);
  EXPECT_TRUE(ReadObject(name) == bytes);
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
  ASSERT_OK(store().Delete(name));

  // What does not have the bytes that belong there is written over.
  std::string other = bytes;
  other[part + 5] ^= 1;
  leave(other, 3);
  kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 2 * part);
  EXPECT_TRUE(ReadObject(name) == bytes);
  ASSERT_OK(store().Delete(name));

  // All parts are there, only the end is missing; and nothing is.
  leave(bytes, 4);
  kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, bytes.size());
  EXPECT_TRUE(ReadObject(name) == bytes);
  ASSERT_OK(store().Delete(name));
  kept = ResumeObject(&store(), name, bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 0u);
  EXPECT_TRUE(ReadObject(name) == bytes);
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
}

TEST_P(StoreConformance, OfWhatWasLeftTwiceTheFullerIsResumed) {
  if (!store().traits().resumes || store().traits().hard_links) return;  // one name, one file
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string bytes = Pattern(3 * part, 7);
  std::vector<std::unique_ptr<WriteSession>> sessions;
  for (const std::size_t parts : {std::size_t{1}, std::size_t{2}, std::size_t{1}}) {
    sessions.push_back(*store().NewWriteSession(WriteMode::kAuto));
    const auto object = sessions.back()->Open("checkpoint_1/a", {.bytes = bytes.size()});
    ASSERT_HAS(object);
    for (std::size_t i = 0; i < parts; ++i) {
      ASSERT_OK(sessions.back()->Append(*object, AsBytes(bytes).subspan(i * part, part), false, i));
      ASSERT_HAS(sessions.back()->WaitPart());
    }
    sessions.back()->LeaveUnfinished(true);
  }
  const auto kept = ResumeObject(&store(), "checkpoint_1/a", bytes);
  ASSERT_HAS(kept);
  EXPECT_EQ(*kept, 2 * part);
  EXPECT_TRUE(ReadObject("checkpoint_1/a") == bytes);
  // Those that are still alive do no harm to the object, and what they have can be given up.
  sessions.clear();
  ASSERT_OK(store().AbandonUnfinished("checkpoint_1/a"));
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
  EXPECT_TRUE(ReadObject("checkpoint_1/a") == bytes);
}

TEST_P(StoreConformance, AWholeListingTellsWhatChanged) {
  auto* deep = dynamic_cast<DeepListingStore*>(&store());
  if (deep == nullptr) return;  // an ability that not all have
  const std::vector<std::string> names = {"a/b/c", "a/b/d", "a", "z"};
  std::set<std::string> tags;
  const auto list = [&](const std::string& prefix) {
    auto all = deep->ListBelow(prefix, 100);
    EXPECT_TRUE(all.ok()) << all.status().ToString();
    return all.ok() ? *all : std::vector<TaggedObject>();
  };
  for (const std::string& name : names) {
    ASSERT_TRUE(store().Put("x" + name + "/o", "of " + name).ok());
  }
  std::vector<TaggedObject> before = list("");
  ASSERT_THAT(before, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(before[i].bytes, names[i].size() + 3);
    if (!before[i].tag.empty()) {
      EXPECT_TRUE(tags.insert(before[i].tag).second) << "two contents with one tag";
    }
  }
  EXPECT_THAT(list("xa"), SizeIs(3));
  EXPECT_TRUE(deep->ListBelow("", 3).status().Is(Code::kResourceExhausted));
  ASSERT_TRUE(store().Put("xz/o", "OF z").ok());
  const std::vector<TaggedObject> after = list("");
  ASSERT_THAT(after, SizeIs(4));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(after[i].name, before[i].name);
    if (after[i].tag.empty()) continue;
    EXPECT_EQ(after[i].tag == before[i].tag, i < 3) << after[i].name;
  }
}

TEST_P(StoreConformance, PartsThatAreListedSideBySideMakeAWholeListing) {
  auto* deep = dynamic_cast<DeepListingStore*>(&store());
  if (deep == nullptr) return;  // an ability that not all have
  std::vector<std::string> directories;
  for (int i = 0; i < under_test_.long_listing; ++i) {
    // Also names that sort otherwise without what comes behind them.
    directories.push_back("d" + std::to_string(i / 2) + (i % 2 == 0 ? "" : "-2"));
    ASSERT_TRUE(store().Put(directories.back() + "/o", std::to_string(i)).ok());
  }
  ASSERT_TRUE(store().Put("in the root", "").ok());
  const auto expected = deep->ListBelow("", kNoLimit);
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  ASSERT_THAT(*expected, SizeIs(directories.size() + 1));
  const auto compare = [&](const std::vector<std::string>& known) {
    const auto all = deep->ListAll(known, kNoLimit);
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    ASSERT_THAT(*all, SizeIs(expected->size()));
    for (std::size_t i = 0; i < all->size(); ++i) {
      EXPECT_EQ((*all)[i].name, (*expected)[i].name);
      EXPECT_EQ((*all)[i].tag, (*expected)[i].tag);
    }
  };
  compare(directories);
  compare({});
  directories.resize(directories.size() * 2 / 3);  // newer ones came meanwhile
  compare(directories);
  EXPECT_TRUE(
      deep->ListAll(directories, expected->size() - 1).status().Is(Code::kResourceExhausted));
}

TEST_P(StoreConformance, PoolTakesObjectsNobodyElseHas) {
  ASSERT_OK(store().Put("d/a", "x"));
  if (!store().traits().hard_links) {
    Result<bool> moved = store().MoveToPool("d/a", "pool/1/a");
    EXPECT_TRUE(moved.ok() ? !*moved : moved.status().Is(Code::kUnimplemented));
    EXPECT_EQ(*store().Get("d/a", kNoLimit), "x");
    return;
  }
  ASSERT_OK(store().Link("d/a", "d/b"));
  Result<bool> linked = store().MoveToPool("d/a", "pool/1/a");
  ASSERT_HAS(linked);
  EXPECT_FALSE(*linked);
  ASSERT_OK(store().Delete("d/b"));
  {
    Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("d/a");
    ASSERT_HAS(reader);
    Result<bool> open = store().MoveToPool("d/a", "pool/1/a");
    ASSERT_HAS(open);
    EXPECT_FALSE(*open);
    EXPECT_EQ(ReadObject("d/a"), "x");
    EXPECT_EQ(CodeOf(store().Stat("pool/1/a")), Code::kNotFound);
  }
  Result<bool> moved = store().MoveToPool("d/a", "pool/1/a");
  ASSERT_HAS(moved);
  EXPECT_TRUE(*moved);
  EXPECT_EQ(CodeOf(store().Stat("d/a")), Code::kNotFound);
  EXPECT_EQ(store().Stat("pool/1/a")->bytes, 1u);
  EXPECT_EQ(CodeOf(store().MoveToPool("missing", "pool/1/b")), Code::kNotFound);
}

TEST_P(StoreConformance, SessionWritesOverAnObjectOfThePool) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no pool";
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::size_t old_bytes = part + 5000;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{100}, part, old_bytes, 2 * part + 1}) {
    SCOPED_TRACE(bytes);
    WriteObjects({{"old", Pattern(old_bytes, 13)}}, true);
    Result<bool> moved = store().MoveToPool("old", "pool/a");
    ASSERT_HAS(moved);
    ASSERT_TRUE(*moved);
    const std::string text = Pattern(bytes, 14);
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    Result<std::uint32_t> object = (*session)->Open("new/a", {.bytes = bytes, .reuse = "pool/a"});
    ASSERT_HAS(object);
    EXPECT_EQ(CodeOf(store().Stat("pool/a")), Code::kNotFound) << "it disappears";
    for (std::size_t at = 0; at < bytes; at += part) {
      ASSERT_OK(
          (*session)->Append(*object, AsBytes(std::string_view(text).substr(at, part)), false, at));
    }
    ASSERT_OK((*session)->Close(*object));
    ASSERT_OK((*session)->Drain());
    session->reset();
    ASSERT_OK(store().SyncNames("new", "conformance"));
    EXPECT_EQ(store().Stat("new/a")->bytes, bytes);
    EXPECT_TRUE(ReadObject("new/a") == text);
    EXPECT_EQ(*store().LinkCount("new/a"), 1u);
    ASSERT_OK(store().Delete("new/a"));
  }
}

TEST_P(StoreConformance, ReuseReplacesNothing) {
  if (!store().traits().hard_links) GTEST_SKIP() << "no pool";
  ASSERT_OK(store().Put("old", "old"));
  ASSERT_OK(store().Put("taken", "taken"));
  ASSERT_TRUE(*store().MoveToPool("old", "pool/a"));
  Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
  ASSERT_HAS(session);
  EXPECT_EQ(CodeOf((*session)->Open("taken", {.bytes = 1, .reuse = "pool/a"})),
            Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("taken", kNoLimit), "taken");
}

// ---------------------------------------------------------------- locks and the rest

TEST_P(StoreConformance, LockIsHeldByOneUntilItIsReleased) {
  Result<std::unique_ptr<StoreLock>> lock = store().TryLock("locks/writer");
  if (!store().traits().locks) {
    EXPECT_EQ(CodeOf(lock), Code::kUnimplemented);
    return;
  }
  ASSERT_HAS(lock);
  EXPECT_EQ(CodeOf(store().TryLock("locks/writer")), Code::kUnavailable);
  EXPECT_EQ(CodeOf(OpenAnother()->TryLock("locks/writer")), Code::kUnavailable);
  EXPECT_TRUE(store().TryLock("locks/another").ok());
  lock->reset();
  EXPECT_TRUE(OpenAnother()->TryLock("locks/writer").ok());
  EXPECT_TRUE(store().TryLock("locks/writer").ok());
}

TEST_P(StoreConformance, OneOfManyConcurrentLockersWins) {
  if (!store().traits().locks) GTEST_SKIP() << "no locks";
  std::atomic<int> holders = 0;
  std::atomic<int> acquired = 0;
  RunInThreads(kThreads, [&](int) {
    for (int i = 0; i < 50; ++i) {
      Result<std::unique_ptr<StoreLock>> lock = store().TryLock("lock");
      if (!lock.ok()) {
        EXPECT_EQ(lock.status().code(), Code::kUnavailable) << lock.status().ToString();
        continue;
      }
      EXPECT_EQ(++holders, 1);
      ++acquired;
      --holders;
    }
  });
  EXPECT_GE(acquired, 1);
}

TEST_P(StoreConformance, FreeBytesIsKnownOrNot) {
  Result<std::optional<std::uint64_t>> free = store().FreeBytes();
  ASSERT_HAS(free);
  if (free->has_value()) {
    EXPECT_GT(**free, 0u);
  }
}

TEST_P(StoreConformance, RefreshShowsWhatOthersWrote) {
  auto other = OpenAnother();
  EXPECT_OK(store().Refresh("missing"));
  ASSERT_OK(other->Put("d/a", "x"));
  EXPECT_OK(store().Refresh("d"));
  EXPECT_OK(store().Refresh(""));
  EXPECT_THAT(ObjectNames(*store().List("d")), ElementsAre("d/a"));
}

}  // namespace cairn
