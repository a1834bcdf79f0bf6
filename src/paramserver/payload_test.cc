#include "paramserver/payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "paramserver/job_file.h"
#include "paramserver/log_record.h"
#include "paramserver/placement.h"

namespace cairn::ps {
namespace {

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Payload, HeadsComeBack) {
  const RequestHead head{
      .kind = Kind::kPush, .flags = 3, .id = 7, .generation = 0x1122334455667788, .sequence = 42};
  const rpc::Message message = NewRequest(head, "body");
  const auto request = DecodeRequest(message.bytes());
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->head, head);
  EXPECT_EQ(AsText(request->body), "body");

  const ReplyHead answer{.kind = Kind::kPull,
                         .code = Code::kFailedPrecondition,
                         .reason = Reason::kMismatch,
                         .generation = 9,
                         .sequence = 8};
  const rpc::Message refused = NewReply(answer, "why");
  const auto reply = DecodeReply(refused.bytes());
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->head, answer);
  EXPECT_EQ(ReplyStatus(*reply).ToString(), MismatchError("why").ToString());
  EXPECT_EQ(ReplyStatus(*reply).reason(), Reason::kMismatch);
}

TEST(Payload, BodiesComeBack) {
  const HelloRequest hello{3, 4, 1, 2, "me", true, 6, 17, 2};
  EXPECT_EQ(DecodeHelloRequest(Bytes(Encode(hello))).value(), hello);
  HelloReply reply{12, 5, 4, false, Recovery::kLog, 1, 1 << 20, {2, 13, true}, std::nullopt};
  EXPECT_EQ(DecodeHelloReply(Bytes(Encode(reply))).value(), reply);
  reply.state = "";
  EXPECT_EQ(DecodeHelloReply(Bytes(Encode(reply))).value(), reply);
  EndStepRequest end{7, {1, 8, false}, false, ""};
  EXPECT_EQ(DecodeEndStepRequest(Bytes(Encode(end))).value(), end);
  end.has_state = true;
  end.state = "{}";
  EXPECT_EQ(DecodeEndStepRequest(Bytes(Encode(end))).value(), end);
  const EndStepReply ended{8, {2, 9, true}};
  EXPECT_EQ(DecodeEndStepReply(Bytes(Encode(ended))).value(), ended);
  EXPECT_EQ(DecodeNumber(Bytes(EncodeNumber(77))).value(), 77u);
  const auto evicted = DecodeEvicted(Bytes(Encode(std::optional(EvictReport{5, 6})))).value();
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(evicted->rows, 5u);
  EXPECT_EQ(evicted->pending, 6u);
  EXPECT_EQ(DecodeEvicted({}).value().has_value(), false);
  EXPECT_EQ(DecodeEvicted(Bytes(EncodeNumber(5))).status().code(), Code::kCorruption);
}

