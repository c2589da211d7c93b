// Writes the files of one split of a synthetic click log.
#ifndef THERMOCLINE_DEPLOY_CLICKLOG_CLICK_LOG_WRITER_H_
#define THERMOCLINE_DEPLOY_CLICKLOG_CLICK_LOG_WRITER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/clicklog/click_log.h"
#include "deploy/clicklog/click_model.h"

namespace thermocline {

class ClickLogWriter {
 public:
  virtual ~ClickLogWriter() = default;

  // Writes FOLDER/SPLIT.tsv, FOLDER/SPLIT_dense.npy, ... Errors of all calls: kNotFound,
  // kPermissionDenied, kUnavailable; each names the file.
  static absl::StatusOr<std::unique_ptr<ClickLogWriter>> Create(ClickLogFormat format,
                                                                const std::string& folder,
                                                                const std::string& split);

  // Encodes a block, maybe before earlier blocks are appended. Thread-safe.
  virtual void Encode(const ClickBlock& block, std::string* encoded) const = 0;
  // Appends the next block, which Encode has encoded.
  virtual absl::Status Append(const ClickBlock& block, const std::string& encoded) = 0;
  virtual absl::Status Finish() = 0;
  virtual std::vector<std::string> files() const = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLICKLOG_CLICK_LOG_WRITER_H_
