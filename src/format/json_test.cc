#include "format/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "format/json_cursor.h"

namespace cairn {
namespace {

Value Decoded(std::string_view text) {
  Result<Value> value = DecodeJson(text);
  EXPECT_TRUE(value.ok()) << text << ": " << value.status().ToString();
  return value.ok() ? *value : Value("(failed)");
}

bool Refused(std::string_view text) { return DecodeJson(text).status().Is(Code::kCorruption); }

TEST(Json, EveryKindOfValueComesBack) {
  const Value value = Value::Object{
      {"null", nullptr},
      {"bool", true},
      {"small", -5},
      {"least", std::numeric_limits<std::int64_t>::min()},
      {"greatest", std::numeric_limits<std::uint64_t>::max()},
      {"double", 0.1},
      {"text", "quote \" backslash \\ newline \n bell \a é 漢 😀"},
      {"list", Value::List{1, 2.5, "three", Value::List{}}},
      {"object", Value::Object{{"inner", Value::Object{}}}},
  };
  EXPECT_EQ(Decoded(EncodeJson(value)), value);
  EXPECT_EQ(Decoded(EncodeJson(value, 2)), value);
}

TEST(Json, MembersAreInKeyOrderOnOneLine) {
  EXPECT_EQ(EncodeJson(Value::Object{{"b", Value::List{1, 2}}, {"a", nullptr}}),
            R"({"a":null,"b":[1,2]})");
}

TEST(Json, IndentGivesAMemberALine) {
  EXPECT_EQ(EncodeJson(Value::Object{{"a", Value::List{1}}, {"b", Value::Object{}}}, 2),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}");
}

TEST(Json, DoublesStayDoublesAndKeepEveryBit) {
  for (const double d : {1.0, -0.0, 0.1, 1e300, 5e-324, 123456789012345678.0, 1e21, -2.5}) {
    const Value back = Decoded(EncodeJson(d));
    ASSERT_TRUE(back.is_double()) << EncodeJson(d);
    EXPECT_EQ(std::signbit(*back.if_double()), std::signbit(d));
    EXPECT_EQ(*back.if_double(), d);
  }
  EXPECT_EQ(EncodeJson(1.0), "1.0");
  EXPECT_EQ(EncodeJson(-0.0), "-0.0");
}

TEST(Json, NonFiniteNumbersAreStringsThatNumberFromReads) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(EncodeJson(inf), "\"Infinity\"");
  EXPECT_EQ(EncodeJson(-inf), "\"-Infinity\"");
  EXPECT_EQ(EncodeJson(std::nan("")), "\"NaN\"");
  EXPECT_EQ(NumberFrom(Decoded("\"Infinity\"")), Value(inf));
  EXPECT_EQ(NumberFrom("-Infinity"), Value(-inf));
  EXPECT_TRUE(std::isnan(NumberFrom("NaN").AsDouble()));
  EXPECT_EQ(NumberFrom(7), Value(7));
  EXPECT_TRUE(NumberFrom("nan").is_null());
  EXPECT_TRUE(NumberFrom(true).is_null());
}

TEST(Json, RestoreNonFiniteReachesNestedValues) {
  Value value = Value::Object{{"a", Value::Object{{"b", Value::List{"Infinity", "text"}}}}};
  RestoreNonFinite(&value);
  EXPECT_EQ(value,
            Value(Value::Object{
                {"a", Value::Object{
                          {"b", Value::List{std::numeric_limits<double>::infinity(), "text"}}}}}));
}

TEST(Json, IntegersBeyond64BitsBecomeDoubles) {
  EXPECT_EQ(Decoded("18446744073709551616"), Value(18446744073709551616.0));
  EXPECT_EQ(Decoded("-9223372036854775809"), Value(-9223372036854775808.0));
  EXPECT_TRUE(Refused("1e400"));
}

TEST(Json, MalformedTextIsRefused) {
  for (const std::string_view text :
       {"", " ", "{", "[1,]", "{\"a\":1,}", "{'a':1}", "01", "+1", "1.", "nul", "NaN", "[1] 2",
        "\"\x01\"", "\"\\x\"", "/* c */ 1", "\xEF\xBB\xBF{}", "\"\\ud800\""}) {
    EXPECT_TRUE(Refused(text)) << text;
  }
  EXPECT_TRUE(Refused(std::string_view("{}\0", 3)));
  EXPECT_TRUE(Refused(std::string_view("{}\0 garbage", 11)));
}

TEST(Json, TextThatIsNotUtf8IsRefused) {
  EXPECT_TRUE(Refused("\"\xff\""));
  EXPECT_TRUE(Refused("\"\xc3\""));
  EXPECT_TRUE(Refused("\"\xed\xa0\x80\""));  // a surrogate
  EXPECT_TRUE(Refused("\"\xc0\xaf\""));      // overlong
}

TEST(Json, AMemberTwiceIsRefused) {
  EXPECT_TRUE(Refused(R"({"a":1,"a":1})"));
  EXPECT_TRUE(Refused(R"([{"b":{"a":1,"\u0061":2}}])"));
  EXPECT_EQ(Decoded(R"([{"a":1},{"a":2}])").if_list()->size(), 2u);
}

TEST(Json, DepthIsLimited) {
  const std::string deepest(kMaxJsonDepth, '[');
  EXPECT_TRUE(DecodeJson(deepest + std::string(kMaxJsonDepth, ']')).ok());
  EXPECT_TRUE(Refused("[" + deepest + std::string(kMaxJsonDepth, ']') + "]"));
  EXPECT_TRUE(Refused(std::string(1'000'000, '[')));
}

TEST(Json, InvalidUtf8IsWrittenAsReplacementCharacters) {
  EXPECT_EQ(EncodeJson("a\xff\xc3z\xe2\x82"),
            "\"a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_FALSE(ValidateJsonValue("a\xff").ok());
  EXPECT_FALSE(ValidateJsonValue(Value::Object{{"\xff", 1}}).ok());
}

TEST(Json, ValidateAcceptsJustWhatDecodes) {
  Value value = 1;
  for (int i = 0; i < kMaxJsonDepth; ++i) value = Value::List{value};
  EXPECT_TRUE(ValidateJsonValue(value).ok());
  EXPECT_TRUE(DecodeJson(EncodeJson(value)).ok());
  value = Value::Object{{"one more", value}};
  EXPECT_TRUE(ValidateJsonValue(value).Is(Code::kInvalidArgument));
  EXPECT_FALSE(DecodeJson(EncodeJson(value)).ok());
}

TEST(Json, MessagesQuoteLongTextsInPart) {
  const std::string quoted = QuoteForMessage(std::string(10'000, 'x'));
  EXPECT_LT(quoted.size(), 300u);
  EXPECT_NE(quoted.find("10000 bytes"), quoted.npos);
  EXPECT_EQ(QuoteForMessage("a\"b"), R"("a\"b")");
}

TEST(JsonCursor, ReadsStringsWithAndWithoutEscapes) {
  JsonCursor in(R"( "plain and longer than eight" "\u0061\"\ud83d\ude00" "" )");
  std::string_view text;
  std::string scratch;
  ASSERT_TRUE(in.ReadString(&text, &scratch));
  EXPECT_EQ(text, "plain and longer than eight");
  ASSERT_TRUE(in.ReadString(&text, &scratch));
  EXPECT_EQ(text, "a\"😀");
  ASSERT_TRUE(in.ReadString(&text, &scratch));
  EXPECT_EQ(text, "");
  EXPECT_TRUE(in.ExpectEnd());
}

TEST(JsonCursor, RefusesBrokenStrings) {
  for (const std::string_view text :
       {"\"open", "\"open\\", "\"open\\\"", "\"a\nb\"", "\"bad \\q\"", "\"\\ud800\"", "x"}) {
    JsonCursor in(text);
    std::string_view out;
    std::string scratch;
    EXPECT_FALSE(in.ReadString(&out, &scratch)) << text;
    EXPECT_TRUE(in.status().Is(Code::kCorruption));
  }
}

TEST(JsonCursor, FindsTheEndOfAStringAtEveryPosition) {
  for (std::size_t length = 0; length < 40; ++length) {
    for (const char filler : {'x', '!', '\x7f', '\xc3'}) {
      const std::string text = '"' + std::string(length, filler) + "\"\"";
      JsonCursor in(text);
      std::string_view out;
      std::string scratch;
      ASSERT_TRUE(in.ReadString(&out, &scratch));
      EXPECT_EQ(out.size(), length);
    }
  }
}

TEST(JsonCursor, TakesATextThatIsNextAndLeavesAnyOther) {
  JsonCursor in(R"( {"a":1},{"b":2}])");
  EXPECT_FALSE(in.ConsumeText(R"({"b":2})"));
  EXPECT_TRUE(in.ConsumeText(R"({"a":1})"));
  EXPECT_TRUE(in.Expect(','));
  EXPECT_FALSE(in.ConsumeText(R"({"b":2}]])"));
  EXPECT_TRUE(in.ConsumeText(R"({"b":2})"));
  EXPECT_TRUE(in.Consume(']'));
  EXPECT_FALSE(in.ConsumeText("x"));
  EXPECT_TRUE(in.ok());
  EXPECT_TRUE(in.ExpectEnd());
}

TEST(JsonCursor, ReadsWholeNumbersOnly) {
  const auto read = [](std::string_view text) -> std::optional<std::uint64_t> {
    JsonCursor in(text);
    std::uint64_t number = 0;
    if (!in.ReadUint(&number) || !in.ExpectEnd()) return std::nullopt;
    return number;
  };
  EXPECT_EQ(read("0"), 0u);
  EXPECT_EQ(read("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  for (const std::string_view text :
       {"18446744073709551616", "99999999999999999999", "00", "01", "-1", "1.0", "1e3", ""}) {
    EXPECT_EQ(read(text), std::nullopt) << text;
  }
}

TEST(JsonCursor, ReadsScalarsAndLooksAhead) {
  JsonCursor in(R"( "a\n" -3 2.5 true null ])");
  Value value;
  EXPECT_EQ(in.Peek(), '"');
  ASSERT_TRUE(in.ReadScalar(&value));
  EXPECT_EQ(*value.if_string(), "a\n");
  ASSERT_TRUE(in.ReadScalar(&value));
  EXPECT_EQ(*value.if_int64(), -3);
  ASSERT_TRUE(in.ReadScalar(&value));
  EXPECT_EQ(*value.if_double(), 2.5);
  ASSERT_TRUE(in.ReadScalar(&value));
  EXPECT_EQ(*value.if_bool(), true);
  EXPECT_EQ(in.Peek(), 'n');
  ASSERT_TRUE(in.ReadScalar(&value));
  EXPECT_EQ(in.Peek(), ']');
  EXPECT_FALSE(in.ReadScalar(&value));
  EXPECT_EQ(in.Peek(), '\0');  // nothing follows a failure
}

TEST(JsonCursor, SkipsValuesToADepth) {
  EXPECT_TRUE(JsonCursor(R"({"a":[1,{"b":null}],"c":-1.5e3})").SkipValue(3));
  EXPECT_FALSE(JsonCursor(R"({"a":[1,{"b":null}],"c":-1.5e3})").SkipValue(2));
  EXPECT_FALSE(JsonCursor("[1,]").SkipValue(3));
  EXPECT_FALSE(JsonCursor("[1 2]").SkipValue(3));
  EXPECT_FALSE(JsonCursor("tru").SkipValue(3));
}

}  // namespace
}  // namespace cairn
