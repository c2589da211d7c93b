// Compares pulls (or pushes) of rows through everything (codec, gRPC, server core, table) with the
// bare gRPC that bounds them, and with Redis, which they replace:
//
//   echo    bare gRPC with messages of the same sizes, over as many channels (echo.h)
//   redis   MGET of the same rows, in pipelined batches of 100 keys or in one command, whichever is
//           faster
//
// Every contestant's server is a process of its own, every process has the same malloc settings,
// and there are as many calls in flight, or Redis connections, for each. Ours is measured once more
// in this process (`--servers 0`: "embedded"). They run in turn, repetition by repetition, so that
// a busy machine slows them alike; ratios are taken within a repetition. Before anything is timed,
// the rows that arrive are compared with each other.
//
//   thermocline-bench-pull [pull|push] [--keys=4096,16384] [--channels=2,4] [--rows=N] ...
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "common/base/process.h"
#include "common/net/rpc.h"
#include "tests/benchmarks/echo.h"
#include "tests/benchmarks/pull_contest.h"

ABSL_FLAG(std::vector<std::string>, keys, std::vector<std::string>({"4096", "16384", "20000"}),
          "Keys in one request");
ABSL_FLAG(std::vector<std::string>, channels, std::vector<std::string>({"2", "4"}),
          "Connections to the server");
ABSL_FLAG(uint32_t, in_flight, 0, "Requests in flight; 0: as many as channels");
ABSL_FLAG(uint32_t, dim, 16, "Floats in a row");
ABSL_FLAG(uint32_t, rows, 1000000, "Rows in the table (Adagrad: dim more floats of state each)");
ABSL_FLAG(uint32_t, repetitions, 9, "Measurements of each contestant");
ABSL_FLAG(double, seconds, 0.3, "Length of one measurement");
ABSL_FLAG(bool, redis, true, "Measure Redis too (pull only), where redis-server is installed");
ABSL_FLAG(std::string, server, "",
          "The thermocline-server to measure; empty: the one built beside us");
ABSL_FLAG(
    double, skew, 1.05,
    "A request's keys are the distinct ones of draws from a power law with this exponent, as in "
    "click logs; 0: uniform, the worst case for every cache");
ABSL_FLAG(uint64_t, seed, 1, "Of the keys");
// Starts the echo server; for this program's own use.
ABSL_FLAG(std::string, serve_echo_port_file, "", "(internal) serve echoes, write the port here");
ABSL_FLAG(uint64_t, serve_echo_bytes, 0, "(internal) bytes of an echo's reply");
ABSL_FLAG(bool, serve_echo_untouched, false, "(internal) kind of echo, see echo.h");

namespace thermocline {
namespace {

constexpr int kExitUsage = 2;

// Returns positive integers, or {} if one isn't positive.
std::vector<uint32_t> Numbers(const std::vector<std::string>& texts) {
  std::vector<uint32_t> numbers;
  for (const std::string& text : texts) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(text, &number) || number == 0) return {};
    numbers.push_back(number);
  }
  return numbers;
}

int Usage(const char* why) {
  std::fprintf(stderr, "thermocline-bench-pull: %s (--help lists the flags)\n", why);
  return kExitUsage;
}

int Main(const std::vector<char*>& arguments) {
  const std::string what = arguments.size() > 1 ? arguments[1] : "pull";
  if (arguments.size() > 2 || (what != "pull" && what != "push")) {
    return Usage("name one of 'pull' and 'push'");
  }
  ContestOptions options;
  options.push = what == "push";
  options.keys = Numbers(absl::GetFlag(FLAGS_keys));
  options.channels = Numbers(absl::GetFlag(FLAGS_channels));
  options.in_flight = absl::GetFlag(FLAGS_in_flight);
  options.dim = absl::GetFlag(FLAGS_dim);
  options.rows = absl::GetFlag(FLAGS_rows);
  options.repetitions = absl::GetFlag(FLAGS_repetitions);
  options.seconds = absl::GetFlag(FLAGS_seconds);
  options.redis = absl::GetFlag(FLAGS_redis) && !options.push;
  options.server = absl::GetFlag(FLAGS_server);
  options.skew = absl::GetFlag(FLAGS_skew);
  options.seed = absl::GetFlag(FLAGS_seed);
  if (options.keys.empty() || options.channels.empty()) {
    return Usage("--keys and --channels are lists of positive numbers");
  }
  for (uint32_t keys : options.keys) {
    if (keys > options.rows / 2) return Usage("--keys can't be more than half of --rows");
  }
  if (!(options.skew >= 0 && options.skew <= 4)) return Usage("--skew is in [0, 4]");
  if (options.dim == 0 || options.repetitions == 0) {
    return Usage("--dim and --repetitions are at least 1");
  }
  const absl::Status status = RunContest(options);
  if (status.ok()) return 0;
  LogLine(status.ToString());
  return 1;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  const std::vector<char*> arguments = thermocline::ParseProgramFlags(
      "measures pulls (or pushes) against a bare gRPC echo and Redis MGET.\n"
      "  thermocline-bench-pull [pull|push] [--keys=4096,16384] [--channels=2,4] [--rows=1000000]",
      argc, argv);
  thermocline::TuneMallocForMessages();
  thermocline::TurnOffMutexChecks();
  if (const std::string path = absl::GetFlag(FLAGS_serve_echo_port_file); !path.empty()) {
    return thermocline::ServeEcho(
        absl::GetFlag(FLAGS_serve_echo_untouched) ? thermocline::EchoKind::kUntouched
                                                  : thermocline::EchoKind::kDelivered,
        absl::GetFlag(FLAGS_serve_echo_bytes), thermocline::kMaxBenchmarkMessageBytes, path);
  }
  return thermocline::Main(arguments);
}
