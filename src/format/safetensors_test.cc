#include "format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

/// A header around any JSON, as a file would start.
std::string Framed(std::string_view json) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((json.size() >> (8 * i)) & 0xFF);
  return out + std::string(json);
}

Result<SafetensorsHeader> DecodeText(std::string_view json, std::uint64_t data_bytes) {
  const std::string bytes = Framed(json);
  return DecodeSafetensorsHeader(bytes, bytes.size() + data_bytes);
}

Result<TensorEntry> FindText(std::string_view json, std::uint64_t data_bytes,
                             std::string_view name) {
  const std::string bytes = Framed(json);
  return FindTensorInHeader(bytes, bytes.size() + data_bytes, name);
}

/// Tensors back to back, with the given names, one byte each.
std::vector<TensorEntry> Named(std::initializer_list<std::string_view> names) {
  std::vector<TensorEntry> tensors;
  for (const std::string_view name : names) {
    const std::uint64_t begin = tensors.size();
    tensors.push_back({std::string(name), DType::kU8, {1}, begin, begin + 1});
  }
  return tensors;
}

TEST(Safetensors, HeaderComesBackAsItWas) {
  std::vector<TensorEntry> tensors;
  std::uint64_t at = 0;
  for (int i = 0; i <= static_cast<int>(DType::kC64); ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const std::vector<std::uint64_t>& shape :
         {std::vector<std::uint64_t>{}, {8}, {0}, {2, 4, 3}, {3, 0, 5}}) {
      const auto bytes = TensorBytes(dtype, shape);
      if (!bytes.ok()) continue;  // sub-byte types have no 0-d tensors
      const std::string name = std::string(DTypeName(dtype)) + "/" + EncodeDims(shape);
      tensors.push_back({name, dtype, shape, at, at + *bytes});
      at += *bytes;
    }
  }
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"cairn.shape/x", "8,16"}, {"\"", "\n"}};
  const auto bytes = EncodeSafetensorsHeader(tensors, metadata);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_EQ(bytes->size() % kSafetensorsAlign, 0u);
  const auto back = DecodeSafetensorsHeader(*bytes, bytes->size() + at);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->tensors, tensors);
  EXPECT_EQ(back->metadata, metadata);
  EXPECT_EQ(back->data_offset, bytes->size());
  EXPECT_EQ(back->DataBytes(), at);
  for (const TensorEntry& tensor : tensors) {
    EXPECT_EQ(*FindTensorInHeader(*bytes, bytes->size() + at, tensor.name), tensor);
  }
}

TEST(Safetensors, AFileWithoutTensorsComesBack) {
  const auto bytes = EncodeSafetensorsHeader({}, {});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes->substr(8, 2), "{}");
  const auto back = DecodeSafetensorsHeader(*bytes, bytes->size());
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(back->tensors.empty());
  EXPECT_EQ(back->DataBytes(), 0u);
  const auto with_metadata = EncodeSafetensorsHeader({}, {{"a", "b"}});
  EXPECT_EQ(with_metadata->substr(8, 28), R"({"__metadata__":{"a":"b"}}  )");
  EXPECT_TRUE(DecodeSafetensorsHeader(*with_metadata, with_metadata->size()).ok());
}

TEST(Safetensors, TensorBytesKnowsEveryLimit) {
  using Dims = std::vector<std::uint64_t>;
  EXPECT_EQ(*TensorBytes(DType::kF32, Dims{}), 4u);
  EXPECT_EQ(*TensorBytes(DType::kF32, Dims{2, 3}), 24u);
  EXPECT_EQ(*TensorBytes(DType::kF32, Dims{5, 0}), 0u);
  EXPECT_EQ(*TensorBytes(DType::kF4, Dims{2}), 1u);
  EXPECT_EQ(*TensorBytes(DType::kF6E2M3, Dims{4}), 3u);
  EXPECT_FALSE(TensorBytes(DType::kF4, Dims{3}).ok());
  EXPECT_FALSE(TensorBytes(DType::kF6E3M2, Dims{}).ok());
  EXPECT_FALSE(TensorBytes(DType::kU8, Dims{kHuge, 2}).ok());
  EXPECT_FALSE(TensorBytes(DType::kU8, Dims{kHuge}).ok());  // its bits overflow
  EXPECT_FALSE(TensorBytes(DType::kU8, Dims{0, kHuge, kHuge}).ok());
  EXPECT_EQ(*TensorBytes(DType::kU8, Dims{kHuge / 8}), kHuge / 8);
}

