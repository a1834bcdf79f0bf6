#include "storage/s3/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/url.h"
#include "storage/s3/crc32c.h"

// The requests and signatures that AWS publishes: of its Signature Version 4 test suite (get-… and
// post-…), and of the examples in S3's documentation of the Authorization header. Signatures of
// many more requests are compared with botocore's in python/tests/test_s3_signer.py.

namespace cairn {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::string_view kEmptyHash =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// ---------------------------------------------------------------- the test suite's

std::string SignInSuite(SigningRequest request) {
  const S3Credentials credentials = {.access_key = "AKIDEXAMPLE",
                                     .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
  request.headers.push_back({"Host", "example.amazonaws.com"});
  request.headers.push_back({"X-Amz-Date", "20150830T123600Z"});
  if (request.payload_hash.empty()) request.payload_hash = kEmptyHash;
  return SignV4(request, credentials, "20150830T123600Z", "us-east-1", "service");
}

TEST(SigV4, SuiteGetVanilla) {
  EXPECT_EQ(SignInSuite({.method = "GET", .path = "/"}),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
            "SignedHeaders=host;x-amz-date, "
            "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

TEST(SigV4, SuitePostVanilla) {
  EXPECT_THAT(SignInSuite({.method = "POST", .path = "/"}),
              EndsWith("5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"));
}

TEST(SigV4, SuiteGetVanillaQueryOrderKeyCase) {
  EXPECT_THAT(
      SignInSuite(
          {.method = "GET", .path = "/", .query = {{"Param2", "value2"}, {"Param1", "value1"}}}),
      EndsWith("b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"));
}

TEST(SigV4, SuiteGetVanillaUtf8) {
  EXPECT_THAT(SignInSuite({.method = "GET", .path = "/" + PercentEncode("ሴ")}),
              EndsWith("8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"));
}

TEST(SigV4, SuiteGetUnreserved) {
  EXPECT_THAT(
      SignInSuite({.method = "GET",
                   .path = "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"}),
      EndsWith("07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"));
}

TEST(SigV4, SuiteGetHeaderValueTrim) {
  EXPECT_THAT(
      SignInSuite({.method = "GET",
                   .path = "/",
                   .headers = {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}}}),
      EndsWith("acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"));
}

// ---------------------------------------------------------------- S3's documentation

std::string SignForS3(SigningRequest request) {
  const S3Credentials credentials = {.access_key = "AKIAIOSFODNN7EXAMPLE",
                                     .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  if (request.payload_hash.empty()) request.payload_hash = kEmptyHash;
  request.headers.push_back({"Host", "examplebucket.s3.amazonaws.com"});
  request.headers.push_back({"x-amz-date", "20130524T000000Z"});
  request.headers.push_back({"x-amz-content-sha256", request.payload_hash});
  return SignV4(request, credentials, "20130524T000000Z", "us-east-1", "s3");
}

TEST(SigV4, S3GetObject) {
  EXPECT_EQ(SignForS3({.method = "GET", .path = "/test.txt", .headers = {{"Range", "bytes=0-9"}}}),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(SigV4, S3PutObject) {
  EXPECT_THAT(SignForS3({.method = "PUT",
                         .path = "/" + PercentEncode("test$file.text"),
                         .headers = {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                         .payload_hash = Sha256Hex(std::string_view("Welcome to Amazon S3."))}),
              EndsWith("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST(SigV4, S3GetBucketLifecycle) {
  EXPECT_THAT(SignForS3({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
              EndsWith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
}

TEST(SigV4, S3ListObjects) {
  EXPECT_THAT(
      SignForS3({.method = "GET", .path = "/", .query = {{"max-keys", "2"}, {"prefix", "J"}}}),
      EndsWith("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

// ---------------------------------------------------------------- the pieces

TEST(SigV4, CanonicalRequestSortsEncodedNames) {
  const std::string text = CanonicalRequest({.method = "GET",
                                             .path = "",
                                             .query = {{"b", "2"}, {"a b", "x/y"}, {"B", "1"}},
                                             .headers = {{"Host", "h"}, {"A", "  1   2\t3 "}},
                                             .payload_hash = std::string(kUnsignedPayload)});
  EXPECT_EQ(text, "GET\n/\nB=1&a%20b=x%2Fy&b=2\na:1 2 3\nhost:h\n\na;host\nUNSIGNED-PAYLOAD");
}

TEST(SigV4, DateIsUtc) {
  EXPECT_EQ(SigningDate(0), "19700101T000000Z");
  EXPECT_EQ(SigningDate(1'369'353'600ll * 1'000'000'000), "20130524T000000Z");
}

TEST(Crc32c, HasThePublishedValues) {
  const auto crc = [](std::string_view text) {
    return Crc32c(std::as_bytes(std::span(text.data(), text.size())));
  };
  EXPECT_EQ(crc("123456789"), 0xE3069283u);
  EXPECT_EQ(crc(""), 0u);
  EXPECT_EQ(crc(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720
  EXPECT_EQ(crc(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(Crc32c, IsWrittenAsBase64OfBigEndianBytes) {
  EXPECT_EQ(Crc32cText(0), "AAAAAA==");
  EXPECT_EQ(Crc32cText(0xE3069283u), "4waSgw==");
  EXPECT_EQ(Crc32cText(0xffffffffu), "/////w==");
}

}  // namespace
}  // namespace cairn
