// The schema and the values of single columns of Parquet files, for the reader alone.
#ifndef THERMOCLINE_COMMON_ARROW_PARQUET_LEAF_H_
#define THERMOCLINE_COMMON_ARROW_PARQUET_LEAF_H_

#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include <cstdint>
#include <exception>
#include <memory>

#include "common/arrow/parquet.h"

namespace thermocline {

// What tells a leaf's cells apart.
struct ParquetLeaf {
  int column = 0;               // In the file's order of leaves.
  int16_t max_definition = 0;   // A value is there.
  int16_t cell_definition = 0;  // Below: the list has no cell here.
};

// One leaf of the schema: a plain column, a field of a group, or the elements of a list. Sets the
// levels of `leaf`.
ParquetColumn DescribeLeaf(const parquet::ColumnDescriptor& descriptor, ParquetLeaf* leaf);

// The lists of the rows that are read together have too many values. `row`: of these, from 0, the
// first with which they do.
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

// `column` outlives the reader. Throws parquet::ParquetException.
std::unique_ptr<LeafReader> MakeLeafReader(parquet::RowGroupReader* group, const ParquetLeaf& leaf,
                                           const ParquetColumn& column, int64_t max_list_values);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_PARQUET_LEAF_H_
