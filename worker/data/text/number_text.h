// Parses numbers: integers, decimals and hexadecimal ids. The functions are inline, since every
// column of every row passes here. They return false (ParseNumber: nullopt) unless all of `text` is
// such a number.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_NUMBER_TEXT_H_
#define THERMOCLINE_WORKER_DATA_TEXT_NUMBER_TEXT_H_

#include <immintrin.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "worker/data/batch.h"

namespace thermocline {

inline constexpr size_t kMaxIntegerDigits = 18;  // So many digits always fit an int64.
inline constexpr size_t kMaxHexDigits = 16;
inline constexpr uint8_t kNotHex = 0xff;

constexpr std::array<uint8_t, 256> MakeHexTable() {
  std::array<uint8_t, 256> table = {};
  for (int c = 0; c < 256; ++c) {
    table[c] = c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : kNotHex;
  }
  return table;
}
// The value of each character as a hexadecimal digit.
inline constexpr std::array<uint8_t, 256> kHex = MakeHexTable();

// Parses up to 18 digits, with a '-' or without, as most numbers of click logs are.
inline bool ParseShortInteger(absl::string_view text, int64_t* number) {
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  if (text.empty() || text.size() > kMaxIntegerDigits) return false;
  int64_t value = 0;
  for (const char c : text) {
    const unsigned digit = static_cast<unsigned char>(c) - '0';
    if (digit > 9) return false;
    value = value * 10 + digit;
  }
  *number = negative ? -value : value;
  return true;
}

// Parses an integer in [-2^63, 2^64) to its 64 bits.
inline bool ParseInteger(absl::string_view text, int64_t* number) {
  if (ParseShortInteger(text, number)) return true;
  const char* const end = text.data() + text.size();
  std::from_chars_result result = std::from_chars(text.data(), end, *number);
  if (result.ec == std::errc::result_out_of_range) {
    uint64_t large = 0;
    result = std::from_chars(text.data(), end, large);
    *number = static_cast<int64_t>(large);
  }
  return result.ec == std::errc() && result.ptr == end;
}

// Parses up to 16 hexadecimal digits. The key of missing values is no such number.
inline bool ParseHex(absl::string_view text, Key* key) {
  if (text.empty() || text.size() > kMaxHexDigits) return false;
  Key value = 0;
  for (const char c : text) {
    const uint8_t digit = kHex[static_cast<unsigned char>(c)];
    if (digit == kNotHex) return false;
    value = value << 4 | digit;
  }
  *key = value;
  return value != kEmptyCategoryKey;
}

// Parses the eight hexadecimal digits at `text`.
inline bool ParseEightHex(const char* text, Key* key) {
  const __m128i c = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(text));
  const __m128i digit = _mm_sub_epi8(c, _mm_set1_epi8('0'));
  const __m128i letter = _mm_sub_epi8(_mm_or_si128(c, _mm_set1_epi8(0x20)), _mm_set1_epi8('a'));
  const __m128i is_digit = _mm_cmpeq_epi8(_mm_min_epu8(digit, _mm_set1_epi8(9)), digit);
  const __m128i is_letter = _mm_cmpeq_epi8(_mm_min_epu8(letter, _mm_set1_epi8(5)), letter);
  if ((_mm_movemask_epi8(_mm_or_si128(is_digit, is_letter)) & 0xff) != 0xff) return false;
  const __m128i values = _mm_blendv_epi8(_mm_add_epi8(letter, _mm_set1_epi8(10)), digit, is_digit);
  // Pairs of digits as bytes, the first pair first.
  const __m128i pairs = _mm_maddubs_epi16(values, _mm_set1_epi16(0x0110));
  const auto bytes = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(pairs, pairs)));
  *key = __builtin_bswap32(bytes);
  return true;
}

// Parses a finite decimal number, without a sign '+' and without spaces.
inline std::optional<double> ParseNumber(absl::string_view text) {
  int64_t integer;
  if (ParseShortInteger(text, &integer)) return static_cast<double>(integer);
  double number = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, number);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_NUMBER_TEXT_H_
