#include "common/math/script_state_rows.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

constexpr char kMagic[] = "tcstate1";
constexpr size_t kMagicBytes = 8;
constexpr size_t kHeaderBytes = kMagicBytes + sizeof(uint64_t) + sizeof(uint32_t);
constexpr size_t kBytesPerFloat = 3;
constexpr size_t kRowBytes = kBytesPerFloat * kDenseBlockFloats;
constexpr uint64_t kMaxStateBytes = uint64_t{1} << 40;

absl::Status DamagedState(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the state of the script: ", what));
}

// Returns the bytes that rows hold.
absl::StatusOr<std::string> BytesOf(absl::Span<const float> rows) {
  std::string bytes;
  bytes.reserve(rows.size() * kBytesPerFloat);
  for (const float value : rows) {
    const bool is_in_range = value >= 0 && value < (1 << 24);
    const auto bits = static_cast<uint32_t>(is_in_range ? value : 0);
    if (!is_in_range || static_cast<float>(bits) != value) {
      return DamagedState("a value is not a whole number below 2^24");
    }
    for (size_t i = 0; i < kBytesPerFloat; ++i) {
      bytes.push_back(static_cast<char>(bits >> (8 * i) & 0xff));
    }
  }
  return bytes;
}

// Little endian, as the header has it.
template <typename T>
void AppendNumber(T value, std::string* bytes) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff));
  }
}

template <typename T>
T NumberAt(absl::string_view bytes, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  }
  return static_cast<T>(value);
}

// How many bytes the script gave, as the first row says.
absl::StatusOr<uint64_t> SizeIn(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagicBytes) != kMagic) {
    return DamagedState("it does not begin as one");
  }
  const auto size = NumberAt<uint64_t>(bytes, kMagicBytes);
  if (size > kMaxStateBytes) return DamagedState("its size is out of range");
  return size;
}

}  // namespace

std::vector<float> RowsOfState(absl::string_view state) {
  std::string bytes(kMagic, kMagicBytes);
  AppendNumber<uint64_t>(state.size(), &bytes);
  AppendNumber<uint32_t>(Crc32c(state.data(), state.size()), &bytes);
  bytes.append(state.data(), state.size());
  bytes.resize((bytes.size() + kRowBytes - 1) / kRowBytes * kRowBytes, '\0');
  std::vector<float> rows;
  rows.reserve(bytes.size() / kBytesPerFloat);
  for (size_t i = 0; i < bytes.size(); i += kBytesPerFloat) {
    uint32_t bits = 0;
    for (size_t j = 0; j < kBytesPerFloat; ++j) {
      bits |= uint32_t{static_cast<uint8_t>(bytes[i + j])} << (8 * j);
    }
    rows.push_back(static_cast<float>(bits));
  }
  return rows;
}

absl::StatusOr<int64_t> NumRowsOfState(absl::Span<const float> first_row) {
  if (std::all_of(first_row.begin(), first_row.end(), [](float value) { return value == 0; })) {
    return 0;
  }
  ASSIGN_OR_RETURN(const std::string bytes, BytesOf(first_row));
  ASSIGN_OR_RETURN(const uint64_t size, SizeIn(bytes));
  return static_cast<int64_t>((kHeaderBytes + size + kRowBytes - 1) / kRowBytes);
}

absl::StatusOr<std::string> StateOfRows(absl::Span<const float> rows) {
  ASSIGN_OR_RETURN(std::string bytes, BytesOf(rows));
  ASSIGN_OR_RETURN(const uint64_t size, SizeIn(bytes));
  if (bytes.size() - kHeaderBytes < size) return DamagedState("it has too few rows");
  const auto crc = NumberAt<uint32_t>(bytes, kMagicBytes + sizeof(uint64_t));
  std::string state = bytes.substr(kHeaderBytes, size);
  if (Crc32c(state.data(), state.size()) != crc) return DamagedState("its checksum is wrong");
  return state;
}

}  // namespace thermocline
