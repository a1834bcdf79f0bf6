#include "storage/s3/s3_replies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/s3/xml.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Xml, ReadsElementsTextAndEntities) {
  const auto root = ParseXml(
      "<?xml version=\"1.0\"?><!-- a --><x:A xmlns:x='u' b=\"<\"> <B>1 &amp; &lt;&#x41;&#233;</B>"
      "<C/><D><![CDATA[<raw>]]></D></x:A>\n");
  ASSERT_TRUE(root.ok()) << root.status().ToString();
  EXPECT_EQ(root->name, "A");
  EXPECT_EQ(root->Text("B"), "1 & <Aé");
  EXPECT_EQ(root->Text("C"), "");
  EXPECT_NE(root->Child("C"), nullptr);
  EXPECT_EQ(root->Child("E"), nullptr);
  EXPECT_EQ(root->Text("D"), "<raw>");
}

TEST(Xml, RefusesWhatIsNotWellFormed) {
  for (const char* text : {"",
                           "x",
                           "<",
                           "<a",
                           "<a>",
                           "<a></b>",
                           "<a></a>x",
                           "<a b></a>",
                           "<a b=1></a>",
                           "<a>&no;</a>",
                           "<a>&amp</a>",
                           "<a>&#0;</a>",
                           "<a>&#xD800;</a>",
                           "<a>&#x110000;</a>",
                           "<a><!-- </a>",
                           "<!DOCTYPE a><a/>",
                           "<a/><b/>",
                           "<a><![CDATA[</a>",
                           "<?xml",
                           "<a>&#99999999999;</a>"}) {
    EXPECT_TRUE(ParseXml(text).status().Is(Code::kCorruption)) << text;
  }
}

TEST(Xml, RefusesDeepNesting) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "<a>";
  EXPECT_TRUE(ParseXml(text).status().Is(Code::kCorruption));
}

TEST(Xml, EscapesWhatItReads) {
  const std::string odd = "a<b>&\"c'";
  EXPECT_EQ(ParseXml("<a>" + XmlEscape(odd) + "</a>")->text, odd);
}

TEST(S3Replies, ListHasObjectsAndPrefixes) {
  const auto page = DecodeListPage(
      "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
      "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
      "<NextContinuationToken>to=ken/+</NextContinuationToken>"
      "<Contents><Key>a%2Bb+c/%C3%BC</Key><Size>12</Size>"
      "<ETag>&quot;9b2c&quot;</ETag></Contents>"
      "<CommonPrefixes><Prefix>d%20e/</Prefix></CommonPrefixes></ListBucketResult>");
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "a+b c/ü");
  EXPECT_EQ(page->objects[0].bytes, 12u);
  EXPECT_EQ(page->objects[0].etag, "\"9b2c\"");
  EXPECT_THAT(page->prefixes, ElementsAre("d e/"));
  EXPECT_EQ(page->next, "to=ken/+");
}

TEST(S3Replies, ListOfAServerThatDoesNotEncode) {
  const auto page = DecodeListPage(
      "<ListBucketResult><Contents><Key>a+b%20c</Key><Size>0</Size></Contents>"
      "</ListBucketResult>");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->objects[0].key, "a+b%20c");
  EXPECT_EQ(page->next, "");
}

TEST(S3Replies, DamagedListsAreCorruption) {
  for (const char* body :
       {"", "<Other/>", "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%4</Key><Size>1</Size>"
        "</Contents></ListBucketResult>"}) {
    EXPECT_TRUE(DecodeListPage(body).status().Is(Code::kCorruption)) << body;
  }
}

TEST(S3Replies, ErrorsInsideOfASuccessAreNeverTakenForOne) {
  const auto good = DecodeCompleted(
      "<CompleteMultipartUploadResult><ETag>&quot;abc-2&quot;</ETag>"
      "</CompleteMultipartUploadResult>");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, "\"abc-2\"");
  for (const char* body : {"<Error><Code>InternalError</Code></Error>", "<Error/>", "<Other/>"}) {
    EXPECT_TRUE(DecodeCompleted(body).status().Is(Code::kCorruption)) << body;
    EXPECT_TRUE(DecodeCopied(body).status().Is(Code::kCorruption)) << body;
    EXPECT_TRUE(DecodeCopiedPart(body).status().Is(Code::kCorruption)) << body;
  }
}

TEST(S3Replies, UploadsHaveIds) {
  EXPECT_EQ(*DecodeCreatedUpload("<InitiateMultipartUploadResult><UploadId>u1</UploadId>"
                                 "</InitiateMultipartUploadResult>"),
            "u1");
  EXPECT_FALSE(DecodeCreatedUpload("<InitiateMultipartUploadResult/>").ok());
  const auto page = DecodeUploadPage(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<NextUploadIdMarker>u2</NextUploadIdMarker><Upload><Key>k</Key><UploadId>u2</UploadId>"
      "</Upload></ListMultipartUploadsResult>");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->uploads.size(), 1u);
  EXPECT_TRUE(page->truncated);
  EXPECT_EQ(page->next_key, "k");
  EXPECT_FALSE(DecodeUploadPage("<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
                                "</ListMultipartUploadsResult>")
                   .ok());
}

TEST(S3Replies, PartsHaveSizesAndChecksums) {
  const auto page = DecodePartPage(
      "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>2"
      "</NextPartNumberMarker><Part><PartNumber>1</PartNumber><Size>5242880</Size>"
      "<ETag>&quot;a&quot;</ETag><ChecksumCRC32C>yZRlqg==</ChecksumCRC32C></Part>"
      "<Part><PartNumber>2</PartNumber><Size>7</Size><ETag>b</ETag></Part></ListPartsResult>");
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  ASSERT_EQ(page->parts.size(), 2u);
  EXPECT_EQ(page->parts[0].number, 1u);
  EXPECT_EQ(page->parts[0].bytes, 5'242'880u);
  EXPECT_EQ(page->parts[0].etag, "\"a\"");
  EXPECT_EQ(page->parts[0].crc32c, "yZRlqg==");
  EXPECT_EQ(page->parts[1].crc32c, "");
  EXPECT_EQ(page->next, "2");
  EXPECT_EQ(DecodePartPage("<ListPartsResult/>")->next, "");
  EXPECT_FALSE(
      DecodePartPage("<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>").ok());
  EXPECT_FALSE(DecodePartPage("<ListPartsResult><Part/></ListPartsResult>").ok());
}

TEST(S3Replies, CopiesHaveTags) {
  EXPECT_EQ(*DecodeCopied("<CopyObjectResult><ETag>e</ETag></CopyObjectResult>"), "e");
  EXPECT_EQ(*DecodeCopiedPart("<CopyPartResult><ETag>e</ETag></CopyPartResult>"), "e");
  EXPECT_FALSE(DecodeCopiedPart("<CopyObjectResult/>").ok());
}

}  // namespace
}  // namespace cairn
