// Reads the rows files of earlier programs, which are SST files of RocksDB (docs/formats.md).
#ifndef THERMOCLINE_COMMON_CHECKPOINT_SST_ROWS_H_
#define THERMOCLINE_COMMON_CHECKPOINT_SST_ROWS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// RowsFileReader::Open for the file at `path`. Next also checks that each row is of its key's
// partition.
absl::StatusOr<std::unique_ptr<RowsFileReader>> OpenSstRows(Disk* disk, std::string path,
                                                            const CheckpointFile& listed,
                                                            RowsFileUse use);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_SST_ROWS_H_
