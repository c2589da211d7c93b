#include "common/arrow/testing/test_parquet.h"
#include "common/base/check.h"

namespace thermocline {

void WriteTestParquet(const std::string&, const std::vector<ParquetTestColumn>&,
                      const ParquetTestOptions&) {
  CHECK(!"this build has no Arrow");
}

}  // namespace thermocline