TEST(Safetensors, EncodeRefusesWhatCouldNotBeRead) {
  const auto refused = [](std::vector<TensorEntry> tensors, SafetensorsMetadata metadata = {}) {
    return EncodeSafetensorsHeader(tensors, metadata).status().Is(Code::kInvalidArgument);
  };
  EXPECT_TRUE(refused(Named({"a", "b", "a"})));
  EXPECT_TRUE(refused(Named({"__metadata__"})));
  EXPECT_TRUE(refused(Named({"\xff"})));
  EXPECT_TRUE(refused(Named({"a"}), {{"k", "\xff"}}));
  EXPECT_TRUE(refused({{"a", DType::kF32, {2}, 0, 4}}));
  EXPECT_TRUE(refused({{"a", DType::kF32, {1}, 4, 8}}));
  EXPECT_TRUE(refused({{"a", DType::kF32, {1}, 0, 4}, {"b", DType::kF32, {1}, 8, 12}}));
  EXPECT_TRUE(refused({{"a", DType::kU8, {4}, 4, 0}}));
}

TEST(Safetensors, CostIsAnUpperBoundOfWhatATensorAdds) {
  for (const std::string& name :
       {std::string("a"), std::string(3000, '"'), std::string("é\n\x01")}) {
    const TensorEntry tensor{name, DType::kF8E4M3Fnuz, {1, 200, 3}, 0, 600};
    const auto bytes = EncodeSafetensorsHeader(std::vector{tensor}, {});
    const std::size_t json = bytes->find_last_not_of(' ') + 1 - 8;
    EXPECT_LE(json, 2 + SafetensorsHeaderCost(tensor));
    EXPECT_GE(json + 50, SafetensorsHeaderCost(tensor));
  }
}

TEST(Safetensors, NamesWithEveryKindOfCharacterComeBack) {
  const auto tensors = Named({"", " ", "a/b.c", "\"", "\\", "\\\"", "é", "漢字", "😀", "\n\t\r\b\f",
                              std::string_view("\0", 1), "\x7f", "a@0,1", "__metadata", "dtype",
                              ":", ":{", "{\"dtype\":\"U8\"}"});
  const auto bytes = EncodeSafetensorsHeader(tensors, {{"\\", "\""}});
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  const std::uint64_t file_bytes = bytes->size() + tensors.size();
  const auto back = DecodeSafetensorsHeader(*bytes, file_bytes);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->tensors, tensors);
  for (const TensorEntry& tensor : tensors) {
    EXPECT_EQ(*FindTensorInHeader(*bytes, file_bytes, tensor.name), tensor);
  }
}

TEST(Safetensors, AnyOrderAndAnySpacingIsRead) {
  const auto header = DecodeText(R"({ "b" : { "data_offsets" : [ 4 , 8 ] , "shape" : [ 1 ],
      "dtype":"F32" } , "__metadata__" : { } , "a":{"shape":[],"dtype":"F32","data_offsets":[0,4]}
      }   )",
                                 8);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_THAT(header->tensors, ElementsAre(TensorEntry{"a", DType::kF32, {}, 0, 4},
                                           TensorEntry{"b", DType::kF32, {1}, 4, 8}));
}

