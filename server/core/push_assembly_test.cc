#include "server/core/push_assembly.h"

#include <utility>

#include "gtest/gtest.h"
#include "server/core/testing.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakePart;
using Added = PushAssembly::Added;

wire::PushPart Part(uint32_t part, uint32_t num_parts, float value = 1.0f) {
  wire::PushPart made = MakePart(0, 0, part, num_parts);
  AddRange(&made, 0, {part}, {value, value});
  return made;
}

TEST(PushAssemblyTest, PartsMayComeInAnyOrderAndTwice) {
  PushAssembly assembly;
  EXPECT_EQ(*assembly.Add(Part(2, 3)), Added::kStored);
  EXPECT_EQ(*assembly.Add(Part(0, 3)), Added::kStored);
  const uint64_t bytes = assembly.bytes();
  EXPECT_EQ(*assembly.Add(Part(2, 3)), Added::kDuplicate);
  EXPECT_EQ(assembly.bytes(), bytes);
  EXPECT_EQ(*assembly.Add(Part(1, 3)), Added::kComplete);

  const AssembledPush push = assembly.Take();
  ASSERT_EQ(push.parts.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(push.parts[i].keys[0], i);
  EXPECT_EQ(push.bytes, bytes / 2 * 3);
  EXPECT_TRUE(assembly.empty());
  EXPECT_EQ(assembly.bytes(), 0u);
  EXPECT_EQ(*assembly.Add(Part(0, 1)), Added::kComplete);
}

TEST(PushAssemblyTest, APartThatIsNotStoredIsNotMovedFrom) {
  PushAssembly assembly;
  ASSERT_TRUE(assembly.Add(Part(0, 2)).ok());
  wire::PushPart again = Part(0, 2);
  ASSERT_EQ(*assembly.Add(std::move(again)), Added::kDuplicate);
  EXPECT_EQ(again.keys.size(), 1u);
}

TEST(PushAssemblyTest, RefusesWhatContradictsTheFirstPart) {
  PushAssembly assembly;
  ASSERT_TRUE(assembly.Add(Part(0, 2)).ok());
  const auto code = [&](wire::PushPart part) {
    return assembly.Add(std::move(part)).status().code();
  };
  EXPECT_EQ(code(Part(1, 3)), absl::StatusCode::kInvalidArgument);
  wire::PushPart later = Part(1, 2);
  later.step = Step(1);
  EXPECT_EQ(code(later), absl::StatusCode::kInvalidArgument);
  wire::PushPart faster = Part(1, 2);
  faster.learning_rate = 2.0f;
  EXPECT_EQ(code(faster), absl::StatusCode::kInvalidArgument);
  // The same part with other values, keys or ranges.
  EXPECT_EQ(code(Part(0, 2, 3.0f)), absl::StatusCode::kInvalidArgument);
  wire::PushPart assign = Part(0, 2);
  assign.tables[0].kind = wire::PushKind::kAssign;
  EXPECT_EQ(code(assign), absl::StatusCode::kInvalidArgument);
  // None of them left a trace.
  EXPECT_EQ(*assembly.Add(Part(1, 2)), Added::kComplete);
  EXPECT_EQ(assembly.Take().parts[0].values[0], 1.0f);
}

TEST(PushAssemblyTest, ADroppedPartLeavesNoTrace) {
  PushAssembly assembly;
  ASSERT_EQ(*assembly.Add(Part(0, 1)), Added::kComplete);
  assembly.Drop(0);
  EXPECT_TRUE(assembly.empty());
  EXPECT_EQ(assembly.bytes(), 0u);
  ASSERT_EQ(*assembly.Add(Part(1, 2)), Added::kStored);  // Of another number of parts.
  ASSERT_EQ(*assembly.Add(Part(0, 2)), Added::kComplete);
  assembly.Drop(0);
  EXPECT_EQ(*assembly.Add(Part(0, 2, 5.0f)), Added::kComplete);
  EXPECT_EQ(assembly.Take().parts[0].values[0], 5.0f);
}

TEST(PushAssemblyTest, RefusesPartNumbersOutOfRange) {
  PushAssembly assembly;
  for (const auto& [part, num_parts] :
       {std::pair<uint32_t, uint32_t>{0, 0}, {2, 2}, {7, 2}, {0, kMaxParts + 1}, {0, UINT32_MAX}}) {
    EXPECT_EQ(assembly.Add(Part(part, num_parts)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(assembly.empty());
}

}  // namespace
}  // namespace thermocline