TEST(JobFile, TellsHowOldItsFullCheckpointIs) {
  JobFile job{.servers = 2, .step = 120};
  EXPECT_EQ(Encode(job).find("since_full"), std::string::npos) << "a full one, or an older version";
  EXPECT_EQ(DecodeJobFile(Encode(job))->full_age_steps, 0u);
  job.full_age_steps = 20;
  job.full_age_ms = 61'500;
  const JobFile read = DecodeJobFile(Encode(job)).value();
  EXPECT_EQ(read.full_age_steps, 20u);
  EXPECT_EQ(read.full_age_ms, 61'500u);
  job.full_age_ms = std::uint64_t{1} << 62;
  EXPECT_EQ(DecodeJobFile(Encode(job)).status().code(), Code::kCorruption);
}

TEST(Payload, EveryCutMessageIsRefused) {
  const std::string hello = Encode(HelloRequest{3, 4, 1, 2, "incarnation"});
  for (std::size_t size = 0; size < hello.size(); ++size) {
    EXPECT_EQ(DecodeHelloRequest(Bytes(hello.substr(0, size))).status().code(), Code::kCorruption);
  }
  EXPECT_EQ(DecodeHelloRequest(Bytes(hello + "x")).status().code(), Code::kCorruption);
}

TEST(Payload, RowsAreCountedBeforeMemoryIsTaken) {
  rpc::Message message = NewRequest({.kind = Kind::kPush}, RowsBytes(2, 3));
  std::span<std::byte> keys;
  std::span<std::byte> values;
  BeginRows(Body(&message), 2, 3, &keys, &values);
  const std::int64_t ids[] = {5, -6};
  const float floats[] = {1, 2, 3, 4, 5, 6};
  std::memcpy(keys.data(), ids, sizeof ids);
  std::memcpy(values.data(), floats, sizeof floats);
  const auto rows = DecodeRows(Body(&message), 3);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->keys, (std::vector<std::int64_t>{5, -6}));
  EXPECT_EQ(rows->values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(DecodeRows(Body(&message), 4).status().code(), Code::kCorruption);
  // Where it lies, or a copy of what is not aligned.
  std::vector<std::byte> moved(Body(&message).size() + 1);
  std::memcpy(moved.data() + 1, Body(&message).data(), Body(&message).size());
  for (const std::span<const std::byte> body :
       {std::span<const std::byte>(Body(&message)), std::span<const std::byte>(moved).subspan(1)}) {
    const auto view = ViewRows(body, 3);
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->copy == nullptr, body.data() == Body(&message).data());
    EXPECT_TRUE(std::ranges::equal(view->keys, ids));
    EXPECT_TRUE(std::ranges::equal(view->values, floats));
    std::vector<std::int64_t> copy;
    const auto seen = ViewKeys(body.subspan(8, 16), &copy);
    ASSERT_TRUE(seen.ok());
    EXPECT_EQ(copy.empty(), body.data() == Body(&message).data());
    EXPECT_TRUE(std::ranges::equal(*seen, ids));
  }
  std::vector<std::int64_t> copy;
  EXPECT_EQ(ViewKeys(Body(&message).first(15), &copy).status().code(), Code::kCorruption);
  EXPECT_EQ(ViewRows(Body(&message), 4).status().code(), Code::kCorruption);
  const std::uint64_t huge = std::uint64_t{1} << 62;
  std::memcpy(Body(&message).data(), &huge, sizeof huge);
  EXPECT_EQ(DecodeRows(Body(&message), 3).status().code(), Code::kCorruption);
}

TEST(Payload, OtherVersionsAndKindsAreRefused) {
  rpc::Message message = NewRequest({.kind = Kind::kStatus}, "");
  message.bytes()[0] = std::byte{9};
  EXPECT_EQ(DecodeRequest(message.bytes()).status().code(), Code::kUnimplemented);
  message.bytes()[0] = std::byte{kProtocolVersion};
  for (const int kind : {0, kLastKind + 1, 255}) {
    message.bytes()[1] = static_cast<std::byte>(kind);
    EXPECT_EQ(DecodeRequest(message.bytes()).status().code(), Code::kCorruption);
  }
  EXPECT_EQ(DecodeRequest({}).status().code(), Code::kCorruption);
}

