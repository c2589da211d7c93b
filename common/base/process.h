// The setup of a program's own process: its command line, its log, allocator and mutexes, the limit
// of open files, and the figures for its stats.
#ifndef THERMOCLINE_COMMON_BASE_PROCESS_H_
#define THERMOCLINE_COMMON_BASE_PROCESS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// Sets Abseil's flags and returns the other arguments, the program's name first. For programs other
// than the launcher. `usage` is what --help prints before the flags of all of our own sources (by
// default Abseil shows only those defined in a file named like the program). --help ends the
// program with code 0. An unknown flag or a bad value ends it with the reason and exit code 2
// (Abseil's is 1).
std::vector<char*> ParseProgramFlags(absl::string_view usage, int argc, char** argv);

// The first thing that is wrong with the flags among `arguments`, or "". Sets the flags before it.
std::string CheckProgramFlags(const std::vector<std::string>& arguments);

// Writes a line of this process's log to stderr: "2024-06-11T09:28:20.123Z text". Thread-safe; a
// line is written whole. State belongs in the stats, not in the log: log starts, ends and errors.
void LogLine(absl::string_view text);

// Sets glibc's allocator for messages of about a megabyte. By default it maps every block from
// 128 KiB on afresh and unmaps it on free: a page fault for each 4 KiB of each message. After this
// call such blocks come from the heap and stay there. Call it first in main(), before threads
// start.
void TuneMallocForMessages();

// Turns off absl::Mutex's debug checks. Debian builds Abseil with assertions, so every absl::Mutex,
// gRPC's own included, keeps a process-wide graph of lock orders under one spin lock: good for
// tests, about a tenth of a pull's CPU time in production. Call it first in main(), before threads
// start.
void TurnOffMutexChecks();

// Whether the CPU has AVX-512. Every program of ours needs x86-64-v3.
inline bool CpuHasAvx512() { return __builtin_cpu_supports("avx512f") != 0; }

// Files that a process has open beside its connections: logs, data, checkpoints, gRPC's own.
inline constexpr uint64_t kFilesBesideConnections = 64;

// How many files this process may open now.
uint64_t OpenFileLimit();
// Raises the soft limit of open files to the hard limit, for this process and those that it starts
// later.
void RaiseOpenFileLimit();

// Checks that OpenFileLimit() suffices for `connections` and kFilesBesideConnections. Errors:
// kFailedPrecondition (names `who`, the program, what it needs, and the limit).
absl::Status CheckOpenFiles(absl::string_view who, uint64_t connections);

// Memory of this process that is in RAM (VmRSS), or 0 where /proc can't be read.
uint64_t ResidentBytes();

// Seconds since this process was loaded.
double UptimeSeconds();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PROCESS_H_
