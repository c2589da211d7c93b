// A run directory with files as a test writes them.
#ifndef THERMOCLINE_DEPLOY_PAGE_TESTING_MADE_RUN_H_
#define THERMOCLINE_DEPLOY_PAGE_TESTING_MADE_RUN_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// The folder goes with the object.
class MadeRun {
 public:
  MadeRun() {
    std::string name = testing::TempDir() + "/run_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~MadeRun() { std::filesystem::remove_all(path_); }
  MadeRun(const MadeRun&) = delete;
  MadeRun& operator=(const MadeRun&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }
  // Appends to metrics.jsonl.
  void Append(absl::string_view text) const {
    std::ofstream(path_ + "/metrics.jsonl", std::ios::binary | std::ios::app) << text;
  }

 private:
  std::string path_;
};

// Lines of metrics.jsonl, with their ends.
inline std::string ProgressLine(int64_t step, double wall_s, double loss) {
  return absl::StrFormat(
      R"({"event":"progress","step":%d,"samples":%d,"loss":%.9g,"samples_per_s":1000,"wall_s":%.9g})"
      "\n",
      step, step * 10, loss, wall_s);
}
inline std::string EventLine(const std::string& event, double wall_s, nlohmann::json fields) {
  fields["event"] = event;
  fields["wall_s"] = wall_s;
  return fields.dump() + "\n";
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_TESTING_MADE_RUN_H_
