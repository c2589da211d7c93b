#include "worker/exchange/peer_blocks.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

constexpr BlockId kRows5 = {Step(5), Phase::kRows};

ExchangeOptions Options() {
  ExchangeOptions options;
  options.num_ranks = 2;
  options.start_step = Step(5);
  options.credit_steps = {2, 2, 2, 2, 2, 2};
  options.max_block_bytes = 10;
  options.max_chunk_bytes = 4;
  return options;
}

Block MakeBlock(absl::string_view text) {
  return {BlockKind::kData, std::make_shared<BlockBytes>(text.begin(), text.end())};
}

absl::Span<const uint8_t> Bytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// `part` of the block `whole`, at `offset`.
BlockChunk MakeChunk(BlockId id, absl::string_view whole, uint64_t offset, absl::string_view part) {
  BlockChunk chunk;
  chunk.id = id;
  chunk.checksum = Crc32c(whole.data(), whole.size());
  chunk.block_bytes = whole.size();
  chunk.offset = offset;
  chunk.data = Bytes(part);
  return chunk;
}

class IncomingBlocksTest : public testing::Test {
 protected:
  absl::Status Take(const BlockChunk& chunk) { return blocks_.OnChunk(chunk, &completes_); }
  absl::Status TakeWhole(BlockId id, absl::string_view text) {
    return Take(MakeChunk(id, text, 0, text));
  }

  const ExchangeOptions options_ = Options();
  IncomingBlocks blocks_{options_, WorkerRank(1)};
  bool completes_ = false;
};

TEST_F(IncomingBlocksTest, PutsABlockTogether) {
  EXPECT_TRUE(Take(MakeChunk(kRows5, "abcdef", 0, "abcd")).ok());
  EXPECT_FALSE(completes_);
  EXPECT_EQ(blocks_.Find(kRows5), nullptr);
  EXPECT_TRUE(Take(MakeChunk(kRows5, "abcdef", 0, "abcd")).ok());  // Repeated.
  EXPECT_TRUE(Take(MakeChunk(kRows5, "abcdef", 4, "ef")).ok());
  EXPECT_TRUE(completes_);
  ASSERT_NE(blocks_.Find(kRows5), nullptr);
  EXPECT_EQ(absl::MakeConstSpan(*blocks_.Find(kRows5)->bytes), Bytes("abcdef"));
  EXPECT_EQ(blocks_.bytes(), 6u);
  EXPECT_EQ(blocks_.receipt().received[2], Step(5));
  EXPECT_EQ(blocks_.receipt().taken[2], Step(6));
  blocks_.Release(kRows5);
  EXPECT_EQ(blocks_.Find(kRows5), nullptr);
  EXPECT_EQ(blocks_.bytes(), 0u);
  EXPECT_EQ(blocks_.receipt().taken[2], Step(7));
}

TEST_F(IncomingBlocksTest, AStreamBeginsWithWholeBlocks) {
  EXPECT_TRUE(Take(MakeChunk(kRows5, "abcdef", 0, "abcd")).ok());
  blocks_.BeginStream();
  EXPECT_EQ(Take(MakeChunk(kRows5, "abcdef", 4, "ef")),
            absl::InternalError("rank 1 sends the rows of step 5 from byte 4; those from 0 are "
                                "missing"));
  EXPECT_TRUE(TakeWhole(kRows5, "abcdef").ok());
  EXPECT_TRUE(completes_);
}

