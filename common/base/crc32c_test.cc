#include "common/base/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

// RFC 3720, B.4, and the check value of the catalogue of CRCs.
TEST(Crc32cTest, PublishedValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  const std::string zeros(32, '\0'), ones(32, '\xFF');
  EXPECT_EQ(Crc32c(zeros.data(), zeros.size()), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(ones.data(), ones.size()), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("", 0), 0u);
}

TEST(Crc32cTest, PiecesGiveWhatTheWholeGives) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i * 37));
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t first = Crc32c(text.data(), cut);
    EXPECT_EQ(ExtendCrc32c(first, text.data() + cut, text.size() - cut), whole) << cut;
  }
}

TEST(Crc32cTest, EveryFlippedBitShows) {
  std::string text(67, 'x');
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_NE(Crc32c(text.data(), text.size()), whole) << bit;
    text[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace thermocline