TEST(Safetensors, EmptyTensorsMayStandAnywhereInTheText) {
  const auto header = DecodeText(R"({"full":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                 R"("none":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                                 R"("last":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}})",
                                 4);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(header->tensors[0].name, "none");
  EXPECT_EQ(header->tensors[1].name, "full");
  EXPECT_EQ(header->tensors[2].name, "last");
}

TEST(Safetensors, MalformedHeadersAreCorruption) {
  constexpr std::string_view kGood = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  ASSERT_TRUE(DecodeText(kGood, 4).ok());
  for (
      const std::string_view json : {
          R"()",
          R"([])",
          R"( {"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}x)",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],}})",
          R"({"a":{"dtype":"U8","shape":[4,],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[4]}})",
          R"({"a":{"shape":[4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","data_offsets":[0,4]}})",
          R"({"a":{}})",
          R"({"a":4})",
          R"({"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})",
          R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":"4","data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":{}}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":[]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":nope}})",
          R"({"a":{"dtype":"U8","shape":[18446744073709551617,4],"data_offsets":[0,4]}})",
          R"({"a":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__metadata__":{"x":1}})",
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__metadata__":"x"})",
          R"({"__metadata__":{},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__metadata__":{}})",
          R"({"__metadata__":{"x":"1","x":"1"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
      }) {
    const Status s = DecodeText(json, 4).status();
    EXPECT_TRUE(s.Is(Code::kCorruption)) << json << ": " << s.ToString();
  }
  EXPECT_TRUE(DecodeText("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4)
                  .status()
                  .Is(Code::kCorruption));
}

TEST(Safetensors, UnknownPlainMembersAreIgnored) {
  const auto header = DecodeText(
      R"({"a":{"x":"}\"","dtype":"U8","y":-1.5e3,"shape":[4],"z":null,"data_offsets":[0,4],"w":true}})",
      4);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_THAT(header->tensors, ElementsAre(TensorEntry{"a", DType::kU8, {4}, 0, 4}));
}

TEST(Safetensors, HolesOverlapsAndNamesTwiceAreCorruption) {
  const auto two = [](std::string_view second, std::string_view offsets, std::uint64_t data) {
    return DecodeText(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},")" +
                          std::string(second) + R"(":{"dtype":"U8","shape":[4],"data_offsets":)" +
                          std::string(offsets) + "}}",
                      data)
        .status();
  };
  EXPECT_TRUE(two("b", "[4,8]", 8).ok());
  EXPECT_TRUE(two("b", "[5,9]", 9).Is(Code::kCorruption));
  EXPECT_TRUE(two("b", "[3,7]", 7).Is(Code::kCorruption));
  EXPECT_TRUE(two("b", "[0,4]", 4).Is(Code::kCorruption));
  EXPECT_TRUE(two("b", "[4,8]", 9).Is(Code::kCorruption));
  EXPECT_TRUE(two("b", "[4,8]", 7).Is(Code::kCorruption));
  EXPECT_TRUE(two("a", "[4,8]", 8).Is(Code::kCorruption));
  EXPECT_TRUE(two("\\u0061", "[4,8]", 8).Is(Code::kCorruption));
  EXPECT_THAT(std::string(two("a", "[4,8]", 8).message()), HasSubstr("\"a\""));
}

TEST(Safetensors, LengthIsCheckedBeforeAnythingIsRead) {
  const std::string bytes = Framed("{}");
  EXPECT_EQ(*SafetensorsHeaderBytes(bytes.substr(0, 8), 10), 10u);
  EXPECT_TRUE(SafetensorsHeaderBytes(bytes.substr(0, 8), 9).status().Is(Code::kCorruption));
  EXPECT_TRUE(SafetensorsHeaderBytes(bytes.substr(0, 7), 10).status().Is(Code::kCorruption));
  EXPECT_TRUE(SafetensorsHeaderBytes("", 0).status().Is(Code::kCorruption));
  EXPECT_TRUE(SafetensorsHeaderBytes("\xff\xff\xff\xff\xff\xff\xff\xff", kHuge)
                  .status()
                  .Is(Code::kCorruption));
  const std::string over("\x01\xe1\xf5\x05\0\0\0\0", 8);  // 100,000,001
  EXPECT_TRUE(SafetensorsHeaderBytes(over, kHuge).status().Is(Code::kCorruption));
  EXPECT_TRUE(DecodeSafetensorsHeader(bytes + " ", 11).status().Is(Code::kCorruption));
  EXPECT_TRUE(DecodeSafetensorsHeader(bytes.substr(0, 9), 10).status().Is(Code::kCorruption));
  EXPECT_TRUE(FindTensorInHeader(bytes + " ", 11, "a").status().Is(Code::kCorruption));
}

