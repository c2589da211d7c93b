// The lines of metrics.jsonl for TensorBoard: `tensorboard --logdir RUN_DIR` draws them.
//
// TensorBoard has no library for C++. An event file is a sequence of TFRecords: the length (8
// bytes, little endian), its masked CRC-32C, that many bytes, which are an Event
// (proto/tensorboard.proto), and their masked CRC-32C. A run directory has a file for each launch,
// and TensorBoard reads them one after the other in the order of their names.
#ifndef THERMOCLINE_DEPLOY_REPORT_EVENT_FILE_H_
#define THERMOCLINE_DEPLOY_REPORT_EVENT_FILE_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/report/appended_file.h"
#include "proto/tensorboard.pb.h"

namespace thermocline {

// Every scalar stands at the number of steps that were trained when it was measured. Not
// thread-safe.
class EventFile {
 public:
  // Begins the file of a launch on `host`, DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.0.
  // own_metric: the name of the script's own metric (Evaluate.own_metric); "": there is none.
  // Errors: kUnavailable.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& directory,
                                                           absl::string_view host, absl::Time now,
                                                           absl::string_view own_metric = "");

  // Shows `text`, the job as it is run, under the tag "job". Errors: kUnavailable, as of Append.
  absl::Status WriteJob(absl::string_view text, absl::Time now);

  // Takes a line of metrics.jsonl. Of "progress", "workers", "eval" and "checkpoint" lines the
  // figures that TensorBoard draws (docs/operations.md lists their tags); "resume" and "rollback"
  // void what was written for later steps. Other lines, and figures that are not finite, are left
  // out. Errors: kUnavailable (a full disk; the next line is tried again).
  absl::Status Append(const nlohmann::ordered_json& line, absl::Time now);

 private:
  EventFile(std::unique_ptr<AppendedFile> file, absl::string_view own_metric)
      : file_(std::move(file)), own_metric_(own_metric) {}

  absl::Status Write(const tensorboard::Event& event);

  const std::unique_ptr<AppendedFile> file_;
  const std::string own_metric_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_EVENT_FILE_H_
