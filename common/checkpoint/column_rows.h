// Reads the rows files of rows_format.h.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_COLUMN_ROWS_H_
#define THERMOCLINE_COMMON_CHECKPOINT_COLUMN_ROWS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// RowsFileReader::Open for the file at `path`. Reads the file's ends; checks each block that it
// reads later.
absl::StatusOr<std::unique_ptr<RowsFileReader>> OpenColumnRows(Disk* disk, std::string path,
                                                               const CheckpointFile& listed,
                                                               RowsFileUse use);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_COLUMN_ROWS_H_
