// The inspection of Parquet files, whose columns have names and types of their own.
#ifndef THERMOCLINE_WORKER_INSPECT_PARQUET_INSPECTION_H_
#define THERMOCLINE_WORKER_INSPECT_PARQUET_INSPECTION_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"
#include "worker/inspect/data_inspection.h"

namespace thermocline {

// Whether a file is Parquet by its first bytes. store: of a path that is an object.
bool IsParquet(const std::string& path, ObjectStore* store);

// The figures of `files`, which have the same columns; `store` is of those that are objects. Values
// count as the text that a CSV file would have. max_keys: counted exactly, over all columns.
// Errors: as ParquetFile; kInvalidArgument (a file of other columns, or without rows).
absl::StatusOr<nlohmann::ordered_json> InspectParquet(const std::vector<std::string>& files,
                                                      ObjectStore* store,
                                                      const InspectionOptions& options,
                                                      size_t max_keys,
                                                      const OnInspected& on_inspected);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_INSPECT_PARQUET_INSPECTION_H_
