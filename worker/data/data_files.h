// The files of a job's data, and how those of text are read.
#ifndef THERMOCLINE_WORKER_DATA_DATA_FILES_H_
#define THERMOCLINE_WORKER_DATA_DATA_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/data/data_identity.h"
#include "proto/job.pb.h"
#include "worker/data/pinned_files.h"
#include "worker/data/row_stream.h"
#include "worker/data/text/text_index.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {

// The files of text or Parquet, those of the held-out rows where `data` has `test`.
struct FoundFiles {
  std::shared_ptr<ObjectStore> store;  // Null: no path is an object.
  std::vector<std::string> train, test;
  std::shared_ptr<PinnedFiles> pinned;
};
// Those that `job` names (data_files) or, where it names none, all that the paths of `data`, its
// data as described, stand for. Errors: as OpenStore(), ListAll() and PinnedFiles::Open().
absl::StatusOr<FoundFiles> FindFiles(const Job& job, const Data& data);

// `paths` of `found`, which are text as `files` says, and in `*columns` what they call their
// columns; those of csv have the keys of their folders behind them. Errors: as ReadHeader().
absl::StatusOr<TextFiles> DescribeFiles(const Data::Files& files, const FoundFiles& found,
                                        const std::vector<std::string>& paths,
                                        ColumnNames* columns);

// Makes columns of the keys that the folders of all files have, where the files have no such column
// themselves; takes them out again.
void AddFolderKeys(TextFiles* files, ColumnNames* columns);
void DropFolderKeys(TextFiles* files, ColumnNames* columns);

// An index for each file.
void AddIndexes(const Data& data, const ColumnNames& columns, const TextIndexOptions& options,
                TextFiles* files);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_DATA_FILES_H_
