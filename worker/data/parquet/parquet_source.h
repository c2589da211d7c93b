// A BatchSource of a range of the rows of Parquet files. It reads only the columns that the job
// names, some thousand rows at a time, and no row groups before the first wanted row.
#ifndef THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_SOURCE_H_
#define THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "worker/data/data_files.h"
#include "worker/data/parquet/parquet_parser.h"
#include "worker/data/text/text_source.h"

namespace thermocline {

// Immutable; shared by the sources that read it.
struct ParquetFiles {
  std::vector<std::string> paths;                // At least one.
  std::shared_ptr<ObjectStore> store;            // Null: no path is an object.
  std::shared_ptr<PinnedFiles> pinned;           // Null: files are not checked for changes.
  std::vector<std::vector<int64_t>> row_groups;  // [paths][row groups] Their numbers of rows.

  int64_t rows(int file) const;
  int64_t all_rows() const;
};

// Opens a file. The keys of its folders (FolderKeysOf) follow its own columns, as texts, unless it
// has a column of that name. Errors: ParquetFile::Open's.
absl::StatusOr<std::unique_ptr<ParquetFile>> OpenParquet(const std::string& path,
                                                         ObjectStore* store);

// Reads the footers of `paths`, which are some of `found`. Errors: ParquetFile::Open's,
// ParquetParser::Find's.
absl::StatusOr<ParquetFiles> OpenParquetFiles(const FoundFiles& found,
                                              std::vector<std::string> paths,
                                              const ParquetParser& parser);

class ParquetSource : public RowFileSource {
 public:
  ParquetSource(std::shared_ptr<const ParquetFiles> files,
                std::shared_ptr<const ParquetParser> parser, const TextRange& range);

  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>* bad_rows) override;
  absl::Status DescribeBadRow(const RawBatch& raw, int64_t row) override;
  std::string PlaceOf(const RawBatch& raw, int64_t row) override;

 private:
  const std::shared_ptr<const ParquetParser> parser_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_PARQUET_PARQUET_SOURCE_H_
