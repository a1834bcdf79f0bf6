// Which names an object may have, and what lists tell of them.
#include <gmock/gmock.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "storage/conformance.h"
#include "storage/conformance_checks.h"
#include "storage/deep_listing.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

}  // namespace

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

TEST_P(StoreConformance, PartsAreJoinedUnderEveryValidName) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::string bytes = Pattern(2 * part + 1, 3);
  const std::string name = "d, e/%2C,a;b=c:d'e\"f, ü.bin";
  WriteObjects({{name, bytes}}, true);
  EXPECT_TRUE(ReadObject(name) == bytes);
  EXPECT_THAT(ObjectNames(*store().List("d, e")), ElementsAre(name));
  {
    Result<std::unique_ptr<WriteSession>> session = store().NewWriteSession(WriteMode::kAuto);
    ASSERT_HAS(session);
    (*session)->LeaveUnfinished(true);
    Result<std::uint32_t> object = (*session)->Open(name + "2", {.bytes = bytes.size()});
    ASSERT_HAS(object);
    ASSERT_OK(
        (*session)->Append(*object, AsBytes(std::string_view(bytes).substr(0, part)), false, 1));
    ASSERT_HAS((*session)->WaitPart());
  }
  Result<std::vector<std::string>> unfinished = store().ListUnfinished("");
  ASSERT_HAS(unfinished);
  if (!unfinished->empty()) {  // where what is unfinished is no object
    EXPECT_THAT(*unfinished, ElementsAre(name + "2"));
  }
  EXPECT_OK(store().AbandonUnfinished(name + "2"));
  EXPECT_THAT(*store().ListUnfinished(""), IsEmpty());
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

}  // namespace cairn