TEST_F(IncomingBlocksTest, TheFirstOfTwoCounts) {
  ASSERT_TRUE(TakeWhole(kRows5, "abc").ok());
  EXPECT_TRUE(TakeWhole(kRows5, "abc").ok());
  EXPECT_FALSE(completes_);
  EXPECT_EQ(TakeWhole(kRows5, "abd"),
            absl::DataLossError("rank 1 sends the rows of step 5 again, and they differ"));
  blocks_.Release(kRows5);
  EXPECT_EQ(TakeWhole(kRows5, "abd").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(blocks_.held(Phase::kRows), 0);
}

TEST_F(IncomingBlocksTest, RefusesWhatBreaksTheRules) {
  const auto error = [&](const BlockChunk& chunk) { return std::string(Take(chunk).message()); };
  EXPECT_EQ(error(MakeChunk({Step(6), Phase::kRows}, "a", 0, "a")),
            "rank 1 sends the rows of step 6; that of step 5 comes next");
  EXPECT_EQ(error(MakeChunk(kRows5, "abc", 2, "cd")),
            "rank 1 sends the rows of step 5: 2 bytes at 2 of 3");
  EXPECT_EQ(error(MakeChunk(kRows5, "abc", 0, "")),
            "rank 1 sends the rows of step 5: 0 bytes at 0 of 3");
  EXPECT_EQ(error(MakeChunk(kRows5, "abc", 0, "abd")),
            "rank 1 sends the rows of step 5 with a wrong checksum");
  BlockChunk end = MakeChunk(kRows5, "", 0, "");
  end.kind = BlockKind::kEnd;
  EXPECT_EQ(error(end), "rank 1 sends the rows of step 5 as the end of its data");
  EXPECT_EQ(TakeWhole(kRows5, "12345678901"),
            absl::ResourceExhaustedError(
                "rank 1 sends the rows of step 5: 11 bytes; at most 10 are taken"));
}

TEST_F(IncomingBlocksTest, TakesAsManyAsItHasRoomFor) {
  EXPECT_TRUE(TakeWhole({Step(5), Phase::kKeys}, "").ok());
  EXPECT_TRUE(TakeWhole({Step(6), Phase::kKeys}, "a").ok());
  EXPECT_EQ(
      TakeWhole({Step(7), Phase::kKeys}, "a"),
      absl::InternalError("rank 1 sends the keys of step 7, but they are taken through step 6"));
  EXPECT_TRUE(TakeWhole(kRows5, "a").ok());  // Other phases have room of their own.
  blocks_.Release({Step(5), Phase::kKeys});
  BlockChunk end = MakeChunk({Step(7), Phase::kKeys}, "", 0, "");
  end.kind = BlockKind::kEnd;
  EXPECT_TRUE(Take(end).ok());
  blocks_.Release({Step(6), Phase::kKeys});
  EXPECT_EQ(TakeWhole({Step(8), Phase::kKeys}, "a"),
            absl::InternalError("rank 1 sends the keys of step 8 behind the end of its data"));
}

TEST_F(IncomingBlocksTest, TakesThePhasesOfItsJobAlone) {
  ExchangeOptions options = Options();
  options.phases = kDensePhases;
  IncomingBlocks blocks(options, WorkerRank(1));
  bool completes = false;
  EXPECT_TRUE(
      blocks.OnChunk(MakeChunk({Step(5), Phase::kDenseWeights}, "a", 0, "a"), &completes).ok());
  EXPECT_EQ(
      blocks.OnChunk(MakeChunk(kRows5, "a", 0, "a"), &completes),
      absl::InternalError("rank 1 sends the rows of step 5, which the job's steps do not have"));
}

class OutgoingBlocksTest : public testing::Test {
 protected:
  // What is sent next: "rows 5 0 abcd"; "": nothing.
  std::string Next() {
    BlockChunk chunk;
    std::shared_ptr<const BlockBytes> bytes;
    if (!blocks_.NextChunk(&chunk, &bytes)) return "";
    return absl::StrCat(kPhaseNames[static_cast<size_t>(chunk.id.phase)], " ",
                        chunk.id.step.value(), " ", chunk.offset, " ",
                        std::string(chunk.data.begin(), chunk.data.end()));
  }
  Receipt Says(Step received, Step taken) {
    Receipt receipt;
    receipt.received.fill(received);
    receipt.taken.fill(taken);
    return receipt;
  }

  const ExchangeOptions options_ = Options();
  OutgoingBlocks blocks_{options_, WorkerRank(1)};
};

TEST_F(OutgoingBlocksTest, TheEarliestGoesFirstAndWaitsForItsReceipt) {
  blocks_.Add({Step(5), Phase::kKeys}, MakeBlock("k5"));
  blocks_.Add({Step(6), Phase::kKeys}, MakeBlock("123456"));
  EXPECT_EQ(Next(), "");  // There is no stream.
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(6)), /*begins_stream=*/true).ok());
  EXPECT_EQ(Next(), "keys 5 0 k5");
  EXPECT_EQ(Next(), "keys 6 0 1234");
  blocks_.Add({Step(5), Phase::kRows}, MakeBlock("r5"));
  EXPECT_EQ(Next(), "rows 5 0 r5");  // Before the rest of later keys.
  EXPECT_EQ(Next(), "keys 6 4 56");
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(blocks_.bytes(), 10u);

  blocks_.OnBroken();
  EXPECT_EQ(Next(), "");
  Receipt receipt = Says(Step(4), Step(6));
  receipt.received[0] = Step(5);
  ASSERT_TRUE(blocks_.OnReceipt(receipt, /*begins_stream=*/true).ok());
  EXPECT_EQ(blocks_.bytes_sent_again(), 0u);
  EXPECT_EQ(Next(), "rows 5 0 r5");
  EXPECT_EQ(Next(), "keys 6 0 1234");  // The whole block again.
  EXPECT_EQ(blocks_.bytes_sent(Phase::kKeys), 12u);
  EXPECT_EQ(blocks_.bytes_sent_again(), 6u);
  EXPECT_FALSE(blocks_.is_empty());
  receipt.received = {Step(6), Step(4), Step(5), Step(4), Step(4), Step(4)};
  ASSERT_TRUE(blocks_.OnReceipt(receipt, /*begins_stream=*/false).ok());
  EXPECT_TRUE(blocks_.is_empty());
  EXPECT_EQ(Next(), "");
}

