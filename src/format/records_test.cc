#include "format/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "format/sealed_json.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

std::tuple<RepositoryRecord, FenceRecord, SealRecord, ClosedRecord, EndRecord, StartRecord,
           JoinRecord, AttemptRecord, PartRecord, AbandonedRecord, NoteRecord, MarkerRecord,
           ShelfRecord>
Examples() {
  FileHash hash;
  hash.bytes = 5;
  hash.whole = {1, 2};
  hash.chunks = {3};
  return {
      RepositoryRecord{.job = "job-1"},
      FenceRecord{.generation = 7,
                  .uuid = "u",
                  .job = "job-1",
                  .run = 2,
                  .host = "h",
                  .pid = 9,
                  .process = "b n 4"},
      SealRecord{.generation = 7,
                 .uuid = "u",
                 .commits = {"id-1", "id-2"},
                 .retired = {"checkpoint_000030", "checkpoint_000050"},
                 .ours = {"checkpoint_000050"}},
      ClosedRecord{.generation = 6, .uuid = "u"},
      EndRecord{.generation = 7, .uuid = "u"},
      StartRecord{.generation = 7,
                  .uuid = "u",
                  .restore = "id-2",
                  .participants = {{"rank_0", "u0"}, {"rank_1", "u1"}}},
      JoinRecord{.participant = "rank_1", .uuid = "u1", .generation = 7, .host = "h", .pid = 10},
      AttemptRecord{.number = 1,
                    .fence = "u",
                    .directory = "increment_000060",
                    .attempt = "a",
                    .step = 60,
                    .kind = CheckpointKind::kIncrement,
                    .base = "id-2",
                    .chain = "consecutive",
                    .parent = "id-3",
                    .participants = {"rank_0", "rank_1"}},
      PartRecord{.attempt = "a",
                 .participant = "rank_1",
                 .uuid = "u1",
                 .files = {{"__model__/rank_1-00001.safetensors", hash, "rank_1", ""}},
                 .tables = {{"users", 8, DType::kF32, 5, 0}},
                 .metadata = Value::Object{{"rng", Value::Object{{"pos", 624}}}}},
      AbandonedRecord{.attempt = "a", .missing = {"rank_1"}},
      NoteRecord{.number = 1,
                 .kind = NoteKind::kLabel,
                 .uuid = "n",
                 .checkpoint = "c",
                 .values = Value::Object{{"label", "best so far"}},
                 .time = 1'700'000'000'000'000'000},
      MarkerRecord{.generation = 7, .attempt = "a", .copies = "id-9", .participants = {"worker_0"}},
      ShelfRecord{.entries = {{"checkpoint_000040", "\"9b2\"", "{\n}\n"}}},
  };
}

template <typename Check>
void ForEachExample(Check check) {
  std::apply([&](const auto&... record) { (check(record), ...); }, Examples());
}

TEST(Records, EachComesBackAsItWas) {
  ForEachExample([]<typename Record>(const Record& record) {
    const auto back = Decode<Record>(Encode(record));
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, record) << Encode(record);
    EXPECT_EQ(Encode(*back), Encode(record));
  });
}

TEST(Records, DefaultsThatMeanNothingComeBack) {
  const StartRecord fresh{.generation = 1, .uuid = "u", .restore = "", .participants = {}};
  EXPECT_EQ(*Decode<StartRecord>(Encode(fresh)), fresh);
  EXPECT_THAT(Encode(fresh), HasSubstr("\"restore\": null"));
  const AttemptRecord skipped{.number = 4, .attempt = "a", .step = 50, .skipped = true};
  EXPECT_EQ(*Decode<AttemptRecord>(Encode(skipped)), skipped);
  const SealRecord first{.generation = 1, .uuid = "u", .commits = {}};
  EXPECT_EQ(*Decode<SealRecord>(Encode(first)), first);
}

TEST(Records, NoneIsReadAsAnother) {
  ForEachExample([]<typename Record>(const Record& record) {
    const std::string bytes = Encode(record);
    ForEachExample([&]<typename Other>(const Other&) {
      if constexpr (!std::is_same_v<Record, Other>) {
        EXPECT_TRUE(Decode<Other>(bytes).status().Is(Code::kCorruption)) << bytes;
      }
    });
    EXPECT_TRUE(DecodeManifest(bytes).status().Is(Code::kCorruption)) << bytes;
  });
}

