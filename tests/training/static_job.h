// A small job whose cache holds the same rows from the first step to the last (Cache::STATIC).
#ifndef THERMOCLINE_TESTS_TRAINING_STATIC_JOB_H_
#define THERMOCLINE_TESTS_TRAINING_STATIC_JOB_H_

#include <string>

#include "proto/job.pb.h"
#include "tests/training/small_job.h"

namespace thermocline {

// Gives the job such a cache, and writes its hot set to the disk. That has the keys that the
// training rows look up at least `least_lookups` times, in all tables whose rows workers may hold.
Job WithStaticCache(const Job& job, const std::string& budget, int window_steps, int prefetch_steps,
                    int least_lookups);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_STATIC_JOB_H_
