// The two readers behind RowsFileReader::Open, one for each format of rows files (docs/formats.md).
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROWS_READERS_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROWS_READERS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// RowsFileReader::Open for the file at `path`, of the format of rows_format.h. Reads the file's
// ends; checks each block that it reads later.
absl::StatusOr<std::unique_ptr<RowsFileReader>> OpenColumnRows(Disk* disk, std::string path,
                                                               const CheckpointFile& listed,
                                                               RowsFileUse use);
// The same for an SST file of RocksDB, as earlier programs wrote them. Next also checks that each
// row is of its key's partition.
absl::StatusOr<std::unique_ptr<RowsFileReader>> OpenSstRows(Disk* disk, std::string path,
                                                            const CheckpointFile& listed,
                                                            RowsFileUse use);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROWS_READERS_H_
