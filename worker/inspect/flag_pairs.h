// Finds columns of two texts, such as 0 and 1, that say what another such column is: a second
// label, or one that was written after the event.
#ifndef THERMOCLINE_WORKER_INSPECT_FLAG_PAIRS_H_
#define THERMOCLINE_WORKER_INSPECT_FLAG_PAIRS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace thermocline {

// Counts for each two columns of two texts how often they have which of them. Blocks of rows bound
// the memory: a column has two bits for each row of a block.
class FlagPairs {
 public:
  explicit FlagPairs(size_t columns) : columns_(columns) {}

  // Adds a column's text of the next row; an empty one is missing. Different threads may add to
  // different columns.
  void Add(size_t column, absl::string_view text);
  // Counts the rows since the last call, which all columns have added. Not thread-safe.
  void EndBlock();

  // Adds "implies" to the figures of a column, where there are such: the columns that nearly always
  // have the greater of their texts ("1" of "0" and "1") where this one has its own, and would not
  // by chance. Each has "column"; "rows", in which this one has its greater text and the other any;
  // "but", in how many of these it is not the greater one.
  //   names: of all columns
  void AddImplied(size_t column, const std::vector<std::string>& names,
                  nlohmann::ordered_json* figures) const;

 private:
  struct alignas(64) Column {
    bool is_out = false;               // It has more than two texts.
    std::array<std::string, 2> texts;  // "": it has not occurred.
    size_t rows = 0;
    std::array<std::vector<uint64_t>, 2> bits;  // [2][rows] Which rows have the text.

    size_t Greater() const { return texts[0] < texts[1] ? 1 : 0; }
  };
  using Counts = std::array<std::array<uint64_t, 2>, 2>;  // By the texts of the one and the other.

  std::vector<Column> columns_;
  std::vector<size_t> flags_;                // The columns that had two texts, or one, in a block.
  std::vector<std::vector<Counts>> counts_;  // [flags][flags]; those of later ones are not used.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_FLAG_PAIRS_H_
