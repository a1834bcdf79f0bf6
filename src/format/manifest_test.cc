#include "format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "format/json.h"
#include "format/sealed_json.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

FileHash HashOfSize(std::uint64_t bytes) {
  FileHash hash;
  hash.bytes = bytes;
  hash.whole = {0x0123456789abcdef, bytes};
  for (std::uint64_t done = 0; done < bytes; done += kChunkBytes) hash.chunks.push_back(done + 7);
  return hash;
}

Manifest Example() {
  Manifest m;
  m.id = "6f1e2d3c-0000-4000-8000-000000000001";
  m.job = "6f1e2d3c-0000-4000-8000-000000000002";
  m.generation = 7;
  m.sequence = 3;
  m.attempt = "6f1e2d3c-0000-4000-8000-000000000003";
  m.step = 40;
  m.parent = "6f1e2d3c-0000-4000-8000-000000000004";
  m.participants = {"rank_0", "rank_1"};
  m.files = {{"__model__/rank_0-00001.safetensors", HashOfSize(2 * kChunkBytes + 1), "rank_0", ""},
             {"__model__/rank_1-00001.safetensors", HashOfSize(kChunkBytes), "rank_1",
              "checkpoint_000020/__model__/rank_1-00001.safetensors"},
             {"__model__/model.safetensors.index.json", HashOfSize(10), "", ""},
             {"files/empty", HashOfSize(0), "rank_0", ""}};
  m.tables = {{"users", 16, DType::kBF16, 1000, 3}};
  m.counters = Value::Object{{"epoch", 3}, {"step", 40}};
  m.metrics = Value::Object{{"loss", 0.25}, {"eval", Value::Object{{"top1", 0.5}}}};
  m.metadata = Value::Object{{"note", "première"}, {"big", 18446744073709551615u}};
  m.lineage = Value::Object{{"from", "elsewhere"}};
  m.time = 1'700'000'000'123'456'789;
  return m;
}

/// The manifest's members, changed by `edit`, sealed again: bytes with a good checksum.
template <typename Edit>
std::string Edited(Edit edit) {
  Value::Object members = *DecodeSealedJson(EncodeManifest(Example()));
  edit(&members);
  return EncodeSealedJson(members);
}

Status DecodeEdited(std::string_view member, Value value) {
  return DecodeManifest(Edited([&](Value::Object* m) {
           m->insert_or_assign(std::string(member), std::move(value));
         }))
      .status();
}

TEST(Manifest, ComesBackAsItWas) {
  const auto back = DecodeManifest(EncodeManifest(Example()));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, Example());
  EXPECT_EQ(EncodeManifest(*back), EncodeManifest(Example()));
  EXPECT_EQ(back->Bytes(), 3 * kChunkBytes + 11);
}

TEST(Manifest, AnIncrementComesBackAsItWas) {
  Manifest m = Example();
  m.kind = CheckpointKind::kIncrement;
  m.base = "base-id";
  m.chain = "cumulative";
  const auto back = DecodeManifest(EncodeManifest(m));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, m);
}

TEST(Manifest, WhatCompactWritesKeepsItsPlaceAndNamesTheGenerationThatCommittedIt) {
  Manifest m = Example();
  EXPECT_EQ(m.CommitGeneration(), m.generation);
  m.replaces = "older";
  m.compacted = m.generation + 4;
  const auto back = DecodeManifest(EncodeManifest(m));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, m);
  EXPECT_EQ(back->CommitGeneration(), m.generation + 4);
}

TEST(Manifest, TablesOfSeveralParticipantsAddUp) {
  std::vector<ManifestTable> sums;
  ASSERT_TRUE(AddManifestTables({{"a", 8, DType::kF32, 10, 1}, {"b", 4}}, &sums).ok());
  ASSERT_TRUE(AddManifestTables({{"a", 8, DType::kF32, 5, 2}}, &sums).ok());
  EXPECT_EQ(sums, (std::vector<ManifestTable>{{"a", 8, DType::kF32, 15, 3}, {"b", 4}}));
  const Status other = AddManifestTables({{"a", 16}}, &sums);
  EXPECT_TRUE(other.Is(Code::kFailedPrecondition)) << other.ToString();
  EXPECT_THAT(std::string(other.message()), HasSubstr("\"a\""));
}

TEST(Manifest, TwoParticipantsCannotHoldTheSamePartOfATable) {
  const auto part = [](std::vector<NumberRange> held) {
    return std::vector<ManifestTable>{{"a", 8, DType::kF32, 1, 0, std::move(held)}};
  };
  std::vector<ManifestTable> sums;
  ASSERT_TRUE(AddManifestTables(part({{0, 512}}), &sums).ok());
  ASSERT_TRUE(AddManifestTables(part({}), &sums).ok()) << "of a version that does not say it";
  ASSERT_TRUE(AddManifestTables(part({{600, 700}, {512, 600}}), &sums).ok());
  const Status same = AddManifestTables(part({{900, 1024}, {599, 601}}), &sums);
  EXPECT_TRUE(same.Is(Code::kFailedPrecondition)) << same.ToString();
  EXPECT_THAT(std::string(same.message()), HasSubstr("\"a\""));
  EXPECT_THAT(std::string(same.message()), HasSubstr("shards"));
}

