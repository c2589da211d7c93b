#include "worker/data/reading_benchmark.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "benchmark/benchmark.h"
#include "common/job/job_loader.h"

namespace thermocline {

int RunReadingBenchmark(const ReadingBenchmark& reading, int argc, char** argv) {
  std::string job_file, data;
  bool tiny = false;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (argument == "--tiny") {
      tiny = true;
    } else if (absl::ConsumePrefix(&argument, "--job=")) {
      job_file = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--data=")) {
      data = std::string(argument);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  const std::string made = absl::StrCat(std::filesystem::temp_directory_path().string(),
                                        "/reading_benchmark.", getpid(), reading.made_suffix);
  if (data.empty()) {
    reading.make(made, tiny ? 100 : reading.made_rows);
    data = made;
  }
  const std::vector<std::string> overrides = {absl::StrCat("data.path='", data, "'")};
  const auto job =
      job_file.empty() ? ParseJob(reading.made_job, "j", overrides) : LoadJob(job_file, overrides);
  if (job.ok()) {
    reading.open(*job);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
  } else {
    std::fprintf(stderr, "%s\n", std::string(job.status().message()).c_str());
  }
  std::remove(made.c_str());
  return job.ok() ? 0 : 2;
}

}  // namespace thermocline
