// Writes Parquet files of any types, for tests.
#ifndef THERMOCLINE_COMMON_ARROW_TESTING_TEST_PARQUET_H_
#define THERMOCLINE_COMMON_ARROW_TESTING_TEST_PARQUET_H_

#include <cstdint>
#include <string>
#include <vector>

namespace thermocline {

// A column and its rows as a JSON array: {"tags", "list of int64", "[[1, 2], null, []]"}. Types:
// bool, int8 to int64, uint8 to uint64, float, double, string, binary, dictionary (of strings),
// date, timestamp[s], [ms], [us] or [ns], time[us], decimal, map (of strings to int64), and lists
// of these ("two of float": of a fixed size).
struct ParquetTestColumn {
  std::string name;
  std::string type;
  std::string json;
};

struct ParquetTestOptions {
  int64_t row_group_rows = 1 << 20;
  bool dictionary = true;  // Whether columns are encoded by dictionaries, as writers do by default.
  int64_t page_bytes = 1 << 20;
};

// REQUIRES: this build has Arrow. Any error ends the test.
void WriteTestParquet(const std::string& path, const std::vector<ParquetTestColumn>& columns,
                      const ParquetTestOptions& options = {});

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_TESTING_TEST_PARQUET_H_
