// The end of a log file, for reports.
#ifndef THERMOCLINE_DEPLOY_RUNNER_LOG_TAIL_H_
#define THERMOCLINE_DEPLOY_RUNNER_LOG_TAIL_H_

#include <cstdint>
#include <string>
#include <vector>

namespace thermocline {

// At most `max_lines` last lines of what a file holds behind its first `begin` bytes, each cut at
// 500 bytes; empty where it can't be read. Reads the last 64 KiB only.
std::vector<std::string> LogTail(const std::string& path, int max_lines, uint64_t begin = 0);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_LOG_TAIL_H_