TEST(FindTensor, IsNotFooledByTheNameElsewhere) {
  constexpr std::string_view kJson =
      R"({"__metadata__":{"a":"x","k":"a","q":"\"a\":{\"dtype\":\"U8\",\"shape\":[],)"
      R"(\"data_offsets\":[0,1]}"},)"
      R"("b\"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"note":"a"},)"
      R"("a":{"dtype":"I8","shape":[],"data_offsets":[1,2],"a":"x"}})";
  ASSERT_TRUE(DecodeText(kJson, 2).ok()) << DecodeText(kJson, 2).status().ToString();
  EXPECT_EQ(*FindText(kJson, 2, "a"), (TensorEntry{"a", DType::kI8, {}, 1, 2}));
  EXPECT_EQ(*FindText(kJson, 2, "b\"a"), (TensorEntry{"b\"a", DType::kU8, {}, 0, 1}));
  for (const std::string_view name :
       {"k", "q", "x", "dtype", "U8", "note", "__metadata__", ":", ",", "", "b", "a\"", "\xff"}) {
    EXPECT_TRUE(FindText(kJson, 2, name).status().Is(Code::kNotFound)) << name;
  }
}

TEST(FindTensor, FindsNamesHoweverTheyAreEscaped) {
  constexpr std::string_view kJson =
      R"({"\u0061\/b":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
      R"("\u00e9":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})";
  EXPECT_EQ(FindText(kJson, 2, "a/b")->end, 1u);
  EXPECT_EQ(FindText(kJson, 2, "é")->end, 2u);
  EXPECT_TRUE(FindText(kJson, 2, "\\u0061\\/b").status().Is(Code::kNotFound));
}

TEST(FindTensor, ATensorOutsideTheFileIsCorruption) {
  EXPECT_TRUE(FindText(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3, "a")
                  .status()
                  .Is(Code::kCorruption));
}

TEST(Pieces, DimsComeBack) {
  for (const std::vector<std::uint64_t>& dims :
       {std::vector<std::uint64_t>{}, {0}, {8, 16}, {kHuge, 0, 1}}) {
    EXPECT_EQ(*DecodeDims(EncodeDims(dims)), dims);
  }
  for (const std::string_view text : {",", "1,", ",1", "1,,2", "01", "-1", "+1", " 1", "1 ", "x",
                                      "18446744073709551616", "1.0"}) {
    EXPECT_FALSE(DecodeDims(text).ok()) << text;
  }
}

TEST(Pieces, AnEntryIsAPieceOnlyWithItsArraysShape) {
  const std::vector<std::uint64_t> offset = {2, 0};
  const TensorEntry tensor{PieceName("w", offset), DType::kU8, {2, 4}, 0, 8};
  EXPECT_EQ(tensor.name, "w@2,0");
  const auto piece = DescribePiece(tensor, {{PieceShapeKey("w"), "4,4"}});
  ASSERT_TRUE(piece.ok()) << piece.status().ToString();
  EXPECT_EQ(piece->name, "w");
  EXPECT_FALSE(piece->whole);
  EXPECT_THAT(piece->global_shape, ElementsAre(4, 4));
  EXPECT_THAT(piece->offset, ElementsAre(2, 0));

  for (const SafetensorsMetadata& metadata :
       {SafetensorsMetadata{}, {{PieceShapeKey("v"), "4,4"}}, {{PieceShapeKey("w"), "4"}}}) {
    const auto whole = DescribePiece(tensor, metadata);
    ASSERT_TRUE(whole.ok());
    EXPECT_TRUE(whole->whole);
    EXPECT_EQ(whole->name, "w@2,0");
    EXPECT_THAT(whole->global_shape, ElementsAre(2, 4));
    EXPECT_THAT(whole->offset, ElementsAre(0, 0));
  }
}