std::string Golden(const std::string& name) {
  std::ifstream in("tests/compat/paramserver/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Payload, TheOtherSidesOldVersionIsNamed) {
  for (const std::string version : {"1", "2", "3"}) {
    const Status refused = DecodeRequest(Bytes(Golden("push_" + version + ".bin"))).status();
    EXPECT_EQ(refused.code(), Code::kUnimplemented);
    EXPECT_NE(refused.message().find("version " + version), refused.message().npos)
        << refused.ToString();
  }
}

// The bytes of a record of the update log, for ever.
TEST(LogRecord, AGoldenOneIsUnderstood) {
  const std::string golden = Golden("log_push_1.bin");
  const auto record = DecodeLogRecord(Bytes(golden));
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_EQ(record->kind, Kind::kPush);
  EXPECT_EQ(record->trainer, 1u);
  EXPECT_EQ(record->id, 2u);
  EXPECT_EQ(record->sequence, 41u);
  EXPECT_EQ(DecodeRows(record->body, 2).value().keys,
            (std::vector<std::int64_t>{-1, 1'000'000'007}));
  EXPECT_EQ(Encode(*record), golden);
}

TEST(LogRecord, AGoldenEvictionIsUnderstood) {
  const std::string golden = Golden("log_evict_1.bin");
  const auto record = DecodeLogRecord(Bytes(golden));
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_EQ(record->kind, Kind::kEvict);
  EXPECT_EQ(record->trainer, 1u);
  EXPECT_EQ(record->id, 2u);
  EXPECT_EQ(record->sequence, 42u);
  EXPECT_EQ(DecodeNumber(record->body).value(), 1000u);
  EXPECT_EQ(Encode(*record), golden);
}

TEST(LogRecord, AGoldenRateIsUnderstood) {
  const std::string golden = Golden("log_rate_1.bin");
  const auto record = DecodeLogRecord(Bytes(golden));
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_EQ(record->kind, Kind::kSetRate);
  EXPECT_EQ(record->trainer, 1u);
  EXPECT_EQ(record->id, 2u);
  EXPECT_EQ(record->sequence, 43u);
  EXPECT_EQ(DecodeRate(record->body).value(), 0.25F);
  EXPECT_EQ(Encode(*record), golden);
}

TEST(LogRecord, OthersAreRefused) {
  std::string bytes = Golden("log_push_1.bin");
  EXPECT_EQ(DecodeLogRecord(Bytes(bytes.substr(0, kLogHeadBytes - 1))).status().code(),
            Code::kCorruption);
  bytes[1] = static_cast<char>(Kind::kMetrics);
  EXPECT_EQ(DecodeLogRecord(Bytes(bytes)).status().code(), Code::kCorruption);
  bytes[0] = 2;
  EXPECT_EQ(DecodeLogRecord(Bytes(bytes)).status().code(), Code::kUnimplemented);
}

// The bytes of version 4.
TEST(Payload, AGoldenPushIsUnderstood) {
  const std::string golden = Golden("push_4.bin");
  ASSERT_FALSE(golden.empty());
  const auto request = DecodeRequest(Bytes(golden));
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  EXPECT_EQ(
      request->head,
      (RequestHead{.kind = Kind::kPush, .flags = 0, .id = 2, .generation = 7, .sequence = 41}));
  const auto rows = DecodeRows(request->body, 2);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(rows->keys, (std::vector<std::int64_t>{-1, 1'000'000'007}));
  EXPECT_EQ(rows->values, (std::vector<float>{0.5F, -2, 3, 1024}));
}

TEST(Payload, AGoldenEvictionIsUnderstood) {
  const auto golden = Golden("evict_4.bin");
  const auto request = DecodeRequest(Bytes(golden));
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  EXPECT_EQ(
      request->head,
      (RequestHead{.kind = Kind::kEvict, .flags = 0, .id = 2, .generation = 7, .sequence = 42}));
  EXPECT_EQ(DecodeNumber(request->body).value(), 1000u);
}

TEST(Payload, AGoldenRateIsUnderstood) {
  const auto golden = Golden("rate_4.bin");
  const auto request = DecodeRequest(Bytes(golden));
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  EXPECT_EQ(
      request->head,
      (RequestHead{.kind = Kind::kSetRate, .flags = 0, .id = 2, .generation = 7, .sequence = 43}));
  EXPECT_EQ(DecodeRate(request->body).value(), 0.25F);
  EXPECT_EQ(DecodeRate(Bytes(golden.substr(kHeadBytes) + "x")).status().code(), Code::kCorruption);
  EXPECT_EQ(DecodeRate({}).status().code(), Code::kCorruption);
}

TEST(Placement, EveryShardHasTheServerWhoseRangeItIsIn) {
  for (const int servers : {1, 2, 3, 5, 7, 64, 1000, 1024}) {
    std::uint32_t next = 0;
    for (int i = 0; i < servers; ++i) {
      const ShardRange range = ShardsOf(i, servers);
      EXPECT_EQ(range.begin, next);
      for (std::uint32_t shard = range.begin; shard < range.end; ++shard) {
        ASSERT_EQ(ServerOfShard(shard, servers), i) << shard << " of " << servers;
      }
      next = range.end;
    }
    EXPECT_EQ(next, kTableShards);
  }
}

TEST(Placement, BlocksCoverAVariableOnceAndAreNotSmall) {
  for (const auto& shape : std::vector<std::vector<std::uint64_t>>{
           {}, {1}, {10}, {100'000}, {3, 70'000}, {50'000, 16}, {1'000'000, 8}}) {
    const DenseShape rows = RowsOf(shape).value();
    for (const int servers : {1, 2, 3}) {
      std::vector<int> covered(rows.rows, 0);
      std::size_t blocks = 0;
      for (int i = 0; i < servers; ++i) {
        for (const DenseBlock& block : BlocksOf("w", rows, i, servers)) {
          ++blocks;
          for (std::uint64_t r = 0; r < block.count; ++r) ++covered[block.first + r];
          if (block.first + block.count < rows.rows) {
            EXPECT_GE(block.count * rows.width, kMinBlockElements);
          }
        }
      }
      EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }));
      EXPECT_LE(blocks, static_cast<std::size_t>(servers) * kBlocksPerServer);
    }
  }
  EXPECT_EQ(RowsOf({0}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(RowsOf({std::uint64_t{1} << 40, 1 << 10}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::ps
