// The files and objects that the paths of a job's data stand for.
#ifndef THERMOCLINE_WORKER_DATA_DATA_FILES_H_
#define THERMOCLINE_WORKER_DATA_DATA_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "proto/job.pb.h"
#include "worker/data/row_stream.h"
#include "worker/data/text_index.h"
#include "worker/data/text_parser.h"

namespace thermocline {

// The store of the s3:// paths of `data`; null: there are none. Errors: as ObjectStore::Open().
absl::StatusOr<std::shared_ptr<ObjectStore>> OpenStore(const Data& data);

// The files and objects that all paths of `files` stand for. Errors: as ListFiles() and
// ObjectStore::List().
absl::StatusOr<std::vector<std::string>> ListAll(const Data::Files& files, ObjectStore* store);

// The files of `files`, which are text, and in `*columns` what they call their columns. Errors: as
// ListAll() and ReadHeader().
absl::StatusOr<TextFiles> FindFiles(const Data::Files& files, std::shared_ptr<ObjectStore> store,
                                    ColumnNames* columns);

// An index for each file.
void AddIndexes(const Data& data, const ColumnNames& columns, const TextIndexOptions& options,
                TextFiles* files);

// What tells a job's training files from others: "1 file, 250,000 bytes, 5d1c8a2f", of which the
// last is a checksum of their names, without folders, and sizes. "": it would take asking a store
// for all its objects, or a file is not there. The job is resolved.
std::string SummarizeTrainingFiles(const Data& data);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_DATA_FILES_H_