TEST(Pieces, APieceOutsideItsArrayIsCorruption) {
  const auto describe = [](std::string_view name, std::string_view shape) {
    return DescribePiece({std::string(name), DType::kU8, {2, 4}, 0, 8},
                         {{PieceShapeKey("w"), std::string(shape)}})
        .status();
  };
  EXPECT_TRUE(describe("w@2,0", "4,4").ok());
  EXPECT_TRUE(describe("w@3,0", "4,4").Is(Code::kCorruption));
  EXPECT_TRUE(describe("w@0,1", "4,4").Is(Code::kCorruption));
  EXPECT_TRUE(describe("w@0,0", "1,4").Is(Code::kCorruption));
  EXPECT_TRUE(describe("w@18446744073709551615,0", "4,4").Is(Code::kCorruption));
  EXPECT_TRUE(describe("w@0,0", "4;4").Is(Code::kCorruption));
  EXPECT_TRUE(describe("w@x", "4,4").ok());
}

TEST(Pieces, NamesMayHoldTheSeparator) {
  const auto piece = DescribePiece({"a@b@1", DType::kU8, {1}, 0, 1}, {{PieceShapeKey("a@b"), "2"}});
  EXPECT_EQ(piece->name, "a@b");
  EXPECT_EQ(DescribePiece({"a@", DType::kU8, {}, 0, 1}, {{PieceShapeKey("a"), ""}})->name, "a");
}

TEST(Index, ComesBackAsItWas) {
  SafetensorsIndex index;
  index.total_bytes = kHuge;
  index.files = {{"a", "rank_0-00001.safetensors"}, {"b \"é\"", "rank_1-00001.safetensors"}};
  const auto back = DecodeSafetensorsIndex(EncodeSafetensorsIndex(index));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->files, index.files);
  EXPECT_EQ(back->total_bytes, kHuge);
  EXPECT_TRUE(DecodeSafetensorsIndex(EncodeSafetensorsIndex({})).ok());
}

TEST(Index, IsLaidOutAsOtherToolsDo) {
  SafetensorsIndex index;
  index.total_bytes = 12;
  index.files = {{"a", "x.safetensors"}, {"b", "x.safetensors"}};
  EXPECT_EQ(EncodeSafetensorsIndex(index),
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"x.safetensors\",\n    \"b\": \"x.safetensors\"\n  }\n}\n");
}

TEST(Index, ForeignMembersAreIgnored) {
  const auto index = DecodeSafetensorsIndex(
      R"({"metadata":{"total_size":1.2e3,"total_parameters":[1,{"x":2}]},"other":null,)"
      R"("weight_map":{"b":"y","a":"x"}})");
  ASSERT_TRUE(index.ok()) << index.status().ToString();
  EXPECT_EQ(index->total_bytes, 1200u);
  EXPECT_EQ(index->files.at("a"), "x");
  EXPECT_TRUE(DecodeSafetensorsIndex(R"({"weight_map":{}})").ok());
}

TEST(Index, MalformedIndexesAreCorruption) {
  for (const std::string_view text :
       {"", "{}", "[]", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":"x"})",
        R"({"weight_map":{"a":"x","a":"x"}})", R"({"weight_map":{"a":"../x"}})",
        R"({"weight_map":{"a":"/x"}})", R"({"weight_map":{"a":""}})",
        R"({"weight_map":{},"weight_map":{}})", R"({"metadata":{"total_size":-1},"weight_map":{}})",
        R"({"metadata":{"total_size":1.5},"weight_map":{}})",
        R"({"metadata":{"total_size":1,"total_size":1},"weight_map":{}})",
        R"({"metadata":{},"metadata":{},"weight_map":{}})", R"({"weight_map":{}} x)"}) {
    EXPECT_TRUE(DecodeSafetensorsIndex(text).status().Is(Code::kCorruption)) << text;
  }
  EXPECT_FALSE(DecodeSafetensorsIndex("{\"weight_map\":{\"\xff\":\"x\"}}").ok());
}

}  // namespace
}  // namespace cairn
