// Files and errors of Arrow, for the sources of this folder alone.
#ifndef THERMOCLINE_COMMON_ARROW_ARROW_FILES_H_
#define THERMOCLINE_COMMON_ARROW_ARROW_FILES_H_

#include <arrow/io/interfaces.h>
#include <arrow/status.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/arrow/object_store.h"

namespace thermocline {

// Returns the error of a call on `path` that returned `status`. If the system's error is in it, the
// code is that error's.
absl::Status FromArrow(const std::string& path, const arrow::Status& status);

// A store whose objects Arrow reads.
class ArrowObjectStore : public ObjectStore {
 public:
  virtual absl::StatusOr<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(
      const std::string& path) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_ARROW_FILES_H_
