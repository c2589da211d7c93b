#include <cmath>
#include <limits>
#include <vector>

#include "common/math/table_spec.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(FiniteTest, AllFiniteGivesTheSize) {
  EXPECT_EQ(FindNonFinite({}), 0u);
  const std::vector<float> extremes = {0.0f, -0.0f, std::numeric_limits<float>::max(),
                                       std::numeric_limits<float>::lowest(),
                                       std::numeric_limits<float>::denorm_min()};
  EXPECT_EQ(FindNonFinite(extremes), extremes.size());
}

TEST(FiniteTest, FindsTheFirstAtAnyPlace) {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), std::nanf(""), -std::nanf("7")};
  for (const size_t size : {1u, 7u, 4096u, 4097u, 10000u}) {
    for (size_t at = 0; at < size; at += 1 + size / 13) {
      std::vector<float> values(size, 1.5f);
      values[at] = bad[at % 4];
      values[size - 1] = bad[(at + 1) % 4];  // Only the first one is reported.
      EXPECT_EQ(FindNonFinite(values), at) << "size " << size;
    }
  }
}

TEST(FiniteTest, StateMayBeInfiniteAndWeightsMayNot) {
  const float inf = std::numeric_limits<float>::infinity();
  const size_t dim = 3, row_floats = 5;
  EXPECT_EQ(FindBadInRows({}, dim, row_floats), 0u);
  std::vector<float> rows(2000 * row_floats, 1.5f);
  for (size_t row = 7; row < 2000; row += 11) rows[row * row_floats + dim + row % 2] = inf;
  EXPECT_EQ(FindBadInRows(rows, dim, row_floats), rows.size());
  for (const size_t row : {1999u, 1500u, 7u, 0u}) {
    for (size_t i = row_floats; i-- > 0;) {
      const size_t at = row * row_floats + i;
      rows[at] = std::nanf("");
      EXPECT_EQ(FindBadInRows(rows, dim, row_floats), at);
      rows[at] = i < dim ? -inf : inf;
      EXPECT_EQ(FindBadInRows(rows, dim, row_floats), i < dim ? at : rows.size());
      rows[at] = 1.5f;
    }
  }
}

}  // namespace
}  // namespace thermocline
