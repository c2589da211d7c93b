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

// Sets Abseil's flags and returns the other arguments, the program's name first. All programs but
// the launcher begin with it.
//
// --help prints `usage` and the flags of all of our own sources (Abseil alone shows only those
// defined in a file named like the program), and ends the program with code 0. An unknown flag or a
// bad value ends it with the reason and exit code 2 (Abseil's is 1).
std::vector<char*> ParseProgramFlags(absl::string_view usage, int argc, char** argv);

// Sets the flags among `arguments`, up to the first one that is unknown, has no value or has a bad
// one. Returns what is wrong with that one, or "".
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
// Whether it also multiplies bf16 numbers.
inline bool CpuHasAvx512Bf16() {
  return CpuHasAvx512() && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

// A process has at most this many files open beside its connections: logs, data, checkpoints, and
// what gRPC opens.
inline constexpr uint64_t kFilesBesideConnections = 64;

// How many files this process may have open (its soft limit); 0 where the system doesn't say.
uint64_t OpenFileLimit();
// Raises the soft limit of open files to the hard limit, for this process and the ones that it
// starts later.
void RaiseOpenFileLimit();

// Checks that OpenFileLimit() suffices for `connections` and kFilesBesideConnections.
//   who: the program, for the error
// Errors: kFailedPrecondition (names `who`, what it needs, and the limit).
absl::Status CheckOpenFiles(absl::string_view who, uint64_t connections);

// How much of this process's memory is in RAM (VmRSS), in bytes; 0 where /proc can't be read.
uint64_t ResidentBytes();

// Seconds since this process was loaded.
double UptimeSeconds();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PROCESS_H_
