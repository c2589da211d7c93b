// A file that grows by whole records, such as metrics.jsonl.
#ifndef THERMOCLINE_DEPLOY_REPORT_APPENDED_FILE_H_
#define THERMOCLINE_DEPLOY_REPORT_APPENDED_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// A record that can't be written whole, because the disk is full, leaves nothing in the file, and
// the next one is tried again. Not thread-safe. The only writer of the file.
class AppendedFile {
 public:
  // Opens `path`, which is made where it is not there. Errors: kUnavailable (names the file and
  // what the system says).
  static absl::StatusOr<std::unique_ptr<AppendedFile>> Open(const std::string& path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  // Ends the last line where its writer was killed in the middle of it. Errors: kUnavailable, as
  // above.
  absl::Status EndLine();
  // Errors: kUnavailable, as above; nothing of `record` is in the file.
  absl::Status Append(absl::string_view record);

 private:
  AppendedFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_APPENDED_FILE_H_
