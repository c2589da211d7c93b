#include "common/math/script_state_rows.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

std::string AllBytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 131 + i / 256);
  return bytes;
}

TEST(ScriptStateRows, KeepAnyBytes) {
  for (const size_t size : {0, 1, 747, 748, 749, 1516, 5000}) {
    const std::string state = AllBytes(size);
    const std::vector<float> rows = RowsOfState(state);
    ASSERT_EQ(rows.size() % kDenseBlockFloats, 0u);
    const int64_t num_rows = static_cast<int64_t>(rows.size() / kDenseBlockFloats);
    EXPECT_EQ(num_rows, static_cast<int64_t>(size + 20 + 767) / 768);
    const auto first = absl::MakeConstSpan(rows).subspan(0, kDenseBlockFloats);
    const auto told = NumRowsOfState(first);
    ASSERT_TRUE(told.ok()) << told.status();
    EXPECT_EQ(*told, num_rows);
    const auto back = StateOfRows(rows);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, state);
    EXPECT_EQ(FindNonFinite(rows), rows.size());
  }
}

TEST(ScriptStateRows, AStateMayBeShorterThanOneBefore) {
  std::vector<float> rows = RowsOfState(AllBytes(100));
  rows.resize(3 * kDenseBlockFloats);
  const auto back = StateOfRows(rows);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, AllBytes(100));
}

TEST(ScriptStateRows, ZerosAreNoState) {
  const std::vector<float> none(kDenseBlockFloats);
  EXPECT_EQ(*NumRowsOfState(none), 0);
}

TEST(ScriptStateRows, DamageIsFound) {
  const std::vector<float> rows = RowsOfState(AllBytes(1000));
  const auto is_damaged = [](const std::vector<float>& damaged) {
    return StateOfRows(damaged).status().code() == absl::StatusCode::kDataLoss;
  };
  for (const size_t at : {size_t{0}, size_t{3}, size_t{6}, size_t{20}, size_t{300}}) {
    std::vector<float> damaged = rows;
    damaged[at] = damaged[at] == 77 ? 78 : 77;
    EXPECT_TRUE(is_damaged(damaged)) << at;
    damaged[at] = 0.5f;
    EXPECT_TRUE(is_damaged(damaged)) << at;
    damaged[at] = -1;
    EXPECT_TRUE(is_damaged(damaged)) << at;
  }
  EXPECT_TRUE(is_damaged(std::vector<float>(rows.begin(), rows.begin() + kDenseBlockFloats)));
  EXPECT_EQ(NumRowsOfState(std::vector<float>(kDenseBlockFloats, 5)).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace thermocline
