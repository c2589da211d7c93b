// The command line of `thermocline`: what the flags of its commands say, and the commands.
#ifndef THERMOCLINE_DEPLOY_CLI_COMMAND_LINE_H_
#define THERMOCLINE_DEPLOY_CLI_COMMAND_LINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/process_limits.h"
#include "deploy/clicklog/click_log.h"

namespace thermocline {

inline constexpr char kVersion[] = "0.1.0";

// Parses the arguments (without the program's name) and runs the command that they name. Prints
// help pages to standard output and errors to standard error. Returns the exit code.
int RunCommandLine(const std::vector<std::string>& arguments);

// Below, an empty text means that its flag was not given; command_line.cc and log_pages.cc define
// the flags.

// The flags that name a job and change it.
struct JobFlags {
  std::string job;                                    // the job file
  std::optional<std::string> data, servers, workers;  // values for fields of the job
  std::vector<std::string> set;                       // "FIELD=VALUE"
  std::vector<std::string> clear;                     // "FIELD"
  bool insecure = false;
  std::string bin_dir;
  std::string run_dir;
};

struct TrainFlags : JobFlags {
  bool resume = false;
  std::string resume_from;
  bool restarted = false;
  bool other_data = false;
  bool or_begin = false;
  std::string init_from;
  int64_t nodes = 0;   // 0: on this machine
  std::string listen;  // for nodes
};

struct EvalFlags : JobFlags {
  std::string checkpoint;
  bool json = false;
};

struct PredictFlags {
  std::string checkpoint, data, out;
  std::string job;                   // Of another file than the checkpoint's own; "": that.
  std::vector<std::string> set;      // "FIELD=VALUE"
  std::vector<std::string> columns;  // That go along.
  std::optional<std::string> max_bad_lines;
  std::string memory = "1GiB";
  bool logits = false;
  bool force = false;
  std::string bin_dir;
};

struct BenchTrainFlags : JobFlags {
  int64_t repeats = 3;
};

struct StatsFlags {
  std::vector<std::string> addresses;
  std::string run_dir;
  bool watch = false;
  int64_t interval_s = 1;
  bool json = false;
  std::string tls_certificate, tls_private_key, tls_ca;
};

// Of all actions of `checkpoint`; each reads its own.
struct CheckpointFlags {
  std::string path;
  bool json = false;             // list
  std::string out;               // export
  bool optimizer_state = false;  // export
  std::string run_dir;           // now
  int64_t timeout_s = 600;       // now
};

struct InspectFlags {
  std::vector<std::string> paths;
  std::string job;  // the file to write
  std::string label;
  std::string positive;  // separated by commas
  std::string columns;   // separated by commas
  std::string separator;
  int64_t max_rows = 0;  // 0: all
  bool json = false;
  std::string bin_dir;
};

struct PlanFlags : JobFlags {
  std::string figures;
  bool scan = false;
  double samples_per_s = 0;  // 0: not known
  bool json = false;
};

struct CalibrateFlags : JobFlags {
  std::string budgets;  // separated by commas; "": the job's
  std::string samples;  // the same
  bool json = false;
};

// The commands; each returns the exit code.
int RunTrain(const TrainFlags& flags);
int RunEval(const EvalFlags& flags);
int RunPredict(const PredictFlags& flags);
int RunGenerate(const ClickLogOptions& options);
int RunInspect(const InspectFlags& flags);
int RunPlan(const PlanFlags& flags);
int RunCalibrate(const CalibrateFlags& flags);
int RunStats(const StatsFlags& flags);
int ListCheckpoints(const CheckpointFlags& flags);
int VerifyCheckpoints(const CheckpointFlags& flags);
int ExportOneCheckpoint(const CheckpointFlags& flags);
int CheckpointNow(const CheckpointFlags& flags);
int RunBenchTrain(const BenchTrainFlags& flags);
// Replaces this process by the benchmark of pulls and pushes, with these arguments ("pull" or
// "push" first). Returns only if that fails.
int RunBenchProgram(const std::vector<std::string>& arguments);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_COMMAND_LINE_H_
