// What may go wrong in a simulated job: how often, and how long it takes.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_FAULTS_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_FAULTS_H_

#include <cstdint>

namespace thermocline {

// Of one server.
struct CrashFaults {
  int max_crashes = 0;        // But for those at the end of a run.
  double stop = 0;            // After so many of the messages the process is killed, soon.
  double break_write = 0;     // After so many it dies in the middle of one of the next writes.
  double break_recovery = 0;  // So many recoveries are cut short.
  int max_checkpoint_failures = 10;
  double fail_checkpoint = 0;  // After so many messages a write of a checkpoint fails, soon.
  double take_host = 0;        // Of the deaths; the host goes too.
  int64_t stop_us = 3'000;
  int64_t down_us = 100'000;      // Until the next process, at the most ...
  int64_t configure_us = 50'000;  // ... and until that is configured.
  int64_t sync_us = 5'000;        // A sync begins so late, at the most ...
  int64_t slice_us = 5'000;       // ... and a slice of a checkpoint.
  uint64_t segment_bytes = 1000;
};

// Of one server: it refuses every pull and push for a while, as one without room does.
struct OverloadFaults {
  int max_times = 0;
  double begin = 0;  // After so many of the messages.
  int64_t most_us = 0;
};

// Of the launcher and the workers, in a job with checkpoints. Probabilities are of each of the
// launcher's rounds.
struct LauncherFaults {
  int max_deaths = 0;  // Of the launcher; everything it started dies with it.
  int max_worker_deaths = 0;
  double stop = 0;         // It is killed.
  double break_write = 0;  // It dies in the middle of one of the next writes.
  double fail_write = 0;   // One of the next writes fails.
  double stop_worker = 0;
  double stop_by_user = 0;       // The user stops the job, once.
  double bad_data = 0;           // A worker ends because of the job itself, once; others lose it.
  double take_host = 0;          // Of the launcher's deaths: what it didn't sync may be lost.
  double resume_older = 0;       // Of the new launchers: the user names an older checkpoint.
  bool resizes_servers = false;  // The next launcher goes on with another number of them.
  bool resizes_workers = false;
  // Of its calls: lost on the way, there or back; or they arrive after the launcher gave them up.
  double lose_call = 0;
  double late_call = 0;
  int64_t call_us = 0;  // There and back, at the most: the others go on meanwhile.
  int64_t late_us = 200'000;
  double request = 0;  // Somebody asks for a checkpoint.
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_FAULTS_H_
