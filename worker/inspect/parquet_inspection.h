// Inspects Parquet files, which say the names and types of their columns themselves.
#ifndef THERMOCLINE_WORKER_INSPECT_PARQUET_INSPECTION_H_
#define THERMOCLINE_WORKER_INSPECT_PARQUET_INSPECTION_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "worker/inspect/data_inspection.h"

namespace thermocline {

// Whether a file is Parquet by its first bytes. `store` may be null if `path` is no object.
bool IsParquet(const std::string& path, ObjectStore* store);

// Returns the figures of `files`. Values count as the text that a CSV file would have.
//   store: may be null if none of the files is an object
//   max_keys: how many keys are counted exactly, over all columns
// Errors: ParquetFile's; kInvalidArgument (files have different columns, or a file has no rows).
absl::StatusOr<nlohmann::ordered_json> InspectParquet(const std::vector<std::string>& files,
                                                      ObjectStore* store,
                                                      const InspectionOptions& options,
                                                      size_t max_keys,
                                                      const OnInspected& on_inspected);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_PARQUET_INSPECTION_H_