TEST_F(OutgoingBlocksTest, CountsTheBytesThatGoTwice) {
  blocks_.Add({Step(5), Phase::kKeys}, MakeBlock("123456789"));
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(6)), /*begins_stream=*/true).ok());
  EXPECT_EQ(Next(), "keys 5 0 1234");
  blocks_.OnBroken();
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(6)), /*begins_stream=*/true).ok());
  EXPECT_EQ(Next(), "keys 5 0 1234");
  EXPECT_EQ(blocks_.bytes_sent_again(), 4u);
  EXPECT_EQ(Next(), "keys 5 4 5678");
  EXPECT_EQ(Next(), "keys 5 8 9");
  EXPECT_EQ(blocks_.bytes_sent_again(), 4u);
  EXPECT_EQ(blocks_.bytes_sent(Phase::kKeys), 13u);
}

TEST_F(OutgoingBlocksTest, SendsNoMoreThanIsTaken) {
  blocks_.Add({Step(5), Phase::kKeys}, MakeBlock("a"));
  blocks_.Add({Step(6), Phase::kKeys}, MakeBlock("b"));
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(5)), true).ok());
  EXPECT_EQ(Next(), "keys 5 0 a");
  EXPECT_EQ(Next(), "");
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(6)), false).ok());
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(5)), false).ok());  // Late: harmless.
  EXPECT_EQ(Next(), "keys 6 0 b");
}

TEST_F(OutgoingBlocksTest, RefusesReceiptsThatCantBe) {
  blocks_.Add({Step(5), Phase::kKeys}, MakeBlock("a"));
  EXPECT_EQ(blocks_.OnReceipt(Says(Step(5), Step(6)), true),
            absl::InternalError("rank 1 acknowledges the keys of step 5, which was not sent"));
  ASSERT_TRUE(blocks_.OnReceipt(Says(Step(4), Step(6)), true).ok());
  EXPECT_EQ(Next(), "keys 5 0 a");
  Receipt receipt = Says(Step(4), Step(6));
  receipt.received[0] = Step(5);
  ASSERT_TRUE(blocks_.OnReceipt(receipt, false).ok());
  EXPECT_EQ(blocks_.OnReceipt(Says(Step(4), Step(6)), true),
            absl::InternalError("rank 1 acknowledges the keys of step 4, and did so of step 5 "
                                "before: it has lost blocks"));
}

}  // namespace
}  // namespace thermocline
