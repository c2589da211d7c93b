// The steps from a job file to a job that can run, for LoadJob: parse the file and apply flags
// (JobSource), fill in defaults (ResolveJob), check (ValidateJob).
#ifndef THERMOCLINE_COMMON_JOB_JOB_SOURCE_H_
#define THERMOCLINE_COMMON_JOB_JOB_SOURCE_H_

#include <google/protobuf/text_format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace thermocline {

// A job as the user wrote it, and where each value came from: a line of the file, a `--set` or a
// `--clear`.
class JobSource {
 public:
  // Parses a job in protobuf's text format, removes the fields `cleared` and applies the overrides
  // in order. `file` is what errors call the text. Errors: kInvalidArgument: "FILE:LINE:COLUMN:
  // what is wrong", with a suggestion for a misspelt field or enum value; or
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
  // The changes by flags, in their order.
  const std::vector<Change>& changes() const { return changes_; }

  // Where the value at `path` ("train.batch_size", "table[2].settings.dim") was written: "FILE:12",
  // or "--set ...", "--clear ...". For a default: where the nearest enclosing message was written,
  // or "FILE".
  std::string Locate(absl::string_view path) const;

  // kInvalidArgument: "FILE:12: `path` `what`", the latter in parts as absl::StrCat takes them.
  template <typename... Parts>
  absl::Status Error(absl::string_view path, const Parts&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(Locate(path), ": ", path, " ", what...));
  }

 private:
  JobSource() = default;

  std::string file_;
  Job job_;
  std::unique_ptr<google::protobuf::TextFormat::ParseInfoTree> lines_;
  std::vector<Change> changes_;
};

// Writes every default that job.proto documents into the job, a feature for each column
// (job_data.h), and a table for each feature that names none. Resolving a resolved job changes
// nothing. Leaves wrong values as they are, for ValidateJob to report.
//
// Exceptions are cache.prefetch_steps and data.parser_threads: if they were written, a resumed job
// with another window, or on another machine, would keep the old one's default.
void ResolveJob(Job* job);

// Checks every value of `resolved`, the resolved form of `source`, and reports the first that is
// wrong. Opens no files: their readers report missing data.
// Errors: kInvalidArgument: "FILE:12: train.batch_size is 0; it must be at least 1".
absl::Status ValidateJob(const Job& resolved, const JobSource& source);

// Checks what only a job that trains must satisfy, where ValidateJob finds nothing wrong. What a
// job of an earlier program may have trained with is refused here alone: its runs and checkpoints
// are read and scored all the same. Errors: kInvalidArgument, as ValidateJob's.
absl::Status ValidateTraining(const Job& resolved, const JobSource& source);

// ValidateJob calls these for `data`, for the features, and for the sequences of checked features.
absl::Status ValidateData(const Job& resolved, const JobSource& source);
absl::Status ValidateFeatures(const Job& resolved, const JobSource& source);
absl::Status ValidateSequences(const Job& resolved, const JobSource& source);
// kInvalidArgument, at `path`, where the job has no held-out rows to score. or_else: an
// alternative, at the end of the message.
absl::Status CheckHeldOut(const Job& resolved, const JobSource& source, const std::string& path,
                          const char* or_else = "");

// The least memory of a table or a cache.
inline constexpr uint64_t kMinMemoryBudgetBytes = 64 << 10;

// kInvalidArgument, at `path`, where `value` is not in [low, high].
absl::Status CheckRange(const JobSource& source, absl::string_view path, uint64_t value,
                        uint64_t low, uint64_t high);

// kInvalidArgument, at `path`, where `text` is not a size ("512MiB") between `low_bytes` and a
// pebibyte.
absl::Status CheckSize(const JobSource& source, absl::string_view path, absl::string_view text,
                       uint64_t low_bytes);

// kInvalidArgument where `name` is empty or too long, or has characters other than letters, digits,
// '_' and '-'.
absl::Status CheckName(const JobSource& source, absl::string_view path, absl::string_view name);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_SOURCE_H_
