// The RocksDB settings that make our SST files what docs/formats.md says.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_OPTIONS_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_OPTIONS_H_

#include "rocksdb/options.h"
#include "rocksdb/table.h"

namespace thermocline {

inline rocksdb::Options RowsFileOptions(rocksdb::Env* env) {
  rocksdb::BlockBasedTableOptions table;
  table.format_version = 5;
  table.checksum = rocksdb::kXXH3;
  table.no_block_cache = true;  // Every block is read once.
  // Measured with rows of 128 bytes: smaller and larger blocks are slower, as are other distances
  // between the keys that are written whole.
  table.block_size = 64 << 10;
  table.block_size_deviation = 0;
  table.block_restart_interval = 16;
  rocksdb::Options options;
  options.env = env;
  options.compression = rocksdb::kNoCompression;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_OPTIONS_H_
