#include "server/core/push_assembly.h"

#include <utility>

#include "gtest/gtest.h"
#include "server/core/testing.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakeChunk;
using Added = PushAssembly::Added;

wire::PushChunk Chunk(uint32_t chunk, uint32_t num_chunks, float value = 1.0f) {
  wire::PushChunk made = MakeChunk(0, 0, chunk, num_chunks);
  AddRange(&made, 0, {chunk}, {value, value});
  return made;
}

TEST(PushAssemblyTest, ChunksMayComeInAnyOrderAndTwice) {
  PushAssembly assembly;
  EXPECT_EQ(*assembly.Add(Chunk(2, 3)), Added::kStored);
  EXPECT_EQ(*assembly.Add(Chunk(0, 3)), Added::kStored);
  const uint64_t bytes = assembly.bytes();
  EXPECT_EQ(*assembly.Add(Chunk(2, 3)), Added::kDuplicate);
  EXPECT_EQ(assembly.bytes(), bytes);
  EXPECT_EQ(*assembly.Add(Chunk(1, 3)), Added::kComplete);

  const AssembledPush push = assembly.Take();
  ASSERT_EQ(push.chunks.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(push.chunks[i].keys[0], i);
  EXPECT_EQ(push.bytes, bytes / 2 * 3);
  EXPECT_TRUE(assembly.empty());
  EXPECT_EQ(assembly.bytes(), 0u);
  EXPECT_EQ(*assembly.Add(Chunk(0, 1)), Added::kComplete);
}

TEST(PushAssemblyTest, AChunkThatIsNotStoredIsNotMovedFrom) {
  PushAssembly assembly;
  ASSERT_TRUE(assembly.Add(Chunk(0, 2)).ok());
  wire::PushChunk again = Chunk(0, 2);
  ASSERT_EQ(*assembly.Add(std::move(again)), Added::kDuplicate);
  EXPECT_EQ(again.keys.size(), 1u);
}

TEST(PushAssemblyTest, RefusesWhatContradictsTheFirstChunk) {
  PushAssembly assembly;
  ASSERT_TRUE(assembly.Add(Chunk(0, 2)).ok());
  const auto code = [&](wire::PushChunk chunk) {
    return assembly.Add(std::move(chunk)).status().code();
  };
  EXPECT_EQ(code(Chunk(1, 3)), absl::StatusCode::kInvalidArgument);
  wire::PushChunk later = Chunk(1, 2);
  later.step = Step(1);
  EXPECT_EQ(code(later), absl::StatusCode::kInvalidArgument);
  wire::PushChunk faster = Chunk(1, 2);
  faster.learning_rate = 2.0f;
  EXPECT_EQ(code(faster), absl::StatusCode::kInvalidArgument);
  // The same chunk with other values, keys or ranges.
  EXPECT_EQ(code(Chunk(0, 2, 3.0f)), absl::StatusCode::kInvalidArgument);
  wire::PushChunk assign = Chunk(0, 2);
  assign.tables[0].kind = wire::PushKind::kAssign;
  EXPECT_EQ(code(assign), absl::StatusCode::kInvalidArgument);
  // None of them left a trace.
  EXPECT_EQ(*assembly.Add(Chunk(1, 2)), Added::kComplete);
  EXPECT_EQ(assembly.Take().chunks[0].values[0], 1.0f);
}

TEST(PushAssemblyTest, ADroppedChunkLeavesNoTrace) {
  PushAssembly assembly;
  ASSERT_EQ(*assembly.Add(Chunk(0, 1)), Added::kComplete);
  assembly.Drop(0);
  EXPECT_TRUE(assembly.empty());
  EXPECT_EQ(assembly.bytes(), 0u);
  ASSERT_EQ(*assembly.Add(Chunk(1, 2)), Added::kStored);  // Of another number of chunks.
  ASSERT_EQ(*assembly.Add(Chunk(0, 2)), Added::kComplete);
  assembly.Drop(0);
  EXPECT_EQ(*assembly.Add(Chunk(0, 2, 5.0f)), Added::kComplete);
  EXPECT_EQ(assembly.Take().chunks[0].values[0], 5.0f);
}

TEST(PushAssemblyTest, RefusesChunkNumbersOutOfRange) {
  PushAssembly assembly;
  for (const auto& [chunk, num_chunks] : {std::pair<uint32_t, uint32_t>{0, 0},
                                          {2, 2},
                                          {7, 2},
                                          {0, kMaxChunks + 1},
                                          {0, UINT32_MAX}}) {
    EXPECT_EQ(assembly.Add(Chunk(chunk, num_chunks)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(assembly.empty());
}

}  // namespace
}  // namespace thermocline