TEST(Records, EveryFlippedBitAndEveryCutIsSeen) {
  ForEachExample([]<typename Record>(const Record& record) {
    const std::string good = Encode(record);
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      EXPECT_FALSE(Decode<Record>(bad).ok()) << i;
      EXPECT_FALSE(Decode<Record>(good.substr(0, i)).ok()) << i;
    }
  });
}

TEST(Records, UnknownMembersAreIgnored) {
  ForEachExample([]<typename Record>(const Record& record) {
    Value::Object members = *DecodeSealedJson(Encode(record));
    members.emplace("later", Value::List{1});
    const auto back = Decode<Record>(EncodeSealedJson(members));
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, record);
  });
}

TEST(Records, MembersOfAnotherTypeAreCorruption) {
  ForEachExample([]<typename Record>(const Record& record) {
    const Value::Object members = *DecodeSealedJson(Encode(record));
    for (const auto& [key, value] : members) {
      if (value.is_null()) continue;
      Value::Object changed = members;
      changed[key] = value.is_list() ? Value("text") : Value(Value::List{true});
      const Status s = Decode<Record>(EncodeSealedJson(changed)).status();
      EXPECT_TRUE(s.Is(Code::kCorruption)) << key << ": " << s.ToString();
    }
  });
}

TEST(Records, ANewerRepositoryIsRefused) {
  EXPECT_TRUE(Decode<RepositoryRecord>(Encode(RepositoryRecord{.version = 2, .job = "j"}))
                  .status()
                  .Is(Code::kUnimplemented));
  const Status s =
      Decode<RepositoryRecord>(Encode(RepositoryRecord{.features = {"shards"}, .job = "j"}))
          .status();
  EXPECT_TRUE(s.Is(Code::kUnimplemented));
  EXPECT_THAT(std::string(s.message()), HasSubstr("shards"));
}

TEST(Records, NamesThatLeaveTheDirectoryAreCorruption) {
  for (const std::string_view name : {"..", "a/b", "", "/"}) {
    const std::string text(name);
    EXPECT_TRUE(Decode<JoinRecord>(Encode(JoinRecord{.participant = text, .uuid = "u"}))
                    .status()
                    .Is(Code::kCorruption));
    EXPECT_TRUE(Decode<StartRecord>(Encode(StartRecord{.uuid = "u", .participants = {{text, "u"}}}))
                    .status()
                    .Is(Code::kCorruption));
    EXPECT_TRUE(Decode<AbandonedRecord>(Encode(AbandonedRecord{.attempt = "a", .missing = {text}}))
                    .status()
                    .Is(Code::kCorruption));
    if (name == "a/b") continue;
    EXPECT_TRUE(Decode<AttemptRecord>(Encode(AttemptRecord{.directory = text, .attempt = "a"}))
                    .status()
                    .Is(Code::kCorruption));
  }
}

TEST(Records, LateScoresKeepNonFiniteNumbersAndLabelsKeepTexts) {
  const NoteRecord score{.number = 2,
                         .kind = NoteKind::kScore,
                         .uuid = "n",
                         .values = Value::Object{{"loss", std::nan("")}}};
  EXPECT_TRUE(std::isnan(Decode<NoteRecord>(Encode(score))->values.Find("loss")->AsDouble()));
  const NoteRecord label{.number = 2,
                         .kind = NoteKind::kLabel,
                         .uuid = "n",
                         .values = Value::Object{{"label", "NaN"}}};
  EXPECT_EQ(*Decode<NoteRecord>(Encode(label)), label);
}

TEST(Records, EveryKindOfNoteComesBack) {
  for (const NoteKind kind : {NoteKind::kPin, NoteKind::kUnpin, NoteKind::kScore, NoteKind::kLabel,
                              NoteKind::kRemove, NoteKind::kDamaged}) {
    const NoteRecord note{.number = 3, .kind = kind, .uuid = "n", .generation = 7};
    EXPECT_EQ(*Decode<NoteRecord>(Encode(note)), note) << NoteKindName(kind);
  }
}

}  // namespace
}  // namespace cairn
