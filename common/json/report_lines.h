// What a program tells the launcher that has started it: JSON, an object a line, as
// deploy/processes/reporting_program.h reads it.
#ifndef THERMOCLINE_COMMON_JSON_REPORT_LINES_H_
#define THERMOCLINE_COMMON_JSON_REPORT_LINES_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/timing.h"
#include "common/base/write_all.h"

namespace thermocline {

// Belongs to one thread.
class ReportLines {
 public:
  // Lines go to `fd`; none where it is negative.
  explicit ReportLines(int fd) : fd_(fd) {}

  // Returns false if the reader is gone.
  template <typename Json>
  bool Write(const Json& json) const {
    return fd_ < 0 ||
           WriteAll(fd_, json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  bool WriteFailure(const absl::Status& why) const {
    return Write(nlohmann::json{{"event", "failed"}, {"message", std::string(why.message())}});
  }

  // Whether it is time to write how far the work is: a while has passed since this was true.
  bool IsProgressDue() {
    if (watch_.Elapsed() < due_) return false;
    due_ = watch_.Elapsed() + kPeriod;
    return true;
  }
  // Since the program began.
  double Seconds() const { return absl::ToDoubleSeconds(watch_.Elapsed()); }

 private:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(200);

  const int fd_;
  const Stopwatch watch_;
  absl::Duration due_ = kPeriod;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JSON_REPORT_LINES_H_
