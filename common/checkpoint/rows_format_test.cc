#include "common/checkpoint/rows_format.h"

#include <string>

#include "common/base/hash.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(RowsFormatTest, ChecksumsOfPiecesGiveThatOfTheWhole) {
  std::string text;
  for (uint64_t i = 0; i < 70'000; ++i) text.push_back(static_cast<char>(Mix64(i)));
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); cut += 1 + cut / 2) {
    for (const size_t first : {cut, text.size() - cut}) {
      const uint32_t combined =
          CombineCrc32c(Crc32c(text.data(), first),
                        Crc32c(text.data() + first, text.size() - first), text.size() - first);
      EXPECT_EQ(combined, whole) << first;
    }
  }
}

}  // namespace
}  // namespace thermocline