TEST(Manifest, MembersStandInTheDocumentedOrder) {
  Manifest m = Example();
  m.replaces = "older";
  m.compacted = 9;
  const std::string text = EncodeManifest(m);
  std::size_t at = 0;
  for (const std::string_view member :
       {"cairn",    "features",  "id",           "job",   "generation", "sequence",
        "attempt",  "kind",      "chain",        "step",  "base",       "parent",
        "replaces", "compacted", "participants", "files", "tables",     "counters",
        "metrics",  "metadata",  "lineage",      "time",  "checksum"}) {
    const std::size_t found = text.find("\n  \"" + std::string(member) + "\": ", at);
    ASSERT_NE(found, text.npos) << member;
    at = found;
  }
}

TEST(Manifest, NonFiniteNumbersComeBackAsNumbers) {
  const double inf = std::numeric_limits<double>::infinity();
  Manifest m = Example();
  m.metrics = Value::Object{{"loss", std::nan("")}, {"eval", Value::Object{{"best", -inf}}}};
  m.counters = Value::Object{{"scale", inf}};
  m.metadata = Value::Object{{"number", inf}, {"text", "nan"}};
  const auto back = DecodeManifest(EncodeManifest(m));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(std::isnan(back->metrics.Find("loss")->AsDouble()));
  EXPECT_EQ(*back->metrics.Find("eval/best"), Value(-inf));
  EXPECT_EQ(*back->counters.Find("scale"), Value(inf));
  EXPECT_EQ(*back->metadata.Find("number"), Value(inf));
  EXPECT_EQ(*back->metadata.Find("text"), Value("nan"));
}

TEST(Manifest, UnknownMembersAreIgnored) {
  const auto back = DecodeManifest(Edited([](Value::Object* m) {
    m->emplace("later", Value::Object{{"anything", 1}});
    m->find("files")->second.if_list()->front().if_object()->emplace("compression", "none");
    m->find("tables")->second.if_list()->front().if_object()->emplace("hash", 1);
  }));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, Example());
}

TEST(Manifest, AnUnknownFeatureIsRefusedByName) {
  const Status s = DecodeEdited("features", Value::List{"sparse-pages"});
  EXPECT_TRUE(s.Is(Code::kUnimplemented)) << s.ToString();
  EXPECT_THAT(std::string(s.message()), HasSubstr("sparse-pages"));
}

TEST(Manifest, ANewerVersionIsRefusedBeforeAnythingElseIsRead) {
  const Status s = DecodeManifest(EncodeSealedJson({{"cairn", kFormatVersion + 1}})).status();
  EXPECT_TRUE(s.Is(Code::kUnimplemented)) << s.ToString();
  EXPECT_TRUE(DecodeEdited("cairn", 0).Is(Code::kCorruption));
  EXPECT_TRUE(DecodeEdited("cairn", "1").Is(Code::kCorruption));
}

TEST(Manifest, AMissingMemberIsCorruption) {
  for (const std::string_view member : {"cairn", "id", "job", "generation", "sequence", "attempt",
                                        "kind", "step", "participants", "files"}) {
    const Status s =
        DecodeManifest(Edited([&](Value::Object* m) { m->erase(m->find(member)); })).status();
    EXPECT_TRUE(s.Is(Code::kCorruption)) << member << ": " << s.ToString();
    EXPECT_THAT(std::string(s.message()), HasSubstr(std::string(member)));
  }
}

TEST(Manifest, AMemberOfAnotherTypeIsCorruption) {
  Value::Object members = *DecodeSealedJson(EncodeManifest(Example()));
  for (const auto& [key, value] : members) {
    const Value other = value.is_list() ? Value("text") : Value(Value::List{true});
    const Status s = DecodeEdited(key, other);
    EXPECT_TRUE(s.Is(Code::kCorruption)) << key << ": " << s.ToString();
  }
}

TEST(Manifest, PathsThatLeaveTheDirectoryAreCorruption) {
  for (const std::string_view path :
       {"../x", "/etc/x", "a/../../x", "", ".", "a//b", "a/", "a\nb"}) {
    for (const std::string_view member : {"path", "ref"}) {
      const Status s = DecodeManifest(Edited([&](Value::Object* m) {
                         m->find("files")->second.if_list()->front().if_object()->insert_or_assign(
                             std::string(member), path);
                       })).status();
      if (path.empty() && member == "ref") continue;  // no ref
      EXPECT_TRUE(s.Is(Code::kCorruption)) << path << ": " << s.ToString();
    }
  }
}

