// Reads the schema and the values of single columns of Parquet files, for parquet_reader.cc alone.
#ifndef THERMOCLINE_COMMON_ARROW_PARQUET_LEAF_H_
#define THERMOCLINE_COMMON_ARROW_PARQUET_LEAF_H_

#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include <cstdint>
#include <exception>
#include <memory>

#include "common/arrow/parquet.h"

namespace thermocline {

// A leaf of the schema (a plain column, a field of a group, or the elements of a list): its place
// and how its definition levels are read.
struct ParquetLeaf {
  int column = 0;               // Its index in the file's order of leaves.
  int16_t max_definition = 0;   // At this level there is a value.
  int16_t cell_definition = 0;  // Below this level the list has no cell here.
};

// Returns the column of one leaf, and sets the levels of `leaf`.
ParquetColumn DescribeLeaf(const parquet::ColumnDescriptor& descriptor, ParquetLeaf* leaf);

// The lists of the rows that are read together have too many values.
//   row: the first row with which they do, from 0 among these rows
struct ListsTooLong : std::exception {
  explicit ListsTooLong(int64_t row) : row(row) {}
  int64_t row;
};

// One column of one row group.
class LeafReader {
 public:
  virtual ~LeafReader() = default;
  // Reads `rows` rows, which the row group has left. Throws parquet::ParquetException,
  // ListsTooLong.
  virtual void Read(int64_t rows, ParquetCells* cells) = 0;
};

// `group` and `column` must outlive the reader. Throws parquet::ParquetException.
std::unique_ptr<LeafReader> MakeLeafReader(parquet::RowGroupReader* group, const ParquetLeaf& leaf,
                                           const ParquetColumn& column, int64_t max_list_values);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_PARQUET_LEAF_H_
