// Finds the files of a job's data, and describes how those of text are read.
#ifndef THERMOCLINE_WORKER_DATA_DATA_FILES_H_
#define THERMOCLINE_WORKER_DATA_DATA_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/pinned_files.h"
#include "worker/data/row_stream.h"
#include "worker/data/text/text_index.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {

// The files of a job whose data are text or Parquet.
struct FoundFiles {
  std::shared_ptr<ObjectStore> store;  // Null: no path is an object.
  std::vector<std::string> train;
  std::vector<std::string> test;  // Files of held-out rows; {}: `data` has no `test`.
  std::shared_ptr<PinnedFiles> pinned;
};
// Finds the files that `job` names (data_files). If it names none, finds all files that the paths
// of `data`, the job's data in the long form (DescribeData), stand for. Errors: OpenStore's,
// ListAll's, PinnedFiles::Open's.
absl::StatusOr<FoundFiles> FindFiles(const Job& job, const Data& data);

// Describes `paths` of `found`, whose text has the format of `files`, and sets *columns to the
// names of their columns. Files of csv also have columns for the keys of their folders
// (AddFolderKeys). Errors: ReadHeader's.
absl::StatusOr<TextFiles> DescribeFiles(const Data::Files& files, const FoundFiles& found,
                                        const std::vector<std::string>& paths,
                                        ColumnNames* columns);

// Adds a column for each key in the names of the files' folders ("day=7/"), but for those whose
// name is a column of the files already. If the folders of two files have other keys, adds none.
void AddFolderKeys(TextFiles* files, ColumnNames* columns);
// Removes these columns.
void DropFolderKeys(TextFiles* files, ColumnNames* columns);

// Makes an index for each file.
void AddIndexes(const Data& data, const ColumnNames& columns, const TextIndexOptions& options,
                TextFiles* files);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_DATA_FILES_H_