TEST(Manifest, WhatWouldNotDecodeDoesNotValidate) {
  EXPECT_TRUE(ValidateManifest(Example()).ok());
  const auto refused = [](auto edit) {
    Manifest m = Example();
    edit(&m);
    return ValidateManifest(m).Is(Code::kInvalidArgument) &&
           DecodeManifest(EncodeManifest(m)).status().Is(Code::kCorruption);
  };
  EXPECT_TRUE(refused([](Manifest* m) { m->files.push_back(m->files[0]); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->files[0].hash.chunks.pop_back(); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->files[3].hash.chunks.push_back(1); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->files[0].part = "rank_9"; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->participants.push_back("rank_0"); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->participants.push_back("a/b"); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->tables.push_back(m->tables[0]); }));
  EXPECT_TRUE(refused([](Manifest* m) { m->tables[0].name = ""; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->id = ""; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->chain = "long"; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->base = "x"; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->kind = CheckpointKind::kIncrement; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->metrics = 1; }));
  EXPECT_TRUE(refused([](Manifest* m) {
    Value deep = 1;
    for (int i = 0; i < kMaxJsonDepth - 1; ++i) deep = Value::List{deep};
    m->metadata = Value::Object{{"deep", deep}};
  }));
}

TEST(Manifest, TextThatIsNotUtf8DoesNotValidate) {
  const auto refused = [](auto edit) {
    Manifest m = Example();
    edit(&m);
    return ValidateManifest(m).Is(Code::kInvalidArgument);
  };
  EXPECT_TRUE(refused([](Manifest* m) { m->metadata = Value::Object{{"a", "\xff"}}; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->files[0].path = "\xff"; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->tables[0].name = "\xff"; }));
  EXPECT_TRUE(refused([](Manifest* m) { m->job = "\xff"; }));
}

TEST(Manifest, SizesThatOverflowAreCorruption) {
  const Status s = DecodeManifest(Edited([](Value::Object* m) {
                     m->find("files")->second.if_list()->front().if_object()->insert_or_assign(
                         "bytes", std::numeric_limits<std::uint64_t>::max());
                   })).status();
  EXPECT_TRUE(s.Is(Code::kCorruption)) << s.ToString();
}

TEST(Manifest, EveryFlippedBitIsSeen) {
  Manifest m = Example();
  const std::string good = EncodeManifest(m);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    EXPECT_FALSE(DecodeManifest(bad).ok()) << i;
  }
}

TEST(Manifest, FilesAndTablesComeBackThroughValues) {
  for (const ManifestFile& file : Example().files) {
    EXPECT_EQ(*DecodeManifestFile(EncodeManifestFile(file)), file);
    EXPECT_EQ(*DecodeManifestFile(*DecodeJson(ManifestFileJson(file))), file);
  }
  for (const ManifestTable& table : Example().tables) {
    EXPECT_EQ(*DecodeManifestTable(EncodeManifestTable(table)), table);
    EXPECT_EQ(*DecodeManifestTable(*DecodeJson(ManifestTableJson(table))), table);
  }
  const ManifestTable held{"a", 8, DType::kF32, 1, 0, {{0, 5}, {7, 1024}}};
  EXPECT_EQ(*DecodeManifestTable(EncodeManifestTable(held)), held);
  EXPECT_EQ(*DecodeManifestTable(*DecodeJson(ManifestTableJson(held))), held);
  for (const char* bad : {"5", "[1]", "[2,1]", "[-1,2]", "[1,2,3]", "[0,\"x\"]"}) {
    const std::string text = R"({"name":"a","dim":8,"dtype":"F32","rows":1,"held":[)";
    EXPECT_TRUE(DecodeManifestTable(*DecodeJson(text + bad + "]}")).status().Is(Code::kCorruption))
        << bad;
  }
}

TEST(Manifest, IsKnownForOursAlsoWhenItIsDamaged) {
  const std::string whole = EncodeManifest(Example());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x20);
    ASSERT_TRUE(MayHaveBeenManifest(flipped)) << i;
  }
  for (std::size_t kept = 20; kept < whole.size(); ++kept) {
    ASSERT_TRUE(MayHaveBeenManifest(whole.substr(0, kept))) << kept;
    ASSERT_TRUE(MayHaveBeenManifest(whole.substr(whole.size() - std::max<std::size_t>(kept, 60))))
        << kept;
  }
  for (const char* others :
       {"", "{}", "version: 3", R"({"manifest_version": 3, "name": "an extension"})",
        R"({"name": "app", "start_url": "/", "icons": [{"src": "a.png"}]})",
        R"({"schemaVersion": 2, "config": {"digest": "sha256:0"}, "layers": []})",
        R"({"files": {"main.js": "/main.js"}, "checksum": "ab", "step": 3, "id": "x"})"}) {
    EXPECT_FALSE(MayHaveBeenManifest(others)) << others;
  }
}

}  // namespace
}  // namespace cairn
