// The functions of this folder in a build without Arrow C++.
#include "absl/strings/str_cat.h"
#include "common/arrow/object_store.h"
#include "common/arrow/parquet.h"

namespace thermocline {

absl::Status RequireArrow(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      what,
      ": Parquet and s3:// need Arrow C++, which this build does not have; deploy/setup.sh "
      "fetches it from PyPI (the pyarrow wheel), and the next build uses it"));
}

absl::StatusOr<std::unique_ptr<ParquetFile>> ParquetFile::Open(const std::string& path,
                                                               ObjectStore*, int64_t) {
  return RequireArrow(path);
}

absl::StatusOr<std::unique_ptr<ParquetWriter>> ParquetWriter::Create(const std::string& path) {
  return RequireArrow(path);
}

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Open(const Data_S3&) {
  return RequireArrow("s3://");
}

}  // namespace thermocline
