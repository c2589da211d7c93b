// A job as the user wrote it, and where each value came from: a line of the file, a `--set` or a
// `--clear`.
#ifndef THERMOCLINE_COMMON_JOB_JOB_SOURCE_H_
#define THERMOCLINE_COMMON_JOB_JOB_SOURCE_H_

#include <google/protobuf/text_format.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace thermocline {

class JobSource {
 public:
  // Parses a job in protobuf's text format, takes out the fields `cleared` and applies the
  // overrides in order. `file` is what errors call the text. Errors: kInvalidArgument:
  // "FILE:LINE:COLUMN: what is wrong", with a suggestion for a misspelt field or enum value; or
  // "--set path=value: what is wrong", "--clear path: what is wrong".
  static absl::StatusOr<JobSource> Parse(absl::string_view text, absl::string_view file,
                                         const std::vector<std::string>& overrides,
                                         const std::vector<std::string>& cleared);

  const Job& job() const { return job_; }
  const std::string& file() const { return file_; }

  struct Change {
    std::string path;
    std::string flag;  // "--set path=value"
  };
  // What flags changed, in the order in which they did.
  const std::vector<Change>& changes() const { return changes_; }

  // Where the value at `path` ("train.batch_size", "table[2].settings.dim") was written: "FILE:12",
  // or "--set ...", "--clear ..."; for a value that nobody wrote, the nearest enclosing message, or
  // just "FILE".
  std::string Locate(absl::string_view path) const;

  // kInvalidArgument: "FILE:12: `path` `what`".
  absl::Status Error(absl::string_view path, absl::string_view what) const;

 private:
  JobSource() = default;

  std::string file_;
  Job job_;
  std::unique_ptr<google::protobuf::TextFormat::ParseInfoTree> lines_;
  std::vector<Change> changes_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_SOURCE_H_
