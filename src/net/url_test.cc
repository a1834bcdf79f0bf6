#include "net/url.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(Url, HasSchemeHostPathAndQuery) {
  const auto url = ParseUrl("HTTP://Host:80/a%20b/c?x=1&y=/2");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->scheme, "http");
  EXPECT_EQ(url->authority, "Host:80");
  EXPECT_EQ(url->Host(), "Host");
  EXPECT_EQ(url->path, "/a%20b/c");
  EXPECT_EQ(url->query, "x=1&y=/2");
  EXPECT_EQ(ParseUrl("s3://bucket")->path, "");
  EXPECT_EQ(ParseUrl("http://[::1]:8080/")->Host(), "::1");
  EXPECT_EQ(ParseUrl("http://host?a=b")->query, "a=b");
}

TEST(Url, IsRefusedWithoutSchemeOrHost) {
  using std::string_literals::operator""s;
  for (const std::string& text :
       {""s, "/a/b"s, "a:b"s, "://x"s, "s3://"s, "s3:///x"s, "1s://x"s, "http://a\nb"s}) {
    EXPECT_TRUE(ParseUrl(text).status().Is(Code::kInvalidArgument)) << text;
  }
}

TEST(Url, IsShownWithoutItsSecrets) {
  EXPECT_EQ(ShownUrl("http://user:p%40ss@host:80/a@b?token=x"), "http://host:80/a@b");
  EXPECT_EQ(ShownUrl("https://user:p@ss@host"), "https://host");
  EXPECT_EQ(ShownUrl("http://host/a@b"), "http://host/a@b");
  EXPECT_EQ(ShownUrl("unix:/run/a@b"), "unix:/run/a@b");
  EXPECT_EQ(ShownUrl("http://host:80/a@b"), "http://host:80/a@b");
  EXPECT_EQ(ShownUrl("http://[::1]/a@b"), "http://[::1]/a@b");
  EXPECT_EQ(ShownUrl("http://[::1]:80/a@b"), "http://[::1]:80/a@b");
  // Passwords that should have been encoded.
  EXPECT_EQ(ShownUrl("http://user:p/ss@host:80/a"), "http://host:80/a");
  EXPECT_EQ(ShownUrl("http://user:p?ss@host:80/a"), "http://host:80/a");
  EXPECT_EQ(ShownUrl("http://user:p#ss@host:80/a?token=x"), "http://host:80/a");
}

TEST(Url, SchemeIsOnlyWhatMayBeOne) {
  EXPECT_EQ(UrlScheme("s3://bucket/a"), "s3");
  EXPECT_EQ(UrlScheme("web+x-y.1://a"), "web+x-y.1");
  EXPECT_EQ(UrlScheme("runs/a"), "");
  EXPECT_EQ(UrlScheme("odd name://a"), "");
  EXPECT_EQ(UrlScheme("C:\\a"), "");
}

TEST(Url, EncodesAllButUnreservedCharacters) {
  EXPECT_EQ(PercentEncode("aZ0-._~"), "aZ0-._~");
  EXPECT_EQ(PercentEncode("a b/c+ü"), "a%20b%2Fc%2B%C3%BC");
  EXPECT_EQ(PercentEncode("a b/c", /*keep_slash=*/true), "a%20b/c");
  EXPECT_EQ(EncodeQuery({{"a b", "1/2"}, {"c", ""}}), "a%20b=1%2F2&c=");
}

TEST(Url, DecodesWhatWasEncoded) {
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);
  EXPECT_EQ(*PercentDecode(PercentEncode(every)), every);
  for (const char* bad : {"%", "%4", "a%4", "%zz", "%4z"}) {
    EXPECT_TRUE(PercentDecode(bad).status().Is(Code::kInvalidArgument)) << bad;
  }
  EXPECT_EQ(*PercentDecode("%41"), "A");
  EXPECT_EQ(*PercentDecode(""), "");
}

}  // namespace
}  // namespace cairn
