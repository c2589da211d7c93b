// Checkpoints' rows files as earlier programs wrote them: SST files of RocksDB.
#ifndef THERMOCLINE_TESTS_TESTING_SST_FILES_H_
#define THERMOCLINE_TESTS_TESTING_SST_FILES_H_

#include <string>

#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"
#include "tests/testing/checkpoints.h"

namespace thermocline {

// Writes `rows` to a file at `path`, below `directory`; its folder is made where it is missing.
// Needs a folder for a temporary file. REQUIRES: there are rows, and `path` ends in ".sst".
CheckpointFile WriteSstFile(Disk* disk, const std::string& directory, const std::string& path,
                            const TestRows& rows);

// Replaces a file by an SST file with the same rows, and its entry of a manifest.
void ReplaceBySstFile(Disk* disk, const std::string& directory, CheckpointFile* file);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_SST_FILES_H_
